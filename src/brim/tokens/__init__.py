"""Counting: a `Tokenizer` counts text, a `Counter` counts requests with one.

`counter_for(model)` is what most callers need. Nothing is downloaded, and nothing is loaded before
it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from brim.messages import Message
from brim.tokens.media_tokens import image_size, image_size_base64
from brim.tokens.tokenizer_registry import (
    counter_for,
    register,
    tokenizer,
    tokenizer_for,
    vocabulary_of,
)

__all__ = [
    "Counter",
    "Tokenizer",
    "counter_for",
    "image_size",
    "image_size_base64",
    "register",
    "tokenizer",
    "tokenizer_for",
    "vocabulary_of",
]


class Tokenizer(Protocol):
    """Counts text, by itself and without I/O.

    Those that can also have `encode(text) -> list[int]`. Text that looks like a special token is
    ordinary text: it comes from users and tools, not from a template.
    """

    @property
    def name(self) -> str: ...

    def count(self, text: str) -> int: ...


class Counter(Protocol):
    """Counts requests, gives its best estimate, and says how sure it is."""

    @property
    def name(self) -> str:
        """Two counters of one name count alike."""

    @property
    def uncertainty(self) -> float:
        """Share of a count by which the truth may be higher; 0 with the model's own vocabulary."""

    @property
    def density(self) -> float:
        """Tokens counted for a byte of text that is not Latin; 0 where text is just tokenised."""

    @property
    def ratio(self) -> float:
        """The factor by which the tokens of Latin text are scaled; 1 without calibration."""

    @property
    def overhead(self) -> int:
        """Tokens of a request without messages."""

    def text(self, text: str) -> int:
        """Tokens of a text, remembered."""

    def message(self, message: Message) -> int:
        """Tokens of a turn: fixed ones for its form, plus `text` of each text in it."""

    def tools(self, tools: Sequence[Mapping[str, object]]) -> int:
        """Tokens of the definitions of tools; none for none."""

    def exact(
        self, messages: Iterable[Message], tools: Sequence[Mapping[str, object]] = ()
    ) -> bool:
        """Whether the sum for this request is what the model's server would count."""
