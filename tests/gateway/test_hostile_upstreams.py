"""Any upstream response is returned, or reported in the format of the client's library."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import aiohttp
import pytest

from brim.gateway import exchange
from tests.support.gateway.process import SECRET, Running, config_of, run_gateway
from tests.support.gateway.requests import CHAT, MESSAGES, PATHS, RESPONSES, body_of
from tests.support.gateway.upstream import (
    GZIPPED,
    HANGS_UP,
    NO_ANSWERS,
    STREAMS,
    WHOLE,
    Pieces,
    endless,
    run_raw,
    silent,
)
from tests.support.providers.scripted import Speaking, run


@asynccontextmanager
async def open_client(
    upstream: AbstractAsyncContextManager[Speaking], **settings: Any
) -> AsyncIterator[tuple[aiohttp.ClientSession, Speaking]]:
    """A client of a gateway in front of an upstream, which serves later requests too."""
    async with upstream as raw_server:
        config = config_of(raw_server.url, window=4_000, count="off", key_env="KEY", **settings)
        with run_gateway(config, {"KEY": SECRET}) as served:
            async with aiohttp.ClientSession(served.url) as client:
                yield client, raw_server
                await _is_well(client, served)


async def _is_well(client: aiohttp.ClientSession, served: Running) -> None:
    async with client.get("/healthz") as health:
        assert health.status == 200
    async with asyncio.timeout(10):  # a disconnect is noticed a moment later
        while served.gateway.running:
            await asyncio.sleep(0.01)


async def request_reply(
    client: aiohttp.ClientSession, path: str = CHAT, **fields: Any
) -> tuple[aiohttp.ClientResponse, bytes]:
    sent = body_of(path, "Hello?", **fields)
    async with client.post(path, json=sent, allow_redirects=False) as answer:
        return answer, await answer.read()


def check_fault(path: str, body: Mapping[str, Any]) -> None:
    assert SECRET not in json.dumps(body)
    assert "Traceback" not in json.dumps(body)
    if path == MESSAGES:
        assert body["type"] == "error"
        assert body["error"]["type"] in ("api_error", "timeout_error")
    else:
        assert body["error"]["type"] == "server_error"
        assert body["error"]["code"].startswith("upstream_")


BEFORE_ALL = [name for name, pieces in HANGS_UP.items() if len(pieces) < 2]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", BEFORE_ALL)
def test_a_disconnect_before_the_response_is_an_error(path: str, name: str) -> None:
    async def read() -> None:
        async with open_client(run_raw(HANGS_UP[name])) as (client, _):
            for is_streamed in (False, True):
                answer, raw = await request_reply(client, path, stream=is_streamed)
                assert answer.status == 502
                check_fault(path, json.loads(raw))

    run(read())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", [name for name in HANGS_UP if name not in BEFORE_ALL])
def test_a_broken_stream_ends_with_an_error_event(path: str, name: str) -> None:
    async def read() -> None:
        async with open_client(run_raw(HANGS_UP[name])) as (client, _):
            answer, raw = await request_reply(client, path, stream=True)
            if answer.status == 502:  # before the first event
                check_fault(path, json.loads(raw))
                return
            assert answer.status == 200
            relayed, _, last = raw.removesuffix(b"\n\n").rpartition(b"data: ")
            assert b"broke before the response was complete" in last
            error = json.loads(last)
            check_fault(path, {"error": error | {"type": "server_error"}} if path == RESPONSES
                        else error)  # fmt: skip
            assert relayed.startswith(b"data: ")

    run(read())


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("name", NO_ANSWERS)
def test_invalid_responses_are_returned_or_reported(name: str, is_streamed: bool) -> None:
    async def read() -> None:
        async with open_client(run_raw(NO_ANSWERS[name]), timeout=1.0) as (client, raw_server):
            answer, raw = await request_reply(client, stream=is_streamed)
            assert all(b"elsewhere" not in head.split(b"\r\n")[0] for head in raw_server.heads)
            if answer.status >= 500:
                check_fault(CHAT, json.loads(raw))
                assert len(raw) < 400
            else:
                assert answer.status in (200, 204)  # never a redirect

    run(read())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_returned_byte_for_byte(path: str, name: str) -> None:
    async def read() -> None:
        pieces = STREAMS[name]
        async with open_client(run_raw(pieces, pause=0)) as (client, raw_server):
            direct = await _direct(raw_server.url + path, path)
            answer, raw = await request_reply(client, path, stream=True)
            assert answer.status == 200
            assert answer.content_type == "text/event-stream"
            assert raw == direct

    run(read())


async def _direct(url: str, path: str) -> bytes:
    body = body_of(path, "Hello?")
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
        return await answer.read()


@pytest.mark.parametrize("pieces", [WHOLE, GZIPPED])
def test_a_compressed_response_is_decompressed(pieces: Pieces) -> None:
    async def read() -> None:
        async with open_client(run_raw(pieces)) as (client, raw_server):
            direct = await _direct(raw_server.url + CHAT, CHAT)
            answer, raw = await request_reply(client)
            assert raw == direct
            assert "content-encoding" not in answer.headers
            assert b"accept-encoding: identity" in raw_server.heads[-1].lower()

    run(read())


def test_a_stream_with_another_content_type_is_returned_whole() -> None:
    async def read() -> None:
        pieces = [piece.replace(b"text/event-stream", b"text/plain; charset=x")
                  for piece in STREAMS["in chunks"]]  # fmt: skip
        async with open_client(run_raw(pieces)) as (client, raw_server):
            direct = await _direct(raw_server.url + CHAT, CHAT)
            answer, raw = await request_reply(client, stream=True)
            assert raw == direct
            assert answer.headers["content-type"] == "text/plain; charset=x"

    run(read())


def test_a_silent_upstream_times_out() -> None:
    async def read() -> None:
        async with open_client(silent(), timeout=0.3) as (client, _):
            for path in PATHS:
                answer, raw = await request_reply(client, path)
                assert answer.status == 504
                check_fault(path, json.loads(raw))

    run(read())


def test_a_stream_of_comments_is_not_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MAX_HOLD_SECONDS", 0.2)

    async def read() -> None:
        pings = run_raw((STREAMS["comments"][0], *[b": ping\n\n"] * 10_000), pause=0.02)
        async with (
            open_client(pings) as (client, _),
            client.post(CHAT, json=body_of(CHAT, "Hello?", stream=True)) as answer,
        ):
            assert await answer.content.readexactly(16) == b": ping\n\n" * 2
            answer.close()

    run(read())


@pytest.mark.parametrize("path", PATHS)
def test_an_empty_stream_is_an_error(path: str) -> None:
    async def read() -> None:
        async with open_client(run_raw((STREAMS["comments"][0], b": ping\n\n"))) as (client, _):
            answer, raw = await request_reply(client, path, stream=True)
            assert answer.status == 502
            check_fault(path, json.loads(raw))

    run(read())


def test_an_endless_response_is_cancelled() -> None:
    async def read() -> None:
        async with open_client(endless(stream=False)) as (client, _):
            answer, raw = await request_reply(client)
            assert answer.status == 502
            assert b"more than 67,108,864 bytes" in raw

    run(read())


def test_an_endless_line_is_forwarded_in_pieces() -> None:
    async def read() -> None:
        async with (
            open_client(endless(stream=True)) as (client, _),
            client.post(CHAT, json=body_of(CHAT, "Hello?", stream=True)) as answer,
        ):
            passed = await answer.content.readexactly(8 << 20)
            assert passed == b"data: " + b"x" * (len(passed) - 6)
            answer.close()

    run(read())


HEADS: Mapping[str, bytes] = {
    "one of brim's own": b"brim-tokens: 5",
    "a cookie": b"Set-Cookie: a=b",
    "a header twice": b"X-Name: a\r\nX-Name: b",
    "bytes that are no text": b"X-Name: \xff\xfe",
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_response_headers_are_returned_except_misleading_ones(head: bytes) -> None:
    async def read() -> None:
        pieces = [WHOLE[0].replace(b"Connection: close", head + b"\r\nConnection: close")]
        async with open_client(run_raw(pieces)) as (client, _):
            answer, _ = await request_reply(client)
            assert answer.status == 200
            names = [(name.lower(), value) for name, value in answer.raw_headers]
            given = [value for name, value in names if name == b"x-name"]
            assert given == [line.split(b": ")[1] for line in head.split(b"\r\n")
                             if line.startswith(b"X-Name")]  # fmt: skip
            assert "set-cookie" not in answer.headers
            assert answer.headers["brim-tokens"] != "5"

    run(read())
