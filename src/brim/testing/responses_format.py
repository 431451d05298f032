"""Replies in the format of OpenAI responses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from brim.models.pricing import Usage
from brim.testing.script import CREATED, Body, TextReply, format_named_event, split_words

EVENTS_BEFORE_REPLY: Final = 2
EVENTS_BEFORE_HOLD: Final = 5

_EMPTY: Final[Mapping[str, Body]] = {"message": {"content": []}, "function_call": {"arguments": ""}}
_CUT_SHORT: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}


def build_response(reply: TextReply, name: str, model: str, usage: Usage) -> dict[str, Any]:
    """Return a complete response."""
    reason = _CUT_SHORT.get(reply.finish or "")
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": CREATED,
        "status": "incomplete" if reason else "completed",
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "model": model,
        "output": _build_items(reply, name),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {"input_tokens": usage.input,
                  "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
                  "output_tokens": usage.output,
                  "output_tokens_details": {"reasoning_tokens": 0},
                  "total_tokens": usage.input + usage.output},
    }  # fmt: skip


def iter_events(response: Body, _: Body) -> Iterator[str]:
    """Return the numbered events of a streamed response."""
    for number, event in enumerate(_iter_events(response)):
        yield format_named_event({**event, "sequence_number": number})


def build_error_event(response: Body, error: Mapping[str, Any]) -> str:
    """Return the event that ends a stream: the response has failed."""
    code = error.get("code")
    error_object = {
        "code": code if isinstance(code, str) else error.get("type"),
        "message": error.get("message"),
    }
    response = _start_response(response) | {"status": "failed", "error": error_object}
    event = {
        "type": "response.failed",
        "response": response,
        "sequence_number": EVENTS_BEFORE_REPLY,
    }
    return format_named_event(event)


def build_error_body(error: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of an error response."""
    return {"error": error}


def build_context_length_error(_prompt: int, _room: int, _window: int) -> dict[str, Any]:
    """Return the error of a prompt that leaves no room for output; it contains no numbers."""
    return {
        "message": "Your input exceeds the context window of this model. Please adjust your "
        "input and try again.",
        "type": "invalid_request_error",
        "param": "input",
        "code": "context_length_exceeded",
    }


def build_count_response(tokens: int) -> dict[str, Any]:
    """Return the response to a count request."""
    return {"object": "response.input_tokens", "input_tokens": tokens}


def _build_items(reply: TextReply, name: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if reply.text or not reply.calls:
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        items.append({"id": f"msg_{name}", "type": "message", "status": "completed",
                      "role": "assistant", "content": [part]})  # fmt: skip
    for n, call in enumerate(reply.calls):
        given = {"name": call.name, "arguments": json.dumps(call.arguments)}
        items.append({"id": f"fc_{name}_{n}", "type": "function_call", "status": "completed",
                      "call_id": f"call_{name}_{n}", **given})  # fmt: skip
    return items


def _start_response(response: Body) -> dict[str, Any]:
    """Return a response without content, as it is at its start."""
    return {
        **response,
        "status": "in_progress",
        "incomplete_details": None,
        "output": [],
        "usage": None,
    }


def _iter_events(response: Body) -> Iterator[dict[str, Any]]:
    yield {"type": "response.created", "response": _start_response(response)}
    yield {"type": "response.in_progress", "response": _start_response(response)}
    for place, item in enumerate(response["output"]):
        is_text = item["type"] == "message"
        begun = {**item, **_EMPTY[item["type"]], "status": "in_progress"}
        yield {"type": "response.output_item.added", "output_index": place, "item": begun}
        for event in _iter_text_events(item) if is_text else _iter_call_events(item):
            yield {**event, "item_id": item["id"], "output_index": place}
        yield {"type": "response.output_item.done", "output_index": place, "item": item}
    yield {"type": f"response.{response['status']}", "response": response}


def _iter_text_events(item: Body) -> Iterator[dict[str, Any]]:
    (part,) = item["content"]
    empty = {**part, "text": ""}
    yield {"type": "response.content_part.added", "content_index": 0, "part": empty}
    for word in split_words(part["text"]):
        delta = {"content_index": 0, "delta": word, "logprobs": []}
        yield {"type": "response.output_text.delta", **delta}
    done = {"content_index": 0, "text": part["text"], "logprobs": []}
    yield {"type": "response.output_text.done", **done}
    yield {"type": "response.content_part.done", "content_index": 0, "part": part}


def _iter_call_events(item: Body) -> Iterator[dict[str, Any]]:
    arguments = item["arguments"]
    yield {"type": "response.function_call_arguments.delta", "delta": arguments}
    yield {"type": "response.function_call_arguments.done", "arguments": arguments}
