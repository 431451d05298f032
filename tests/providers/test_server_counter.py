from __future__ import annotations

import asyncio
import json
import socket
from base64 import b64decode
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import InputError
from brim.fitting.plan import TextCount
from brim.providers.count_methods import REQUESTS, TEXTS, CountMethod, CountSubject
from brim.providers.endpoint import Endpoint
from brim.providers.server_counter import (
    MAX_COUNTS,
    MAX_STATES,
    CountStates,
    ServerCounter,
    validate_count,
)
from brim.providers.text_count import MESSAGE_MARGIN, REQUEST_MARGIN
from brim.providers.transport import Transport
from brim.wire.formats import FormatName
from tests.support.providers.scripted import Handler, Scripted, by_path, in_turn, run, run_scripted

LLAMA = "/v1/chat/completions/input_tokens"
FIELDS = st.sampled_from(["input_tokens", "count", "tokens", "tokenize_response", "error"])
BODY = {"model": "m", "messages": [{"role": "user", "content": "hello there"}], "stream": True}


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def json_response(status: int, body: Any) -> web.Response:
    text = body if isinstance(body, str) else json.dumps(body)
    return web.Response(status=status, body=text.encode())


def run_counter(
    answer: Handler,
    script: Callable[[ServerCounter, Scripted, Clock], Awaitable[None]],
    format: FormatName = "openai",
    **settings: Any,
) -> None:
    """Run a script with a counter for a server with these responses."""

    async def work() -> None:
        clock = Clock()
        async with (
            run_scripted(answer) as server,
            Transport(Endpoint(server.url, format, **settings)) as connection,
        ):
            counter = ServerCounter(connection, clock=clock, states=CountStates())
            await script(counter, server, clock)

    run(work())


@pytest.mark.parametrize(
    ("paths", "method", "expected"),
    [
        ({LLAMA: {"input_tokens": 34}}, "llama.cpp", [LLAMA]),
        ({"/tokenize": {"count": 34, "tokens": []}}, "vLLM", [LLAMA, "/tokenize"]),
        (
            {"/tokenize": {"tokens": []}, "/chat_tokenize": {"tokenize_response": [{}] * 34}},
            "TGI",
            [LLAMA, "/tokenize", "/chat_tokenize"],
        ),
    ],
)
def test_the_method_that_a_server_supports_is_detected(
    paths: dict[str, Any], method: str, expected: list[str]
) -> None:
    async def script(counter: ServerCounter, server: Scripted, _: Clock) -> None:
        assert counter.support("m").state == "unknown"
        assert await counter.count(BODY) == 34
        assert server.paths == expected
        assert await counter.count(BODY | {"temperature": 1}) == 34
        assert server.paths == expected, "how an answer is sampled does not change the count"
        assert await counter.count(BODY | {"tools": [{"type": "function"}]}) == 34
        assert server.paths == [*expected, expected[-1]]
        verdict = counter.support("m")
        assert (verdict.state, verdict.method) == ("yes", method)
        assert counter.support("another").state == "unknown"

    run_counter(by_path(paths), script)


@pytest.mark.parametrize(
    ("format", "path", "body", "sent"),
    [
        (
            "anthropic",
            "/v1/messages/count_tokens",
            {"model": "c", "messages": [], "system": "s", "max_tokens": 9, "temperature": 1},
            {"model": "c", "messages": [], "system": "s"},
        ),
        (
            "responses",
            "/v1/responses/input_tokens",
            {"model": "g", "input": "hi", "stream": True, "store": False, "tools": []},
            {"model": "g", "input": "hi", "tools": []},
        ),
        ("openai", LLAMA, BODY | {"stream_options": {}, "top_k": 1}, {
            "model": "m", "messages": BODY["messages"], "top_k": 1,
        }),
    ],
)  # fmt: skip
def test_only_the_counted_fields_and_the_key_are_sent(
    format: FormatName, path: str, body: dict[str, Any], sent: dict[str, Any]
) -> None:
    async def script(counter: ServerCounter, server: Scripted, _: Clock) -> None:
        assert await counter.count(body) == 5
        assert server.requests[0].body == sent
        assert "sk-1" in str(server.requests[0].headers)

    run_counter(by_path({path: {"input_tokens": 5}}), script, format, key="sk-1")


