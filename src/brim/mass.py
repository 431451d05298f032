"""Which units stay, decided by arithmetic alone: no text is looked at.

Every unit has a floor: what it takes once all that may be cut of it is cut. With the floors
summed, what a cut would leave is a subtraction, and the place of a cut a binary search. A cut
found here can always be carried out, because no text ends up larger than its floor says.

Some units are *held* and some are *gone* already (faults, what stands before the first user);
both are outside of the mass from which a cut takes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from brim.steps import History

Floor = Callable[["History", int], int] if TYPE_CHECKING else object
"""The least tokens that a message can be brought to without being dropped."""

Run = tuple[int, int]

NEWEST: Final = 3
"""So many of the newest outputs are protected, as long as they take at most a quarter."""


class Floors:
    """The floors of all units of a growing history, summed."""

    def __init__(self, floor: Floor) -> None:
        self._floor = floor
        self.sums: list[int] = [0]
        self._seen = 0

    def extend(self, history: History) -> None:
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


class Mass:
    """The floors of the units that a cut may take, as one sum from left to right."""

    def __init__(self, floors: Floors, units: int, fixed: Iterable[int]) -> None:
        self.sums = floors.sums
        self.units = units
        self.fixed = sorted(fixed)
        self.fixed_sums = [0, *accumulate(map(floors.of, self.fixed))]
        self.total = self.before(units)

    def before(self, unit: int) -> int:
        """What may be taken of the units that stand before this one."""
        return self.sums[unit] - self.fixed_sums[bisect_left(self.fixed, unit)]

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

    def runs(self, start: int, stop: int) -> list[Run]:
        """What is taken between two places: the runs of units that are not fixed."""
        runs = []
        for unit in self.fixed[bisect_left(self.fixed, start) : bisect_left(self.fixed, stop)]:
            if start < unit:
                runs.append((start, unit))
            start = unit + 1
        if start < stop:
            runs.append((start, stop))
        return runs


def middle_gap(history: History, mass: Mass, room: int) -> Run:
    """The gap that leaves at most `room` of the mass, from its middle outward.

    A user turn leaves only after the steps that answer it. Where the gap would end between a
    user turn and some of its answers, it is moved to the place with the best balance where it
    does not.
    """
    start = mass.front(room // 2)
    stop = mass.back(room - mass.before(start))
    user = history.units[stop].user if stop < mass.units else -1
    if not start <= user < stop or mass.is_fixed(user):
        return _spare_plain(history, mass, start, stop)
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
    return _spare_plain(history, mass, start, stop)


def _spare_plain(history: History, mass: Mass, start: int, stop: int) -> Run:
    """Two assistant turns must not meet at the gap: the earlier plain one leaves too."""
    runs = mass.runs(start, stop)
    following = runs[0][1] if runs else stop
    if following >= mass.units or history.units[following].role != "assistant":
        return start, stop
    while start > 0 and history.units[start - 1].plain and not mass.is_fixed(start - 1):
        start -= 1
    return start, stop


def oldest_runs(history: History, mass: Mass, excess: int) -> list[Run]:
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


@dataclass(frozen=True, slots=True)
class Scope:
    """What an edit sees: a history up to a point, and the room there is."""

    history: History
    units: int
    messages: int
    base: int
    """Tokens of the request's frame and of its tools."""
    limit: int
    keep_recent: int

    def up_to(self, units: int, messages: int) -> Scope:
        """The same at another point."""
        return Scope(self.history, units, messages, self.base, self.limit, self.keep_recent)

    @property
    def total(self) -> int:
        return self.base + self.history.sizes[self.messages]

    @property
    def open_unit(self) -> int:
        """The step that nothing has followed yet; -1 where a user's turn is the last."""
        last = self.units - 1
        return last if last >= 0 and self.history.units[last].role == "assistant" else -1

    @property
    def first_user(self) -> int:
        users = self.history.users
        return users[0] if users and users[0] < self.units else -1

    @property
    def last_user(self) -> int:
        users = self.history.users
        place = bisect_left(users, self.units) - 1
        return users[place] if place >= 0 else -1

    def hard(self) -> set[int]:
        """The units that never leave: pins, the last user turn, the last unit."""
        history = self.history
        pinned = history.pinned[: bisect_left(history.pinned, self.units)]
        hard = {*pinned, *self.users_of(pinned), self.last_user, self.units - 1}
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
        stop = bisect_left(history.outputs, self.messages)
        for index in reversed(history.outputs[max(0, stop - NEWEST) : stop]):
            room -= history.output_sizes[index]
            if room < 0:
                break
            newest.append(index)
        return newest

    def protected(self, gone: Collection[int]) -> set[int]:
        """The units given up last: those of the newest outputs and the last `keep_recent`."""
        recent = range(max(0, self.units - self.keep_recent), self.units)
        newest = (self.history.unit_of[index] for index in self.newest_outputs())
        units = {unit for unit in (*recent, *newest) if unit not in gone}
        return units | {user for user in self.users_of(units) if user not in gone}


