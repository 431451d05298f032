"""Replies of the three formats, streamed and not."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from typing import Any

import anthropic
import openai.types.chat
import openai.types.responses
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import BrimError, InvalidResponseError
from brim.messages import Call
from brim.models.pricing import Usage
from brim.wire.reply import Reply
from brim.wire.reply_parser import parse_reply
from brim.wire.streams import StreamAccumulator
from tests.support.strategies import Raw
from tests.support.wire.replies import ANTHROPIC, BLOCKS, CALLS, CHAT, ITEMS, RESPONSE

WHOLE: dict[str, tuple[Raw, Callable[[], Any]]] = {
    "chat": (CHAT, lambda: openai.types.chat.ChatCompletion),
    "anthropic": (ANTHROPIC, lambda: anthropic.types.Message),
    "responses": (RESPONSE, lambda: openai.types.responses.Response),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_reply_has_text_thinking_calls_and_model(name: str) -> None:
    response, _ = WHOLE[name]
    reply = parse_reply(response)
    assert reply.text == str(reply) == "Let me look."
    assert reply.thinking == "They want a file."
    assert reply.calls[0].name == "read"
    assert json.loads(reply.calls[0].arguments) == {"path": "a"}
    assert reply.model == response["model"]
    assert not reply.is_empty
    assert not reply.is_cut


@pytest.mark.parametrize("name", WHOLE)
def test_an_sdk_object_reads_like_its_json(name: str) -> None:
    response, library = WHOLE[name]
    assert parse_reply(library().model_validate(response)) == parse_reply(response)
    assert parse_reply(library().construct(**response)) == parse_reply(response)


def test_fields_unknown_to_the_sdk_are_read() -> None:
    odd = chat({"role": "assistant", "content": "b", "reasoning": "a"}) | {"usage": {"x": 1}}
    reply = parse_reply(openai.types.chat.ChatCompletion.construct(**odd))
    assert reply == parse_reply(odd)
    assert reply.thinking == "a"


def test_a_chat_turn_can_be_sent_back() -> None:
    reply = parse_reply(CHAT)
    message = CHAT["choices"][0]["message"]
    assert reply.message == message
    assert reply.calls == CALLS
    assert reply.finish == "tool_calls"
    assert reply.usage == Usage(100, 60, 20)
    assert reply.cost is None


def test_an_anthropic_turn_keeps_its_original_blocks() -> None:
    reply = parse_reply(ANTHROPIC)
    assert reply.message["_anthropic"] == BLOCKS
    assert reply.message["content"] == "Let me look."
    assert str(reply.message["reasoning_content"]).startswith("They want a file.")
    message: Raw = dict(reply.message)
    assert message["tool_calls"][0]["id"] == "toolu_1"
    assert reply.finish == "tool_use"
    assert reply.usage == Usage(100, 80, 20, 10)


def test_a_responses_turn_keeps_its_original_items() -> None:
    reply = parse_reply(RESPONSE)
    assert reply.message["_responses"] == ITEMS
    assert reply.message["content"] == "Let me look."
    assert reply.calls == CALLS[:1]
    assert reply.finish == "completed"
    assert reply.usage == Usage(100, 60, 20)


def test_encrypted_thinking_has_a_size() -> None:
    hidden = {"type": "thinking", "thinking": "", "signature": "c2ln" * 30}
    reply = parse_reply(ANTHROPIC | {"content": [hidden, BLOCKS[2]]})
    assert reply.thinking == ""
    assert len(str(reply.message["reasoning_content"])) == 40


def chat(message: Raw, **more: Any) -> Raw:
    return {"choices": [{"index": 0, "finish_reason": "stop", "message": message} | more]}


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ({"reasoning": "a"}, {"reasoning": "a"}),
        ({"reasoning": "a", "reasoning_content": "a"}, {"reasoning_content": "a"}),
        (
            {"reasoning": "a", "reasoning_details": [{"type": "reasoning.text", "text": "a"}]},
            {"reasoning_details": [{"type": "reasoning.text", "text": "a"}]},
        ),
    ],
)
def test_thinking_is_kept_once_in_its_original_field(message: Raw, kept: Raw) -> None:
    reply = parse_reply(chat({"role": "assistant", "content": "b"} | message))
    assert reply.message == {"role": "assistant", "content": "b"} | kept
    assert reply.thinking == "a"


def test_thinking_parts_of_a_content_are_thinking() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "yes"},
    ]
    reply = parse_reply(chat({"role": "assistant", "content": parts}))
    assert (reply.text, reply.thinking) == ("yes", "hm")
    assert reply.message["content"] == parts


def test_extra_fields_of_a_call_are_kept() -> None:
    signed = {"google": {"thought_signature": "c2ln"}}
    call = {"index": 0, "function": {"name": "f", "arguments": {"a": 1}}, "extra_content": signed}
    reply = parse_reply(chat({"content": None, "tool_calls": [call, call]}))
    message: Raw = dict(reply.message)
    assert message["tool_calls"][0]["extra_content"] == signed
    assert [call.id for call in reply.calls] == ["call_0", "call_1"]
    assert reply.calls[0].arguments == '{"a":1}'


def test_every_call_has_an_id() -> None:
    nameless = {"type": "tool_use", "name": "read", "input": {}}
    reply = parse_reply(ANTHROPIC | {"content": [nameless, nameless]})
    assert [call.id for call in reply.calls] == ["call_0", "call_1"]


def test_a_refusal_is_the_text() -> None:
    assert parse_reply(chat({"content": None, "refusal": "No."})).text == "No."
    part = {"type": "refusal", "refusal": "No."}
    item = {"type": "message", "role": "assistant", "content": [part]}
    assert parse_reply(RESPONSE | {"output": [item]}).text == "No."


@pytest.mark.parametrize(
    ("response", "finish", "is_cut"),
    [
        (chat({"content": "a"}, finish_reason="length"), "length", True),
        (chat({"content": "a"}, finish_reason="model_length"), "model_length", True),
        (ANTHROPIC | {"stop_reason": "max_tokens"}, "max_tokens", True),
        (
            RESPONSE
            | {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
            "incomplete",
            True,
        ),
        (
            RESPONSE | {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}},
            "content_filter",
            False,
        ),
    ],
)
def test_a_reply_that_reached_its_length_limit_is_cut(
    response: Raw, finish: str, is_cut: bool
) -> None:
    reply = parse_reply(response)
    assert (reply.finish, reply.is_cut) == (finish, is_cut)


def test_a_reported_cost_is_kept() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "cost": 0.000014}
    assert parse_reply(chat({"content": "a"}) | {"usage": usage}).cost == Decimal("0.000014")


@pytest.mark.parametrize(
    ("found", "names"),
    [
        ("<!DOCTYPE html><title>502</title>", "<!DOCTYPE html>"),
        (b"", "empty text"),
        (None, "null"),
        (object(), "object"),
        ({}, "nothing"),
        ({"detail": "Not Found"}, "detail"),
        ({"choices": []}, "the first choice"),
        ({"choices": None}, "null"),
        ({"choices": [None]}, "null"),
        ({"choices": [{"text": "legacy"}]}, "message"),
        (chat({"content": 7}), "int"),
        (chat({"content": "a", "tool_calls": "x"}), "tool_calls"),
        (chat({"content": "a", "tool_calls": [None]}), "a tool call"),
        (chat({"content": "a", "tool_calls": [{}]}), "function"),
        ({"role": "assistant", "content": ["text"]}, "block"),
        ({"output": [3]}, "item"),
        ({"output": "text"}, "output"),
    ],
)
def test_the_error_describes_an_invalid_response(found: object, names: str) -> None:
    with pytest.raises(InvalidResponseError, match=names):
        parse_reply(found)


@pytest.mark.parametrize(
    "response",
    [
        {"error": {"message": "Overloaded", "code": 529}},
        {"error": "Overloaded"},
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        {"object": "error", "message": "Overloaded", "code": 400},
        RESPONSE | {"status": "failed", "error": {"code": "x", "message": "Overloaded"}},
        chat({"content": ""}, error={"code": 502, "message": "Overloaded"}),
    ],
)
def test_an_error_with_a_status_of_success_is_an_error(response: Raw) -> None:
    with pytest.raises(InvalidResponseError, match="Overloaded") as raised:
        parse_reply(response)
    assert raised.value.error is not None
    assert raised.value.error["message"] == "Overloaded"
    assert isinstance(raised.value, BrimError)


# Streams


def fold(events: list[Any]) -> tuple[StreamAccumulator, str, str]:
    """Return the accumulator, and the text and thinking that it returned on the way."""
    accumulator, text, thinking = StreamAccumulator(), "", ""
    for event in events:
        text += accumulator.add(event)
        thinking += accumulator.thought
    return accumulator, text, thinking


def chunk(delta: Raw | None = None, **more: Any) -> Raw:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": more.pop("finish", None)}
    return {"object": "chat.completion.chunk", "model": "m", "choices": [choice]} | more


def piece(
    index: int | None, arguments: str, name: str | None = None, id_: str | None = None
) -> Raw:
    function: Raw = {"arguments": arguments} | ({"name": name} if name else {})
    call: Raw = {"function": function} | ({"id": id_, "type": "function"} if id_ else {})
    return call | ({} if index is None else {"index": index})


USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}

CHUNKS = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning_content": "They want "}),
    chunk({"reasoning_content": "a file."}),
    chunk({"content": "Let me "}),
    chunk({"content": "look."}),
    chunk({"tool_calls": [piece(0, "", "read", "call_a"), piece(1, "", "read", "call_b")]}),
    chunk({"tool_calls": [piece(0, '{"path": ')]}),
    chunk({"tool_calls": [piece(1, '{"path": "b')]}),
    chunk({"tool_calls": [piece(0, '"a"}')]}),
    chunk(finish="tool_calls"),
    {"choices": [], "usage": CHAT["usage"], "model": CHAT["model"]},
]

EVENTS: list[Raw] = [
    {
        "type": "message_start",
        "message": ANTHROPIC
        | {"content": [], "stop_reason": None, "usage": ANTHROPIC["usage"] | {"output_tokens": 1}},
    },
    {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "thinking", "thinking": "", "signature": ""},
    },
    {"type": "ping"},
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "thinking_delta", "thinking": "They want a file."},
    },
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "signature_delta", "signature": "c2ln"},
    },
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": BLOCKS[1]},
    {"type": "content_block_stop", "index": 1},
    {"type": "content_block_start", "index": 2, "content_block": {"type": "text", "text": ""}},
    {
        "type": "content_block_delta",
        "index": 2,
        "delta": {"type": "text_delta", "text": "Let me "},
    },
    {"type": "content_block_delta", "index": 2, "delta": {"type": "text_delta", "text": "look."}},
    {"type": "content_block_stop", "index": 2},
    {"type": "content_block_start", "index": 3, "content_block": BLOCKS[3] | {"input": {}}},
    {
        "type": "content_block_delta",
        "index": 3,
        "delta": {"type": "input_json_delta", "partial_json": '{"path":'},
    },
    {
        "type": "content_block_delta",
        "index": 3,
        "delta": {"type": "input_json_delta", "partial_json": '"a"}'},
    },
    {"type": "content_block_stop", "index": 3},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {"output_tokens": 20},
    },
    {"type": "message_stop"},
]


def item_events(place: int, item: Raw, opening: Raw, kind: str, pieces: list[str]) -> list[Raw]:
    at = {"output_index": place, "sequence_number": 1}
    deltas = [
        {"type": f"response.{kind}.delta", "item_id": item["id"], "delta": text, **at}
        | ({"summary_index": 0} if "summary" in kind else {})
        | ({"content_index": 0, "logprobs": []} if "text" in kind and "summary" not in kind else {})
        for text in pieces
    ]
    return [
        {"type": "response.output_item.added", "item": item | opening, **at},
        *deltas,
        {"type": "response.output_item.done", "item": item, **at},
    ]


BEGUN = {"type": "response.created", "response": RESPONSE | {"output": [], "usage": None}}
RESPONSE_EVENTS: list[Raw] = [
    BEGUN | {"sequence_number": 0},
    *item_events(0, ITEMS[0], {"summary": []}, "reasoning_summary_text", ["They want ", "a file."]),
    *item_events(1, ITEMS[1], {"content": []}, "output_text", ["Let me ", "look."]),
    *item_events(2, ITEMS[2], {"arguments": ""}, "function_call_arguments", ['{"path": ', '"a"}']),
    {"type": "response.completed", "response": RESPONSE, "sequence_number": 9},
]

STREAMS = {
    "chat": (CHUNKS, CHAT),
    "anthropic": (EVENTS, ANTHROPIC),
    "responses": (RESPONSE_EVENTS, RESPONSE),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_streamed_reply_equals_the_unstreamed_one(name: str) -> None:
    events, response = STREAMS[name]
    accumulator, text, thinking = fold(events)
    assert accumulator.reply() == parse_reply(response)
    assert text == "Let me look."
    assert thinking == "They want a file."
    assert accumulator.started
    assert accumulator.is_whole
    assert accumulator.error is None


LIBRARY: dict[str, str] = {
    "message_start": "RawMessageStartEvent",
    "content_block_start": "RawContentBlockStartEvent",
    "content_block_delta": "RawContentBlockDeltaEvent",
    "content_block_stop": "RawContentBlockStopEvent",
    "message_delta": "RawMessageDeltaEvent",
    "message_stop": "RawMessageStopEvent",
    "response.created": "ResponseCreatedEvent",
    "response.completed": "ResponseCompletedEvent",
    "response.output_item.added": "ResponseOutputItemAddedEvent",
    "response.output_item.done": "ResponseOutputItemDoneEvent",
    "response.output_text.delta": "ResponseTextDeltaEvent",
    "response.function_call_arguments.delta": "ResponseFunctionCallArgumentsDeltaEvent",
    "response.reasoning_summary_text.delta": "ResponseReasoningSummaryTextDeltaEvent",
}


def library_event(event: Raw) -> Any:
    """Return the event as the provider's own library does."""
    if "choices" in event:
        return openai.types.chat.ChatCompletionChunk.model_validate(
            {"id": "c", "created": 1, "object": "chat.completion.chunk", "model": "m"} | event
        )
    if (name := LIBRARY.get(event["type"])) is None:
        return event
    types: Any = openai.types.responses if name.startswith("Response") else anthropic.types
    return getattr(types, name).model_validate(event)


