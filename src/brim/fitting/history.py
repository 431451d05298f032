"""Messages → units, exchanges and request points; one pass, and one more turn costs one more turn.

Most histories fit as they are, and of those only the counts are wanted. So a history counts what
comes in and groups it into units when somebody has to cut it.

A *unit* is what is removed at once: a step (an assistant turn with the results of the tools it
called) or a turn outside of steps. System turns belong to no unit: they stay where they are, and
the others are neighbours across them. A result belongs to the nearest calling turn before it, so
a result that stands elsewhere is an orphan, and a step that was left before all its results came
has unanswered calls; both are *faults*.

Everything here depends only on what came before: what is true of a prefix stays true.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from brim.fitting.clip import ClipCache
from brim.wire.notes import MASK, is_marked, reports_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from brim.messages import Message
    from brim.tokens import Counter

ORPHAN: Final = "a result without its call"
UNANSWERED: Final = "a call without its result"

_ROLE: Final = attrgetter("role")
_CALLS: Final = attrgetter("calls")


class Unit:
    """A step, or a turn outside of steps. It grows while results of its calls come in."""

    __slots__ = ("calling", "fault", "last", "pending", "priority", "role", "start", "user")

    def __init__(self, start: int, message: Message, user: int, calling: int) -> None:
        self.start = start
        """Where its first message stands."""
        self.last = start
        """Where its last message stands; system turns may lie between."""
        self.role = message.role
        self.user = user
        """The user turn that this one answers: -1 before the first, a user's is its own."""
        self.calling = calling
        """How many steps up to and with this one call tools."""
        self.pending = [call.id for call in message.calls] if message.calls else []
        self.priority = message.priority
        self.fault = ""

    @property
    def plain(self) -> bool:
        """An assistant turn alone: nothing stands between it and its neighbour."""
        return self.role == "assistant" and self.last == self.start


