"""The user's shell as brim uses it: run a command, ask what there is, close."""

from __future__ import annotations

import os
import shutil
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from brim.errors import BrimError, InputError
from brim.shell.terminal.completeness import describe_missing
from brim.shell.terminal.dialects import OWN, BashDialect, CarriedState, PosixDialect, ZshDialect
from brim.shell.terminal.idle_reader import IdleReader
from brim.shell.terminal.output_buffer import OutputBuffer
from brim.shell.terminal.output_text import OutputCleaner
from brim.shell.terminal.process import HANGUP_TIMEOUT, Attributes, ShellProcess, new_token
from brim.shell.terminal.relay import Relay, raw_mode, redirect_interrupts, window_size, write_all
from brim.shell.terminal.status_pipe import StatusReports

_START_TIMEOUT: Final = 20.0
"""Seconds that the user's own start files may take."""
_INTERRUPTS: Final = 3
_AFTER_INTERRUPT: Final = 1.0
_QUERY_TIMEOUT: Final = 10.0
_STOPPED_CODES: Final = range(145, 151)
"""Exit codes of a command that was stopped by one of the four signals for it."""
_WITHOUT_START_FILES: Final = (
    "brim: the shell's start files did not come to an end; it runs without them\r\n"
)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command did."""

    command: str
    output: str
    """As a reader would see it; only its head and tail where it is long."""
    code: int | None
    """None if the shell itself ended, or if the command was stopped into the background."""
    folder: Path
    """Where the shell stands now."""
    whole: Path | None
    """Where the whole output is kept, if `output` is not all of it."""
    ended_with: int | None = None
    """The exit code of the shell itself, if the command ended it."""
    is_interrupted: bool = False
    """Whether the user pressed Ctrl-C while it ran."""

    @property
    def has_ended(self) -> bool:
        """Whether it ended the shell itself."""
        return self.ended_with is not None


class UserShell:
    """One shell after another: when a command ends it, the next is started in the same folder."""

    def __init__(
        self,
        *,
        program: str | None = None,
        folder: Path,
        environment: Mapping[str, str],
        spill: Path,
        keys: int = 0,
        screen: int = 1,
    ) -> None:
        self._program = program or _default_program(environment)
        self._dialect = _dialect_for(self._program)
        self._folder = folder
        self._environment = dict(environment)
        self.spill = spill
        """The folder for outputs that are too long to be held."""
        self._keys = keys if os.isatty(keys) else None
        self._screen = screen
        self._attributes = _terminal_attributes(self._keys)
        self._lock = threading.RLock()
        self._live: ShellProcess | None = None
        self._beside: IdleReader | None = None
        self._carried = CarriedState()
        self._notice = ""
        self._is_closed = False
        self._answers: dict[str, str] = {}
        self._read: tuple[str, str | None] | None = None
        """The last command that was looked at, and what it lacked."""
        self.on_output: Callable[[], None] = _ignore
        """Called from another thread when a job in the background has written something."""
        self.typed = ""
        """What was typed during the last command and read by no program."""

    @property
    def folder(self) -> Path:
        return self._folder

    def start(self) -> None:
        """Starts the shell if it does not run; what goes wrong is told by the next command."""
        with suppress(BrimError, OSError):
            self._ready()

    def run(self, command: str) -> CommandResult:
        """Runs it with the terminal given over to it; raises InputError if it is not finished."""
        self._check(command)
        with self._attention() as live:
            self._answers.clear()
            kept = OutputBuffer(self.spill)
            try:
                reports, is_interrupted = self._perform(live, command, kept)
            except BaseException:
                kept.close()
                self._drop()
                raise
            return replace(self._ran(command, kept, reports), is_interrupted=is_interrupted)

    def names(self) -> frozenset[str]:
        """What the shell itself knows to run: aliases, functions, builtins and keywords."""
        names = self._dialect.read_names(self._asked(self._dialect.names))
        return frozenset(name for name in names if not name.startswith(OWN))

    def aliases(self) -> Mapping[str, str]:
        return MappingProxyType(self._dialect.read_aliases(self._asked(self._dialect.aliases)))

    def variables(self) -> Mapping[str, str]:
        """Exported and not; of an array its first element."""
        found = self._dialect.read_variables(self._asked(self._dialect.variables))
        return MappingProxyType({k: v for k, v in found.items() if not k.startswith(OWN)})

    def show_lines(self) -> None:
        """Shows the whole lines that jobs in the background have written; while nothing runs."""
        beside = self._beside
        if beside is not None and (lines := beside.lines()):
            self._draw(lines)

    def close(self) -> None:
        """Ends the shell for good, also in the middle of its start or of a command."""
        self._is_closed = True
        live = self._live
        if live is not None:
            live.hang_up()
        if self._lock.acquire(timeout=HANGUP_TIMEOUT):
            self._lock.release()
        elif live is not None:
            live.kill()
        with self._lock:
            self._drop()

    def missing(self, command: str) -> str | None:
        """What a command lacks at its end, in words; None where it could be run."""
        if self._read is None or self._read[0] != command:
            self._read = command, describe_missing(command, self._program, self._dialect)
        return self._read[1]

    def _check(self, command: str) -> None:
        if "\0" in command:
            raise InputError("the command holds a zero byte, which no shell can read; take it out")
        missing = self.missing(command)
        if missing is not None:
            raise InputError(f"the command is not finished: {missing}. Nothing was run.")

    def _perform(
        self, live: ShellProcess, command: str, kept: OutputBuffer
    ) -> tuple[StatusReports, bool]:
        rows, columns = window_size(self._screen) or (24, 80)
        cleaner = OutputCleaner(width=columns, height=rows)

        def show(data: bytes) -> None:
            self._draw(data)
            height, width = window_size(self._screen) or (rows, columns)
            cleaner.resize(width=width, height=height)
            kept.add(cleaner.feed(data))

        relay = Relay(live, show, keys=self._keys, screen=self._screen)
        live.resize(rows, columns)
        token = new_token()
        reports = StatusReports(token)
        with ExitStack() as stack:
            if self._keys is not None:
                stack.enter_context(raw_mode(self._keys))
            stack.enter_context(redirect_interrupts(relay.press))
            self._draw_waiting()
            stdin = os.devnull if self._keys is None else live.ground.tty
            live.send(live.dialect.run(command, live.ground, token, self._carried, stdin))
            relay.until_done(reports)
            kept.add(cleaner.finish())
            self._tidy(cleaner, kept)
        return reports, relay.is_interrupted

    def _ran(self, command: str, kept: OutputBuffer, reports: StatusReports) -> CommandResult:
        output, whole = kept.close()
        done = reports.done
        if done is None:
            code = self._live.code if self._live is not None else 0
            self._drop()
            threading.Thread(target=self.start, daemon=True).start()
            return CommandResult(command, output, None, self._folder, whole, ended_with=code)
        self._carried = CarriedState(done.code, done.flags, reports.traps)
        self._folder = Path(done.folder) if done.folder else self._folder
        if self._live is not None:
            self.typed = self._live.unread().decode(errors="replace")
        is_stopped = done.code in _STOPPED_CODES and done.jobs.strip() != ""
        return CommandResult(
            command, output, None if is_stopped else done.code, self._folder, whole
        )

    def _draw(self, data: bytes) -> None:
        write_all(self._screen, data)

    def _draw_waiting(self) -> None:
        """What jobs in the background have written since the last command."""
        sys.stdout.flush()
        waiting = self._beside.taken() if self._beside is not None else b""
        self._draw(self._notice.encode() + waiting)
        self._notice = ""

    def _tidy(self, cleaner: OutputCleaner, kept: OutputBuffer) -> None:
        """Leaves a terminal as a prompt wants it: in its usual state, at the start of a line."""
        if self._keys is not None and os.isatty(self._screen):
            is_open = kept.last not in ("", "\n")
            self._draw(cleaner.repairs + (b"\r\n" if is_open else b"\r"))

    @contextmanager
    def _attention(self) -> Iterator[ShellProcess]:
        """The shell, with nobody else reading from it."""
        with self._lock:
            live = self._ready()
            if self._beside is not None:
                self._beside.pause()
            try:
                yield live
            finally:
                if self._live is live and self._beside is not None:
                    self._beside.go_on()

    def _asked(self, body: str) -> str:
        with self._lock:
            if body not in self._answers:
                self._answers[body] = self._answer(body)
            return self._answers[body]

    def _answer(self, body: str) -> str:
        with self._attention() as live:
            reports = StatusReports(new_token())
            beside = self._beside
            relay = Relay(live, beside.add if beside else _discard, keys=None, screen=self._screen)
            live.send(live.dialect.question(body, live.ground, reports.token))
            relay.until(lambda: reports.answer is not None, reports, _QUERY_TIMEOUT)
            return reports.answer or ""

    def _ready(self) -> ShellProcess:
        with self._lock:
            if self._is_closed:
                raise BrimError("the shell is closed")
            if self._live is None or not self._live.is_alive:
                self._drop()
                self._live = self._launched()
                self._beside = IdleReader(self._live.master, lambda: self.on_output())
            return self._live

    def _launched(self) -> ShellProcess:
        self._folder = _nearest_existing(self._folder)
        for with_users in (True, False):
            live = ShellProcess(
                self._dialect,
                self._program,
                self._folder,
                self._environment,
                attributes=self._attributes,
                with_users=with_users,
            )
            if self._is_up(live):
                self._carried = CarriedState()
                self._answers.clear()
                self._notice = "" if with_users else _WITHOUT_START_FILES
                return live
            live.close()
            if self._is_closed:
                break
        raise BrimError(f"the shell {self._program} could not be started; name another in SHELL")

    def _is_up(self, live: ShellProcess) -> bool:
        """Waits for the start files and the first prompt commands, and interrupts what hangs."""
        live.resize(*(window_size(self._screen) or (24, 80)))
        reports = StatusReports(live.token)
        relay = Relay(live, _discard, keys=None, screen=self._screen)
        deadline = time.monotonic() + _START_TIMEOUT

        def is_over() -> bool:
            return self._is_closed or time.monotonic() > deadline

        relay.until_done(reports, is_over)
        for _ in range(_INTERRUPTS):
            if reports.done is None and live.is_alive and not self._is_closed:
                relay.press(b"\x03")
                if not reports.is_started:
                    live.send(live.dialect.begin(live.ground, live.token))
                deadline = time.monotonic() + _AFTER_INTERRUPT
                relay.until_done(reports, is_over)
        return reports.done is not None

    def _drop(self) -> None:
        live, self._live = self._live, None
        beside, self._beside = self._beside, None
        if beside is not None:
            beside.close()
        if live is not None:
            live.close()


def _ignore() -> None:
    """Nobody wants to know."""


def _discard(_data: bytes) -> None:
    """Output that nobody is to see."""


def _default_program(environment: Mapping[str, str]) -> str:
    users = environment.get("SHELL", "")
    if Path(users).name in ("bash", "zsh") and os.access(users, os.X_OK):
        return users
    path = environment.get("PATH")
    return shutil.which("bash", path=path) or shutil.which("sh", path=path) or "/bin/sh"


def _dialect_for(program: str) -> PosixDialect:
    name = Path(program).name
    return BashDialect() if name == "bash" else ZshDialect() if name == "zsh" else PosixDialect()


def _nearest_existing(folder: Path) -> Path:
    """The folder, or the nearest above it that is still there."""
    return next((each for each in (folder, *folder.parents) if each.is_dir()), Path("/"))


def _terminal_attributes(keys: int | None) -> Attributes | None:
    """The settings of the user's terminal, where it is as a shell would find it.

    Without a terminal, lines end as programs write them.
    """
    if keys is not None:
        found = termios.tcgetattr(keys)
        return found if found[3] & termios.ICANON and found[3] & termios.ECHO else None
    master, slave = os.openpty()
    try:
        found = termios.tcgetattr(slave)
        found[1] &= ~termios.ONLCR
        return found
    finally:
        os.close(master)
        os.close(slave)
