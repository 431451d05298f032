"""The buffer that holds a stream back until a context-length error is ruled out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from brim.errors import ContextLengthError
from brim.providers.endpoint import Endpoint
from brim.providers.errors import find_context_length_error
from brim.wire.reply_parser import find_error_object

_DELTA_METADATA: Final = frozenset(("role",))
_OPENING_EVENTS: Final = frozenset(
    ("message_start", "ping", "response.created", "response.in_progress", "response.queued")
)
"""Events that may precede a context-length error."""


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
        self.is_over = self.error is not None or _has_content(event)


def _has_content(event: Mapping[str, Any]) -> bool:
    """Whether an event is more than the opening of a stream."""
    if find_error_object(event) is not None or "prompt_progress" in event:
        return True
    if isinstance(choices := event.get("choices"), list):
        return any(map(_has_delta, choices))
    kind = event.get("type")
    return not isinstance(kind, str) or kind not in _OPENING_EVENTS


def _has_delta(choice: object) -> bool:
    if not isinstance(choice, Mapping) or choice.get("finish_reason"):
        return True
    delta = choice.get("delta")
    if not isinstance(delta, Mapping):
        return True
    return any(value for key, value in delta.items() if key not in _DELTA_METADATA)
