"""Detecting the format of a body by its shape."""

from __future__ import annotations

from typing import Any

import pytest

import brim
from brim.wire.formats import ANTHROPIC, CHAT, RESPONSES, BodyFormat, detect_format

HI = {"role": "user", "content": "hi"}


def blocks(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}]}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"input": "hi"}, RESPONSES),
        ({"input": []}, RESPONSES),
        ({"previous_response_id": "resp_1"}, RESPONSES),
        ({"messages": [HI]}, CHAT),
        ({"messages": []}, CHAT),
        ({"messages": [HI], "max_tokens": 5, "metadata": {}, "input": None}, CHAT),
        ({"messages": [{"role": "system", "content": "x"}, HI]}, CHAT),
        ({"messages": [HI], "thinking": {"type": "enabled"}}, CHAT),
        ({"messages": [HI], "tools": [{"type": "function", "function": {}}]}, CHAT),
        (blocks({"type": "text", "text": "x", "cache_control": {}}), CHAT),
        (blocks({"type": "image_url", "image_url": {}}), CHAT),
        (blocks({"type": "thinking", "thinking": [{"type": "text", "text": "x"}]}), CHAT),
        ({"messages": [HI], "system": "Be brief."}, ANTHROPIC),
        ({"messages": [HI], "anthropic_version": "bedrock-2023-05-31"}, ANTHROPIC),
        ({"messages": [HI], "stop_sequences": ["x"]}, ANTHROPIC),
        ({"messages": [HI], "thinking": {"type": "enabled", "budget_tokens": 9}}, ANTHROPIC),
        ({"messages": [HI], "tools": [{"name": "n", "input_schema": {}}]}, ANTHROPIC),
        ({"messages": [HI], "tools": [{"type": "bash_20250124", "name": "bash"}]}, ANTHROPIC),
        (blocks({"type": "tool_use", "id": "a"}), ANTHROPIC),
        (blocks({"type": "tool_result", "tool_use_id": "a"}), ANTHROPIC),
        (blocks({"type": "thinking", "thinking": "x"}), ANTHROPIC),
        (blocks({"type": "image", "source": {}}), ANTHROPIC),
        (blocks({"type": "document", "source": {}}), ANTHROPIC),
    ],
)
def test_the_format_is_detected_by_shape(body: dict[str, Any], expected: BodyFormat) -> None:
    assert detect_format(body) is expected


def test_chat_calls_take_precedence_over_a_later_block() -> None:
    chat = [
        HI,
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]},
    ]
    assert detect_format({"messages": chat}) is CHAT


@pytest.mark.parametrize("body", [{}, {"prompt": "hi", "messages": None}])
def test_an_unknown_body_is_rejected_with_its_keys(body: dict[str, Any]) -> None:
    with pytest.raises(brim.InputError, match=f"but has {next(iter(body), 'nothing')}$"):
        detect_format(body)


@pytest.mark.parametrize("messages", ["hi", 7, {"role": "user", "content": "hi"}])
def test_messages_that_are_no_list_are_rejected_with_their_type(messages: Any) -> None:
    with pytest.raises(brim.InputError, match=f"list of messages, not {type(messages).__name__}$"):
        detect_format({"messages": messages})
