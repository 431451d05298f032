"""What each part of a request takes: a plan's tokens, shared out to the last one.

What is sent is counted as it is sent: the system text as one, the tools as one. Where a part of
that has a row of its own, it gets its share by its weight. What the server said of the whole goes
before what was counted here, and is shared out in the same way.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from brim.messages import Message
from brim.session.system_prompt import (
    BACKGROUND_HEADING,
    BLOCK_SEPARATOR,
    PROJECT_HEADING,
    SUMMARY_HEADING,
    build_goal_instructions,
)

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
    """Tokens of what the plan sends, by row; together they are the plan's size."""
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
    """What the turns take, by whose words they are."""
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
    """What the blocks of the system text take; the whole is counted as one, as it is sent."""
    text = session.system_text()
    if not text:
        return Tally()
    total = counter.message(Message("system", words=(text,)))
    blocks = system_blocks(session, text)
    weights = Tally({name: counter.text(block) for name, block in blocks.items()})
    return _apportion(total, weights)


def system_blocks(session: Session, text: str) -> dict[str, str]:
    """The blocks of a session's system text by row, in their order; joined they are the text."""
    found: dict[str, str] = {}
    ends = {
        "goal": build_goal_instructions(session.goal) if session.goal else "",
        "summary": f"{SUMMARY_HEADING}\n{session.summary}" if session.summary else "",
        "project": f"{PROJECT_HEADING}\n{session.project}" if session.project else "",
    }
    for name, block in ends.items():
        if block and text.endswith(block):
            text, found[name] = _split_at(text, len(text) - len(block))
    facts = text.rfind(f"{BACKGROUND_HEADING}\n") if session.memory and not session.goal else -1
    if facts >= 0:
        text, found["background"] = _split_at(text, facts)
    if text:
        found["system"] = text
    return dict(reversed(found.items()))


def _split_at(text: str, place: int) -> tuple[str, str]:
    """A text in two; the blank line before the second belongs to it."""
    if text[:place].endswith(BLOCK_SEPARATOR):
        place -= len(BLOCK_SEPARATOR)
    return text[:place], text[place:]


def _tool_sizes(
    tools: Sequence[Mapping[str, Any]],
    counter: Counter,
    servers: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Tally[str]:
    """What the definitions of the tools take, by their servers; the shell's own come first."""
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
    """A number of tokens shared out by weight, to the last one."""
    names = [name for name, weight in weights.items() if weight > 0]
    whole = sum(weights[name] for name in names)
    if not whole:
        return Tally({"structure": total})
    shares = Tally({name: total * weights[name] // whole for name in names})
    largest = sorted(names, key=lambda name: -(total * weights[name] % whole))
    shares.update(largest[: total - shares.total()])
    return shares
