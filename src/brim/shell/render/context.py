"""What fills the window: one row per part, with its price and the command that frees it.

The rows describe the next request, not the history. They add up to the window exactly; if the
request is too large, to the window and the excess. The system prompt and the tools are counted as
they are sent, as a whole; their parts get shares by weight. If the server reported the total, that
total is apportioned in the same way.
"""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any, Final

from brim.fitting.plan import Plan
from brim.fitting.text_tables import apportion
from brim.messages import Message
from brim.models.pricing import MILLION, Price
from brim.session.session import Session, get_driver
from brim.session.system_prompt import BLOCK_SEPARATOR
from brim.tokens import Counter

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
    session: Session, *, tool_servers: Mapping[str, Sequence[Mapping[str, Any]]] | None = None
) -> ContextReport:
    """Describe the next request, without any I/O; raise BudgetError if the window is unknown.

    `tool_servers` are the offered tools by server.
    """
    driver = get_driver(session)
    (plan, counter), outputs = driver.preview_with_counter(), driver.joined_outputs
    waiting = driver.count_text(outputs) if outputs else 0
    sizes = _measure_rows(session, plan, counter, tool_servers or {})
    sizes["waiting output"] += waiting
    used, limit, budget = plan.size + waiting, plan.limit, plan.budget
    reply, source = min(budget.reply, budget.window), driver.profile.window_source
    room = max(0, budget.room)
    rows = {
        "system": 0,
        **{name: sizes[name] for name in sorted(sizes, key=_sent_order) if sizes[name]},
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
        is_exact=(plan.is_server_counted or plan.exact) and not waiting,
        counted_by=_describe_count(plan, counter),
        window_from=_WINDOWS.get(source, source),
        parts=_build_rows(rows, budget.window, driver.profile.price_for(used)),
        over=max(0, used - limit),
        can_be_sent=plan.fits,
        trimmed=TrimmedTurns(
            tuple(decision.index for decision in plan.dropped),
            tuple(sorted(plan.changes)),
            max(0, plan.before - plan.tokens),
        ),
    )


def to_json(report: ContextReport) -> dict[str, Any]:
    """Return the report as plain data."""
    data = asdict(report)
    data["exact"] = data.pop("is_exact")
    for part in data["parts"]:
        part["share"] = round(part["share"], 6)
        part["price"] = None if part["price"] is None else str(part["price"])
        part["frees"] = part["frees"] or None
    return data


# Rows


def _sent_order(name: str) -> tuple[int, str]:
    return SENT_ROWS.index(name.partition(":")[0]), name


def _build_rows(
    rows: Mapping[str, int], window: int, price: Price | None
) -> tuple[ContextRow, ...]:
    found = []
    for name, tokens in rows.items():
        if tokens or name in ("system", "reply", "free"):
            kind, _, server = name.partition(": ")
            is_server = server and kind == "tools"
            frees = f":mcp disconnect {server}" if is_server else FREES.get(name, "")
            share = tokens / window if window else 0.0
            rates = price or Price()
            rate = rates.output if name == "reply" else rates.input
            cost = None if rate is None or name in FREE_ROWS else tokens * rate / MILLION
            found.append(ContextRow(name, tokens, share, cost, frees))
    return tuple(found)


# Sources


def _describe_count(plan: Plan, counter: Counter) -> str:
    name = _SCALE.sub("", counter.name)
    if plan.is_server_counted:
        return "counted by the server"
    if plan.server_tokens is not None:
        return "texts counted by the server, structure estimated"
    if plan.calibrated_tokens is not None:
        return "reported by the server for the last request, estimated since"
    if plan.exact:
        return f"counted with {name}"
    if not counter.uncertainty:
        return f"counted with {name}, tools and media on the high side"
    return f"estimated with {name}, off by at most {counter.uncertainty:.0%}".replace("%", " %")


# Sizes


def _measure_rows(
    session: Session,
    plan: Plan,
    counter: Counter,
    servers: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Tally[str]:
    """Return the tokens of each row; their sum is the plan's size."""
    sizes = _turn_sizes(plan, counter)
    sizes["summary" if session.summary else "note"] += sum(note.tokens for note in plan.notes)
    sizes.update(_system_sizes(session, counter))
    sizes.update(_tool_sizes(session.tools, counter, servers))
    sizes["structure"] += plan.tokens - sizes.total()
    if sizes["structure"] < 0 or plan.size != plan.tokens:
        return _apportion(plan.size, sizes)
    return sizes


def _turn_sizes(plan: Plan, counter: Counter) -> Tally[str]:
    """Return the tokens of the turns by role."""
    sizes: Tally[str] = Tally()
    history, count = plan.history, counter.text
    for index in plan.sent_indices:
        edit = plan.changes.get(index)
        message = history.messages[index] if edit is None else edit.message
        tokens = history.tokens(index) if edit is None else edit.tokens
        row = "tool results" if message.role == "tool" else message.role
        if message.role == "user" and message.outputs:
            printed = min(tokens, sum(map(count, message.outputs)))
            sizes["exec output"] += printed
            tokens -= printed
        sizes[row] += tokens
    return sizes


def _system_sizes(session: Session, counter: Counter) -> Tally[str]:
    """Return the tokens of each block of the system prompt, which is counted as a whole."""
    driver = get_driver(session)
    text, parts = driver.system_text, driver.render_system_parts()
    if not text:
        return Tally()
    total = counter.message(Message("system", words=(text,)))
    weights: Tally[str] = Tally()
    for number, (name, part) in enumerate(parts.items()):
        row = "goal" if name == "instructions" else name
        weights[row] = counter.text(f"{BLOCK_SEPARATOR}{part}" if number else part)
    return _apportion(total, weights)


def _tool_sizes(
    tools: Sequence[Mapping[str, Any]],
    counter: Counter,
    servers: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Tally[str]:
    """Return the tokens of the tool definitions by server."""
    homes = {_name(tool): server for server, offered in servers.items() for tool in offered}
    weights: Tally[str] = Tally()
    for tool in tools:
        server = homes.get(_name(tool))
        weights[f"tools: {server}" if server else "tools"] += counter.tools([tool])
    return _apportion(counter.tools(tools), weights)


def _name(tool: Mapping[str, Any]) -> str:
    inner = tool.get("function")
    return str((inner if isinstance(inner, Mapping) else tool).get("name", ""))


def _apportion(total: int, weights: Mapping[str, int]) -> Tally[str]:
    """Apportion a number of tokens by weight, without a remainder."""
    names = [name for name, weight in weights.items() if weight > 0]
    if not names:
        return Tally({"structure": total})
    shares = apportion(total, [weights[name] for name in names])
    return Tally(dict(zip(names, shares, strict=True)))
