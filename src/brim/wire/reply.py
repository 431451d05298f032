"""A model's reply, independent of the provider's format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from brim.messages import Call
from brim.models.pricing import Usage


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply: the turn to append to the history, and facts about the call."""

    message: Mapping[str, object]
    """The assistant turn in the chat shape, ready to be sent back; `_` fields hold the original
    blocks of other formats (signatures)."""
    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    finish: str | None = None
    """The finish reason, in the provider's terms."""
    usage: Usage | None = None
    """None if the provider reported none."""
    cost: Decimal | None = None
    """Dollars, if the provider reported the cost of the call."""
    model: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is neither text nor a tool call."""
        return not self.text and not self.calls

    @property
    def is_cut(self) -> bool:
        """Whether the reply ended because it reached a length limit."""
        return self.finish in (
            "length",
            "max_tokens",
            "model_context_window_exceeded",
            "incomplete",
            "model_length",
        )

    def __str__(self) -> str:
        return self.text
