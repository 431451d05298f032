"""The user's shell: run commands, query names and variables, close."""

from __future__ import annotations

import os
import shutil
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from brim.errors import BrimError, InputError
from brim.shell.terminal.dialects import OWN, CommandStatus, ShellDialect
from brim.shell.terminal.output_text import OutputBuffer, OutputCleaner, rewrite_file
from brim.shell.terminal.process import (
    HANGUP_TIMEOUT,
    Attributes,
    ShellProcess,
    StatusReports,
    describe_missing,
    new_token,
)
from brim.shell.terminal.relay import (
    INTERRUPT,
    Relay,
    handle_interrupts,
    raw_mode,
    window_size,
    write_all,
)
from brim.shell.terminal.shell_completion import (
    ASK_FISH,
    build_script,
    offer_in_zsh,
    parse_offered,
    run_in_bash,
)
from brim.shell.terminal.shell_completion import TIMEOUT as COMPLETION_TIMEOUT

_START_TIMEOUT: Final = 20.0
"""Seconds that the user's start files may take."""
_INTERRUPTS: Final = 3
_AFTER_INTERRUPT: Final = 1.0
_QUERY_TIMEOUT: Final = 10.0
_STOPPED_CODES: Final = range(145, 151)
"""Exit codes of a command that was stopped by a signal."""
_WITHOUT_START_FILES: Final = (
    "brim: the shell's start files did not finish; it runs without them\r\n"
)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command."""

    command: str
    output: str
    """As a user would see it; only the beginning and end if it is long."""
    code: int | None
    """None if the shell itself ended, or if the command was stopped (Ctrl-Z)."""
    folder: Path
    """The shell's working directory now."""
    whole: Path | None
    """Path of the whole output; None if `output` is all of it."""
    ended_with: int | None = None
    """The exit code of the shell; None if it still runs."""
    is_interrupted: bool = False
    """Whether the user pressed Ctrl-C while it ran."""

    @property
    def has_ended(self) -> bool:
        """Whether the command ended the shell itself."""
        return self.ended_with is not None


