"""Whole conversations: turns, responses, streams, costs, other models and saved sessions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from typing import Any

import anthropic
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response
from pydantic import TypeAdapter

import brim
from brim.fitting.policies import PolicyName, resolve_policy
from brim.models.pricing import Price, Usage
from brim.session.ledger import SpendingLimits
from brim.session.session import get_driver
from brim.wire.reply import Reply
from brim.wire.templates import find_rules, find_violation
from tests.support.strategies import Raw, history, policies, text

UNKNOWN = "example/unknown-model"
CHEAP = Price(input=Decimal(1), cached=Decimal("0.1"), output=Decimal(10))
CALL: Raw = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "run", "arguments": '{"command": "ls"}'},
}


def session(**settings: Any) -> brim.Session:
    return brim.Session("gpt-4o", **{"window": 2_001, "reply": 1, **settings})


def cap(dollars: float) -> SpendingLimits:
    return SpendingLimits(cap_at_dollars=dollars)


def completion(
    content: str | None = "ok", tokens: int | None = None, calls: list[Raw] | None = None
) -> Raw:
    message: Raw = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = calls
    response: Raw = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-4o-2024-11-20",
        "choices": [
            {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None},
        ],
    }
    if tokens is not None:
        response["usage"] = {
            "prompt_tokens": tokens,
            "completion_tokens": 7,
            "total_tokens": tokens + 7,
            "prompt_tokens_details": {"cached_tokens": tokens // 2},
        }
    return response


def chunks(*pieces: Raw, tokens: int | None = 40, finish: str | None = "stop") -> list[Any]:
    def chunk(**fields: Any) -> ChatCompletionChunk:
        base = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}
        return ChatCompletionChunk.model_validate({**base, "choices": [], **fields})

    out = [chunk(choices=[{"index": 0, "delta": piece, "finish_reason": None}]) for piece in pieces]
    if finish:
        out.append(chunk(choices=[{"index": 0, "delta": {}, "finish_reason": finish}]))
    if tokens is not None:
        usage = {"prompt_tokens": tokens, "completion_tokens": 3, "total_tokens": tokens + 3}
        out.append(chunk(usage=usage))
    return out


CALL_PIECES: list[Raw] = [
    {
        "role": "assistant",
        "tool_calls": [
            {"index": 0, "id": "call_1", "type": "function", "function": {"name": "run"}}
        ],
    },
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"command":'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": ' "ls"}'}}]},
]


def anthropic_message(*blocks: Raw, stop: str = "end_turn") -> anthropic.types.Message:
    return anthropic.types.Message.model_validate(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-4-5",
            "content": list(blocks),
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": {
                "input_tokens": 10,
                "output_tokens": 5,
                "cache_read_input_tokens": 20,
                "cache_creation_input_tokens": 3,
            },
        }
    )


def anthropic_events(*texts: str) -> list[Any]:
    events: list[Raw] = [
        {
            "type": "message_start",
            "message": {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": "claude-sonnet-4-5",
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": {"input_tokens": 33, "output_tokens": 1},
            },
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    ]
    events += [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
        for piece in texts
    ]
    events += [
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 9},
        },
        {"type": "message_stop"},
    ]
    adapter: TypeAdapter[Any] = TypeAdapter(anthropic.types.RawMessageStreamEvent)
    return [adapter.validate_python(event) for event in events]


# Appending


def test_an_invalid_turn_raises_and_is_not_appended() -> None:
    chat = session()
    chat.user("hi")
    chat.assistant(None, [CALL])
    for invalid in (
        {"role": "tool", "tool_call_id": "call_2", "content": "x"},
        {"role": "tool", "tool_call_id": 1, "content": "x"},
        {"role": "tool", "tool_call_id": "", "content": "x"},
        {"role": "function", "name": "run", "content": "x"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": []},
        {"role": "user", "content": []},
        {"role": "system", "content": None},
        {"role": "developer"},
        {"role": ""},
        {"content": "x"},
        "x",
        None,
    ):
        with pytest.raises(brim.MessageError, match="message 2"):
            chat.append(invalid)  # type: ignore[arg-type]
    assert len(chat) == 2
    chat.tool("call_1", "")
    with pytest.raises(brim.MessageError, match="call_1"):
        chat.tool("call_1", "again")
    chat.user("next")
    with pytest.raises(brim.MessageError, match="call_1"):
        chat.tool("call_1", "too late")


def test_call_ids_may_repeat_and_results_may_come_in_any_order() -> None:
    chat = session()
    chat.user("hi")
    for _ in range(2):
        chat.assistant(None, [CALL, {**CALL, "id": "call_2"}])
        chat.tool("call_2", "b")
        chat.append({"role": "system", "content": "in between"})
        chat.tool("call_1", "a")
    assert not chat.request().plan.warnings


def test_two_user_turns_after_a_failed_request_are_valid() -> None:
    chat = session()
    chat.user("hi")
    chat.request()
    chat.user("are you there?")
    assert [turn["role"] for turn in chat.request().messages] == ["user", "user"]


def test_a_failed_append_keeps_the_waiting_output() -> None:
    chat = session()
    chat.add_output("listing")
    with pytest.raises(brim.MessageError):
        chat.user("")
    assert get_driver(chat).joined_outputs == "listing"
    chat.user("what is it?")
    assert get_driver(chat).joined_outputs == ""


def test_a_system_turn_with_more_than_text_stays_in_the_history() -> None:
    odd = {"role": "system", "content": [{"type": "odd", "value": 1}]}
    chat = session()
    chat.append(odd)
    chat.user("hi")
    assert chat.request().messages[0] == odd
    marked = {"role": "system", "content": "Be brief.", "cache_control": {"type": "ephemeral"}}
    chat = session()
    chat.append(marked)
    chat.user("hi")
    assert chat.request().messages[0] == marked


def test_inputs_are_copied_and_never_modified() -> None:
    parts: list[Raw] = [{"type": "text", "text": "hi"}]
    calls: list[Raw] = [{**CALL, "function": dict(CALL["function"])}]
    tools: list[Raw] = [
        {"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}
    ]
    options: Raw = {"stop": ["\n"]}
    before = json.dumps([parts, calls, tools, options])
    chat = session(tools=tools)
    chat.user(parts)
    chat.assistant(None, calls)
    chat.tool("call_1", "x")
    first = chat.request(**options)
    assert json.dumps([parts, calls, tools, options]) == before
    sent = json.dumps(dict(first))

    first["messages"][0]["content"][0]["text"] = "changed"
    first["messages"][1]["tool_calls"][0]["function"]["name"] = "changed"
    first["tools"][0]["function"]["parameters"]["type"] = "changed"
    first["stop"].append("changed")
    turns: Any = chat.history
    turns[0]["content"][0]["text"] = "changed"
    definitions: Any = chat.tools
    definitions[0]["function"]["name"] = "changed"
    parts[0]["text"] = "changed"
    calls[0]["function"]["name"] = "changed"
    tools[0]["function"]["name"] = "changed"
    assert json.dumps(dict(chat.request(stop=["\n"]))) == sent


@pytest.mark.parametrize("format_", ["chat", "anthropic", "responses"])
def test_internal_fields_are_never_sent(format_: Any) -> None:
    chat = brim.Session("claude-sonnet-4-5", window=4_000, format=format_)
    chat.append({"role": "user", "content": "hi", "_pin": True, "_priority": 2, "_mine": 1})
    chat.add_output("listing")
    thinking = {"type": "thinking", "thinking": "hm", "signature": "abc"}
    chat.receive(anthropic_message(thinking, {"type": "text", "text": "Hello."}))
    chat.user("and?")
    chat.receive(completion(None))
    chat.receive(completion(""))
    chat.user("well?")
    body = chat.request(max_tokens=5_000)
    assert not [key for key in _keys(dict(body)) if key.startswith("_")]
    again = chat.request(max_tokens=5_000)
    assert json.dumps(dict(again)) == json.dumps(dict(body))
    _modify(dict(body))
    assert json.dumps(dict(chat.request(max_tokens=5_000))) == json.dumps(dict(again))


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from _keys(item)


def _modify(value: Any) -> None:
    """Modify every object and list of a body."""
    if isinstance(value, dict):
        for item in value.values():
            _modify(item)
        value["modified"] = True
    elif isinstance(value, list):
        for item in value:
            _modify(item)
        value.append("modified")


# Outputs of commands


def test_outputs_are_sent_before_the_text_of_the_next_user_turn() -> None:
    chat = session()
    chat.add_output("a.py")
    chat.add_output("b.py\n")
    chat.add_output("  \n")
    assert len(chat) == 0
    waiting = chat.tokens
    chat.user("which one?")
    assert chat.request().messages == [
        {"role": "user", "content": "[exec output]\na.py\n\nb.py\n\n\nwhich one?"}
    ]
    assert chat.tokens > waiting > 3
    chat.user("continue")
    assert chat.request().messages[1] == {"role": "user", "content": "continue"}
    assert chat.history[0]["content"] == "which one?"


def test_an_output_before_content_parts_is_a_separate_part() -> None:
    chat = session()
    chat.add_output("a.py")
    chat.user([{"type": "text", "text": "which one?"}])
    assert chat.request().messages[0]["content"] == [
        {"type": "text", "text": "[exec output]\na.py"},
        {"type": "text", "text": "which one?"},
    ]


@pytest.mark.parametrize("limit", [0, 10, 60, 2_000])
def test_a_long_output_is_clipped_to_a_fifth_of_the_limit(limit: int) -> None:
    chat = session(window=limit + 1)
    text_ = chat.add_output("line of output\n" * 5_000, path="/tmp/output.txt")
    assert get_driver(chat).count_text(text_) <= max(
        limit * 0.2, get_driver(chat).count_text("[full output: /tmp/output.txt]")
    )
    assert "/tmp/output.txt" in text_
    assert get_driver(chat).joined_outputs == text_
    if limit == 2_000:
        assert text_.startswith("line of output")
        assert get_driver(chat).count_text(text_) > 200


def test_old_outputs_are_clipped_and_the_text_of_the_user_is_kept() -> None:
    chat = session()
    chat.user("begin")
    for number in range(12):
        chat.add_output(text(200, number))
        chat.user(f"what about {number}?")
        chat.assistant("fine")
        plan = chat.request().plan
    assert plan.outcome_counts().get("clipped")
    sent = json.dumps(chat.request().messages)
    for decision in plan.decisions:
        if decision.role == "user" and decision.outcome == "clipped":
            assert str(chat.history[decision.index]["content"]) in sent


def test_an_output_must_be_text() -> None:
    with pytest.raises(brim.InputError, match="text"):
        session().add_output(b"bytes")  # type: ignore[arg-type]


# Responses


def test_receive_accepts_a_completion_of_the_openai_library() -> None:
    chat = session()
    chat.user("hi")
    chat.request()
    response = ChatCompletion.model_validate(completion("Hello.", 100))
    reply = chat.receive(response)
    assert isinstance(reply, Reply)
    assert reply.text == "Hello."
    assert chat.history[-1] == {"role": "assistant", "content": "Hello."}
    assert chat.usage == Usage(input=100, cached=50, output=7)
    chat.user("and?")
    assert chat.request().messages[1] == {"role": "assistant", "content": "Hello."}


def test_a_tool_call_of_the_openai_library_accepts_its_result() -> None:
    chat = session()
    chat.user("ls")
    chat.request()
    reply = chat.receive(ChatCompletion.model_validate(completion(None, 50, [CALL])))
    assert [call.name for call in reply.calls] == ["run"]
    chat.tool("call_1", "a.py")
    assert chat.request().messages[1:] == [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "a.py"},
    ]


def test_a_message_of_the_anthropic_library_is_sent_back_unchanged() -> None:
    chat = brim.Session("claude-sonnet-4-5", format="anthropic", system="Be brief.")
    chat.user("ls")
    body = chat.request()
    assert body["system"]
    assert body["max_tokens"] == 4_096
    blocks: list[Raw] = [
        {"type": "thinking", "thinking": "Let me look.", "signature": "c2ln"},
        {"type": "tool_use", "id": "toolu_1", "name": "run", "input": {"command": "ls"}},
    ]
    chat.receive(anthropic_message(*blocks, stop="tool_use"))
    assert chat.usage == Usage(input=33, cached=20, written=3, output=5)
    chat.tool("toolu_1", "a.py")
    again = chat.request()["messages"]
    assert [turn["role"] for turn in again] == ["user", "assistant", "user"]
    assert again[1]["content"] == blocks
    assert again[2]["content"][0]["tool_use_id"] == "toolu_1"


def test_receive_accepts_a_response_of_the_openai_library() -> None:
    chat = brim.Session("gpt-4o", format="responses")
    chat.user("ls")
    chat.request()
    call = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "run",
        "arguments": "{}",
        "status": "completed",
    }
    response = Response.model_validate(
        {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "model": "gpt-4o",
            "status": "completed",
            "output": [call],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": 30,
                "output_tokens": 4,
                "total_tokens": 34,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
            },
        }
    )
    chat.receive(response)
    chat.tool("call_1", "a.py")
    assert [item.get("type", "message") for item in chat.request().messages] == [
        "message",
        "function_call",
        "function_call_output",
    ]
    assert chat.usage == Usage(input=30, output=4)


def test_receive_accepts_json_and_rejects_other_values() -> None:
    chat = session()
    chat.user("hi")
    chat.request()
    for invalid in ("text", b"x", 7, None, {}, {"error": {"message": "no"}}):
        with pytest.raises(brim.BrimError):
            get_driver(chat).receive(invalid)
    assert len(chat) == 1
    assert chat.receive(completion("yes", 10)).text == "yes"
    assert chat.ledger.total.calls == 1


@pytest.mark.parametrize("content", [None, ""])
def test_an_empty_reply_is_stored_with_a_mark_and_not_sent(content: str | None) -> None:
    chat = session()
    chat.user("hi")
    chat.request()
    reply = chat.receive(completion(content, 10))
    assert reply.is_empty
    assert len(chat) == 2
    assert chat.history[1]["_empty"] is True
    chat.user("hello?")
    assert [turn["content"] for turn in chat.request().messages] == ["hi", "hello?"]
    assert chat.usage.input == 10
    with pytest.raises(brim.InputError, match="empty reply"):
        chat.pin(1)
    chat.pin(2)
    assert chat.pins == [2]
    with pytest.raises(brim.MessageError, match="message 3"):
        chat.append({"role": "banana", "content": "x"})
    copy = brim.Session.from_dict(json.loads(json.dumps(chat.to_dict())))
    assert copy.request().messages == chat.request().messages
    assert copy.pins == [2]


# Streams


def test_a_stream_yields_its_chunks_and_is_recorded_when_it_ends() -> None:
    chat = session()
    chat.user("hi")
    chat.request()
    received = chunks({"role": "assistant", "content": "Hel"}, {"content": "lo."})
    replies: list[Reply] = []
    stream = get_driver(chat).receive(iter(received), replies.append)
    assert list(stream) == received
    assert [reply.text for reply in replies] == ["Hello."]
    assert chat.history[-1] == {"role": "assistant", "content": "Hello."}
    assert chat.usage == Usage(input=40, output=3)
    stream.close()
    assert chat.ledger.total.calls == 1


def test_texts_yields_only_the_texts_of_a_stream() -> None:
    chat = session()
    chat.user("hi")
    chat.request()
    stream = chat.receive(iter(anthropic_events("Hel", "lo.")))
    assert list(stream.texts()) == ["Hel", "lo."]
    assert stream.reply.text == "Hello."
    assert chat.usage == Usage(input=33, output=9)


def test_a_streamed_tool_call_accepts_its_result() -> None:
    chat = session()
    chat.user("ls")
    chat.request()
    list(chat.receive(iter(chunks(*CALL_PIECES, finish="tool_calls"))))
    chat.tool("call_1", "a.py")
    assert chat.request().messages[1]["tool_calls"] == [CALL]


def test_a_stream_closed_after_its_finish_reason_keeps_its_tool_call() -> None:
    chat = session()
    chat.user("ls")
    chat.request()
    stream = chat.receive(iter(chunks(*CALL_PIECES, finish="tool_calls")))
    for chunk in stream:
        if chunk.choices[0].finish_reason:
            break
    stream.close()
    chat.tool("call_1", "a.py")


@pytest.mark.parametrize("seen", [0, 1, 2])
def test_a_stream_closed_early_keeps_the_received_text(seen: int) -> None:
    chat = session()
    chat.user("hi")
    chat.request()
    stream = chat.receive(iter(chunks({"content": "Hel"}, {"content": "lo."}, {"content": "!"})))
    for _ in range(seen):
        next(stream)
    stream.close()
    assert len(chat) == 2
    assert (chat.history[-1].get("content") or "") == ["", "Hel", "Hello."][seen]
    assert chat.history[-1].get("_empty", False) is (seen == 0)
    total = chat.ledger.total
    assert (total.calls, total.estimated) == (1, True)
    assert total.usage.input == total.counted > 0
    chat.user("continue")
    assert chat.request().plan.fits


def test_an_interrupted_tool_call_is_not_stored() -> None:
    chat = session()
    chat.user("ls")
    chat.request()
    stream = chat.receive(iter(chunks({"content": "Let me see."}, *CALL_PIECES)))
    for _ in range(3):
        next(stream)
    stream.close()
    assert chat.history[-1] == {"role": "assistant", "content": "Let me see."}
    chat.user("continue")


def test_a_stream_that_fails_is_recorded_and_its_error_is_raised() -> None:
    def fail() -> Iterator[Any]:
        yield from chunks({"content": "Hel"}, finish=None, tokens=None)
        raise ConnectionError("reset")

    chat = session()
    chat.user("hi")
    chat.request()
    with pytest.raises(ConnectionError):
        list(chat.receive(fail()))
    assert chat.history[-1]["content"] == "Hel"
    assert chat.ledger.total.calls == 1


def test_a_stream_that_ends_with_an_error_event_keeps_no_tool_call() -> None:
    chat = session()
    chat.user("ls")
    chat.request()
    events: list[Any] = [*chunks(*CALL_PIECES[:2], finish=None, tokens=None)]
    list(chat.receive(iter([*events, {"error": {"message": "overloaded"}}])))
    assert "tool_calls" not in chat.history[-1]
    assert chat.history[-1]["_empty"] is True


async def _stream(chunks_: list[Any], closed: list[bool]) -> AsyncIterator[Any]:
    try:
        for item in chunks_:
            await asyncio.sleep(0)
            yield item
    finally:
        closed.append(True)


def test_an_async_stream_is_recorded_when_it_ends() -> None:
    async def main() -> None:
        chat, closed = session(), list[bool]()
        chat.user("hi")
        chat.request()
        received = chunks({"content": "Hel"}, {"content": "lo."})
        stream = chat.receive(_stream(received, closed))
        assert [chunk async for chunk in stream] == received
        assert chat.history[-1]["content"] == "Hello."
        assert chat.usage == Usage(input=40, output=3)

        chat.user("and?")
        chat.request()
        stream = chat.receive(_stream(anthropic_events("So", " it", " is."), closed))
        assert [piece async for piece in stream.texts()] == ["So", " it", " is."]
        assert str(chat.history[-1]["content"]) == "So it is."
        assert closed == [True, True]

    asyncio.run(main())


@pytest.mark.parametrize("seen", [0, 1, 3])
def test_an_async_stream_closed_early_is_recorded_and_closes_its_source(seen: int) -> None:
    async def main() -> None:
        chat, closed = session(), list[bool]()
        chat.user("hi")
        chat.request()
        stream = chat.receive(_stream(chunks({"content": "Hel"}, {"content": "lo."}), closed))
        for _ in range(seen):
            await anext(stream)
        await stream.aclose()
        assert len(chat) == 2
        assert (chat.history[-1].get("content") or "") == ["", "Hel", "", "Hello."][seen]
        assert chat.ledger.total.calls == 1
        assert closed == ([True] if seen else [])

    asyncio.run(main())


def test_a_cancelled_async_stream_is_recorded() -> None:
    async def main() -> None:
        chat = session()
        chat.user("hi")
        chat.request()

        async def endless() -> AsyncIterator[Any]:
            yield chunks({"content": "Hel"}, finish=None, tokens=None)[0]
            await asyncio.sleep(60)

        async def read() -> None:
            async for _ in chat.receive(endless()):
                pass

        task = asyncio.create_task(read())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert chat.history[-1]["content"] == "Hel"

    asyncio.run(main())


# Usage and cost


def test_a_reply_without_usage_is_recorded_with_estimated_tokens() -> None:
    chat = session(window=20_000)
    chat.user("hi")
    plan = chat.request().plan
    arguments = json.dumps({"text": "word " * 4_000})
    call = {**CALL, "function": {"name": "run", "arguments": arguments}}
    chat.receive(completion(None, None, [call]))
    total = chat.ledger.total
    assert total.estimated
    assert total.usage.input == plan.size
    assert total.usage.output > 4_000


def test_the_log_counts_all_requests_and_keeps_the_last_hundred() -> None:
    times = iter(range(1_000))
    chat = session()
    get_driver(chat).clock = lambda: float(next(times))
    assert chat.log.statistics() == type(chat.log.statistics())()
    for _ in range(150):
        chat.user(text(20))
        chat.request(category="goal")
        chat.receive(completion("ok", 10))
    statistics = chat.log.statistics()
    assert statistics.requests == 150
    assert 0 < statistics.trimmed < 150
    assert 0.5 < statistics.utilization <= 1
    entries = chat.log.entries
    assert [entry.time for entry in entries] == [float(n) for n in range(50, 150)]
    assert {(entry.model, entry.category, entry.limit) for entry in entries} == {
        ("gpt-4o", "goal", 2_000)
    }
    last = entries[-1]
    assert last.trimmed
    assert last.before > last.limit >= last.after
    assert last.dropped > 0
    assert chat.ledger.totals["gpt-4o", "goal"].calls == 150


def test_totals_are_by_model_and_category_and_an_unknown_cost_stays_unknown() -> None:
    chat = session(window=100_000, price=CHEAP)
    chat.user("hi")
    chat.request()
    chat.receive(completion("a", 100))
    assert chat.cost == Decimal("0.000125")  # 50 uncached, 50 cached at a tenth, 7 of output
    assert not chat.ledger.has_unknown_cost
    chat.switch(UNKNOWN, window=100_000)
    chat.user("hi")
    chat.request()
    chat.receive(completion("b", 100))
    assert chat.ledger.totals[UNKNOWN, "main"].unknown
    chat.switch(UNKNOWN, window=100_000, price=CHEAP)
    chat.user("hi")
    chat.request()
    chat.receive(completion("c", 100))
    assert chat.ledger.totals[UNKNOWN, "main"].unknown
    assert str(chat.ledger).startswith("at least")
    with pytest.raises(brim.InputError, match="category"):
        chat.request(category="banana")  # type: ignore[arg-type]


def test_a_reply_is_charged_at_the_price_of_the_model_that_was_called() -> None:
    chat = session(window=100_000, price=CHEAP)
    chat.user("hi")
    chat.request()
    chat.switch(UNKNOWN, window=100_000, price=Price(Decimal(1_000), None, Decimal(1_000)))
    chat.receive(completion("a", 100))
    assert chat.cost == Decimal("0.000125")
    reply = chat.receive(completion("b", 100))
    get_driver(chat).record_call(reply, "gpt-4o-mini", "summary", counted=100)
    assert chat.ledger.totals["gpt-4o-mini", "summary"].cost < Decimal("0.001")


def test_each_warning_is_given_once_and_again_after_the_ledger_is_reset() -> None:
    limits = SpendingLimits(warn_at_dollars=0.0002, warn_at_tokens=300)
    chat = session(price=CHEAP, limits=limits)
    for _ in range(6):
        chat.user("hi")
        chat.request()
        chat.receive(completion("a", 100))
    assert len(chat.warnings) == 2
    chat.reset()
    assert len(chat.warnings) == 2
    chat.ledger.reset()
    chat.warnings.clear()
    assert chat.warnings == []
    assert (chat.cost, chat.usage) == (Decimal(0), Usage())
    for _ in range(6):
        chat.user("hi")
        chat.request()
        chat.receive(completion("a", 100))
    assert len(chat.warnings) == 2


def test_a_request_that_could_exceed_the_cap_raises_and_is_not_logged() -> None:
    chat = session(window=10_000, reply=1_000, price=CHEAP, limits=cap(0.0105))
    chat.user("hi")
    chat.request()
    chat.receive(completion("a", 900))
    chat.user("again")
    with pytest.raises(brim.errors.SpendingCapError, match="cap_at_dollars"):
        chat.request()
    assert chat.log.statistics().requests == 1
    assert len(chat) == 3
    chat.ledger.reset()
    chat.warnings.clear()
    assert chat.request().messages[-1]["content"] == "again"


def test_the_cap_covers_the_reply_limit_of_the_request() -> None:
    chat = session(window=100_000, reply=1_000, price=CHEAP, limits=cap(0.05))
    chat.user("hi")
    chat.request()
    chat.request(max_tokens=2_000)
    with pytest.raises(brim.errors.SpendingCapError):
        chat.request(max_tokens=50_000)
    with pytest.raises(brim.errors.SpendingCapError):
        chat.request(max_completion_tokens=50_000)


def test_the_ledger_names_a_model_without_a_price_as_not_covered_by_the_cap() -> None:
    chat = brim.Session(UNKNOWN, window=10_000, limits=cap(0))
    chat.user("hi")
    chat.request()
    assert UNKNOWN in (chat.ledger.uncovered or "")


def test_a_reset_keeps_prompt_blocks_totals_and_warnings() -> None:
    limits = SpendingLimits(warn_at_tokens=1)
    chat = session(system="Be brief.", price=CHEAP, limits=limits, summarize=lambda *_: "NOTES")
    prompt = get_driver(chat).prompt
    prompt.blocks["project"] = "src/"
    for turn in history("u20 " + "a60 u60 " * 30):
        chat.append(turn)
    chat.request()
    chat.receive(completion("a", 100))
    chat.add_output("waiting")
    chat.pin(0)
    prompt.instructions = "Be done."
    before = get_driver(chat).system_text
    chat.reset()
    assert len(chat) == len(chat.pins) == 0
    assert not get_driver(chat).joined_outputs
    assert {chat.summary, prompt.instructions} == {None}
    assert before != get_driver(chat).system_text
    assert get_driver(chat).system_text == "Be brief.\n\n[project]\nsrc/"
    assert chat.usage.input == 100
    assert len(chat.warnings) == 1
    assert chat.log.statistics().requests == 1
    chat.user("hello")
    assert not chat.request().plan.is_trimmed


# Pins, recall and other models


def test_a_pinned_turn_is_kept_until_it_is_unpinned() -> None:
    chat = session()
    for turn in history("u20 " + "a60 u60 " * 30):
        chat.append(turn)
    kept = json.dumps(chat.request().messages)
    middle = next(
        decision.index
        for decision in chat.request().plan.decisions
        if decision.outcome == "dropped"
    )
    content = json.dumps(chat.history[middle]["content"])[1:-1]
    assert content not in kept
    chat.pin(middle)
    assert chat.pins == [middle]
    assert content in json.dumps(chat.request().messages)
    chat.unpin(middle)
    assert chat.pins == []
    assert json.dumps(chat.request().messages) == kept
    for invalid in (-1, len(chat), "1"):
        with pytest.raises(brim.InputError, match="does not exist"):
            chat.pin(invalid)  # type: ignore[arg-type]


def test_recall_sends_a_dropped_turn_again_and_keeps_the_prefix() -> None:
    chat = session()
    for turn in history("u20 " + "c9 r90 " * 30):
        chat.append(turn)
    before = chat.request().messages
    dropped = next(
        decision
        for decision in chat.request().plan.decisions
        if decision.outcome == "dropped" and decision.role == "tool"
    )
    content = chat.history[dropped.index]["content"]
    assert chat.recall(dropped.index) == f"[turn {dropped.index}, tool]\n{content}"
    chat.user("look again")
    after = chat.request()["messages"]
    assert content in after[-1]["content"]
    if after[: len(before)] != before:
        assert chat.request().plan.trim_id
    with pytest.raises(brim.InputError, match="no text"):
        chat.recall(1)


@pytest.mark.parametrize("policy", ["steady", "thrift", "rolling", "sliding"])
@pytest.mark.parametrize("summarize", [None, lambda *_: "NOTES"])
def test_after_a_switch_to_a_larger_window_all_turns_are_sent_again(
    policy: PolicyName, summarize: Any
) -> None:
    chat = session(window=100_000, policy=policy)
    turns = history("u20 " + "c9 r200 a30 u60 " * 30)
    for turn in turns:
        chat.append(turn)
    whole = chat.request().messages
    chat.summarize = summarize
    chat.switch("gpt-4o-mini", window=2_001, reply=1)
    small = chat.request()
    assert small.plan.is_trimmed
    assert small["model"] == "gpt-4o-mini"
    assert list(chat.history) == turns
    for again in (chat, brim.Session.from_dict(json.loads(json.dumps(chat.to_dict())))):
        again.switch("gpt-4o", window=100_000)
        sent = [turn for turn in again.request().messages if turn["role"] != "system"]
        assert sent == whole
        assert not again.request().plan.is_trimmed


def test_a_switch_changes_counts_window_and_template() -> None:
    chat = brim.Session("gpt-4o", system="Be brief.")
    for turn in history("u9 c9 r9 u9"):
        chat.append(turn)
    free = chat.request()
    chat.switch("gemma-2-9b-it", window=4_000, reply=100)
    strict = chat.request()
    rules = get_driver(chat).profile.rules()
    assert not rules.free
    assert find_violation(strict.messages, rules) is None
    assert (strict.plan.budget.window, strict.plan.budget.reply) == (4_000, 100)
    assert strict.plan.size >= brim.count(strict.messages, model="gemma-2-9b-it")
    chat.switch("gpt-4o")
    assert dict(chat.request()) == dict(free)
    with pytest.raises(brim.InputError):
        chat.switch("gpt-4o", window=-1)
    with pytest.raises(brim.InputError):
        chat.switch("gpt-4o", template="no such rules")
    assert chat.model == "gpt-4o"


def test_a_template_can_be_named() -> None:
    chat = brim.Session("local", window=4_000, system="Be brief.", template="gemma")
    for turn in history("u9 c9 r9 u9 u9"):
        chat.append(turn)
    assert find_violation(chat.request().messages, find_rules("gemma")) is None


def test_an_unknown_window_raises_on_request_but_not_on_counting() -> None:
    chat = brim.Session(UNKNOWN)
    chat.user("hi")
    assert get_driver(chat).count_text("hello there") > 0
    with pytest.raises(brim.BudgetError, match="window"):
        chat.request()
    chat.switch(UNKNOWN, window=1_000)
    assert chat.request().messages


def test_tokens_and_room_never_raise() -> None:
    chat = session(window=101, policy=resolve_policy("sliding", max_turns=2))
    for turn in history("u20 a20 u400 a9"):
        chat.append(turn)
    with pytest.raises(brim.ContextOverflowError):
        chat.request()
    assert chat.tokens > 100
    assert chat.room == 0
    assert len(chat) == 4


# Saved sessions


def restore(chat: brim.Session, **settings_: Any) -> brim.Session:
    return brim.Session.from_dict(json.loads(json.dumps(chat.to_dict())), **settings_)


def summarize(previous: str | None, evicted: Any) -> str:
    return f"{previous or 'NOTES'}+{len(evicted or ())}"


@given(
    policies,
    st.sampled_from((UNKNOWN, "gpt-4o", "gemma-2-9b-it")),
    st.booleans(),
    st.booleans(),
    st.sampled_from(("", "Be brief. " * 40)),
    st.sampled_from((None, 0.8, 1.0, 1.2)),
    st.integers(0, 10**6),
)
@example("thrift", UNKNOWN, True, False, "Be brief. " * 40, None, 26)
@settings(max_examples=60)
def test_a_restored_session_continues_with_the_same_requests(
    policy: PolicyName,
    model: str,
    with_summary: bool,
    with_tools: bool,
    system: str,
    share: float | None,
    seed: int,
) -> None:
    settings_: Any = {"summarize": summarize} if with_summary else {}
    tools = [{"type": "function", "function": {"name": "run"}}] if with_tools else None
    chat = brim.Session(
        model, window=2_001, reply=1, policy=policy, system=system, tools=tools, **settings_
    )
    chat.user(text(20, seed))
    other = restore(chat, **settings_)
    for number in range(24):
        kind = (seed >> number) % 3
        for one in (chat, other):
            if kind == 0:
                one.add_output(text(150, number))
            elif kind == 1:
                one.assistant(None, [CALL])
                one.tool("call_1", text(120, number + seed))
            one.user(text(1 + (seed + number) % 40, number))
        sent = chat.request()
        again = other.request()
        assert dict(again) == dict(sent)
        assert again.plan.decisions == sent.plan.decisions
        tokens = None
        if share is not None:
            tokens = round(share * brim.count(sent.messages, model="gpt-4o"))
        for one in (chat, other):
            one.receive(completion(text(9, number), tokens))
        assert other.summary == chat.summary
        other = restore(other if number % 2 else chat, **settings_)
        assert other.history == chat.history
        assert other.usage == chat.usage
        assert other.log.statistics() == chat.log.statistics()
        assert other.tokens == chat.tokens


def test_settings_override_saved_settings() -> None:
    chat = session(system="Be brief.")
    for turn in history("u20 " + "a60 u60 " * 30):
        chat.append(turn)
    assert chat.request().plan.is_trimmed
    larger = restore(chat, window=100_000)
    assert not larger.request().plan.is_trimmed
    other = restore(chat, policy="sliding")
    assert other.request().plan.policy == "sliding"
    assert restore(chat, system="Explain.").request().messages[0]["content"] == "Explain."


def test_to_dict_saves_the_whole_session() -> None:
    policy = resolve_policy("rolling", keep_recent=2, max_turns=9)
    chat = session(system="", policy=policy, cache_marks=True)
    chat.append({"role": "developer", "content": "Be brief."})
    prompt = get_driver(chat).prompt
    prompt.blocks["project"], prompt.instructions = "src/", "Be done."
    chat.user("hi")
    chat.add_output("waiting")
    chat.pin(0)
    again = restore(chat)
    assert again.to_dict() == chat.to_dict()
    assert again.request().messages == chat.request().messages
    assert again.request().messages[0]["role"] == "developer"
    assert (get_driver(again).joined_outputs, again.pins) == ("waiting", [0])
    assert get_driver(again).prompt == prompt


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"version": 1},
        {"version": 99},
        [],
        None,
        "x",
    ],
)
def test_invalid_saved_data_raises(data: Any) -> None:
    with pytest.raises(brim.InputError):
        brim.Session.from_dict(data)


@pytest.mark.parametrize(
    "key", ["settings", "turns", "composer", "ledger", "log", "blocks", "policy"]
)
@pytest.mark.parametrize("value", [None, 7, "x", [7], {"a": 1}])
def test_an_invalid_part_of_saved_data_raises(key: str, value: Any) -> None:
    chat = session()
    chat.user("hi")
    data = chat.to_dict()
    data[key] = value
    with pytest.raises(brim.InputError):
        brim.Session.from_dict(data)


def test_a_session_with_custom_passes_cannot_be_saved() -> None:
    from brim.fitting.passes import drop_oldest

    chat = session(policy=[drop_oldest])
    chat.user("hi")
    with pytest.raises(brim.InputError, match="passes"):
        chat.to_dict()


# Counts and limits


def test_tool_arguments_and_short_turns_are_counted() -> None:
    chat = session(window=100_000)
    chat.user("hi")
    small = chat.tokens
    chat.assistant("ok")
    assert chat.tokens >= small + 4
    call = {**CALL, "function": {"name": "run", "arguments": "word " * 8_000}}
    chat.assistant(None, [call])
    assert chat.tokens > 8_000


def test_max_tokens_is_lowered_to_the_room_left_and_never_added() -> None:
    chat = brim.Session("gpt-4o", window=4_000, reply=500)
    chat.user("hi")
    assert "max_tokens" not in chat.request()
    request = chat.request(max_tokens=50_000)
    assert request["max_tokens"] == 4_000 - request.plan.size
    assert chat.request(max_tokens=100)["max_tokens"] == 100


def test_reported_usage_does_not_change_trims_if_the_count_is_exact() -> None:
    unreported, reported = session(), session()
    for number in range(60):
        for chat in (unreported, reported):
            chat.user(text(20, number))
        sent = unreported.request()
        assert reported.request().messages == sent.messages
        unreported.receive(completion("ok"))
        reported.receive(completion("ok", sent.plan.size + (-5, 0, 9)[number % 3]))


@pytest.mark.parametrize("model", [UNKNOWN, "gpt-4o"])
@pytest.mark.parametrize("policy", ["steady", "thrift", "rolling", "sliding"])
def test_usage_that_excludes_cached_tokens_does_not_cause_an_overflow(
    model: str, policy: PolicyName
) -> None:
    tools = [{"type": "function", "function": {"name": "run"}}]
    chat = brim.Session(model, window=2_001, reply=1, policy=policy, tools=tools)
    for number in range(60):
        chat.user(text(20, number))
        request = chat.request()
        assert brim.count(request.messages, model="gpt-4o") <= 2_000
        chat.receive(completion("ok", 12))


def test_a_stream_that_ends_after_a_reset_is_charged_and_not_appended() -> None:
    chat = session()
    chat.user("hi")
    chat.request()
    stream = chat.receive(iter(chunks({"content": "Hel"}, {"content": "lo."})))
    next(stream)
    chat.reset()
    list(stream)
    assert len(chat) == 0
    assert chat.usage == Usage(input=40, output=3)


@pytest.mark.parametrize("policy", ["steady", "thrift", "rolling", "sliding"])
def test_without_reported_usage_the_margin_covers_a_denser_tokenizer(
    policy: PolicyName,
) -> None:
    chat = brim.Session(UNKNOWN, window=2_001, reply=1, policy=policy)
    for number in range(90):
        chat.user(f"{number} the budget of the parser reads a file, and writes another one")
        request = chat.request()
        assert 1.25 * brim.count(request.messages, model="gpt-4o") <= 2_000
        chat.assistant("yes it does")
    assert request.plan.is_trimmed


class FailingTokenizer:
    name = "failing"

    def count(self, text: str) -> int:
        raise RuntimeError(text)


def test_a_session_survives_a_tokenizer_that_raises() -> None:
    chat = brim.Session(UNKNOWN, window=2_001, reply=1, tokenizer=FailingTokenizer())
    chat.user("hi")
    assert chat.request().messages == [{"role": "user", "content": "hi"}]
