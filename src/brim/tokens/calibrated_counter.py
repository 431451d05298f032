"""A counter that scales another's estimates by what servers reported.

Two numbers are learned for a model at an endpoint: how many true tokens an estimated one stands
for, and how many a byte of text in other scripts does. A vocabulary made for Latin text falls
back to single bytes there, so until it is measured such text is counted at a token a byte, more
than which no vocabulary takes.
"""

from __future__ import annotations

import re
from math import ceil
from typing import TYPE_CHECKING

from brim.tokens.counter import RequestCounter
from brim.tokens.text_chunks import utf8_length

if TYPE_CHECKING:
    from collections.abc import Iterable

    from brim.messages import Message

_NON_LATIN = re.compile(r"[^\x00-\u024f\u2010-\u2027\u2030-\u205e\u20ac]+")
"""What is neither Latin nor punctuation that goes with it."""


class CalibratedCounter(RequestCounter):
    """Counts like another counter, in true tokens as far as they are known."""

    __slots__ = ("_scaled",)

    def __init__(
        self, counter: RequestCounter, ratio: float, density: float, uncertainty: float
    ) -> None:
        name = f"{counter.name}*{ratio:.4f}+{density:.4f}"
        super().__init__(name, counter.table, counter.family, uncertainty)
        self.ratio = ratio
        self.density = density
        self._scaled: dict[str, int] = {}

    def text(self, text: str) -> int:
        if text.isascii():
            return ceil(self.ratio * super().text(text))
        found = self._scaled.get(text)
        if found is None:
            latin = _NON_LATIN.sub("", text)
            foreign = utf8_length(text) - utf8_length(latin)
            found = ceil(self.ratio * super().text(latin) + self.density * foreign)
            if len(self._scaled) >= _CACHE_SIZE:
                self._scaled.clear()
            self._scaled[text] = found
        return found


_CACHE_SIZE = 2_000


def measure_non_latin(messages: Iterable[Message]) -> int:
    """Bytes of text that is not Latin."""
    total = 0
    for message in messages:
        texts = message.words + message.outputs + message.thinking + message.extras
        if message.calls:
            texts += tuple(call.arguments for call in message.calls)
        for text in texts:
            if not text.isascii():
                total += utf8_length("".join(_NON_LATIN.findall(text)))
    return total
