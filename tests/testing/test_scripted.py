"""The scripted server, used with real client libraries."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Literal

import anthropic
import openai
import pytest

import brim
from brim.errors import ConnectionFailedError, RateLimitError
from brim.storage.calibration_store import CalibrationStore
from brim.testing import ErrorReply, Script, ScriptedServer, TextReply, ToolCallReply
from brim.wire.overflow import parse_overflow
from tests.support.scripted_clients import (
    HELLO,
    TEXT,
    anthropic_client,
    openai_client,
    store,
)

__all__ = ["store"]


def test_replies_are_sent_in_turn() -> None:
    with ScriptedServer(["one", "two"]) as provider, openai_client(provider) as client:
        for reply in ("one", "two"):
            answer = client.chat.completions.create(model="m", messages=HELLO)
            assert answer.choices[0].message.content == reply
            assert answer.choices[0].finish_reason == "stop"
        with pytest.raises(openai.BadRequestError, match="no more replies"):
            client.chat.completions.create(model="m", messages=HELLO)
        assert [request.body["messages"] for request in provider.requests] == [HELLO] * 3
        assert provider.requests[0].time <= provider.requests[1].time


@pytest.mark.parametrize("script", ["same", lambda _: "same"])
def test_a_single_reply_or_function_serves_every_request(script: Script) -> None:
    with ScriptedServer(script) as provider, openai_client(provider) as client:
        for _ in range(3):
            answer = client.chat.completions.create(model="m", messages=HELLO)
            assert answer.choices[0].message.content == "same"


def test_a_function_receives_the_request() -> None:
    def shout(body: Mapping[str, Any]) -> str:
        return str(body["messages"][-1]["content"]).upper()

    with ScriptedServer([shout, "then this"]) as provider, openai_client(provider) as client:
        first = client.chat.completions.create(model="m", messages=HELLO)
        second = client.chat.completions.create(model="m", messages=HELLO)
        assert first.choices[0].message.content == "HELLO?"
        assert second.choices[0].message.content == "then this"


def test_usage_is_what_brim_counts() -> None:
    with (
        ScriptedServer(TEXT, tokenizer_model="gpt-4o") as provider,
        openai_client(provider) as client,
    ):
        usage = client.chat.completions.create(model="m", messages=HELLO).usage
        assert usage is not None
        assert usage.prompt_tokens == brim.count(HELLO, model="gpt-4o")
        assert usage.completion_tokens == brim.count(TEXT, model="gpt-4o")
        assert provider.requests[0].tokens == usage.prompt_tokens


def test_cached_tokens_are_reported_in_every_format() -> None:
    with (
        ScriptedServer(TextReply("Hello.", cached=3)) as provider,
        openai_client(provider) as client,
        anthropic_client(provider) as other,
    ):
        usage = client.chat.completions.create(model="m", messages=HELLO).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens == 3
        hello: Any = HELLO
        reported = other.messages.create(model="m", max_tokens=9, messages=hello).usage
        assert reported.cache_read_input_tokens == 3
        assert reported.input_tokens == provider.requests[1].tokens - 3


def test_a_stream_has_the_same_text() -> None:
    with ScriptedServer(TEXT) as provider, openai_client(provider) as client:
        stream = client.chat.completions.create(
            model="m", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        pieces = list(stream)
        reply = [piece.choices[0].delta.content or "" for piece in pieces if piece.choices]
        assert len([words for words in reply if words]) == 7
        assert "".join(reply) == TEXT
        assert pieces[-1].usage is not None
        assert pieces[-1].usage.completion_tokens == brim.count(TEXT)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_tools_are_called(is_streamed: bool) -> None:
    calls = (ToolCallReply("read", {"path": "a.py"}), ToolCallReply("list"))
    with ScriptedServer(TextReply("Look:", calls)) as provider, openai_client(provider) as client:
        if is_streamed:
            with client.chat.completions.stream(model="m", messages=HELLO) as stream:
                message: Any = stream.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(model="m", messages=HELLO).choices[0].message
        assert message.content == "Look:"
        made = [
            (call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls
        ]
        assert made == [("read", {"path": "a.py"}), ("list", {})]
        assert len({call.id for call in message.tool_calls}) == 2


@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_anthropic_client_reads_messages(is_streamed: bool) -> None:
    with (
        ScriptedServer(TextReply(TEXT, [ToolCallReply("read", {"path": "a.py"})])) as provider,
        anthropic_client(provider) as client,
    ):
        settings: Any = {"model": "m", "max_tokens": 50, "messages": HELLO}
        if is_streamed:
            with client.messages.stream(**settings) as stream:
                message: Any = stream.get_final_message()
        else:
            message = client.messages.create(**settings)
        assert message.content[0].text == TEXT
        assert (message.content[1].name, message.content[1].input) == ("read", {"path": "a.py"})
        assert message.stop_reason == "tool_use"
        assert message.usage.input_tokens == provider.requests[0].tokens


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (ErrorReply(500), openai.InternalServerError),
        (ErrorReply(429, retry_after=3), openai.RateLimitError),
        (ErrorReply(404, "no such model"), openai.NotFoundError),
        (ErrorReply(200, raw=b"<html>"), json.JSONDecodeError),
        (ErrorReply(200, raw=b""), json.JSONDecodeError),
        (TextReply(TEXT, cut_after=1), openai.APIConnectionError),
    ],
)
def test_error_replies(fault: ErrorReply | TextReply, error: type[Exception]) -> None:
    with ScriptedServer([fault, "fine"]) as provider, openai_client(provider) as client:
        raw = client.chat.completions.with_raw_response
        with pytest.raises(error) as raised:
            json.loads(raw.create(model="m", messages=HELLO).text)
        if isinstance(raised.value, openai.RateLimitError):
            assert raised.value.response.headers["retry-after"] == "3"
        assert client.chat.completions.create(model="m", messages=HELLO).choices


def test_an_empty_reply() -> None:
    with ScriptedServer("") as provider, openai_client(provider) as client:
        answer = client.chat.completions.create(model="m", messages=HELLO)
        assert answer.choices[0].message.content == ""
        stream = client.chat.completions.create(model="m", messages=HELLO, stream=True)
        assert [piece.choices[0].finish_reason for piece in stream] == [None, "stop"]


def test_a_stream_that_is_interrupted(store: CalibrationStore) -> None:
    session = brim.Session("gpt-4o", window=4_096)
    session.user("Hello?")
    with (
        ScriptedServer([TextReply(TEXT, cut_after=3)]) as provider,
        brim.Client(provider.url, calibration_store=store) as client,
    ):
        stream = client.stream(session)
        with pytest.raises(ConnectionFailedError):
            list(stream.texts())


@pytest.mark.parametrize("like", ["openai", "llama.cpp"])
def test_a_request_longer_than_the_window_is_rejected(like: Literal["openai", "llama.cpp"]) -> None:
    with ScriptedServer("ok", window=200, like=like) as provider, openai_client(provider) as client:
        long: Any = [{"role": "user", "content": "word " * 300}]
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="m", messages=long)
        overflow = parse_overflow(400, caught.value.response.json())
        assert overflow is not None
        assert overflow.limit == 200
        assert provider.rejected == provider.requests
        client.chat.completions.create(model="m", messages=HELLO)
        assert len(provider.rejected) == 1


def test_the_largest_accepted_prompt_leaves_room_for_one_token() -> None:
    size = int(brim.count(HELLO))
    with ScriptedServer("ok", window=size + 1) as provider, openai_client(provider) as client:
        client.chat.completions.create(model="m", messages=HELLO)
        with pytest.raises(openai.BadRequestError, match=f"requested {size + 2} tokens"):
            client.chat.completions.create(model="m", messages=HELLO, max_tokens=2)
        assert len(provider.rejected) == 1


def test_a_context_length_error_of_anthropic() -> None:
    with ScriptedServer("ok", window=100) as provider, anthropic_client(provider) as client:
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long") as caught:
            client.messages.create(model="m", max_tokens=10, messages=[
                {"role": "user", "content": "word " * 300}
            ])  # fmt: skip
        overflow = parse_overflow(400, caught.value.response.json())
        assert overflow is not None
        assert overflow.limit == 100


@pytest.mark.parametrize("format", ["openai", "anthropic"])
@pytest.mark.parametrize("like", ["openai", "llama.cpp"])
def test_a_brim_client_is_never_rejected(
    store: CalibrationStore,
    format: Literal["openai", "anthropic"],
    like: Literal["openai", "llama.cpp"],
) -> None:
    with (
        ScriptedServer("Yes. " * 20, window=1_024, like=like) as provider,
        brim.Client(provider.url, format=format, calibration_store=store) as client,
    ):
        session = brim.Session(provider.model, system="Be brief.", reply=100)
        for number in range(40):
            session.user(f"Question {number}? " + "word " * 40)
            text = "".join(client.stream(session).texts())
            assert text == "Yes. " * 20
        assert provider.rejected == []
        assert len(provider.requests) == 40
        assert max(request.tokens for request in provider.requests) > 700
        assert session.budget.window == 1_024


def test_a_client_recovers_from_a_context_length_error(store: CalibrationStore) -> None:
    with (
        ScriptedServer("ok", window=300, reports_window=False) as provider,
        brim.Client(provider.url, calibration_store=store) as client,
    ):
        session = brim.Session("scripted", window=4_096, reply=10)
        for _ in range(4):
            session.user("word " * 100)
            session.assistant("word")
        session.user("And now?")
        assert client.send(session).text == "ok"
        assert len(provider.rejected) == 1


def test_a_brim_client_shows_the_servers_error(store: CalibrationStore) -> None:
    session = brim.Session("gpt-4o", window=4_096)
    session.user("Hello?")
    with (
        ScriptedServer(ErrorReply(429, retry_after=0.25)) as provider,
        brim.Client(provider.url, calibration_store=store, retries=0) as client,
        pytest.raises(RateLimitError) as error,
    ):
        client.send(session)
    assert error.value.retry_after == 0.25


def test_a_stream_waits_for_its_event() -> None:
    hold = threading.Event()
    with ScriptedServer(TextReply(TEXT, hold=hold)) as provider, openai_client(provider) as client:
        stream = client.chat.completions.create(model="m", messages=HELLO, stream=True)
        pieces = iter(stream)
        next(pieces)
        assert next(pieces).choices[0].delta.content == "One"
        hold.set()
        assert len(list(pieces)) == 7


def test_disconnected_requests_are_recorded() -> None:
    with ScriptedServer(TextReply(TEXT, hold=threading.Event())) as provider:
        with openai_client(provider) as client:
            stream = client.chat.completions.create(model="m", messages=HELLO, stream=True)
            next(iter(stream))
            stream.close()
        end = time.monotonic() + 60
        while not provider.abandoned and time.monotonic() < end:
            time.sleep(0.01)
        assert provider.abandoned == provider.requests


def test_pauses_do_not_change_the_response() -> None:
    with ScriptedServer(TextReply(TEXT, pause=0.01)) as provider, openai_client(provider) as client:
        stream = client.chat.completions.create(model="m", messages=HELLO, stream=True)
        assert "".join(piece.choices[0].delta.content or "" for piece in stream) == TEXT


def status_of(url: str, body: bytes | None = None) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize(
    ("like", "path", "status"),
    [
        ("llama.cpp", "/props", 200),
        ("openai", "/props", 404),
        ("llama.cpp", "/v1/models", 200),
        ("openai", "/v1/models", 200),
        ("openai", "/v1/nothing", 404),
    ],
)
def test_the_server_reports_its_window(
    like: Literal["openai", "llama.cpp"], path: str, status: int
) -> None:
    with ScriptedServer("", window=512, like=like) as provider:
        assert status_of(provider.url.removesuffix("/v1") + path) == status


def test_an_invalid_body_is_rejected() -> None:
    with ScriptedServer("never said") as provider:
        for raw in (b"{", b"{}", b'{"messages": 1}'):
            assert status_of(provider.url + "/chat/completions", raw) == 400
        assert provider.requests == []