CLAUDE = {"model": "us.anthropic.claude-x-v1:0", "max_tokens": 9, "system": "s", "messages": []}
VERTEX = "http://eu-aiplatform.googleapis.com/v1/projects/p/locations/eu"
BEDROCK = "http://bedrock-runtime.us-east-1.amazonaws.com"
GEMINI_BODY = {
    "systemInstruction": {"parts": [{"text": "Be brief."}]},
    "contents": [
        {"role": "user", "parts": [{"text": "Where?"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "find", "args": {"x": 1}}}]},
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "find", "response": {"result": "here"}}},
                {"text": "Thanks."},
            ],
        },
    ],
    "tools": [
        {"functionDeclarations": [{"name": "find", "parametersJsonSchema": {"type": "object"}}]}
    ],
}
CALLS = {
    "model": "google/gemini-x",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "function": {"name": "find", "arguments": '{"x": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "here"},
        {"role": "user", "content": "Thanks."},
    ],
    "tools": [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}],
    "stream": True,
}


def decode_bedrock(body: Any) -> Any:
    return json.loads(b64decode(body["input"]["invokeModel"]["body"]))


@pytest.mark.parametrize(
    ("address", "format", "path", "body", "sent"),
    [
        (
            "http://generativelanguage.googleapis.com/v1beta/openai",
            "openai",
            "/v1beta/models/gemini-x:countTokens",
            CALLS,
            {"generateContentRequest": {"model": "models/gemini-x", **GEMINI_BODY}},
        ),
        (
            f"{VERTEX}/endpoints/openapi",
            "openai",
            "/v1/projects/p/locations/eu/publishers/google/models/gemini-x:countTokens",
            CALLS,
            GEMINI_BODY,
        ),
        (
            f"{VERTEX}/publishers/anthropic",
            "anthropic",
            "/v1/projects/p/locations/eu/publishers/anthropic/models/count-tokens:rawPredict",
            CLAUDE,
            {
                "anthropic_version": "vertex-2023-10-16",
                "model": CLAUDE["model"],
                "system": "s",
                "messages": [],
            },
        ),
        (
            f"{BEDROCK}/anthropic",
            "anthropic",
            "/model/anthropic.claude-x-v1:0/count-tokens",
            CLAUDE,
            {
                "anthropic_version": "bedrock-2023-05-31",
                "max_tokens": 1,
                "system": "s",
                "messages": [],
            },
        ),
        (
            f"{BEDROCK}/openai/v1",
            "openai",
            "/model/m/count-tokens",
            BODY,
            {"messages": BODY["messages"]},
        ),
    ],
)
def test_providers_count_at_an_address_of_their_own(
    address: str,
    format: FormatName,
    path: str,
    body: dict[str, Any],
    sent: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fields = ("totalTokens", "input_tokens", "inputTokens")

    async def work() -> None:
        async with run_scripted(by_path({path: dict.fromkeys(fields, 34)})) as server:
            monkeypatch.setenv("http_proxy", server.url)
            async with Transport(Endpoint(address, format, key="sk-1")) as connection:
                counter = ServerCounter(connection, states=CountStates())
                assert await counter.count(body) == 34
                assert await counter.count_text("m", "words") is None
            (request,) = server.requests
            received = request.body
            assert (decode_bedrock(received) if "input" in received else received) == sent
            key = request.headers.get("x-goog-api-key") or request.headers["Authorization"]
            assert key == ("sk-1" if "generativelanguage" in address else "Bearer sk-1")

    run(work())


def test_gemini_gets_the_key_of_the_client_without_one_of_the_endpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = "/v1beta/models/gemini-x:countTokens"

    async def work() -> None:
        async with run_scripted(by_path({path: {"totalTokens": 3}})) as server:
            monkeypatch.setenv("http_proxy", server.url)
            address = "http://generativelanguage.googleapis.com/v1beta/openai"
            async with Transport(Endpoint(address)) as connection:
                counter = ServerCounter(connection, states=CountStates())
                assert await counter.count(CALLS, {"authorization": "Bearer sk-2"}) == 3
            assert server.requests[0].headers["x-goog-api-key"] == "sk-2"
            assert not {"Authorization", "authorization"} & set(server.requests[0].headers)

    run(work())


def test_a_body_that_a_provider_cannot_get_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with run_scripted(by_path({})) as server:
            monkeypatch.setenv("http_proxy", server.url)
            address = "http://generativelanguage.googleapis.com/v1beta/openai"
            async with Transport(Endpoint(address)) as connection:
                counter = ServerCounter(connection, states=CountStates())
                assert await counter.count({"model": "gemini-x", "messages": [7]}) is None
            assert server.requests == []

    run(work())


def test_vllm_counts_the_generation_prompt_too() -> None:
    async def script(counter: ServerCounter, server: Scripted, _: Clock) -> None:
        assert await counter.count(BODY | {"tools": [{"x": 1}], "temperature": 0}) == 9
        assert server.requests[-1].body == {
            "model": "m",
            "messages": BODY["messages"],
            "tools": [{"x": 1}],
            "add_generation_prompt": True,
            "add_special_tokens": False,
        }

    run_counter(by_path({"/tokenize": {"count": 9}}), script)


@pytest.mark.parametrize(
    ("paths", "method", "tokens"),
    [
        ({"/tokenize": {"tokens": [1, 2, 3]}}, "llama.cpp", 3),
        ({"/tokenize": {"count": 3, "max_model_len": 9}}, "vLLM", 3),
        ({}, None, None),
        ({"/tokenize": {"tokens": []}}, None, None),
        ({"/tokenize": {"tokens": list(range(1_000))}}, None, None),
    ],
)
def test_text_is_counted_outside_the_api_prefix(
    paths: dict[str, Any], method: str | None, tokens: int | None
) -> None:
    async def script(counter: ServerCounter, server: Scripted, _: Clock) -> None:
        text = "some words"
        assert await counter.count_text("m", text) == tokens
        assert set(server.paths) == {"/tokenize"}
        assert counter.support("m", text=True).method == method
        assert counter.support("m", text=True).state == ("yes" if method else "no")
        assert counter.support("m").state == "unknown"
        body = server.requests[-1].body
        assert body["model"] == "m"
        assert text in (body.get("content"), body.get("prompt"))

    run_counter(by_path(paths), script)


def test_a_server_that_rejects_plain_text_does_not_support_the_method() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        return json_response(200, {"count": 2}) if "prompt" in body else json_response(422, {})

    async def script(counter: ServerCounter, server: Scripted, _: Clock) -> None:
        assert await counter.count_text("m", "ab") == 2
        assert await counter.count_text("m", "abc") == 2
        assert len(server.requests) == 3

    run_counter(answer, script)


def test_empty_text_has_no_tokens_and_sends_nothing() -> None:
    async def script(counter: ServerCounter, server: Scripted, _: Clock) -> None:
        assert await counter.count_text("m", "") == 0
        with pytest.raises(InputError, match="expected a string, got int"):
            await counter.count_text("m", 7)  # type: ignore[arg-type]
        counter.enabled = False
        assert await counter.count(BODY) is None
        assert await counter.count_text("m", "x") is None
        assert counter.support("m").reason == "counting with the server is disabled"
        assert server.requests == []

    run_counter(by_path({}), script)


@pytest.mark.parametrize(
    "answer",
    [
        json_response(404, {}),
        json_response(405, "no"),
        json_response(501, {}),
        json_response(200, "<html>welcome</html>"),
        json_response(200, {}),
        json_response(200, [1]),
        json_response(200, "7"),
        json_response(200, {"error": "Unexpected endpoint or method."}),
        json_response(200, {"input_tokens": 0, "count": 0, "tokens": []}),
        json_response(200, {"input_tokens": -5, "count": -5}),
        json_response(200, {"input_tokens": True, "count": "7"}),
        json_response(200, {"input_tokens": 10**9, "count": 10**9}),
    ],
)
def test_an_unsupported_method_is_not_tried_again(answer: web.Response) -> None:
    async def script(counter: ServerCounter, server: Scripted, clock: Clock) -> None:
        assert await counter.count(BODY) is None
        verdict = counter.support("m")
        assert (verdict.state, verdict.method) == ("no", None)
        assert "127.0.0.1" in verdict.reason
        before = len(server.requests)
        clock.now += 10_000
        assert await counter.count(BODY | {"x": 1}) is None
        assert len(server.requests) == before == 5, "each way to count requests, and texts"

    run_counter(in_turn(answer), script)


def test_counters_of_a_process_share_their_states() -> None:
    async def script(counter: ServerCounter, server: Scripted, _: Clock) -> None:
        assert await counter.count(BODY) is None
        known = counter._states
        other = Endpoint(server.url + "/v1/")
        async with Transport(other) as connection:
            assert await ServerCounter(connection, states=known).count(BODY) is None
        assert len(server.requests) == 5

    run_counter(by_path({}), script)


def test_endpoints_and_models_have_separate_states() -> None:
    known = CountStates()
    one, two = Endpoint("http://e/x"), Endpoint("http://e")
    assert known.find(one, "y", "request") is not known.find(two, "x/y", "request")
    assert known.find(Endpoint("http://f"), "m", "text") is known.find(
        Endpoint("http://f/"), "m", "text"
    )
    assert known.find(one, "y", "request") is not known.find(one, "y", "text")


@pytest.mark.parametrize("status", [401, 408, 429, 500, 502, 503, 529])
def test_a_temporary_failure_pauses_counting(status: int) -> None:
    async def script(counter: ServerCounter, server: Scripted, clock: Clock) -> None:
        for number, pause in enumerate([30, 60, 120, 240, 480, 600, 600], 1):
            assert await counter.count(BODY) is None
            assert counter.support("m").state == "unknown"
            assert str(status) in counter.support("m").reason
            clock.now += pause - 1
            assert await counter.count(BODY | {"x": number}) is None
            assert len(server.requests) == number
            clock.now += 2

    run_counter(in_turn(json_response(status, {})), script)


def test_a_model_that_was_loading_is_tried_again_soon() -> None:
    async def script(counter: ServerCounter, _: Scripted, clock: Clock) -> None:
        assert await counter.count(BODY) is None
        clock.now += 31
        assert await counter.count(BODY) == 7
        assert counter.support("m").state == "yes"

    run_counter(in_turn(json_response(503, {}), json_response(200, {"input_tokens": 7})), script)


def test_an_unreachable_server_is_not_marked_as_unsupported() -> None:
    async def work() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{taken.getsockname()[1]}"
            async with Transport(Endpoint(url)) as connection:
                counter = ServerCounter(connection, states=CountStates())
                assert await counter.count(BODY) is None
                assert counter.support("m").state == "unknown"
                assert "cannot be reached" in counter.support("m").reason

    run(work())


@pytest.mark.parametrize("fault", [404, 503, "late", "odd"])
def test_one_failure_does_not_unmark_a_proven_method(
    fault: int | str,
) -> None:
    failing = False

    async def answer(_: web.Request) -> web.StreamResponse:
        if not failing:
            return json_response(200, {"input_tokens": 7})
        if fault == "late":
            await asyncio.sleep(9)
        return json_response(fault if isinstance(fault, int) else 200, {})

    async def script(counter: ServerCounter, server: Scripted, clock: Clock) -> None:
        def set_failing(value: bool) -> None:
            nonlocal failing
            failing = value
            counter._timeout = 0.1 if value and fault == "late" else 30

        for number in range(50):
            assert await counter.count(BODY | {"number": number}) == 7
        set_failing(True)
        assert await counter.count(BODY | {"number": 51}) is None
        assert counter.support("m").state == "yes"
        set_failing(False)
        assert await counter.count(BODY | {"number": 52}) == 7
        set_failing(True)
        for number in range(3):
            assert await counter.count(BODY | {"number": 60 + number}) is None
        assert len(server.requests) == 54, "after two failures in a row it is left alone"
        assert counter.support("m").state == "yes"
        set_failing(False)
        clock.now += 31
        assert await counter.count(BODY | {"number": 70}) == 7

    run_counter(answer, script)


def test_the_timeout_grows_with_the_request() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.3)
        return json_response(200, {"tokens": [1] * 100})

    async def work() -> None:
        async with run_scripted(answer) as server, Transport(Endpoint(server.url)) as connection:
            for size, found in ((10, None), (50_000, 100)):
                counter = ServerCounter(connection, states=CountStates(), timeout=0.0)
                assert await counter.count_text("m", "x" * size) == found
                assert counter.support("m", text=True).state == ("yes" if found else "unknown")

    run(work())