@pytest.mark.parametrize("name", STREAMS)
def test_sdk_events_are_accepted(name: str) -> None:
    events, response = STREAMS[name]
    accumulator, text, _ = fold([library_event(event) for event in events])
    assert accumulator.reply() == parse_reply(response)
    assert text == "Let me look."


@given(st.sampled_from(sorted(STREAMS)), st.integers(0, 20))
def test_an_interrupted_stream_gives_the_text_so_far(name: str, length: int) -> None:
    events, response = STREAMS[name]
    accumulator, text, thinking = fold(events[:length])
    reply = accumulator.reply()
    assert reply.text == text
    assert parse_reply(response).thinking.startswith(thinking)
    if not accumulator.is_whole:
        assert "_anthropic" not in reply.message
        assert "_responses" not in reply.message
    if not accumulator.started:
        assert reply.is_empty


def test_an_interrupted_call_is_kept_as_received() -> None:
    accumulator, _, _ = fold(EVENTS[:14])
    assert accumulator.reply().calls == (Call("toolu_1", "read", '{"path":'),)
    accumulator, _, _ = fold(RESPONSE_EVENTS[:11])
    assert accumulator.reply().calls == (Call("call_a", "read", '{"path": '),)


def test_a_stream_starts_with_its_first_token() -> None:
    accumulator = StreamAccumulator()
    assert accumulator.reply().is_empty
    first: list[Raw] = [CHUNKS[0], EVENTS[0], {"choices": [], "prompt_filter_results": []}]
    for event in first:
        accumulator = StreamAccumulator()
        assert accumulator.add(event) == ""
        assert not accumulator.started
    assert fold([chunk({"tool_calls": [piece(0, "", "f", "x")]})])[0].started


