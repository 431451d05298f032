"""Counting, windows, errors and streams with a real llama.cpp server."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import aclosing
from typing import Any

import pytest

from brim.errors import AuthenticationError, ContextLengthError, ProviderError
from brim.fitting.plan import TextCount
from brim.providers.endpoint import Endpoint
from brim.providers.local import LocalServer
from brim.providers.server_counter import CountStates, ServerCounter
from brim.providers.server_info import ServerInfo
from brim.providers.sync import Portal
from brim.providers.transport import Transport
from brim.wire.formats import FormatName
from tests.support.providers.scripted import run

FORMATS: list[FormatName] = ["openai", "anthropic", "responses"]


def body_of(words: str, format: FormatName = "openai", **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "any", "temperature": 0} | more
    if format == "responses":
        return body | {"input": words, "max_output_tokens": 8}
    return body | {"messages": [{"role": "user", "content": words}], "max_tokens": 8}


def connect(llama: LocalServer, format: FormatName = "openai", path: str = "/v1/") -> Transport:
    return Transport(Endpoint(llama.url.removesuffix("/v1") + path, format, llama.key))


def read_input_tokens(answer: dict[str, Any]) -> int:
    usage = answer["usage"]
    prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
    return int(prompt) + int(usage.get("cache_read_input_tokens", 0))


@pytest.mark.parametrize("format", FORMATS)
def test_the_count_equals_the_reported_usage(llama: LocalServer, format: FormatName) -> None:
    async def work() -> None:
        async with connect(llama, format) as connection:
            counter = ServerCounter(connection, states=CountStates())
            body = body_of("Name a colour, " * 20, format)
            counted = await counter.count(body)
            answer = await connection.post(connection.endpoint.chat_path, body)
            assert counted == read_input_tokens(answer)
            assert counter.support("any").state == "yes"

    run(work())


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_text_is_counted_for_every_spelling_of_the_address(llama: LocalServer, path: str) -> None:
    async def work() -> None:
        async with connect(llama, path=path) as connection:
            counter = ServerCounter(connection, states=CountStates())
            assert await counter.count_text("any", "one two three") == 3
            assert counter.support("any", text=True).method == "llama.cpp"

    run(work())


def test_a_request_counted_by_its_texts_is_within_its_margin(llama: LocalServer) -> None:
    async def work() -> None:
        async with connect(llama) as connection:
            counter = ServerCounter(connection, states=CountStates())
            turns = [{"role": "user", "content": "Où est le thé ?\n" * 9}]
            turns += [{"role": "assistant", "content": "In the cupboard, I think."}] * 2
            body = {"model": "any", "messages": [*turns, {"role": "user", "content": "Thanks."}]}
            actual = await counter.count(body)
            counter._states.find(connection.endpoint, "any", "request").proven = None
            counter._states.find(connection.endpoint, "any", "request").untried.clear()
            counter._counts.clear()
            counted = await counter.count(body)
            assert isinstance(counted, TextCount)
            assert actual is not None
            assert counted <= actual <= counted + counted.margin
            state = counter._states.find(connection.endpoint, "any", "text")
            assert not state.rejects_batches

    run(work())


def test_a_request_larger_than_the_window_is_counted(llama: LocalServer) -> None:
    async def work() -> None:
        async with connect(llama) as connection:
            counter = ServerCounter(connection, states=CountStates())
            counted = await counter.count(body_of("word " * 3 * llama.window))
            assert counted is not None
            assert counted > 3 * llama.window

    run(work())


def test_the_window_and_the_kind_are_reported(llama: LocalServer) -> None:
    async def work() -> None:
        async with connect(llama) as connection:
            server = ServerInfo(connection)
            window = await server.window_of("any")
            assert (window.tokens, window.kind) == (llama.window, "llama.cpp")
            assert len(await server.models()) == 1

    run(work())


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("streamed", [True, False])
def test_a_request_over_the_window_raises_with_numbers(
    llama: LocalServer, format: FormatName, streamed: bool
) -> None:
    async def work() -> None:
        async with connect(llama, format) as connection:
            body = body_of("word " * llama.window, format, stream=streamed)
            path = connection.endpoint.chat_path
            events = connection.stream(path, body)
            with pytest.raises(ContextLengthError) as caught:
                await (anext(events) if streamed else connection.post(path, body))
            assert caught.value.overflow.limit == llama.window
            assert (caught.value.overflow.sent or 0) > llama.window

    run(work())


@pytest.mark.parametrize("format", FORMATS)
def test_a_stream_ends_with_its_usage(llama: LocalServer, format: FormatName) -> None:
    async def work() -> None:
        async with connect(llama, format) as connection:
            body = body_of("Say a word.", format, stream=True)
            if format == "openai":
                body["stream_options"] = {"include_usage": True}
            path = connection.endpoint.chat_path
            events = [event async for event in connection.stream(path, body)]
            assert len(events) > 4
            assert "usage" in str(events[-2:])

    run(work())


def test_a_server_stops_when_its_client_disconnects(llama: LocalServer) -> None:
    body = body_of("Count to a thousand.", stream=True) | {
        "max_tokens": 1_500,
        "ignore_eos": True,
    }

    async def busy(connection: Transport) -> bool:
        slots = await connection.get("/slots")
        return any(slot["is_processing"] for slot in slots)

    async def work() -> None:
        async with connect(llama) as connection:
            async with aclosing(connection.stream("/v1/chat/completions", body)) as events:
                await anext(events)
                assert await busy(connection)
            until = time.monotonic() + 5
            while await busy(connection) and time.monotonic() < until:
                await asyncio.sleep(0.05)
            assert not await busy(connection)

    run(work())


def test_a_rejected_role_order_does_not_disable_counting(llama: LocalServer) -> None:
    async def work() -> None:
        async with connect(llama) as connection:
            counter = ServerCounter(connection, states=CountStates())
            odd = {"model": "any", "messages": [{"role": "user", "content": {"what": 1}}]}
            assert await counter.count(odd) is None
            assert counter.support("any").state == "yes"
            assert await counter.count(body_of("hello")) is not None

    run(work())


def test_a_wrong_key_raises_an_authentication_error(llama: LocalServer) -> None:
    async def work() -> None:
        endpoint = Endpoint(llama.url, key="wrong-key")
        async with Transport(endpoint) as connection:
            with pytest.raises(AuthenticationError, match="rejected the API key") as caught:
                await connection.post(endpoint.chat_path, body_of("hello"))
            assert "wrong-key" not in str(caught.value)

    run(work())


def test_an_unknown_path_is_named(llama: LocalServer) -> None:
    async def work() -> None:
        async with connect(llama) as connection:
            with pytest.raises(ProviderError, match="does not support /v1/nothing"):
                await connection.post("/v1/nothing", {})

    run(work())


def test_the_synchronous_client_works(llama: LocalServer) -> None:
    with Portal() as portal:
        connection = connect(llama)
        path = connection.endpoint.chat_path
        answer = portal.run(connection.post(path, body_of("hello")))
        assert answer["choices"]
        events = portal.iterate(connection.stream(path, body_of("hello", stream=True)))
        assert len(list(events)) > 2
        portal.run(connection.close())


LEFT_OPEN = """
import os, signal, sys, threading, time
from brim.providers.endpoint import Endpoint
from brim.providers.sync import Portal
from brim.providers.transport import Transport

portal, connection = Portal(), Transport(Endpoint(sys.argv[1], key=os.environ["KEY"]))
body = {
    "model": "any", "stream": True, "ignore_eos": True, "max_tokens": 1_500,
    "messages": [{"role": "user", "content": "Count to a thousand."}],
}
events = portal.iterate(connection.stream("/v1/chat/completions", body))

def busy():
    slots = portal.run(connection.get("/slots"))
    return any(slot["is_processing"] for slot in slots)

next(events)
if sys.argv[2] == "ctrl-c":
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        for event in events:
            pass
    except KeyboardInterrupt:
        until = time.monotonic() + 5
        while busy() and time.monotonic() < until:
            time.sleep(0.05)
        print("busy" if busy() else "free")
else:
    print("left")
"""


@pytest.mark.parametrize(("way", "printed"), [("ctrl-c", "free"), ("leave", "left")])
def test_an_interrupted_response_leaves_nothing_running(
    llama: LocalServer, way: str, printed: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", LEFT_OPEN, llama.url, way],
        env=os.environ | {"KEY": llama.key},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.split(), done.stderr) == ([printed], "")
