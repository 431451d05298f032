"""What fills the window: one row per part, with its price and the command that frees it.

The rows describe the next request, not the history. They add up to the window exactly; if the
request is too large, to the window and the excess.
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
"""The rows that are sent, in order; tools have one row per server."""
FREE_ROWS: Final = ("margin", "not for input", "free")
"""The rows that are not sent."""
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
    "a guess": "unknown; brim assumes a small one",
}
_SCALE = re.compile(r"\*[\d.]+\+[\d.]+")


@dataclass(frozen=True, slots=True)
class ContextRow:
    """A row: one of the parts that share the window."""

    name: str
    tokens: int
    share: float
    """Share of the window."""
    price: Decimal | None
    """Dollars for sending it once (for the reply: at most); None if unknown."""
    frees: str
    """The command that frees it; empty if there is none."""


@dataclass(frozen=True, slots=True)
class TrimmedTurns:
    """The turns that are not sent, or not completely."""

    turns: tuple[int, ...] = ()
    """Indices of dropped turns in the history."""
    shortened: tuple[int, ...] = ()
    """Indices of clipped and masked turns."""
    tokens: int = 0
    """Tokens saved by that."""


@dataclass(frozen=True, slots=True)
class ContextReport:
    """A window and everything in it."""

    name: str
    """The user's name for the model."""
    model: str | None
    used: int
    """Tokens of the next request."""
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
    """Tokens above the limit."""
    can_be_sent: bool
    """Whether it fits after trimming, without the output that waits."""
    trimmed: TrimmedTurns

    @property
    def fill(self) -> float:
        """Share of the limit that is used."""
        return self.used / self.limit if self.limit else float(self.used > 0)


def build_report(
    session: Session,
    *,
    tool_servers: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    window_from: str | None = None,
) -> ContextReport:
    """Describe the next request, without any I/O; raise BudgetError if the window is unknown.

    `tool_servers` are the offered tools by server; `window_from` overrides the session's own
    description of where its window comes from.
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
        trimmed=_find_trimmed(plan),
    )


def to_json(report: ContextReport) -> dict[str, Any]:
    """Return the report as plain data."""
    return {
        "name": report.name,
        "model": report.model,
        "used": report.used,
        "limit": report.limit,
        "window": report.window,
        "reply": report.reply,
        "margin": report.margin,
        "over": report.over,
        "can_be_sent": report.can_be_sent,
        "exact": report.is_exact,
        "counted_by": report.counted_by,
        "window_from": report.window_from,
        "parts": [
            {
                "name": part.name,
                "tokens": part.tokens,
                "share": round(part.share, 6),
                "price": None if part.price is None else str(part.price),
                "frees": part.frees or None,
            }
            for part in report.parts
        ],
        "trimmed": {
            "turns": list(report.trimmed.turns),
            "shortened": list(report.trimmed.shortened),
            "tokens": report.trimmed.tokens,
        },
    }


# Rows


def _in_order(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the rows that are not empty, and always the system prompt."""
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


# Sources


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
