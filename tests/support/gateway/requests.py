"""Requests in the three formats, by path, and helpers to read the responses."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import httpx

from brim.wire.reply_parser import parse_reply
from brim.wire.streams import StreamAccumulator
from tests.support.gateway.process import Running

CHAT: Final = "/v1/chat/completions"
MESSAGES: Final = "/v1/messages"
RESPONSES: Final = "/v1/responses"
PATHS: Final = (CHAT, MESSAGES, RESPONSES)
COUNT_TOKENS: Final = "/v1/messages/count_tokens"
INPUT_TOKENS: Final = "/v1/responses/input_tokens"
LONG: Final = 60.0
"""A timeout in seconds that no test reaches."""
_PLAIN: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""No certificates are loaded, because no test uses TLS here."""


# Requests

Turn = str | tuple[str, str] | Mapping[str, Any]
"""A text with the role of its position, a (role, text) pair, or a message of the format."""


def body_of(
    path: str, *turns: Turn, reply: int | None = None, model: Any = "scripted", **more: Any
) -> dict[str, Any]:
    """Return a body whose first turn is the user's.

    Without a `reply`, it has an output limit only if the format requires one.
    """
    messages = [_message(place, turn) for place, turn in enumerate(turns)]
    if reply is None and path.startswith(MESSAGES):
        reply = 16
    words = {} if reply is None else {_reply_key(path): reply}
    return {"model": model, messages_key(path): messages, **words, **more}


def _message(place: int, turn: Turn) -> Mapping[str, Any]:
    match turn:
        case str():
            return {"role": "assistant" if place % 2 else "user", "content": turn}
        case (role, text):
            return {"role": role, "content": text}
        case _:
            return turn


def messages_key(path: str) -> str:
    """The field of a body with the conversation."""
    return "input" if path.startswith(RESPONSES) else "messages"


def turns_in(path: str, body: Mapping[str, Any]) -> list[Any]:
    return list(body[messages_key(path)])


def _reply_key(path: str) -> str:
    return "max_output_tokens" if path.startswith(RESPONSES) else "max_tokens"


def post(
    address: str, path: str, body: object, headers: Mapping[str, str] | None = None
) -> httpx.Response:
    """Post bytes or a JSON value to a path; return the response."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    own = {"content-type": "application/json", "accept-encoding": "identity"}
    with httpx.Client(headers=own, timeout=LONG, verify=_PLAIN) as client:
        return client.post(httpx.URL(address).join(path), content=raw, headers=headers)


def ask(
    server: Running,
    path: str,
    *turns: Turn,
    headers: Mapping[str, str] | None = None,
    **more: Any,
) -> httpx.Response:
    """Send such a request; return the whole response."""
    return post(server.url, path, body_of(path, *turns, **more), headers)


@contextmanager
def begin_stream(server: Running, path: str, goes_on: threading.Event) -> Iterator[httpx.Response]:
    """A stream that has begun, from an upstream that holds it until the block ends."""
    body = body_of(path, "hi", stream=True)
    with httpx.stream("POST", server.url + path, json=body, timeout=LONG, verify=_PLAIN) as answer:
        pieces = answer.iter_bytes()
        next(pieces)
        try:
            yield answer
        finally:
            goes_on.set()
        for _ in pieces:
            pass


# Responses


def read_spoken(answer: httpx.Response) -> str:
    """Return the text of a reply, whole or streamed."""
    if answer.content.lstrip().startswith(b"{"):
        return parse_reply(answer.json()).text
    fold = StreamAccumulator()
    for line in answer.content.splitlines():
        if line.startswith(b"data: {"):
            fold.add(json.loads(line.removeprefix(b"data: ")))
    return fold.reply().text


def get_record(server: Running, answer: httpx.Response) -> dict[str, Any]:
    """Return the gateway's record of a request."""
    id = answer.headers["brim-request-id"]
    found: dict[str, Any] = (
        httpx.get(f"{server.url}/brim/requests/{id}", verify=_PLAIN).raise_for_status().json()
    )
    return found


def code_of(path: str, answer: httpx.Response) -> str:
    """Return the error code that the client's library reads; fail if there is none."""
    body = answer.json()
    assert answer.headers["content-type"] == "application/json"
    if path == MESSAGES:
        assert body["type"] == "error"
        assert body["request_id"] == answer.headers["brim-request-id"]
        assert body["error"].keys() == {"type", "message"}
        return str(body["error"]["type"])
    assert body["error"].keys() == {"type", "message", "param", "code"}
    return str(body["error"]["code"])


def wait_until(is_so: Callable[[], object]) -> None:
    """Wait until a condition is true; fail after a timeout."""
    end = time.monotonic() + LONG
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


# Sockets


def connect(server: Running) -> socket.socket:
    """A connection with a small receive buffer."""
    url = httpx.URL(server.url)
    assert url.port is not None
    client = socket.socket()
    client.settimeout(LONG)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.connect((url.host, url.port))
    return client


def request_head(path: str, *headers: str) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: brim", *headers, "", "")
    return "\r\n".join(lines).encode()


def send_raw(server: Running, path: str, body: Mapping[str, Any]) -> socket.socket:
    """A connection with a request sent and nothing read."""
    raw = json.dumps(body).encode()
    client = connect(server)
    client.sendall(request_head(path, f"Content-Length: {len(raw)}") + raw)
    return client
