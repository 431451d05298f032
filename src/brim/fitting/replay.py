"""Replay: find the last trim of a growing history without stored state.

`steady` trims rarely and then down to a low-water mark, so that between two trims every request
starts with the same messages and the provider's cache stays warm. A stateless caller sends only
the grown history. Replaying it finds its trims again: a trim depends only on the messages before
it, so every replay decides the same.

Whether a trim is due, and which units it drops, follows from token counts. No text is read, and
only the last trim has to be carried out.
"""

from __future__ import annotations

from dataclasses import dataclass

from brim.fitting.history import History, HistoryView, RequestPoint
from brim.fitting.trim import Floors, FloorSums, Share, Trim, compute_low_water_mark, decide_trim


@dataclass(slots=True)
class Replay:
    """The last trim of a growing history."""

    _start: HistoryView
    _floors: Floors
    _sizes: FloorSums
    _share: Share
    _note: int
    """Tokens of the text at a gap."""
    _points_seen: int = 0
    last: Trim | None = None

    def advance(self, history: History) -> Trim | None:
        """Check the request points since the last call; return the last trim, None if none."""
        for point in history.request_points[self._points_seen :]:
            if self._is_due(history, point):
                self.last = self._decide(self._start.at(point))
        self._points_seen = len(history.request_points)
        return self.last

    def trim_now(self, view: HistoryView, mark: int | None = None) -> Trim:
        """Trim at the end of the history, due or not; later requests continue from it.

        The trim goes down to `mark`, by default to the policy's low-water mark.
        """
        self.last = self._decide(view, mark)
        self._points_seen = len(view.history.request_points)
        return self.last

    def _is_due(self, history: History, point: RequestPoint) -> bool:
        limit, last = self._start.limit, self.last
        if last is None:
            return self._start.base + history.token_sums[point.messages] > limit
        users, sums = history.user_units, history.token_sums
        if last.view.first_user < 0 and users and users[0] < point.units:
            return True  # messages before the first user unit have to be dropped
        since = sums[point.messages] - sums[last.view.messages]
        if history.defective_units:
            defects = self._start.at(point).defective_units(since=last.view.units)
            since += self._note * len(defects)
        return last.tokens + since > limit

    def _decide(self, view: HistoryView, mark: int | None = None) -> Trim:
        if mark is None:
            mark = compute_low_water_mark(view, self._share)
        return decide_trim(view, self._floors.of(view), self._sizes, mark, self._note)
