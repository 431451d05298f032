"""Two guesses from the length of a text, for those who ask for them by name."""

from __future__ import annotations

from brim.tokens.chunks import size_of

NAMES = ("chars/3.5", "chars/4")
UNCERTAINTY = 0.5
"""Share of a count: less than half of the texts of agents are further off, code and JSON mostly."""


class Heuristic:
    """A fixed number of UTF-8 bytes per token: `chars/3.5` rounds up, `chars/4` rounds down."""

    def __init__(self, name: str) -> None:
        self.name = name

    def count(self, text: str) -> int:
        size = size_of(text)
        return size // 4 if self.name == "chars/4" else -(-2 * size // 7)
