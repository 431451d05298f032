"""OpenAI responses, as a provider says them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from brim.models.pricing import Usage
from brim.testing.script import CREATED, Body, TextReply, format_named_event, split_words

OPENING: Final = 2
HELD: Final = 5

_EMPTY: Final[Mapping[str, Body]] = {"message": {"content": []}, "function_call": {"arguments": ""}}
_CUT_SHORT: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}


def whole(said: TextReply, name: str, model: str, usage: Usage) -> dict[str, Any]:
    """An answer in one piece."""
    reason = _CUT_SHORT.get(said.finish or "")
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": CREATED,
        "status": "incomplete" if reason else "completed",
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "model": model,
        "output": _build_items(said, name),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {"input_tokens": usage.input,
                  "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
                  "output_tokens": usage.output,
                  "output_tokens_details": {"reasoning_tokens": 0},
                  "total_tokens": usage.input + usage.output},
    }  # fmt: skip


def events(answer: Body, _: Body) -> Iterator[str]:
    """The same answer as a stream, its events numbered."""
    for number, event in enumerate(_iter_events(answer)):
        yield format_named_event({**event, "sequence_number": number})


def failed(answer: Body, error: Mapping[str, Any]) -> str:
    """The event that stands in place of the rest of a stream: the response itself has failed."""
    code = error.get("code")
    told = {
        "code": code if isinstance(code, str) else error.get("type"),
        "message": error.get("message"),
    }
    response = _start_response(answer) | {"status": "failed", "error": told}
    event = {"type": "response.failed", "response": response, "sequence_number": OPENING}
    return format_named_event(event)


def failure(error: Mapping[str, Any]) -> dict[str, Any]:
    """The body of an answer that is an error."""
    return {"error": error}


def refusal(_prompt: int, _room: int, _window: int) -> dict[str, Any]:
    """The error of a prompt that leaves no room for the answer; here it names no numbers."""
    return {
        "message": "Your input exceeds the context window of this model. Please adjust your "
        "input and try again.",
        "type": "invalid_request_error",
        "param": "input",
        "code": "context_length_exceeded",
    }


def counted(tokens: int) -> dict[str, Any]:
    """The answer to who asks for a count."""
    return {"object": "response.input_tokens", "input_tokens": tokens}


def _build_items(said: TextReply, name: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if said.text or not said.calls:
        part = {"type": "output_text", "text": said.text, "annotations": [], "logprobs": []}
        items.append({"id": f"msg_{name}", "type": "message", "status": "completed",
                      "role": "assistant", "content": [part]})  # fmt: skip
    for n, call in enumerate(said.calls):
        given = {"name": call.name, "arguments": json.dumps(call.arguments)}
        items.append({"id": f"fc_{name}_{n}", "type": "function_call", "status": "completed",
                      "call_id": f"call_{name}_{n}", **given})  # fmt: skip
    return items


def _start_response(answer: Body) -> dict[str, Any]:
    """A response of which nothing is there yet."""
    return {
        **answer,
        "status": "in_progress",
        "incomplete_details": None,
        "output": [],
        "usage": None,
    }


def _iter_events(answer: Body) -> Iterator[dict[str, Any]]:
    yield {"type": "response.created", "response": _start_response(answer)}
    yield {"type": "response.in_progress", "response": _start_response(answer)}
    for place, item in enumerate(answer["output"]):
        is_text = item["type"] == "message"
        begun = {**item, **_EMPTY[item["type"]], "status": "in_progress"}
        yield {"type": "response.output_item.added", "output_index": place, "item": begun}
        for event in _iter_text_events(item) if is_text else _iter_call_events(item):
            yield {**event, "item_id": item["id"], "output_index": place}
        yield {"type": "response.output_item.done", "output_index": place, "item": item}
    yield {"type": f"response.{answer['status']}", "response": answer}


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
