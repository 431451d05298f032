"""Tail: the last rows of the screen, which may still change.

Rows that were finished are never touched again. Of the rest, only rows that differ are written
anew, each in place, so nothing flickers. All rows are narrower than the screen, so that the
terminal never wraps one by itself and it is known where the cursor stands. Where that is not so
(the rows are as many as the screen has, or it changed its size) they are let go: they stay as they
are, and the rest of the text they show follows as it is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from brim.shell.render.sanitize import sanitize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

LEAST_WIDTH: Final = 4
_PADDING = re.compile(r"[ ]+((?:\x1b\[[0-9;]*m)*)$")
_ERASE_ROW: Final = "\x1b[K"
_ERASE_BELOW: Final = "\x1b[J"
_PLAIN: Final = "\x1b[0m"


class Tail:
    """What stands at the end of a terminal's screen."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: list[str] = []
        self._width = 0
        """Of the screen, when the rows were painted."""
        self._shown = 0
        """How much of the source the rows show."""
        self._followed: int | None = None
        """How much of it is written, where the rows are let go and the rest follows as it is."""
        self._ends_row = True
        self.is_torn = False
        """A write was interrupted: nobody knows how much of it the terminal got."""

    @property
    def width(self) -> int:
        """Columns for a row: one is left free, lest the terminal go to the next by itself."""
        return max(LEAST_WIDTH, self._console.size.width - 1)

    @property
    def is_let_go(self) -> bool:
        """The rest of this block follows as it is; no rows are needed for it."""
        return self._followed is not None

    def rows(self, drawn: RenderableType, *, whole: bool = False) -> list[str]:
        """What is drawn, as lines for the terminal; `whole` lines are left to it to wrap."""
        console, width = self._console, None if whole else self.width
        with console.capture() as captured:
            console.print(drawn, width=width, soft_wrap=whole, highlight=False)
        lines = captured.get().removesuffix("\n").split("\n")
        return [_PADDING.sub(r"\1", line) for line in lines]

    def show(self, rows: Sequence[str], source: str, sure: int) -> None:
        """Show these rows, made of that text, in place of those that may change.

        Where they are let go, only so much of the text follows as is `sure` to be one block.
        """
        source = source.removesuffix("\r")  # it may be the half of a line's end
        height = self._console.size.height
        if len(rows) >= height or self._is_moved():
            self._let_go()
        if self._followed is not None:
            sure = max(self._followed, min(sure, len(source)))
            self._write(sanitize(source[self._followed : sure]))
            self._followed = sure
            return
        self._write(self._changes(rows))
        self._rows, self._width = list(rows), self.width
        self._shown = len(source.rstrip())

    def settle(self, rows: Sequence[str], source: str = "") -> None:
        """Show these rows for good; what comes next stands below them."""
        if self._is_moved():
            self._let_go()
        if self._followed is None:
            self._write(self._changes(rows) + ("\n" if rows else ""))
        elif self._followed > len(source):  # what was shown as one block has become two
            self._followed -= len(source)
            return
        else:
            self._write(sanitize(source[self._followed :]))
            self.end_row()
        self._rows, self._shown, self._followed = [], 0, None

    def mend(self) -> None:
        """A new row, in plain colours, below whatever an interrupted write has left."""
        self._rows, self._shown, self._followed = [], 0, None
        self._write(f"{_PLAIN}\r\n")

    def write(self, text: str) -> None:
        """Go on where the cursor stands."""
        self._write(text)

    def end_row(self) -> None:
        """Go to the next row, unless the cursor stands where one begins."""
        self._write("" if self._ends_row else "\n")

    def _is_moved(self) -> bool:
        """Whether the rows may stand elsewhere by now: the screen has another size."""
        size = self._console.size
        return bool(self._rows) and (self.width != self._width or len(self._rows) >= size.height)

    def _let_go(self) -> None:
        if self._followed is None:
            self._rows, self._followed, self._ends_row = [], self._shown, not self._rows

    def _changes(self, rows: Sequence[str]) -> str:
        """The shortest way from the rows that are there to these."""
        old = self._rows
        same = 0
        while same < min(len(old), len(rows)) and old[same] == rows[same]:
            same += 1
        if same == len(old) == len(rows):
            return ""
        if same == len(old):
            return ("\n" if old else "") + "\n".join(rows[same:])
        if same == len(old) - 1 < len(rows) and rows[same].startswith(old[same]):
            added = rows[same][len(old[same]) :]
            return "\n".join([added, *rows[same + 1 :]])
        up = len(old) - 1 - min(same, len(rows))
        if same == len(rows):  # what was there is longer; the cursor goes behind what stays
            return self._shortened(rows, up)
        new = "\n".join(f"{row}{_ERASE_ROW}" for row in rows[same:])
        below = _ERASE_BELOW if len(rows) < len(old) else ""
        return f"{_up(up)}\r{new}{below}"

    def _shortened(self, rows: Sequence[str], up: int) -> str:
        if not rows:
            return f"{_up(up)}\r{_ERASE_BELOW}"
        return f"{_up(up)}\r{_ERASE_BELOW}{_up(1)}{rows[-1]}"

    def _write(self, text: str) -> None:
        if not text:
            return
        console = self._console
        self._ends_row = text.endswith("\n")
        self.is_torn = True
        console.file.write(_encodable(text, console.encoding))
        console.file.flush()
        self.is_torn = False


def _up(rows: int) -> str:
    return f"\x1b[{rows}A" if rows > 0 else ""


def _encodable(text: str, encoding: str) -> str:
    """Signs that the terminal's encoding has; others as question marks."""
    if encoding.lower().replace("-", "") in ("utf8", "utf16", "utf32"):
        return text
    return text.encode(encoding, "replace").decode(encoding)