class History:
    """Everything that was said, counted. It only grows.

    All that is about units is there once `group` was called, up to where the history went then.
    """

    def __init__(self, counter: Counter, pins: Iterable[int] = (), mask: str = MASK) -> None:
        self.counter = counter
        self.mask = mask
        """What stands in place of a masked output."""
        self.messages: list[Message] = []
        self.sizes: list[int] = [0]
        """Tokens of the messages, summed: `sizes[j] - sizes[i]` is what i up to j take."""
        self.has_steps = False
        """Whether there are calls or results, which alone can be out of place."""
        self.pins = frozenset(pins)
        """The messages that are pinned by their index."""
        self.unit_of: list[int] = []
        """The unit of each message that was grouped; -1 for system turns."""

    def _begin_groups(self) -> None:
        self.system_sizes: list[int] = [0]
        """Tokens of the system turns alone, summed like `sizes`."""
        self.output_sizes: list[int] = []
        """Tokens of a message's outputs."""
        self.systems: list[int] = []
        self.outputs: list[int] = []
        """The messages that carry output."""
        self.marked: set[int] = set()
        """The messages whose output carries a mark of brim's own already."""
        self._errors: dict[int, bool] = {}
        self.thoughts: list[int] = []
        """The messages that carry thinking."""
        self.units: list[Unit] = []
        self.users: list[int] = []
        """The units that are user turns."""
        self.faults: list[int] = []
        self.pinned: list[int] = []
        """The units with a pinned message."""
        self.points: list[tuple[int, int]] = []
        """The request points, as (messages, units) before them."""
        self.ranked: list[int] = []
        """The messages that have a priority of their own."""

    @cached_property
    def cuts(self) -> ClipCache:
        return ClipCache(self.counter.text)

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def turns(self) -> int:
        """How many messages there are, system turns not counted."""
        self.group()
        return len(self.messages) - len(self.systems)

    def tokens(self, index: int) -> int:
        return self.sizes[index + 1] - self.sizes[index]

    def unit_tokens(self, unit: int) -> int:
        """What a unit takes, system turns within it left out."""
        start, stop = self.units[unit].start, self.units[unit].last + 1
        within = self.system_sizes[stop] - self.system_sizes[start]
        return self.sizes[stop] - self.sizes[start] - within

    def members(self, unit: int) -> list[int]:
        """The messages of a unit."""
        start, stop = self.units[unit].start, self.units[unit].last + 1
        return [i for i in range(start, stop) if self.unit_of[i] == unit]

    def systems_between(self, start: int, stop: int) -> list[int]:
        return self.systems[bisect_left(self.systems, start) : bisect_left(self.systems, stop)]

    def next_user(self, unit: int) -> int | None:
        """The first user turn from a unit on."""
        place = bisect_left(self.users, unit)
        return self.users[place] if place < len(self.users) else None

    def age(self, index: int, units: int) -> int:
        """How many steps that call tools came after the step of this message, up to `units`."""
        return self.units[units - 1].calling - self.units[self.unit_of[index]].calling

    def is_pinned(self, index: int) -> bool:
        return self.messages[index].pin or index in self.pins

    def reports_error(self, index: int) -> bool:
        """Whether the output of a message tells of an error."""
        known = self._errors.get(index)
        if known is None:
            known = any(map(reports_error, self.messages[index].outputs))
            self._errors[index] = known
        return known

    def extend(self, messages: Sequence[Message]) -> None:
        """Take in what came since, or nothing of it where it cannot be counted."""
        self.sizes[-1:] = accumulate(map(self.counter.message, messages), initial=self.sizes[-1])
        self.messages += messages
        if not self.has_steps:
            self.has_steps = "tool" in map(_ROLE, messages) or any(map(_CALLS, messages))

    def group(self) -> None:
        """Sort what came since into units."""
        if not self.unit_of:
            self._begin_groups()
        for index in range(len(self.unit_of), len(self.messages)):
            self._sort(index, self.messages[index])

    def _sort(self, index: int, message: Message) -> None:
        role = message.role
        tokens = self.tokens(index) if role == "system" else 0
        self.system_sizes.append(self.system_sizes[-1] + tokens)
        if message.is_words and not message.priority:
            self.output_sizes.append(0)
        else:
            self._note_parts(index, message)
        if role == "system":
            self.systems.append(index)
            self.unit_of.append(-1)
        elif role == "tool":
            self._result(index, message)
        else:
            self._turn(index, message)

    def _note_parts(self, index: int, message: Message) -> None:
        """Remember which messages carry what a pass may look for."""
        size = 0
        if message.outputs:
            for text in message.outputs:
                size += self.counter.text(text)
                if is_marked(text, self.mask):
                    self.marked.add(index)
            self.outputs.append(index)
        self.output_sizes.append(size)
        if message.thinking:
            self.thoughts.append(index)
        if message.priority:
            self.ranked.append(index)

    def _result(self, index: int, message: Message) -> None:
        unit = self.units[-1] if self.units else None
        if unit is None or message.answers not in unit.pending:
            self._begin(index, message, fault=ORPHAN)
            return
        unit.pending.remove(message.answers)
        unit.last = index
        unit.priority = max(unit.priority, message.priority)
        number = len(self.units) - 1
        self.unit_of.append(number)
        if self.is_pinned(index) and self.pinned[-1:] != [number]:
            self.pinned.append(number)
        if not unit.pending:
            self.points.append((index + 1, len(self.units)))

    def _turn(self, index: int, message: Message) -> None:
        self._begin(index, message)
        if message.role == "user":
            self.points.append((index + 1, len(self.units)))

    def _begin(self, index: int, message: Message, fault: str = "") -> None:
        number = len(self.units)
        before = self.units[-1] if self.units else None
        if before is not None and before.pending and not before.fault:
            before.fault = UNANSWERED
            self.faults.append(number - 1)
        user = number if message.role == "user" else before.user if before else -1
        calling = (before.calling if before else 0) + bool(message.calls)
        unit = Unit(index, message, user, calling)
        self.units.append(unit)
        self.unit_of.append(number)
        if message.role == "user":
            self.users.append(number)
        if fault:
            unit.fault = fault
            self.faults.append(number)
        if message.pin or index in self.pins:
            self.pinned.append(number)
