"""Output of any length: its beginning and end in memory, all of it in a file."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO, Final
from uuid import uuid4

MAX_HEAD: Final = 32_000
MAX_TAIL: Final = 32_000
"""Characters to keep in memory from either end."""
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
        note = f"\n[… {left_out:,} characters omitted; {self._where()} …]\n"
        return self._head + note + tail[-MAX_TAIL:], self._path

    def _where(self) -> str:
        if self._path is None:
            return f"not saved: {self._problem}"
        return f"the {'beginning' if self._problem else 'whole output'} is in {self._path}"

    def _write(self, text: str) -> None:
        """Write to the file, opened on first use; a full disk ends the file, not the command."""
        if self._problem or self._size <= MAX_HEAD + MAX_TAIL:
            return
        try:
            if self._file is None:
                self._file = self._open()
                self._file.write(self._head + "".join(self._tail))
            self._file.write(text)
        except OSError as error:
            self._problem = f"the file could not be written ({error.strerror})"
        if self._size > MAX_FILE:
            self._problem = "the output is too large"

    def _open(self) -> IO[str]:
        for folder in (
            self._spill.parent,
            self._spill,
        ):  # mkdir applies the mode to the last component only
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._spill / f"output-{uuid4().hex[:12]}.txt"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._path = path
        return os.fdopen(descriptor, "w", encoding="utf-8", errors="replace", newline="")
