"""Retrieval: which older units stay because they match the last user message.

The newest half of the room belongs to the newest units, as in `sliding`. The other half is for
older units: those that share rare words with the last user message, or follow or precede one that
does, in their original order. Room that no match needs goes to the newest units again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from brim.fitting.draft import Draft
from brim.fitting.history import UnitIndex, unit_range
from brim.fitting.trim import DroppableUnits, UnitRun, count_held, find_oldest_runs
from brim.wire.notes import brief_gap_note

RECENT_SHARE: Final = 0.5
"""The share of the room that belongs to the newest units."""
NEIGHBOUR_SHARES: Final = ((-1, 0.3), (1, 0.5), (2, 0.3))
"""The shares of a unit's score that the units around it get: those after it often answer it."""
_MAX_MISSES: Final = 8
"""The choice ends after this number of units that are larger than the room left."""
_NOTE_FRAME: Final = 6
"""The most tokens that a note takes besides its text."""


def keep_matching(draft: Draft) -> None:
    """Drop the older units that do not match the last user message."""
    view = draft.view
    if view.has_priorities:
        return
    invalid, recent = view.invalid_units(), draft.recent_units()
    held = (draft.required | recent) - invalid
    units = DroppableUnits(draft.floors, view.units, held, invalid)
    room = draft.target - count_held(view, draft.floors, held, recent)
    note = draft.history.counter.text(brief_gap_note(view.units)) + _NOTE_FRAME
    newest = max(0, int(room * RECENT_SHARE))
    runs = find_oldest_runs(draft.history, units, units.total - newest)
    freed = sum(draft.floors.between(*run) for run in runs)
    choice = _Choice(draft, runs, note, room - (units.total - freed) - note * len(runs))
    choice.take(_rank(draft, choice.older))
    choice.take(reversed(choice.older))
    draft.drop_runs(choice.dropped, "does not match the last user message")
    draft.repair_gaps()
    for unit in choice.last_first():
        if draft.excess <= 0:
            break
        draft.drop_unit(unit, "matches less than others")
        draft.repair_gaps()


def _rank(draft: Draft, older: Sequence[UnitIndex]) -> list[UnitIndex]:
    """Return the units that match the last user message, best first; of equal ones the newest."""
    history, last = draft.history, draft.view.last_user
    if last < 0:
        return []
    asked = history.units[last].start
    query = "\n".join(history.messages[asked].words)
    scores: dict[UnitIndex, float] = defaultdict(float)
    for index, score in history.score_messages(query, asked).items():
        unit = history.unit_of[index]
        scores[unit] = max(scores[unit], score)
    ranks: dict[int, float] = defaultdict(float)
    for unit, score in scores.items():
        ranks[unit] += score
        for distance, share in NEIGHBOUR_SHARES:
            ranks[unit + distance] += share * score
    found = [unit for unit in older if unit in ranks]
    return sorted(found, key=lambda unit: (ranks[unit], unit), reverse=True)


class _Choice:
    """The units that stay of those that may be dropped, and the room left for more."""

    def __init__(self, draft: Draft, runs: Sequence[UnitRun], note: int, room: int) -> None:
        self._draft = draft
        self._note = note
        self._room = room
        self.older = [unit for run in runs for unit in unit_range(*run)]
        """The units that may be dropped, in order."""
        self._open = {*self.older}
        self._chosen: list[UnitIndex] = []

    def take(self, units: Iterable[UnitIndex]) -> None:
        """Keep units, each with the user unit that it answers, while there is room for more."""
        misses = 0
        for unit in units:
            wanted = self._complete(unit)
            tokens = sum(map(self._draft.floors.of, wanted)) + self._count_note_change(wanted)
            if tokens > self._room:
                misses += 1
                if misses == _MAX_MISSES:
                    break
                continue
            self._room -= tokens
            self._chosen += wanted
            self._open.difference_update(wanted)

    def _complete(self, unit: UnitIndex) -> list[UnitIndex]:
        """Return a unit and the user unit that it answers, as far as they may be dropped."""
        return sorted({self._draft.history.units[unit].user, unit} & self._open)

    def _count_note_change(self, wanted: Sequence[UnitIndex]) -> int:
        """Return by how many tokens the notes grow if these units stay."""
        gaps, taken = 0, set[int]()
        for unit in wanted:
            taken.add(unit)
            beside = {unit - 1, unit + 1} & self._open
            gaps += len(beside - taken) - 1
        return self._note * gaps

    @property
    def dropped(self) -> Iterator[UnitRun]:
        """The units that are dropped, in runs."""
        start = stop = UnitIndex(0)
        for unit in filter(self._open.__contains__, self.older):
            if unit != stop:
                yield start, stop
                start = unit
            stop = UnitIndex(unit + 1)
        yield start, stop

    def last_first(self) -> Iterator[UnitIndex]:
        return reversed(self._chosen)
