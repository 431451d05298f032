"""Server-sent events, parsed incrementally; no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event: its name (`message` by default) and its data, with lines joined."""

    name: str
    data: str


class EventParser:
    """Turns bytes into complete events.

    Lines end with LF, CRLF or CR. They are split as bytes, so that a character that spans two
    chunks is decoded as one.
    """

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._has_started = False
        self._name = ""
        self._data: list[str] = []
        self.pending_bytes = 0
        """About how many bytes the incomplete event has so far."""

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that this chunk completes."""
        self._chunks.append(chunk)
        self.pending_bytes += len(chunk)
        if self._has_started and not self._may_end_line(chunk):
            return []
        text = b"".join(self._chunks)
        if not self._has_started:
            if len(text) < len(_BOM) and _BOM.startswith(text):
                return []
            text = text.removeprefix(_BOM)
            self._has_started = True
        # A CR at the end may be half of a CRLF: keep it until the next byte.
        held = b"\r" if text.endswith(b"\r") else b""
        *lines, rest = _LINE_END.split(text[: len(text) - len(held)])
        self._chunks = [rest + held]
        return self._parse_lines(lines)

    def _may_end_line(self, chunk: bytes) -> bool:
        before = self._chunks[-2] if len(self._chunks) > 1 else b""
        return b"\n" in chunk or b"\r" in chunk or before.endswith(b"\r")

    def _parse_lines(self, lines: list[bytes]) -> list[ServerSentEvent]:
        events = [event for line in lines if (event := self._parse_line(line)) is not None]
        if lines:
            self.pending_bytes = len(self._chunks[0]) + sum(map(len, self._data))
        return events

    def finish(self) -> list[ServerSentEvent]:
        """Return the events in the last bytes, if the stream ends without a blank line."""
        rest, self._chunks = b"".join(self._chunks).removesuffix(b"\r"), [b""]
        return self._parse_lines([rest, b""])

    def _parse_line(self, line: bytes) -> ServerSentEvent | None:
        if not line:
            return self._dispatch()
        field, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        elif field == "error":
            # Servers based on llama.cpp have sent errors in a field of their own.
            self._name = "error"
            self._data.append(value)
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        name, data = self._name or "message", "\n".join(self._data)
        self._name, self._data = "", []
        return ServerSentEvent(name, data) if data.strip() else None
