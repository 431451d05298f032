"""What the events of a conversation amount to; pure.

turn       a turn was said: `message`, as turn number `place`; a user's takes along what waited
output     an output waits for the user's next words: `text`
back       only the first `length` turns count from here on, and `waiting` waits again
All other kinds (what was asked and answered, commands, compactions) are for the reader.

A turn whose place is taken stands in the place of what was there: what was written twice counts
once, and what was taken back without being written down is gone all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

TURN: Final = "turn"
OUTPUT: Final = "output"
REWIND: Final = "back"


@dataclass(frozen=True, slots=True)
class ConversationEvent:
    """Something that happened in a conversation."""

    kind: str
    data: Mapping[str, Any]
    time: float = 0.0

    @classmethod
    def turn(cls, place: int, message: Mapping[str, Any]) -> ConversationEvent:
        return cls(TURN, {"place": place, "message": message})

    @classmethod
    def output(cls, text: str) -> ConversationEvent:
        return cls(OUTPUT, {"text": text})

    @classmethod
    def back(cls, length: int, waiting: Iterable[str]) -> ConversationEvent:
        return cls(REWIND, {"length": length, "waiting": list(waiting)})


@dataclass(slots=True)
class ConversationState:
    """What is said and what waits, after all events."""

    turns: list[dict[str, Any]] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)


def replay_events(events: Iterable[ConversationEvent]) -> ConversationState:
    found = ConversationState()
    for event in events:
        _apply_event(found, event)
    return found


def _apply_event(found: ConversationState, event: ConversationEvent) -> None:
    match event.kind:
        case "turn":
            message = event.data["message"]
            del found.turns[event.data["place"] :]
            found.turns.append(dict(message))
            if message["role"] == "user":
                found.waiting.clear()
        case "output":
            found.waiting.append(event.data["text"])
        case "back":
            del found.turns[event.data["length"] :]
            found.waiting[:] = event.data["waiting"]
        case _:
            pass
