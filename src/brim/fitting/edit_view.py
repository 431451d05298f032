"""Scope: what an edit sees, and what in it is hard, protected or gone already."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from brim.fitting.history import History

NEWEST_OUTPUTS: Final = 3
"""So many of the newest outputs are protected, as long as they take at most a quarter."""


@dataclass(frozen=True, slots=True)
class HistoryView:
    """What an edit sees: a history up to a point, and the room there is."""

    history: History
    units: int
    messages: int
    base: int
    """Tokens of the request's frame and of its tools."""
    limit: int
    keep_recent: int

    def up_to(self, units: int, messages: int) -> HistoryView:
        """The same at another point."""
        return HistoryView(self.history, units, messages, self.base, self.limit, self.keep_recent)

    @property
    def total(self) -> int:
        return self.base + self.history.sizes[self.messages]

    @property
    def ranked(self) -> bool:
        """Whether any message here has a priority of its own."""
        return bool(self.history.ranked) and self.history.ranked[0] < self.messages

    @property
    def open_unit(self) -> int:
        """The step that nothing has followed yet; -1 where a user's turn is the last.

        Words in one message with its results leave it open: clients put reminders there, and the
        model has not seen these results either.
        """
        units, last = self.history.units, self.units - 1
        if last > 0 and self.history.messages[units[last].start].beside:
            step = units[last - 1]
            if step.user >= 0 and not step.fault:
                last -= 1
        return last if last >= 0 and units[last].role == "assistant" else -1

    @property
    def first_user(self) -> int:
        users = self.history.users
        return users[0] if users and users[0] < self.units else -1

    @property
    def last_user(self) -> int:
        users = self.history.users
        place = bisect_left(users, self.units) - 1
        return users[place] if place >= 0 else -1

    @property
    def last_words(self) -> set[int]:
        """The last user turn, and the one that the open step answers where that is another."""
        opened = self.open_unit
        return {self.last_user, self.history.units[opened].user if opened >= 0 else -1} - {-1}

    def hard(self) -> set[int]:
        """The units that never leave: pins, the last user turn, the open step, the last unit."""
        history = self.history
        pinned = history.pinned[: bisect_left(history.pinned, self.units)]
        hard = {*pinned, *self.users_of(pinned), *self.last_words, self.open_unit, self.units - 1}
        return hard - {-1} - set(self.faults(since=self.units - 1))

    def _is_pinned(self, unit: int) -> bool:
        pinned = self.history.pinned
        place = bisect_left(pinned, unit)
        return place < len(pinned) and pinned[place] == unit

    def gone(self) -> set[int]:
        """The units that leave first: faults, and what stands before the first user turn."""
        before_user = range(max(self.first_user, 0))
        return {*self.faults(), *(unit for unit in before_user if not self._is_pinned(unit))}

    def faults(self, since: int = 0) -> list[int]:
        """The results without call and calls without result, unless pinned."""
        faults = self.history.faults
        faults = faults[bisect_left(faults, since) : bisect_left(faults, self.units)]
        return [unit for unit in faults if not self._is_pinned(unit)]

    def users_of(self, units: Iterable[int]) -> list[int]:
        """The user turns that stay because answers to them do."""
        users = (self.history.units[unit].user for unit in units)
        return [user for user in users if user >= 0]

    def newest_outputs(self) -> list[int]:
        """The messages with the newest outputs, as long as they take at most a quarter."""
        history = self.history
        newest: list[int] = []
        room = self.limit // 4
        place = bisect_left(history.outputs, self.messages)
        while place > 0 and len(newest) < NEWEST_OUTPUTS:
            place -= 1
            index = history.outputs[place]
            unit = history.unit_of[index]
            if history.units[unit].fault or unit < self.first_user:
                continue  # these leave in any case
            room -= history.output_sizes[index]
            if room < 0:
                break
            newest.append(index)
        return newest

    def protected(self, gone: Collection[int]) -> set[int]:
        """The units given up last: those of the newest outputs and the last `keep_recent`."""
        newest = (self.history.unit_of[index] for index in self.newest_outputs())
        return self._with_users({*newest} - {*gone}, gone) | self.recent(gone)

    def recent(self, gone: Collection[int]) -> set[int]:
        """The last `keep_recent` units."""
        recent = range(max(0, self.units - self.keep_recent), self.units)
        return self._with_users({*recent} - {*gone}, gone)

    def _with_users(self, units: set[int], gone: Collection[int]) -> set[int]:
        return units | {user for user in self.users_of(units) if user not in gone}
