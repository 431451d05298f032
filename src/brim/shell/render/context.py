"""What fills the window: every token of it in one row, with what it costs and what frees it.

The rows say what goes out, not what is in the history: a picture is taken of the plan as it
stands. They add up to the window exactly; where more is to be sent than may be, to the window and
what is over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from brim.models.pricing import MILLION
from brim.session.session import get_driver
from brim.shell.render.context_sizes import measure_rows
from brim.shell.render.context_view import render_context

if TYPE_CHECKING:
    from brim.fitting.plan import Plan
    from brim.models.pricing import Price
    from brim.session.session import Session

__all__ = [
    "ContextReport",
    "ContextRow",
    "TrimmedTurns",
    "build_report",
    "render_context",
    "to_json",
]

SENT_ROWS: Final = (
    *("system", "background", "project", "summary", "goal", "tools"),
    *("user", "assistant", "tool results", "exec output", "other", "note", "waiting output"),
    "structure",
)
"""The rows of what is sent, in their order; tools have one for each server."""
FREE_ROWS: Final = ("margin", "not for input", "free")
"""The rows of what is kept free."""
FREES: Final = {
    "background": ":memory forget",
    "project": ":tree off",
    "summary": ":reset",
    "goal": ":reset",
    "user": ":compact",
    "assistant": ":compact",
    "tool results": ":compact",
    "exec output": ":compact",
    "waiting output": ":output drop",
}
_WINDOWS: Final = {
    "given": "the configuration",
    "a guess": "nobody tells it; brim reckons with a small one",
}
_SCALE = re.compile(r"\*[\d.]+\+[\d.]+")


@dataclass(frozen=True, slots=True)
class ContextRow:
    """A row: one of the things that share the window."""

    name: str
    tokens: int
    share: float
    """Of the window."""
    price: Decimal | None
    """Dollars for sending it once (for the reply: at most); None where nobody knows."""
    frees: str
    """The command that frees it; empty where there is none."""


@dataclass(frozen=True, slots=True)
class TrimmedTurns:
    """What does not go out, or not whole."""

    turns: tuple[int, ...] = ()
    """The turns that are left out, by their numbers in the history."""
    shortened: tuple[int, ...] = ()
    """The turns of which a part goes out: clipped or masked."""
    tokens: int = 0
    """What all this takes less than it would whole."""


@dataclass(frozen=True, slots=True)
class ContextReport:
    """A window and all that is in it."""

    name: str
    """What the user calls the model."""
    model: str | None
    used: int
    """Tokens of what would be sent now."""
    limit: int
    window: int
    reply: int
    margin: int
    is_exact: bool
    counted_by: str
    """Where the number of used tokens comes from."""
    window_from: str
    """Where the size of the window comes from."""
    parts: tuple[ContextRow, ...]
    over: int
    """By how much more is to be sent than may be."""
    can_be_sent: bool
    """Whether it fits after what may be left out is left out; outputs that wait apart."""
    cut: TrimmedTurns

    @property
    def fill(self) -> float:
        """The share of the limit that is used."""
        return self.used / self.limit if self.limit else float(self.used > 0)


def build_report(
    session: Session,
    *,
    tool_servers: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    window_from: str | None = None,
) -> ContextReport:
    """What the next request would be made of; asks nobody.

    `tool_servers` are the tools on offer by the name of their server, `window_from` goes before
    what the session knows about where its window comes from. Raises `BudgetError` where no window
    is known.
    """
    driver = get_driver(session)
    plan, outputs = driver.preview(), driver.joined_outputs
    waiting = driver.count_text(outputs) if outputs else 0
    sizes = measure_rows(session, plan, tool_servers or {})
    sizes["waiting output"] += waiting
    used, limit, budget = plan.size + waiting, plan.limit, plan.budget
    reply, source = min(budget.reply, budget.window), driver.profile.window_source
    room = max(0, budget.room)
    rows = {
        **_in_order(sizes),
        "margin": room - limit,
        "not for input": budget.window - reply - room,
        "reply": reply,
        "free": max(0, limit - used),
    }
    return ContextReport(
        name=driver.profile.name,
        model=session.model,
        used=used,
        limit=limit,
        window=budget.window,
        reply=reply,
        margin=room - limit,
        is_exact=_is_exact(plan) and not waiting,
        counted_by=_describe_count(plan),
        window_from=window_from or _WINDOWS.get(source, source),
        parts=_build_rows(rows, budget.window, driver.profile.price_for(used)),
        over=max(0, used - limit),
        can_be_sent=plan.fits,
        cut=_find_trimmed(plan),
    )


def to_json(picture: ContextReport) -> dict[str, Any]:
    """The picture as plain data."""
    return {
        "name": picture.name,
        "model": picture.model,
        "used": picture.used,
        "limit": picture.limit,
        "window": picture.window,
        "reply": picture.reply,
        "margin": picture.margin,
        "over": picture.over,
        "can_be_sent": picture.can_be_sent,
        "exact": picture.is_exact,
        "counted_by": picture.counted_by,
        "window_from": picture.window_from,
        "parts": [
            {
                "name": part.name,
                "tokens": part.tokens,
                "share": round(part.share, 6),
                "price": None if part.price is None else str(part.price),
                "frees": part.frees or None,
            }
            for part in picture.parts
        ],
        "cut": {
            "turns": list(picture.cut.turns),
            "shortened": list(picture.cut.shortened),
            "tokens": picture.cut.tokens,
        },
    }


# Rows


def _in_order(sizes: Mapping[str, int]) -> dict[str, int]:
    """The rows that have something in them; the base prompt in any case."""
    names = sorted(sizes, key=lambda name: (SENT_ROWS.index(name.partition(":")[0]), name))
    return {"system": 0, **{name: sizes[name] for name in names if sizes[name]}}


def _build_rows(
    rows: Mapping[str, int], window: int, price: Price | None
) -> tuple[ContextRow, ...]:
    return tuple(
        ContextRow(
            name,
            tokens,
            tokens / window if window else 0.0,
            _cost(name, tokens, price),
            _frees(name),
        )
        for name, tokens in rows.items()
        if tokens or name in ("system", "reply", "free")
    )


def _cost(name: str, tokens: int, price: Price | None) -> Decimal | None:
    if price is None or name in FREE_ROWS:
        return None
    rate = price.output if name == "reply" else price.input
    return None if rate is None else tokens * rate / MILLION


def _frees(name: str) -> str:
    kind, _, server = name.partition(": ")
    return f":mcp disconnect {server}" if server and kind == "tools" else FREES.get(name, "")


# Where it comes from


def _is_exact(plan: Plan) -> bool:
    return plan.server_tokens is not None or plan.exact


def _describe_count(plan: Plan) -> str:
    counter = plan.history.counter
    name = _SCALE.sub("", counter.name)
    if plan.server_tokens is not None:
        return "counted by the server"
    if plan.calibrated_tokens is not None:
        return "reported by the server for the last request, estimated since"
    if plan.exact:
        return f"counted with {name}"
    if not counter.uncertainty:
        return f"counted with {name}, tools and media on the high side"
    return f"estimated with {name}, off by at most {counter.uncertainty:.0%}".replace("%", " %")


def _find_trimmed(plan: Plan) -> TrimmedTurns:
    return TrimmedTurns(
        turns=tuple(decision.index for decision in plan.dropped),
        shortened=tuple(sorted(plan.changes)),
        tokens=max(0, plan.before - plan.tokens),
    )
