"""Sessions and clients under unusual behaviour of servers, callers and event loops."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import brim
from brim.errors import ConnectionFailedError
from brim.fitting.policies import PolicyName
from brim.providers.sync import Portal
from brim.session.session import get_driver
from brim.storage.calibration_store import CalibrationStore
from brim.wire.formats import FormatName
from tests.support.providers.scripted import Handler, run, run_scripted

WORDS = "The harbour lay quiet before the storm, and the pilots argued about the tide tables. "


@pytest.fixture
def calibrations(tmp_path: Path) -> CalibrationStore:
    return CalibrationStore(tmp_path / "calibration.sqlite3")


def add_turns(session: brim.Session, turns: int) -> None:
    for number in range(turns):
        session.user(f"{number}: {WORDS * 3}")
        session.assistant(f"Noted {number}.")


def size(body: dict[str, Any]) -> int:
    return len(json.dumps(body["messages"])) // 4


def make_reply(tokens: int, text: str = "Yes.") -> web.Response:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": tokens, "completion_tokens": 1}
    return web.json_response({"choices": [choice], "usage": usage})


def model_server(chat: Handler, window: int | None = 2_000) -> Handler:
    """Run a server with one model whose requests `chat` answers; it does not count."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m", "max_model_len": window}]})
        if request.path.endswith(("/completions", "/messages", "/responses")):
            return await chat(request)
        return web.json_response({"error": "not found"}, status=404)

    return answer


def events(*given: Any) -> Handler:
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in given)

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(text=text, content_type="text/event-stream")

    return answer


async def read_stream(
    handler: Handler, calibrations: CalibrationStore, chat: brim.Session
) -> list[str]:
    async with (
        run_scripted(model_server(handler)) as server,
        brim.AsyncClient(server.url, calibration_store=calibrations, retries=0) as client,
    ):
        return [text async for text in (await client.stream(chat)).texts()]


# What is no answer


@pytest.mark.parametrize(
    "nonsense",
    [
        ({"error": {"message": "overloaded"}},),
        ({"type": "error", "error": {"message": "overloaded"}},),
        ({},),
        ({"choices": None},),
        ({"choices": 5},),
        ({"choices": []},),
        ({"choices": [{}]},),
    ],
    ids=str,
)
def test_a_stream_that_holds_no_answer_is_an_error_and_no_turn(
    nonsense: Sequence[Any], calibrations: CalibrationStore
) -> None:
    chat = brim.Session("m")
    chat.user("Hello.")
    with pytest.raises(brim.BrimError):
        run(read_stream(events(*nonsense), calibrations, chat))
    assert len(chat) == 1
    assert chat.ledger.total.calls == 0


@pytest.mark.parametrize(("arguments", "is_kept"), [('{"path": "a', False), ('{"path": 1}', True)])
def test_a_call_whose_stream_just_ends_is_kept_if_it_can_be_read(
    arguments: str, is_kept: bool, calibrations: CalibrationStore
) -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "read", "arguments": arguments}}
    chat = brim.Session("m")
    chat.user("Read it.")
    run(read_stream(events({"choices": [{"delta": {"tool_calls": [call]}}]}), calibrations, chat))
    assert bool(chat.history[-1].get("tool_calls")) is is_kept


