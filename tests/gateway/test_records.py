"""Records of recent requests are consistent and bounded."""

from __future__ import annotations

import gc
import json
import logging
import threading
import time
import weakref
from dataclasses import replace
from decimal import Decimal
from typing import Any

import httpx
import pytest

from brim.config import GatewayConfig
from brim.gateway import records
from brim.gateway.handler import DISCONNECT_CHECK_DELAY
from brim.gateway.records import RecentRequests, RequestRecord
from brim.models.pricing import Price, Usage
from brim.testing import ErrorReply, ScriptedServer, TextReply, ToolCallReply
from tests.support.gateway.process import config_of, run_gateway
from tests.support.gateway.requests import (
    CHAT,
    LONG,
    MESSAGES,
    PATHS,
    RESPONSES,
    ask,
    begin_stream,
    body_of,
    get_record,
    post,
    send_raw,
    wait_until,
)

TURNS = [f"turn {place}: " + "some words that take room " * 20 for place in range(81)]
FIRST = "antidisestablishmentarianism"
"""A word of several tokens."""

each_format = pytest.mark.parametrize("path", PATHS)


def with_calls(path: str) -> dict[str, Any]:
    """A long conversation with tool results."""
    turns: list[dict[str, Any]] = []
    for place in range(30):
        result = f"line {place} of what the tool printed\n" * 40
        turns += _step(path, f"call_{place}", result)
    return body_of(path, "Read all files.", "I will.", "Go on.", *turns, ("user", "And now?"))


def _step(path: str, id: str, result: str) -> list[dict[str, Any]]:
    if path == MESSAGES:
        use = {"type": "tool_use", "id": id, "name": "read", "input": {"path": "a"}}
        answer = {"type": "tool_result", "tool_use_id": id, "content": result}
        return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [answer]}]
    function = {"name": "read", "arguments": '{"path": "a"}'}
    if path == RESPONSES:
        return [
            {"type": "function_call", "call_id": id, **function},
            {"type": "function_call_output", "call_id": id, "output": result},
        ]
    calls = [{"id": id, "type": "function", "function": function}]
    return [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": id, "content": result},
    ]


# Decisions


@each_format
@pytest.mark.parametrize("policy", ["steady", "rolling", "sliding"])
@pytest.mark.parametrize("window", [2_000, 6_000])
def test_decisions_and_notes_add_up_to_the_difference(path: str, policy: str, window: int) -> None:
    config = config_of("http://127.0.0.1:9", window=window, reply=200, count="off")
    with run_gateway(config) as server:
        options = {"brim-fitting": "dry-run", "brim-policy": policy}
        answer = post(server.url, path, with_calls(path), options)
        request = get_record(server, answer.raise_for_status())
        plan = request["plan"]
        decisions = plan["decisions"]
        assert [each["index"] for each in decisions] == list(range(len(decisions)))
        assert request["tokens"] <= request["limit"] < request["tokens_before"]
        saved = sum(each["before"] - each["after"] for each in decisions)
        added = sum(note["tokens"] for note in plan["notes"])
        assert request["tokens_before"] - request["tokens"] == saved - added
        outcomes = {each["outcome"] for each in decisions} - {"kept"}
        assert outcomes == request["trimmed"].keys()
        for outcome, number in request["trimmed"].items():
            assert sum(each["outcome"] == outcome for each in decisions) == number
        assert all(each["reason"] for each in decisions)
        budget = plan["budget"]
        assert budget["window"] - budget["reply"] - budget["margin"] == request["limit"]


@each_format
def test_untrimmed_messages_are_listed_as_kept(path: str) -> None:
    with (
        ScriptedServer("Hello.") as provider,
        run_gateway(config_of(provider.url, window=9_000)) as server,
    ):
        request = get_record(server, ask(server, path, "hi", "hello", "how are you?"))
        assert request["tokens"] == request["tokens_before"]
        assert [each["outcome"] for each in request["plan"]["decisions"]] == ["kept"] * 3
        assert request["trimmed"] == {}


@each_format
def test_a_dry_run_is_recorded(path: str) -> None:
    with (
        ScriptedServer("Hello.") as provider,
        run_gateway(config_of(provider.url, window=3_000)) as server,
    ):
        plan = {"brim-fitting": "dry-run"}
        too_long = ask(server, path, "word " * 9_000, headers=plan)
        assert too_long.status_code == 400
        tried = [ask(server, path, *TURNS, headers=plan), too_long]
        assert [get_record(server, answer)["dry_run"] for answer in tried] == [True, True]
        assert not provider.requests
        assert get_record(server, ask(server, path, *TURNS))["dry_run"] is False


