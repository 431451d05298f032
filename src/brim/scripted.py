"""What a scripted provider says, in the shapes of OpenAI and Anthropic; no I/O here."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Body = Mapping[str, Any]

CHAT: Final = "/v1/chat/completions"
MESSAGES: Final = "/v1/messages"
HELD: Final = {CHAT: 2, MESSAGES: 3}
"""So many pieces of a stream bring the first words."""


@dataclass(frozen=True, slots=True)
class Call:
    """The model calls a tool."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Say:
    """The model says something, calls tools, or both; a text alone can be given as it is."""

    text: str = ""
    calls: Sequence[Call] = ()
    pause: float = 0.0
    """Seconds before each piece of a stream."""
    hold: threading.Event | None = None
    """What a stream waits for after its first words."""
    cut_after: int | None = None
    """The server hangs up after so many pieces; without a stream in the middle of the answer."""
    finish: str | None = None
    """Why it ends, where it is not for the usual reason."""
    cached: int = 0
    """So many tokens of the prompt were in the server's cache."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The server does not answer as it should: with an error, or with bytes that are no answer."""

    status: int = 500
    message: str = "the script says so"
    retry_after: float | None = None
    raw: bytes | None = None
    """Sent instead of an error object, with any status."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for an answer."""

    path: str
    body: Body
    headers: Mapping[str, str]
    time: float
    tokens: int
    """What the prompt takes, as the server counts it."""


def error(message: str) -> dict[str, Any]:
    """An error as both formats have it."""
    return {"type": "error", "error": {"message": message, "type": "scripted", "code": None}}


_REFUSALS: Final = {
    "openai": '{"error": {"message": "This model\'s maximum context length is %(window)d tokens. '
    "However, you requested %(sum)d tokens (%(prompt)d in the messages, %(room)d in the "
    'completion). Please reduce the length of the messages or completion.", "param": "messages", '
    '"type": "invalid_request_error", "code": "context_length_exceeded"}}',
    "llama.cpp": '{"error": {"code": 400, "message": "request (%(prompt)d tokens) exceeds the '
    'available context size (%(window)d tokens), try increasing it", '
    '"type": "exceed_context_size_error", "n_prompt_tokens": %(prompt)d, "n_ctx": %(window)d}}',
    "anthropic": '{"type": "error", "error": {"type": "invalid_request_error", "message": '
    '"prompt is too long: %(sum)d tokens > %(window)d maximum"}}',
}


def refusal(like: str, prompt: int, room: int, window: int) -> Fault:
    """What is said to a prompt that leaves no room for the answer."""
    numbers = {"prompt": prompt, "room": room, "sum": prompt + room, "window": window}
    return Fault(400, raw=(_REFUSALS[like] % numbers).encode())


def whole(said: Say, asked: Asked, *, model: str, number: int, output: int) -> dict[str, Any]:
    """An answer in one piece."""
    answer = _chat(said, asked, model, number, output)
    return answer if asked.path == CHAT else _messages(answer, asked)


def events(answer: dict[str, Any], asked: Asked) -> Iterator[str]:
    """The same answer as the events of a stream."""
    if asked.path == MESSAGES:
        for event in _messages_events(answer):
            yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
        return
    for event in _chat_events(answer, asked):
        yield f"data: {json.dumps(event)}\n\n"
    yield "data: [DONE]\n\n"


def listing(like: str, model: str, window: int | None) -> dict[str, Any]:
    """The list of models, with the window where the server is to tell it."""
    row: dict[str, Any] = {"id": model, "object": "model", "created": 0, "owned_by": "scripted"}
    if like == "llama.cpp":
        row |= {"owned_by": "llamacpp", "meta": {"n_ctx": window}}
    elif window is not None:
        row |= {"context_length": window}
    return {"object": "list", "data": [row]}


def _words(text: str) -> list[str]:
    """The pieces of a stream."""
    return re.findall(r"\s*\S+|\s+", text)


def _chat(said: Say, asked: Asked, model: str, number: int, output: int) -> dict[str, Any]:
    calls = [
        {"id": f"call_{number}_{n}", "type": "function", "index": n,
         "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
        for n, call in enumerate(said.calls)
    ]  # fmt: skip
    message = {"role": "assistant", "content": said.text or None if calls else said.text}
    finish = said.finish or ("tool_calls" if calls else "stop")
    details = {"prompt_tokens_details": {"cached_tokens": said.cached}} if said.cached else {}
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": int(asked.time),
        "model": model,
        "choices": [{"index": 0, "message": message | ({"tool_calls": calls} if calls else {}),
                     "finish_reason": finish}],
        "usage": {"prompt_tokens": asked.tokens, "completion_tokens": output,
                  "total_tokens": asked.tokens + output, **details},
    }  # fmt: skip


def _chat_events(answer: dict[str, Any], asked: Asked) -> Iterator[dict[str, Any]]:
    (choice,), usage = answer["choices"], answer["usage"]
    message = choice["message"]
    deltas: list[Any] = [{"content": word} for word in _words(message["content"] or "")]
    deltas += [{"tool_calls": [call]} for call in message.get("tool_calls", ())]
    common = {**answer, "object": "chat.completion.chunk"}
    del common["usage"]
    for delta in [{"role": "assistant", "content": ""}, *deltas]:
        yield common | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    yield common | {"choices": [last]}
    if (asked.body.get("stream_options") or {}).get("include_usage"):
        yield common | {"choices": [], "usage": usage}


_STOPS: Final = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


def _messages(answer: dict[str, Any], asked: Asked) -> dict[str, Any]:
    (choice,), usage = answer["choices"], answer["usage"]
    message, finish = choice["message"], choice["finish_reason"]
    blocks = [{"type": "text", "text": message["content"]}] if message["content"] else []
    for call in message.get("tool_calls", ()):
        given = json.loads(call["function"]["arguments"])
        name = call["function"]["name"]
        blocks.append({"type": "tool_use", "id": call["id"], "name": name, "input": given})
    cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    details = {"cache_read_input_tokens": cached} if cached else {}
    return {
        "id": answer["id"],
        "type": "message",
        "role": "assistant",
        "model": answer["model"],
        "content": blocks,
        "stop_reason": _STOPS.get(finish, finish),
        "stop_sequence": None,
        "usage": {"input_tokens": asked.tokens - cached, **details,
                  "output_tokens": usage["completion_tokens"]},
    }  # fmt: skip


def _messages_events(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"type": "message_start", "message": {**answer, "content": [], "stop_reason": None}}
    for place, block in enumerate(answer["content"]):
        if block["type"] == "text":
            opened: dict[str, Any] = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": word} for word in _words(block["text"])]
        else:
            opened = {**block, "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
        yield {"type": "content_block_start", "index": place, "content_block": opened}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": place, "delta": delta}
        yield {"type": "content_block_stop", "index": place}
    ended = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": answer["usage"]}
    yield {"type": "message_stop"}
