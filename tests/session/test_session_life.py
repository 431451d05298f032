"""Whole conversations: what goes in, what comes back, what is counted, kept and brought back."""

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

UNKNOWN = "nobody/unheard-of"
CHEAP = Price(input=Decimal(1), cached=Decimal("0.1"), output=Decimal(10))
CALL: Raw = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "run", "arguments": '{"command": "ls"}'},
}


def session(**more: Any) -> brim.Session:
    return brim.Session("gpt-4o", **{"window": 2_001, "reply": 1, **more})


def cap(dollars: float) -> SpendingLimits:
    return SpendingLimits(cap_at_dollars=dollars)


def completion(
    content: str | None = "ok", tokens: int | None = None, calls: list[Raw] | None = None
) -> Raw:
    message: Raw = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = calls
    answer: Raw = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-4o-2024-11-20",
        "choices": [
            {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None},
        ],
    }
    if tokens is not None:
        answer["usage"] = {
            "prompt_tokens": tokens,
            "completion_tokens": 7,
            "total_tokens": tokens + 7,
            "prompt_tokens_details": {"cached_tokens": tokens // 2},
        }
    return answer


def chunks(*pieces: Raw, tokens: int | None = 40, finish: str | None = "stop") -> list[Any]:
    def chunk(**more: Any) -> ChatCompletionChunk:
        base = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}
        return ChatCompletionChunk.model_validate({**base, "choices": [], **more})

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


def anthropic_events(*texts: str, whole: bool = True) -> list[Any]:
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
    if whole:
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


