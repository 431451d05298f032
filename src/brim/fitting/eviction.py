"""An edit of `steady`, in numbers: which units leave so that what stays is within a mark.

It is decided in this order: first the protected parts stay whole and only other units leave; if
that cannot be enough, they are given up too; if that is not enough, everything goes that may, and
for the limit's sake the first user turn as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from brim.fitting.droppable import DroppableUnits, find_middle_gap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brim.fitting.droppable import FloorSums, UnitRun
    from brim.fitting.edit_view import HistoryView
    from brim.fitting.history import History


@dataclass(frozen=True, slots=True)
class Eviction:
    """An edit in numbers: which units leave, and at most how much stays."""

    runs: Sequence[UnitRun]
    size: int
    reached: bool
    """Whether what stays is within the mark."""
    released: bool
    """Whether the protected parts had to be given up."""


def choose_evictions(scope: HistoryView, floors: FloorSums, mark: int, note: int) -> Eviction:
    """Decide an edit down to `mark`; `note` tokens are kept for what is said at a gap."""
    gone = scope.gone()
    hard = scope.hard() - gone
    first = {scope.first_user} - {-1}
    protected = scope.protected(gone)
    for released in (False, True):
        whole = first if released else first | protected
        found = _evict_to_mark(scope, floors, hard | whole, whole, gone, mark, note)
        if found is not None:
            return Eviction(*found, reached=True, released=released)
    runs, size = _evict_all_but(scope, floors, hard | first, gone, note)
    if size > scope.limit and first - hard:
        runs, size = _evict_all_but(scope, floors, hard, gone, note)
    return Eviction(runs, min(size, scope.limit), reached=size <= mark, released=True)


def _evict_to_mark(
    scope: HistoryView,
    floors: FloorSums,
    held: set[int],
    whole: set[int],
    gone: set[int],
    mark: int,
    note: int,
) -> tuple[list[UnitRun], int] | None:
    """The runs that leave and the size that stays, or None where the mark is out of reach."""
    room = mark - count_held(scope, floors, held, whole)
    noted = _find_noted_units(scope.history, gone, scope.units)
    leave: list[UnitRun] = []
    for others in _group_by_priority(scope, held | gone):
        mass = DroppableUnits(floors, scope.units, held | others, gone, noted, note)
        room_here = room - sum(map(floors.of, others.difference(*map(_unit_range, leave))))
        room_here -= note * len(leave)
        if mass.total <= room_here:
            return leave, mark - room_here + mass.total
        gap = _find_gap_with_notes(scope.history, mass, held, room_here, note)
        if gap is not None:
            left = mass.before(gap[0]) + mass.after(gap[1])
            return leave + mass.runs(*gap), mark - room_here + left
        leave += mass.runs(0, scope.units)
    return None


def _find_noted_units(history: History, gone: set[int], units: int) -> list[int]:
    """Those of the units that are gone where two user turns meet, and a note has to stand."""
    noted = []
    for unit in sorted(gone):
        if unit == 0 or unit - 1 in gone or history.units[unit - 1].role != "user":
            continue
        after = unit + 1
        while after in gone:
            after += 1
        if after < units and history.units[after].role == "user":
            noted.append(unit)
    return noted


def _unit_range(run: UnitRun) -> range:
    return range(*run)


def _find_gap_with_notes(
    history: History, mass: DroppableUnits, held: set[int], room: int, note: int
) -> UnitRun | None:
    """The gap in the middle, with room for a note at it and beside each held unit in it."""
    notes = 1
    while room >= notes * note:
        start, stop = find_middle_gap(history, mass, room - notes * note)
        needed = 1 + sum(1 for unit in held if start < unit < stop)
        if needed <= notes:
            return start, stop
        notes = needed
    return None


def _group_by_priority(scope: HistoryView, fixed: set[int]) -> list[set[int]]:
    """For each priority, lowest first, the loose units of another one."""
    if not scope.ranked:
        return [set()]
    rank = [unit.priority for unit in scope.history.units[: scope.units]]
    for number, unit in enumerate(scope.history.units[: scope.units]):
        if unit.user >= 0:
            rank[unit.user] = max(rank[unit.user], rank[number])
    loose = [unit for unit in range(scope.units) if unit not in fixed]
    levels = sorted({rank[unit] for unit in loose}) or [0]
    return [{unit for unit in loose if rank[unit] != level} for level in levels]


def count_held(scope: HistoryView, floors: FloorSums, held: set[int], whole: set[int]) -> int:
    """What goes out in any case: frame, tools, system turns and held units, some of them whole."""
    whole = whole | {scope.open_unit, scope.last_user}
    size = scope.base + scope.history.system_sizes[scope.messages]
    for unit in held:
        size += scope.history.unit_tokens(unit) if unit in whole else floors.of(unit)
    return size


def _evict_all_but(
    scope: HistoryView, floors: FloorSums, held: set[int], gone: set[int], note: int
) -> tuple[list[UnitRun], int]:
    runs = DroppableUnits(floors, scope.units, held, gone).runs(0, scope.units)
    size = count_held(scope, floors, held, {scope.first_user})
    return runs, size + note * _count_noted_gaps(scope, held)


def _count_noted_gaps(scope: HistoryView, held: set[int]) -> int:
    """How many gaps between held units are told of, when all else has left."""
    units, hard = scope.history.units, scope.hard()
    told = 0
    for before, after in pairwise(sorted(held)):
        meet = units[before].role == units[after].role == "user"
        apart = units[before].plain and units[after].role == "assistant"
        told += after > before + 1 and (meet or apart or before not in hard)
    return told
