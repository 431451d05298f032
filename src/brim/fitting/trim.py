"""Trim: which units are dropped, decided by arithmetic alone.

Every unit has a floor: its tokens once everything that may be clipped or masked is. With running
totals of the floors, the result of dropping units is a subtraction, and the gap that reaches a
mark is found by binary search. No text is read, and such a trim can always be carried out,
because no message ends up larger than its floor.

Finished tasks are dropped first, oldest first and whole; the current task stays as it is. If that
cannot reach the mark, units of the current task are dropped from its middle. Without finished
tasks, all of the history counts as the current task.

Inside the current task, a trim decides in this order: first, protected units stay unchanged and
only others are dropped. If that cannot reach the mark, protected units may be dropped too. If that
is not enough, everything is dropped that may be, and to reach the limit also the first user unit.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, NamedTuple, TypeAlias

from brim.fitting.history import NO_UNIT, History, HistoryView, UnitIndex, unit_range

Floor: TypeAlias = "Callable[[History, int], int]"
"""Returns the fewest tokens to which a message can be reduced without dropping it."""

SHARE_BEFORE_GAP: Final = 0.4
"""The share of the room for droppable units that those before the gap get."""
NAMED_TASKS: Final = 3
"""The number of finished tasks that a note names."""
TASK_NAME_LENGTHS: Final = (50, 25, 10, 0)
"""The most characters of a name; shorter ones if the names take too many tokens."""
TASK_NAME_TOKENS: Final = 60
"""The most tokens that their names take."""

Share: TypeAlias = "Callable[[int, bool], float]"
"""Returns the low-water mark's share of a limit, and of one after finished tasks."""

UnitRun = tuple[UnitIndex, UnitIndex]
"""Consecutive units: from the first up to, but not including, the second."""


class TrimRecord(NamedTuple):
    """All that is needed to repeat a trim on the same history."""

    messages: int
    """The number of messages that it saw."""
    limit: int
    low_water_mark: int
    summary_room: int = 0
    """Tokens that it left free for a summary."""


@dataclass(frozen=True, slots=True)
class Trim:
    """One trim of a history: what it saw, its low-water mark, and the units that it drops."""

    view: HistoryView
    low_water_mark: int
    dropped: Sequence[UnitRun]
    tokens: int
    """The most tokens that remain."""
    released: bool
    """Whether protected units may be dropped or changed."""

    @property
    def record(self) -> TrimRecord:
        return TrimRecord(self.view.messages, self.view.limit, self.low_water_mark)


