"""Readers of request bodies, and the turns of a body with their positions.

In chat completions every message is one turn. In other formats a message may contain several turns
(results, then the user's text), and a turn may consist of several items (reasoning, then calls). A
`TurnSpan` says which positions of the body belong to a turn.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from brim.messages import Message, Role
from brim.wire.body_parts import Part
from brim.wire.notes import Note

Position = tuple[int, int]
"""The index of a message and of a block in it; the block is -1 if there is none."""


@dataclass(slots=True)
class TurnSpan:
    """One turn and its positions in the body."""

    role: Role
    positions: list[Position]
    message: Message | None = None
    """The message of the turn, if it was read together with the span."""


class MessagesView(Protocol):
    @property
    def messages(self) -> Sequence[Message]: ...


class PlanView(Protocol):
    """What the formats need of a plan to write the body that is sent."""

    @property
    def history(self) -> MessagesView: ...

    @property
    def length(self) -> int: ...

    @property
    def is_trimmed(self) -> bool: ...

    @property
    def sent_indices(self) -> Sequence[int]: ...

    @property
    def changed_messages(self) -> Mapping[int, Message]: ...

    @property
    def notes(self) -> Sequence[Note]: ...


class WrittenBody(NamedTuple):
    """A body to send, and the input of each of its messages."""

    body: Part
    origins: Sequence[int | None] | None = None
    """For each message its index in the input, None for a note; None: those of the plan."""


class BodyReader(ABC):
    """Reads a growing conversation; each message is read once."""

    def __init__(self) -> None:
        self._seen = 0
        """Number of messages or items that were read."""
        self._private = False
        """Whether any turn may have reserved fields."""

    def read(self, body: Part) -> list[Message] | None:
        """Return the turns added since the last call; None if they change how earlier turns are
        read.

        After None, the reader is unusable: a new one must read the whole body.
        """
        is_first, turns = not self._seen, self._read(body)
        if turns and not self._private:
            self._private = any(map(_IS_PRIVATE, turns))
        newest = _find_compaction(turns) if turns else 0
        if not newest:
            return turns
        return _lower_priority(turns or [], newest) if is_first else None

    def apply(self, body: Part, plan: PlanView) -> WrittenBody:
        """Return the body to send according to a plan; `body` is the one that was read last.

        Unchanged parts are the same objects, and so is the body if the plan changes nothing.
        """
        changes = plan.is_trimmed or self._private
        return self._write(body, plan) if changes else WrittenBody(body)

    @abstractmethod
    def _read(self, body: Part) -> list[Message] | None: ...

    @abstractmethod
    def _write(self, body: Part, plan: PlanView) -> WrittenBody: ...


COMPACTED_PRIORITY: Final = -1_000
"""Of turns before the newest compaction item: they are dropped first, as providers ignore them."""


def _find_compaction(turns: Sequence[Message]) -> int:
    """Return the index of the newest turn with a compaction item; 0 if there is none."""
    if not any(map(_EXTRAS, turns)):
        return 0
    return next(
        (index for index in range(len(turns) - 1, 0, -1) if _is_compaction(turns[index])), 0
    )


def _is_compaction(turn: Message) -> bool:
    extras = turn.extras
    return bool(extras) and any(extra.startswith('{"type":"compaction"') for extra in extras)


def _lower_priority(turns: Sequence[Message], end: int) -> list[Message]:
    """Return the turns with the lowest priority for those before an index."""
    old = (turn._replace(priority=turn.priority + COMPACTED_PRIORITY) for turn in turns[:end])
    return [*old, *turns[end:]]


_PLAIN: Final = frozenset(("type", "text"))
_IS_PRIVATE: Final = attrgetter("private")
_EXTRAS: Final = attrgetter("extras")


class TurnGrouper:
    """Collects turns one by one and joins those that must not be separated.

    A server-side tool may still be running when the model calls the client's tools: its end is then
    several turns after its beginning. `offers` returns the id by which other parts can refer to a
    part, `needs` the ids that it refers to.
    """

    def __init__(
        self, offers: Callable[[Part], str | None], needs: Callable[[Part], Iterable[str]]
    ) -> None:
        self.turns: list[TurnSpan] = []
        self._offers = offers
        self._needs = needs
        self._home: dict[str, int] = {}
        """The index of the turn that offers an id."""

    def add(self, turn: TurnSpan, parts: Sequence[Part]) -> int:
        """Add a turn and its parts; return the index of the first turn that changed."""
        if len(parts) == 1 and parts[0].keys() == _PLAIN:  # plain text refers to nothing
            self.turns.append(turn)
            return len(self.turns) - 1
        own = {name for part in parts if (name := self._offers(part)) is not None}
        needed = {name for part in parts for name in self._needs(part)} - own
        start = min(
            (self._home[name] for name in needed if name in self._home), default=len(self.turns)
        )
        if start < len(self.turns):
            self._join(start, turn)
        else:
            self.turns.append(turn)
        for name in own:
            self._home[name] = start
        return start

    def _join(self, start: int, turn: TurnSpan) -> None:
        members = [*self.turns[start:], turn]
        systems = [member for member in members if member.role == "system"]
        spoken = [member.positions for member in members if member.role != "system"]
        self.turns[start:] = [TurnSpan("assistant", [*chain(*spoken)]), *systems]
        self._home = {name: min(position, start) for name, position in self._home.items()}


def find_dropped(plan: PlanView) -> set[int]:
    """Return the indices of the turns that are not sent."""
    return set(range(plan.length)).difference(plan.sent_indices)
