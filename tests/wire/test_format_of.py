"""Detecting the format of a body by its shape."""

from __future__ import annotations

from typing import Any

import pytest

import brim
from brim.wire import Format, anthropic, detect_format, openai_chat, openai_responses

HI = {"role": "user", "content": "hi"}


def blocks(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}]}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"input": "hi"}, openai_responses),
        ({"input": []}, openai_responses),
        ({"previous_response_id": "resp_1"}, openai_responses),
        ({"messages": [HI]}, openai_chat),
        ({"messages": []}, openai_chat),
        ({"messages": [HI], "max_tokens": 5, "metadata": {}, "input": None}, openai_chat),
        ({"messages": [{"role": "system", "content": "x"}, HI]}, openai_chat),
        ({"messages": [HI], "thinking": {"type": "enabled"}}, openai_chat),
        ({"messages": [HI], "tools": [{"type": "function", "function": {}}]}, openai_chat),
        (blocks({"type": "text", "text": "x", "cache_control": {}}), openai_chat),
        (blocks({"type": "image_url", "image_url": {}}), openai_chat),
        (blocks({"type": "thinking", "thinking": [{"type": "text", "text": "x"}]}), openai_chat),
        ({"messages": [HI], "system": "Be brief."}, anthropic),
        ({"messages": [HI], "anthropic_version": "bedrock-2023-05-31"}, anthropic),
        ({"messages": [HI], "stop_sequences": ["x"]}, anthropic),
        ({"messages": [HI], "thinking": {"type": "enabled", "budget_tokens": 9}}, anthropic),
        ({"messages": [HI], "tools": [{"name": "n", "input_schema": {}}]}, anthropic),
        ({"messages": [HI], "tools": [{"type": "bash_20250124", "name": "bash"}]}, anthropic),
        (blocks({"type": "tool_use", "id": "a"}), anthropic),
        (blocks({"type": "tool_result", "tool_use_id": "a"}), anthropic),
        (blocks({"type": "thinking", "thinking": "x"}), anthropic),
        (blocks({"type": "image", "source": {}}), anthropic),
        (blocks({"type": "document", "source": {}}), anthropic),
    ],
)
def test_the_format_is_detected_by_shape(body: dict[str, Any], expected: Format) -> None:
    assert detect_format(body) is expected


def test_chat_calls_take_precedence_over_a_later_block() -> None:
    chat = [
        HI,
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]},
    ]
    assert detect_format({"messages": chat}) is openai_chat


@pytest.mark.parametrize("body", [{}, {"messages": "hi"}, {"messages": 7}, {"prompt": "hi"}])
def test_an_unknown_body_is_rejected_with_its_keys(body: dict[str, Any]) -> None:
    with pytest.raises(brim.InputError, match=f"but has {next(iter(body), 'nothing')}"):
        detect_format(body)
