"""A session receives the streaming helper of the OpenAI client."""

from __future__ import annotations

import openai
import pytest

import brim
from brim.testing import ScriptedServer

pytestmark = pytest.mark.process


@pytest.mark.parametrize("entered", [False, True])
def test_a_session_receives_the_streaming_helper(entered: bool) -> None:
    session = brim.Session("gpt-4o")
    session.user("hello")
    with (
        ScriptedServer("Hello, you.") as server,
        openai.OpenAI(base_url=server.url, api_key="key") as client,
    ):
        manager = client.chat.completions.stream(**session.request())
        if entered:
            with manager as stream:
                texts = "".join(session.receive(stream).texts())
        else:
            texts = "".join(session.receive(manager).texts())  # type: ignore[call-overload]
    assert texts == "Hello, you."
    assert session.history[-1]["content"] == "Hello, you."


@pytest.mark.anyio
async def test_a_session_receives_the_async_streaming_helper() -> None:
    session = brim.Session("gpt-4o")
    session.user("hello")
    with ScriptedServer("Hello, you.") as server:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="key") as client:
            manager = client.chat.completions.stream(**session.request())
            stream = session.receive(manager)  # type: ignore[call-overload]
            assert "".join([text async for text in stream.texts()]) == "Hello, you."
    assert session.history[-1]["content"] == "Hello, you."


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
