"""Scripted replies in the formats of OpenAI and Anthropic; no I/O.

The same reply to the same request gives the same bytes: no clock, no randomness, no counter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from itertools import islice
from typing import Any, Final, Protocol

from brim.models.pricing import Usage
from brim.testing import anthropic_format, chat_format, responses_format
from brim.testing.prompt_cache import PROMPT
from brim.testing.script import Body, ErrorReply, ReceivedRequest, TextReply, ToolCallReply
from brim.wire.formats import FORMATS_BY_PATH, FormatName

__all__ = [
    "REPLY_FORMATS",
    "Body",
    "ErrorReply",
    "ReceivedRequest",
    "ReplyFormat",
    "TextReply",
    "ToolCallReply",
    "find_reply_format",
    "list_models",
    "make_context_length_error",
    "make_reply_id",
    "stream_error",
]  # fmt: skip


class ReplyFormat(Protocol):
    """What the module of each format provides."""

    @property
    def EVENTS_BEFORE_REPLY(self) -> int:  # noqa: N802 - a module's constant
        """Events of a stream before the first one with content."""

    @property
    def EVENTS_BEFORE_HOLD(self) -> int:  # noqa: N802
        """Events of a stream up to the first words."""

    def build_response(
        self, reply: TextReply, name: str, model: str, usage: Usage
    ) -> dict[str, Any]: ...

    def iter_events(self, response: Body, request: Body, /) -> Iterator[str]: ...

    def build_error_event(self, response: Body, error: Mapping[str, Any], /) -> str: ...

    def build_error_body(self, error: Mapping[str, Any]) -> dict[str, Any]: ...

    def build_context_length_error(
        self, prompt: int, room: int, window: int, /
    ) -> dict[str, Any]: ...

    def build_count_response(self, tokens: int) -> dict[str, Any]: ...


REPLY_FORMATS: Final[Mapping[FormatName, ReplyFormat]] = {
    "openai": chat_format,
    "anthropic": anthropic_format,
    "responses": responses_format,
}


def find_reply_format(path: str) -> ReplyFormat:
    """Return the format of the replies at a path."""
    return REPLY_FORMATS[FORMATS_BY_PATH[path].name]


def make_reply_id(request: ReceivedRequest, reply: TextReply) -> str:
    """Return the id of a response, a hash of the reply and the prompt."""
    calls = [(call.name, call.arguments) for call in reply.calls]
    prompt = [request.body.get(key) for key in PROMPT]
    return sha256(json.dumps([prompt, reply.text, calls]).encode()).hexdigest()[:16]


def stream_error(
    request: ReceivedRequest, error_reply: ErrorReply, model: str
) -> Iterator[str | bytes]:
    """Return a stream that starts normally and has an error instead of its first token."""
    reply_format, nothing = find_reply_format(request.path), TextReply()
    usage = Usage(request.tokens, 0, 0)
    response = reply_format.build_response(nothing, make_reply_id(request, nothing), model, usage)
    yield from islice(
        reply_format.iter_events(response, request.body), reply_format.EVENTS_BEFORE_REPLY
    )
    yield (
        reply_format.build_error_event(response, error_reply.error_object)
        if error_reply.raw is None
        else error_reply.raw
    )


def make_context_length_error(
    like: str, request: ReceivedRequest, room: int, window: int
) -> dict[str, Any]:
    """Return the error of a prompt that leaves no room for output."""
    if like != "llama.cpp":
        return find_reply_format(request.path).build_context_length_error(
            request.tokens, room, window
        )
    return {
        "code": 400,
        "message": f"request ({request.tokens} tokens) exceeds the available context size "
        f"({window} tokens), try increasing it",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": request.tokens,
        "n_ctx": window,
    }


def list_models(like: str, model: str, window: int | None) -> dict[str, Any]:
    """Return the list of models, with the window if the server reports it."""
    row: dict[str, Any] = {"id": model, "object": "model", "created": 0, "owned_by": "scripted"}
    if like == "llama.cpp":
        row |= {"owned_by": "llamacpp", "meta": {"n_ctx": window}}
    elif window is not None:
        row |= {"context_length": window}
    return {"object": "list", "data": [row]}
