"""Requests in the three formats, and how their errors are read."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx

from tests.gateway.running import Running

LONG = 30.0
"""Seconds that no test waits."""
PATHS = {
    "openai": "/v1/chat/completions",
    "anthropic": "/v1/messages",
    "responses": "/v1/responses",
}


def body_of(form: str, *turns: str, model: str = "scripted", **more: Any) -> dict[str, Any]:
    """A request in a format: turns of user and assistant by turns, the first one the user's."""
    said = [
        {"role": "assistant" if place % 2 else "user", "content": turn}
        for place, turn in enumerate(turns)
    ]
    key = "input" if form == "responses" else "messages"
    least = {"max_tokens": 16} if form == "anthropic" else {}
    return {"model": model, key: said, **least, **more}


def ask(
    server: Running,
    form: str,
    *turns: str,
    headers: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
    **more: Any,
) -> httpx.Response:
    """Send such a request, and take its answer whole."""
    raw = json.dumps(body_of(form, *turns, **more))
    given = httpx.Headers(headers)
    return httpx.post(server.url + PATHS[form], content=raw, headers=given, timeout=LONG)


def told(server: Running, answer: httpx.Response) -> dict[str, Any]:
    """What the gateway says afterwards about an answer's request."""
    id = answer.headers["brim-request-id"]
    found: dict[str, Any] = httpx.get(f"{server.url}/brim/requests/{id}").raise_for_status().json()
    return found


def code_of(form: str, answer: httpx.Response) -> str:
    """The word of an error that a client's library looks at; fails where it finds none."""
    said = answer.json()
    assert answer.headers["content-type"] == "application/json"
    if form == "anthropic":
        assert said["type"] == "error"
        assert said["request_id"] == answer.headers["brim-request-id"]
        assert said["error"].keys() == {"type", "message"}
        return str(said["error"]["type"])
    assert said["error"].keys() == {"type", "message", "param", "code"}
    return str(said["error"]["code"])


def eventually(is_so: Callable[[], bool]) -> None:
    """Wait for what another thread does without telling; fails where it does not come."""
    end = time.monotonic() + LONG
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


# On the socket


def connected(server: Running) -> socket.socket:
    """A connection whose client takes little that it does not read."""
    url = httpx.URL(server.url)
    assert url.port is not None
    client = socket.socket()
    client.settimeout(LONG)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.connect((url.host, url.port))
    return client


def head(form: str, *headers: str) -> bytes:
    lines = (f"POST {PATHS[form]} HTTP/1.1", "Host: brim", *headers, "", "")
    return "\r\n".join(lines).encode()


def sent(server: Running, form: str, body: Mapping[str, Any]) -> socket.socket:
    """A connection on which a request has been sent, and nothing read."""
    raw = json.dumps(body).encode()
    client = connected(server)
    client.sendall(head(form, f"Content-Length: {len(raw)}") + raw)
    return client