class UserShell:
    """The user's shell; if a command ends it, a new one is started in the same folder."""

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
        self.program = program or _default_program(environment)
        """The path of the shell."""
        self._dialect = ShellDialect(Path(self.program).name)
        self.folder = folder
        """Its working directory."""
        self._environment = dict(environment)
        self.spill = spill
        """The folder for outputs that are too long for memory."""
        self._keys = keys if os.isatty(keys) else None
        self._screen = screen
        self._attributes = _terminal_attributes(self._keys)
        self._lock = threading.RLock()
        self._live: ShellProcess | None = None
        self._carried = CommandStatus()
        self._notice = ""
        self._is_closed = False
        self._answers: dict[str, str] = {}
        check = partial(describe_missing, program=self.program, dialect=self._dialect)
        self.missing: Callable[[str], str | None] = lru_cache(maxsize=1)(check)
        """Returns what a command lacks at its end; None if it is complete."""
        self.on_output: Callable[[], None] = lambda: None
        """Called in another thread when a background job has written something."""
        self.typed = b""
        """Keys typed during the last command that no program has read."""

    @property
    def is_fish(self) -> bool:
        """Whether it has the syntax of fish, not that of a POSIX shell."""
        return self._dialect.name == "fish"

    def join(self, words: Iterable[str]) -> str:
        """Return a command of these words in the syntax of the shell."""
        return " ".join(map(self._dialect.quote, words))

    def start(self) -> None:
        """Start the shell if it is not running; the next command reports errors."""
        with suppress(BrimError, OSError):
            self._ready()

    def run(self, command: str) -> CommandResult:
        """Run a command on the terminal; raise InputError if it is incomplete."""
        if "\0" in command:
            raise InputError("The command contains a zero byte. Remove it.")
        if (missing := self.missing(command)) is not None:
            raise InputError(f"The command is incomplete: {missing}. Nothing was run.")
        with self._lend() as live:
            self._answers.clear()
            kept = OutputBuffer(self.spill)
            try:
                reports, relay = self._perform(live, command, kept)
            except BaseException:
                kept.close()
                self._drop()
                raise
            result = self._ran(command, kept, reports, relay.unsent)
            output = relay.hide_passwords(result.output)
            if result.whole is not None and output != result.output:
                rewrite_file(result.whole, relay.hide_passwords)
            return replace(result, output=output, is_interrupted=relay.is_interrupted)

    def names(self) -> frozenset[str]:
        """Return the names of aliases, functions, builtins and keywords."""
        names = self._dialect.read_names(self._query("names"))
        return frozenset(name for name in names if not name.startswith(OWN))

    def aliases(self) -> Mapping[str, str]:
        return MappingProxyType(self._dialect.read_aliases(self._query("aliases")))

    def functions(self) -> frozenset[str]:
        """Return the names of the functions; empty if the shell cannot list them."""
        names = self._query("functions").split()
        return frozenset(name for name in names if not name.startswith(OWN))

    def variables(self) -> Mapping[str, str]:
        """Return all variables, exported or not; arrays by their first element."""
        found = self._dialect.read_variables(self._query("variables"))
        return MappingProxyType({k: v for k, v in found.items() if not k.startswith(OWN)})

    def complete(self, words: Sequence[str]) -> list[str]:
        """Return what the shell offers for the last word of a command, as it is typed."""
        if self._dialect.name == "bash":
            output = self._send_query(build_script(words), COMPLETION_TIMEOUT)
        elif self._dialect.name == "zsh":
            output = offer_in_zsh(words, self.folder, self._environment)
        elif self._dialect.name == "fish":
            line = self._dialect.quote(" ".join(words))
            output = self._send_query(ASK_FISH.format(line), COMPLETION_TIMEOUT)
        else:
            output = run_in_bash(build_script(words), self.folder, self._environment)
        return list(parse_offered(output, words[-1]))

    def show_lines(self) -> None:
        """Show the complete lines that background jobs have written, while no command runs."""
        if self._live is not None and (lines := self._live.reader.take_lines()):
            self._draw(lines)

    def close(self) -> None:
        """End the shell for good, even while it starts or runs a command."""
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

    def _perform(
        self, live: ShellProcess, command: str, kept: OutputBuffer
    ) -> tuple[StatusReports, Relay]:
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
            stack.enter_context(handle_interrupts(lambda *_: relay.press(INTERRUPT)))
            sys.stdout.flush()
            # What background jobs have written since the last command.
            self._draw(self._notice.encode() + live.reader.take())
            self._notice = ""
            stdin = os.devnull if self._keys is None else live.paths.tty
            live.send(live.dialect.run(command, live.paths, token, self._carried, stdin))
            relay.until_done(reports)
            kept.add(cleaner.finish())
            self._tidy(cleaner, kept)
        return reports, relay

    def _ran(
        self, command: str, kept: OutputBuffer, reports: StatusReports, unsent: bytes
    ) -> CommandResult:
        output, whole = kept.close()
        done, self.typed = reports.done, unsent
        if done is None:
            code = self._live.code if self._live is not None else 0
            self._drop()
            threading.Thread(target=self.start, daemon=True).start()
            return CommandResult(command, output, None, self.folder, whole, ended_with=code)
        self._carried = replace(done, traps=reports.traps)
        self.folder = Path(done.folder) if done.folder else self.folder
        if self._live is not None:
            self.typed = self._live.unread() + unsent
        is_stopped = done.code in _STOPPED_CODES and done.jobs.strip() != ""
        return CommandResult(command, output, None if is_stopped else done.code, self.folder, whole)

    def _draw(self, data: bytes) -> None:
        write_all(self._screen, data)

    def _tidy(self, cleaner: OutputCleaner, kept: OutputBuffer) -> None:
        """Restore the terminal modes, and move to the start of a line."""
        if self._keys is not None and os.isatty(self._screen):
            is_open = kept.last not in ("", "\n")
            self._draw(cleaner.repairs + (b"\r\n" if is_open else b"\r"))

    @contextmanager
    def _lend(self) -> Iterator[ShellProcess]:
        """Lend the shell, with its idle reader paused."""
        with self._lock:
            live = self._ready()
            live.reader.pause()
            try:
                yield live
            finally:
                if self._live is live:
                    live.reader.resume()

    def _query(self, name: str) -> str:
        with self._lock:
            if name not in self._answers:
                self._answers[name] = self._send_query(name)
            return self._answers[name]

    def _send_query(self, name: str, timeout: float = _QUERY_TIMEOUT) -> str:
        with self._lend() as live:
            reports = StatusReports(new_token())
            relay = Relay(live, live.reader.add, keys=None, screen=self._screen)
            live.send(live.dialect.query(name, live.paths, reports.token))

            def is_answered() -> bool:
                return reports.answer is not None

            if not relay.until(is_answered, reports, timeout):
                relay.press(b"\x03")
                relay.until(is_answered, reports, timeout)
            return reports.answer or ""

    def _ready(self) -> ShellProcess:
        with self._lock:
            if self._is_closed:
                raise BrimError("The shell is closed.")
            if self._live is None or not self._live.is_alive:
                self._drop()
                self._live = self._launch()
                self._live.reader.resume()
            return self._live

    def _launch(self) -> ShellProcess:
        folders = (self.folder, *self.folder.parents)
        self.folder = next((each for each in folders if each.is_dir()), Path("/"))
        for with_users in (True, False):
            live = ShellProcess(
                self._dialect,
                self.program,
                self.folder,
                self._environment,
                attributes=self._attributes,
                with_users=with_users,
                on_output=lambda: self.on_output(),
            )
            if self._is_up(live):
                self._carried = CommandStatus()
                self._answers.clear()
                self._notice = "" if with_users else _WITHOUT_START_FILES
                return live
            live.close()
            if self._is_closed:
                break
        raise BrimError(f"The shell cannot be started: {self.program}. Set SHELL to another one.")

    def _is_up(self, live: ShellProcess) -> bool:
        """Wait for the start files and the first prompt commands; interrupt them if they hang."""
        live.resize(*(window_size(self._screen) or (24, 80)))
        reports = StatusReports(live.token)
        relay = Relay(live, lambda _data: None, keys=None, screen=self._screen)
        deadline = time.monotonic() + _START_TIMEOUT

        def is_over() -> bool:
            return self._is_closed or time.monotonic() > deadline

        relay.until_done(reports, is_over)
        for _ in range(_INTERRUPTS):
            if reports.done is None and live.is_alive and not self._is_closed:
                relay.press(INTERRUPT)
                if not reports.is_started:
                    live.send(live.dialect.begin(live.paths, live.token))
                deadline = time.monotonic() + _AFTER_INTERRUPT
                relay.until_done(reports, is_over)
        return reports.done is not None

    def _drop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.close()


def _default_program(environment: Mapping[str, str]) -> str:
    users = environment.get("SHELL", "")
    if Path(users).name in ("bash", "zsh", "fish") and os.access(users, os.X_OK):
        return users
    path = environment.get("PATH")
    return shutil.which("bash", path=path) or shutil.which("sh", path=path) or "/bin/sh"


def _terminal_attributes(keys: int | None) -> Attributes | None:
    """Return the attributes of the user's terminal; None if it is in raw mode.

    Without a terminal, line endings are not translated.
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
