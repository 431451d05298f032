"""Log of the requests that a session built."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, cast

from brim.errors import InputError

MAX_LOGGED_REQUESTS: Final = 100


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request as it was built."""

    time: float | None
    """Seconds since 1970; None if the session has no clock."""
    model: str
    category: str
    before: int
    """Tokens of the whole conversation."""
    after: int
    """Tokens of the request."""
    limit: int
    trimmed: bool
    dropped: int
    """Number of dropped messages."""

    @property
    def utilization(self) -> float:
        """Return the share of the limit that the request uses; 0 if the limit is 0."""
        return self.after / self.limit if self.limit > 0 else 0.0

    def to_dict(self) -> dict[str, object]:
        """Return the fields; `asdict` would take a millisecond for a whole log."""
        return {name: getattr(self, name) for name in _FIELDS}


_FIELDS: Final = tuple(field.name for field in fields(LoggedRequest))


@dataclass(frozen=True, slots=True)
class RequestStatistics:
    """Statistics of all requests, including those no longer in the log."""

    requests: int = 0
    trimmed: int = 0
    utilization: float = 0.0
    """Mean share of the limit that was used."""


class RequestLog:
    """The last requests, and statistics of all requests."""

    def __init__(self) -> None:
        self._entries: deque[LoggedRequest] = deque(maxlen=MAX_LOGGED_REQUESTS)
        self._requests = 0
        self._trimmed = 0
        self._utilization = 0.0

    @property
    def entries(self) -> tuple[LoggedRequest, ...]:
        """Return the last `MAX_LOGGED_REQUESTS` requests, oldest first."""
        return tuple(self._entries)

    def add(self, entry: LoggedRequest) -> None:
        self._entries.append(entry)
        self._requests += 1
        self._trimmed += entry.trimmed
        self._utilization += entry.utilization

    def statistics(self) -> RequestStatistics:
        mean = self._utilization / self._requests if self._requests else 0.0
        return RequestStatistics(self._requests, self._trimmed, mean)

    def to_dict(self) -> dict[str, object]:
        return {
            "requests": self._requests,
            "trimmed": self._trimmed,
            "utilization": self._utilization,
            "entries": [entry.to_dict() for entry in self._entries],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> RequestLog:
        log, saved = cls(), cast(Mapping[str, Any], data)
        try:
            log._entries.extend(LoggedRequest(**entry) for entry in saved["entries"])
            log._requests = int(saved["requests"])
            log._trimmed = int(saved["trimmed"])
            log._utilization = float(saved["utilization"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"The saved request log cannot be read: {error!r}.") from None
        return log
