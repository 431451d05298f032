"""Response headers with the state of rate limits, as the clients' libraries read them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from brim.gateway.accounts.rates import WINDOW_SECONDS, RateUse
from brim.providers.http_connection import Header, encode_headers
from brim.wire.formats import ANTHROPIC, BodyFormat

_PREFIXES: Final = (b"x-ratelimit-", b"anthropic-ratelimit-")


def replace_rate_headers(
    pairs: Sequence[Header], format: BodyFormat, uses: Sequence[RateUse]
) -> list[Header]:
    """Return an upstream's headers with the limits of the client's key instead of the upstream's.

    They stay as they are if the key has no limit per minute.
    """
    own = build_rate_headers(format, uses, WINDOW_SECONDS)
    if not own:
        return list(pairs)
    kept = [pair for pair in pairs if not pair[0].startswith(_PREFIXES)]
    return [*kept, *encode_headers(own)]


def build_rate_headers(
    format: BodyFormat | None, uses: Sequence[RateUse], seconds: float
) -> dict[str, str]:
    """Return the headers of a format, or of all if it is None: the limits with the least left.

    `seconds` is the time until a limit is unused again, or has room.
    """
    found: dict[str, str] = {}
    for unit, (limit, remaining) in _find_tightest(uses).items():
        if format is not ANTHROPIC:
            found[f"x-ratelimit-limit-{unit}"] = str(limit)
            found[f"x-ratelimit-remaining-{unit}"] = str(remaining)
            found[f"x-ratelimit-reset-{unit}"] = f"{seconds:.3g}s"
        if format is ANTHROPIC or format is None:
            reset = datetime.fromtimestamp(time.time() + seconds, UTC)
            found[f"anthropic-ratelimit-{unit}-limit"] = str(limit)
            found[f"anthropic-ratelimit-{unit}-remaining"] = str(remaining)
            found[f"anthropic-ratelimit-{unit}-reset"] = f"{reset:%Y-%m-%dT%H:%M:%SZ}"
    return found


def _find_tightest(uses: Sequence[RateUse]) -> Mapping[str, tuple[int, int]]:
    """Return, by unit, the limit per minute with the least left, and how much that is."""
    found: dict[str, tuple[int, int]] = {}
    for use in uses:
        cap, remaining = use.cap, use.remaining
        if cap.period == "minute" and (cap.unit not in found or remaining < found[cap.unit][1]):
            found[cap.unit] = cap.limit, remaining
    return found