@pytest.mark.parametrize(
    "last",
    [
        {"choices": [], "usage": USAGE},
        chunk({}, usage=USAGE),
        chunk({"content": ""}, finish="stop", usage=USAGE),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": USAGE}]},
        {"choices": [], "x_groq": {"id": "r", "usage": USAGE}},
        {"choices": [], "timings": {"prompt_n": 2, "cache_n": 7, "predicted_n": 3}},
    ],
)
def test_usage_is_found_anywhere_in_the_last_chunk(last: Raw) -> None:
    reply = fold([chunk({"content": "a"}), last])[0].reply()
    assert reply.usage in (Usage(9, 0, 3), Usage(9, 7, 3))


@pytest.mark.parametrize("status", ["incomplete", "failed"])
def test_usage_is_read_from_every_last_event(status: str) -> None:
    usage = {"input_tokens": 9, "output_tokens": 3}
    response = {"object": "response", "status": status, "output": [], "usage": usage}
    end = {"type": f"response.{status}", "response": response}
    accumulator, _, _ = fold([*RESPONSE_EVENTS[:8], end])
    assert accumulator.reply().usage == Usage(9, 0, 3)
    assert accumulator.reply().text == "Let me look."
    assert accumulator.is_whole == (status == "incomplete")
    assert (accumulator.error is not None) == (status == "failed")


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"error": {"message": "too long", "code": "context_length_exceeded"}}, "too long"),
        ({"error": "too long"}, "too long"),
        ({"type": "error", "error": {"type": "x", "message": "too long"}}, "too long"),
        ({"type": "error", "code": "x", "message": "too long", "param": None}, "too long"),
        (
            {
                "type": "response.failed",
                "response": {"status": "failed", "error": {"code": "x", "message": "too long"}},
            },
            "too long",
        ),
        (
            chunk({"content": ""}, finish="error", error={"code": 502, "message": "too long"}),
            "too long",
        ),
    ],
)
def test_an_error_before_the_first_token_is_kept(event: Raw, message: str) -> None:
    accumulator, text, _ = fold([event])
    assert accumulator.error is not None
    assert accumulator.error["message"] == message
    assert not accumulator.started
    assert not accumulator.is_whole
    assert text == ""
    assert accumulator.reply().is_empty


