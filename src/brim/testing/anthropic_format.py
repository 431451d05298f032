"""Anthropic messages, as a provider says them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from brim.models.pricing import Usage
from brim.testing.script import Body, TextReply, format_named_event, split_words

OPENING: Final = 1
HELD: Final = 3

_STOPS: Final = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


def whole(said: TextReply, name: str, model: str, usage: Usage) -> dict[str, Any]:
    """An answer in one piece."""
    blocks: list[Any] = [{"type": "text", "text": said.text}] if said.text else []
    for n, call in enumerate(said.calls):
        given = {"name": call.name, "input": call.arguments}
        blocks.append({"type": "tool_use", "id": f"toolu_{name}_{n}", **given})
    finish = said.finish or ("tool_calls" if said.calls else "stop")
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


def events(answer: Body, _: Body) -> Iterator[str]:
    """The same answer as a stream."""
    usage = {**answer["usage"], "output_tokens": 1}
    begun = {**answer, "content": [], "stop_reason": None, "usage": usage}
    yield format_named_event({"type": "message_start", "message": begun})
    for place, block in enumerate(answer["content"]):
        for event in _iter_block_events(block):
            yield format_named_event({**event, "index": place})
    ended = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
    yield format_named_event({"type": "message_delta", "delta": ended, "usage": answer["usage"]})
    yield format_named_event({"type": "message_stop"})


def failed(_: Body, error: Mapping[str, Any]) -> str:
    """The event that stands in place of the rest of a stream."""
    return format_named_event(failure(error))


def failure(error: Mapping[str, Any]) -> dict[str, Any]:
    """The body of an answer that is an error."""
    return {"type": "error", "error": error}


def refusal(prompt: int, room: int, window: int) -> dict[str, Any]:
    """The error of a prompt that leaves no room for the answer."""
    message = f"prompt is too long: {prompt + room} tokens > {window} maximum"
    return {"type": "invalid_request_error", "message": message}


def counted(tokens: int) -> dict[str, Any]:
    """The answer to who asks for a count."""
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
