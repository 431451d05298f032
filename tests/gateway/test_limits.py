"""How large a request may be, how long it may take, how many run at once."""

from __future__ import annotations

import gzip
import json
import logging
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import httpx
import pytest
import zstandard

from brim.config import GatewayConfig
from brim.gateway import gateway as gateway_module
from brim.gateway.model_route import ModelRoute
from brim.testing import ScriptedServer, TextReply
from tests.support.gateway.process import Running, config_of, run_gateway
from tests.support.gateway.requests import (
    CHAT,
    COUNT_TOKENS,
    LONG,
    MESSAGES,
    PATHS,
    ask,
    begin_stream,
    body_of,
    code_of,
    connect,
    get_record,
    request_head,
    send_raw,
    wait_until,
)

each_format = pytest.mark.parametrize("path", PATHS)


@contextmanager
def run_bounded(provider: ScriptedServer, **limits: Any) -> Iterator[Running]:
    config = replace(config_of(provider.url), gateway=GatewayConfig(**limits))
    with run_gateway(config) as server:
        yield server


def read_response(client: socket.socket) -> httpx.Response:
    """The answer on a connection that ends with it."""
    raw = b"".join(iter(lambda: client.recv(65_536), b""))
    first, _, rest = raw.partition(b"\r\n")
    heads, _, content = rest.partition(b"\r\n\r\n")
    given = dict(line.split(": ", 1) for line in heads.decode().split("\r\n"))
    return httpx.Response(int(first.split()[1]), headers=given, content=content)


def rest_of(client: socket.socket) -> bytes:
    """All that still comes on a connection, which is cut."""
    pieces = []
    with suppress(ConnectionResetError):
        while piece := client.recv(1 << 20):
            pieces.append(piece)
    return b"".join(pieces)


@each_format
@pytest.mark.parametrize("announced", [True, False], ids=["announced", "chunked"])
def test_a_body_above_the_limit_is_rejected(path: str, announced: bool) -> None:
    with (
        ScriptedServer("Hello.") as provider,
        run_bounded(provider, max_body_bytes=10_000) as server,
    ):
        raw = json.dumps(body_of(path, "word " * 3_000)).encode()
        pieces = (raw[start : start + 1_000] for start in range(0, len(raw), 1_000))
        answer = httpx.post(server.url + path, content=raw if announced else pieces)
        assert answer.status_code == 413
        assert code_of(path, answer) == "request_too_large"
        assert "10,000 bytes (gateway.max_body_bytes)" in answer.text
        assert ask(server, path, "hi").status_code == 200
        assert len(provider.requests) == 1


@each_format
def test_a_content_length_that_is_too_large_is_rejected_immediately(path: str) -> None:
    with (
        ScriptedServer("Hello.") as provider,
        run_bounded(provider, max_body_bytes=10_000) as server,
        connect(server) as client,
    ):
        client.sendall(request_head(path, "Content-Length: 10001"))
        assert read_response(client).status_code == 413


@each_format
def test_a_body_that_does_not_arrive_times_out(path: str) -> None:
    with (
        ScriptedServer("Hello.") as provider,
        run_bounded(provider, body_seconds=0.1) as server,
        connect(server) as client,
    ):
        client.sendall(request_head(path, "Content-Length: 100") + b'{"model":')
        answer = read_response(client)
        assert answer.status_code == 408
        assert code_of(path, answer) == {MESSAGES: "timeout_error"}.get(path, "body_timeout")
        assert "0.1 s (gateway.body_seconds)" in answer.text
        assert provider.requests == []


def test_a_slow_body_times_out() -> None:
    with (
        ScriptedServer("Hello.") as provider,
        run_bounded(provider, body_seconds=0.2) as server,
        connect(server) as client,
    ):
        client.sendall(request_head(CHAT, "Content-Length: 1000"))
        client.settimeout(0.05)
        received = b""
        for _ in range(1_000):  # a byte before every silence would be too long
            client.sendall(b" ")
            with suppress(TimeoutError):
                received = client.recv(65_536)
                break
        assert received.startswith(b"HTTP/1.1 408 ")
        assert provider.requests == []


