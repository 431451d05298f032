"""Terminals for tests: start a program, type keys, read the screen.

Two drivers have the same interface. `Terminal` is a pseudo-terminal with an emulator and always
available; `TmuxTerminal` is a real terminal program, if it is installed. A test with the fixture
`start_terminal` runs once with each.
"""

from __future__ import annotations

import codecs
import copy
import fcntl
import itertools
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal, Self

import pyte
import pytest
from pyte.graphics import BG_ANSI, FG_ANSI
from pyte.screens import Char, StaticDefaultDict
from wcwidth import wcwidth

from tests.support.forked import COMMAND, ForkedBrim

TICK: Final = 0.05
QUIET: Final = 0.3
"""Seconds without a change after which a screen counts as settled."""
GRACE: Final = 5.0
"""Seconds that a program has to exit after its terminal was closed."""
SHOWN: Final = 300
"""Scrolled lines to show in an error."""

Awaited = str | Callable[[list[str]], object]


class Driver(ABC):
    """The interface of both terminals."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = columns
        self.rows = rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    @abstractmethod
    def screen(self) -> list[str]:
        """The current lines, without trailing blanks."""

    @property
    @abstractmethod
    def everything(self) -> str:
        """Everything that has scrolled off, followed by the screen."""

    @property
    @abstractmethod
    def before_cursor(self) -> str:
        """The line being typed, up to the cursor, over all its rows."""

    @property
    @abstractmethod
    def code(self) -> int | None:
        """The exit code, or minus the signal; None while it runs."""

    @abstractmethod
    def ansi(self) -> str:
        """Return the screen with its colors."""

    @abstractmethod
    def type(self, text: str) -> None:
        """Type raw keys."""

    @abstractmethod
    def paste(self, text: str) -> None:
        """Paste a text, as a terminal does with its clipboard."""

    @abstractmethod
    def press(self, key: str) -> None:
        """Press a key by its name: enter, shift-tab, ctrl-c, alt-b, up, f2."""

    @abstractmethod
    def resize(self, columns: int, rows: int) -> None: ...

    @abstractmethod
    def kill(self) -> None:
        """Kill the program."""

    @abstractmethod
    def close(self) -> None:
        """Close the terminal and end the program."""

    @abstractmethod
    def _changed(self, seconds: float) -> None:
        """Wait for a change of the screen, at most this long."""

    def line(self, text: str, *, timeout: float = 60) -> None:
        """Type a line, and press Enter once it is shown.

        Wait for the prompt first: what is typed before it is shown by the terminal itself.
        """
        self.type(text)
        last = text.rpartition("\n")[2]
        self._wait(lambda: self.before_cursor.endswith(last), f"{last!r} to be typed", timeout)
        self.press("enter")

    def wait_for(self, what: Awaited, timeout: float = 60, *, anywhere: bool = False) -> list[str]:
        """Wait until a text is on the screen, or a function of its lines returns true.

        With `anywhere` what has scrolled by counts too. A text is found across the end of a row;
        blanks at its end do not count.
        """
        if callable(what):
            self._wait(lambda: what(self.screen), f"{what}", timeout)
        else:
            self._wait(lambda: self._shows(what, anywhere), f"{what!r}", timeout)
        return self.screen

    def wait_for_end(self, timeout: float = 60) -> int:
        """Wait until the program has ended, and return its exit code."""
        self._wait(lambda: self.code is not None, "the program to end", timeout)
        assert self.code is not None
        return self.code

    def settle(self, timeout: float = 60) -> list[str]:
        """Wait until the screen stops changing."""
        end, seen, since = time.monotonic() + timeout, self.ansi(), time.monotonic()
        while time.monotonic() < min(since + QUIET, end):
            self._changed(TICK)
            if (now := self.ansi()) != seen:
                seen, since = now, time.monotonic()
        return self.screen

    def _shows(self, text: str, anywhere: bool) -> bool:
        lines, text = self.everything.split("\n") if anywhere else self.screen, text.rstrip(" ")
        return text in "\n".join(lines) or text in self._unwrapped(lines)

    def _unwrapped(self, lines: Sequence[str]) -> str:
        """Join lines that fill their whole row."""
        return "".join(line + ("" if _width(line) >= self.columns else "\n") for line in lines)

    def _wait(self, is_there: Callable[[], object], name: str, timeout: float) -> None:
        end = time.monotonic() + timeout
        while True:
            has_ended = self.code is not None
            if is_there():
                return
            if has_ended or time.monotonic() >= end:
                why = f"the program ended ({self.code})" if has_ended else f"{timeout:g} s passed"
                raise AssertionError(f"waited for {name}, but {why}\n{self._shown()}")
            self._changed(TICK)

    def _shown(self) -> str:
        screen = self.screen
        scrolled = self.everything.split("\n")[: -len(screen)][-SHOWN:]
        bar = "─" * self.columns
        return "\n".join(["scrolled lines:", *scrolled, f"the screen:\n{bar}", *screen, bar])


def _width(text: str) -> int:
    return sum(max(0, wcwidth(character)) for character in text)


# Keys: what a terminal sends, and their names in tmux.

_NAMED: Final[Mapping[str, tuple[str, str]]] = {
    "enter": ("\r", "Enter"),
    "escape": ("\x1b", "Escape"),
    "tab": ("\t", "Tab"),
    "shift-tab": ("\x1b[Z", "BTab"),
    "space": (" ", "Space"),
    "backspace": ("\x7f", "BSpace"),
    "delete": ("\x1b[3~", "DC"),
    "insert": ("\x1b[2~", "IC"),
    "page-up": ("\x1b[5~", "PPage"),
    "page-down": ("\x1b[6~", "NPage"),
    **{f"f{n}": (f"\x1bO{letter}", f"F{n}") for n, letter in enumerate("PQRS", 1)},
    **{
        f"f{n}": (f"\x1b[{code}~", f"F{n}")
        for n, code in zip(range(5, 13), (15, 17, 18, 19, 20, 21, 23, 24), strict=True)
    },
}
_CURSOR: Final[Mapping[str, str]] = {
    "up": "A", "down": "B", "right": "C", "left": "D", "home": "H", "end": "F",
}  # fmt: skip


def _encode_key(key: str, *, is_application: bool) -> str:
    """Return what a terminal sends for a key; cursor keys depend on the mode."""
    if key in _CURSOR:
        return f"\x1b{'O' if is_application else '['}{_CURSOR[key]}"
    if key in _NAMED:
        return _NAMED[key][0]
    if re.fullmatch(r"ctrl-[a-z@\[\\\]^_]", key):
        return chr(ord(key[-1].upper()) - 64)
    if key.startswith("alt-"):
        inner = key.removeprefix("alt-")
        rest = inner if len(inner) == 1 else _encode_key(inner, is_application=is_application)
        return "\x1b" + rest
    raise ValueError(f"no key is called {key!r}")


def _tmux_name(key: str) -> str:
    _encode_key(key, is_application=False)  # raises for an unknown name
    if key in _CURSOR:
        return key.capitalize()
    if key in _NAMED:
        return _NAMED[key][1]
    modifier, _, rest = key.partition("-")
    inner = rest if len(rest) == 1 else _tmux_name(rest)
    return f"{'C' if modifier == 'ctrl' else 'M'}-{inner}"


# The emulator

_ALTERNATE: Final = frozenset((47, 1047, 1049))
_APPLICATION_KEYS: Final = 1 << 5
_BRACKETED_PASTE: Final = 2004 << 5
_SECONDARY: Final = re.compile(r"\x1b\[>0?c")
_STRANGE: Final = re.compile(
    r"\x1b[P_^X].*?(?:\x1b\\|\x07)"  # strings, which it would print
    r"|\x1b\[[<=>][0-9:;]*[ -/]*[@-~]"
    r"|\x1b\[\?[0-9:;]*(?:[ -/]+[@-~]|[@-gi-km-~])"  # only modes may be private
    r"|\x1b\[[0-9;]*:[0-9:;]*[ -/]*[@-~]"
    r"|\x1b\[[0-9;]*[!-/]+[@-~]",
    re.DOTALL,
)
"""Sequences that the emulator would print or misinterpret."""
_UNFINISHED: Final = re.compile(r"\x1b(?:[P_^X][^\x07\x1b]{0,4096}\x1b?|\[[<-?]?[0-9:;]*[ -/]*)?\Z")


class _Screen(pyte.Screen):
    """An emulated screen with scrollback and an alternate screen."""

    def __init__(self, columns: int, rows: int, answer: Callable[[str], None]) -> None:
        self.scrolled: list[str] = []
        self._answer = answer
        self._first: tuple[Any, Any] | None = None
        super().__init__(columns, rows)

    def write_process_input(self, data: str) -> None:
        self._answer(data)

    def index(self) -> None:
        top, bottom = self.margins or (0, self.lines - 1)
        if self.cursor.y == bottom and top == 0:
            self._keep(1)
        super().index()

    def erase_in_display(self, how: int = 0, *args: Any, **options: Any) -> None:
        if how == 2:
            rows = [y for y in range(self.lines) if self.text(y).strip()]
            self._keep(rows[-1] + 1 if rows else 0)
        super().erase_in_display(how, *args, **options)

    def resize(self, lines: int | None = None, columns: int | None = None) -> None:
        self._keep(max(0, self.lines - (lines or self.lines)))
        super().resize(lines, columns)

    def select_graphic_rendition(self, *numbers: int, **options: Any) -> None:
        """Store dim as blinking, which nothing else uses: the emulator does not support dim."""
        if 38 not in numbers and 48 not in numbers:
            is_plain = (25,) if 22 in numbers else ()
            numbers = tuple(5 if number == 2 else number for number in numbers) + is_plain
        super().select_graphic_rendition(*numbers, **options)

    def _keep(self, rows: int) -> None:
        if self._first is None:
            self.scrolled += [self.text(y).rstrip() for y in range(rows)]

    def text(self, y: int, end: int | None = None) -> str:
        """Return a row up to a column; the second half of a wide character is empty."""
        return "".join(self.buffer[y][x].data for x in range(self.columns if end is None else end))

    def set_mode(self, *modes: int, **options: Any) -> None:
        super().set_mode(*modes, **options)
        if options.get("private") and _ALTERNATE & set(modes) and self._first is None:
            self._first = (self.buffer, copy.copy(self.cursor))
            self.buffer = defaultdict(lambda: StaticDefaultDict(self.default_char))

    def reset_mode(self, *modes: int, **options: Any) -> None:
        super().reset_mode(*modes, **options)
        if options.get("private") and _ALTERNATE & set(modes) and self._first is not None:
            self.buffer, self.cursor = self._first
            self._first = None


class _Emulator:
    """Feeds the bytes of a program to a screen."""

    def __init__(self, columns: int, rows: int, answer: Callable[[str], None]) -> None:
        self.screen = _Screen(columns, rows, answer)
        self._answer = answer
        self._stream = pyte.Stream(self.screen)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def feed(self, data: bytes) -> None:
        text = self._held + self._decoder.decode(data)
        cut = found.start() if (found := _UNFINISHED.search(text)) else len(text)
        text, self._held = text[:cut], text[cut:]
        for _ in _SECONDARY.findall(text):
            self._answer("\x1b[>0;10;1c")
        self._stream.feed(_STRANGE.sub("", text))

    def ansi(self) -> str:
        rows = range(self.screen.lines)
        return "\n".join(_format_row(self.screen, y) for y in rows).rstrip("\n")


def _format_row(screen: _Screen, y: int) -> str:
    width = len(screen.text(y).rstrip())
    cells = [screen.buffer[y][x] for x in range(screen.columns)]
    while len(cells) > width and _look(cells[-1]) == _look(screen.default_char):
        cells.pop()
    runs = itertools.groupby(cells, key=_look)
    row = "".join(f"\x1b[{look}m" + "".join(cell.data for cell in run) for look, run in runs)
    return f"{row}\x1b[0m" if cells else ""


_FRONT: Final = {name: code for code, name in FG_ANSI.items()}
_BACK: Final = {name: code for code, name in BG_ANSI.items()}


def _look(cell: Char) -> str:
    """Return colors and attributes as the numbers of an escape sequence."""
    flags = zip(
        (1, 2, 3, 4, 7, 9),
        (cell.bold, cell.blink, cell.italics, cell.underscore, cell.reverse, cell.strikethrough),
        strict=True,
    )
    numbers = ["0", *(str(number) for number, is_on in flags if is_on)]
    for colour, names, beyond in ((cell.fg, _FRONT, 38), (cell.bg, _BACK, 48)):
        if re.fullmatch(r"[0-9a-f]{6}", colour):
            red, green, blue = bytes.fromhex(colour)
            numbers.append(f"{beyond};2;{red};{green};{blue}")
        elif colour.startswith("bright"):
            numbers.append(str(60 + names.get(colour.removeprefix("bright"), beyond + 1)))
        elif colour != "default":
            numbers.append(str(names[colour]))
    return ";".join(numbers)


# A pseudo-terminal

_LAUNCH: Final = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)
"""Makes the terminal the controlling one. Forking here is unsafe with other threads."""


class Terminal(Driver):
    """A pseudo-terminal; a thread reads continuously, so that queries are answered immediately."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int = 100,
        rows: int = 30,
        environment: Mapping[str, str],
        folder: Path,
    ) -> None:
        super().__init__(columns, rows)
        self.written = b""
        """All bytes written by the program."""
        self._news = threading.Condition(threading.RLock())
        self._emulator = _Emulator(columns, rows, self._send)
        self._fd, theirs = os.openpty()
        self._stop, self._stopper = os.pipe()
        self._is_closed = False
        _set_size(self._fd, columns, rows)
        try:
            self._program = _start(
                command, theirs, {"TERM": "xterm-256color", **environment}, folder
            )
        finally:
            os.close(theirs)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            ready, _, _ = select.select([self._fd, self._stop], [], [])
            if self._stop in ready:
                return
            try:
                data = os.read(self._fd, 65_536)
            except OSError:
                data = b""
            with self._news:
                self.written += data
                self._emulator.feed(data)
                self._news.notify_all()
            if not data:
                return

    @property
    def screen(self) -> list[str]:
        with self._news:
            screen = self._emulator.screen
            return [screen.text(y).rstrip() for y in range(screen.lines)]

    @property
    def everything(self) -> str:
        with self._news:
            return "\n".join([*self._emulator.screen.scrolled, *self.screen])

    @property
    def before_cursor(self) -> str:
        with self._news:
            screen = self._emulator.screen
            y, text = screen.cursor.y, screen.text(screen.cursor.y, screen.cursor.x)
            while y > 0 and screen.buffer[y - 1][screen.columns - 1].data != " ":
                y, text = y - 1, screen.text(y - 1) + text
            return text

    @property
    def code(self) -> int | None:
        if self._program.poll() is not None and not self._is_closed:
            self._reader.join(GRACE)  # its last output is still arriving
        return self._program.returncode

    def ansi(self) -> str:
        with self._news:
            return self._emulator.ansi()

    def type(self, text: str) -> None:
        self._send(text)

    def paste(self, text: str) -> None:
        is_marked = _BRACKETED_PASTE in self._emulator.screen.mode
        self._send(f"\x1b[200~{text}\x1b[201~" if is_marked else text.replace("\n", "\r"))

    def press(self, key: str) -> None:
        is_application = _APPLICATION_KEYS in self._emulator.screen.mode
        self._send(_encode_key(key, is_application=is_application))

    def _send(self, text: str) -> None:
        data = text.encode()
        with suppress(OSError):  # the program may have ended
            while data:
                data = data[os.write(self._fd, data) :]

    def resize(self, columns: int, rows: int) -> None:
        with self._news:
            self.columns, self.rows = columns, rows
            self._emulator.screen.resize(rows, columns)
            _set_size(self._fd, columns, rows)

    def kill(self) -> None:
        self._program.kill()
        self._program.wait()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        os.write(self._stopper, b"x")
        self._reader.join()
        for fd in (self._fd, self._stop, self._stopper):
            os.close(fd)
        with suppress(subprocess.TimeoutExpired):
            self._program.wait(GRACE)
        with suppress(ProcessLookupError):
            os.killpg(self._program.pid, signal.SIGKILL)
        self._program.wait()

    def _changed(self, seconds: float) -> None:
        with self._news:
            self._news.wait(seconds)


