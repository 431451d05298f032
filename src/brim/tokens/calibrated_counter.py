"""A counter that scales another counter's estimates by the counts that servers reported.

Two numbers are calibrated for a model at an endpoint: the actual tokens per estimated token, and
the tokens per byte of non-Latin text. A vocabulary for Latin text falls back to single bytes for
other scripts, so until it is measured, such text counts one token per byte, the maximum of any
vocabulary.
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
"""Characters that are neither Latin nor common punctuation."""


class CalibratedCounter(RequestCounter):
    """Counts like another counter, scaled to actual tokens."""

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
    """Return the bytes of non-Latin text in the messages."""
    total = 0
    for message in messages:
        texts = message.words + message.outputs + message.thinking + message.extras
        if message.calls:
            texts += tuple(call.arguments for call in message.calls)
        for text in texts:
            if not text.isascii():
                total += utf8_length("".join(_NON_LATIN.findall(text)))
    return total
