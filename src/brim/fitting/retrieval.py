"""Retrieval: which older units stay because they match the last user message.

The newest half of the room belongs to the newest units, as in `sliding`. The other half is for
older units: those that share rare words with the last user message, or follow or precede one that
does, in their original order. An answer stays without its question if that is long and does not
match. Room that no match needs goes to the newest units again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, starmap
from typing import Final

from brim.fitting.draft import Draft
from brim.fitting.history import NO_UNIT, UnitIndex, unit_range
from brim.fitting.trim import DroppableUnits, UnitRun, count_held, find_oldest_runs
from brim.messages import Message
from brim.wire.notes import brief_gap_note

RECENT_SHARE: Final = 0.5
"""The share of the room that belongs to the newest units."""
SHORT_QUESTION: Final = 24
"""Tokens; the user message that a matching answer responds to stays if it is not longer."""
_MAX_MISSES: Final = 8
"""The choice ends after this number of units that are larger than the room left."""
_USUAL_GAP: Final = 99
"""Messages; the note at most gaps is as long as at this one."""
_SEPARATOR: Final = 1
"""The tokens between a message and the note that ends it."""


def keep_matching(draft: Draft) -> None:
    """Drop the older units that do not match the last user message."""
    view = draft.view
    if view.has_priorities:
        return
    invalid, recent = view.invalid_units(), draft.recent_units()
    held = (draft.required | recent) - invalid
    units = DroppableUnits(draft.floors, view.units, held, invalid)
    room = draft.target - count_held(view, draft.floors, held, recent)
    newest = max(0, int(room * RECENT_SHARE))
    runs = find_oldest_runs(draft.history, units, units.total - newest)
    freed = sum(draft.floors.between(*run) for run in runs)
    choice = _Choice(draft, runs, invalid, room - (units.total - freed))
    choice.take(_rank(draft))
    choice.take(choice.newest_first())
    draft.drop_runs(choice.find_dropped(), "does not match the last user message")
    draft.repair_gaps()
    for unit in choice.last_first():
        if draft.excess <= 0:
            break
        draft.drop_unit(unit, "matches less than others")
        draft.repair_gaps()


def _rank(draft: Draft) -> Sequence[UnitIndex]:
    """Return the units that match the last user message, best first."""
    history, last = draft.history, draft.view.last_user
    if last < 0:
        return ()
    asked = history.units[last].start
    return history.rank_units("\n".join(history.messages[asked].words), asked)


class _Choice:
    """The units that stay of those that may be dropped, and the room left for more."""

    def __init__(
        self, draft: Draft, runs: Sequence[UnitRun], invalid: set[UnitIndex], room: int
    ) -> None:
        self._floors = draft.floors
        self._units = draft.history.units
        self._end = draft.view.units
        self._runs = runs
        """The units that may be dropped."""
        self._starts = [start for start, _ in runs]
        self._chosen: dict[UnitIndex, None] = {}
        """The units that stay of them, in the order of the choice."""
        self._kept = list(_find_others(runs, self._end, invalid))
        text, counter = brief_gap_note(_USUAL_GAP), draft.history.counter
        self._paragraph = counter.text(text) + _SEPARATOR
        self._message = counter.message(Message("user", words=(text,)))
        self._room = room - sum(starmap(self._count_note, pairwise([NO_UNIT, *self._kept])))

    def take(self, units: Iterable[UnitIndex]) -> None:
        """Keep units, each with a short question that it answers, while there is room for more."""
        misses = 0
        for unit in units:
            for wanted in self._complete(unit):
                misses += not self._keep(wanted)
            if misses >= _MAX_MISSES:
                break

    def _complete(self, unit: UnitIndex) -> Iterator[UnitIndex]:
        """Yield a unit and the user unit that it belongs to, as far as they may be dropped."""
        if not self._may_drop(unit):
            return
        user = self._units[unit].user
        if user != unit and self._may_drop(user):
            is_short = self._floors.of(user) <= SHORT_QUESTION
            if is_short or not self._units[unit].is_plain:
                yield user
        yield unit

    def _may_drop(self, unit: UnitIndex) -> bool:
        place = bisect_right(self._starts, unit) - 1
        return place >= 0 and unit < self._runs[place][1] and unit not in self._chosen

    def _keep(self, unit: UnitIndex) -> bool:
        """Keep a unit if there is room for it and for the notes at the gaps around it."""
        tokens = self._floors.of(unit)
        if tokens - self._message > self._room:
            return False
        place = bisect_left(self._kept, unit)
        before = self._kept[place - 1] if place else NO_UNIT
        after = self._kept[place] if place < len(self._kept) else self._end
        tokens += self._count_note(before, unit) + self._count_note(unit, after)
        tokens -= self._count_note(before, after)
        if tokens > self._room:
            return False
        self._room -= tokens
        self._chosen[unit] = None
        self._kept.insert(place, unit)
        return True

    def _count_note(self, before: int, after: int) -> int:
        """Return the tokens of the note between two units that stay."""
        if after == before + 1 or after == self._end:
            return 0
        if before < 0:
            return self._message if self._units[after].role == "assistant" else 0
        is_message = self._units[before].role == self._units[after].role
        return self._message if is_message else self._paragraph

    def newest_first(self) -> Iterator[UnitIndex]:
        """Yield the units that may be dropped."""
        for run in reversed(self._runs):
            yield from reversed(unit_range(*run))

    def find_dropped(self) -> Iterator[UnitRun]:
        """Yield the units that do not stay, in runs."""
        chosen = sorted(self._chosen)
        for start, stop in self._runs:
            kept = chosen[bisect_left(chosen, start) : bisect_left(chosen, stop)]
            for unit in (*kept, stop):
                if start < unit:
                    yield start, unit
                start = UnitIndex(unit + 1)

    def last_first(self) -> Iterator[UnitIndex]:
        """Yield the units that stay, the last choice first."""
        return reversed(self._chosen)


def _find_others(
    runs: Sequence[UnitRun], end: UnitIndex, invalid: set[UnitIndex]
) -> Iterator[UnitIndex]:
    """Yield the units before `end` that are neither in a run nor invalid."""
    start = UnitIndex(0)
    for first, stop in [*runs, (end, end)]:
        yield from (unit for unit in unit_range(start, first) if unit not in invalid)
        start = stop
