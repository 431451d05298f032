"""What the gateway has to know about a reply while its bytes pass through; no I/O here.

Bytes are relayed as they come. Only events that may matter are parsed: the first ones of a stream,
which may still be a context-length error, and those with a usage or an error. Whether a stream is
complete is decided at its end, from its last bytes.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import orjson

from brim.errors import BrimError, Overflow
from brim.providers import errors
from brim.providers.endpoint import Endpoint
from brim.providers.stream_hold import StreamHold
from brim.wire.body_parts import filter_mappings
from brim.wire.reply import Reply
from brim.wire.reply_parser import find_error_object, parse_reply
from brim.wire.streams import StreamAccumulator

MAX_EVENT_BYTES: Final = 1 << 20
"""A longer event is relayed without being parsed."""
MAX_OPENING_BYTES: Final = 1 << 16
MAX_KEPT_BYTES: Final = 64 << 10
"""Bytes of a stream that are kept, to count the reply if no usage is reported; of a whole reply
this many characters are counted."""
LAST_PIECES: Final = 4
"""The number of last pieces that are kept, to tell whether a stream is complete."""

_USAGE_OR_ERROR = re.compile(rb'"usage(?:Metadata)?"\s*:\s*\{|"error"(?!\s*:\s*null)')
"""A usage, or an error by its key or its type."""
_FINAL_EVENT = re.compile(
    rb'(?:^|[\r\n])data:\s*\[DONE\]|"(?:finish_r|stop_r|finishR|blockR)eason"\s*:\s*"[^"]|'
    rb'"type"\s*:\s*"(?:message_stop|response\.(?:completed|incomplete|failed|cancelled))"'
)
"""How streams end. Some end without `[DONE]`, but all of them with a reason."""
_TRANSIENT_CODES: Final = frozenset(
    (
        *map(str, errors.RETRYABLE_STATUSES),
        *("api_error", "internal_server_error", "overloaded", "overloaded_error", "server_error"),
        *("rate_limit_error", "rate_limit_exceeded", "service_unavailable", "timeout_error"),
    )
)
"""Codes of errors with a success status after which another server, or a retry, may succeed."""
_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_EVENT_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
MAX_SPLIT: Final = 3
"""Bytes of an event's end that may have arrived without completing it."""


