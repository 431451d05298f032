"""Which units stay, decided by arithmetic alone: no text is looked at.

Every unit has a floor: what it takes once all that may be cut of it is cut. With the floors
summed, what a cut would leave is a subtraction, and the place of a cut a binary search. A cut
found here can always be carried out, because no text ends up larger than its floor says.

Some units are *held* and some are *gone* already (faults, what stands before the first user);
both are outside of the mass from which a cut takes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from brim.fitting.history import History

Floor: TypeAlias = "Callable[[History, int], int]"
"""The least tokens that a message can be brought to without being dropped."""

UnitRun = tuple[int, int]


class FloorSums:
    """The floors of all units of a growing history, summed."""

    def __init__(self, floor: Floor) -> None:
        self._floor = floor
        self.sums: list[int] = [0]
        self._seen = 0

    def extend(self, history: History) -> None:
        """Take in what came since; only a cut needs it, so it waits for one."""
        for index in range(self._seen, len(history)):
            unit = history.unit_of[index]
            if unit < 0:
                continue
            if unit == len(self.sums) - 1:
                self.sums.append(self.sums[-1])
            self.sums[-1] += self._floor(history, index)
        self._seen = len(history)

    def of(self, unit: int) -> int:
        return self.sums[unit + 1] - self.sums[unit]


class DroppableUnits:
    """The floors of the units that a cut may take, as one sum from left to right."""

    def __init__(
        self,
        floors: FloorSums,
        units: int,
        fixed: Iterable[int],
        gone: Iterable[int] = (),
        noted: Sequence[int] = (),
        note: int = 0,
    ) -> None:
        self.sums = floors.sums
        self.units = units
        self.fixed = sorted({*fixed, *gone})
        self.noted = noted
        """Those of the units that are gone where a note of that size has to stand."""
        self.note = note
        self.fixed_sums = [0, *accumulate(map(floors.of, self.fixed))]
        self.total = self.before(units)

    def before(self, unit: int) -> int:
        """What may be taken of what stands before this unit: units, and notes for those gone."""
        notes = self.note * bisect_left(self.noted, unit) if self.noted else 0
        return self.sums[unit] - self.fixed_sums[bisect_left(self.fixed, unit)] + notes

    def after(self, unit: int) -> int:
        return self.total - self.before(unit)

    def front(self, room: int) -> int:
        """The last unit that what stands before may take so much room."""
        return bisect_right(range(self.units + 1), room, key=self.before) - 1

    def back(self, room: int) -> int:
        """The first unit from which on what stands may take so much room."""
        return bisect_left(range(self.units + 1), self.total - room, key=self.before)

    def is_fixed(self, unit: int) -> bool:
        place = bisect_left(self.fixed, unit)
        return place < len(self.fixed) and self.fixed[place] == unit

    def runs(self, start: int, stop: int) -> list[UnitRun]:
        """What is taken between two places: the runs of units that are not fixed."""
        runs = []
        for unit in self.fixed[bisect_left(self.fixed, start) : bisect_left(self.fixed, stop)]:
            if start < unit:
                runs.append((start, unit))
            start = unit + 1
        if start < stop:
            runs.append((start, stop))
        return runs


def find_middle_gap(history: History, mass: DroppableUnits, room: int) -> UnitRun:
    """The gap that leaves at most `room` of the mass, from its middle outward.

    A user turn leaves only after the steps that answer it. Where the gap would end between a
    user turn and some of its answers, it is moved to the place with the best balance where it
    does not.
    """
    start = mass.front(room // 2)
    stop = mass.back(room - mass.before(start))
    start = min(stop, mass.front(room - mass.after(stop)))
    user = history.units[stop].user if stop < mass.units else -1
    if not start <= user < stop or mass.is_fixed(user):
        return _extend_over_plain_turns(history, mass, start, stop)
    following = history.next_user(stop)
    choices = []
    if following is not None and following < mass.units:
        choices.append((mass.front(room - mass.after(following)), following))
    if mass.after(user) <= room:
        choices.append((mass.front(room - mass.after(user)), user))
    if mass.before(user + 1) <= room:
        later = mass.back(room - mass.before(user + 1))
        if following is None or later <= following:
            choices.append((user + 1, later))
    start, stop = min(choices, key=lambda gap: abs(mass.before(gap[0]) - mass.after(gap[1])))
    return _extend_over_plain_turns(history, mass, start, stop)


def _extend_over_plain_turns(
    history: History, mass: DroppableUnits, start: int, stop: int
) -> UnitRun:
    """Two assistant turns must not meet at the gap: the earlier plain one leaves too."""
    runs = mass.runs(start, stop)
    following = runs[0][1] if runs else stop
    if following >= mass.units or history.units[following].role != "assistant":
        return start, stop
    while start > 0 and history.units[start - 1].plain and not mass.is_fixed(start - 1):
        start -= 1
    return start, stop


def find_oldest_runs(history: History, mass: DroppableUnits, excess: int) -> list[UnitRun]:
    """The oldest units, until `excess` of the mass is gone; where all is not enough, all.

    A user turn leaves with the last of its answers.
    """

    def kept_user(unit: int) -> int | None:
        user = history.units[unit].user
        return user if 0 <= user < unit and not mass.is_fixed(user) else None

    def gone(unit: int) -> int:
        user = kept_user(unit)
        staying = 0 if user is None else mass.sums[user + 1] - mass.sums[user]
        return mass.before(unit) - staying

    stop = bisect_left(range(mass.units), excess, key=gone)
    user = kept_user(stop) if stop < mass.units else None
    if user is None:
        return mass.runs(0, stop)
    return mass.runs(0, user) + mass.runs(user + 1, stop)
