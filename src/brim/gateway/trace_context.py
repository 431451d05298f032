"""The position of a request in a trace, as the header `traceparent` carries it (W3C)."""

from __future__ import annotations

import re
from random import Random
from typing import Final, NamedTuple

TRACEPARENT: Final = b"traceparent"
_HEADER: Final = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)
_SAMPLED: Final = 1
_random: Final = Random()
"""Ids of spans are not secrets."""


class TraceContext(NamedTuple):
    """The trace that a request belongs to, its own span, and the client's."""

    trace_id: int
    span_id: int
    parent_id: int | None = None
    is_sampled: bool = True

    @classmethod
    def of(cls, header: bytes | None) -> TraceContext:
        """Return a new span in the client's trace, or in a new one if the header is invalid."""
        found = None if header is None else _HEADER.fullmatch(header.strip())
        span_id = _random.getrandbits(64) or 1
        if found is None:
            return cls(_random.getrandbits(128) or 1, span_id)
        is_sampled = bool(int(found[3], 16) & _SAMPLED)
        return cls(int(found[1], 16), span_id, int(found[2], 16), is_sampled)

    def header(self) -> bytes:
        """Return the header for a request to an upstream."""
        return b"00-%032x-%016x-%02x" % (self.trace_id, self.span_id, self.is_sampled)