@each_format
def test_headers_match_the_record(path: str) -> None:
    with (
        ScriptedServer("Hello.") as provider,
        run_gateway(config_of(provider.url, window=3_000)) as server,
    ):
        answer = ask(server, path, *TURNS)
        request, heads = get_record(server, answer), answer.headers
        assert request["tokens"] == int(heads["brim-tokens"])
        assert request["tokens_before"] == int(heads["brim-tokens-before"])
        assert request["limit"] == int(heads["brim-limit"])
        assert request["count"] == heads["brim-count"]
        cut = ", ".join(f"{outcome}={number}" for outcome, number in request["trimmed"].items())
        assert cut == heads["brim-trimmed"] != ""
        assert (request["status"], request["end"]) == (200, "completed")


# Usage and cost


@each_format
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
def test_usage_and_cost_come_from_the_report(path: str, streamed: bool) -> None:
    price = Price(Decimal(1), Decimal("0.5"), Decimal(10))
    reply = TextReply("one two three", cached=5)
    with (
        ScriptedServer(reply, tokenizer_model="gpt-4o") as provider,
        run_gateway(config_of(provider.url, price=price)) as server,
    ):
        answer = ask(server, path, "Say some words, please.", stream=streamed)
        request, (received,) = get_record(server, answer), provider.requests
        assert request["streamed"] is streamed
        usage = request["usage"]
        assert (usage["input"], usage["cached"]) == (received.tokens, 5)
        assert usage["output"] == provider.tokens(reply.text)
        assert usage["estimated"] is False
        dollars = (received.tokens - 5) * 1 + 5 * 0.5 + usage["output"] * 10
        assert request["cost"] == pytest.approx(dollars / 1_000_000)


@each_format
def test_an_unknown_price_is_not_zero(path: str) -> None:
    with ScriptedServer("Hello.") as provider, run_gateway(config_of(provider.url)) as server:
        request = get_record(server, ask(server, path, "hi"))
        assert request["usage"]["output"] > 0
        assert request["cost"] is None


