"""Reply: what a model answered, whatever format it came in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from brim.messages import Call
from brim.models.pricing import Usage


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer: the turn to keep, and what is known about how it came to be."""

    message: Mapping[str, Any]
    """The assistant's turn in the chat shape, ready to be sent back; `_` fields hold what another
    format needs to get its own blocks back (signatures)."""
    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    finish: str | None = None
    """Why it ended, in the provider's own word."""
    usage: Usage | None = None
    """None where the provider reported nothing."""
    cost: Decimal | None = None
    """Dollars, where the provider itself said what the call cost."""
    model: str | None = None

    @property
    def is_empty(self) -> bool:
        """Nothing was said and no tool was called."""
        return not self.text and not self.calls

    @property
    def is_cut(self) -> bool:
        """The answer ended because there was no more room for it."""
        return self.finish in (
            "length",
            "max_tokens",
            "model_context_window_exceeded",
            "incomplete",
            "model_length",
        )

    def __str__(self) -> str:
        return self.text
