"""What a script is made of: the answers that a provider gives, and what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCallReply:
    """The model calls a tool."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TextReply:
    """The model says something, calls tools, or both; a text alone can be given as it is."""

    text: str = ""
    calls: Sequence[ToolCallReply] = ()
    pause: float = 0.0
    """Seconds before each piece of a stream."""
    hold: threading.Event | None = None
    """What a stream waits for after its first words."""
    cut_after: int | None = None
    """The server hangs up after so many pieces; without a stream in the middle of the answer."""
    finish: str | None = None
    """Why it ends, where it is not for the usual reason, in the words of chat completions."""
    cached: int = 0
    """So many tokens of the prompt were in the server's cache, whatever it really holds."""


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """The server does not answer as it should: with an error, or with bytes that are no answer."""

    status: int = 500
    message: str = "the script says so"
    retry_after: float | None = None
    raw: bytes | None = None
    """Sent instead of an error object, with any status."""
    error: Mapping[str, Any] | None = None
    """The error object, where a message is not enough."""
    in_stream: bool = False
    """A stream begins as if all was well, and the fault comes in place of its first token. Where no
    stream was asked for, it comes as others do."""

    @property
    def told(self) -> Mapping[str, Any]:
        """The error as an object."""
        return self.error or {"message": self.message, "type": "scripted", "code": None}


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request for an answer, or for a count."""

    path: str
    body: Body
    headers: Mapping[str, str]
    time: float
    tokens: int
    """What the prompt takes, as the server counts it."""
    raw: bytes = b""
    """The body as it came."""
