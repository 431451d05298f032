"""The interfaces of tokenizers and counters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from brim.messages import Message


class Tokenizer(Protocol):
    """Counts text, without I/O.

    If supported, it also has `encode(text) -> list[int]`. Text that looks like a special token is
    ordinary text: it comes from users and tools, not from a template.
    """

    @property
    def name(self) -> str: ...

    def count(self, text: str) -> int: ...


class Counter(Protocol):
    """Counts requests: the best estimate and its uncertainty."""

    @property
    def name(self) -> str:
        """Counters with the same name count the same."""

    @property
    def uncertainty(self) -> float:
        """Share by which the actual count may be higher; 0 with the model's own vocabulary."""

    @property
    def density(self) -> float:
        """Tokens per byte of non-Latin text; 0 if such text is tokenized."""

    @property
    def ratio(self) -> float:
        """The factor by which the tokens of Latin text are scaled; 1 without calibration."""

    @property
    def is_unknown(self) -> bool:
        """Whether nothing is known about the model."""

    @property
    def overhead(self) -> int:
        """Tokens of a request without messages."""

    @property
    def default_system(self) -> int:
        """Tokens that the template prints in place of a system text, if there is none."""

    def text(self, text: str) -> int:
        """Return the tokens of a text, cached."""

    def message(self, message: Message) -> int:
        """Return the tokens of a turn: a fixed number, plus `text` of each text."""

    def tools(self, tools: Sequence[Mapping[str, object]]) -> int:
        """Return the tokens of tool definitions; 0 if there are none."""

    def tool_margin(self, tools: Sequence[Mapping[str, object]], room: int) -> int:
        """Return by how much the tools and calls of a request of `room` tokens may be too low."""

    def exact(
        self, messages: Iterable[Message], tools: Sequence[Mapping[str, object]] = ()
    ) -> bool:
        """Whether the count of this request equals the count of the model's server."""
