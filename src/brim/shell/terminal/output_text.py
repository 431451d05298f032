"""Converts the bytes that a program sent to a terminal into the text that a user would see.

Escape sequences are removed, but their effect is kept: a progress bar that overwrites itself leaves
its last state, a backspace deletes, a clock in a corner leaves nothing, and neither does a
full-screen program on the alternate screen. A program that repaints the main screen leaves its last
picture. Lines are not wrapped.

The program can still change the last lines of the screen; lines that have scrolled above them are
final and returned. So memory stays small however long the output is, and the result does not depend
on how the bytes are split into pieces. An `OutputBuffer` keeps the beginning and the end of the
text in memory, and writes all of it to a file if it is long.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Final
from uuid import uuid4

from brim.config import open_private
from brim.shell.terminal.screen_buffer import Page

_PIECE: Final = 8_192

_PLAIN: Final = re.compile(r"\x1b\[(?:[0-9;:]{0,64}m|0?K)")
"""Colors, and "erase to the end of the line", which has no effect at its end."""
_COLOR: Final = re.compile(r"\x1b\[([0-9;:]{0,64})m")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_UNFINISHED: Final = re.compile(r"\x1b(?:\[[0-?]{0,256}[ -/]{0,8}|[ -/]{0,8})?\Z")
_TOKEN: Final = re.compile(
    r"(?P<text>[^\x00-\x08\x0a-\x1f\x7f-\x9f]+)"
    r"|\x1b\[(?P<mark>[<-?]?)(?P<numbers>[0-?]{0,256})[ -/]{0,8}(?P<final>[@-~])"
    r"|\x1b(?P<string>[\]PX^_])"
    r"|\x1b(?P<between>[ -/]{0,8})(?P<single>[0-Z\\`-~])"
    r"|(?P<control>[\x00-\x1f\x7f-\x9f])"
)
_STRING_ENDS: Final = {
    "P": re.compile(r"[\x18\x1a\x1b]"),
    "": re.compile(r"[\x07\n\x18\x1a\x1b]"),
}
"""Where a string (a title, an image) ends; a missing end costs at most one line."""
_ALTERNATE_SCREEN: Final = frozenset({47, 1047, 1049})
_ON_BY_DEFAULT: Final = frozenset({7, 25})
"""Modes that are on by default: line wrap and a visible cursor."""
_REPAIRED: Final = frozenset(
    {1, 5, 6, 7, 9, 25, 66, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1015, 2004}
    | _ALTERNATE_SCREEN
)


class OutputCleaner:
    """Converts output in pieces; each call returns the text that can no longer change."""

    def __init__(self, *, width: int = 80, height: int = 24) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._page = Page(width, height)
        self._held = ""
        self._string: str | None = None
        self._is_alternate_screen = False
        self._modes: dict[int, bool] = {}
        self._is_colored = False
        self._is_shifted = False

    def feed(self, data: bytes) -> str:
        out = [
            self._take(self._decoder.decode(data[start : start + _PIECE]))
            for start in range(0, len(data), _PIECE)
        ]
        return "".join(out)

    def resize(self, *, width: int, height: int) -> None:
        """Set the size of the terminal."""
        self._page.resize(width, height)

    def finish(self) -> str:
        """Return the rest; an incomplete sequence is lost."""
        self._held, text = "", self._decoder.decode(b"", final=True)
        return self._take(text) + self._page.rest()

    @property
    def repairs(self) -> bytes:
        """The sequences that restore the terminal modes that the program has changed."""
        wrong = [m for m, is_on in self._modes.items() if is_on != (m in _ON_BY_DEFAULT)]
        parts = [f"\x1b[?{mode}{'h' if mode in _ON_BY_DEFAULT else 'l'}" for mode in sorted(wrong)]
        if self._is_shifted:
            parts.append("\x0f\x1b(B")
        if self._is_colored:
            parts.append("\x1b[0m")
        return "".join(parts).encode()

    def _take(self, text: str) -> str:
        text = self._held + text
        unfinished = _UNFINISHED.search(text)
        self._held = unfinished[0] if unfinished else ""
        text = text[: len(text) - len(self._held)]
        if self._string is None and not self._is_alternate_screen:
            simple = _PLAIN.sub("", text).replace("\r\n", "\n")
            if not _CONTROL.search(simple) and self._page.can_append(simple):
                for numbers in _COLOR.findall(text)[-1:]:
                    self._is_colored = numbers.strip("0;") != ""
                return self._page.append(simple)
        self._interpret(text)
        return self._page.take_final()

    def _interpret(self, text: str) -> None:
        position = 0
        while position < len(text):
            if self._string is not None:
                position = self._skip_string(text, position)
                continue
            token = _TOKEN.match(text, position)
            # Every character starts a token, so there is always one.
            position = token.end() if token else len(text)
            if token:
                self._apply(token)

    def _skip_string(self, text: str, position: int) -> int:
        end = _STRING_ENDS["P" if self._string == "P" else ""].search(text, position)
        if end is None:
            return len(text)
        self._string = None
        # An escape starts the next sequence (the end of a string is one); a newline is kept.
        return end.start() if end[0] in "\x1b\n" else end.end()

    def _apply(self, token: re.Match[str]) -> None:
        if token["text"] is not None:
            if not self._is_alternate_screen:
                self._page.write(token["text"])
        elif token["control"] is not None:
            self._control(token["control"])
        elif token["string"] is not None:
            self._string = token["string"]
        elif token["single"] is not None:
            self._single(token["between"], token["single"])
        elif token["mark"] == "?" and token["final"] in "hl":
            self._set_modes(token["numbers"], is_on=token["final"] == "h")
        elif not token["mark"]:
            self._sequence(token["final"], token["numbers"])

    def _control(self, control: str) -> None:
        if control in "\x0e\x0f":
            self._is_shifted = control == "\x0e"
        elif not self._is_alternate_screen:
            self._page.control(control)

    def _single(self, between: str, single: str) -> None:
        if between:
            self._is_shifted = self._is_shifted or (between == "(" and single == "0")
        elif single == "c":
            self._modes.clear()
            self._is_alternate_screen = self._is_colored = self._is_shifted = False
        elif not self._is_alternate_screen:
            self._page.single(single)

    def _set_modes(self, numbers: str, *, is_on: bool) -> None:
        for mode in _numbers(numbers):
            if mode in _REPAIRED:
                self._modes[mode] = is_on
            if mode in _ALTERNATE_SCREEN:
                self._is_alternate_screen = is_on

    def _sequence(self, final: str, numbers: str) -> None:
        if final == "m":
            self._is_colored = numbers.strip("0;") != ""
        elif not self._is_alternate_screen:
            self._page.sequence(final, _numbers(numbers))


def _numbers(text: str) -> list[int]:
    """Return the arguments of a sequence, 0 for missing ones."""
    parts = (part.split(":")[0] for part in text.split(";"))
    return [int(part) if part.isdecimal() and len(part) < 6 else 0 for part in parts]


# The buffer

MAX_HEAD: Final = 32_000
MAX_TAIL: Final = 32_000
"""Characters to keep in memory from either end."""
PIECE: Final = 1 << 20
"""Characters to change at a time in a file."""
MAX_FILE: Final = 1 << 30
"""Characters to write to the file, so that `yes` does not fill the disk."""


class OutputBuffer:
    """Collects text; output that is too long for memory also goes to a file in `spill`."""

    def __init__(self, spill: Path) -> None:
        self._spill = spill
        self._head = ""
        self._tail: deque[str] = deque()
        self._tail_size = 0
        self._size = 0
        self._file: IO[str] | None = None
        self._path: Path | None = None
        self._problem = ""
        self.last = ""
        """The last character."""

    def add(self, text: str) -> None:
        if not text:
            return
        self.last = text[-1]
        self._size += len(text)
        self._write(text)
        room = MAX_HEAD - len(self._head)
        if room > 0:
            self._head, text = self._head + text[:room], text[room:]
        self._tail.append(text[-MAX_TAIL:])
        self._tail_size += len(self._tail[-1])
        while self._tail_size - len(self._tail[0]) > MAX_TAIL:
            self._tail_size -= len(self._tail.popleft())

    def close(self) -> tuple[str, Path | None]:
        """Return the text to use, and the path of the whole output if that is not all."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        tail = "".join(self._tail)
        if self._size <= MAX_HEAD + MAX_TAIL:
            return self._head + tail, None
        left_out = self._size - MAX_HEAD - MAX_TAIL
        where = f"the {'beginning' if self._problem else 'whole output'} is in {self._path}"
        where = where if self._path else f"not saved: {self._problem}"
        note = f"\n[… {left_out:,} characters omitted; {where} …]\n"
        return self._head + note + tail[-MAX_TAIL:], self._path

    def _write(self, text: str) -> None:
        """Write to the file, opened on first use; a full disk ends the file, not the command."""
        if self._problem or self._size <= MAX_HEAD + MAX_TAIL:
            return
        try:
            if self._file is None:
                self._file = create_output_file(self._spill)
                self._path = Path(self._file.name)
                self._file.write(self._head + "".join(self._tail))
            self._file.write(text)
        except OSError as error:
            self._problem = f"the file could not be written ({error.strerror})"
        if self._size > MAX_FILE:
            self._problem = "the output is too large"


def rewrite_file(path: Path, change: Callable[[str], str]) -> None:
    """Change the text of a file in pieces of whole lines; remove it if that fails."""
    copy: Path | None = None
    try:
        with (
            path.open(encoding="utf-8", newline="") as file,
            create_output_file(path.parent) as new,
        ):
            copy = Path(new.name)
            while text := file.read(PIECE):
                new.write(change(text + file.readline(PIECE)))
        copy.replace(path)
    except OSError:
        for each in filter(None, (path, copy)):
            each.unlink(missing_ok=True)


def create_output_file(folder: Path) -> IO[str]:
    """Create a file for a long output, which only its user can read."""
    for each in (folder.parent, folder):  # mkdir applies the mode to the last component only
        each.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"output-{uuid4().hex[:12]}.txt"
    return open(path, "x", encoding="utf-8", errors="replace", newline="", opener=open_private)
