"""Sessions sent by a client to the real server, and to scripted servers for errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import web

import brim
from brim.fitting.flow import CountMode
from brim.providers.local import LocalServer
from brim.session.ledger import SpendingLimits
from brim.session.session import get_driver
from brim.storage.calibration_store import CalibrationStore
from brim.testing import ScriptedServer
from brim.wire.formats import FormatName
from tests.support.fixtures import LlamaWith
from tests.support.providers.scripted import Scripted, run, run_scripted

WORDS = "The harbour lay quiet before the storm, and the pilots argued about the tide tables. "


@pytest.fixture
def calibrations(tmp_path: Path) -> CalibrationStore:
    return CalibrationStore(tmp_path / "calibration.sqlite3")


def add_turns(session: brim.Session, turns: int, size: int = 3) -> None:
    for number in range(turns):
        session.user(f"{number}: {WORDS * size}")
        session.assistant(f"Noted {number}.")


# The real server


@pytest.mark.parametrize("format", ["openai", "anthropic", "responses"])
def test_a_conversation_many_times_the_window_is_answered_in_every_format(
    format: FormatName, llama_with: LlamaWith, calibrations: CalibrationStore
) -> None:
    server = llama_with(window=512)
    options: dict[str, Any] = {"max_output_tokens" if format == "responses" else "max_tokens": 4}
    with brim.Client(
        server.url, key=server.key, format=format, calibration_store=calibrations
    ) as client:
        chat = brim.Session(system="Be brief.", reply=8)
        add_turns(chat, 30)
        for _ in range(3):
            chat.user("Go on.")
            reply = client.send(chat, temperature=0, **options)
            assert reply.usage is not None
            assert reply.usage.input + 8 <= 512
    entry = chat.log.entries[-1]
    assert entry.before > 3 * 512
    assert entry.trimmed
    assert get_driver(chat).profile.window_source == "the server"
    assert chat.ledger.totals[chat.model or "", "main"].calls == 3
    assert str(chat.ledger) == "$0.00"


@pytest.mark.parametrize("format", ["openai", "anthropic", "responses"])
def test_a_stream_passes_through_and_is_kept(
    format: FormatName, llama: LocalServer, calibrations: CalibrationStore
) -> None:
    options: dict[str, Any] = {"max_output_tokens" if format == "responses" else "max_tokens": 6}
    with brim.Client(
        llama.url, key=llama.key, format=format, calibration_store=calibrations
    ) as client:
        chat = brim.Session(reply=8)
        chat.user("Say something.")
        stream = client.stream(chat, temperature=0, **options)
        text = "".join(stream.texts())
    assert text
    assert stream.reply.text == text
    assert chat.history[-1]["content"] == text
    assert 1 <= chat.usage.output <= 6


def test_a_stream_that_is_closed_early_keeps_its_text_and_frees_the_server(
    llama: LocalServer, calibrations: CalibrationStore
) -> None:
    with brim.Client(llama.url, key=llama.key, calibration_store=calibrations) as client:
        chat = brim.Session(reply=600)
        chat.user("Tell a very long story.")
        stream = client.stream(chat, max_tokens=600)
        for number, _ in enumerate(stream.texts()):
            if number == 3:
                break
        stream.close()
        reply_text = chat.history[-1]["content"]
        assert reply_text
        assert chat.ledger.total.estimated
        chat.user("Stop.")
        assert client.send(chat, max_tokens=2).usage is not None


@pytest.mark.parametrize("ask", ["near", "always"])
def test_what_the_server_counts_is_what_it_reports(
    ask: CountMode, llama_with: LlamaWith, calibrations: CalibrationStore
) -> None:
    server = llama_with(window=512)
    with brim.Client(
        server.url, key=server.key, count=ask, calibration_store=calibrations
    ) as client:
        chat = brim.Session(reply=1)
        add_turns(chat, 12)
        chat.user("Go on. 継続してください。")
        request = client.request(chat)
        assert request.plan.server_tokens is not None
        reply = client.send(chat, max_tokens=1)
    assert reply.usage is not None
    assert reply.usage.input == request.plan.server_tokens == request.plan.size


def test_a_window_that_is_too_large_is_corrected_by_the_first_context_length_error(
    llama_with: LlamaWith, tmp_path: Path
) -> None:
    server = llama_with(window=512)
    with brim.Client(
        server.url, key=server.key, count="off", calibration_store=CalibrationStore(tmp_path / "l")
    ) as one:
        chat = brim.Session(window=4_096, reply=1)
        add_turns(chat, 20)
        chat.user("Go on.")
        assert one.send(chat, max_tokens=1).usage is not None
        assert chat.budget.window == 512
        assert get_driver(chat).profile.window_source == "a context-length error"
    with brim.Client(
        server.url, key=server.key, calibration_store=CalibrationStore(tmp_path / "l")
    ) as other:
        later = brim.Session(chat.model, window=4_096, reply=1)
        other.prepare(later)
        assert later.budget.window == 512


def output_tokens(reply: brim.Reply) -> int:
    assert reply.usage is not None
    return reply.usage.output


def test_the_request_goes_through_the_clients_of_openai_and_anthropic(llama: LocalServer) -> None:
    chat = brim.Session(llama.model, system="Be brief.", window=llama.window, reply=8)
    chat.user("Hello.")
    with openai.OpenAI(base_url=llama.url, api_key=llama.key) as client:
        answer = client.chat.completions.create(**chat.request(max_tokens=3))
        assert 1 <= output_tokens(chat.receive(answer)) <= 3
        chat.user("And?")
        pieces = client.chat.completions.create(
            **chat.request(max_tokens=3, stream_options={"include_usage": True}), stream=True
        )
        assert list(chat.receive(pieces))
        chat.user("And now?")
        given = client.responses.create(**chat.request(format="responses", max_output_tokens=3))
        assert 1 <= output_tokens(chat.receive(given)) <= 3
    chat.user("Well?")
    address = llama.url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=address, api_key=llama.key) as other:
        message = other.messages.create(**chat.request(format="anthropic"))
        assert 1 <= output_tokens(chat.receive(message)) <= 8
    assert chat.ledger.total.calls == 4
    assert [turn["role"] for turn in chat.history] == ["user", "assistant"] * 4


def test_a_model_of_the_server_writes_the_summaries(
    llama_with: LlamaWith, calibrations: CalibrationStore
) -> None:
    server = llama_with(window=512)
    with brim.Client(server.url, key=server.key, calibration_store=calibrations) as client:
        chat = brim.Session(server.model, reply=8)
        chat.summarize = client.summarizer(chat, max_tokens=24)
        add_turns(chat, 9)
        chat.user("Go on.")
        client.send(chat, max_tokens=2)
    assert chat.ledger.totals[server.model, "summary"].calls >= 1
    assert chat.ledger.totals[server.model, "main"].calls == 1
    assert chat.log.entries[-1].after <= 512 - 8


# Scripted servers


class Limited:
    """A server that counts four characters per token, with context-length errors of its own."""

    def __init__(self, limit: int, refusal: Callable[[int, int], web.Response]) -> None:
        self.limit = limit
        self.refusal = refusal
        self.rejected: list[int] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET" or not request.path.endswith("/chat/completions"):
            return web.json_response({"error": {"message": "not found"}}, status=404)
        body = await request.json()
        tokens = sum(len(message["content"] or "") // 4 + 5 for message in body["messages"])
        if tokens > self.limit:
            self.rejected.append(tokens)
            return self.refusal(self.limit, tokens)
        return web.json_response(make_reply(tokens))


def make_reply(tokens: int, text: str = "Yes.") -> dict[str, Any]:
    return {
        "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": tokens, "completion_tokens": 2},
    }


def in_openais_words(limit: int, sent: int) -> web.Response:
    message = f"This model's maximum context length is {limit} tokens. However, your messages "
    message += f"resulted in {sent} tokens."
    error = {"message": message, "type": "invalid_request_error", "code": "context_length_exceeded"}
    return web.json_response({"error": error}, status=400)


def without_numbers(_: int, __: int) -> web.Response:
    error = {"message": "Your input exceeds the context window of this model.", "code": None}
    return web.json_response({"error": error}, status=400)


def as_a_rate(limit: int, sent: int) -> web.Response:
    message = (
        f"Request too large for gpt-x on tokens per min (TPM): Limit {limit}, Requested {sent}."
    )
    error = {"message": message, "type": "tokens", "code": "rate_limit_exceeded"}
    return web.json_response({"error": error}, status=429)


def in_the_stream(limit: int, sent: int) -> web.Response:
    error = {"message": f"prompt is too long: {sent} tokens > {limit} maximum", "code": 400}
    text = f"data: {json.dumps({'error': error})}\n\n"
    return web.Response(text=text, content_type="text/event-stream")


async def send_once(
    server: Scripted, calibrations: CalibrationStore, chat: brim.Session, **settings: Any
) -> brim.Reply:
    async with brim.AsyncClient(
        server.url, calibration_store=calibrations, retries=0, **settings
    ) as client:
        return await client.send(chat)


@pytest.mark.parametrize(
    "refusal",
    [in_openais_words, without_numbers, as_a_rate, in_the_stream],
    ids=lambda f: f.__name__,
)
def test_a_request_is_sent_again_after_a_context_length_error(
    refusal: Callable[[int, int], web.Response], calibrations: CalibrationStore
) -> None:
    limited = Limited(900, refusal)

    async def scenario() -> None:
        async with run_scripted(limited) as server:
            chat = brim.Session("gpt-4o", window=1_200, reply=100)
            add_turns(chat, 14, size=4)
            chat.user("Go on.")
            if refusal is in_the_stream:
                async with brim.AsyncClient(server.url, calibration_store=calibrations) as client:
                    stream = await client.stream(chat)
                    assert [event async for event in stream]
            else:
                assert (await send_once(server, calibrations, chat)).text == "Yes."
            assert len(limited.rejected) == 1
            assert chat.history[-1]["content"] == "Yes."
            chat.user("And on.")
            await send_once(server, calibrations, chat)
            assert len(limited.rejected) == 1

    run(scenario())


def test_a_second_context_length_error_has_advice_and_the_next_request_is_smaller(
    calibrations: CalibrationStore,
) -> None:
    limited = Limited(10, without_numbers)

    async def scenario() -> None:
        async with run_scripted(limited) as server:
            chat = brim.Session("gpt-4o", window=1_200, reply=100)
            add_turns(chat, 14, size=4)
            chat.user("Go on.")
            for _ in range(3):
                with pytest.raises(brim.ContextLengthError, match="set the session's window"):
                    await send_once(server, calibrations, chat)
            assert limited.rejected == sorted(limited.rejected, reverse=True)
            assert len(set(limited.rejected)) == 6
            assert chat.history[-1] == {"role": "user", "content": "Go on."}

    run(scenario())


def test_a_failed_call_loses_nothing_and_the_next_one_succeeds(
    calibrations: CalibrationStore,
) -> None:
    answers = [web.json_response({"error": "boom"}, status=500), web.json_response(make_reply(9))]

    async def answer(request: web.Request) -> web.StreamResponse:
        if not request.path.endswith("/chat/completions"):
            return web.json_response({}, status=404)
        return answers.pop(0)

    async def scenario() -> None:
        async with run_scripted(answer) as server:
            chat = brim.Session("gpt-4o")
            chat.user("One.")
            with pytest.raises(brim.ProviderError):
                await send_once(server, calibrations, chat)
            chat.user("Two.")
            await send_once(server, calibrations, chat)
            assert [turn["content"] for turn in chat.history] == ["One.", "Two.", "Yes."]
            assert chat.ledger.total.calls == 1

    run(scenario())


async def count_texts_only(request: web.Request) -> web.StreamResponse:
    """A server with a token per two characters, 7 for each message and 20 for each request."""
    body = await request.json() if request.method == "POST" else {}
    if request.path == "/tokenize" and "content" in body:
        given, tokens = body["content"], list[int]()
        for part in given if isinstance(given, list) else [given]:
            tokens += [-1] if part == -1 else [1] * -(-len(part) // 2)
        return web.json_response({"tokens": tokens})
    if request.path.endswith("/chat/completions"):
        texts = [turn["content"] for turn in body["messages"]]
        return web.json_response(make_reply(20 + sum(7 - (-len(text) // 2) for text in texts)))
    return web.json_response({}, status=404)


@pytest.mark.parametrize("turns", [1, 30])
def test_a_server_that_only_counts_texts_is_used_for_requests(
    calibrations: CalibrationStore, turns: int
) -> None:
    async def scenario() -> None:
        async with run_scripted(count_texts_only) as server:
            client = brim.AsyncClient(server.url, count="always", calibration_store=calibrations)
            async with client:
                chat = brim.Session("somebodys-model", window=2_000, reply=100)
                add_turns(chat, turns)
                chat.user("Go on.")
                plan = (await client.request(chat)).plan
                reply = await client.send(chat)
            assert reply.usage is not None
            assert plan.size <= reply.usage.input <= plan.size + plan.server_margin <= 1_900
            assert reply.usage.input - plan.size <= 20 + 3 * len(plan.sent_indices)

    run(scenario())


def test_a_client_counts_texts_and_messages(calibrations: CalibrationStore) -> None:
    async def scenario() -> None:
        async with run_scripted(count_texts_only) as server:
            async with brim.AsyncClient(server.url, calibration_store=calibrations) as client:
                text = await client.count("four", model="m")
                assert (text, text.exact) == (2, True)
                turns = await client.count([{"role": "user", "content": "four"}], model="m")
                assert (turns, turns.exact) == (2 + 4 + 3, False)
            off = brim.AsyncClient(server.url, count="off", calibration_store=calibrations)
            before = len(server.requests)
            async with off:
                assert await off.count("four words of text") == brim.count("four words of text")
            assert len(server.requests) == before

    run(scenario())


def test_max_tokens_is_lowered_only_after_the_server_has_counted(
    calibrations: CalibrationStore,
) -> None:
    with (
        ScriptedServer("Yes.", window=1_000, like="llama.cpp") as server,
        brim.Client(server.url, calibration_store=calibrations) as client,
    ):
        chat = brim.Session("somebodys-model", reply=100)
        chat.user("word " * 550)
        request = client.request(chat, max_tokens=300)
        assert request["max_tokens"] == 300
        assert request.plan.server_tokens == server.count_requests[-1].tokens
        assert client.request(chat, max_tokens=500)["max_tokens"] == 1_000 - request.plan.size


def test_a_lone_surrogate_is_replaced_when_it_is_sent(calibrations: CalibrationStore) -> None:
    with (
        ScriptedServer("Yes.") as server,
        brim.Client(server.url, calibration_store=calibrations) as client,
    ):
        chat = brim.Session("gpt-4o")
        chat.user("cut \ud83d")
        client.send(chat)
        assert server.requests[-1].body["messages"][-1]["content"] == "cut \ufffd"
        assert b"\\ud83d" not in server.requests[-1].raw


def test_a_server_that_truncates_silently_is_detected(calibrations: CalibrationStore) -> None:
    listing = {"data": [{"id": "llama3", "owned_by": "library"}]}
    loaded = {"models": [{"name": "llama3", "model": "llama3", "context_length": 2_048}]}

    async def answer(request: web.Request) -> web.StreamResponse:
        found: Mapping[str, Any] = {"/v1/models": listing, "/api/ps": loaded}
        if request.path.endswith("/chat/completions"):
            return web.json_response(make_reply(1_026))
        return web.json_response(
            found.get(request.path), status=200 if request.path in found else 404
        )

    async def scenario() -> None:
        async with run_scripted(answer) as server:
            chat = brim.Session("llama3", window=4_096, reply=100)
            add_turns(chat, 45)
            chat.user("Go on.")
            await send_once(server, calibrations, chat)
            assert any("1,026" in warning for warning in chat.warnings)

    run(scenario())


def test_a_call_above_a_cap_is_rejected_before_anything_is_sent(
    calibrations: CalibrationStore,
) -> None:
    limited = Limited(100_000, in_openais_words)

    async def scenario() -> None:
        async with run_scripted(limited) as server:
            chat = brim.Session("gpt-4o", limits=SpendingLimits(cap_at_dollars=0.000001))
            chat.user("Hello.")
            with pytest.raises(brim.SpendingCapError):
                await send_once(server, calibrations, chat)
            assert not [path for path in server.paths if path.endswith("completions")]

    run(scenario())


def test_a_key_is_in_no_error_and_no_repr(calibrations: CalibrationStore) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "bad key sk-secret-123"}}, status=401)

    async def scenario() -> None:
        async with run_scripted(answer) as server:
            chat = brim.Session("gpt-4o")
            chat.user("Hello.")
            with pytest.raises(brim.ProviderError) as caught:
                await send_once(server, calibrations, chat, key="sk-secret-123")
            assert "sk-secret" not in str(caught.value)

    run(scenario())


def test_a_model_on_an_own_server_costs_nothing(calibrations: CalibrationStore) -> None:
    with (
        ScriptedServer("Yes.", window=1_000, like="llama.cpp") as server,
        brim.Client(server.url, calibration_store=calibrations) as client,
    ):
        chat = brim.Session("gpt-4o")
        chat.ledger.cap_at_dollars = Decimal("0.01")
        chat.user("Are you there?")
        client.send(chat)
        client.summarizer(chat, model="another")(None, chat.history)
    assert (chat.ledger.cost, chat.ledger.has_unknown_cost) == (Decimal(0), False)
    assert (str(chat.ledger), chat.ledger.uncovered) == ("$0.00", None)