@pytest.mark.parametrize(
    "objection",
    [
        json_response(400, {"error": {"message": "roles must alternate"}}),
        json_response(500, {"error": {"message": "Jinja Exception: roles must alternate"}}),
        json_response(500, {"error": {"message": "image input is not supported"}}),
        json_response(413, {}),
        json_response(422, {}),
    ],
)
def test_a_rejected_request_does_not_affect_others(objection: web.Response) -> None:
    bad = {"model": "m", "messages": []}

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path != LLAMA:
            return json_response(404, {})
        if not (await request.json())["messages"]:
            return web.Response(status=objection.status, body=objection.body)
        return json_response(200, {"input_tokens": 7})

    async def script(counter: ServerCounter, _: Scripted, __: Clock) -> None:
        assert await counter.count(bad) is None
        assert counter.support("m").state == "yes", "the smallest request was counted"
        assert await counter.count(BODY) == 7
        for number in range(3):
            assert await counter.count(bad | {"number": number}) is None
        assert await counter.count(BODY | {"number": 1}) == 7
        assert counter.support("m").state == "yes"

    run_counter(answer, script)


def test_a_server_that_rejects_even_the_smallest_request_does_not_count() -> None:
    async def script(counter: ServerCounter, server: Scripted, _: Clock) -> None:
        assert await counter.count(BODY) is None
        assert counter.support("m").state == counter.support("m", text=True).state == "no"
        before = len(server.requests)
        assert await counter.count(BODY | {"x": 1}) is None
        assert len(server.requests) == before

    run_counter(in_turn(json_response(400, {"error": {"message": "unknown path"}})), script)


