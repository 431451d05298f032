"""A table with styles, which drops columns on a narrow screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.text import Text

from brim.fitting.text_tables import GAP, choose_columns


@dataclass(frozen=True, slots=True)
class StyledTable:
    """Rows under a header; without a terminal, the width is not limited."""

    head: Sequence[str]
    rows: Sequence[Sequence[Text]]
    left: tuple[str, ...]
    """The columns that are aligned to the left; the others are numbers."""
    drop_order: Sequence[str]
    """Columns to drop first on a narrow screen."""
    min_last_width: int | None = None
    """The width to which the last column is cut before any is dropped; None: it is not cut."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from self.lines(options.max_width if console.is_terminal else None)

    def lines(self, width: int | None) -> Iterator[Text]:
        """Yield the lines; if even the last columns are too wide, the first one is cut."""
        rows = [[Text(name, "dim") for name in self.head], *self.rows]
        sizes = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
        chosen, sizes = self._lay_out(sizes, width)
        for row in rows:
            line = Text(no_wrap=True)
            for place in chosen:
                cell = row[place].copy()
                cell.align("left" if self.head[place] in self.left else "right", sizes[place])
                line.append(" " * GAP if place != chosen[0] else "").append_text(cell)
            line.rstrip()
            yield line

    def _lay_out(self, sizes: list[int], width: int | None) -> tuple[list[int], list[int]]:
        """Return the columns to show, and the width of each column."""
        if width is None:
            return list(range(len(sizes))), sizes
        least = [*sizes[:-1], min(sizes[-1], self.min_last_width or sizes[-1])]
        chosen = choose_columns(least, width, [self.head.index(name) for name in self.drop_order])
        room = width + GAP - sum(least[place] + GAP for place in chosen)
        least[-1] = min(sizes[-1], least[-1] + max(0, room))
        least[chosen[0]] = max(1, least[chosen[0]] + min(0, room))
        return chosen, least