@dataclass(frozen=True, slots=True)
class Outline:
    """An edit in numbers: which units leave, and at most how much stays."""

    runs: Sequence[Run]
    size: int
    reached: bool
    """Whether what stays is within the mark."""
    released: bool
    """Whether the protected parts had to be given up."""


def outline(scope: Scope, floors: Floors, mark: int, note: int) -> Outline:
    """Decide an edit down to `mark`; `note` tokens are kept for what is said at a gap."""
    gone = scope.gone()
    hard = scope.hard() - gone
    first = {scope.first_user} - {-1}
    protected = scope.protected(gone)
    for released in (False, True):
        whole = first if released else first | protected
        found = _outline_to(scope, floors, hard | whole, whole, gone, mark, note)
        if found is not None:
            return Outline(*found, reached=True, released=released)
    runs, size = _all_but(scope, floors, hard | first, gone, note)
    if size > scope.limit and first - hard:
        runs, size = _all_but(scope, floors, hard, gone, note)
    return Outline(runs, min(size, scope.limit), reached=False, released=True)


def _outline_to(
    scope: Scope,
    floors: Floors,
    held: set[int],
    whole: set[int],
    gone: set[int],
    mark: int,
    note: int,
) -> tuple[list[Run], int] | None:
    """The runs that leave and the size that stays, or None where the mark is out of reach."""
    room = mark - held_size(scope, floors, held, whole)
    leave: list[Run] = []
    for others in _by_priority(scope, held | gone):
        mass = Mass(floors, scope.units, held | gone | others)
        room_here = room - sum(map(floors.of, others.difference(*map(_span, leave))))
        room_here -= note * len(leave)
        if mass.total <= room_here:
            return leave, mark - room_here + mass.total
        gap = _gap_with_notes(scope.history, mass, held, room_here, note)
        if gap is not None:
            left = mass.before(gap[0]) + mass.after(gap[1])
            return leave + mass.runs(*gap), mark - room_here + left
        leave += mass.runs(0, scope.units)
    return None


def _span(run: Run) -> range:
    return range(*run)


def _gap_with_notes(
    history: History, mass: Mass, held: set[int], room: int, note: int
) -> Run | None:
    """The gap in the middle, with room for a note at it and beside each held unit in it."""
    notes = 1
    while room >= notes * note:
        start, stop = middle_gap(history, mass, room - notes * note)
        needed = 1 + sum(1 for unit in held if start < unit < stop)
        if needed <= notes:
            return start, stop
        notes = needed
    return None


def _by_priority(scope: Scope, fixed: set[int]) -> list[set[int]]:
    """For each priority, lowest first, the loose units of another one."""
    if not scope.history.ranked:
        return [set()]
    rank = [unit.priority for unit in scope.history.units[: scope.units]]
    for number, unit in enumerate(scope.history.units[: scope.units]):
        if unit.user >= 0:
            rank[unit.user] = max(rank[unit.user], rank[number])
    loose = [unit for unit in range(scope.units) if unit not in fixed]
    levels = sorted({rank[unit] for unit in loose})
    return [{unit for unit in loose if rank[unit] != level} for level in levels]


def held_size(scope: Scope, floors: Floors, held: set[int], whole: set[int]) -> int:
    """What goes out in any case: frame, tools, system turns and held units, some of them whole."""
    whole = whole | {scope.open_unit, scope.last_user}
    size = scope.base + scope.history.system_sizes[scope.messages]
    for unit in held:
        size += scope.history.unit_tokens(unit) if unit in whole else floors.of(unit)
    return size


def _all_but(
    scope: Scope, floors: Floors, held: set[int], gone: set[int], note: int
) -> tuple[list[Run], int]:
    runs = Mass(floors, scope.units, held | gone).runs(0, scope.units)
    size = held_size(scope, floors, held, {scope.first_user})
    return runs, size + (note if runs else 0)