@each_format
def test_a_request_over_the_limit_is_told_to_retry(path: str) -> None:
    goes_on = threading.Event()
    with (
        ScriptedServer(TextReply("one two three", hold=goes_on)) as provider,
        run_bounded(provider, max_requests=1) as server,
    ):
        with begin_stream(server, path, goes_on) as running_one:
            rejected = ask(server, path, "hi")
        assert get_record(server, running_one)["end"] == "completed"
        assert rejected.status_code == 503
        expected = {MESSAGES: "overloaded_error"}.get(path, "too_many_requests_at_once")
        assert code_of(path, rejected) == expected
        assert rejected.headers["retry-after"] == "1"
        assert "gateway.max_requests" in rejected.text
        assert len(provider.requests) == 1


def test_cheap_requests_are_served_at_the_limit() -> None:
    goes_on = threading.Event()
    with (
        ScriptedServer(TextReply("one two three", hold=goes_on)) as provider,
        run_bounded(provider, max_requests=1) as server,
        begin_stream(server, CHAT, goes_on),
    ):
        for path in ("/healthz", "/readyz", "/metrics", "/v1/models", "/brim/requests"):
            assert httpx.get(server.url + path).status_code == 200
        assert ask(server, COUNT_TOKENS, "hi").status_code == 503


def test_an_error_while_saving_does_not_end_the_sweep(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gateway_module, "SWEEP_SECONDS", 0.01)
    tries = threading.Semaphore(0)

    async def fail(_: ModelRoute) -> None:
        tries.release()
        raise OSError("the disk is full")

    with ScriptedServer("Hello.") as provider, run_bounded(provider) as server:
        ask(server, CHAT, "hi")
        with monkeypatch.context() as patch:
            patch.setattr(ModelRoute, "save", fail)
            assert all(tries.acquire(timeout=LONG) for _ in range(3))
    assert "sweep failed" in caplog.text


@each_format
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
def test_a_client_that_does_not_read_is_disconnected(
    path: str, streamed: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gateway_module, "SWEEP_SECONDS", 0.02)
    caplog.set_level(logging.INFO, "brim.gateway")
    with (
        # A whole reply is longer than the buffers of the system can become.
        ScriptedServer("word " * (60_000 if streamed else 2_000_000)) as provider,
        run_bounded(provider, send_seconds=0.2) as server,
        send_raw(server, path, body_of(path, "hi", stream=streamed)) as client,
    ):
        assert client.recv(12) == b"HTTP/1.1 200"
        wait_until(lambda: "request" in caplog.messages)
        (record,) = server.gateway.records.newest(1)
        assert record.end == "client_disconnected"
        assert len(rest_of(client)) < 10_000_000


# Compressed bodies

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.compress,
}


def post_compressed(server: Running, encoding: str, raw: bytes) -> httpx.Response:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    return httpx.post(server.url + CHAT, content=raw, headers=headers, timeout=LONG)


def test_compressed_bodies_are_accepted_up_to_the_limit_of_their_content() -> None:
    raw = json.dumps(body_of(CHAT, "hi")).encode()
    large = json.dumps(body_of(CHAT, "hi " * 1_000_000)).encode()
    with (
        ScriptedServer("Hello.") as provider,
        run_bounded(provider, max_body_bytes=10_000) as server,
    ):
        for encoding, compress in COMPRESS.items():
            assert post_compressed(server, encoding, compress(raw)).status_code == 200
            assert provider.requests[-1].raw == raw
            for invalid in (raw, compress(raw)[:-9]):
                rejected = post_compressed(server, encoding, invalid)
                assert code_of(CHAT, rejected) in ("invalid_request", "invalid_json")
            assert post_compressed(server, encoding, compress(large)).status_code == 413
        unknown = post_compressed(server, "br", raw)
        assert (unknown.status_code, code_of(CHAT, unknown)) == (415, "unsupported_encoding")
        assert unknown.headers["accept-encoding"] == "gzip, deflate, zstd"
