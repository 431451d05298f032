"""Upstreams that fail at the level of bytes and sockets.

    async with speaking(HANGS_UP["in the headers"]) as upstream:
        ...                       # upstream.url, upstream.heads

The tables have the bytes that are written before the server disconnects; `speaking` is the server.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final

from tests.support.providers.scripted import Speaking, run_raw

__all__ = ["CHUNKS", "GZIPPED", "HANGS_UP", "NO_ANSWERS", "STREAMS", "TEXT", "WHOLE", "drip",
           "endless", "run_raw", "silent"]  # fmt: skip

Pieces = tuple[bytes, ...]

TEXT: Final = "Grüße, 世界"
"""The text of all readable responses."""


def _chunk(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": "m",
             "choices": [choice]}  # fmt: skip
    return json.dumps(chunk, ensure_ascii=False).encode()


CHUNKS: Final = (
    _chunk({"role": "assistant", "content": ""}),
    *(_chunk({"content": word}) for word in ("Grüße, ", "世界")),
    _chunk({}, "stop"),
    b"[DONE]",
)
"""The events of a chat completions stream."""

_WHOLE: Final = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": TEXT},
                     "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14},
    }
).encode()  # fmt: skip


def _head(status: str, *headers: str) -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status}", *headers, "Connection: close", "", "")).encode()


def _json(raw: bytes, *headers: str) -> bytes:
    """A complete response body."""
    return _head("200 OK", "Content-Type: application/json", *headers) + raw


def _content_length(raw: bytes) -> str:
    return f"Content-Length: {len(raw)}"


_STREAM: Final = _head("200 OK", "Content-Type: text/event-stream")
"""Headers of a stream that ends with the connection."""
_CHUNKED: Final = _head(
    "200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked"
)  # fmt: skip
_EVENTS: Final = tuple(b"data: " + chunk + b"\n\n" for chunk in CHUNKS)


def _in_chunks(raw: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(raw), raw)


_GERMAN: Final = _EVENTS[1].index("ü".encode()) + 1
"""Between the two bytes of a character."""

HANGS_UP: Final[Mapping[str, Pieces]] = {
    "before the answer": (),
    "in the status line": (b"HTTP/1.1 20",),
    "in the headers": (b"HTTP/1.1 200 OK\r\nContent-Type: application/js",),
    "after the headers": (_json(b"", _content_length(_WHOLE)),),
    "in the middle of the body": (_json(_WHOLE[:40], _content_length(_WHOLE)),),
    "before the first event": (_CHUNKED,),
    "between two events": (_CHUNKED, *map(_in_chunks, _EVENTS[:2])),
    "in mid-event": (_CHUNKED, _in_chunks(_EVENTS[0]), _in_chunks(_EVENTS[1][:30])),
    "inside of a character": (_CHUNKED, _in_chunks(_EVENTS[0]), _in_chunks(_EVENTS[1][:_GERMAN])),
    "in the size of a chunk": (_CHUNKED, _in_chunks(_EVENTS[0]), b"1"),
    "before the end of the chunks": (_CHUNKED, *map(_in_chunks, _EVENTS)),
}
"""Responses that are interrupted; the last one lacks only its end marker."""

NO_ANSWERS: Final[Mapping[str, Pieces]] = {
    "garbage": (bytes(range(256)) * 4,),
    "another protocol": (b"220 mail.example.org ESMTP\r\n",),
    "a status that is no number": (b"HTTP/1.1 fine OK\r\n\r\n",),
    "a header without a colon": (b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n{}",),
    "a header with a zero byte": (b"HTTP/1.1 200 OK\r\nX-Name: a\x00b\r\n\r\n{}",),
    "a huge header": (b"HTTP/1.1 200 OK\r\nX-Huge: " + b"x" * 2**20 + b"\r\n\r\n{}",),
    "many headers": (_json(b"{}", *(f"X-{n}: {n}" for n in range(20_000))),),
    "a size that is no number": (_json(b"{}", "Content-Length: two"),),
    "two sizes": (_json(b"{}", "Content-Length: 2", "Content-Length: 3"),),
    "chunks of wrong sizes": (_CHUNKED, b"3\r\n" + _EVENTS[0] + b"\r\n0\r\n\r\n"),
    "chunks without a size": (_CHUNKED, b"zz\r\n" + _EVENTS[0] + b"\r\n"),
    "plain text declared as gzip": (
        _json(_WHOLE, _content_length(_WHOLE), "Content-Encoding: gzip"),
    ),
    "an unknown encoding": (
        _json(_WHOLE[::-1], _content_length(_WHOLE), "Content-Encoding: backwards"),
    ),
    "JSON that is none": (_json(b'{"choices": [', "Content-Length: 13"),),
    "JSON that is no object": (_json(b"[1, 2]", "Content-Length: 6"),),
    "bytes that are no text": (_json(b'{"a": "\xff\xfe"}', "Content-Length: 11"),),
    "nothing": (_head("204 No Content"),),
    "an empty body": (_json(b"", "Content-Length: 0"),),
    "a redirect": (_head("307 Temporary Redirect", "Location: /elsewhere", "Content-Length: 0"),),
    "a redirect to another host": (
        _head("302 Found", "Location: http://192.0.2.1/v1", "Content-Length: 0"),
    ),
    "a page": (_head("200 OK", "Content-Type: text/html", "Content-Length: 13"), b"<html></html>"),
    "only an interim answer": (b"HTTP/1.1 103 Early Hints\r\n\r\n",),
    "a switch of protocols": (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\n\r\n",),
}
"""Complete responses that no client can use."""


def _make_stream(*events: bytes) -> Pieces:
    return (_STREAM, *events)


_GZIPPED: Final = gzip.compress(_WHOLE, mtime=0)

STREAMS: Final[Mapping[str, Pieces]] = {
    "in chunks": (_CHUNKED, *map(_in_chunks, _EVENTS), b"0\r\n\r\n"),
    "until the connection ends": _make_stream(*_EVENTS),
    "all at once": _make_stream(b"".join(_EVENTS)),
    "byte by byte": _make_stream(*(bytes([byte]) for byte in b"".join(_EVENTS))),
    "CRLF": _make_stream(*(event.replace(b"\n", b"\r\n") for event in _EVENTS)),
    "CRLF, cut between the two": _make_stream(
        *(piece for event in _EVENTS for piece in (event[:-2] + b"\r\n\r", b"\n"))
    ),
    "CR": _make_stream(*(event.replace(b"\n", b"\r") for event in _EVENTS)),
    "comments": _make_stream(*(b": ping\n\n" + event for event in _EVENTS)),
    "data in several lines": _make_stream(
        *(event.replace(b'", "', b'",\ndata: "') for event in _EVENTS)
    ),
    "data without a space": _make_stream(
        *(event.replace(b"data: ", b"data:") for event in _EVENTS)
    ),
    "other fields": _make_stream(*(b"id: 1\nretry: 10\nnonsense\n" + event for event in _EVENTS)),
    "no final blank line": _make_stream(*_EVENTS[:-1], _EVENTS[-1].rstrip()),
    "a byte order mark": _make_stream("\ufeff".encode() + _EVENTS[0], *_EVENTS[1:]),
    "more blank lines": _make_stream(*(b"\n\n" + event for event in _EVENTS)),
}
"""Streams of `TEXT` in all variants that the standard for server-sent events allows, or nearly."""

GZIPPED: Final = (_json(_GZIPPED, _content_length(_GZIPPED), "Content-Encoding: gzip"),)
"""A complete response, compressed without being requested."""
WHOLE: Final = (_json(_WHOLE, _content_length(_WHOLE)),)
"""A valid complete response."""


@dataclass(frozen=True)
class _Endless:
    head: bytes
    more: bytes

    def __iter__(self) -> Iterator[bytes]:
        yield self.head
        while True:
            yield self.more


def endless(*, stream: bool) -> AbstractAsyncContextManager[Speaking]:
    """An upstream whose first line never ends."""
    head = _STREAM + b"data: " if stream else _json(b'{"id": "')
    return run_raw(_Endless(head, b"x" * 2**16), pause=0)


def silent(*pieces: bytes) -> AbstractAsyncContextManager[Speaking]:
    """An upstream that never responds, or never continues after `pieces`."""
    return run_raw((b"".join(pieces),), pause=3_600)


def drip(pieces: Sequence[bytes], pause: float = 1.0) -> AbstractAsyncContextManager[Speaking]:
    """An upstream that sends one byte at a time, slowly."""
    return run_raw([bytes([byte]) for byte in b"".join(pieces)], pause=pause)
