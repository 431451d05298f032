"""OpenAI chat completions, as a provider says them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from brim.models.pricing import Usage
from brim.testing.script import CREATED, Body, TextReply, format_data_event, split_words

OPENING: Final = 1
HELD: Final = 2


def whole(said: TextReply, name: str, model: str, usage: Usage) -> dict[str, Any]:
    """An answer in one piece."""
    calls = [
        {"id": f"call_{name}_{n}", "type": "function", "index": n,
         "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
        for n, call in enumerate(said.calls)
    ]  # fmt: skip
    message = {"role": "assistant", "content": said.text or None if calls else said.text}
    finish = said.finish or ("tool_calls" if calls else "stop")
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


def events(answer: Body, asked: Body) -> Iterator[str]:
    """The same answer as a stream, with its usage only for who asks for it."""
    for chunk in _iter_chunks(answer):
        yield format_data_event(chunk)
    if (asked.get("stream_options") or {}).get("include_usage"):
        yield format_data_event(_build_chunk(answer) | {"choices": [], "usage": answer["usage"]})
    yield "data: [DONE]\n\n"


def failed(_: Body, error: Mapping[str, Any]) -> str:
    """The event that stands in place of the rest of a stream."""
    return format_data_event(failure(error))


def failure(error: Mapping[str, Any]) -> dict[str, Any]:
    """The body of an answer that is an error."""
    return {"error": error}


def refusal(prompt: int, room: int, window: int) -> dict[str, Any]:
    """The error of a prompt that leaves no room for the answer."""
    return {
        "message": f"This model's maximum context length is {window} tokens. However, you "
        f"requested {prompt + room} tokens ({prompt} in the messages, {room} in the completion). "
        "Please reduce the length of the messages or completion.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }


def counted(tokens: int) -> dict[str, Any]:
    """The answer to who asks for a count; only llama.cpp has it for this format."""
    return {"object": "response.input_tokens", "input_tokens": tokens}


def _build_chunk(answer: Body) -> dict[str, Any]:
    kept = {key: value for key, value in answer.items() if key != "usage"}
    return kept | {"object": "chat.completion.chunk"}


def _iter_chunks(answer: Body) -> Iterator[dict[str, Any]]:
    (choice,) = answer["choices"]
    message = choice["message"]
    deltas: list[Any] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": word} for word in split_words(message["content"] or "")]
    deltas += [{"tool_calls": [call]} for call in message.get("tool_calls", ())]
    for delta in deltas:
        yield _build_chunk(answer) | {
            "choices": [{"index": 0, "delta": delta, "finish_reason": None}]
        }
    last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    yield _build_chunk(answer) | {"choices": [last]}
