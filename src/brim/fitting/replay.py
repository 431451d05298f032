"""Where the edits of a growing history fell.

`steady` cuts rarely and then to a low mark, so that between two edits every request begins with
the same messages and a provider's cache stays warm. A stateless caller sends only the grown
history; where its edits fell is found again by replaying it, and because an edit depends only on
what stood before it, the replay comes out the same every time.

Nothing is cut here and no text is read: whether an edit is due, and whether it reaches its mark,
follows from the counts. Only the last edit has to be carried out by somebody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from brim.fitting.eviction import choose_evictions

if TYPE_CHECKING:
    from collections.abc import Callable

    from brim.fitting.droppable import FloorSums
    from brim.fitting.edit_view import HistoryView
    from brim.fitting.eviction import Eviction
    from brim.fitting.history import History

SMALL_LIMIT: Final = 8_000
LARGE_LIMIT: Final = 16_000


def steady_share(limit: int) -> float:
    """The low mark's share: little slack in a small window, where every token is dear."""
    if limit <= SMALL_LIMIT:
        return 0.90
    if limit >= LARGE_LIMIT:
        return 0.75
    return 0.90 - 0.15 * (limit - SMALL_LIMIT) / (LARGE_LIMIT - SMALL_LIMIT)


def thrift_share(limit: int) -> float:  # noqa: ARG001 - one signature for both
    """A lower mark: fewer edits and a smaller bill, for less of the history."""
    return 0.60


def compute_low_water_mark(scope: HistoryView, share: Callable[[int], float]) -> int:
    """What an edit cuts down to; at least half of what can move stays above it."""
    history = scope.history
    fixed = scope.base + history.system_sizes[scope.messages]
    if scope.first_user >= 0:
        fixed += history.unit_tokens(scope.first_user)
    slack = scope.limit - int(scope.limit * share(scope.limit))
    return scope.limit - max(0, min(slack, (scope.limit - fixed) // 2))


@dataclass(frozen=True, slots=True)
class DecidedTrim:
    """An edit: what it saw, and what it came to."""

    scope: HistoryView
    mark: int
    outline: Eviction


class Replay:
    """The last edit of a history that grows."""

    def __init__(
        self, start: HistoryView, floors: FloorSums, share: Callable[[int], float], note: int
    ):
        self._start = start
        self._floors = floors
        self._share = share
        self._note = note
        self._points = 0
        self.last: DecidedTrim | None = None

    def advance(self, history: History) -> DecidedTrim | None:
        """Look at the request points that came since, and give the last edit."""
        for messages, units in history.points[self._points :]:
            if self._is_due(history, messages, units):
                self.last = self._edit(units, messages)
        self._points = len(history.points)
        return self.last

    def edit_now(self, scope: HistoryView, mark: int | None = None) -> DecidedTrim:
        """Let an edit fall at the very end, due or not; what comes later goes on from it.

        `mark` is what it cuts down to, where that is not the policy's own.
        """
        if mark is None:
            mark = compute_low_water_mark(scope, self._share)
        self.last = self._fallen(scope, mark)
        self._points = len(scope.history.points)
        return self.last

    def _is_due(self, history: History, messages: int, units: int) -> bool:
        limit, last = self._start.limit, self.last
        if last is None:
            return self._start.base + history.sizes[messages] > limit
        scope = self._start.up_to(units, messages)
        if last.scope.first_user < 0 <= scope.first_user:
            return True  # what stands before the first user turn has to leave
        since = history.sizes[messages] - history.sizes[last.scope.messages]
        since += self._note * len(scope.faults(since=last.scope.units))
        if last.outline.reached:
            return since > limit - last.mark
        return last.outline.size + since > limit

    def _edit(self, units: int, messages: int) -> DecidedTrim:
        scope = self._start.up_to(units, messages)
        return self._fallen(scope, compute_low_water_mark(scope, self._share))

    def _fallen(self, scope: HistoryView, mark: int) -> DecidedTrim:
        self._floors.extend(scope.history)
        return DecidedTrim(scope, mark, choose_evictions(scope, self._floors, mark, self._note))
