"""What both screens draw with: bars of what fills a window, and lines that do not wrap."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

AXIS: Final = 1.15
"""How much of the bars' scale there is, in windows: some room to see an overflow in."""
LABEL: Final = 8
"""Columns before a bar."""
BESIDE: Final = 26
"""Columns that a bar leaves for its label and its verdict."""

Part = tuple[str, int]
"""A role and its tokens."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Where tokens stand on a bar."""

    width: int
    """Columns of the screen."""
    window: int
    limit: int

    @property
    def room(self) -> int:
        """Columns of the bar."""
        return max(20, self.width - BESIDE)

    def column(self, tokens: int) -> int:
        return round(self.room * tokens / (self.window * AXIS))

    def marks(self) -> Text:
        """A line above the bars that says where the limit and the window are."""
        from rich.text import Text

        limit = f"▼ {self.limit:,}"
        between = self.column(self.window) - self.column(self.limit)
        window = f"▼ {self.window:,} window"
        if len(limit) < between:
            text = " " * self.column(self.limit) + limit.ljust(between) + window
        else:  # too close to each other for both numbers to stand between them
            text = f"{self.limit:,} ▼".rjust(self.column(self.limit) + 1)
            text = text.ljust(self.column(self.window)) + window
        return Text(" " * LABEL + text, "dim")


def bar(scale: Scale, parts: Sequence[Part], colors: Mapping[str, str]) -> Text:
    """What fills the window, a colour a role; what is past the limit is red."""
    from rich.text import Text

    room, limit, window = scale.room, scale.column(scale.limit), scale.column(scale.window)
    empty = "·" * limit + "░" * (window - limit) + " " * (room - window)
    cells = [(cell, "dim") for cell in empty]
    start = 0
    for (role, _), end in zip(parts, accumulate(tokens for _, tokens in parts), strict=True):
        for column in range(start, min(scale.column(end), room)):
            inside = column < limit
            cells[column] = ("█", colors.get(role, "white")) if inside else ("▒", "red")
        start = max(start, min(scale.column(end), room))
    if start == room:
        cells[-1] = ("▶", "red")
    return Text.assemble(*cells)


def verdict(tokens: int, over: str) -> Text:
    """What stands beside a bar; `over` is empty where it fits."""
    from rich.text import Text

    if over:
        return Text(f" {tokens:6,} ", "bold red") + Text(over, "red")
    return Text(f" {tokens:6,} ", "bold") + Text("fits", "green")


def legend(colors: Mapping[str, str]) -> Text:
    from rich.text import Text

    text = Text(" " * LABEL)
    for role, color in colors.items():
        text.append("█ ", color).append(f"{role}  ", "dim")
    return text.append("░ reply", "dim")


def cut(text: str, width: int, style: str = "") -> Text:
    """A line that ends where the screen does."""
    from rich.text import Text

    line = Text(text, style, no_wrap=True)
    line.truncate(max(10, width - 1), overflow="ellipsis")
    return line


def console() -> Console | None:
    """A terminal that can be drawn on, with rich to do it; otherwise lines will do."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(highlight=False)