def test_a_page_that_repeats_the_key_does_not_carry_it_into_the_error(
    calibrations: CalibrationStore,
) -> None:
    async def page(_: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>not for sk-secret-123</html>", content_type="text/html")

    async def scenario() -> None:
        async with (
            run_scripted(page) as server,
            brim.AsyncClient(
                server.url, key="sk-secret-123", calibration_store=calibrations
            ) as client,
        ):
            chat = brim.Session("gpt-4o")
            chat.user("Hello.")
            with pytest.raises(brim.ProviderError) as caught:
                await client.send(chat)
            assert "sk-secret" not in f"{caught.value} {caught.value.body}"

    run(scenario())


# Errors that a caller can make


@pytest.mark.parametrize(
    "options",
    [
        {"messages": []},
        {"model": "other"},
        {"tools": []},
        {"stream": True},
        {"system": 7},
        {"temperature": object()},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_that_cannot_be_sent_are_rejected(
    options: dict[str, Any], calibrations: CalibrationStore
) -> None:
    async def never(_: web.Request) -> web.StreamResponse:
        raise AssertionError("nothing should be sent")

    async def scenario() -> None:
        async with (
            run_scripted(model_server(never)) as server,
            brim.AsyncClient(server.url, calibration_store=calibrations) as client,
        ):
            chat = brim.Session("m")
            chat.user("Hello.")
            with pytest.raises(brim.InputError):
                await client.send(chat, **options)

    run(scenario())


def test_an_unknown_window_is_an_error_with_the_reason(calibrations: CalibrationStore) -> None:
    async def no_entry(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no such key"}}, status=401)

    async def scenario() -> None:
        chat = brim.Session("somebodys-model")
        chat.user("Hello.")
        async with (
            run_scripted(no_entry) as server,
            brim.AsyncClient(
                server.url, key="sk-wrong-1", calibration_store=calibrations
            ) as client,
        ):
            with pytest.raises(brim.ProviderError, match="rejected the API key"):
                await client.send(chat)
        async with brim.AsyncClient("http://127.0.0.1:9", calibration_store=calibrations) as client:
            with pytest.raises(brim.ProviderError, match="cannot be reached"):
                await client.send(chat)

    run(scenario())


def test_https_to_a_server_without_it_is_explained(calibrations: CalibrationStore) -> None:
    async def scenario() -> None:
        async with run_scripted(events()) as server:
            address = server.url.replace("http:", "https:")
            async with brim.AsyncClient(address, calibration_store=calibrations) as client:
                with pytest.raises(ConnectionFailedError, match="does not support https"):
                    await client.models()

    run(scenario())


# What is learned


@pytest.mark.parametrize("odd", [10**9, 5_000, 1_900, 1])
def test_one_odd_report_does_not_stay(odd: int, calibrations: CalibrationStore) -> None:
    reports = iter([None, odd])

    async def chat(request: web.Request) -> web.StreamResponse:
        return make_reply(next(reports, None) or size(await request.json()))

    async def scenario() -> None:
        async with (
            run_scripted(model_server(chat)) as server,
            brim.AsyncClient(server.url, calibration_store=calibrations) as client,
        ):
            session = brim.Session("m", reply=100)
            for number in range(8):
                session.user(f"{number}: {WORDS * 8}")
                await client.send(session)
            assert 1.0 < get_driver(session).profile.calibration.ratio < 1.5

    run(scenario())


def test_an_impossible_limit_in_a_context_length_error_is_not_recorded(
    calibrations: CalibrationStore,
) -> None:
    error = {"message": "maximum context length is 1 tokens", "code": "context_length_exceeded"}
    rejections = iter([web.json_response({"error": error}, status=400)])

    async def chat(request: web.Request) -> web.StreamResponse:
        return next(rejections, None) or make_reply(size(await request.json()))

    async def scenario() -> None:
        async with (
            run_scripted(model_server(chat)) as server,
            brim.AsyncClient(server.url, calibration_store=calibrations) as client,
        ):
            session = brim.Session("m", reply=100)
            add_turns(session, 12)
            session.user("Go on.")
            await client.send(session)
            assert session.budget.window == 2_000
            first, second = (
                request.body for request in server.requests if request.path.endswith("ions")
            )
            assert size(second) < size(first)

    run(scenario())


@pytest.mark.parametrize("policy", ["steady", "thrift", "rolling", "sliding"])
def test_a_context_length_error_without_numbers_holds_for_the_session(
    policy: PolicyName, calibrations: CalibrationStore
) -> None:
    async def chat(request: web.Request) -> web.StreamResponse:
        tokens = size(await request.json())
        if tokens <= 1_500:
            return make_reply(tokens)
        error = {"message": "Your input exceeds the context window of this model."}
        return web.json_response({"error": error}, status=400)

    async def scenario() -> None:
        async with (
            run_scripted(model_server(chat, window=4_000)) as server,
            brim.AsyncClient(server.url, calibration_store=calibrations) as client,
        ):
            session = brim.Session("m", reply=50, policy=policy)
            for number in range(60):
                session.user(f"{number}: {WORDS * 3}")
                await client.send(session)
            assert 1 <= client.context_length_errors <= 3
            known = calibrations.load(server.url, "m")
            assert known is not None
            assert known["window"] is None

    run(scenario())


def test_a_limit_that_one_session_recorded_is_not_lost_by_another(
    calibrations: CalibrationStore,
) -> None:
    async def chat(request: web.Request) -> web.StreamResponse:
        tokens = size(await request.json())
        if tokens <= 1_000:
            return make_reply(tokens)
        error = {"message": f"prompt is too long: {tokens} tokens > 1000 maximum"}
        return web.json_response({"error": error}, status=400)

    async def scenario() -> None:
        async with (
            run_scripted(model_server(chat, window=4_000)) as server,
            brim.AsyncClient(server.url, calibration_store=calibrations) as client,
        ):
            short, long = (brim.Session("m", reply=100) for _ in range(2))
            short.user(WORDS * 12)
            await client.send(short)
            add_turns(long, 30)
            long.user("Go on.")
            await client.send(long)
            short.user(WORDS * 12)
            await client.send(short)
            assert short.budget.window == 1_000
            known = calibrations.load(server.url, "m")
            assert known is not None
            assert known["window"] == 1_000

    run(scenario())


@pytest.mark.parametrize("reported", [2_050, 4_059], ids=["halved", "oldest left out"])
def test_a_silent_truncation_is_reported_once_and_not_used_for_calibration(
    reported: int, calibrations: CalibrationStore
) -> None:
    async def ollama(request: web.Request) -> web.StreamResponse:
        match request.path:
            case "/v1/models":
                return web.json_response({"data": [{"id": "m", "owned_by": "library"}]})
            case "/api/ps":
                return web.json_response({"models": [{"model": "m", "context_length": 4_096}]})
            case "/v1/chat/completions":
                tokens = size(await request.json())
                return make_reply(tokens if tokens <= 4_096 else reported)
            case _:
                return web.json_response({}, status=404)

    async def scenario() -> None:
        async with (
            run_scripted(ollama) as server,
            brim.AsyncClient(server.url, calibration_store=calibrations) as client,
        ):
            chat = brim.Session("m", window=16_000, reply=100)
            for number in range(16):
                chat.user(f"{number}: {WORDS * 20}")
                await client.send(chat)
            assert len(chat.warnings) == 1
            assert f"{reported:,}" in chat.warnings[0]
            assert min(get_driver(chat).profile.calibration.ratios) > 1.2

    run(scenario())


# Summaries


@pytest.mark.parametrize("format", ["openai", "anthropic", "responses"])
def test_a_summary_is_requested_in_the_format_of_the_server(
    format: FormatName, calibrations: CalibrationStore
) -> None:
    summary = "The pilots still argue."
    text = {"type": "text", "text": summary}
    item = {"type": "message", "content": [{"type": "output_text", "text": summary}]}
    answers: dict[str, Any] = {
        "openai": {"choices": [{"message": {"role": "assistant", "content": summary}}]},
        "anthropic": {"type": "message", "role": "assistant", "content": [text]},
        "responses": {"object": "response", "status": "completed", "output": [item]},
    }
    needed = {
        "openai": {"messages"},
        "anthropic": {"messages", "max_tokens", "system"},
        "responses": {"input", "instructions"},
    }

    async def chat(_: web.Request) -> web.StreamResponse:
        return web.json_response(answers[format])

    async def scenario() -> None:
        async with (
            run_scripted(model_server(chat)) as server,
            brim.AsyncClient(server.url, format=format, calibration_store=calibrations) as client,
        ):
            session = brim.Session("m", reply=100)
            session.summarize = client.summarizer(session)
            add_turns(session, 30)
            session.user("Go on.")
            await client.send(session)
            assert session.summary == summary
            bodies = [
                request.body for request in server.requests if request.path in server.paths[-1:]
            ]
            assert needed[format] <= set(bodies[0])

    run(scenario())


@pytest.mark.parametrize("way", ["send", "request", "compact"])
def test_the_summarizer_of_a_synchronous_client_works_with_and_without_the_client(
    way: str, calibrations: CalibrationStore
) -> None:
    async def chat(request: web.Request) -> web.StreamResponse:
        messages = (await request.json())["messages"]
        is_summary = messages[0]["content"].startswith("Summarize")
        return make_reply(900, "The pilots still argue." if is_summary else "Yes.")

    def converse(url: str) -> str | None:
        with brim.Client(url, calibration_store=calibrations) as client:
            session = brim.Session("m", window=1_000, reply=100)
            session.summarize = client.summarizer(session)
            add_turns(session, 30)
            session.user("Go on.")
            if way == "send":
                client.send(session)
            elif way == "request":
                session.request()
            else:
                session.compact()
            return session.summary

    async def scenario() -> str | None:
        async with run_scripted(model_server(chat)) as server:
            return await asyncio.to_thread(converse, server.url)

    assert run(scenario()) == "The pilots still argue."


def test_an_interrupted_summary_is_requested_again(calibrations: CalibrationStore) -> None:
    turn_counts: list[int] = []
    sending: asyncio.Task[brim.Reply]

    async def summarize(_: str | None, evicted: Sequence[Any] | None) -> str:
        turn_counts.append(len(evicted or ()))
        if len(turn_counts) == 1:
            sending.cancel()
            await asyncio.sleep(30)
        return "The pilots still argue."

    async def chat(_: web.Request) -> web.StreamResponse:
        return make_reply(900)

    async def scenario() -> None:
        nonlocal sending
        async with (
            run_scripted(model_server(chat)) as server,
            brim.AsyncClient(server.url, calibration_store=calibrations) as client,
        ):
            session = brim.Session("m", reply=100, summarize=summarize)
            add_turns(session, 30)
            session.user("Go on.")
            sending = asyncio.create_task(client.send(session))
            with pytest.raises(asyncio.CancelledError):
                await sending
            await client.send(session)
            assert turn_counts[0] == turn_counts[1]
            assert session.summary == "The pilots still argue."

    run(scenario())


# Loops, threads and processes


class Threaded:
    """A server in a thread, for blocking clients."""

    def __init__(self, *, keeps: bool = True) -> None:
        self._keeps = keeps
        """Whether connections stay open after a response."""
        self.portal = Portal()
        self._serving = run_scripted(self._answer)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        response = await model_server(self._chat)(request)
        if not self._keeps:
            response.force_close()
        return response

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return make_reply(size(await request.json()))

    def __enter__(self) -> str:
        return self.portal.run(self._serving.__aenter__()).url

    def __exit__(self, *_: object) -> None:
        self.portal.run(self._serving.__aexit__(None, None, None))
        self.portal.close()


def test_a_client_continues_in_another_loop_when_its_own_has_ended(
    calibrations: CalibrationStore,
) -> None:
    with Threaded(keeps=False) as url:
        client = brim.AsyncClient(url, calibration_store=calibrations)
        chat = brim.Session("m")
        for words in ("One.", "Two."):
            chat.user(words)
            assert asyncio.run(client.send(chat)).text == "Yes."
        asyncio.run(client.close())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_parent_and_child_both_go_on_after_a_fork(calibrations: CalibrationStore) -> None:
    with Threaded() as url, brim.Client(url, calibration_store=calibrations) as client:
        chat = brim.Session("m")
        chat.user("One.")
        client.send(chat)
        chat.user("Two.")
        child = os.fork()
        if not child:
            is_answered = False
            try:
                is_answered = client.send(chat).text == "Yes."
            finally:
                os._exit(0 if is_answered else 1)
        until = time.monotonic() + 20
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < until:
            time.sleep(0.05)
        assert ended == (child, 0)
        assert client.send(chat).text == "Yes."


def test_a_recorded_window_is_void_if_the_server_changes(tmp_path: Path) -> None:
    limits = {"window": 512}

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m", "max_model_len": limits["window"]}]})
        if not request.path.endswith("/chat/completions"):
            return web.json_response({}, status=404)
        body = await request.json()
        tokens = sum(len(message["content"]) // 3 for message in body["messages"])
        if tokens > limits["window"]:
            text = (
                f"maximum context length is {limits['window']} tokens, but you sent {tokens} tokens"
            )
            return web.json_response({"error": {"message": text}}, status=400)
        return make_reply(tokens)

    async def window_of(chat: brim.Session, url: str) -> int:
        async with brim.AsyncClient(
            url, calibration_store=CalibrationStore(tmp_path / "l"), retries=0
        ) as client:
            chat.user("Go on.")
            await client.send(chat)
            return chat.budget.window

    async def scenario() -> None:
        async with run_scripted(answer) as server:
            chat = brim.Session("m", window=4_096, reply=1)
            add_turns(chat, 30)
            assert await window_of(chat, server.url) == 512
            assert await window_of(brim.Session("m", window=4_096, reply=1), server.url) == 512
            limits["window"] = 8_192
            assert await window_of(brim.Session("m", window=4_096, reply=1), server.url) == 4_096

    run(scenario())


def test_a_session_has_one_call_at_a_time(calibrations: CalibrationStore) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.05)
        if request.path.endswith("/chat/completions"):
            return make_reply(9)
        return web.json_response({}, status=404)

    async def scenario() -> None:
        async with (
            run_scripted(answer) as server,
            brim.AsyncClient(server.url, calibration_store=calibrations) as client,
        ):
            chat = brim.Session("gpt-4o")
            chat.user("Hello.")
            sends = (client.send(chat), client.send(chat))
            first, second = await asyncio.gather(*sends, return_exceptions=True)
            assert isinstance(first, brim.Reply)
            assert isinstance(second, brim.InputError)
            chat.user("And?")
            await client.send(chat)
            assert chat.ledger.total.calls == 2

    run(scenario())


def test_invalid_stream_options_are_rejected(calibrations: CalibrationStore) -> None:
    async def scenario() -> None:
        async with brim.AsyncClient("http://127.0.0.1:9", calibration_store=calibrations) as client:
            chat = brim.Session("gpt-4o")
            chat.user("Hello.")
            with pytest.raises(brim.InputError, match="stream_options"):
                await client.stream(chat, stream_options=5)

    run(scenario())


def test_a_summarizer_that_hangs_does_not_hold_up_the_end() -> None:
    code = """
import time, brim
from brim.providers.summarizers import with_timeout
summarize = with_timeout(lambda *_: time.sleep(60), 0.2)
chat = brim.Session("gpt-4o", window=400, reply=50, summarize=summarize)
for number in range(20):
    chat.user(f"Question {number}: " + "some words " * 10)
    chat.assistant("An answer.")
chat.user("Go on.")
print(chat.request().plan.is_trimmed, chat.summary)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50
    )
    assert done.stdout.split() == ["True", "None"]


def test_a_client_does_not_send_requests_in_geminis_format() -> None:
    with pytest.raises(brim.InputError, match=r"googleapis\.com/v1beta/openai"):
        brim.Client("https://generativelanguage.googleapis.com/v1beta", format="gemini")
