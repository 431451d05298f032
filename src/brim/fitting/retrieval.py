"""Retrieval: which older units stay because they match the last user message.

The newest half of the room belongs to the newest units, as in `sliding`. The other half is for
older units: those that share rare words with the last user message, or follow or precede one that
does, in their original order. An answer stays without its question if that is long and does not
match. Room that no match needs goes to the newest units again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
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
NEIGHBOUR_SHARES: Final = ((-1, 0.3), (1, 0.5), (2, 0.3))
"""The shares of a unit's score that the units around it get: those after it often answer it."""
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

    def __init__(
        self, draft: Draft, runs: Sequence[UnitRun], invalid: set[UnitIndex], room: int
    ) -> None:
        self._draft = draft
        self._units = draft.history.units
        self.older = [unit for run in runs for unit in unit_range(*run)]
        """The units that may be dropped, in order."""
        self._open = {*self.older}
        self._chosen: list[UnitIndex] = []
        dropped = self._open | invalid
        self._kept = [unit for unit in unit_range(0, draft.view.units) if unit not in dropped]
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
        user = self._units[unit].user
        is_short = self._draft.floors.of(user) <= SHORT_QUESTION
        if user in self._open - {unit} and (is_short or not self._units[unit].is_plain):
            yield user
        if unit in self._open:
            yield unit

    def _keep(self, unit: UnitIndex) -> bool:
        """Keep a unit if there is room for it and for the notes at the gaps around it."""
        place = bisect_left(self._kept, unit)
        before = self._kept[place - 1] if place else NO_UNIT
        after = self._kept[place] if place < len(self._kept) else self._draft.view.units
        tokens = self._draft.floors.of(unit) - self._count_note(before, after)
        tokens += self._count_note(before, unit) + self._count_note(unit, after)
        if tokens > self._room:
            return False
        self._room -= tokens
        self._chosen.append(unit)
        self._kept.insert(place, unit)
        self._open.remove(unit)
        return True

    def _count_note(self, before: int, after: int) -> int:
        """Return the tokens of the note between two units that stay."""
        if after == before + 1 or after == self._draft.view.units:
            return 0
        if before < 0:
            return self._message if self._units[after].role == "assistant" else 0
        is_message = self._units[before].role == self._units[after].role
        return self._message if is_message else self._paragraph

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
