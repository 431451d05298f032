"""The parts of a script: replies and received requests."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCallReply:
    """A reply in which the model calls a tool."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TextReply:
    """A reply with text, tool calls or both; a script may contain a plain string instead."""

    text: str = ""
    calls: Sequence[ToolCallReply] = ()
    pause: float = 0.0
    """Seconds before each piece of a stream."""
    hold: threading.Event | None = None
    """The event that a stream waits for after its first words."""
    cut_after: int | None = None
    """Disconnect after this many pieces; without a stream, in the middle of the body."""
    finish: str | None = None
    """The finish reason, in the terms of chat completions; None: the usual one."""
    cached: int = 0
    """Prompt tokens to report as cached, regardless of the server's prompt cache."""


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error response, or bytes that are not a valid response."""

    status: int = 500
    message: str = "scripted error"
    retry_after: float | None = None
    raw: bytes | None = None
    """Sent instead of an error object, with any status."""
    error: Mapping[str, Any] | None = None
    """The error object, if a message is not enough."""
    in_stream: bool = False
    """Start the stream normally and send the error instead of the first token. Without a stream,
    the error is sent as usual."""

    @property
    def error_object(self) -> Mapping[str, Any]:
        return self.error or {"message": self.message, "type": "scripted", "code": None}


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request for a completion or for a count."""

    path: str
    body: Body
    headers: Mapping[str, str]
    time: float
    tokens: int
    """Tokens of the prompt, as the server counts them."""
    raw: bytes = b""
    """The body as received."""


def split_words(text: str) -> list[str]:
    """Split a text into the deltas of a stream, one word each."""
    return re.findall(r"\s*\S+|\s+", text)
