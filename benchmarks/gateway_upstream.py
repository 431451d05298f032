"""The upstream of the gateway benchmark: it responds immediately and uses little CPU time.

    python -m benchmarks.gateway_upstream PORT

It speaks OpenAI's chat and Anthropic's messages: a reply of about 0.5 kB, or 33 events of a stream
where the body asks for one. The events come in one piece; with `"user":"paced N"` (or `user_id`)
somewhere in the body they come one by one, N milliseconds apart. What it says about usage follows
from the size of the body, since gateways learn from that. Every other path is unknown to it.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, cast

import uvloop

BACKLOG = 2_048
"""Listen backlog: of hundreds of concurrent connections, some would otherwise be retried a second
later, through no fault of the gateway."""
DELTAS = 30
WORDS = "of the conversation, "
TEXT = WORDS * 12
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
PACED = re.compile(rb'"user(?:_id)?": ?"paced (\d+)"')
STREAMED = re.compile(rb'"stream": ?true')
USAGE_ASKED = re.compile(rb'"include_usage": ?true')
FRAME, BYTES_PER_TOKEN = 350, 4
"""Bytes of a small body besides its text, and bytes per token, about as brim counts."""
TOKENS = b"271828"
"""Placeholder in the prepared answers for the number of tokens in the body."""

Body: TypeAlias = dict[str, Any]


# Responses in both formats


def _chat() -> Body:
    message = {"role": "assistant", "content": TEXT}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "gpt-4o",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": _chat_usage(),
    }


def _chat_usage() -> Body:
    return {"prompt_tokens": int(TOKENS), "completion_tokens": DELTAS, "total_tokens": int(TOKENS)}


def _chat_events(*, usage: bool) -> Iterator[bytes]:
    yield _chunk({"role": "assistant", "content": ""})
    for _ in range(DELTAS):
        yield _chunk({"content": WORDS})
    yield _chunk({}, "stop")
    if usage:
        yield _data(_frame() | {"choices": [], "usage": _chat_usage()})
    yield b"data: [DONE]\n\n"


def _chunk(delta: Body, reason: str | None = None) -> bytes:
    return _data(_frame() | {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})


def _frame() -> Body:
    frame = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "gpt-4o"}
    return {**frame, "created": 1_700_000_000}


def _message(content: Sequence[Body] = (), reason: str | None = None) -> Body:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": list(content),
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {"input_tokens": int(TOKENS), "output_tokens": DELTAS},
    }


def _message_events() -> Iterator[bytes]:
    block: Body = {"index": 0, "content_block": {"type": "text", "text": ""}}
    yield _event("message_start", {"message": _message()})
    yield _event("content_block_start", block)
    for _ in range(DELTAS - 2):
        delta = {"type": "text_delta", "text": WORDS}
        yield _event("content_block_delta", {"index": 0, "delta": delta})
    yield _event("content_block_stop", {"index": 0})
    stopped = {"delta": {"stop_reason": "end_turn", "stop_sequence": None}}
    yield _event("message_delta", {**stopped, "usage": {"output_tokens": DELTAS}})
    yield _event("message_stop", {})


def _event(name: str, body: Body) -> bytes:
    return f"event: {name}\n".encode() + _data({"type": name, **body})


def _data(body: Body) -> bytes:
    return b"data: %s\n\n" % _pack(body)


def _pack(body: Body) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def estimate_tokens(body: bytes) -> bytes:
    """Return the tokens of a body, with as many digits as `TOKENS`, so that no length changes."""
    return b"%*d" % (len(TOKENS), max(1, (len(body) - FRAME) // BYTES_PER_TOKEN))


# Sending


def build_response(status: str, body: Body) -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n"
    packed = _pack(body)
    return f"{head}content-length: {len(packed)}\r\n\r\n".encode() + packed


def build_chunk(event: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(event), event)


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)
STREAM_END = b"0\r\n\r\n"
MISSING = build_response(
    "404 Not Found", {"error": {"message": "no such path", "type": "not_found_error"}}
)
HEALTHY = build_response("200 OK", {})
ACCEPTED = (b"/healthz", b"/v1/traces", b"/v1/metrics")
"""Paths that get an empty object: for checks, and for OpenTelemetry's exporter."""
SAID = [{"type": "text", "text": TEXT}]
REPLIES = {
    b"/v1/chat/completions": build_response("200 OK", _chat()),
    b"/v1/messages": build_response("200 OK", _message(SAID, "end_turn")),
}
STREAMS = {
    (b"/v1/chat/completions", False): [*map(build_chunk, _chat_events(usage=False))],
    (b"/v1/chat/completions", True): [*map(build_chunk, _chat_events(usage=True))],
    (b"/v1/messages", False): [*map(build_chunk, _message_events())],
}


class Connection(asyncio.Protocol):
    """One client connection with sequential requests."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._missing = 0
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        self._missing -= len(data)
        if self._missing > 0:
            return
        request = b"".join(self._pieces)
        end = request.find(b"\r\n\r\n") + 4
        length = LENGTH.search(request, 0, end) if end >= 4 else None
        whole = end + (int(length[1]) if length else 0)
        if end >= 4 and len(request) >= whole:
            self._pieces.clear()
            self._missing = 0
            self.answer(request[:end], request[end:])
        else:
            self._pieces = [request]
            self._missing = max(1, whole - len(request))

    def answer(self, head: bytes, body: bytes) -> None:
        """Send the response to a request with these headers."""
        path = head.split(b" ", 2)[1]
        if path not in REPLIES:
            self.transport.write(HEALTHY if path in ACCEPTED else MISSING)
            return
        tokens = estimate_tokens(body)
        if not STREAMED.search(body):
            self.transport.write(REPLIES[path].replace(TOKENS, tokens))
            return
        wants_usage = path.endswith(b"completions") and bool(USAGE_ASKED.search(body))
        events = [event.replace(TOKENS, tokens) for event in STREAMS[path, wants_usage]]
        pace = PACED.search(body)
        if pace is None:
            self.transport.write(STREAM_HEAD + b"".join(events) + STREAM_END)
        else:
            self.transport.write(STREAM_HEAD)
            self._pace(iter(events), int(pace[1]) / 1000)

    def _pace(self, events: Iterator[bytes], seconds: float) -> None:
        """Send the next event when it is due; a late one does not put off those after it."""
        due = self._loop.time()

        def send() -> None:
            nonlocal due
            if self.transport.is_closing():
                return
            event = next(events, None)
            if event is None:
                self.transport.write(STREAM_END)
                return
            self.transport.write(event)
            due += seconds
            self._loop.call_at(due, send)

        send()


async def serve(port: int, connection: type[Connection] = Connection) -> None:
    server = await asyncio.get_running_loop().create_server(
        connection, "127.0.0.1", port, backlog=BACKLOG
    )
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
