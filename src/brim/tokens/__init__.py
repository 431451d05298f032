"""Counting: a `Tokenizer` counts text, a `Counter` counts requests with one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from brim.messages import Message
from brim.tokens.images import image_size, image_size_base64
from brim.tokens.registry import counter_for, register, tokenizer, tokenizer_for

__all__ = [
    "Counter",
    "Tokenizer",
    "counter_for",
    "image_size",
    "image_size_base64",
    "register",
    "tokenizer",
    "tokenizer_for",
]


class Tokenizer(Protocol):
    """Counts text. Those that can also have `encode(text) -> list[int]`."""

    @property
    def name(self) -> str: ...

    def count(self, text: str) -> int: ...


class Counter(Protocol):
    """Counts requests, and says how sure it is."""

    @property
    def name(self) -> str:
        """Two counters of one name count alike."""

    @property
    def uncertainty(self) -> float:
        """Share of a count by which the truth may be higher; 0 with the model's own vocabulary."""

    @property
    def overhead(self) -> int:
        """Tokens of a request without messages."""

    def text(self, text: str) -> int: ...

    def message(self, message: Message) -> int: ...

    def tools(self, tools: Sequence[Mapping[str, object]]) -> int: ...

    def exact(
        self, messages: Iterable[Message], tools: Sequence[Mapping[str, object]] = ()
    ) -> bool: ...
