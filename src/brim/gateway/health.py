"""Health of a route, as its own requests show it: there are no requests just to check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST_COOL_DOWN: Final = 1.0
"""Seconds for which a route is skipped after its first failure; each further failure doubles it."""
MAX_COOL_DOWN: Final = 300.0


@dataclass(slots=True)
class RouteHealth:
    """Whether a route answers.

    After a failure the route is skipped for a cool-down. Then a single request probes it, and the
    others follow once it has been answered. Times are seconds of a monotonic clock.
    """

    failures: int = 0
    """Failures since the last answer."""
    skipped_until: float = 0.0
    _is_probing: bool = False

    def is_available(self, now: float) -> bool:
        """Return whether a request should be sent there, if there is a choice."""
        return not self.failures or (now >= self.skipped_until and not self._is_probing)

    def begin(self) -> int:
        """Note that a request is sent; return what `end`, `succeed` and `fail` need to know."""
        self._is_probing = self.failures > 0
        return self.failures

    def end(self, begun: int) -> None:
        """Note that a request is over: answered, failed or cancelled."""
        if begun == self.failures:
            self._is_probing = False

    def succeed(self, begun: int) -> None:
        if begun == self.failures:
            self.failures = 0

    def fail(self, begun: int, now: float, wait: float | None) -> None:
        """Note a failure; `wait` is how many seconds the server asks to wait.

        Requests that ran when another one failed do not count again.
        """
        if begun != self.failures:
            return
        cool_down = FIRST_COOL_DOWN * 2.0 ** min(self.failures, 16)
        self.failures += 1
        self.skipped_until = now + min(max(cool_down, wait or 0.0), MAX_COOL_DOWN)
        self._is_probing = False
