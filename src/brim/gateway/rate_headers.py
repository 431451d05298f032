"""Response headers with the state of rate limits, as the clients' libraries read them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from brim.gateway.accounts.rates import WINDOW_SECONDS, RateUse
from brim.providers.http_connection import Header
from brim.wire.formats import ANTHROPIC, BodyFormat

_UNITS: Final = ("requests", "tokens")
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
    return [*kept, *((name.encode(), value.encode()) for name, value in own.items())]


def build_rate_headers(
    format: BodyFormat | None, uses: Sequence[RateUse], seconds: float
) -> dict[str, str]:
    """Return the headers of a format, or of all if it is None: the limits with the least left.

    `seconds` is the time until a limit is unused again, or has room.
    """
    found: dict[str, str] = {}
    for unit in _UNITS:
        limits = [use for use in uses if (use.cap.unit, use.cap.period) == (unit, "minute")]
        if limits:
            tightest = min(limits, key=lambda use: use.remaining)
            found |= _build_unit_headers(format, unit, tightest, seconds)
    return found


def _build_unit_headers(
    format: BodyFormat | None, unit: str, use: RateUse, seconds: float
) -> Mapping[str, str]:
    limit, remaining = str(use.cap.limit), str(use.remaining)
    openai = {
        f"x-ratelimit-limit-{unit}": limit,
        f"x-ratelimit-remaining-{unit}": remaining,
        f"x-ratelimit-reset-{unit}": f"{seconds:.3g}s",
    }
    if format is not None and format is not ANTHROPIC:
        return openai
    reset = datetime.fromtimestamp(time.time() + seconds, UTC)
    anthropic = {
        f"anthropic-ratelimit-{unit}-limit": limit,
        f"anthropic-ratelimit-{unit}-remaining": remaining,
        f"anthropic-ratelimit-{unit}-reset": f"{reset:%Y-%m-%dT%H:%M:%SZ}",
    }
    return anthropic if format is ANTHROPIC else openai | anthropic
