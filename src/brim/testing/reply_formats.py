"""What a scripted provider says, in the shapes of OpenAI and Anthropic; no I/O here.

The same words to the same request are the same bytes: no clock, no chance and no counter goes into
an answer.
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

__all__ = [
    "CHAT",
    "MESSAGES",
    "REPLY_FORMATS",
    "RESPONSES",
    "Body",
    "ErrorReply",
    "ReceivedRequest",
    "ReplyFormat",
    "TextReply",
    "ToolCallReply",
    "list_models",
    "make_context_length_error",
    "make_reply_id",
    "stream_error",
]  # fmt: skip

CHAT: Final = "/v1/chat/completions"
MESSAGES: Final = "/v1/messages"
RESPONSES: Final = "/v1/responses"


class ReplyFormat(Protocol):
    """What each format's module offers."""

    @property
    def OPENING(self) -> int:  # noqa: N802 - a module's constant
        """So many pieces of a stream come before anything of the answer does."""

    @property
    def HELD(self) -> int:  # noqa: N802
        """So many pieces of a stream bring the first words."""

    def whole(self, said: TextReply, name: str, model: str, usage: Usage) -> dict[str, Any]: ...

    def events(self, answer: Body, asked: Body, /) -> Iterator[str]: ...

    def failed(self, answer: Body, error: Mapping[str, Any], /) -> str: ...

    def failure(self, error: Mapping[str, Any]) -> dict[str, Any]: ...

    def refusal(self, prompt: int, room: int, window: int, /) -> dict[str, Any]: ...

    def counted(self, tokens: int) -> dict[str, Any]: ...


REPLY_FORMATS: Final[Mapping[str, ReplyFormat]] = {
    CHAT: chat_format,
    MESSAGES: anthropic_format,
    RESPONSES: responses_format,
}
"""The formats by the path at which they are asked for."""


def make_reply_id(asked: ReceivedRequest, said: TextReply) -> str:
    """What an answer is told from others by: what was said, and to which prompt."""
    calls = [(call.name, call.arguments) for call in said.calls]
    prompt = [asked.body.get(key) for key in PROMPT]
    return sha256(json.dumps([prompt, said.text, calls]).encode()).hexdigest()[:16]


def stream_error(asked: ReceivedRequest, fault: ErrorReply, model: str) -> Iterator[str | bytes]:
    """A stream that begins as if all was well and has a fault in place of its first token."""
    form, nothing = REPLY_FORMATS[asked.path], TextReply()
    usage = Usage(asked.tokens, 0, 0)
    answer = form.whole(nothing, make_reply_id(asked, nothing), model, usage)
    yield from islice(form.events(answer, asked.body), form.OPENING)
    yield form.failed(answer, fault.error_object) if fault.raw is None else fault.raw


def make_context_length_error(
    like: str, asked: ReceivedRequest, room: int, window: int
) -> dict[str, Any]:
    """The error of a prompt that leaves no room for the answer."""
    if like != "llama.cpp":
        return REPLY_FORMATS[asked.path].refusal(asked.tokens, room, window)
    return {
        "code": 400,
        "message": f"request ({asked.tokens} tokens) exceeds the available context size "
        f"({window} tokens), try increasing it",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": asked.tokens,
        "n_ctx": window,
    }


def list_models(like: str, model: str, window: int | None) -> dict[str, Any]:
    """The list of models, with the window where the server is to tell it."""
    row: dict[str, Any] = {"id": model, "object": "model", "created": 0, "owned_by": "scripted"}
    if like == "llama.cpp":
        row |= {"owned_by": "llamacpp", "meta": {"n_ctx": window}}
    elif window is not None:
        row |= {"context_length": window}
    return {"object": "list", "data": [row]}
