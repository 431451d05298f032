"""Watching: what is to be known of an answer while its bytes go by; no I/O here.

Bytes are passed on as they came. Only what may say something is parsed: the first events of a
stream, in which a refusal may still come, and those that hold a usage or an error. Whether a stream
came to its end is asked when it is over, of its last bytes.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from brim.errors import BrimError
from brim.models.pricing import Usage
from brim.providers import errors
from brim.wire.reply_parser import filter_mappings, find_error_object, parse_reply
from brim.wire.streams import StreamAccumulator
from brim.wire.usage import parse_usage

if TYPE_CHECKING:
    from brim.errors import Overflow
    from brim.providers.endpoint import Endpoint
    from brim.wire.reply import Reply

MAX_EVENT_BYTES: Final = 1 << 20
"""An event that is longer goes by unread."""
MAX_OPENING_BYTES: Final = 1 << 16
MAX_KEPT_BYTES: Final = 64 << 10
"""Bytes of a stream that are kept, to count what was said if its end does not tell; of a whole
answer so many characters are looked at."""
LAST_PIECES: Final = 4
"""So many pieces are kept as well, to tell where a stream stops whether it came to its end."""
MIN_SECRET_LENGTH: Final = 5
"""What is not longer is no secret, and may be a word."""
MASK: Final = b"[key]"
"""Stands for a key that an upstream repeats."""

_USAGE_OR_ERROR = re.compile(rb'"usage"\s*:\s*\{|"error"(?!\s*:\s*null)')
"""A usage, or an error by its key or its type."""
_FINAL_EVENT = re.compile(
    rb'(?:^|[\r\n])data:\s*\[DONE\]|"(?:finish|stop)_reason"\s*:\s*"[^"]|'
    rb'"type"\s*:\s*"(?:message_stop|response\.(?:completed|incomplete|failed|cancelled))"'
)
"""How streams say that no more will come. Some end without `[DONE]`, but not without a reason."""
_TRANSIENT_CODES: Final = frozenset(
    (
        *map(str, errors.RETRYABLE_STATUSES),
        *(
            "api_error",
            "internal_server_error",
            "overloaded",
            "overloaded_error",
            "rate_limit_error",
        ),
        *("rate_limit_exceeded", "server_error", "service_unavailable", "timeout_error"),
    )
)
"""How errors with a status of success say that another server, or a later try, may do better."""
_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_EVENT_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
MAX_SPLIT: Final = 3
"""So many bytes of an event's end may have come, and still not be one."""