def test_an_error_after_some_text_keeps_the_text() -> None:
    accumulator, _, _ = fold([*CHUNKS[:5], {"error": {"message": "gone"}}])
    assert accumulator.reply().text == "Let me look."
    assert accumulator.started


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(0, "", "f", "x"), piece(0, '{"a"'), piece(0, ": 1}"), piece(1, "{}", "g", "y")],
        [piece(0, '{"a": 1}', "f", "x"), piece(0, "{}", "g", "y")],
        [piece(None, '{"a"', "f", "x"), piece(None, ": 1}"), piece(None, "{}", "g", "y")],
        [piece(0, '{"a"', "f", "x"), piece(0, ": 1}", None, "again"), piece(1, "{}", "g", "y")],
        [piece(0, "", "f", "x"), piece(1, "{", "g", "y"), piece(0, '{"a": 1}'), piece(1, "}")],
    ],
    ids=["in turn", "one index", "no index", "an id in every piece", "at once"],
)
def test_calls_are_assembled_with_any_numbering(pieces: list[Raw]) -> None:
    events = [chunk({"tool_calls": [part]}) for part in pieces]
    for sent in (events, [chunk({"tool_calls": pieces})]):
        calls = fold(sent)[0].reply().calls
        assert calls == (Call("x", "f", '{"a": 1}'), Call("y", "g", "{}"))


