"""Said: the turns of a conversation, all of them, and the outputs that wait for the next one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from brim.errors import InputError
from brim.wire.json_copy import copy_json

EMPTY_REPLY: Final = "_empty"
"""Marks a reply without a word, which is not sent again."""

Turn = dict[str, Any]


class Transcript:
    """What was said, in the order in which it was."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.places: list[int] = []
        """Where among the turns those stand that are sent: all but empty replies."""
        self.waiting: list[str] = []

    def __len__(self) -> int:
        return len(self.turns)

    def append(self, turn: Turn) -> None:
        if not turn.get(EMPTY_REPLY):
            self.places.append(len(self.turns))
        self.turns.append(turn)

    def since(self, index: int) -> list[Turn]:
        """The turns from an index on, as copies."""
        return [copy_json(turn) for turn in self.turns[index:]]

    def turn(self, index: int) -> Turn:
        if not isinstance(index, int) or not 0 <= index < len(self.turns):
            raise InputError(f"there is no turn {index!r}; there are 0 to {len(self.turns) - 1}")
        return self.turns[index]

    def place(self, index: int) -> int:
        """Where a turn stands among those that are sent."""
        self.turn(index)
        if index not in self.places:
            raise InputError(f"turn {index} is an empty reply, which is not sent")
        return self.places.index(index)

    def take_back(self, length: int) -> list[Turn]:
        """Keep the first turns only; gives the others."""
        if not isinstance(length, int) or not 0 <= length <= len(self.turns):
            raise InputError(f"there are {len(self.turns)} turns; {length!r} of them cannot stay")
        taken = self.turns[length:]
        del self.turns[length:]
        self.places = [place for place in self.places if place < length]
        return taken

    def clear(self) -> None:
        for held in (self.turns, self.places, self.waiting):
            held.clear()

    def to_dict(self) -> dict[str, Any]:
        return {"turns": copy_json(self.turns), "waiting": list(self.waiting)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Transcript:
        said = cls()
        for turn in copy_json(data["turns"]):
            said.append(turn)
        said.waiting = list(data["waiting"])
        return said