def count_letters(contents: list[Any], *, batches: bool = True) -> Handler:
    """Return the responses of a server that only tokenizes text, with a token per letter."""

    async def answer(request: web.Request) -> web.StreamResponse:
        content = (await request.json()).get("content") if request.path == "/tokenize" else None
        if not content or (isinstance(content, list) and not batches):
            return json_response(404 if content is None else 400, {})
        contents.append(content)
        tokens: list[int] = []
        for part in content if isinstance(content, list) else [content]:
            tokens += [-1] if part == -1 else [7] * len(part)
        return json_response(200, {"tokens": tokens})

    return answer


@pytest.mark.parametrize("batches", [True, False])
def test_a_request_is_counted_by_its_texts_if_the_server_counts_only_texts(batches: bool) -> None:
    contents: list[Any] = []
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    body = {"model": "m", "messages": turns}

    async def script(counter: ServerCounter, _: Scripted, __: Clock) -> None:
        tokens = await counter.count(body)
        assert isinstance(tokens, TextCount)
        assert (tokens, tokens.margin) == (5 + 2 + 2 * 4 + 3, REQUEST_MARGIN + 2 * MESSAGE_MARGIN)
        del contents[:]
        turns.append({"role": "user", "content": "and now?"})
        assert await counter.count(body) == tokens + 8 + 4
        assert contents == ["and now?"], "the other texts are cached"
        turns.append({"role": "user", "content": "one"})
        turns.append({"role": "user", "content": "more"})
        await counter.count(body)
        assert contents[1:] == ([["one", -1, "more"]] if batches else ["one", "more"])

    run_counter(count_letters(contents, batches=batches), script)