def test_only_the_first_choice_is_read() -> None:
    both = [
        {"index": 1, "delta": {"content": "second"}},
        {"index": 0, "delta": {"content": "first"}},
    ]
    assert fold([{"choices": both}, {"choices": both[:1]}])[0].reply().text == "first"


def test_signed_thinking_is_assembled() -> None:
    details = [
        {"type": "reasoning.text", "text": "They ", "index": 0},
        {"type": "reasoning.text", "text": "want", "index": 0, "signature": "c2ln"},
        {"type": "reasoning.encrypted", "data": "Zm9v", "index": 1},
    ]
    chunks = [chunk({"reasoning_details": [part]}) for part in details]
    accumulator, _, _ = fold([*chunks, chunk({"content": "a"}, finish="stop")])
    assert accumulator.reply().message["reasoning_details"] == [
        {"type": "reasoning.text", "text": "They want", "index": 0, "signature": "c2ln"},
        details[2],
    ]
    assert accumulator.reply().thinking == "They want"
    assert "reasoning_details" not in fold(chunks)[0].reply().message


@pytest.mark.parametrize("name", WHOLE)
def test_an_unstreamed_response_is_accepted(name: str) -> None:
    response, _ = WHOLE[name]
    accumulator, text, thinking = fold([response])
    assert accumulator.reply() == parse_reply(response)
    assert (text, thinking) == ("Let me look.", "They want a file.")
    assert accumulator.is_whole


