"""The scripted server in all formats: responses, errors in streams, bytes, the prompt cache."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Literal

import anthropic
import openai
import pytest

import brim
from brim.storage.calibration_store import CalibrationStore
from brim.testing import ErrorReply, ScriptedServer, TextReply, ToolCallReply
from brim.wire.overflow import parse_overflow
from brim.wire.streams import StreamAccumulator
from tests.support.scripted_clients import (
    HELLO,
    TEXT,
    anthropic_client,
    openai_client,
    store,
)

__all__ = ["store"]

LONG: Any = [{"role": "user", "content": "word " * 300}]
TOOLS: Any = [{"type": "function", "name": "read", "parameters": {"type": "object"}}]
ASKED: Mapping[str, Mapping[str, Any]] = {
    "/chat/completions": {"model": "m", "messages": HELLO},
    "/messages": {"model": "m", "messages": HELLO, "max_tokens": 50},
    "/responses": {"model": "m", "input": "Hello?"},
}


def answer_to(
    provider: ScriptedServer, path: str, body: Mapping[str, Any]
) -> tuple[int, bytes, bytes]:
    """Return status, headers and body of the response."""
    return post_raw(provider, path, json.dumps(body).encode())


def post_raw(provider: ScriptedServer, path: str, raw: bytes) -> tuple[int, bytes, bytes]:
    address = urllib.parse.urlsplit(provider.url)
    with closing(http.client.HTTPConnection(address.netloc)) as connection:
        connection.request("POST", address.path + path, raw, {"x-asked": "yes"})
        answer = connection.getresponse()
        return answer.status, bytes(answer.headers), answer.read()


def events_of(raw: bytes) -> list[dict[str, Any]]:
    lines = (line for line in raw.splitlines() if line.startswith(b"data: {"))
    return [json.loads(line.removeprefix(b"data: ")) for line in lines]


# Responses


@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_openai_client_reads_responses(is_streamed: bool) -> None:
    script = TextReply(TEXT, [ToolCallReply("read", {"path": "a.py"}), ToolCallReply("list")])
    with ScriptedServer(script) as provider, openai_client(provider) as client:
        if is_streamed:
            with client.responses.stream(model="m", input="Hello?", tools=TOOLS) as stream:
                response: Any = stream.get_final_response()
        else:
            response = client.responses.create(model="m", input="Hello?", tools=TOOLS)
        assert response.status == "completed"
        assert response.output_text == TEXT
        _, first, second = response.output
        assert (first.name, json.loads(first.arguments)) == ("read", {"path": "a.py"})
        assert (second.name, json.loads(second.arguments)) == ("list", {})
        assert len({first.call_id, second.call_id}) == 2
        request = provider.requests[0]
        assert response.usage.input_tokens == request.tokens
        assert request.tokens == brim.count({"input": "Hello?", "tools": TOOLS})
        assert response.usage.total_tokens == request.tokens + response.usage.output_tokens


def test_a_streamed_response_has_numbered_events() -> None:
    with (
        ScriptedServer(TextReply("One two", [ToolCallReply("list")])) as provider,
        openai_client(provider) as client,
    ):
        events = list(client.responses.create(model="m", input="Hello?", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type.removeprefix("response.") for event in events] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done"),
        *("output_item.done", "completed"),
    ]


def test_a_response_that_reaches_its_length_limit() -> None:
    with (
        ScriptedServer(TextReply("One", finish="length")) as provider,
        openai_client(provider) as client,
    ):
        response = client.responses.create(model="m", input="Hello?")
        *_, last = client.responses.create(model="m", input="Hello?", stream=True)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert last.type == "response.incomplete"


def test_a_context_length_error_of_responses_has_no_numbers() -> None:
    with ScriptedServer("ok", window=200) as provider, openai_client(provider) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model="m", input=LONG)
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError):
            client.responses.create(model="m", input="Hello?", max_output_tokens=200)
    overflow = parse_overflow(400, caught.value.response.json())
    assert overflow is not None
    assert overflow.limit is None


def test_a_brim_client_uses_responses(store: CalibrationStore) -> None:
    with (
        ScriptedServer([ToolCallReply("read", {"path": "a"}), TEXT], window=1_024) as provider,
        brim.Client(provider.url, format="responses", calibration_store=store) as client,
    ):
        session = brim.Session(provider.model, reply=100)
        session.user("Look.")
        (call,) = client.send(session).calls
        session.tool(call.id, "nothing in it")
        assert "".join(client.stream(session).texts()) == TEXT
        sent = sum(request.tokens for request in provider.requests)
        assert session.ledger.total.usage.input == sent


# Counting


def test_the_count_equals_the_usage_of_the_response() -> None:
    with (
        ScriptedServer("ok", counts_tokens=True) as provider,
        openai_client(provider) as client,
        anthropic_client(provider) as other,
    ):
        fixed: Any = {"system": "Be brief.", "messages": HELLO}
        counted = other.messages.count_tokens(model="m", **fixed).input_tokens
        assert counted == other.messages.create(model="m", max_tokens=9, **fixed).usage.input_tokens
        client.responses.create(model="m", input="Hello?", tools=TOOLS)
        count = client.responses.input_tokens.count(model="m", input="Hello?", tools=TOOLS)
        assert count.input_tokens == provider.requests[-1].tokens
        requests = provider.count_requests
        assert [request.tokens for request in requests] == [counted, count.input_tokens]


@pytest.mark.parametrize("path", ["/messages/count_tokens", "/responses/input_tokens"])
def test_counting_is_optional(path: str) -> None:
    with ScriptedServer("ok") as provider:
        assert answer_to(provider, path, {"messages": HELLO})[0] == 404


def test_a_chat_stream_ends_with_usage_only_if_requested() -> None:
    with ScriptedServer("ok") as provider:
        body = {**ASKED["/chat/completions"], "stream": True}
        without = events_of(answer_to(provider, "/chat/completions", body)[2])
        body["stream_options"] = {"include_usage": True}
        *chunks, last = events_of(answer_to(provider, "/chat/completions", body)[2])
    assert chunks == without
    assert not any("usage" in chunk for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == provider.requests[0].tokens


# Errors inside streams


def test_an_error_in_a_chat_stream() -> None:
    fault = ErrorReply(429, "slow down", in_stream=True)
    with ScriptedServer([fault, fault]) as provider, openai_client(provider) as client:
        stream = client.chat.completions.create(model="m", messages=HELLO, stream=True)
        assert next(stream).choices[0].delta.role == "assistant"
        with pytest.raises(openai.APIError, match="slow down"):
            next(stream)
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model="m", messages=HELLO)


def test_an_error_in_a_stream_of_messages() -> None:
    error = {"type": "overloaded_error", "message": "Overloaded"}
    script = ErrorReply(529, error=error, in_stream=True)
    with ScriptedServer(script) as provider, anthropic_client(provider) as client:
        settings: Any = ASKED["/messages"]
        stream = client.messages.create(**settings, stream=True)
        assert next(stream).type == "message_start"
        with pytest.raises(anthropic.APIStatusError) as raised:
            next(stream)
    assert raised.value.body == {"type": "error", "error": error}


def test_an_error_in_a_stream_of_a_response() -> None:
    script = ErrorReply(500, "broken", in_stream=True)
    with ScriptedServer(script) as provider, openai_client(provider) as client:
        *opening, last = client.responses.create(model="m", input="Hello?", stream=True)
    assert [event.type for event in opening] == ["response.created", "response.in_progress"]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.message == "broken"
    assert last.response.usage is None


@pytest.mark.parametrize("path", ASKED)
def test_raw_bytes_in_a_stream(path: str) -> None:
    with ScriptedServer(ErrorReply(raw=b"\xff\x00", in_stream=True)) as provider:
        status, _, raw = answer_to(provider, path, {**ASKED[path], "stream": True})
    assert status == 200
    assert events_of(raw)
    assert raw.endswith(b"\xff\x00")


@pytest.mark.parametrize("like", ["openai", "llama.cpp"])
@pytest.mark.parametrize("path", ASKED)
def test_a_context_length_error_inside_a_stream(
    path: str, like: Literal["openai", "llama.cpp"]
) -> None:
    with ScriptedServer("ok", window=200, like=like, context_errors="in_stream") as provider:
        long = {"input": LONG} if path == "/responses" else {"messages": LONG}
        body = {**ASKED[path], **long, "stream": True}
        status, _, raw = answer_to(provider, path, body)
        assert answer_to(provider, path, {**body, "stream": False})[0] == 400
        assert len(provider.rejected) == 2
    fold = StreamAccumulator()
    for event in events_of(raw):
        fold.add(event)
    assert status == 200
    assert fold.error is not None
    assert not fold.started
    assert parse_overflow(None, raw) is not None


def test_a_client_recovers_from_a_context_length_error_in_a_stream(
    store: CalibrationStore,
) -> None:
    with (
        ScriptedServer(
            "ok", window=300, reports_window=False, context_errors="in_stream"
        ) as provider,
        brim.Client(provider.url, calibration_store=store) as client,
    ):
        session = brim.Session("scripted", window=4_096, reply=10)
        for _ in range(4):
            session.user("word " * 100)
            session.assistant("word")
        session.user("And now?")
        assert "".join(client.stream(session).texts()) == "ok"
        assert len(provider.rejected) == 1


# The same bytes


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize(
    "script",
    [
        TextReply(TEXT, [ToolCallReply("read", {"path": "a"})]),
        ErrorReply(429, retry_after=1),
        ErrorReply(in_stream=True),
    ],
)
def test_the_same_request_gets_the_same_bytes(
    script: TextReply | ErrorReply, path: str, is_streamed: bool
) -> None:
    body = {**ASKED[path], "stream": is_streamed}
    with ScriptedServer(script) as one, ScriptedServer([script]) as other:
        first, again = answer_to(one, path, body), answer_to(one, path, body)
        assert first == again == answer_to(other, path, body)


@pytest.mark.parametrize("path", ASKED)
def test_different_requests_or_replies_have_different_ids(path: str) -> None:
    key = "input" if path == "/responses" else "messages"
    grown = {**ASKED[path], key: [*HELLO, {"role": "assistant", "content": "Hi."}, *HELLO]}
    with ScriptedServer(
        [ToolCallReply("list"), ToolCallReply("list"), ToolCallReply("read")]
    ) as provider:
        bodies = (grown, ASKED[path], ASKED[path])
        answers = [json.loads(answer_to(provider, path, body)[2]) for body in bodies]
    assert len({answer["id"] for answer in answers}) == 3


def test_the_raw_body_is_recorded() -> None:
    with ScriptedServer("ok") as provider:
        raw = b'{ "messages": [{"content": "h\\u00e9", "role": "user"}] }'
        assert post_raw(provider, "/chat/completions", raw)[0] == 200
        (request,) = provider.requests
    assert request.raw == raw
    assert request.body == json.loads(raw)
    assert request.headers["x-asked"] == "yes"


# The prompt cache


def turns(*texts: str) -> list[Any]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]


def test_a_known_prefix_of_a_chat_is_cached() -> None:
    with ScriptedServer("ok", caches_prompts=True) as provider, openai_client(provider) as client:

        def cached(*texts: str, **more: Any) -> int:
            settings: Any = {"model": "m", **more, "messages": turns(*texts)}
            usage: Any = client.chat.completions.create(**settings).usage
            return int(usage.prompt_tokens_details.cached_tokens)

        first, second = turns("one", "two", "three"), turns("one", "two", "three", "four", "five")
        assert cached("one", "two", "three") == 0
        assert cached("one", "two", "three", "four", "five") == brim.count(first)
        assert cached("one", "two", "three", "four", "five") == brim.count(second)
        assert cached("one", "two", "other") == brim.count(first[:2])
        assert cached("other", "two", "three") == 0
        assert cached("one", "two", "three", model="n") == 0
        assert cached("one", "two", "three", tools=[{"type": "function", **TOOLS[0]}]) == 0


def test_a_known_prefix_of_a_response_is_cached() -> None:
    with ScriptedServer("ok", caches_prompts=True) as provider, openai_client(provider) as client:
        fixed: Any = {"model": "m", "instructions": "Be brief.", "tools": TOOLS}
        for texts in (["one"], ["one", "two", "three"], ["other"]):
            client.responses.create(**fixed, input=turns(*texts))
        again: Any = client.responses.create(**fixed, input=turns("one", "two")).usage
        first: Any = client.responses.create(**fixed, input=turns("new")).usage
    counts = [int(brim.count({**fixed, "input": turns(*texts)})) for texts in ([], ["one", "two"])]
    assert first.input_tokens_details.cached_tokens == counts[0]
    assert again.input_tokens_details.cached_tokens == counts[1]
    assert again.input_tokens == counts[1]


def make_marked(role: str, text: str) -> dict[str, Any]:
    block = {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}
    return {"role": role, "content": [block]}


def test_anthropic_caches_marked_prefixes() -> None:
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    fixed: Any = {"model": "m", "max_tokens": 9, "system": system}
    with (
        ScriptedServer("ok", caches_prompts=True) as provider,
        anthropic_client(provider) as client,
    ):

        def usage(*messages: Any, **more: Any) -> tuple[int | None, int | None, int]:
            used = client.messages.create(**{**fixed, **more}, messages=messages).usage
            counts = (used.cache_read_input_tokens, used.cache_creation_input_tokens)
            assert sum((used.input_tokens, *filter(None, counts))) == provider.requests[-1].tokens
            return *counts, used.input_tokens

        head = int(brim.count({"system": system, "messages": []}))
        one, two, three = turns("one", "two", "three")
        grown = provider.prompt_tokens("/v1/messages", {**fixed, "messages": [one, two, three]})
        start = provider.prompt_tokens("/v1/messages", {**fixed, "messages": [one]})
        assert usage(one) == (0, head, start - head)
        assert usage(one, two, three) == (head, 0, grown - head)
        assert usage(one, two, make_marked("user", "three")) == (head, grown - head, 0)
        assert usage(one, two, make_marked("user", "three")) == (grown, 0, 0)
        assert usage(one, two, three) == (head, 0, grown - head)
        assert usage(one, two, three, cache_control={"type": "ephemeral"}) == (grown, 0, 0)
        assert usage(one, system="Be brief.") == (0, 0, start)


def test_anthropic_limits_the_number_of_marks() -> None:
    with ScriptedServer("ok") as provider, anthropic_client(provider) as client:
        messages: Any = [make_marked("user", "word")] * 5
        client.messages.create(model="m", max_tokens=9, messages=messages[:4])
        with pytest.raises(anthropic.BadRequestError, match="At most 4"):
            client.messages.create(model="m", max_tokens=9, messages=messages)


def test_anthropic_limits_how_far_a_mark_looks_back() -> None:
    with (
        ScriptedServer("ok", caches_prompts=True) as provider,
        anthropic_client(provider) as client,
    ):

        def cached(number: int) -> int:
            messages = turns(*map(str, range(number)))
            messages[-1] = make_marked("user", messages[-1]["content"])
            settings: Any = {"model": "m", "max_tokens": 9, "messages": messages}
            return int(client.messages.create(**settings).usage.cache_read_input_tokens)

        assert cached(1) == 0
        assert cached(19) == provider.requests[0].tokens
        assert cached(41) == 0
