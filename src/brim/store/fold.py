"""What the events of a conversation amount to; pure.

turn       a turn was said: `message`; a user's turn takes along the outputs that waited
output     an output waits for the user's next words: `text`
back       only the first `length` turns count from here on, and `waiting` waits again
reset      the conversation begins anew
All other kinds (what was asked and answered, commands, compactions) are for the reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a conversation."""

    kind: str
    data: Mapping[str, Any]
    time: float = 0.0


@dataclass(slots=True)
class Folded:
    """What is said and what waits, after all events."""

    turns: list[dict[str, Any]] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)


def folded(events: Iterable[Event]) -> Folded:
    found = Folded()
    for event in events:
        _take(found, event)
    return found


def _take(found: Folded, event: Event) -> None:
    match event.kind:
        case "turn":
            message = event.data["message"]
            found.turns.append(dict(message))
            if message["role"] == "user":
                found.waiting.clear()
        case "output":
            found.waiting.append(event.data["text"])
        case "back":
            del found.turns[event.data["length"] :]
            found.waiting[:] = event.data["waiting"]
        case "reset":
            found.turns.clear()
            found.waiting.clear()
        case _:
            pass