def test_a_response_without_deltas_gives_its_text_at_the_end() -> None:
    _, text, _ = fold([RESPONSE_EVENTS[0], RESPONSE_EVENTS[-1]])
    assert text == "Let me look."


def test_the_error_describes_an_invalid_event() -> None:
    with pytest.raises(InvalidResponseError, match="text: '<html>'"):
        StreamAccumulator().add("<html>")


# Invalid responses

WORDS = (
    *("choices", "message", "delta", "content", "type", "text", "role", "assistant", "index", "id"),
    *(
        "tool_calls",
        "function",
        "name",
        "arguments",
        "usage",
        "output",
        "item",
        "response",
        "error",
    ),
    *("content_block", "content_block_start", "content_block_delta", "message_start", "text_delta"),
    *("message_delta", "response.output_item.added", "response.output_text.delta", "thinking"),
    *("response.completed", "output_index", "reasoning", "summary", "reasoning_details", "status"),
    *("input_json_delta", "partial_json", "tool_use", "function_call", "custom", "extra_content"),
)
nonsense = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 3), st.sampled_from(WORDS)),
    lambda values: st.one_of(
        st.lists(values, max_size=3), st.dictionaries(st.sampled_from(WORDS), values, max_size=5)
    ),
    max_leaves=16,
)
kinds = st.sampled_from([word for word in WORDS if "." in word or "_" in word])


@given(nonsense)
def test_random_responses_raise_only_the_typed_error(response: object) -> None:
    for value in (response, {"choices": [{"message": response}]}, {"output": response}):
        with suppress(InvalidResponseError):
            assert isinstance(parse_reply(value), Reply)


@given(st.lists(st.tuples(kinds, nonsense), max_size=6))
def test_random_events_are_ignored_or_raise_the_typed_error(
    events: list[tuple[str, Any]],
) -> None:
    accumulator = StreamAccumulator()
    for kind, event in events:
        typed = event | {"type": kind} if isinstance(event, dict) else event
        with suppress(InvalidResponseError):
            assert isinstance(accumulator.add(typed), str)
        with suppress(InvalidResponseError):
            accumulator.reply()
