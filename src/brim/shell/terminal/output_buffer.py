"""An output of any length: its head and tail in memory, the whole of it in a file."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO, Final
from uuid import uuid4

MAX_HEAD: Final = 32_000
MAX_TAIL: Final = 32_000
"""Characters that are kept in memory from either end."""
MAX_FILE: Final = 1 << 30
"""Characters that are written to the file; `yes` is not to fill the disk."""


class OutputBuffer:
    """Takes text as it comes; past head and tail it goes to a file in `spill`."""

    def __init__(self, spill: Path) -> None:
        self._spill = spill
        self._head = ""
        self._tail: deque[str] = deque()
        self._tail_size = 0
        self._size = 0
        self._file: IO[str] | None = None
        self._path: Path | None = None
        self._fault = ""
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
        """What is to be shown of it, and where the whole is if that is not all."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        tail = "".join(self._tail)
        if self._size <= MAX_HEAD + MAX_TAIL:
            return self._head + tail, None
        left_out = self._size - MAX_HEAD - MAX_TAIL
        note = f"\n[… {left_out:,} characters left out; {self._where()} …]\n"
        return self._head + note + tail[-MAX_TAIL:], self._path

    def _where(self) -> str:
        if self._path is None:
            return f"they are not kept, because {self._fault}"
        return f"the {'beginning' if self._fault else 'whole'} is in {self._path}"

    def _write(self, text: str) -> None:
        """Opens the file when it is needed; a full disk ends the file, not the command."""
        if self._fault or self._size <= MAX_HEAD + MAX_TAIL:
            return
        try:
            if self._file is None:
                self._file = self._open()
                self._file.write(self._head + "".join(self._tail))
            self._file.write(text)
        except OSError as error:
            self._fault = f"the file could not be written ({error.strerror})"
        if self._size > MAX_FILE:
            self._fault = "it is too large"

    def _open(self) -> IO[str]:
        for folder in (self._spill.parent, self._spill):  # the mode is for the last of a path only
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._spill / f"output-{uuid4().hex[:12]}.txt"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._path = path
        return os.fdopen(descriptor, "w", encoding="utf-8", errors="replace", newline="")
