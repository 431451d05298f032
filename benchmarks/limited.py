"""brim with an exact token limit."""

from __future__ import annotations

from collections.abc import Sequence

import brim
from benchmarks.recordings import Message
from brim.fitting import api
from brim.fitting.policies import resolve_policy

MODEL = "gpt-4o"
"""Its counts are exact, so brim adds no margin, and the limit is the window minus the reply."""


def fit(
    messages: Sequence[Message], limit: int, policy: str, mark: float | None = None
) -> brim.Request:
    chosen = resolve_policy(policy, low_water_mark=mark)
    return brim.fit(list(messages), model=MODEL, window=limit + 1, reply=1, policy=chosen)


def session(limit: int, policy: str) -> brim.Session:
    return brim.Session(MODEL, window=limit + 1, reply=1, policy=resolve_policy(policy))


def forget() -> None:
    """Clear the cache of stateless calls."""
    api.prefix_cache.clear()
