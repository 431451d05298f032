"""Unusual streams, bodies and headers, for hypothesis."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from hypothesis import strategies as st

from tests.support.gateway.requests import CHAT, COUNT_TOKENS, INPUT_TOKENS, MESSAGES, RESPONSES

_WORDS: Final = (
    *("", "a", "assistant", "user", "system", "tool", "text", "stop", "function", "\ud83d", "\x00"),
    *("tool_use", "tool_result", "thinking", "image", "image_url", "input_text", "output_text"),
    *("message", "function_call", "function_call_output", "reasoning", "error", "item_reference"),
    *("message_start", "message_delta", "content_block_start", "content_block_delta", "text_delta"),
    *("response.created", "response.failed", "response.completed", "response.output_text.delta"),
    *("response.output_item.added", "context_length_exceeded", "ephemeral", "input_json_delta"),
)
_KEYS: Final = (
    *("role", "content", "type", "text", "name", "id", "index", "usage", "error", "choices"),
    *("delta", "finish_reason", "message", "response", "tool_calls", "function", "arguments"),
    *("input", "output", "call_id", "tool_use_id", "tool_call_id", "source", "image_url", "url"),
    *("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "cost", "code"),
    *("item", "item_id", "output_index", "content_block", "thinking", "signature", "summary"),
    *("cache_control", "_pin", "_priority", "_output", "detail", "x_groq", "cached_tokens"),
)
_numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.just(10**40)
_plain = st.none() | st.booleans() | _numbers | st.sampled_from(_WORDS) | st.text(max_size=5)

values: Final = st.recursive(
    _plain,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)
"""Any JSON, with strings that have a meaning in some format."""

events: Final = st.dictionaries(st.sampled_from(_KEYS), values, max_size=5)
_LINE_ENDS: Final = ("\n", "\r\n", "\r")


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Any events with one kind of line ends, comments and a broken end."""
    end = draw(st.sampled_from(_LINE_ENDS))
    texts = draw(st.lists(events.map(json.dumps) | st.sampled_from(["[DONE]", "{", "é世"])))
    lines = [f"data: {each}{end}{end}" for each in texts]
    for place in draw(st.lists(st.integers(0, len(lines)), max_size=3)):
        lines.insert(place, draw(st.sampled_from([f": ping{end}{end}", f"event: x{end}", end])))
    raw = "".join(lines).encode()
    return raw[: draw(st.integers(0, len(raw)))] if draw(st.booleans()) else raw


def cut(raw: bytes) -> st.SearchStrategy[list[bytes]]:
    """The same bytes in any number of pieces."""
    places = st.lists(st.integers(0, len(raw)), max_size=8)
    return places.map(lambda found: _cut(raw, sorted(found)))


def _cut(raw: bytes, places: list[int]) -> list[bytes]:
    ends = zip([0, *places], [*places, len(raw)], strict=True)
    return [raw[start:end] for start, end in ends]


@st.composite
def mutate(draw: st.DrawFn, body: dict[str, Any]) -> dict[str, Any]:
    """A body with some values replaced, removed or moved."""
    copy: dict[str, Any] = json.loads(json.dumps(body))
    for _ in range(draw(st.integers(1, 3))):
        holder, key = draw(st.sampled_from([*_places(copy)]))
        if draw(st.integers(0, 3)) or not isinstance(holder, dict):
            holder[key] = draw(values)
        else:
            del holder[key]
        if not copy:
            break
    return copy


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every position of a value in a body, with its container."""
    keys = value if isinstance(value, dict) else range(len(value))
    own = [(value, key) for key in keys]
    inner = (value[key] for key in keys if isinstance(value[key], dict | list))
    return own + [place for each in inner for place in _places(each)]


# Requests

_LONG: Final = "So many words that they do not fit. " * 200
_CHAT: Final[dict[str, Any]] = {
    "model": "gpt-4o",
    "stream": False,
    "max_tokens": 9,
    "tools": [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is in the file?"}]},
        {"role": "assistant", "content": None, "reasoning_content": "Let me look.",
         "tool_calls": [{"id": "call_1", "type": "function",
                         "function": {"name": "read", "arguments": '{"path": "a"}'}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": _LONG},
        {"role": "assistant", "content": "Words."},
        {"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
            {"type": "text", "text": "And in this picture?"}]},
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": "Whose?"},
    ],
}  # fmt: skip
_MESSAGES: Final[dict[str, Any]] = {
    "model": "claude-sonnet-5",
    "stream": False,
    "max_tokens": 9,
    "thinking": {"type": "enabled", "budget_tokens": 5},
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "tools": [{"name": "read", "input_schema": {"type": "object"}}],
    "messages": [
        {"role": "user", "content": "What is in the file?"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Let me look.", "signature": "abc"},
            {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1",
             "content": [{"type": "text", "text": _LONG}]},
            {"type": "text", "text": "Go on."}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Words."}]},
        {"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}},
            {"type": "text", "text": "And in this picture?"}]},
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": "Whose?"},
    ],
}  # fmt: skip
_RESPONSES: Final[dict[str, Any]] = {
    "model": "gpt-5-mini",
    "stream": False,
    "max_output_tokens": 9,
    "instructions": "Be brief.",
    "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}],
    "input": [
        {"role": "user", "content": "What is in the file?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "abc"},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "read",
         "arguments": '{"path": "a"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": _LONG},
        {"type": "message", "role": "assistant",
         "content": [{"type": "output_text", "text": "Words.", "annotations": []}]},
        {"role": "user", "content": [{"type": "input_image", "image_url": "https://a.example/b"},
                                     {"type": "input_text", "text": "And in this picture?"}]},
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": "Whose?"},
    ],
}  # fmt: skip
BODIES: Final[Mapping[str, dict[str, Any]]] = {
    CHAT: _CHAT,
    MESSAGES: _MESSAGES,
    RESPONSES: _RESPONSES,
    COUNT_TOKENS: _MESSAGES,
    INPUT_TOKENS: _RESPONSES,
}
"""A valid body for each path: text, calls, results, thinking, images."""

heads: Final = st.fixed_dictionaries(
    {},
    optional={
        "brim-policy": st.sampled_from(["steady", "thrift", "rolling", "sliding"]),
        "brim-fitting": st.sampled_from(["on", "off", "dry-run"]),
        "brim-cache-marks": st.sampled_from(["on", "off"]),
    },
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, bytes, dict[str, str]]:
    """A path, a mutated body, and options."""
    path = draw(st.sampled_from([*BODIES]))
    body = draw(mutate(BODIES[draw(st.sampled_from([path, path, *BODIES]))]))
    raw = json.dumps(body).encode()
    if draw(st.integers(0, 9)) == 0:
        place = draw(st.integers(0, len(raw)))
        raw = raw[:place] + draw(st.binary(max_size=3)) + raw[place:]
    return path, raw, draw(heads)