@each_format
def test_a_disconnect_cancels_the_upstream_and_counts_the_output_so_far(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    never = threading.Event()
    caplog.set_level(logging.INFO, "brim.gateway")
    with (
        ScriptedServer(TextReply(f"{FIRST} and much more", hold=never)) as provider,
        run_gateway(config_of(provider.url)) as server,
    ):
        body = body_of(path, "hi", stream=True)
        with httpx.stream("POST", server.url + path, json=body) as answer:
            assert any(FIRST in line for line in answer.iter_lines())
        wait_until(lambda: "request" in caplog.messages)
        request = get_record(server, answer)
        assert request["end"] == "client_disconnected"
        assert request["usage"]["estimated"] is True
        assert request["usage"]["input"] == request["tokens"]
        assert request["usage"]["output"] == provider.tokens(FIRST) > 1
        assert server.gateway.running == set()
        wait_until(lambda: len(provider.abandoned) == 1)


@each_format
def test_a_disconnect_before_the_response_counts_the_prompt(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    price = Price(Decimal(1), Decimal("0.5"), Decimal(10))
    is_asked, goes_on = threading.Event(), threading.Event()
    caplog.set_level(logging.INFO, "brim.gateway")

    def waits(_: object) -> str:
        is_asked.set()
        goes_on.wait(LONG)
        return "too late"

    with (
        ScriptedServer(waits) as provider,
        run_gateway(config_of(provider.url, price=price)) as server,
    ):
        with send_raw(server, path, body_of(path, "hi")):
            assert is_asked.wait(LONG)
        wait_until(lambda: "request" in caplog.messages)
        (record,) = server.gateway.records.newest(1)
        goes_on.set()
        assert (record.end, record.status, record.is_usage_estimated) == (
            "client_disconnected",
            0,
            True,
        )
        assert record.usage == Usage(provider.requests[0].tokens)
        assert record.cost == Decimal(record.usage.input) / 1_000_000


@each_format
def test_a_failed_upstream_is_recorded(path: str) -> None:
    with (
        ScriptedServer(TextReply("one two three four five six", cut_after=6)) as provider,
        run_gateway(config_of(provider.url)) as server,
    ):
        request = get_record(server, ask(server, path, "hi", stream=True))
        assert request["end"] == "upstream_failed"
        assert request["code"] == "upstream_unreachable"
        assert request["usage"]["input"] > 0


WORDS = "a few more words, "
PIECES: dict[str, dict[str, Any]] = {
    CHAT: {"choices": [{"index": 0, "delta": {"content": WORDS}, "finish_reason": None}]},
    MESSAGES: {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": WORDS},
    },
    RESPONSES: {
        "type": "response.output_text.delta",
        "output_index": 0,
        "content_index": 0,
        "delta": WORDS,
    },
}


@pytest.mark.parametrize("number", [50, 2_000])
@each_format
def test_an_incomplete_stream_is_recorded(path: str, number: int) -> None:
    events = f"data: {json.dumps(PIECES[path])}\n\n".encode() * number
    with (
        ScriptedServer(ErrorReply(raw=events, in_stream=True)) as provider,
        run_gateway(config_of(provider.url)) as server,
    ):
        answer = ask(server, path, "hi", stream=True)
        request = get_record(server, answer)
        _, _, error = answer.content.partition(events)
        assert b"closed the stream before it was complete" in error
        assert (request["end"], request["code"]) == ("upstream_failed", "upstream_error")
        assert request["usage"]["estimated"] is True
        assert request["usage"]["output"] == pytest.approx(
            provider.tokens(WORDS * number), rel=0.05
        )


@each_format
def test_an_upstream_error_costs_nothing(path: str) -> None:
    with (
        ScriptedServer(ErrorReply(400, "no")) as provider,
        run_gateway(config_of(provider.url)) as server,
    ):
        request = get_record(server, ask(server, path, "hi"))
        assert (request["status"], request["end"]) == (400, "rejected")
        assert (request["usage"], request["cost"], request["code"]) == (None, None, None)


# Bounds


def test_recent_requests_are_bounded_and_listed_newest_first() -> None:
    with ScriptedServer("Hello.") as provider:
        config = replace(config_of(provider.url), gateway=GatewayConfig(keep_requests=3))
        with run_gateway(config) as server:
            ids = [ask(server, CHAT, "hi").headers["brim-request-id"] for _ in range(5)]
            listed = httpx.get(f"{server.url}/brim/requests").json()["data"]
            assert [request["id"] for request in listed] == ids[:1:-1]
            assert "plan" not in listed[0]
            last = httpx.get(f"{server.url}/brim/requests", params={"last": 1}).json()["data"]
            assert [request["id"] for request in last] == ids[-1:]
            gone = httpx.get(f"{server.url}/brim/requests/{ids[0]}")
            assert gone.json()["plan"] is None  # the history has the rest


def test_keeping_no_requests_works() -> None:
    with ScriptedServer("Hello.") as provider:
        config = replace(config_of(provider.url), gateway=GatewayConfig(keep_requests=0))
        with run_gateway(config) as server:
            assert ask(server, CHAT, "hi").status_code == 200
            assert httpx.get(f"{server.url}/brim/requests").json()["data"] == []


@pytest.mark.parametrize("last", ["0", "-1", "1001", "x", "²", ""])
def test_an_invalid_number_of_requests_is_rejected(last: str) -> None:
    with run_gateway(config_of("http://127.0.0.1:9")) as server:
        answer = httpx.get(f"{server.url}/brim/requests", params={"last": last})
        assert answer.status_code == 400
        assert "Use a number from 1 to 1,000" in answer.json()["error"]["message"]


def test_decisions_are_dropped_before_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_DECISIONS", 10)
    with ScriptedServer("Hello.") as provider, run_gateway(config_of(provider.url)) as server:
        answers = [ask(server, CHAT, *TURNS[:3]) for _ in range(5)]
        plans = [get_record(server, answer)["plan"] for answer in answers]
        assert [plan is None for plan in plans] == [True, True, False, False, False]
        large = ask(server, CHAT, *TURNS[:21])
        assert (
            len(get_record(server, large)["plan"]["decisions"]) == 21
        )  # the newest is always kept
        assert [get_record(server, answer)["plan"] for answer in answers] == [None] * 5


def test_running_requests_are_listed() -> None:
    goes_on = threading.Event()
    with (
        ScriptedServer(TextReply("one two three", hold=goes_on)) as provider,
        run_gateway(config_of(provider.url)) as server,
    ):
        with begin_stream(server, CHAT, goes_on) as answer:
            (listed,) = httpx.get(f"{server.url}/brim/requests").json()["data"]
        assert (listed["status"], listed["end"], listed["usage"]) == (200, "open", None)
        assert get_record(server, answer)["end"] == "completed"


def test_the_number_of_kept_decisions_is_bounded() -> None:
    kept = RecentRequests(2)
    requests = [RequestRecord("/v1/messages", "anthropic") for _ in range(5)]
    for record in requests:
        kept.add(record)
    assert kept.newest(9) == requests[:2:-1]
    assert kept.find(requests[0].id) is None
    kept.summarize_plan(requests[0])  # ended only after it was dropped
    assert kept.find(requests[0].id) is None


def test_tool_calls_are_part_of_the_usage() -> None:
    call = ToolCallReply("read", {"path": "a"})
    with ScriptedServer(call) as provider, run_gateway(config_of(provider.url)) as server:
        assert get_record(server, ask(server, CHAT, "hi"))["usage"]["output"] > 0


def test_a_request_is_freed_when_it_has_ended() -> None:
    """Its body does not wait for a garbage collection, which the gateway makes rare."""
    hold = threading.Event()
    gc.disable()
    try:
        with (
            ScriptedServer(TextReply("It works.", hold=hold)) as provider,
            run_gateway(config_of(provider.url)) as gateway,
        ):
            with begin_stream(gateway, CHAT, hold):
                (running,) = map(weakref.ref, gateway.gateway.running)
                time.sleep(3 * DISCONNECT_CHECK_DELAY)  # it listens for a disconnect now
            wait_until(lambda: running() is None)
    finally:
        gc.enable()
