"""Rate limits: what a key, a project or all keys used in the last minute.

Stores count requests and tokens in seconds of their own clock. A limit includes the current second
and those before it, `WINDOW_SECONDS` in all. Two requests that are not counted together are
therefore more than 61 seconds apart: the limit holds in every minute, from any moment, also for
the upstream, which gets some requests later than others. Of the limit, 60 / 62 can be used.

A request counts with its maximum tokens, and with its actual tokens once they are known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from brim.gateway.accounts.caps import Cap

WINDOW_SECONDS: Final = 62


class RateUse(NamedTuple):
    """A rate limit, and how much of it is used."""

    scope: str
    cap: Cap
    used: int

    @property
    def remaining(self) -> int:
        return max(0, self.cap.limit - self.used)


class RateCounts(NamedTuple):
    """What a scope used in the last minute, and the requests that run now."""

    requests: int = 0
    tokens: int = 0
    concurrent: int = 0

    def used(self, cap: Cap) -> int:
        """Return what counts against a rate limit."""
        if cap.period == "now":
            return self.concurrent
        return self.requests if cap.unit == "requests" else self.tokens


@dataclass(frozen=True, slots=True)
class Admission:
    """A reservation was made that names rate limits; their use includes it."""

    uses: tuple[RateUse, ...]


@dataclass(frozen=True, slots=True)
class RateReached:
    """A reservation was rejected because a rate limit has no room for it."""

    scope: str
    cap: Cap
    used: int
    wait: float | None
    """Seconds until there is room, if there are no other requests; None if there never is. A limit
    of concurrent requests may have room at any time, so it is zero."""


def seconds_until_room(
    counted: Iterable[tuple[int, int]], amount: int, limit: int, now: float
) -> float | None:
    """Return when `amount` fits, given pairs of a second and what counts in it; None if never."""
    if amount > limit:
        return None
    seconds = sorted(counted)
    used, wait = sum(each for _, each in seconds), 0.0
    for second, each in seconds:
        if used + amount <= limit:
            break
        used -= each
        wait = second + WINDOW_SECONDS - now
    return max(0.0, wait)
