"""Replies in the format of OpenAI chat completions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from brim.models.pricing import Usage
from brim.testing.script import CREATED, Body, TextReply, format_data_event, split_words

EVENTS_BEFORE_REPLY: Final = 1
EVENTS_BEFORE_HOLD: Final = 2


def build_response(reply: TextReply, name: str, model: str, usage: Usage) -> dict[str, Any]:
    """Return a complete response."""
    calls = [
        {"id": f"call_{name}_{n}", "type": "function", "index": n,
         "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
        for n, call in enumerate(reply.calls)
    ]  # fmt: skip
    message = {"role": "assistant", "content": reply.text or None if calls else reply.text}
    finish = reply.finish or ("tool_calls" if calls else "stop")
    return {
        "id": f"chatcmpl-{name}",
        "object": "chat.completion",
        "created": CREATED,
        "model": model,
        "choices": [{"index": 0, "message": message | ({"tool_calls": calls} if calls else {}),
                     "finish_reason": finish}],
        "usage": {"prompt_tokens": usage.input, "completion_tokens": usage.output,
                  "total_tokens": usage.input + usage.output,
                  "prompt_tokens_details": {"cached_tokens": usage.cached}},
    }  # fmt: skip


def iter_events(response: Body, request: Body) -> Iterator[str]:
    """Return the events of a streamed response; usage is included only if requested."""
    for chunk in _iter_chunks(response):
        yield format_data_event(chunk)
    if (request.get("stream_options") or {}).get("include_usage"):
        yield format_data_event(
            _build_chunk(response) | {"choices": [], "usage": response["usage"]}
        )
    yield "data: [DONE]\n\n"


def build_error_event(_: Body, error: Mapping[str, Any]) -> str:
    """Return the error event that ends a stream."""
    return format_data_event(build_error_body(error))


def build_error_body(error: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of an error response."""
    return {"error": error}


def build_context_length_error(prompt: int, room: int, window: int) -> dict[str, Any]:
    """Return the error of a prompt that leaves no room for output."""
    return {
        "message": f"This model's maximum context length is {window} tokens. However, you "
        f"requested {prompt + room} tokens ({prompt} in the messages, {room} in the completion). "
        "Please reduce the length of the messages or completion.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }


def build_count_response(tokens: int) -> dict[str, Any]:
    """Return the response to a count request; only llama.cpp supports it for this format."""
    return {"object": "response.input_tokens", "input_tokens": tokens}


def _build_chunk(response: Body) -> dict[str, Any]:
    kept = {key: value for key, value in response.items() if key != "usage"}
    return kept | {"object": "chat.completion.chunk"}


def _iter_chunks(response: Body) -> Iterator[dict[str, Any]]:
    (choice,) = response["choices"]
    message = choice["message"]
    deltas: list[Any] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": word} for word in split_words(message["content"] or "")]
    deltas += [{"tool_calls": [call]} for call in message.get("tool_calls", ())]
    for delta in deltas:
        yield _build_chunk(response) | {
            "choices": [{"index": 0, "delta": delta, "finish_reason": None}]
        }
    last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    yield _build_chunk(response) | {"choices": [last]}
