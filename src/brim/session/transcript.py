"""Transcript: all turns of a conversation, and the outputs that wait for the next user turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brim.errors import InputError
from brim.wire.json_copy import copy_json
from brim.wire.openai_chat import EMPTY_FIELD

Turn = dict[str, Any]


class Transcript:
    """The turns of a conversation in their order."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.waiting: list[str] = []
        """Outputs that will be sent with the next user turn."""

    def __len__(self) -> int:
        return len(self.turns)

    def append(self, turn: Turn) -> None:
        self.turns.append(turn)

    def copy_from(self, index: int) -> list[Turn]:
        """Return copies of the turns from an index on."""
        return [copy_json(turn) for turn in self.turns[index:]]

    def get_turn(self, index: int) -> Turn:
        """Return a turn; raise InputError if it does not exist."""
        if not isinstance(index, int) or not 0 <= index < len(self.turns):
            last = len(self.turns) - 1
            raise InputError(f"Turn {index!r} does not exist. The last turn is {last}.")
        return self.turns[index]

    def check_sendable(self, index: int) -> None:
        """Raise InputError if a turn does not exist or is an empty reply."""
        if self.get_turn(index).get(EMPTY_FIELD):
            raise InputError(f"Turn {index} is an empty reply, which is never sent.")

    def truncate(self, length: int) -> list[Turn]:
        """Keep the first turns and return the removed ones."""
        if not isinstance(length, int) or not 0 <= length <= len(self.turns):
            raise InputError(
                f"Cannot rewind to {length!r} turns: the conversation has {len(self.turns)}."
            )
        removed = self.turns[length:]
        del self.turns[length:]
        return removed

    def clear(self) -> None:
        self.turns.clear()
        self.waiting.clear()

    def to_dict(self) -> dict[str, Any]:
        return {"turns": copy_json(self.turns), "waiting": list(self.waiting)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Transcript:
        transcript = cls()
        for turn in copy_json(data["turns"]):
            if not isinstance(turn, dict):
                raise TypeError(f"turn {len(transcript)} is a {type(turn).__name__}")
            transcript.append(turn)
        transcript.waiting = list(data["waiting"])
        return transcript
