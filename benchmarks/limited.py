"""brim with a limit that is exactly the number asked for."""

from __future__ import annotations

from collections.abc import Sequence

import brim
from benchmarks.recordings import Message
from brim.fitting import api
from brim.fitting.policies import resolve_policy

MODEL = "gpt-4o"
"""Counted with its own vocabulary, so brim takes no margin and only the reply leaves the window."""


def fit(messages: Sequence[Message], limit: int, policy: str) -> brim.Request:
    return brim.fit(
        list(messages), model=MODEL, window=limit + 1, reply=1, policy=resolve_policy(policy)
    )


def session(limit: int, policy: str) -> brim.Session:
    return brim.Session(MODEL, window=limit + 1, reply=1, policy=resolve_policy(policy))


def forget() -> None:
    """Make the next stateless call start from nothing."""
    api.prefix_cache.clear()
