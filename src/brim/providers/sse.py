"""Server-sent events, read from whatever pieces the network makes of them; no I/O here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event: its name (`message` unless it says otherwise) and its data, lines joined."""

    name: str
    data: str


class EventParser:
    """Takes bytes in, gives whole events out.

    Lines end with LF, CRLF or CR; they are cut as bytes, so that a character split between two
    pieces is whole again before it is read.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._begun = False
        self._name = ""
        self._data: list[str] = []
        self.pending_bytes = 0
        """About how many bytes the event has that is not whole yet."""

    def feed(self, piece: bytes) -> list[ServerSentEvent]:
        """The events that this piece completes."""
        self._pieces.append(piece)
        self.pending_bytes += len(piece)
        if self._begun and not self._may_end(piece):
            return []
        text = b"".join(self._pieces)
        if not self._begun:
            if len(text) < len(_BOM) and _BOM.startswith(text):
                return []
            text = text.removeprefix(_BOM)
            self._begun = True
        # A CR at the end may be half of a CRLF: it waits for the next byte.
        held = b"\r" if text.endswith(b"\r") else b""
        *lines, rest = _LINE_END.split(text[: len(text) - len(held)])
        self._pieces = [rest + held]
        return self._events(lines)

    def _may_end(self, piece: bytes) -> bool:
        before = self._pieces[-2] if len(self._pieces) > 1 else b""
        return b"\n" in piece or b"\r" in piece or before.endswith(b"\r")

    def _events(self, lines: list[bytes]) -> list[ServerSentEvent]:
        events = [event for line in lines if (event := self._line(line)) is not None]
        if lines:
            self.pending_bytes = len(self._pieces[0]) + sum(map(len, self._data))
        return events

    def finish(self) -> list[ServerSentEvent]:
        """What the last bytes hold where the stream ends without a blank line."""
        rest, self._pieces = b"".join(self._pieces).removesuffix(b"\r"), [b""]
        return self._events([rest, b""])

    def _line(self, line: bytes) -> ServerSentEvent | None:
        if not line:
            return self._dispatch()
        field, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        elif field == "error":
            # Servers of the llama.cpp family have sent errors under a field of their own.
            self._name = "error"
            self._data.append(value)
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        name, data = self._name or "message", "\n".join(self._data)
        self._name, self._data = "", []
        return ServerSentEvent(name, data) if data.strip() else None