def test_reports_show_the_structure_that_text_counts_cannot_show() -> None:
    tools = [{"type": "function", "function": {"name": "look", "description": "Look it up."}}]
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "tools": tools}
    longer = {**body, "messages": [*body["messages"], {"role": "user", "content": "hi"}]}
    other = {**body, "messages": [{"role": "user", "content": "good morning"}]}

    async def script(counter: ServerCounter, _: Scripted, __: Clock) -> None:
        before = [await counter.count(each) for each in (longer, other)]
        counted = await counter.count(body)
        assert counted is not None
        counter.record_report(body, 12)  # the template omits the tools
        assert await counter.count(longer) == 12 + 2 + 4
        again = await counter.count(other)
        assert again == 12 + 7
        assert isinstance(again, TextCount)
        assert isinstance(before[1], TextCount)
        assert again + again.margin == before[1] + before[1].margin, "it may print other tools"
        counter.record_report(body, 1)  # not of the whole prompt
        assert await counter.count(longer) == 12 + 2 + 4

    run_counter(count_letters([]), script)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=8,
)


@given(JSON, st.sampled_from([*REQUESTS["openai"], *REQUESTS["anthropic"], *TEXTS]), st.text())
def test_a_count_is_positive_or_none_for_any_response(
    answer: Any, method: CountMethod, text: str
) -> None:
    subjects: list[CountSubject] = ["request", "text"]
    for what in subjects:
        tokens = validate_count(method.read_tokens(answer), text.encode(), what)
        assert tokens is None or (type(tokens) is int and tokens > 0)


