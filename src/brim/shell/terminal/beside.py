"""Reads on while no command runs, so that jobs in the background are not held up."""

from __future__ import annotations

import os
import select
import threading
from typing import Final

from brim.shell.terminal.live import read

MOST: Final = 65_536
"""Bytes of their output that wait for the next command; older ones are lost."""


class Beside:
    """A thread that reads from a shell's terminal, except when it is paused."""

    def __init__(self, master: int) -> None:
        self._master = master
        self._waiting = b""
        self._thread: threading.Thread | None = None
        self._wake, self._waker = os.pipe()
        self.go_on()

    def taken(self) -> bytes:
        """What has come so far; only while paused."""
        waiting, self._waiting = self._waiting, b""
        return waiting

    def add(self, data: bytes) -> None:
        self._waiting = (self._waiting + data)[-MOST:]

    def go_on(self) -> None:
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
            data = read(self._master)
            if not data:
                return
            self.add(data)
