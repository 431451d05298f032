"""The size of each part of a request: a plan's tokens, apportioned exactly.

The system prompt and the tools are counted as they are sent, as a whole; their parts get shares by
weight. If the server reported the total, that total is apportioned in the same way.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from brim.messages import Message
from brim.session.session import get_driver
from brim.session.system_prompt import BLOCK_SEPARATOR

if TYPE_CHECKING:
    from brim.fitting.plan import Plan
    from brim.session.session import Session
    from brim.tokens import Counter

_ROWS: Final = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool results",
    "other": "other",
}


def measure_rows(
    session: Session, plan: Plan, servers: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Tally[str]:
    """Return the tokens of each row; their sum is the plan's size."""
    counter = plan.history.counter
    sizes = _turn_sizes(plan)
    sizes["summary" if session.summary else "note"] += sum(note.tokens for note in plan.notes)
    sizes.update(_system_sizes(session, counter))
    sizes.update(_tool_sizes(session.tools, counter, servers))
    sizes["structure"] += plan.tokens - sizes.total()
    if sizes["structure"] < 0 or plan.size != plan.tokens:
        return _apportion(plan.size, sizes)
    return sizes


def _turn_sizes(plan: Plan) -> Tally[str]:
    """Return the tokens of the turns by role."""
    sizes: Tally[str] = Tally()
    history, count = plan.history, plan.history.counter.text
    for index in plan.sent_indices:
        edit = plan.changes.get(index)
        message = history.messages[index] if edit is None else edit.message
        tokens = history.tokens(index) if edit is None else edit.tokens
        row = _ROWS[message.role]
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
    whole = sum(weights[name] for name in names)
    if not whole:
        return Tally({"structure": total})
    shares = Tally({name: total * weights[name] // whole for name in names})
    largest = sorted(names, key=lambda name: -(total * weights[name] % whole))
    shares.update(largest[: total - shares.total()])
    return shares