def test_equal_requests_are_counted_once() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.05)
        return json_response(200, {"input_tokens": 7, "tokens": [1, 2]})

    async def script(counter: ServerCounter, server: Scripted, _: Clock) -> None:
        again = dict(reversed(BODY.items()))
        counts = await asyncio.gather(*(counter.count(each) for each in [BODY, again] * 20))
        assert set(counts) == {7}
        assert await counter.count(BODY) == 7
        assert len(server.requests) == 1
        assert (
            await asyncio.gather(*(counter.count_text("m", "hello") for _ in range(20))) == [2] * 20
        )
        assert len(server.requests) == 2
        assert await counter.count(BODY | {"model": "other"}) == 7
        assert len(server.requests) == 3

    run_counter(answer, script)


def test_a_cancelled_caller_does_not_cancel_the_others() -> None:
    gone = asyncio.Event()

    async def answer(_: web.Request) -> web.StreamResponse:
        try:
            await asyncio.sleep(0.2)
        except asyncio.CancelledError:
            gone.set()
            raise
        return json_response(200, {"input_tokens": 7})

    async def script(counter: ServerCounter, server: Scripted, _: Clock) -> None:
        first = asyncio.create_task(counter.count(BODY))
        second = asyncio.create_task(counter.count(BODY))
        await asyncio.sleep(0.05)
        first.cancel()
        assert await second == 7
        assert first.cancelled()
        assert len(server.requests) == 1
        alone = asyncio.create_task(counter.count(BODY | {"number": 1}))
        await asyncio.sleep(0.05)
        alone.cancel()
        await asyncio.wait_for(gone.wait(), 2)

    run_counter(answer, script)