class StreamOpening:
    """The first events of a stream, held back while a refusal may still come."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.overflow: Overflow | None = None
        """The server says that the request is too long."""
        self.failed = False
        """The server says that it cannot answer now."""
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
        while not self.is_over and (end := _EVENT_END.search(self._held, self._searched)):
            event = _parse_event(bytes(self._held[self._read : end.start()]))
            self._read = self._searched = end.end()
            self._judge(event)
        self._searched = max(self._read, len(self._held) - MAX_SPLIT)
        self.is_over = self.is_over or len(self._held) > MAX_OPENING_BYTES

    def _judge(self, event: object) -> None:
        if event is None:
            return  # a comment
        if not isinstance(event, Mapping):
            self.is_over = True
            return
        self.overflow, self.failed = classify_error(self._endpoint, event)
        self.is_over = self.overflow is not None or errors.has_content(event)


def classify_error(endpoint: Endpoint, answer: Mapping[str, Any]) -> tuple[Overflow | None, bool]:
    """Whether an answer with a status of success says: too long; or: not now."""
    error = find_error_object(answer)
    if error is None:
        return None, False
    if (refusal := errors.find_context_length_error(endpoint, answer)) is not None:
        return refusal.overflow, False
    return None, any(str(error.get(key)) in _TRANSIENT_CODES for key in ("code", "type"))


def secret_of(endpoint: Endpoint) -> bytes:
    """The key that no client may see; nothing where it is no secret."""
    key = (endpoint.key or "").encode()
    return key if len(key) > MIN_SECRET_LENGTH else b""


def mask_secret(raw: bytes, secret: bytes) -> bytes:
    """An upstream's error without the key, which some repeat and which is not the client's."""
    return raw.replace(secret, MASK) if secret else raw


class StreamMonitor:
    """The events of a stream, taken in and given out as bytes."""

    def __init__(self, *, hides_usage: bool, secret: bytes = b"") -> None:
        self.error: str | None = None
        """What the server said went wrong, in the middle of its answer."""
        self._hides = hides_usage
        self._secret = secret
        self._waiting = bytearray()
        self._usage: dict[str, Any] = {}
        self._kept: list[bytes] = []
        self._latest: deque[bytes] = deque(maxlen=LAST_PIECES)
        self._size = 0
        self._is_unsure = False

    def feed(self, piece: bytes) -> bytes:
        """What is to be passed on now: all events that are whole."""
        if not self._waiting and piece.endswith(b"\n\n"):  # as it nearly always comes
            return self._seen(piece)
        searched = max(len(self._waiting) - MAX_SPLIT, 0)
        self._waiting += piece
        end = _find_last_end(self._waiting, searched)
        if len(self._waiting) - end > MAX_EVENT_BYTES:
            end = len(self._waiting)
            self._is_unsure = True  # what goes by unread may be the last event
        passed = bytes(self._waiting[:end])
        del self._waiting[:end]
        return self._seen(passed)

    def finish(self) -> bytes:
        """What is left where the stream ends, or breaks off."""
        rest = bytes(self._waiting)
        self._waiting.clear()
        return self._seen(rest)

    def _seen(self, events: bytes) -> bytes:
        if not events:
            return events
        if self._size < MAX_KEPT_BYTES:
            self._kept.append(events)
        self._size += len(events)
        self._latest.append(events)
        if _USAGE_OR_ERROR.search(events) is None:
            return events
        return b"".join(map(self._taken, _split_events(events)))

    def _taken(self, part: bytes) -> bytes:
        """Take in what an event tells; what of it is for the client."""
        if _USAGE_OR_ERROR.search(part) is None:
            return part
        event = _parse_event(part)
        if not isinstance(event, Mapping):
            return mask_secret(part, self._secret)
        usages = list(_find_usages(event))
        for usage in usages:
            self._usage |= {key: value for key, value in usage.items() if value is not None}
        if (error := find_error_object(event)) is not None:
            self.error = errors.error_message(error)
            return mask_secret(part, self._secret)
        return b"" if self._hides and usages and _has_only_usage(event) else part

    @property
    def is_ended(self) -> bool:
        """Whether the stream said that nothing more will come."""
        return self._is_unsure or _FINAL_EVENT.search(b"".join(self._latest)) is not None

    @property
    def usage(self) -> Mapping[str, Any]:
        """The counts as the server has put them, the later ones over the earlier."""
        return self._usage

    def said(self) -> GeneratedText | None:
        """The beginning of what was said; None where that cannot be read."""
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
    """What an answer says, its thoughts and calls included, or the beginning of it."""

    words: str
    times: float = 1.0
    """How many times as much came in all."""


def extract_text(answer: Mapping[str, Any] | None) -> GeneratedText | None:
    """What a whole answer says; None where it cannot be read."""
    with suppress(BrimError):
        words = _join_text(parse_reply(one) for _, one in _split_choices(answer or {}))
        return GeneratedText(words[:MAX_KEPT_BYTES], max(len(words) / MAX_KEPT_BYTES, 1.0))
    return None


def _join_text(replies: Iterable[Reply]) -> str:
    said: list[str] = []
    for reply in replies:
        said += (reply.thinking, reply.text)
        said += (call.name + call.arguments for call in reply.calls)
    return "\n".join(filter(None, said))


def _split_choices(answer: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """An answer or an event, once for each choice in it: what reads it takes the first only."""
    choices = filter_mappings(answer.get("choices"))
    if len(choices) <= 1 and not any(choice.get("index") for choice in choices):
        yield 0, answer
        return
    for choice in choices:
        place = choice.get("index")
        only = {**answer, "choices": [{**choice, "index": 0}]}
        yield place if isinstance(place, int) else 0, only


def parse_usage_fields(fields: Mapping[str, Any]) -> Usage | None:
    """What the usage of an answer says."""
    return parse_usage({"usage": fields}) if fields else None


def _find_last_end(data: bytearray, start: int) -> int:
    """Where the last event that ends after `start` does; 0 where none does."""
    places = ((data.rfind(mark, start), len(mark)) for mark in _EVENT_ENDS)
    return max((place + size for place, size in places if place >= 0), default=0)


def _split_events(events: bytes) -> Iterator[bytes]:
    """The events one by one, each with the blank line that ends it."""
    start = 0
    for end in _EVENT_END.finditer(events):
        yield events[start : end.end()]
        start = end.end()
    if start < len(events):
        yield events[start:]


def _parse_event(part: bytes) -> object:
    """The JSON of an event; None where it has no data, False where that is no JSON."""
    lines = [line[5:].strip() for line in part.splitlines() if line.startswith(b"data:")]
    if not lines:
        return None
    try:
        found: object = orjson.loads(b"\n".join(lines))
    except orjson.JSONDecodeError:
        return False
    return found


def _find_usages(event: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The usages in an event, wherever its format puts them."""
    holders = [event, event.get("message"), event.get("response"), event.get("x_groq")]
    for holder in filter_mappings([*holders, *filter_mappings(event.get("choices"))]):
        if isinstance(usage := holder.get("usage"), Mapping):
            yield usage


def _has_only_usage(event: Mapping[str, Any]) -> bool:
    """Whether nobody would miss an event who did not ask for the usage."""
    choices = event.get("choices")
    if not isinstance(choices, list):
        return False
    return not any(_has_content(choice) for choice in filter_mappings(choices))


def _has_content(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta")
    said = any(delta.values()) if isinstance(delta, Mapping) else delta
    return bool(said or choice.get("finish_reason"))
