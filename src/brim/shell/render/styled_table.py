"""A table with styles, which drops columns on a narrow screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from brim.tables import GAP, choose_columns

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions


@dataclass(frozen=True, slots=True)
class StyledTable:
    """Rows under a header; without a terminal, the width is not limited."""

    head: Sequence[str]
    rows: Sequence[Sequence[Text]]
    left: tuple[str, ...]
    """The columns that are aligned to the left; the others are numbers."""
    drop_order: Sequence[str]
    """Columns to drop first on a narrow screen."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from self.lines(options.max_width if console.is_terminal else None)

    def lines(self, width: int | None) -> Iterator[Text]:
        """Yield the lines; if even the last columns are too wide, the first one is cut."""
        rows = [[Text(name, "dim") for name in self.head], *self.rows]
        sizes = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
        order = [self.head.index(name) for name in self.drop_order]
        chosen, excess = choose_columns(sizes, width, order)
        sizes[chosen[0]] = max(1, sizes[chosen[0]] - excess)
        for row in rows:
            line = Text(no_wrap=True)
            for place in chosen:
                cell = row[place].copy()
                cell.align("left" if self.head[place] in self.left else "right", sizes[place])
                line.append(" " * GAP if place != chosen[0] else "").append_text(cell)
            line.rstrip()
            yield line
