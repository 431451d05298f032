"""The rule by which another model answers a request that failed, for the shell and the gateway."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from brim.errors import (
    ContextLengthError,
    InvalidResponseError,
    LocalModelError,
    ProviderError,
)
from brim.providers.errors import RETRYABLE_STATUSES

REQUEST_STATUSES: Final = frozenset((400, 411, 413, 415, 422))
"""Statuses about the request itself, which another model would reject as well."""


def choose_fallback(failed: str, fallback: str | None, tried: Collection[str] = ()) -> str | None:
    """Return the model to try after another one failed; None if there is none left to try."""
    return None if fallback is None or fallback == failed or fallback in tried else fallback


def is_fallback_worthwhile(error: BaseException) -> bool:
    """Return whether another model may succeed where one failed with this error.

    After a context-length error the request has been trimmed already; a larger window helps.
    """
    if isinstance(error, ContextLengthError | InvalidResponseError | LocalModelError):
        return True
    return isinstance(error, ProviderError) and is_server_failure(error.status)


def is_server_failure(status: int | None, *, owns_access: bool = True) -> bool:
    """Return whether a status (None: no response) is the server's failure, not the request's.

    A rejected key or an unknown model is a failure of the server's configuration if that is ours
    (`owns_access`). A gateway relays it: the key and the model's name may be the client's.
    """
    if status is None or status in RETRYABLE_STATUSES:
        return True
    return owns_access and status not in REQUEST_STATUSES
