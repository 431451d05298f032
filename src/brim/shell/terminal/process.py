"""Processes of the user's shell: the running one with its reports, and one that only parses."""

from __future__ import annotations

import fcntl
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Final

from brim.shell.terminal.dialects import CommandStatus, ShellDialect, ShellPaths

Attributes = list[int | list[bytes | int]]

CHUNK: Final = 65_536
HANGUP_TIMEOUT: Final = 2.0
"""Seconds that a shell has to hang up its jobs."""
_FOLDER_PREFIX: Final = "brim-shell-"
_MIN_AGE: Final = 10
"""Seconds after which a folder without a lock is stale: a new one is locked a moment later."""


def new_token() -> str:
    """Return a random token, so that nothing else is mistaken for the awaited report."""
    return token_hex(16)


MAX_WAITING: Final = 65_536
"""Bytes of output to keep; older ones are lost."""


class IdleReader:
    """A thread that reads from a shell's terminal, unless it is paused, as at first."""

    def __init__(self, master: int, on_output: Callable[[], None]) -> None:
        self._master = master
        self._on_output = on_output
        self._waiting = b""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake, self._waker = os.pipe()

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


class ShellProcess:
    """A running shell; `token` marks its first report."""

    def __init__(
        self,
        dialect: ShellDialect,
        program: str,
        folder: Path,
        environment: Mapping[str, str],
        *,
        attributes: Attributes | None,
        with_users: bool,
        on_output: Callable[[], None],
    ) -> None:
        self.dialect = dialect
        self.token = new_token()
        self.master, self.slave = os.openpty()
        if attributes is not None:
            termios.tcsetattr(self.slave, termios.TCSANOW, attributes)
        os.set_blocking(self.master, False)
        _remove_stale_folders()
        home = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX))
        self._lock = os.open(home, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.paths = ShellPaths(home / "reports", os.ttyname(self.slave), home, folder)
        os.mkfifo(self.paths.reports, 0o600)
        # Also open for writing, so that it never reports the end of file.
        self.reports = os.open(self.paths.reports, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._write_files(environment, with_users=with_users)
        self._size = (0, 0)
        self._unread, self._lines = os.pipe()
        os.set_blocking(self._lines, False)
        try:
            arguments = dialect.arguments(home, with_users=with_users)
            self._process = self._spawn([program, *arguments], folder, environment)
        except BaseException:
            self._release()
            raise
        self.reader = IdleReader(self.master, on_output)

    def _write_files(self, environment: Mapping[str, str], *, with_users: bool) -> None:
        files = self.dialect.files(self.paths, self.token, environment, with_users=with_users)
        for name, text in files.items():
            path = self.paths.home / name
            path.touch(mode=0o600)
            path.write_text(text, encoding="utf-8", errors="surrogateescape")

    def _spawn(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        # Sizes in the environment would override the terminal's own.
        kept = {k: v for k, v in environment.items() if k not in ("LINES", "COLUMNS", "OLDPWD")}
        env = {**kept, "PWD": str(folder), **self.dialect.environment(self.paths.home)}
        arguments = ["/bin/sh", "-c", self.dialect.launcher, "sh", self.paths.tty, *command]
        # The terminal is inherited: if this process were killed now, its name could already belong
        # to another terminal when it is opened.
        return subprocess.Popen(
            arguments,
            stdin=self._unread,
            stdout=self.slave,
            stderr=self.slave,
            cwd=folder,
            env=env,
            start_new_session=True,
        )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def code(self) -> int:
        """Its exit code, as a shell reports it: 137 if it was killed."""
        code = self._process.poll() or 0
        return 128 - code if code < 0 else code

    def wake(self) -> None:
        """Continue a shell that has stopped itself, which would otherwise wait forever."""
        if not hasattr(os, "waitid"):
            self._process.send_signal(signal.SIGCONT)
            return
        with suppress(OSError):
            stopped = os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
            if stopped is not None:
                os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOHANG)
                self._process.send_signal(signal.SIGCONT)

    def send(self, lines: str) -> None:
        data = lines.encode(errors="surrogateescape")
        while data and self.is_alive:
            if select.select([], [self._lines], [], 0.1)[1]:
                data = data[os.write(self._lines, data) :]

    @property
    def is_idle(self) -> bool:
        """Whether the shell has read all lines, and no program runs in the foreground."""
        if any(fcntl.ioctl(self._unread, termios.FIONREAD, bytes(4))):
            return False
        with suppress(OSError):
            return os.tcgetpgrp(self.master) == self._process.pid
        return True

    def resize(self, rows: int, columns: int) -> None:
        """Set the terminal's size; the kernel notifies the programs in the foreground."""
        if (rows, columns) != self._size and rows and columns:
            self._size = (rows, columns)
            termios.tcsetwinsize(self.slave, (rows, columns))

    def unread(self) -> bytes:
        """Return the keys that no program has read, so that the next one does not get them."""
        with suppress(termios.error, OSError):
            before = termios.tcgetattr(self.slave)
            now = termios.tcgetattr(self.slave)
            now[3] &= ~(termios.ICANON | termios.ECHO)
            now[6][termios.VMIN], now[6][termios.VTIME] = 0, 0
            termios.tcsetattr(self.slave, termios.TCSANOW, now)
            try:
                return read_available(self.slave)
            finally:
                termios.tcsetattr(self.slave, termios.TCSANOW, before)
        return b""

    def hang_up(self) -> None:
        """Send SIGHUP: an interactive shell forwards it to its jobs, and exits."""
        self._process.send_signal(signal.SIGHUP)
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self.reader.close()
        self.hang_up()
        deadline = time.monotonic() + HANGUP_TIMEOUT
        while self.is_alive and time.monotonic() < deadline:
            # A shell cannot exit while its output blocks.
            if select.select([self.master], [], [], 0.02)[0]:
                read_available(self.master)
        self.kill()
        self._process.wait()
        self._release()

    def _release(self) -> None:
        pipes = (self.reports, self._unread, self._lines)
        for descriptor in (self.master, self.slave, *pipes, self._lock):
            with suppress(OSError):
                os.close(descriptor)
        shutil.rmtree(self.paths.home, ignore_errors=True)


def _remove_stale_folders() -> None:
    """Remove the temporary folders of killed processes: those that no process has locked."""
    places = Path(tempfile.gettempdir())
    for folder in (*places.glob(f"{_FOLDER_PREFIX}*"), *places.glob("brim-run-*")):  # of sandboxes
        with suppress(OSError):  # removed meanwhile, locked, or of another user
            lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if folder.stat().st_mtime < time.time() - _MIN_AGE:
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def read_available(descriptor: int) -> bytes:
    """Return the available bytes; empty if there are none or the other side is closed."""
    try:
        return os.read(descriptor, CHUNK)
    except OSError:
        return b""


def read_chunk(descriptor: int) -> bytes:
    """Read repeatedly, because a terminal returns little at a time."""
    parts = [read_available(descriptor)]
    size = len(parts[0])
    while parts[-1] and size < CHUNK:
        parts.append(read_available(descriptor))
        size += len(parts[-1])
    return b"".join(parts)


class StatusReports:
    """Collects the fields after the token; everything else in the pipe is ignored."""

    def __init__(self, token: str) -> None:
        self.token = token
        self._data = bytearray()
        self.is_started = False
        self.done: CommandStatus | None = None
        self.traps = ""
        self.answer: str | None = None

    def feed(self, data: bytes) -> None:
        self._data += data
        if b"\0" in data:
            self._read()

    def _read(self) -> None:
        traps = ""
        answer = None
        for part in bytes(self._data).split(self.token.encode() + b"\0")[1:]:
            kind, _, rest = part.partition(b"\0")
            fields = [_decode(field) for field in rest.split(b"\0")]
            if kind == b"started":
                self.is_started = True
            elif kind == b"trap" and len(fields) > 1:
                traps = fields[0] or traps
            elif kind == b"done" and len(fields) > 4:
                code, flags, jobs, folder = fields[:4]
                number = int(code) if code.isdecimal() else 0
                self.done = CommandStatus(number, flags, jobs, folder.removesuffix("\n"))
            elif kind == b"answer":
                answer = _decode(rest[:-1])
            elif kind == b"answered":
                self.answer = answer
        self.traps = traps


def _decode(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


_OPEN: Final = re.compile(r"looking for matching `(.+)'|[Uu]nmatched (.)")
_HERE: Final = re.compile(r"wanted `(.+)'")
_TIMEOUT: Final = 10


def describe_missing(command: str, program: str, dialect: ShellDialect) -> str | None:
    """Return what is missing; None if the command is complete, or wrong in another way.

    The shell itself parses the command without running it. Only an unexpected end counts, because
    other errors depend on the user's aliases and options.
    """
    missing = _check_syntax(command, program, dialect)
    backslashes = len(command) - len(command.rstrip("\\"))
    if missing is None and backslashes % 2:
        # In a comment, neither the backslash nor a quote in its place has a meaning.
        quoted = _check_syntax(command[:-1] + '"', program, dialect)
        return "a line must follow the backslash" if quoted else None
    return missing


def _check_syntax(command: str, program: str, dialect: ShellDialect) -> str | None:
    text = command.encode(errors="surrogateescape") + b"\n"
    environment = {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}
    try:
        read = subprocess.run(
            [program, "-n"],
            input=text,
            capture_output=True,
            env=environment,
            timeout=_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    error = read.stderr.decode(errors="replace")
    return _describe(error) if re.search(dialect.incomplete_errors, error, re.MULTILINE) else None


def _describe(error: str) -> str:
    here = _HERE.search(error)
    if here:
        return f"the here-document has no line {here[1]}"
    found = _OPEN.search(error)
    if found:
        return f"{found[1] or found[2]} is missing"
    return "more must follow"
