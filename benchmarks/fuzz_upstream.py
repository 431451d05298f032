"""The upstream of the fuzzer: a reply at every path of a model, and broken replies on request.

    python -m benchmarks.fuzz_upstream PORT

A request with the header `x-fuzz-reply: N` gets the N-th broken reply.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any, Final

import uvloop

from benchmarks.gateway_upstream import (
    HEALTHY,
    MISSING,
    STREAM_END,
    STREAM_HEAD,
    STREAMED,
    TEXT,
    TOKENS,
    Connection,
    build_chunk,
    build_response,
    estimate_tokens,
    serve,
)
from brim.gateway.bodies import find_format
from brim.models.pricing import Usage
from brim.testing.reply_formats import REPLY_FORMATS
from brim.testing.script import TextReply
from tests.support.gateway.upstream import HANGS_UP, NO_ANSWERS

LARGE: Final = ("a huge header", "many headers")
ERRORS: Final[Mapping[str, dict[str, Any]]] = {
    "400 Bad Request": {"code": "context_length_exceeded", "message": "The prompt is too long."},
    "413 Payload Too Large": {"type": "request_too_large", "message": "Too large."},
    "404 Not Found": {"message": "No such model."},
    "429 Too Many Requests": {"message": "Slow down."},
    "503 Service Unavailable": {"message": "Overloaded."},
}
BROKEN: Final = [
    *(b"".join(pieces) for pieces in HANGS_UP.values()),
    *(b"".join(pieces) for name, pieces in NO_ANSWERS.items() if name not in LARGE),
    *(build_response(status, {"error": error}) for status, error in ERRORS.items()),
    STREAM_HEAD + build_chunk(b'data: {"error":{"message":"Overloaded."}}\n\n') + STREAM_END,
]
"""Responses that are interrupted, invalid or errors."""
USAGE: Final = Usage(int(TOKENS), 30, 0)
REQUESTED: Final = re.compile(rb"\r\nx-fuzz-reply: *(\d+)", re.IGNORECASE)


def _build_replies(format: str) -> tuple[bytes, bytes]:
    """Return the reply of a format, whole and streamed."""
    reply = REPLY_FORMATS[format]
    response = reply.build_response(TextReply(TEXT), "1", "gpt-4o", USAGE)
    usage = {"stream_options": {"include_usage": True}}
    events = [build_chunk(event.encode()) for event in reply.iter_events(response, usage)]
    return build_response("200 OK", response), STREAM_HEAD + b"".join(events) + STREAM_END


_TOTAL: Final = {"prompt_tokens": USAGE.input, "total_tokens": USAGE.input}
REPLIES: Final = {format: _build_replies(format) for format in REPLY_FORMATS}
OTHERS: Final = {
    "embeddings": build_response("200 OK", {
        "object": "list", "model": "text-embedding-3-small", "usage": _TOTAL,
        "data": [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]}),
    "compaction": build_response("200 OK", {
        "id": "resp_1", "object": "response.compaction", "created_at": 0,
        "output": [{"type": "compaction", "id": "cmp_1", "encrypted_content": "abc"}],
        "usage": {"input_tokens": USAGE.input, "output_tokens": 3}}),
}  # fmt: skip


class FuzzConnection(Connection):
    """A connection with replies in every format."""

    def answer(self, head: bytes, body: bytes) -> None:
        if requested := REQUESTED.search(head):
            self.transport.write(BROKEN[int(requested[1]) % len(BROKEN)])
            self.transport.close()
        else:
            path = head.split(b" ", 2)[1].decode().partition("?")[0]
            self.transport.write(_find_reply(path, body).replace(TOKENS, estimate_tokens(body)))


def _find_reply(path: str, body: bytes) -> bytes:
    format = find_format(path)
    if format is None:
        return HEALTHY if path == "/healthz" else MISSING
    if format.name in OTHERS:
        return OTHERS[format.name]
    is_stream = ":stream" in path if format.name == "gemini" else bool(STREAMED.search(body))
    return REPLIES[format.name][is_stream]


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), FuzzConnection))
