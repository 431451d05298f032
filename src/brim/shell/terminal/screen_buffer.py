"""The part of a terminal's screen that a program can still change, as rows of text."""

from __future__ import annotations

from typing import Final

LONGEST: Final = 20_000
"""Longer lines are split internally; the result is not."""


class Page:
    """The lines that can still change, and the cursor.

    Rows are numbered from the beginning of the output; those above `_floor` have left the screen. A
    picture starts at `_top`, where a program has moved the cursor to the top left. It is held back
    until another one replaces it, unless it is taller than two screens: then it is normal output.
    """

    def __init__(self, width: int, height: int) -> None:
        self._width, self._height = max(width, 1), max(height, 1)
        self._rows = [""]
        self._base = 0
        self._floor = 0
        self._broken: set[int] = set()
        self._row = 0
        self._column = 0
        self._top: int | None = None
        self._is_picture = False
        self._saved: tuple[int, int] | None = None
        self._is_aside = False

    @property
    def _bottom(self) -> int:
        return self._base + len(self._rows) - 1

    def resize(self, width: int, height: int) -> None:
        if (width, height) == (self._width, self._height):
            return
        self._width, self._height = max(width, 1), max(height, 1)
        self._raise_floor()
        self._row = max(self._row, self._floor)

    def can_append(self, text: str) -> bool:
        is_at_end = self._row == self._bottom and self._column == len(self._rows[-1])
        is_plain = not self._is_aside and not self._is_picture
        return is_at_end and is_plain and self._column + len(text) < LONGEST

    def append(self, text: str) -> str:
        """Append text without control characters; return the lines that leave the screen."""
        cut = len(text)
        for _ in range(self._height):
            cut = text.rfind("\n", 0, cut)
            if cut < 0:
                break
        out = ""
        if cut >= 0:
            out = self._joined(self._rows, self._base)[:-1] + text[: cut + 1]
            self._base += len(self._rows) - 1 + text.count("\n", 0, cut + 1)
            self._rows = [""]
        self._rows[-1:] = (self._rows[-1] + text[cut + 1 if cut >= 0 else 0 :]).split("\n")
        self._row, self._column = self._bottom, len(self._rows[-1])
        self._raise_floor()
        return out + self.take_final()

    def take_final(self) -> str:
        """Return the lines that can no longer change, once."""
        held = self._top if self._is_picture and self._top is not None else self._floor
        count = min(self._floor, self._row, held) - self._base
        if count <= 0:
            return ""
        out = self._joined(self._rows[:count], self._base)
        del self._rows[:count]
        self._base += count
        self._broken = {row for row in self._broken if row >= self._base}
        return out

    def rest(self) -> str:
        return self._joined(self._rows, self._base)[:-1]

    def write(self, text: str) -> None:
        while text and not self._is_aside:
            if self._column >= LONGEST:
                self._broken.add(self._row)
                self._row, self._column = self._row + 1, 0
            self._extend()
            part, text = text[: LONGEST - self._column], text[LONGEST - self._column :]
            index = self._row - self._base
            line = self._rows[index].ljust(self._column)
            end = self._column + len(part)
            self._rows[index] = line[: self._column] + part + line[end:]
            self._column = end

    def control(self, control: str) -> None:
        if control in "\n\x0b\x0c":
            self._is_aside = False
            self._row, self._column = self._row + 1, 0
            self._extend()
        elif control == "\r":
            self._column = 0
        elif control == "\b":
            self._column = max(self._column - 1, 0)

    def single(self, single: str) -> None:
        if single == "7":
            self._saved = (self._row, self._column)
        elif single == "8":
            self._restore()
        elif single == "M":
            self._move(-1, 0)

    def sequence(self, final: str, numbers: list[int]) -> None:
        count = numbers[0] or 1
        if final in "ABCDEF":
            rows = {"A": -count, "F": -count, "B": count, "E": count}.get(final, 0)
            self._move(rows, {"C": count, "D": -count}.get(final, 0))
            self._column = 0 if final in "EF" else self._column
        elif final in "Hf":
            self._go(count, numbers[1] if len(numbers) > 1 else 1)
        elif final in "G`":
            self._column = min(count, self._width) - 1
        elif final == "s":
            self._saved = (self._row, self._column)
        elif final == "u":
            self._restore()
        elif final == "J":
            self._erase_screen(numbers[0])
        elif final in "KPX@":
            self._change_line(final, numbers[0])

    def _move(self, rows: int, columns: int) -> None:
        self._row = min(max(self._row + rows, self._floor), max(self._bottom, self._row))
        if columns:
            self._column = max(min(self._column + columns, max(self._width, self._column)), 0)

    def _go(self, row: int, column: int) -> None:
        """Move the cursor; between "save" and "restore", writes elsewhere are ignored."""
        if self._saved is not None:
            self._is_aside = True
            return
        if self._top is None or (row, column) in ((1, 0), (1, 1)):
            self._begin_picture()
        self._row = max(self._top or 0, self._floor) + min(row, self._height) - 1
        self._column = min(max(column, 1), self._width) - 1

    def _begin_picture(self) -> None:
        """Start a picture; discard the part of the previous one that has scrolled off."""
        if self._top is None:
            self._top = self._bottom + (self._rows[-1] != "")
        elif self._is_picture:
            self._take_out(self._top, self._floor)
        else:
            self._top = max(self._top, self._floor)
        self._is_picture = True

    def _take_out(self, first: int, end: int) -> None:
        count = end - first
        if count <= 0:
            return
        del self._rows[first - self._base : end - self._base]
        kept = (row for row in self._broken if not first <= row < end)
        self._broken = {row - count if row >= end else row for row in kept}
        self._row, self._floor = max(self._row - count, first), first
        if self._saved is not None:
            self._saved = max(self._saved[0] - count, first), self._saved[1]

    def _restore(self) -> None:
        if self._saved is not None:
            row, self._column = self._saved
            self._row = max(row, self._floor)
        self._saved, self._is_aside = None, False

    def _erase_screen(self, kind: int) -> None:
        if self._is_aside:
            return
        if kind == 0:
            self._extend()
            self._change_line("K", 0)
            self._cut(self._row + 1)
        elif kind == 2:
            self._begin_picture()
            self._cut(max(self._top or 0, self._floor))
            self._row = max(self._row, self._top or 0)

    def _cut(self, row: int) -> None:
        """Remove the rows from this one on."""
        del self._rows[max(row - self._base, 0) :]
        self._broken = {broken for broken in self._broken if broken < row}
        if not self._rows:
            self._rows.append("")

    def _change_line(self, final: str, count: int) -> None:
        if self._is_aside or self._row > self._bottom:
            return
        index, column = self._row - self._base, self._column
        line, many = self._rows[index], min(count or 1, LONGEST)
        if final == "K":
            line = {0: line[:column], 1: " " * column + line[column:], 2: ""}.get(count, line)
        elif final == "P":
            line = line[:column] + line[column + many :]
        elif final == "X":
            line = line[:column] + " " * len(line[column : column + many]) + line[column + many :]
        elif column < len(line):
            line = (line[:column] + " " * min(many, self._width) + line[column:])[:LONGEST]
        self._rows[index] = line

    def _extend(self) -> None:
        missing = self._row - self._bottom
        if missing > 0:
            self._rows.extend([""] * missing)
            self._raise_floor()

    def _raise_floor(self) -> None:
        self._floor = max(self._floor, self._bottom - self._height + 1)
        if self._top is not None and self._floor - self._top > self._height:
            self._is_picture = False

    def _joined(self, rows: list[str], base: int) -> str:
        if not self._broken:
            return "\n".join(rows) + "\n"
        ends = ("" if base + i in self._broken else "\n" for i in range(len(rows)))
        return "".join(row + end for row, end in zip(rows, ends, strict=True))
