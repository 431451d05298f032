"""Sessions for tests, and responses of the OpenAI and Anthropic clients."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import anthropic
from openai.types.chat import ChatCompletionChunk
from pydantic import TypeAdapter

import brim
from brim.models.pricing import Price
from brim.session.ledger import SpendingLimits
from tests.support.strategies import Raw

UNKNOWN = "example/unknown-model"
CHEAP = Price(input=Decimal(1), cached=Decimal("0.1"), output=Decimal(10))
CALL: Raw = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "run", "arguments": '{"command": "ls"}'},
}


def session(**settings: Any) -> brim.Session:
    return brim.Session("gpt-4o", **{"window": 2_001, "reply": 1, **settings})


def cap(dollars: float) -> SpendingLimits:
    return SpendingLimits(cap_at_dollars=dollars)


def completion(
    content: str | None = "ok", tokens: int | None = None, calls: list[Raw] | None = None
) -> Raw:
    message: Raw = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = calls
    response: Raw = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-4o-2024-11-20",
        "choices": [
            {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None},
        ],
    }
    if tokens is not None:
        response["usage"] = {
            "prompt_tokens": tokens,
            "completion_tokens": 7,
            "total_tokens": tokens + 7,
            "prompt_tokens_details": {"cached_tokens": tokens // 2},
        }
    return response


def chunks(*pieces: Raw, tokens: int | None = 40, finish: str | None = "stop") -> list[Any]:
    def chunk(**fields: Any) -> ChatCompletionChunk:
        base = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}
        return ChatCompletionChunk.model_validate({**base, "choices": [], **fields})

    out = [chunk(choices=[{"index": 0, "delta": piece, "finish_reason": None}]) for piece in pieces]
    if finish:
        out.append(chunk(choices=[{"index": 0, "delta": {}, "finish_reason": finish}]))
    if tokens is not None:
        usage = {"prompt_tokens": tokens, "completion_tokens": 3, "total_tokens": tokens + 3}
        out.append(chunk(usage=usage))
    return out


CALL_PIECES: list[Raw] = [
    {
        "role": "assistant",
        "tool_calls": [
            {"index": 0, "id": "call_1", "type": "function", "function": {"name": "run"}}
        ],
    },
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"command":'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": ' "ls"}'}}]},
]


def anthropic_message(*blocks: Raw, stop: str = "end_turn") -> anthropic.types.Message:
    return anthropic.types.Message.model_validate(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-4-5",
            "content": list(blocks),
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": {
                "input_tokens": 10,
                "output_tokens": 5,
                "cache_read_input_tokens": 20,
                "cache_creation_input_tokens": 3,
            },
        }
    )


def anthropic_events(*texts: str) -> list[Any]:
    events: list[Raw] = [
        {
            "type": "message_start",
            "message": {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": "claude-sonnet-4-5",
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": {"input_tokens": 33, "output_tokens": 1},
            },
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    ]
    events += [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
        for piece in texts
    ]
    events += [
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 9},
        },
        {"type": "message_stop"},
    ]
    adapter: TypeAdapter[Any] = TypeAdapter(anthropic.types.RawMessageStreamEvent)
    return [adapter.validate_python(event) for event in events]
