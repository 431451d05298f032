"""The upstreams that go wrong are wrong in the way that they say, for clients that people have."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import openai
import pytest

from tests.support.gateway.upstream import (
    GZIPPED,
    HANGS_UP,
    NO_ANSWERS,
    STREAMS,
    TEXT,
    WHOLE,
    Pieces,
    drip,
    endless,
    run_raw,
    silent,
)
from tests.support.providers.scripted import run

HELLO: Any = [{"role": "user", "content": "Hello?"}]


def client_of(url: str, timeout: float = 20) -> openai.AsyncOpenAI:
    http = openai.DefaultAsyncHttpxClient(follow_redirects=False)
    settings: Any = {"api_key": "none", "max_retries": 0, "timeout": timeout, "http_client": http}
    return openai.AsyncOpenAI(base_url=url, **settings)


async def send(url: str, *, is_streamed: bool = False, timeout: float = 20) -> str:
    """What OpenAI's client reads there."""
    async with client_of(url, timeout) as client:
        ask: Any = client.chat.completions.create
        answer = await ask(model="m", messages=HELLO, stream=is_streamed)
        if not is_streamed:
            return str(answer.choices[0].message.content)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])


async def request_choices(url: str) -> Any:
    """The answer that stands there, or None."""
    async with client_of(url) as client:
        ask: Any = client.chat.completions.with_raw_response.create
        try:
            answer = await ask(model="m", messages=HELLO)
            return json.loads(answer.text)["choices"]
        except (openai.OpenAIError, ValueError, LookupError, TypeError):
            return None


@pytest.mark.parametrize("pieces", STREAMS.values(), ids=STREAMS)
def test_an_unusual_stream_is_parsed(pieces: Pieces) -> None:
    async def read() -> None:
        async with run_raw(pieces, pause=0) as upstream:
            assert await send(upstream.url, is_streamed=True) == TEXT

    run(read())


@pytest.mark.parametrize("pieces", [WHOLE, GZIPPED])
def test_a_complete_response_is_parsed(pieces: Pieces) -> None:
    async def read() -> None:
        async with run_raw(pieces) as upstream:
            assert await send(upstream.url) == TEXT
        async with drip(pieces, pause=0) as upstream:
            assert await send(upstream.url) == TEXT

    run(read())


@pytest.mark.parametrize("pieces", [*HANGS_UP.values(), *NO_ANSWERS.values()],
                         ids=[*HANGS_UP, *NO_ANSWERS])  # fmt: skip
def test_an_invalid_response_is_none(pieces: Pieces) -> None:
    async def read() -> None:
        async with run_raw(pieces) as upstream:
            assert await request_choices(upstream.url) is None
            assert len(upstream.heads) == 1

    run(read())


def test_a_server_that_never_responds_times_out() -> None:
    async def read() -> None:
        async with silent() as upstream:
            with pytest.raises(openai.APITimeoutError):
                await send(upstream.url, timeout=0.1)
            assert len(upstream.heads) == 1

    run(read())


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_endless_line_is_passed_on(is_streamed: bool) -> None:
    async def read() -> None:
        async with (
            endless(stream=is_streamed) as upstream,
            aiohttp.ClientSession() as session,
            session.post(upstream.url, json={}) as answer,
        ):
            assert b"\n" not in await answer.content.readexactly(2**22)

    run(read())
