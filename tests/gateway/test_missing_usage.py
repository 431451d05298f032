"""Missing usage is counted, and unknown usage is charged in full."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import islice
from typing import Any

import pytest

from brim.gateway import exchange
from brim.models.pricing import Price, Usage
from brim.testing import ErrorReply, TextReply, ToolCallReply
from brim.testing.reply_formats import find_reply_format
from tests.support.gateway.accounts import (
    COST,
    MAX_COST,
    PROMPT_TOKENS,
    WORDS,
    create_secret,
    gateway_with_upstream,
    only_row,
    open_request,
    say_hi,
    settled_cost,
)
from tests.support.gateway.requests import CHAT, MESSAGES, PATHS, RESPONSES, wait_until

SILENT: Any = {"usage": None}
WITHOUT_OUTPUT: Mapping[str, Any] = {
    CHAT: {"usage": {"prompt_tokens": PROMPT_TOKENS}},
    MESSAGES: {"usage": {"input_tokens": PROMPT_TOKENS}},
    RESPONSES: {"usage": {"input_tokens": PROMPT_TOKENS}},
}
NO_OUTPUT: Mapping[str, Any] = {
    CHAT: {"usage": {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": 0}},
    MESSAGES: {"usage": {"input_tokens": PROMPT_TOKENS, "output_tokens": 0}},
    RESPONSES: {"usage": {"input_tokens": PROMPT_TOKENS, "output_tokens": 0}},
}


@pytest.fixture
def anna() -> str:
    """The secret of a key with a high cap."""
    return create_secret("anna", "1000/day")


@pytest.fixture
def bob() -> str:
    """The secret of a key without caps."""
    return create_secret("bob")


@pytest.fixture
def goes_on() -> Iterator[threading.Event]:
    """An event that an upstream waits for; it is set after the test."""
    event = threading.Event()
    yield event
    event.set()


def whole(path: str, reply: TextReply, **fields: Any) -> dict[str, Any]:
    """A response of a provider with changed usage."""
    usage = Usage(PROMPT_TOKENS, 0, 2)
    return find_reply_format(path).build_response(reply, "name", "scripted", usage) | fields


def raw(answer: object) -> ErrorReply:
    """A response with status 200 and any body."""
    return ErrorReply(200, raw=answer if isinstance(answer, bytes) else json.dumps(answer).encode())


def make_streamed(path: str, answer: dict[str, Any]) -> ErrorReply:
    """The same response as a stream."""
    form, body = find_reply_format(path), {"stream_options": {"include_usage": True}}
    events = islice(form.iter_events(answer, body), form.events_before_reply, None)
    return ErrorReply(200, raw="".join(events).encode(), in_stream=True)


# Counted usage


@pytest.mark.parametrize("fields", [dict.fromkeys(PATHS, SILENT), WITHOUT_OUTPUT, NO_OUTPUT])
@pytest.mark.parametrize("path", PATHS)
def test_output_is_counted_if_a_response_does_not_report_it(
    anna: str, path: str, fields: Mapping[str, Any]
) -> None:
    with gateway_with_upstream(raw(whole(path, TextReply(WORDS), **fields[path]))) as (
        gateway,
        provider,
    ):
        assert say_hi(gateway, anna, path).status_code == 200
        tokens, reply_tokens = provider.requests[0].tokens, provider.tokens(WORDS)
    row = only_row()
    assert row.is_estimated
    assert row.charge.usage.output == reply_tokens == 10
    assert row.charge.usage.input in (tokens, PROMPT_TOKENS)
    assert settled_cost(row) == 2 * row.charge.usage.input + 10 * reply_tokens


@pytest.mark.parametrize("path", PATHS)
def test_output_is_counted_if_a_stream_reports_none(anna: str, path: str) -> None:
    answer = whole(path, TextReply(WORDS), **NO_OUTPUT[path])
    with gateway_with_upstream(make_streamed(path, answer)) as (gateway, provider):
        assert say_hi(gateway, anna, path, stream=True).status_code == 200
        reply_tokens = provider.tokens(WORDS)
    row = only_row()
    assert row.is_estimated
    assert row.charge.usage.output == reply_tokens
    assert settled_cost(row) == 2 * row.charge.usage.input + 10 * reply_tokens


@pytest.mark.parametrize("path", PATHS)
def test_tool_calls_are_counted(anna: str, path: str) -> None:
    reply = TextReply(calls=[ToolCallReply("read", {"path": WORDS})])
    with gateway_with_upstream(raw(whole(path, reply, usage=None))) as (gateway, provider):
        assert say_hi(gateway, anna, path).status_code == 200
        least = provider.tokens(WORDS)
    row = only_row()
    assert row.is_estimated
    assert row.charge.usage.output > least
    settled_cost(row)


def test_visible_reasoning_is_counted(anna: str) -> None:
    answer = whole(CHAT, TextReply("Hello."), usage=None)
    answer["choices"][0]["message"]["reasoning_content"] = WORDS
    with gateway_with_upstream(raw(answer)) as (gateway, provider):
        assert say_hi(gateway, anna).status_code == 200
        least = provider.tokens(WORDS) + provider.tokens("Hello.")
    assert only_row().charge.usage.output >= least


@pytest.mark.parametrize("is_streamed", [False, True])
def test_all_choices_are_counted(anna: str, is_streamed: bool) -> None:
    choices = [
        {
            "index": place,
            ("delta" if is_streamed else "message"): {"role": "assistant", "content": WORDS},
            "finish_reason": "stop",
        }
        for place in range(3)
    ]
    event = b"data: " + json.dumps({"choices": choices}).encode() + b"\n\ndata: [DONE]\n\n"
    answer = (
        ErrorReply(200, raw=event, in_stream=True) if is_streamed else raw({"choices": choices})
    )
    with gateway_with_upstream(answer) as (gateway, provider):
        assert say_hi(gateway, anna, n=3, stream=is_streamed).status_code == 200
        reply_tokens = provider.tokens(WORDS)
    assert 3 * reply_tokens <= only_row().charge.usage.output <= 3 * reply_tokens + 2


@pytest.mark.parametrize("path", PATHS)
def test_a_report_of_no_output_is_accepted_for_an_empty_response(anna: str, path: str) -> None:
    with gateway_with_upstream(raw(whole(path, TextReply(), **NO_OUTPUT[path]))) as (gateway, _):
        assert say_hi(gateway, anna, path).status_code == 200
    row = only_row()
    assert not row.is_estimated
    assert settled_cost(row) == 2 * PROMPT_TOKENS


# Unknown usage


@pytest.mark.parametrize("path", PATHS)
def test_a_disconnect_before_the_first_token_is_charged_in_full(
    anna: str, path: str, goes_on: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "MAX_HOLD_SECONDS", 0.05)
    form = find_reply_format(path)
    monkeypatch.setattr(form, "events_before_hold", form.events_before_reply)
    with gateway_with_upstream(TextReply(WORDS, hold=goes_on)) as (gateway, provider):
        with open_request(gateway, anna, path, stream=True, reply=100) as client:
            while b"data: " not in client.recv(65_536):
                pass
        wait_until(lambda: provider.abandoned)
        tokens = provider.requests[0].tokens
    row = only_row()
    assert row.is_estimated
    assert settled_cost(row) == 2 * tokens + 10 * 100


@pytest.mark.parametrize(("path", "pieces"), [(MESSAGES, 2), (RESPONSES, 3)])
def test_an_upstream_failure_before_the_first_token_is_charged_in_full(
    anna: str, path: str, pieces: int
) -> None:
    with gateway_with_upstream(TextReply(WORDS, cut_after=pieces)) as (gateway, provider):
        answer = say_hi(gateway, anna, path, stream=True, reply=100)
        assert b"error" in answer.content
        tokens = provider.requests[0].tokens
    row = only_row()
    assert row.is_estimated
    assert settled_cost(row) == 2 * tokens + 10 * 100


@pytest.mark.parametrize(
    "answer",
    [
        *(b"", b"<html>Hello.</html>", b"[]", b"{}", b'{"choices": 7}', b'{"choices": []}'),
        b'{"choices": [{"message": {"content": 7}}], "usage": {"prompt_tokens": 8}}',
        json.dumps(whole(CHAT, TextReply(), usage=None)).encode(),
    ],
)
def test_an_unreadable_response_is_charged_in_full(anna: str, answer: bytes) -> None:
    with gateway_with_upstream(raw(answer)) as (gateway, _):
        assert say_hi(gateway, anna).content == answer
        (record,) = gateway.gateway.records.newest(1)
    row = only_row()
    assert row.is_estimated
    assert settled_cost(row) == MAX_COST
    assert record.is_usage_estimated
    assert record.usage == Usage(PROMPT_TOKENS)


def test_an_unreadable_response_with_usage_is_charged_by_its_usage(anna: str) -> None:
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": 2}
    with gateway_with_upstream(raw({"choices": 7, "usage": usage})) as (gateway, _):
        assert say_hi(gateway, anna).status_code == 200
    row = only_row()
    assert not row.is_estimated
    assert settled_cost(row) == COST


@pytest.mark.parametrize("status", ["queued", "in_progress"])
def test_a_background_response_is_charged_in_full(bob: str, status: str) -> None:
    begun = whole(RESPONSES, TextReply(), status=status, output=[], usage=None)
    with gateway_with_upstream(raw(begun)) as (gateway, _):
        answer = say_hi(gateway, bob, RESPONSES, background=True, reply=100)
        assert answer.json()["status"] == status
    row = only_row()
    assert row.is_estimated
    assert row.charge.micro_dollars == MAX_COST


def test_a_background_stream_with_a_disconnect_is_charged_in_full(
    bob: str, goes_on: threading.Event
) -> None:
    with gateway_with_upstream(TextReply(WORDS, hold=goes_on)) as (gateway, provider):
        more: Any = {"stream": True, "background": True, "reply": 100}
        with open_request(gateway, bob, RESPONSES, **more) as client:
            while b'"one' not in client.recv(65_536):
                pass
        wait_until(lambda: provider.abandoned)
    row = only_row()
    assert row.is_estimated
    assert row.charge.micro_dollars == MAX_COST


# Redirects and caches


@pytest.mark.parametrize("status", [300, 307, 399])
def test_a_redirect_costs_nothing(anna: str, status: int) -> None:
    with gateway_with_upstream(ErrorReply(status)) as (gateway, provider):
        assert say_hi(gateway, anna).status_code == status
        (record,) = gateway.gateway.records.newest(1)
        assert len(provider.requests) == 1
    assert settled_cost(only_row()) == 0
    assert (record.end, record.usage, record.cost) == ("rejected", None, None)


def test_an_hour_cache_costs_twice_the_input(anna: str) -> None:
    split = {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 30}
    usage = {"input_tokens": 8, "cache_creation_input_tokens": 50, "cache_creation": split}
    answer = whole(MESSAGES, TextReply("Hello."), usage={**usage, "output_tokens": 2})
    price = Price(input=Decimal(4), output=Decimal(10), written=Decimal(5))
    with gateway_with_upstream(raw(answer), price=price) as (gateway, _):
        assert say_hi(gateway, anna, MESSAGES).status_code == 200
        (record,) = gateway.gateway.records.newest(1)
    assert settled_cost(only_row()) == 8 * 4 + 20 * 5 + 30 * 8 + 2 * 10
    expected = {"input": 58, "cached": 0, "written": 50, "output": 2, "estimated": False}
    assert record.to_dict()["usage"] == expected
