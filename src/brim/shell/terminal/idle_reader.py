"""Reads the terminal while no command runs, so that background jobs do not block."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import Final

from brim.shell.terminal.process import read_available

MAX_WAITING: Final = 65_536
"""Bytes of output to keep; older ones are lost."""


class IdleReader:
    """A thread that reads from a shell's terminal, unless it is paused."""

    def __init__(self, master: int, on_output: Callable[[], None]) -> None:
        self._master = master
        self._on_output = on_output
        self._waiting = b""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake, self._waker = os.pipe()
        self.resume()

    def take(self) -> bytes:
        """Return the output so far, once."""
        with self._lock:
            waiting, self._waiting = self._waiting, b""
        return waiting

    def take_lines(self) -> bytes:
        """Return the complete lines so far, once."""
        with self._lock:
            end = self._waiting.rfind(b"\n") + 1
            lines, self._waiting = self._waiting[:end], self._waiting[end:]
        return lines

    def add(self, data: bytes) -> None:
        with self._lock:
            self._waiting = (self._waiting + data)[-MAX_WAITING:]
        self._on_output()

    def resume(self) -> None:
        self._thread = threading.Thread(target=self._read, daemon=True, name="brim-shell-output")
        self._thread.start()

    def pause(self) -> None:
        if self._thread is not None:
            os.write(self._waker, b".")
            self._thread.join()
            os.read(self._wake, 1)
            self._thread = None

    def close(self) -> None:
        self.pause()
        os.close(self._wake)
        os.close(self._waker)

    def _read(self) -> None:
        while True:
            ready, _, _ = select.select([self._master, self._wake], [], [])
            if self._wake in ready:
                return
            data = read_available(self._master)
            if not data:
                return
            self.add(data)
