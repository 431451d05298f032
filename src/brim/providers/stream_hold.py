"""The buffer that holds a stream back until a context-length error is ruled out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brim.errors import ContextLengthError
from brim.providers.endpoint import Endpoint
from brim.providers.errors import find_context_length_error
from brim.wire.reply_parser import is_opening


class StreamHold:
    """The first events of a stream, held until one has content or is an error.

    Some servers check the length of a prompt only after they have begun to stream. Until the
    first content, the request can still be trimmed and sent again.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.events: list[dict[str, Any]] = []
        self.error: ContextLengthError | None = None
        self.is_over = False
        """Whether the events can be released, or the error raised."""
        self._endpoint = endpoint

    def add(self, event: Mapping[str, Any]) -> None:
        self.events.append(dict(event))
        self.error = find_context_length_error(self._endpoint, event)
        self.is_over = self.error is not None or not is_opening(event)
