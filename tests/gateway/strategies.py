"""Streams, bodies and headers as nobody would write them, for hypothesis."""

from __future__ import annotations

import json
from typing import Any, Final

from hypothesis import strategies as st

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
"""Any JSON, of words that mean something somewhere."""

events: Final = st.dictionaries(st.sampled_from(_KEYS), values, max_size=5)
_LINE_ENDS: Final = ("\n", "\r\n", "\r")


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Events of all sorts, with the line ends of one sort, comments and a broken end."""
    end = draw(st.sampled_from(_LINE_ENDS))
    told = draw(st.lists(events.map(json.dumps) | st.sampled_from(["[DONE]", "{", "é世"])))
    lines = [f"data: {each}{end}{end}" for each in told]
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
def mutated(draw: st.DrawFn, body: dict[str, Any]) -> dict[str, Any]:
    """A body with some of its values replaced, left out or put elsewhere."""
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
    """Every place of a body that holds a value, and what holds it."""
    keys = value if isinstance(value, dict) else range(len(value))
    own = [(value, key) for key in keys]
    inner = (value[key] for key in keys if isinstance(value[key], dict | list))
    return own + [place for each in inner for place in _places(each)]