def test_concurrent_requests_share_one_probe() -> None:
    async def script(counter: ServerCounter, server: Scripted, _: Clock) -> None:
        bodies = [BODY | {"number": number} for number in range(20)]
        assert set(await asyncio.gather(*map(counter.count, bodies))) == {None}
        assert len(server.requests) == 5

    run_counter(by_path({}), script)


def test_the_cache_of_counts_is_bounded() -> None:
    async def script(counter: ServerCounter, _: Scripted, __: Clock) -> None:
        counter._counts.update((str(number).encode(), 1) for number in range(MAX_COUNTS))
        assert await counter.count(BODY) == 7
        assert len(counter._counts) == MAX_COUNTS

    run_counter(by_path({LLAMA: {"input_tokens": 7}}), script)


def test_a_request_that_cannot_be_encoded_is_not_counted() -> None:
    async def script(counter: ServerCounter, server: Scripted, _: Clock) -> None:
        assert await counter.count({"model": "m", "messages": {1, 2}}) is None
        assert server.requests == []

    run_counter(by_path({}), script)


def test_references_to_stored_content_allow_larger_counts() -> None:
    async def script(counter: ServerCounter, _: Scripted, __: Clock) -> None:
        assert await counter.count({"model": "m", "previous_response_id": "r"}) == 200_000
        assert await counter.count({"model": "n", "input": "hi"}) is None

    run_counter(
        by_path({"/v1/responses/input_tokens": {"input_tokens": 200_000}}), script, "responses"
    )


@pytest.mark.parametrize("host", ["https://api.openai.com/v1", "https://openrouter.ai/api/v1"])
def test_hosts_without_counts_are_not_queried(host: str) -> None:
    async def work() -> None:
        async with Transport(Endpoint(host)) as connection:
            counter = ServerCounter(connection, states=CountStates())
            assert counter.support("gpt-5").state == "no"
            assert await counter.count(BODY) is None
            assert await counter.count_text("m", "x") is None
            assert connection._pool is None

    run(work())


@pytest.mark.parametrize("status", [401, 403])
def test_a_rejected_client_key_does_not_pause_counting(status: int) -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.headers.get("x-api-key") == "right":
            return json_response(200, {"input_tokens": 34})
        return json_response(status, {"error": {"message": "no"}})

    async def script(counter: ServerCounter, server: Scripted, _: Clock) -> None:
        assert await counter.count(BODY, {"x-api-key": "wrong"}) is None
        assert await counter.count(BODY, {"x-api-key": "right"}) == 34
        assert await counter.count(BODY, {"x-api-key": "wrong"}) is None
        assert await counter.count(BODY, {"x-api-key": "right"}) == 34
        assert len(server.requests) == 3  # what is known is not asked for again

    run_counter(answer, script, "anthropic")


def test_a_rejected_endpoint_key_pauses_counting() -> None:
    async def script(counter: ServerCounter, server: Scripted, _: Clock) -> None:
        for beta in ("a", "b", "c"):
            assert await counter.count(BODY, {"anthropic-beta": beta}) is None
        assert len(server.requests) == 1

    refusal = json_response(401, {"error": {"message": "no"}})
    run_counter(in_turn(refusal), script, "anthropic", key="wrong-key")


def test_only_the_most_recent_models_are_remembered() -> None:
    standings, endpoint = CountStates(), Endpoint("http://127.0.0.1:9")
    first, second = (standings.find(endpoint, name, "request") for name in ("first", "second"))
    for place in range(MAX_STATES - 1):
        standings.find(endpoint, str(place), "request")
        assert standings.find(endpoint, "first", "request") is first
    assert standings.find(endpoint, "second", "request") is not second