class StreamOpening:
    """The first bytes of a stream, held back until a context-length error is ruled out."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.is_overloaded = False
        """Whether the server says that it cannot answer now."""
        self._hold = StreamHold(endpoint)
        self._held = bytearray()
        self._read = 0
        self._searched = 0

    @property
    def held(self) -> bytes:
        return bytes(self._held)

    @property
    def is_over(self) -> bool:
        """Whether the bytes can be released."""
        return self._hold.is_over or len(self._held) > MAX_OPENING_BYTES

    @property
    def overflow(self) -> Overflow | None:
        """The context-length error in the stream."""
        return None if self._hold.error is None else self._hold.error.overflow

    def feed(self, piece: bytes) -> None:
        self._held += piece
        hold = self._hold
        while not hold.is_over and (end := _EVENT_END.search(self._held, self._searched)):
            event = _parse_event(bytes(self._held[self._read : end.start()]))
            self._read = self._searched = end.end()
            if event is None:
                continue  # a comment
            if not isinstance(event, Mapping):
                hold.is_over = True  # it is not an event of a known format
                continue
            hold.add(event)
            if hold.error is None:
                self.is_overloaded = _is_overloaded(event)
        self._searched = max(self._read, len(self._held) - MAX_SPLIT)


def classify_error(endpoint: Endpoint, body: Mapping[str, Any]) -> tuple[Overflow | None, bool]:
    """Return the context-length error in a response with a success status, or whether it says
    that the server cannot answer now.
    """
    if (error := errors.find_context_length_error(endpoint, body)) is not None:
        return error.overflow, False
    return None, _is_overloaded(body)


def _is_overloaded(body: Mapping[str, Any]) -> bool:
    error = find_error_object(body)
    return error is not None and any(
        str(error.get(key)) in _TRANSIENT_CODES for key in ("code", "type")
    )


class StreamMonitor:
    """Watches the events of a stream while its bytes are relayed."""

    def __init__(self, endpoint: Endpoint, *, hides_usage: bool) -> None:
        self.error: str | None = None
        """The error that the server reported in the middle of its reply."""
        self._hides_usage = hides_usage
        self._endpoint = endpoint
        self._waiting = bytearray()
        self.usage: dict[str, Any] = {}
        """The usage fields as the server reported them, later values over earlier ones."""
        self._kept: list[bytes] = []
        self._latest: deque[bytes] = deque(maxlen=LAST_PIECES)
        self._size = 0
        self._is_uncertain = False

    def feed(self, piece: bytes) -> bytes:
        """Return the bytes to relay now: all complete events."""
        if not self._waiting and piece.endswith(b"\n\n"):  # the usual case
            return self._watch(piece)
        searched = max(len(self._waiting) - MAX_SPLIT, 0)
        self._waiting += piece
        end = _find_last_end(self._waiting, searched)
        if len(self._waiting) - end > MAX_EVENT_BYTES:
            end = len(self._waiting)
            self._is_uncertain = True  # the skipped event may be the last one
        passed = bytes(self._waiting[:end])
        del self._waiting[:end]
        return self._watch(passed)

    def finish(self) -> bytes:
        """Return the rest when the stream ends or breaks off."""
        rest = bytes(self._waiting)
        self._waiting.clear()
        return self._watch(rest)

    def _watch(self, events: bytes) -> bytes:
        if not events:
            return events
        if self._size < MAX_KEPT_BYTES:
            self._kept.append(events)
        self._size += len(events)
        self._latest.append(events)
        if _USAGE_OR_ERROR.search(events) is None:
            return events
        return b"".join(map(self._record, _split_events(events)))

    def _record(self, part: bytes) -> bytes:
        """Record what an event reports, and return what of it goes to the client."""
        if _USAGE_OR_ERROR.search(part) is None:
            return part
        event = _parse_event(part)
        if not isinstance(event, Mapping):
            return errors.redact_key(self._endpoint, part)
        usages = list(_find_usages(event))
        for usage in usages:
            self.usage |= {key: value for key, value in usage.items() if value is not None}
        if (error := find_error_object(event)) is not None:
            self.error = errors.error_message(error)
            return errors.redact_key(self._endpoint, part)
        return b"" if self._hides_usage and usages and _has_only_usage(event) else part

    @property
    def beginning(self) -> bytes:
        """The first bytes of the stream."""
        return self._kept[0] if self._kept else b""

    @property
    def is_ended(self) -> bool:
        """Whether the stream is complete."""
        return self._is_uncertain or _FINAL_EVENT.search(b"".join(self._latest)) is not None

    def extract_text(self) -> GeneratedText | None:
        """Return the beginning of the generated text; None if it cannot be parsed."""
        folds: dict[int, StreamAccumulator] = {}
        size = 0
        with suppress(BrimError):
            for part in _split_events(b"".join(self._kept)):
                if isinstance(event := _parse_event(part), Mapping):
                    for place, one in _split_choices(event):
                        folds.setdefault(place, StreamAccumulator()).add(one)
                size += len(part)
                if size >= MAX_KEPT_BYTES:
                    break
            words = _join_text(fold.reply() for fold in folds.values())
            return GeneratedText(words, self._size / max(size, 1))
        return None


class GeneratedText(NamedTuple):
    """The text of a reply, with its thinking and tool calls, or the beginning of it."""

    text: str
    scale: float = 1.0
    """The length of the whole reply relative to this text."""


def extract_text(answer: Mapping[str, Any] | None) -> GeneratedText | None:
    """Return the text of a whole reply; None if it cannot be parsed."""
    with suppress(BrimError):
        words = _join_text(parse_reply(one) for _, one in _split_choices(answer or {}))
        return GeneratedText(words[:MAX_KEPT_BYTES], max(len(words) / MAX_KEPT_BYTES, 1.0))
    return None


def _join_text(replies: Iterable[Reply]) -> str:
    parts: list[str] = []
    for reply in replies:
        parts += (reply.thinking, reply.text)
        parts += (call.name + call.arguments for call in reply.calls)
    return "\n".join(filter(None, parts))


def _split_choices(answer: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield a reply or event once per choice, because parsers read only the first choice."""
    choices = filter_mappings(answer.get("choices"))
    if len(choices) <= 1 and not any(choice.get("index") for choice in choices):
        yield 0, answer
        return
    for choice in choices:
        place = choice.get("index")
        only = {**answer, "choices": [{**choice, "index": 0}]}
        yield place if isinstance(place, int) else 0, only


def _find_last_end(data: bytearray, start: int) -> int:
    """Return the end of the last event that ends after `start`; 0 if none does."""
    places = ((data.rfind(mark, start), len(mark)) for mark in _EVENT_ENDS)
    return max((place + size for place, size in places if place >= 0), default=0)


def _split_events(events: bytes) -> Iterator[bytes]:
    """Yield the events one by one, each with the blank line that ends it."""
    start = 0
    for end in _EVENT_END.finditer(events):
        yield events[start : end.end()]
        start = end.end()
    if start < len(events):
        yield events[start:]


def _parse_event(part: bytes) -> object:
    """Return the JSON of an event; None if it has no data, False if its data is not JSON."""
    lines = [line[5:].strip() for line in part.splitlines() if line.startswith(b"data:")]
    if not lines:
        return None
    try:
        found: object = orjson.loads(b"\n".join(lines))
    except orjson.JSONDecodeError:
        return False
    return found


def _find_usages(event: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the usages in an event, in the places of all formats."""
    holders = [event, event.get("message"), event.get("response"), event.get("x_groq")]
    for holder in filter_mappings([*holders, *filter_mappings(event.get("choices"))]):
        usage = holder.get("usage", holder.get("usageMetadata"))
        if isinstance(usage, Mapping):
            yield usage


def _has_only_usage(event: Mapping[str, Any]) -> bool:
    """Return whether an event contains only usage, so that it can be hidden."""
    choices = event.get("choices")
    return isinstance(choices, list) and not any(map(_has_content, filter_mappings(choices)))


def _has_content(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta")
    content = any(delta.values()) if isinstance(delta, Mapping) else delta
    return bool(content or choice.get("finish_reason"))
