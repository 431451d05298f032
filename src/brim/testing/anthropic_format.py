"""Replies in the format of Anthropic messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from brim.models.pricing import Usage
from brim.testing.script import Body, TextReply, format_named_event, split_words

EVENTS_BEFORE_REPLY: Final = 1
EVENTS_BEFORE_HOLD: Final = 3

_STOPS: Final = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


def build_response(reply: TextReply, name: str, model: str, usage: Usage) -> dict[str, Any]:
    """Return a complete response."""
    blocks: list[Any] = [{"type": "text", "text": reply.text}] if reply.text else []
    for n, call in enumerate(reply.calls):
        given = {"name": call.name, "input": call.arguments}
        blocks.append({"type": "tool_use", "id": f"toolu_{name}_{n}", **given})
    finish = reply.finish or ("tool_calls" if reply.calls else "stop")
    return {
        "id": f"msg_{name}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": blocks,
        "stop_reason": _STOPS.get(finish, finish),
        "stop_sequence": None,
        "usage": {"input_tokens": usage.input - usage.cached - usage.written,
                  "cache_creation_input_tokens": usage.written,
                  "cache_read_input_tokens": usage.cached,
                  "output_tokens": usage.output},
    }  # fmt: skip


def iter_events(response: Body, _: Body) -> Iterator[str]:
    """Return the events of a streamed response."""
    usage = {**response["usage"], "output_tokens": 1}
    begun = {**response, "content": [], "stop_reason": None, "usage": usage}
    yield format_named_event({"type": "message_start", "message": begun})
    for place, block in enumerate(response["content"]):
        for event in _iter_block_events(block):
            yield format_named_event({**event, "index": place})
    ended = {"stop_reason": response["stop_reason"], "stop_sequence": None}
    yield format_named_event({"type": "message_delta", "delta": ended, "usage": response["usage"]})
    yield format_named_event({"type": "message_stop"})


def build_error_event(_: Body, error: Mapping[str, Any]) -> str:
    """Return the error event that ends a stream."""
    return format_named_event(build_error_body(error))


def build_error_body(error: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of an error response."""
    return {"type": "error", "error": error}


def build_context_length_error(prompt: int, room: int, window: int) -> dict[str, Any]:
    """Return the error of a prompt that leaves no room for output."""
    message = f"prompt is too long: {prompt + room} tokens > {window} maximum"
    return {"type": "invalid_request_error", "message": message}


def build_count_response(tokens: int) -> dict[str, Any]:
    """Return the response to a count request."""
    return {"input_tokens": tokens}


def _iter_block_events(block: Body) -> Iterator[dict[str, Any]]:
    if block["type"] == "text":
        opened: dict[str, Any] = {"type": "text", "text": ""}
        deltas = [{"type": "text_delta", "text": word} for word in split_words(block["text"])]
    else:
        opened = {**block, "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
    yield {"type": "content_block_start", "content_block": opened}
    for delta in deltas:
        yield {"type": "content_block_delta", "delta": delta}
    yield {"type": "content_block_stop"}
