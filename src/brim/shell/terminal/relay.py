"""Relays bytes between the terminals of brim and the shell, during commands and between them."""

from __future__ import annotations

import os
import re
import select
import signal
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from types import FrameType
from typing import Final

from brim.shell.terminal.process import (
    CHUNK,
    ShellProcess,
    StatusReports,
    new_token,
    read_available,
    read_chunk,
)

TICK: Final = 0.1
"""Seconds between two checks of the window size and of the shell."""
_FENCE_TIMEOUT: Final = 2.0
"""Seconds to wait for the last output."""
_RESCUE_DELAY: Final = 1.0
"""Seconds after which an idle shell without a report is asked again."""
INTERRUPT: Final = b"\x03"
"""Ctrl-C."""


@dataclass(slots=True, eq=False)
class Relay:
    """Relays a terminal's keys (None for none) to a shell, and its output to `show`."""

    shell: ShellProcess
    show: Callable[[bytes], None]
    _: KW_ONLY
    keys: int | None
    screen: int
    is_interrupted: bool = False
    """Whether Ctrl-C was pressed."""
    _typed: bytearray = field(default_factory=bytearray)
    _echoed: bytearray = field(default_factory=bytearray)
    _has_asked: bool = False
    """Whether keys were typed for a password prompt: a line that is read without echo."""
    _checked_at: float = 0.0
    _sent_at: float = 0.0
    _rescues: int = 3

    @property
    def unsent(self) -> bytes:
        """Keys that came too late for the command."""
        return bytes(self._typed)

    def hide_passwords(self, output: str) -> str:
        """Remove lines that the terminal echoed after a password prompt.

        ssh turns the echo on between its prompts, so a password typed there is shown.
        """
        lines = re.split(r"[\r\n]+", self._echoed.decode(errors="replace"))
        for line in filter(None, lines):
            output = re.sub(rf"(?m)^{re.escape(line)}$", "[hidden]", output)
        return output

    def press(self, keys: bytes) -> None:
        """Send keys as if they were typed."""
        self.is_interrupted |= INTERRUPT in keys
        self._typed += keys

    def until_done(
        self, reports: StatusReports, is_over: Callable[[], bool] = lambda: False
    ) -> None:
        """Relay until the command is done or the shell has ended, and all output is shown."""
        while reports.done is None and self.shell.is_alive and not is_over():
            self._send_next(reports)
            self._relay_once(reports)
        reports.feed(read_available(self.shell.reports))
        self._finish()

    def _send_next(self, reports: StatusReports) -> None:
        """Send the lines after the first one, and ask again if they were lost."""
        shell, now = self.shell, time.monotonic()
        if reports.is_started and not self._sent_at:
            self._sent_at = now
            shell.send(shell.dialect.after(shell.paths, reports.token))
        elif (
            self._rescues
            and self._sent_at
            and now > self._sent_at + _RESCUE_DELAY
            and shell.is_idle
        ):
            self._sent_at = now
            self._rescues -= 1
            shell.send(shell.dialect.rescue(shell.paths, reports.token))

    def until(self, is_met: Callable[[], bool], reports: StatusReports, seconds: float) -> bool:
        """Relay until the condition holds; return False on timeout."""
        deadline = time.monotonic() + seconds
        while not is_met() and self.shell.is_alive and time.monotonic() < deadline:
            self._relay_once(reports)
        return is_met()

    def _relay_once(self, reports: StatusReports) -> None:
        shell = self.shell
        readable = [shell.master, shell.reports, *([] if self.keys is None else [self.keys])]
        writable = [shell.master] if self._typed else []
        ready, free, _ = select.select(readable, writable, [], TICK)
        if time.monotonic() > self._checked_at + TICK:
            self._checked_at = time.monotonic()
            shell.wake()
            if (size := window_size(self.screen)) is not None:
                shell.resize(*size)
        if shell.master in ready:
            self.show(read_chunk(shell.master))
        if shell.reports in ready:
            reports.feed(read_available(shell.reports))
        if self.keys in ready:
            self._read_keys()
        if free:
            self._type()

    def _read_keys(self) -> None:
        if self.keys is None:
            return
        try:
            data = os.read(self.keys, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.press(data)
        else:
            self.keys = None

    def _type(self) -> None:
        try:
            modes = termios.tcgetattr(self.shell.slave)[3] & (termios.ICANON | termios.ECHO)
            count = os.write(self.shell.master, self._typed[:CHUNK])
            if self._has_asked and modes == termios.ICANON | termios.ECHO:
                self._echoed += self._typed[:count]
            self._has_asked |= modes == termios.ICANON
            del self._typed[:count]
        except BlockingIOError:
            return
        except (OSError, termios.error):
            self._typed.clear()

    def _finish(self) -> None:
        """Show the remaining output: a marker is written after it, through the same terminal.

        Reading until nothing is available is not enough, because the kernel delivers output later.
        """
        fence = f"\x1b]{new_token()}\x07".encode()
        held, left = b"", fence
        deadline = time.monotonic() + _FENCE_TIMEOUT
        attributes = termios.tcgetattr(self.shell.slave)
        if attributes[0] & termios.IXON:  # undo a Ctrl-S, which would stop all output
            write_some(self.shell.master, attributes[6][termios.VSTART])
        while time.monotonic() < deadline and fence not in held:
            writable = [self.shell.slave] if left else []
            ready, free, _ = select.select([self.shell.master], writable, [], TICK)
            if free:
                left = left[write_some(self.shell.slave, left) :]
            if ready:
                held += read_chunk(self.shell.master)
                # Show what cannot be part of the marker.
                safe = 0 if fence in held else max(len(held) - len(fence) + 1, 0)
                self.show(held[:safe])
                held = held[safe:]
        self.show(held.partition(fence)[0])


def write_some(descriptor: int, data: bytes) -> int:
    try:
        return os.write(descriptor, data)
    except OSError:
        return 0


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything, even if the descriptor is non-blocking."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


def window_size(descriptor: int) -> tuple[int, int] | None:
    """Return rows and columns of a terminal; None if it is not one."""
    try:
        columns, rows = os.get_terminal_size(descriptor)
    except OSError:
        return None
    return (rows, columns) if rows and columns else None


@contextmanager
def raw_mode(descriptor: int) -> Iterator[None]:
    """Switch a terminal to raw mode; keys typed before are kept."""
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextmanager
def handle_interrupts(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call a function when brim is interrupted; only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