def compute_low_water_mark(view: HistoryView, share: Share) -> int:
    """Return the tokens that a trim reduces a request to.

    The mark leaves at least half of the room that dropped units can free.
    """
    history = view.history
    fixed = view.base + history.system_token_sums[view.messages]
    if view.first_user >= 0:
        fixed += history.unit_tokens(view.first_user)
    slack = view.limit - int(view.limit * share(view.limit, view.task_start > 0))
    return view.limit - max(0, min(slack, (view.limit - fixed) // 2))


def decide_trim(
    view: HistoryView, floors: FloorSums, sizes: FloorSums, mark: int, note: int
) -> Trim:
    """Decide which units to drop to reach `mark`, with `note` tokens for the text at each gap.

    `sizes` are the tokens of units that are not clipped.
    """
    invalid = view.invalid_units()
    required = view.required_units() - invalid
    start = view.task_start
    first = {start or view.first_user} - {NO_UNIT}
    protected = view.protected_units(invalid)
    if start:
        note += TASK_NAME_TOKENS
        held = required | first | view.recent_units(invalid)
        trim = _drop_finished_tasks(view, sizes, held, invalid, mark, note)
        if trim is not None:
            return trim
    for released in (False, True):
        unchanged = first if released else first | protected
        runs = _drop_to_mark(view, floors, required | unchanged, unchanged, invalid, mark, note)
        if runs is not None:
            return Trim(view, mark, runs, mark, released=released)
    dropped, tokens = _drop_all_but(view, floors, required | first, invalid, note)
    if tokens > view.limit and first - required:
        dropped, tokens = _drop_all_but(view, floors, required, invalid, note)
    return Trim(view, mark, dropped, max(mark, min(tokens, view.limit)), released=True)


def _drop_finished_tasks(
    view: HistoryView,
    sizes: FloorSums,
    held: set[UnitIndex],
    invalid: set[UnitIndex],
    mark: int,
    note: int,
) -> Trim | None:
    """Return the trim that drops whole finished tasks, oldest first; None if it is not enough.

    Of the newest one, the user message and the final answer stay if there is room.
    """
    sizes.extend(view.history)
    start, tasks = view.task_start, view.history.task_units
    finished = DroppableUnits(sizes, start, held, invalid)
    notes = note * (2 + sum(unit < start for unit in held | invalid))
    tokens = count_held(view, sizes, held, held) + notes
    excess = tokens + DroppableUnits(sizes, view.units, held, invalid).total - mark
    if finished.total < excess:
        return None
    current = bisect_left(tasks, start)
    kept = bisect_left(tasks, excess, hi=current, key=finished.before)
    runs = finished.runs(UnitIndex(0), tasks[kept])
    if kept == current:
        newest, answer = tasks[current - 1], UnitIndex(start - 1)
        between = finished.runs(UnitIndex(newest + 1), answer)
        shorter = finished.runs(UnitIndex(0), newest) + between
        if sum(sizes.between(*run) for run in shorter) >= excess:
            runs = shorter
    freed = sum(view.history.unit_tokens_between(*run) for run in runs)
    return Trim(view, mark, runs, min(mark, view.tokens + notes - freed), released=False)


def count_held(
    view: HistoryView, floors: FloorSums, held: set[UnitIndex], unchanged: set[UnitIndex]
) -> int:
    """Return the tokens sent in any case: framing, tools, system messages and held units."""
    unchanged = unchanged | {view.open_unit, view.last_user}
    tokens = view.base + view.history.system_token_sums[view.messages]
    for unit in held:
        tokens += view.history.unit_tokens(unit) if unit in unchanged else floors.of(unit)
    return tokens


def _drop_to_mark(
    view: HistoryView,
    floors: FloorSums,
    held: set[UnitIndex],
    unchanged: set[UnitIndex],
    invalid: set[UnitIndex],
    mark: int,
    note: int,
) -> list[UnitRun] | None:
    """Return the runs to drop; None if the mark is out of reach."""
    room = mark - count_held(view, floors, held, unchanged)
    start = view.task_start
    noted = _find_noted_units(view.history, invalid, start, view.units)
    dropped = DroppableUnits(floors, start, held, invalid).runs(UnitIndex(0), start)
    for others in _group_by_priority(view, held | invalid):
        units = DroppableUnits(floors, view.units, held | others, invalid, noted, note, start)
        staying = others.difference(*(unit_range(*run) for run in dropped))
        room_here = room - sum(map(floors.of, staying)) - note * len(dropped)
        if units.total <= room_here:
            return dropped
        gap = _find_gap_with_notes(view.history, units, held, room_here, note)
        if gap is not None:
            return dropped + units.runs(*gap)
        dropped += units.runs(start, view.units)
    return None


def _find_noted_units(
    history: History, invalid: set[UnitIndex], start: int, units: int
) -> list[UnitIndex]:
    """Return the invalid units in place of which a note must separate two user units."""
    noted = []
    for unit in sorted(invalid):
        if unit <= start or unit - 1 in invalid or history.units[unit - 1].role != "user":
            continue
        after = unit + 1
        while after in invalid:
            after += 1
        if after < units and history.units[after].role == "user":
            noted.append(unit)
    return noted


def _find_gap_with_notes(
    history: History, units: DroppableUnits, held: set[UnitIndex], room: int, note: int
) -> UnitRun | None:
    """Return the gap in the middle that leaves room for a note at each gap around held units."""
    notes = 1
    while room >= notes * note:
        start, stop = find_middle_gap(history, units, room - notes * note)
        needed = 1 + sum(1 for unit in held if start < unit < stop)
        if needed <= notes:
            return start, stop
        notes = needed
    return None


def _group_by_priority(view: HistoryView, fixed: set[UnitIndex]) -> list[set[UnitIndex]]:
    """Return for each priority, lowest first, the droppable units of all other priorities."""
    if not view.has_priorities:
        return [set()]
    units = view.history.units[: view.units]
    priorities = [unit.priority for unit in units]
    for number, unit in enumerate(units):
        if unit.user >= 0:
            priorities[unit.user] = max(priorities[unit.user], priorities[number])
    droppable = [unit for unit in unit_range(0, view.units) if unit not in fixed]
    levels = sorted({priorities[unit] for unit in droppable}) or [0]
    return [{unit for unit in droppable if priorities[unit] != level} for level in levels]


def _drop_all_but(
    view: HistoryView, floors: FloorSums, held: set[UnitIndex], invalid: set[UnitIndex], note: int
) -> tuple[list[UnitRun], int]:
    """Return all runs that can be dropped, and the tokens that remain."""
    dropped = DroppableUnits(floors, view.units, held, invalid).runs(UnitIndex(0), view.units)
    tokens = count_held(view, floors, held, {view.first_user})
    return dropped, tokens + note * _count_noted_gaps(view, held)


def _count_noted_gaps(view: HistoryView, held: set[UnitIndex]) -> int:
    """Return the number of gaps between held units that get a note if all else is dropped."""
    units, required = view.history.units, view.required_units()
    noted = 0
    for before, after in pairwise(sorted(held)):
        joins_users = units[before].role == units[after].role == "user"
        joins_assistants = units[before].is_plain and units[after].role == "assistant"
        needs_note = joins_users or joins_assistants or before not in required
        noted += after > before + 1 and needs_note
    return noted


class FloorSums:
    """Running totals of the floors of all units of a growing history."""

    def __init__(self, floor: Floor) -> None:
        self._floor = floor
        self.sums: list[int] = [0]
        self._seen = 0

    def extend(self, history: History) -> None:
        """Add the messages since the last call. Only a trim needs floors, so it calls this."""
        sums, floor, messages = self.sums, self._floor, history.messages
        tokens, outputs, texts = history.token_sums, history.output_tokens, history.long_texts
        for index in range(self._seen, len(history)):
            unit = history.unit_of[index]
            if unit < 0:
                continue
            if unit == len(sums) - 1:
                sums.append(sums[-1])
            if outputs[index] or index in texts or messages[index].thinking:
                sums[-1] += floor(history, index)
            else:  # nothing in it can be reduced
                sums[-1] += tokens[index + 1] - tokens[index]
        self._seen = len(history)

    def of(self, unit: UnitIndex) -> int:
        """Return the floor of a unit."""
        return self.sums[unit + 1] - self.sums[unit]

    def between(self, start: UnitIndex, stop: UnitIndex) -> int:
        """Return the floors of the units from `start` up to `stop`."""
        return self.sums[stop] - self.sums[start]


class Floors:
    """The floors of all units of a growing history, as a chat and as tasks."""

    def __init__(self, chat: Floor, task: Floor) -> None:
        self._chat, self._task = FloorSums(chat), FloorSums(task)

    def of(self, view: HistoryView) -> FloorSums:
        """Return the floors that apply to a view."""
        sums = self._chat if view.is_chat else self._task
        sums.extend(view.history)
        return sums


class DroppableUnits:
    """The units that a trim may drop, with running totals of their floors.

    Held units and invalid ones, which are dropped already, are *fixed* and not part of it, nor are
    units before `start`.
    """

    def __init__(
        self,
        floors: FloorSums,
        units: UnitIndex,
        held: Iterable[UnitIndex],
        invalid: Iterable[UnitIndex] = (),
        noted: Sequence[UnitIndex] = (),
        note: int = 0,
        start: int = 0,
    ) -> None:
        self.floors = floors
        self.units = units
        self.start = start
        fixed = sorted({*held, *invalid})
        self._fixed = fixed[bisect_left(fixed, start) :] if start else fixed
        self._fixed_sums = [0, *accumulate(map(floors.of, self._fixed))]
        self._sums, self._first = floors.sums, floors.sums[start]
        self._noted = noted
        self._note = note
        self.total = self.before(units)

    def before(self, unit: int) -> int:
        """Return the tokens of droppable units before `unit`, and of notes there."""
        fixed = self._fixed_sums[bisect_left(self._fixed, unit)]
        tokens = self._sums[unit] - self._first - fixed
        return tokens + self._note * bisect_left(self._noted, unit) if self._noted else tokens

    def after(self, unit: int) -> int:
        """Return the tokens of droppable units from `unit` on."""
        return self.total - self.before(unit)

    def fill_from_start(self, room: int) -> UnitIndex:
        """Return the last unit before which at most `room` tokens can be dropped."""
        units = range(self.start, self.units + 1)
        return UnitIndex(self.start + bisect_right(units, room, key=self.before) - 1)

    def fill_from_end(self, room: int) -> UnitIndex:
        """Return the first unit from which on at most `room` tokens can be dropped."""
        least = self.total - room
        units = range(self.start, self.units + 1)
        return UnitIndex(self.start + bisect_left(units, least, key=self.before))

    def is_fixed(self, unit: int) -> bool:
        place = bisect_left(self._fixed, unit)
        return place < len(self._fixed) and self._fixed[place] == unit

    def runs(self, start: UnitIndex, stop: UnitIndex) -> list[UnitRun]:
        """Return the runs of droppable units from `start` up to `stop`."""
        runs: list[UnitRun] = []
        fixed = self._fixed
        for unit in fixed[bisect_left(fixed, start) : bisect_left(fixed, stop)]:
            if start < unit:
                runs.append((start, unit))
            start = UnitIndex(unit + 1)
        if start < stop:
            runs.append((start, stop))
        return runs


def find_middle_gap(history: History, units: DroppableUnits, room: int) -> UnitRun:
    """Return the gap around the middle that leaves at most `room` tokens of droppable units.

    A user unit is dropped only after the units that answer it. If the gap would end between a
    user unit and some of its answers, it moves to the most balanced place where it does not.
    """
    start = units.fill_from_start(int(room * SHARE_BEFORE_GAP))
    stop = units.fill_from_end(room - units.before(start))
    start = min(stop, units.fill_from_start(room - units.after(stop)))
    user = history.units[stop].user if stop < units.units else NO_UNIT
    if not start <= user < stop or units.is_fixed(user):
        return _extend_over_plain_units(history, units, start, stop)
    following = history.find_user(stop)
    choices: list[UnitRun] = []
    if following is not None and following < units.units:
        choices.append((units.fill_from_start(room - units.after(following)), following))
    if units.after(user) <= room:
        choices.append((units.fill_from_start(room - units.after(user)), user))
    if units.before(user + 1) <= room:
        later = units.fill_from_end(room - units.before(user + 1))
        if following is None or later <= following:
            choices.append((UnitIndex(user + 1), later))
    start, stop = min(choices, key=lambda gap: abs(units.before(gap[0]) - units.after(gap[1])))
    return _extend_over_plain_units(history, units, start, stop)


def _extend_over_plain_units(
    history: History, units: DroppableUnits, start: UnitIndex, stop: UnitIndex
) -> UnitRun:
    """Extend a gap so that two assistant messages do not meet at it: the earlier is dropped."""
    runs = units.runs(start, stop)
    following = runs[0][1] if runs else stop
    if following >= units.units or history.units[following].role != "assistant":
        return start, stop
    before = start - 1
    while before >= units.start and history.units[before].is_plain and not units.is_fixed(before):
        before -= 1
    return UnitIndex(before + 1), stop


def find_oldest_runs(history: History, units: DroppableUnits, excess: int) -> list[UnitRun]:
    """Return the oldest units that free `excess` tokens; all of them if that is not enough.

    A user unit is dropped with the last of its answers.
    """

    def find_kept_user(unit: int) -> UnitIndex | None:
        user = history.units[unit].user
        return user if 0 <= user < unit and not units.is_fixed(user) else None

    def count_freed(unit: int) -> int:
        user = find_kept_user(unit)
        return units.before(unit) - (0 if user is None else units.floors.of(user))

    start, stop = UnitIndex(0), UnitIndex(bisect_left(range(units.units), excess, key=count_freed))
    user = find_kept_user(stop) if stop < units.units else None
    if user is None:
        return units.runs(start, stop)
    return units.runs(start, user) + units.runs(UnitIndex(user + 1), stop)
