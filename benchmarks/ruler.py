"""An independent count of a request, to compare with brim's own.

It shares only the packed vocabulary with brim and has its own rules for the framing:
four tokens per message, three per request, one for a name plus the name itself (OpenAI's published
rule), and for a tool call its name, its arguments and ten.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from benchmarks.recordings import Message

if TYPE_CHECKING:
    from tiktoken import Encoding

REQUEST = 3
MESSAGE = 4
CALL = 10
NAME = 1


@cache
def load_o200k() -> Encoding:
    """Return the o200k vocabulary of brim's package as a tiktoken encoding."""
    from brim.tokens import vocabularies

    return vocabularies.load_encoding("o200k_base")


@lru_cache(maxsize=200_000)
def tokens(text: str) -> int:
    return len(load_o200k().encode_ordinary(text))


def texts(message: Message) -> list[str]:
    """Return all texts of a message that cost tokens."""
    content = message.get("content") or ""
    parts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
    for call in message.get("tool_calls") or []:
        parts += [call["function"]["name"], call["function"]["arguments"]]
    return [*parts, message.get("name") or ""]


def message_tokens(message: Message) -> int:
    frame = MESSAGE + CALL * len(message.get("tool_calls") or []) + NAME * bool(message.get("name"))
    return frame + sum(tokens(text) for text in texts(message) if text)


def request_tokens(messages: Iterable[Message]) -> int:
    return REQUEST + sum(map(message_tokens, messages))