def _start(
    command: Sequence[str], terminal: int, environment: Mapping[str, str], folder: Path
) -> subprocess.Popen[bytes] | ForkedBrim:
    if tuple(command[: len(COMMAND)]) == COMMAND:
        arguments = command[len(COMMAND) :]
        return ForkedBrim(arguments, [os.ttyname(terminal)] * 3, environment, folder)
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _LAUNCH, *command],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )


def _set_size(fd: int, columns: int, rows: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


# tmux


class TmuxTerminal(Driver):
    """A window of a separate tmux without settings and status line."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int = 100,
        rows: int = 30,
        environment: Mapping[str, str],
        folder: Path,
    ) -> None:
        super().__init__(columns, rows)
        self._sockets = TemporaryDirectory(prefix="brim-tmux-")
        self._environment = {
            "LANG": "C.UTF-8",
            **{name: value for name, value in environment.items() if name != "TMUX"},
            "TERM": "screen-256color",
            "TMUX_TMPDIR": self._sockets.name,
        }
        self._is_killed = False
        options = {
            "default-shell": "/bin/sh",
            "default-terminal": "screen-256color",
            "history-limit": "50000",
            "remain-on-exit": "on",
            "remain-on-exit-format": "",
            "status": "off",
        }
        set_up = [["set-option", "-gq", *option] for option in options.items()]
        size = ["-x", str(columns), "-y", str(rows)]
        program = f"exec {shlex.join(command)}"
        start = ["new-session", "-d", *size, "-c", str(folder), program]
        steps = [["start-server"], *set_up, start]
        self._tmux(*itertools.chain.from_iterable([*step, ";"] for step in steps))

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-u", "-L", "brim", "-f", "/dev/null", *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )
        if done.returncode:
            raise AssertionError(f"tmux {arguments[0]}: {done.stderr.strip()}")
        return done.stdout

    def _told(self, *names: str) -> list[str]:
        asked = "|".join(f"#{{{name}}}" for name in names)
        return self._tmux("display-message", "-p", asked).rstrip("\n").split("|")

    def _captured(self, *options: str) -> list[str]:
        return [line.rstrip() for line in self._tmux("capture-pane", "-p", *options).split("\n")]

    @property
    def screen(self) -> list[str]:
        return self._captured()[: self.rows]

    @property
    def everything(self) -> str:
        return "\n".join(self._captured("-S", "-")[:-1])

    @property
    def before_cursor(self) -> str:
        x, y = map(int, self._told("cursor_x", "cursor_y"))
        lines = self._captured()
        text = _up_to(lines[y], x)
        while y > 0 and _width(lines[y - 1]) >= self.columns:
            y, text = y - 1, lines[y - 1] + text
        return text

    @property
    def code(self) -> int | None:
        dead, status, by, server = self._told(
            "pane_dead", "pane_dead_status", "pane_dead_signal", "pid"
        )
        if status or by:
            return int(status) if status else -int(by)
        if dead == "1":
            os.kill(int(server), signal.SIGCHLD)  # tmux sometimes misses the end of a child
        return -signal.SIGKILL if self._is_killed else None

    def ansi(self) -> str:
        return self._tmux("capture-pane", "-pe").rstrip("\n")

    def type(self, text: str) -> None:
        for place, part in enumerate(text.split("\n")):
            if place:
                self.press("ctrl-j")
            if part:
                # A trailing semicolon would start another tmux command.
                literal = part[:-1] + "\\;" if part.endswith(";") else part
                self._tmux("send-keys", "-l", "--", literal)

    def paste(self, text: str) -> None:
        literal = text[:-1] + "\\;" if text.endswith(";") else text
        self._tmux("set-buffer", "--", literal)
        self._tmux("paste-buffer", "-p", "-d")

    def press(self, key: str) -> None:
        self._tmux("send-keys", _tmux_name(key))

    def resize(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def kill(self) -> None:
        (process,) = self._told("pane_pid")
        with suppress(ProcessLookupError):
            os.kill(int(process), signal.SIGKILL)
        self._wait(lambda: self._told("pane_dead") == ["1"], "the program to be dead", 60)
        self._is_killed = True

    def close(self) -> None:
        with suppress(AssertionError):
            self._tmux("kill-server")
        self._sockets.cleanup()

    def _changed(self, seconds: float) -> None:
        time.sleep(seconds)


def _up_to(line: str, column: int) -> str:
    """Return the part of a line before a column, including blanks."""
    reached = itertools.accumulate(map(_width, line))
    part = line[: sum(1 for end in reached if end <= column)]
    return part + " " * (column - _width(part))


DRIVERS: Final[tuple[type[Terminal] | type[TmuxTerminal], ...]] = (
    (Terminal, TmuxTerminal) if shutil.which("tmux") else (Terminal,)
)
Start = Callable[..., Driver]


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.__name__)
def start_terminal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts programs in terminals, closed after the test.

    It takes the arguments of the drivers; the default folder is the test's own.
    """
    with ExitStack() as stack:

        def start(
            command: Sequence[str],
            *,
            environment: Mapping[str, str] | None = None,
            folder: Path = tmp_path,
            **size: int,
        ) -> Driver:
            driver: type[Terminal] | type[TmuxTerminal] = request.param
            plain = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LANG": "C.UTF-8"}
            given = plain if environment is None else environment
            return stack.enter_context(driver(command, environment=given, folder=folder, **size))

        yield start


def shown_on(
    columns: int, command: Sequence[str], stream: Literal["stdout", "stderr"], **settings: Any
) -> str:
    """Return what a command writes to one of its streams, a terminal of this width."""
    screen, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, columns))
    streams: dict[str, Any] = {stream: terminal}
    run = subprocess.Popen(command, **streams, **settings)
    os.close(terminal)
    shown = b""
    with suppress(OSError):  # Linux reports a closed terminal like this
        while some := os.read(screen, 65_536):
            shown += some
    os.close(screen)
    assert run.wait() == 0
    return shown.decode()
