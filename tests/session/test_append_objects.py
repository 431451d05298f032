"""`Session.append` with the objects of SDKs, of every format."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, TextBlock, ThinkingBlock, ToolUseBlock
from openai.types.chat import ChatCompletionMessage
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
)

import brim
from brim.wire.formats import FormatName

THOUGHT = ThinkingBlock(type="thinking", thinking="Hm.", signature="sig")
TEXT = TextBlock(type="text", text="I look.")
CALLS = [
    ToolUseBlock(type="tool_use", id=f"toolu_{n}", name="read", input={"n": n}) for n in (1, 2)
]
BLOCKS: list[Any] = [THOUGHT, TEXT, *CALLS]
RESULTS: list[Any] = [
    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "one"},
    {"type": "tool_result", "tool_use_id": "toolu_2", "content": [{"type": "text", "text": "two"}]},
    {"type": "text", "text": "Go on."},
]

REASONING = ResponseReasoningItem(id="rs_1", type="reasoning", summary=[], encrypted_content="x")
ITEMS = [
    REASONING,
    *(
        ResponseFunctionToolCall(
            type="function_call", call_id=f"call_{n}", name="read", arguments=json.dumps({"n": n})
        )
        for n in (1, 2)
    ),
]
OUTPUTS = [
    {"type": "function_call_output", "call_id": f"call_{n}", "output": f"{n}"} for n in (1, 2)
]
ANSWER = ResponseOutputMessage(
    id="msg_1",
    type="message",
    role="assistant",
    status="completed",
    content=[ResponseOutputText(type="output_text", text="Done.", annotations=[])],
)


def start(format: FormatName) -> brim.Session:
    session = brim.Session("gpt-4o", window=8_000, format=format)
    session.user("Read them.")
    return session


def whole_message() -> Message:
    usage = anthropic.types.Usage(input_tokens=1, output_tokens=1)
    return Message(
        id="m", type="message", role="assistant", model="claude-opus-4-5", content=BLOCKS,
        usage=usage, stop_reason="tool_use",
    )  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [[whole_message()], [{"role": "assistant", "content": BLOCKS}], [BLOCKS], BLOCKS],
    ids=["message", "dict", "list", "one by one"],
)
def test_the_blocks_of_an_anthropic_message_are_one_turn(given: list[Any]) -> None:
    session = start("anthropic")
    for part in given:
        session.append(part)
    session.append({"role": "user", "content": RESULTS})
    roles = [turn["role"] for turn in session.history]
    assert roles == ["user", "assistant", "tool", "tool", "user"]
    body = session.request(max_tokens=100)
    sent = [block.model_dump(mode="json", exclude_none=True) for block in BLOCKS]
    assert body["messages"][1]["content"] == sent
    answers = [block["tool_use_id"] for block in body["messages"][2]["content"][:2]]
    assert answers == ["toolu_1", "toolu_2"]
    assert body["messages"][2]["content"][2]["text"] == "Go on."


@pytest.mark.parametrize("given", [[ITEMS], ITEMS], ids=["list", "one by one"])
def test_the_items_of_a_response_are_one_turn(given: list[Any]) -> None:
    session = start("responses")
    for item in (*given, *OUTPUTS, ANSWER):
        session.append(item)
    roles = [turn["role"] for turn in session.history]
    assert roles == ["user", "assistant", "tool", "tool", "assistant"]
    items = session.request()["input"]
    kinds = [item.get("type", "message") for item in items]
    assert kinds == [
        *("message", "reasoning", "function_call", "function_call"),
        *("function_call_output", "function_call_output", "message"),
    ]
    assert items[1]["encrypted_content"] == "x"


def test_a_conversation_can_continue_in_another_format() -> None:
    session = start("openai")
    session.append(whole_message())
    session.append({"role": "user", "content": RESULTS})
    session.append(ANSWER)
    session.append(ChatCompletionMessage(role="assistant", content="Really."))
    image = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    session.append({"role": "user", "content": [{"type": "image", "source": image}]})
    messages = session.request()["messages"]
    assert [call["id"] for call in messages[1]["tool_calls"]] == ["toolu_1", "toolu_2"]
    assert [message["content"] for message in messages[2:6]] == [
        "one",
        "two",
        [RESULTS[2]],
        "Done.",
    ]
    assert messages[-1]["content"][0]["image_url"]["url"] == "data:image/png;base64,aGk="


def test_if_one_of_several_results_is_invalid_nothing_is_appended() -> None:
    session = start("anthropic")
    session.append(whole_message())
    with pytest.raises(brim.MessageError, match="no open call has the id 'other'"):
        session.append(
            {"role": "user", "content": [RESULTS[0], {**RESULTS[1], "tool_use_id": "other"}]}
        )
    assert len(session) == 2
    session.append({"role": "user", "content": RESULTS})


def test_parts_of_two_replies_are_two_turns() -> None:
    session = start("responses")
    for item in (*ITEMS[:2], OUTPUTS[0], ITEMS[2], OUTPUTS[1]):
        session.append(item)
    assert [turn["role"] for turn in session.history][1:] == ["assistant", "tool"] * 2


@pytest.mark.parametrize("given", [[], 7, "text", {"type": "unheard_of"}, {"content": "x"}])
def test_anything_else_is_an_error_that_names_the_turn(given: object) -> None:
    session = start("openai")
    with pytest.raises(brim.MessageError, match="message 1"):
        session.append(given)
    assert len(session) == 1