def test_a_violation_names_the_turn_and_the_rule_and_appends_nothing() -> None:
    chat = session()
    chat.user("hi")
    chat.assistant(None, [CALL])
    for wrong in (
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
            chat.append(wrong)  # type: ignore[arg-type]
    assert len(chat) == 2
    chat.tool("call_1", "")
    with pytest.raises(brim.MessageError, match="call_1"):
        chat.tool("call_1", "again")
    chat.user("next")
    with pytest.raises(brim.MessageError, match="call_1"):
        chat.tool("call_1", "too late")


def test_ids_may_come_again_in_later_steps_and_results_in_any_order() -> None:
    chat = session()
    chat.user("hi")
    for _ in range(2):
        chat.assistant(None, [CALL, {**CALL, "id": "call_2"}])
        chat.tool("call_2", "b")
        chat.append({"role": "system", "content": "in between"})
        chat.tool("call_1", "a")
    assert not chat.request().plan.warnings


def test_two_user_turns_after_a_failed_call_are_valid() -> None:
    chat = session()
    chat.user("hi")
    chat.request()
    chat.user("are you there?")
    assert [turn["role"] for turn in chat.request().messages] == ["user", "user"]


def test_a_failed_append_leaves_the_waiting_output_waiting() -> None:
    chat = session()
    chat.add_output("listing")
    with pytest.raises(brim.MessageError):
        chat.user("")
    assert get_driver(chat).joined_outputs == "listing"
    chat.user("what is it?")
    assert get_driver(chat).joined_outputs == ""


def test_a_system_turn_that_is_more_than_text_stays_a_turn() -> None:
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


def test_what_is_given_is_never_changed_nor_shared() -> None:
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

    first.messages[0]["content"][0]["text"] = "changed"
    first.messages[1]["tool_calls"][0]["function"]["name"] = "changed"
    first["tools"][0]["function"]["parameters"]["type"] = "changed"
    first["stop"].append("changed")
    chat.history[0]["content"][0]["text"] = "changed"
    chat.tools[0]["function"]["name"] = "changed"
    parts[0]["text"] = "changed"
    calls[0]["function"]["name"] = "changed"
    tools[0]["function"]["name"] = "changed"
    assert json.dumps(dict(chat.request(stop=["\n"]))) == sent


@pytest.mark.parametrize("format_", ["chat", "anthropic", "responses"])
def test_nothing_of_brims_own_reaches_the_wire_in_any_format(format_: Any) -> None:
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
    _spoil(dict(body))
    assert json.dumps(dict(chat.request(max_tokens=5_000))) == json.dumps(dict(again))


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from _keys(item)


def _spoil(value: Any) -> None:
    """Change all that can be changed in a body."""
    if isinstance(value, dict):
        for item in value.values():
            _spoil(item)
        value["spoilt"] = True
    elif isinstance(value, list):
        for item in value:
            _spoil(item)
        value.append("spoilt")


# Output of commands


def test_output_waits_for_the_users_words_and_goes_out_before_them() -> None:
    chat = session()
    chat.add_output("a.py")
    chat.add_output("b.py\n")
    chat.add_output("  \n")
    assert len(chat) == 0
    counted = chat.tokens
    chat.user("which one?")
    assert chat.request().messages == [
        {"role": "user", "content": "[exec output]\na.py\n\nb.py\n\n\nwhich one?"}
    ]
    assert chat.tokens > counted > 3
    chat.user("go on")
    assert chat.request().messages[1] == {"role": "user", "content": "go on"}
    assert chat.history[0]["content"] == "which one?"


def test_output_beside_parts_is_a_part_of_its_own() -> None:
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
    text_ = chat.add_output("line of output\n" * 5_000, path="/tmp/whole.txt")
    assert get_driver(chat).count_text(text_) <= max(
        limit * 0.2, get_driver(chat).count_text("[the whole output: /tmp/whole.txt]")
    )
    assert "/tmp/whole.txt" in text_
    assert get_driver(chat).joined_outputs == text_
    if limit == 2_000:
        assert text_.startswith("line of output")
        assert get_driver(chat).count_text(text_) > 200


def test_old_output_is_cut_like_a_result_and_the_words_stay() -> None:
    chat = session()
    chat.user("begin")
    for number in range(12):
        chat.add_output(text(200, number))
        chat.user(f"what about {number}?")
        chat.assistant("fine")
        plan = chat.request().plan
    assert plan.outcome_counts().get("clipped")
    said = json.dumps(chat.request().messages)
    for decision in plan.decisions:
        if decision.role == "user" and decision.outcome == "clipped":
            assert chat.history[decision.index]["content"] in said


def test_an_output_is_text() -> None:
    with pytest.raises(brim.InputError, match="text"):
        session().add_output(b"bytes")  # type: ignore[arg-type]


# What comes back


def test_a_completion_of_the_openai_library() -> None:
    chat = session()
    chat.user("hi")
    chat.request()
    given_ = ChatCompletion.model_validate(completion("Hello.", 100))
    reply = chat.receive(given_)
    assert isinstance(reply, Reply)
    assert reply.text == "Hello."
    assert chat.history[-1] == {"role": "assistant", "content": "Hello."}
    assert chat.usage == Usage(input=100, cached=50, output=7)
    chat.user("and?")
    assert chat.request().messages[1] == {"role": "assistant", "content": "Hello."}


def test_a_call_of_the_openai_library_is_answered() -> None:
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


def test_a_message_of_the_anthropic_library_comes_back_as_it_was() -> None:
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
    again = chat.request().messages
    assert [turn["role"] for turn in again] == ["user", "assistant", "user"]
    assert again[1]["content"] == blocks
    assert again[2]["content"][0]["tool_use_id"] == "toolu_1"


def test_a_response_of_the_openai_library() -> None:
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
    given_ = Response.model_validate(
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
    chat.receive(given_)
    chat.tool("call_1", "a.py")
    assert [item.get("type", "message") for item in chat.request().messages] == [
        "message",
        "function_call",
        "function_call_output",
    ]
    assert chat.usage == Usage(input=30, output=4)


def test_json_is_taken_and_what_is_no_answer_is_refused() -> None:
    chat = session()
    chat.user("hi")
    chat.request()
    for wrong in ("text", b"x", 7, None, {}, {"error": {"message": "no"}}):
        with pytest.raises(brim.BrimError):
            get_driver(chat).receive(wrong)
    assert len(chat) == 1
    assert chat.receive(completion("yes", 10)).text == "yes"
    assert chat.ledger.total.calls == 1


@pytest.mark.parametrize("content", [None, ""])
def test_an_empty_reply_is_stored_marked_and_left_out(content: str | None) -> None:
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


def test_a_stream_passes_its_chunks_through_and_is_kept_at_its_end() -> None:
    chat = session()
    chat.user("hi")
    chat.request()
    given_ = chunks({"role": "assistant", "content": "Hel"}, {"content": "lo."})
    replies: list[Reply] = []
    stream = get_driver(chat).receive(iter(given_), replies.append)
    assert list(stream) == given_
    assert [reply.text for reply in replies] == ["Hello."]
    assert chat.history[-1] == {"role": "assistant", "content": "Hello."}
    assert chat.usage == Usage(input=40, output=3)
    stream.close()
    assert chat.ledger.total.calls == 1


def test_only_the_texts_of_a_stream() -> None:
    chat = session()
    chat.user("hi")
    chat.request()
    stream = chat.receive(iter(anthropic_events("Hel", "lo.")))
    assert list(stream.texts()) == ["Hel", "lo."]
    assert stream.reply.text == "Hello."
    assert chat.usage == Usage(input=33, output=9)


def test_a_streamed_call_is_answered() -> None:
    chat = session()
    chat.user("ls")
    chat.request()
    list(chat.receive(iter(chunks(*CALL_PIECES, finish="tool_calls"))))
    chat.tool("call_1", "a.py")
    assert chat.request().messages[1]["tool_calls"] == [CALL]


def test_a_stream_that_is_left_after_its_end_keeps_its_call() -> None:
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
def test_a_stream_that_is_left_early_is_kept_as_far_as_it_came(seen: int) -> None:
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
    slot = chat.ledger.total
    assert (slot.calls, slot.estimated) == (1, True)
    assert slot.usage.input == slot.counted > 0
    chat.user("go on")
    assert chat.request().plan.fits


def test_a_call_that_broke_off_is_not_kept() -> None:
    chat = session()
    chat.user("ls")
    chat.request()
    stream = chat.receive(iter(chunks({"content": "Let me see."}, *CALL_PIECES)))
    for _ in range(3):
        next(stream)
    stream.close()
    assert chat.history[-1] == {"role": "assistant", "content": "Let me see."}
    chat.user("go on")


def test_a_stream_that_breaks_is_kept_and_the_error_goes_on() -> None:
    def broken() -> Iterator[Any]:
        yield from chunks({"content": "Hel"}, finish=None, tokens=None)
        raise ConnectionError("gone")

    chat = session()
    chat.user("hi")
    chat.request()
    with pytest.raises(ConnectionError):
        list(chat.receive(broken()))
    assert chat.history[-1]["content"] == "Hel"
    assert chat.ledger.total.calls == 1


def test_a_stream_that_ends_in_an_error_keeps_no_call() -> None:
    chat = session()
    chat.user("ls")
    chat.request()
    events: list[Any] = [*chunks(*CALL_PIECES[:2], finish=None, tokens=None)]
    list(chat.receive(iter([*events, {"error": {"message": "overloaded"}}])))
    assert "tool_calls" not in chat.history[-1]
    assert chat.history[-1]["_empty"] is True


async def _drip(given_: list[Any], closed: list[bool]) -> AsyncIterator[Any]:
    try:
        for item in given_:
            await asyncio.sleep(0)
            yield item
    finally:
        closed.append(True)


def test_an_async_stream_does_the_same() -> None:
    async def main() -> None:
        chat, closed = session(), list[bool]()
        chat.user("hi")
        chat.request()
        given_ = chunks({"content": "Hel"}, {"content": "lo."})
        stream = chat.receive(_drip(given_, closed))
        assert [chunk async for chunk in stream] == given_
        assert chat.history[-1]["content"] == "Hello."
        assert chat.usage == Usage(input=40, output=3)

        chat.user("and?")
        chat.request()
        stream = chat.receive(_drip(anthropic_events("So", " it", " is."), closed))
        assert [piece async for piece in stream.texts()] == ["So", " it", " is."]
        assert chat.history[-1]["content"] == "So it is."
        assert closed == [True, True]

    asyncio.run(main())


@pytest.mark.parametrize("seen", [0, 1, 3])
def test_an_async_stream_that_is_left_early_is_kept_and_closed(seen: int) -> None:
    async def main() -> None:
        chat, closed = session(), list[bool]()
        chat.user("hi")
        chat.request()
        stream = chat.receive(_drip(chunks({"content": "Hel"}, {"content": "lo."}), closed))
        for _ in range(seen):
            await anext(stream)
        await stream.aclose()
        assert len(chat) == 2
        assert (chat.history[-1].get("content") or "") == ["", "Hel", "", "Hello."][seen]
        assert chat.ledger.total.calls == 1
        assert closed == ([True] if seen else [])

    asyncio.run(main())


def test_a_cancelled_async_stream_is_kept() -> None:
    async def main() -> None:
        chat = session()
        chat.user("hi")
        chat.request()

        async def endless() -> AsyncIterator[Any]:
            yield chunks({"content": "Hel"}, finish=None, tokens=None)[0]
            await asyncio.sleep(60)

        async def reading() -> None:
            async for _ in chat.receive(endless()):
                pass

        task = asyncio.create_task(reading())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert chat.history[-1]["content"] == "Hel"

    asyncio.run(main())


# What it took


def test_a_missing_usage_is_booked_as_estimated_with_all_that_was_said() -> None:
    chat = session(window=20_000)
    chat.user("hi")
    plan = chat.request().plan
    arguments = json.dumps({"text": "word " * 4_000})
    call = {**CALL, "function": {"name": "run", "arguments": arguments}}
    chat.receive(completion(None, None, [call]))
    slot = chat.ledger.total
    assert slot.estimated
    assert slot.usage.input == plan.size
    assert slot.usage.output > 4_000


def test_a_hundred_and_fifty_requests_are_counted_and_a_hundred_kept() -> None:
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


def test_slots_are_by_model_and_category_and_unknown_is_sticky() -> None:
    chat = session(window=100_000, price=CHEAP)
    chat.user("hi")
    chat.request()
    chat.receive(completion("a", 100))
    assert chat.cost == Decimal("0.000125")  # 50 fresh, 50 cached at a tenth, 7 of answer
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


def test_the_price_is_that_of_the_model_that_was_asked() -> None:
    chat = session(window=100_000, price=CHEAP)
    chat.user("hi")
    chat.request()
    chat.switch(UNKNOWN, window=100_000, price=Price(Decimal(1_000), None, Decimal(1_000)))
    chat.receive(completion("a", 100))
    assert chat.cost == Decimal("0.000125")
    reply = chat.receive(completion("b", 100))
    get_driver(chat).record_call(reply, "gpt-4o-mini", "summary", counted=100)
    assert chat.ledger.totals["gpt-4o-mini", "summary"].cost < Decimal("0.001")


def test_warnings_come_once_each_and_again_after_the_cost_is_reset() -> None:
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


def test_the_cap_refuses_before_sending_and_nothing_is_logged() -> None:
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


def test_the_cap_looks_at_the_answer_that_is_asked_for() -> None:
    chat = session(window=100_000, reply=1_000, price=CHEAP, limits=cap(0.05))
    chat.user("hi")
    chat.request()
    chat.request(max_tokens=2_000)
    with pytest.raises(brim.errors.SpendingCapError):
        chat.request(max_tokens=50_000)
    with pytest.raises(brim.errors.SpendingCapError):
        chat.request(max_completion_tokens=50_000)


def test_where_the_price_is_unknown_the_cap_says_that_it_does_not_cover_it() -> None:
    chat = brim.Session(UNKNOWN, window=10_000, limits=cap(0))
    chat.user("hi")
    chat.request()
    assert UNKNOWN in (chat.ledger.uncovered or "")


def test_a_reset_keeps_prompt_memory_project_totals_and_warnings() -> None:
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


def test_a_pinned_turn_stays_and_an_unpinned_one_may_go() -> None:
    chat = session()
    for turn in history("u20 " + "a60 u60 " * 30):
        chat.append(turn)
    kept = json.dumps(chat.request().messages)
    middle = next(
        decision.index
        for decision in chat.request().plan.decisions
        if decision.outcome == "dropped"
    )
    words = json.dumps(chat.history[middle]["content"])[1:-1]
    assert words not in kept
    chat.pin(middle)
    assert chat.pins == [middle]
    assert words in json.dumps(chat.request().messages)
    chat.unpin(middle)
    assert chat.pins == []
    assert json.dumps(chat.request().messages) == kept
    for wrong in (-1, len(chat), "1"):
        with pytest.raises(brim.InputError, match="does not exist"):
            chat.pin(wrong)  # type: ignore[arg-type]


def test_recall_brings_a_turn_back_and_the_prefix_stays() -> None:
    chat = session()
    for turn in history("u20 " + "c9 r90 " * 30):
        chat.append(turn)
    before = chat.request().messages
    gone = next(
        decision
        for decision in chat.request().plan.decisions
        if decision.outcome == "dropped" and decision.role == "tool"
    )
    whole = chat.history[gone.index]["content"]
    assert chat.recall(gone.index) == f"[turn {gone.index}, tool]\n{whole}"
    chat.user("look again")
    after = chat.request().messages
    assert whole in after[-1]["content"]
    if after[: len(before)] != before:
        assert chat.request().plan.trim_id
    with pytest.raises(brim.InputError, match="no text"):
        chat.recall(1)


@pytest.mark.parametrize("policy", ["steady", "thrift", "rolling", "sliding"])
@pytest.mark.parametrize("summarize", [None, lambda *_: "NOTES"])
def test_with_a_larger_window_everything_comes_back(policy: PolicyName, summarize: Any) -> None:
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


def test_after_a_switch_counts_window_template_and_price_follow() -> None:
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


def test_without_a_window_the_library_says_so_and_still_counts() -> None:
    chat = brim.Session(UNKNOWN)
    chat.user("hi")
    assert get_driver(chat).count_text("hello there") > 0
    with pytest.raises(brim.BudgetError, match="window"):
        chat.request()
    chat.switch(UNKNOWN, window=1_000)
    assert chat.request().messages


def test_numbers_as_they_stand_never_raise() -> None:
    chat = session(window=101, policy=resolve_policy("sliding", max_turns=2))
    for turn in history("u20 a20 u400 a9"):
        chat.append(turn)
    with pytest.raises(brim.ContextOverflowError):
        chat.request()
    assert chat.tokens > 100
    assert chat.room == 0
    assert len(chat) == 4


# From one run to the next


def resumed(chat: brim.Session, **settings_: Any) -> brim.Session:
    return brim.Session.from_dict(json.loads(json.dumps(chat.to_dict())), **settings_)


def scribe(previous: str | None, evicted: Any) -> str:
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
def test_a_session_goes_on_alike_after_being_written_down(
    policy: PolicyName,
    model: str,
    summing: bool,
    with_tools: bool,
    system: str,
    share: float | None,
    seed: int,
) -> None:
    given_: Any = {"summarize": scribe} if summing else {}
    tools = [{"type": "function", "function": {"name": "run"}}] if with_tools else None
    chat = brim.Session(
        model, window=2_001, reply=1, policy=policy, system=system, tools=tools, **given_
    )
    chat.user(text(20, seed))
    other = resumed(chat, **given_)
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
        other = resumed(other if number % 2 else chat, **given_)
        assert other.history == chat.history
        assert other.usage == chat.usage
        assert other.log.statistics() == chat.log.statistics()
        assert other.tokens == chat.tokens


def test_settings_go_before_what_was_written_down() -> None:
    chat = session(system="Be brief.")
    for turn in history("u20 " + "a60 u60 " * 30):
        chat.append(turn)
    assert chat.request().plan.is_trimmed
    larger = resumed(chat, window=100_000)
    assert not larger.request().plan.is_trimmed
    other = resumed(chat, policy="sliding")
    assert other.request().plan.policy == "sliding"
    assert resumed(chat, system="Speak.").request().messages[0]["content"] == "Speak."


def test_everything_of_a_session_is_written_down() -> None:
    policy = resolve_policy("rolling", keep_recent=2, max_turns=9)
    chat = session(system="", policy=policy, cache_marks=True)
    chat.append({"role": "developer", "content": "Be brief."})
    prompt = get_driver(chat).prompt
    prompt.blocks["project"], prompt.instructions = "src/", "Be done."
    chat.user("hi")
    chat.add_output("waiting")
    chat.pin(0)
    again = resumed(chat)
    assert again.to_dict() == chat.to_dict()
    assert again.request().messages == chat.request().messages
    assert again.request().messages[0]["role"] == "developer"
    assert (get_driver(again).joined_outputs, again.pins) == ("waiting", [0])
    assert get_driver(again).prompt == prompt


@pytest.mark.parametrize(
    "nonsense",
    [
        {},
        {"version": 1},
        {"version": 99},
        [],
        None,
        "x",
    ],
)
def test_what_cannot_be_read_is_refused(nonsense: Any) -> None:
    with pytest.raises(brim.InputError):
        brim.Session.from_dict(nonsense)


@pytest.mark.parametrize(
    "key", ["settings", "turns", "composer", "ledger", "log", "blocks", "policy"]
)
@pytest.mark.parametrize("value", [None, 7, "x", [7], {"a": 1}])
def test_a_spoilt_part_is_refused(key: str, value: Any) -> None:
    chat = session()
    chat.user("hi")
    data = chat.to_dict()
    data[key] = value
    with pytest.raises(brim.InputError):
        brim.Session.from_dict(data)


def test_a_policy_of_ones_own_cannot_be_written_down() -> None:
    from brim.fitting.passes import drop_oldest

    chat = session(policy=[drop_oldest])
    chat.user("hi")
    with pytest.raises(brim.InputError, match="passes"):
        chat.to_dict()


# Large things count


def test_long_arguments_and_short_turns_count() -> None:
    chat = session(window=100_000)
    chat.user("hi")
    small = chat.tokens
    chat.assistant("ok")
    assert chat.tokens >= small + 4
    call = {**CALL, "function": {"name": "run", "arguments": "word " * 8_000}}
    chat.assistant(None, [call])
    assert chat.tokens > 8_000


def test_a_larger_answer_is_lowered_to_what_is_left_and_none_is_added() -> None:
    chat = brim.Session("gpt-4o", window=4_000, reply=500)
    chat.user("hi")
    assert "max_tokens" not in chat.request()
    asked = chat.request(max_tokens=50_000)
    assert asked["max_tokens"] == 4_000 - asked.plan.size
    assert chat.request(max_tokens=100)["max_tokens"] == 100


def test_what_is_counted_exactly_is_cut_alike_whatever_is_reported() -> None:
    plain, told = session(), session()
    for number in range(60):
        for chat in (plain, told):
            chat.user(text(20, number))
        sent = plain.request()
        assert told.request().messages == sent.messages
        plain.receive(completion("ok"))
        told.receive(completion("ok", sent.plan.size + (-5, 0, 9)[number % 3]))


@pytest.mark.parametrize("model", [UNKNOWN, "gpt-4o"])
@pytest.mark.parametrize("policy", ["steady", "thrift", "rolling", "sliding"])
def test_a_server_that_leaves_out_what_it_had_cached_is_not_believed(
    model: str, policy: PolicyName
) -> None:
    tools = [{"type": "function", "function": {"name": "run"}}]
    chat = brim.Session(model, window=2_001, reply=1, policy=policy, tools=tools)
    for number in range(60):
        chat.user(text(20, number))
        request = chat.request()
        assert brim.count(request.messages, model="gpt-4o") <= 2_000
        chat.receive(completion("ok", 12))


def test_a_stream_that_ends_after_a_reset_is_booked_and_not_appended() -> None:
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
def test_a_vocabulary_denser_by_no_more_than_the_margin_fits_before_any_report(
    policy: PolicyName,
) -> None:
    chat = brim.Session(UNKNOWN, window=2_001, reply=1, policy=policy)
    for number in range(90):
        chat.user(f"{number} the budget of the parser reads a file, and writes another one")
        request = chat.request()
        assert 1.25 * brim.count(request.messages, model="gpt-4o") <= 2_000
        chat.assistant("so it is")
    assert request.plan.is_trimmed


class Failing:
    name = "failing"

    def count(self, text: str) -> int:
        raise RuntimeError(text)


def test_a_tokenizer_that_raises_does_not_end_the_session() -> None:
    chat = brim.Session(UNKNOWN, window=2_001, reply=1, tokenizer=Failing())
    chat.user("hi")
    assert chat.request().messages == [{"role": "user", "content": "hi"}]
