"""Hostile clients: no request is smuggled, and other clients are served."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace

import httpx
import pytest

from brim.config import GatewayConfig
from brim.gateway.http_protocol import MAX_HEADER_BYTES
from brim.testing import ErrorReply, ScriptedServer, TextReply
from tests.support.gateway.process import Running, config_of, run_gateway
from tests.support.gateway.requests import (
    CHAT,
    COUNT_TOKENS,
    INPUT_TOKENS,
    LONG,
    MESSAGES,
    body_of,
    connect,
    wait_until,
)

BODY = json.dumps(body_of(CHAT, "Hello?")).encode()
STREAMED = BODY.replace(b"{", b'{"stream": true, ', 1)
SIZED = f"Content-Length: {len(BODY)}"
CHUNKED = "Transfer-Encoding: chunked"


@pytest.fixture(autouse=True)
def _lives(served: Running) -> Iterator[None]:
    """Check that the next client is served after each test."""
    yield
    assert httpx.post(served.url + CHAT, content=BODY).status_code == 200


def request(*heads: str, body: bytes = BODY, to: str = f"POST {CHAT}") -> bytes:
    lines = [f"{to} HTTP/1.1", "Host: localhost", "Connection: close", *heads, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def exchange(served: Running, raw: bytes) -> bytes:
    """Send bytes and return the response until the gateway disconnects."""
    with connect(served) as connection:
        answer = b""
        try:
            connection.sendall(raw)
            while piece := connection.recv(65_536):
                answer += piece
        except ConnectionError:  # it disconnected before it had read everything
            pass
        return answer


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


# Requests that servers could interpret differently

SMUGGLED = b"0\r\n\r\nGET /brim/requests HTTP/1.1\r\nHost: localhost\r\n\r\n"
NO_REQUESTS: Mapping[str, bytes] = {
    "a length and chunks": request(f"Content-Length: {len(SMUGGLED)}", CHUNKED, body=SMUGGLED),
    "chunks and a length": request(CHUNKED, f"Content-Length: {len(SMUGGLED)}", body=SMUGGLED),
    "two lengths": request(SIZED, "Content-Length: 3"),
    "a negative length": request("Content-Length: -1"),
    "a length with a sign": request(f"Content-Length: +{len(BODY)}"),
    "a huge length": request(f"Content-Length: {'9' * 40}"),
    "a space before the colon": request(f"Content-Length : {len(BODY)}"),
    "an unknown transfer coding": request("Transfer-Encoding: xchunked", body=SMUGGLED),
    "two transfer codings": request(CHUNKED, "Transfer-Encoding: identity", body=SMUGGLED),
    "a chunk without a size": request(CHUNKED, body=b"zz\r\n" + BODY),
    "a huge chunk": request(CHUNKED, body=b"f" * 20 + b"\r\n" + BODY),
    "chunks without CR": request(CHUNKED, body=b"%x\n%b\n0\n\n" % (len(BODY), BODY)),
    "a line feed in a header": request(SIZED, "X-Name: a\nbrim-policy: rolling"),
    "a carriage return in a header": request(SIZED, "X-Name: a\rbrim-policy: rolling"),
    "a zero byte in a header": request(SIZED, "X-Name: a\x00b"),
    "a folded header": request(SIZED, "X-Name: a\r\n brim-policy: rolling"),
    "an unknown method": request(to="BREW /v1/models", body=b""),
    "a method for proxies": request(to="CONNECT example.org:443", body=b""),
    "a space in the path": request(to=f"POST {CHAT}?a= b"),
    "bytes in the path": request(to="GET /v1/models/\xff", body=b""),
    "another version": b"GET /healthz HTTP/9.9\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "garbage": bytes(range(256)) * 10,
    "20,000 headers": request(SIZED, *(f"X-{n}: {n}" for n in range(20_000))),
    "a huge header": request(SIZED, f"X-Name: {'x' * 200_000}"),
    "a huge path": request(to=f"GET /{'x' * 200_000}", body=b""),
}


@pytest.mark.parametrize("raw", NO_REQUESTS.values(), ids=NO_REQUESTS)
def test_invalid_requests_are_rejected_and_not_forwarded(
    served: Running, upstream: ScriptedServer, raw: bytes
) -> None:
    before = len(upstream.requests)
    answer = exchange(served, raw)
    assert status(answer) == 400
    assert answer.count(b"HTTP/1.1 ") == 1
    assert len(upstream.requests) == before


def test_data_after_a_body_that_is_too_short_is_not_a_request(
    served: Running, upstream: ScriptedServer
) -> None:
    before = len(upstream.requests)
    answer = exchange(served, request(f"Content-Length: {len(BODY) - 10}"))
    assert b"400 Bad Request" in answer
    assert len(upstream.requests) == before


def test_a_body_may_be_chunked(served: Running, upstream: ScriptedServer) -> None:
    halves = b"".join(b"%x;a=b\r\n%b\r\n" % (len(half), half) for half in (BODY[:9], BODY[9:]))
    trailer = b"0\r\nbrim-policy: nonsense\r\n\r\n"
    assert status(exchange(served, request(CHUNKED, body=halves + trailer))) == 200
    assert upstream.requests[-1].raw == BODY
    assert "Transfer-Encoding" not in upstream.requests[-1].headers


def test_requests_may_be_pipelined(served: Running) -> None:
    open_ended = request(SIZED).replace(b"Connection: close\r\n", b"")
    answer = exchange(served, open_ended * 3 + request(SIZED))
    assert answer.count(b"HTTP/1.1 200 OK") == 4


def test_expect_100_continue_is_answered(served: Running) -> None:
    answer = exchange(served, request(SIZED, "Expect: 100-continue"))
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")


def test_headers_of_an_error_do_not_leak_into_the_next_response(
    served: Running,
) -> None:
    nonsense = request("Content-Length: 8", "Expect: 100-continue", body=b"nonsense")
    stays = nonsense.replace(b"Connection: close\r\n", b"")
    answer = exchange(served, stays + request(to="GET /healthz", body=b""))
    _, goes_on, rejected, healthy = answer.split(b"HTTP/1.1 ")
    assert goes_on == b"100 Continue\r\n\r\n"
    assert rejected.startswith(b"400 ")
    assert rejected.count(b"\r\ncontent-type: ") == 1
    assert rejected.count(b"\r\nbrim-request-id: ") == 1
    assert healthy.startswith(b"200 ")
    assert healthy.count(b"\r\ncontent-type: ") == 1
    assert b"brim-request-id" not in healthy


ENDLESS = b"GET / HTTP/1.1\r\nX-Name: ".ljust(MAX_HEADER_BYTES + 1, b"x")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"GARBAGE\r\n\r\n", b"Invalid HTTP request."),
        (ENDLESS, b"The request headers are too large."),
    ],
    ids=["garbage", "endless"],
)
def test_errors_of_the_server_itself_are_complete_responses(
    served: Running, raw: bytes, expected: bytes
) -> None:
    heads, _, body = exchange(served, raw).partition(b"\r\n\r\n")
    assert body == expected
    assert heads.count(b"\r\ncontent-type: ") == 1
    assert heads.endswith(b"\r\ncontent-length: %d\r\nconnection: close" % len(expected))


# Headers and paths


def test_headers_reach_the_upstream_unchanged(served: Running, upstream: ScriptedServer) -> None:
    beta = ("anthropic-beta: one", "anthropic-beta: two")
    odd = "X-Name: ü \t 世界".encode().decode("latin-1")
    assert (
        status(exchange(served, request(SIZED, *beta, odd, "Cookie: a=b", "TE: trailers"))) == 200
    )
    sent = upstream.requests[-1].headers
    assert sent["anthropic-beta"] == "one, two"
    assert sent["x-name"].encode("latin-1").decode() == "ü \t 世界"
    assert not {"cookie", "te", "Cookie", "TE"} & set(sent)


@pytest.mark.parametrize("head", ["brim-policy: \xfc\xff", "brim-fitting: maybe", "brim-x: 1"])
def test_invalid_options_are_rejected(served: Running, head: str) -> None:
    answer = exchange(served, request(SIZED, head))
    assert status(answer) == 400
    assert b"_header" in answer


COUNTS = [f"POST {COUNT_TOKENS}", f"POST {INPUT_TOKENS}"]
ASKED_ABOUT = ["GET /metrics", "GET /brim/requests", "GET /brim/requests/brim_1"]
PAGES = ["https://example.org", "null", "http://[", "http://a\\b"]


@pytest.mark.parametrize("to", [f"POST {CHAT}", *COUNTS, "GET /v1/models", *ASKED_ABOUT])
def test_requests_from_web_pages_are_rejected(served: Running, to: str) -> None:
    for origin in PAGES:
        assert status(exchange(served, request(SIZED, f"Origin: {origin}", to=to))) == 403


@pytest.mark.parametrize("to", ASKED_ABOUT)
def test_dns_rebinding_is_rejected(served: Running, to: str) -> None:
    hosts = {"evil.example:8484": True, "[::1]:8484": False, "LocalHost": False}
    for host, rejected in hosts.items():
        raw = request(to=to, body=b"").replace(b"localhost", host.encode())
        assert (status(exchange(served, raw)) == 403) is rejected


@pytest.mark.parametrize("to", ASKED_ABOUT)
def test_requests_from_other_sites_are_rejected(served: Running, to: str) -> None:
    for site, rejected in {"cross-site": True, "same-site": True, "same-origin": False}.items():
        answer = exchange(served, request(f"Sec-Fetch-Site: {site}", to=to, body=b""))
        assert (status(answer) == 403) is rejected


@pytest.mark.parametrize(
    "path",
    ["/v1", "//v1/chat/completions", "/v1/../v1/chat/completions", "/v1/chat/completions/",
     "/v1/moderations", "/brim/requests/%00%ff/..", "/%ff%fe%0d%0aX-Name:1", "/" + "x" * 9_000],
)  # fmt: skip
def test_other_paths_are_not_found(served: Running, path: str) -> None:
    answer = exchange(served, request(SIZED, to=f"POST {path}"))
    assert status(answer) == 404
    assert b"x-name" not in answer.lower().partition(b"\r\n\r\n")[0]
    assert len(answer) < 1_000


def test_a_path_may_be_percent_encoded(served: Running) -> None:
    assert status(exchange(served, request(SIZED, to="POST /v1/%63hat%2Fcompletions"))) == 200


@pytest.mark.parametrize("name", ["%00%0d%0a", "%ff%fe", "%ed%a0%80", "a/b/../c", "x" * 9_000])
def test_an_unknown_model_is_not_found(served: Running, name: str) -> None:
    answer = exchange(served, request(to=f"GET /v1/models/{name}", body=b""))
    assert status(answer) == 404
    assert b"model_not_found" in answer
    assert len(answer) < 1_000


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE"])
@pytest.mark.parametrize("path", [CHAT, MESSAGES, INPUT_TOKENS])
def test_other_methods_are_not_allowed(served: Running, method: str, path: str) -> None:
    answer = httpx.request(method, served.url + path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert method == "HEAD" or "Method not allowed" in answer.json()["error"]["message"]
    assert method == "HEAD" or ("type" in answer.json()) is (path == MESSAGES)


@pytest.mark.parametrize("protocol", ["websocket", "h2c"])
def test_upgrades_are_not_supported(served: Running, protocol: str) -> None:
    heads = "Connection: Upgrade", f"Upgrade: {protocol}", "Sec-WebSocket-Version: 13"
    raw = request(*heads, to="GET /v1/responses", body=b"").replace(b"Connection: close\r\n", b"")
    with connect(served) as connection:
        connection.sendall(raw)
        assert status(connection.recv(65_536)) == 405


@pytest.mark.parametrize("framing", [SIZED, CHUNKED])
@pytest.mark.parametrize("size", [7, 10_000])
def test_a_body_arrives_although_its_client_offers_an_upgrade(
    served: Running, framing: str, size: int
) -> None:
    body = BODY if framing == SIZED else b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    raw = request("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", framing, body=body)
    with connect(served) as connection:
        for start in range(0, len(raw), size):
            connection.sendall(raw[start : start + size])
        assert status(connection.recv(65_536)) == 200


# Clients that disconnect or stall

CUT_AT: Mapping[str, bytes] = {
    "before the request": b"",
    "within the headers": request(SIZED)[:40],
    "before the body": request(SIZED, body=b""),
    "within the body": request(SIZED)[:-10],
    "within a chunk": request(CHUNKED, body=b"ff\r\n{"),
}


@pytest.mark.parametrize("raw", CUT_AT.values(), ids=CUT_AT)
@pytest.mark.parametrize("abruptly", [False, True])
def test_a_client_that_disconnects_before_its_request_leaves_nothing_running(
    served: Running, upstream: ScriptedServer, raw: bytes, abruptly: bool
) -> None:
    before = len(upstream.requests)
    with connect(served) as connection:
        connection.sendall(raw)
        if abruptly:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: not served.gateway.running)
    assert len(upstream.requests) == before


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_client_that_disconnects_cancels_its_request(is_begun: bool) -> None:
    never = threading.Event()
    reply = TextReply("Hello to you.", hold=never) if is_begun else TextReply("Hello.", pause=LONG)
    with ScriptedServer(reply) as slow, run_gateway(config_of(slow.url)) as served:
        sized = f"Content-Length: {len(STREAMED)}"
        with connect(served) as connection:
            connection.sendall(request(sized, body=STREAMED))
            wait_until(lambda: slow.requests)
            if is_begun:
                assert status(connection.recv(65_536)) == 200
        wait_until(lambda: slow.abandoned)
        wait_until(lambda: not served.gateway.running)
        (record,) = served.gateway.records.newest(1)
        assert record.end == "client_disconnected"


def test_a_body_that_does_not_arrive_times_out(upstream: ScriptedServer) -> None:
    config = replace(config_of(upstream.url), gateway=GatewayConfig(body_seconds=0.2))
    with run_gateway(config) as served:
        for path in (CHAT, MESSAGES, COUNT_TOKENS):
            answer = exchange(served, request(SIZED, to=f"POST {path}")[:-10])
            assert status(answer) == 408
            assert b"No part of the body arrived for 0.2 s" in answer


def test_an_error_may_have_any_size() -> None:
    faults = [ErrorReply(500, raw=b"x" * 10_000_000), ErrorReply(400, raw=b"\xff" * 100_000)]
    with ScriptedServer(faults) as failing, run_gateway(config_of(failing.url)) as served:
        for expected in (500, 400):
            answer = httpx.post(served.url + CHAT, content=BODY, timeout=LONG)
            assert answer.status_code == expected
