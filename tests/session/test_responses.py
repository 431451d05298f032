"""Responses and streams that a session receives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

import brim
from brim.models.pricing import Usage
from brim.session.session import get_driver
from brim.wire.reply import Reply
from tests.support.sessions import (
    CALL,
    CALL_PIECES,
    anthropic_events,
    anthropic_message,
    chunks,
    completion,
    session,
)
from tests.support.strategies import Raw


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


def test_encrypted_reasoning_is_requested_if_the_server_stores_nothing() -> None:
    chat = brim.Session("gpt-5-mini", format="responses")
    chat.user("go")
    request = chat.request(store=False)
    assert request["store"] is False
    assert request["include"] == ["reasoning.encrypted_content"]
    assert "include" not in chat.request()


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
