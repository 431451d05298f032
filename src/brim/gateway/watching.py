"""Watching: what is to be known of an answer while its bytes go by; no I/O here.

Bytes are passed on as they came. Only what may say something is parsed: the first events of a
stream, in which a refusal may still come, and those that hold a usage or an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import orjson

from brim.errors import BrimError
from brim.providers import faults
from brim.usage import Usage, reported
from brim.wire.replies import error_in, mappings
from brim.wire.streams import StreamFold

if TYPE_CHECKING:
    from brim.overflow import Overflow
    from brim.providers.endpoint import Endpoint

LARGEST_EVENT: Final = 1 << 20
"""An event that is longer goes by unread."""
LARGEST_OPENING: Final = 1 << 16
LARGEST_KEPT: Final = 4 << 20
"""Bytes of a stream that are kept, to count what was said if its end does not tell."""

_NEWS = re.compile(rb'"usage"\s*:\s*\{|"error"\s*:\s*[{"]')
_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_MARKS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
SPLIT: Final = 3
"""So many bytes of an event's end may have come, and still not be one."""


class Opening:
    """The first events of a stream, held back while a refusal may still come."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.overflow: Overflow | None = None
        """The server says that the request is too long."""
        self.is_over = False
        """Whether it is clear that the request was not refused."""
        self._endpoint = endpoint
        self._held = bytearray()
        self._read = 0
        self._searched = 0

    @property
    def held(self) -> bytes:
        return bytes(self._held)

    def feed(self, piece: bytes) -> None:
        self._held += piece
        while not self.is_over and (end := _END.search(self._held, self._searched)):
            event = _event(bytes(self._held[self._read : end.start()]))
            self._read = self._searched = end.end()
            self._judge(event)
        self._searched = max(self._read, len(self._held) - SPLIT)
        self.is_over = self.is_over or len(self._held) > LARGEST_OPENING

    def _judge(self, event: object) -> None:
        if event is None:
            return  # a comment
        if not isinstance(event, Mapping):
            self.is_over = True
            return
        refusal = faults.refusal_in(self._endpoint, event)
        if refusal is not None:
            self.overflow = refusal.overflow
        self.is_over = refusal is not None or faults.says_something(event)


class StreamWatch:
    """The events of a stream, taken in and given out as bytes."""

    def __init__(self, *, hides_usage: bool) -> None:
        self.error: str | None = None
        """What the server said went wrong, in the middle of its answer."""
        self._hides = hides_usage
        self._waiting = bytearray()
        self._usage: dict[str, Any] = {}
        self._kept: list[bytes] = []
        self._room = LARGEST_KEPT

    def feed(self, piece: bytes) -> bytes:
        """What is to be passed on now: all events that are whole."""
        if not self._waiting and piece.endswith(b"\n\n"):  # as it nearly always comes
            return self._seen(piece)
        searched = max(len(self._waiting) - SPLIT, 0)
        self._waiting += piece
        end = _last_end(self._waiting, searched)
        if len(self._waiting) - end > LARGEST_EVENT:
            end = len(self._waiting)
        passed = bytes(self._waiting[:end])
        del self._waiting[:end]
        return self._seen(passed)

    def finish(self) -> bytes:
        """What is left where the stream ends, or breaks off."""
        rest = bytes(self._waiting)
        self._waiting.clear()
        return self._seen(rest)

    def _seen(self, events: bytes) -> bytes:
        if self._room > 0:
            self._kept.append(events)
            self._room -= len(events)
        if _NEWS.search(events) is None:
            return events
        return b"".join(part for part in _parts(events) if not self._takes(part))

    def _takes(self, part: bytes) -> bool:
        """Take in what an event tells; whether it is not for the client."""
        if _NEWS.search(part) is None:
            return False
        event = _event(part)
        if not isinstance(event, Mapping):
            return False
        error = error_in(event)
        if error is not None:
            self.error = faults.words_of(error)
        usages = list(_usages(event))
        for usage in usages:
            self._usage |= {key: value for key, value in usage.items() if value is not None}
        return bool(self._hides and usages and error is None and _says_only_usage(event))

    @property
    def usage(self) -> Mapping[str, Any]:
        """The counts as the server has put them, the later ones over the earlier."""
        return self._usage

    def said(self) -> str:
        """All that was said as far as it was kept, for a stream that did not come to its end."""
        fold = StreamFold()
        with suppress(BrimError):
            for event in map(_event, _parts(b"".join(self._kept))):
                if isinstance(event, Mapping):
                    fold.add(event)
            reply = fold.reply()
            called = (call.name + call.arguments for call in reply.calls)
            return "\n".join(filter(None, (reply.thinking, reply.text, *called)))
        return ""


def used(fields: Mapping[str, Any]) -> Usage | None:
    """What the usage of an answer says."""
    return reported({"usage": fields}) if fields else None


def _last_end(data: bytearray, start: int) -> int:
    """Where the last event that ends after `start` does; 0 where none does."""
    places = ((data.rfind(mark, start), len(mark)) for mark in _MARKS)
    return max((place + size for place, size in places if place >= 0), default=0)


def _parts(events: bytes) -> Iterator[bytes]:
    """The events one by one, each with the blank line that ends it."""
    start = 0
    for end in _END.finditer(events):
        yield events[start : end.end()]
        start = end.end()
    if start < len(events):
        yield events[start:]


def _event(part: bytes) -> object:
    """The JSON of an event; None where it has no data, False where that is no JSON."""
    lines = [line[5:].strip() for line in part.splitlines() if line.startswith(b"data:")]
    if not lines:
        return None
    try:
        found: object = orjson.loads(b"\n".join(lines))
    except orjson.JSONDecodeError:
        return False
    return found


def _usages(event: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The usages in an event, wherever its format puts them."""
    holders = [event, event.get("message"), event.get("response"), event.get("x_groq")]
    for holder in mappings([*holders, *mappings(event.get("choices"))]):
        if isinstance(usage := holder.get("usage"), Mapping):
            yield usage


def _says_only_usage(event: Mapping[str, Any]) -> bool:
    """Whether nobody would miss an event who did not ask for the usage."""
    choices = event.get("choices")
    if not isinstance(choices, list):
        return False
    return not any(_says_more(choice) for choice in mappings(choices))


def _says_more(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta")
    said = any(delta.values()) if isinstance(delta, Mapping) else delta
    return bool(said or choice.get("finish_reason"))
