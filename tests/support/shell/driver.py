"""Drives the real shell in a terminal: types lines at its prompt and reads the screen."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest

from brim.testing import ReceivedRequest, ScriptedServer
from tests.support.forked import run_forked
from tests.support.terminal import Driver, Start, Terminal

PROMPT: Final = "› "
PROGRAM: Final = (sys.executable, "-m", "brim.cli")
WAIT: Final = 60.0


class Typist:
    """A user at the shell's prompt."""

    def __init__(self, terminal: Driver) -> None:
        self.terminal = terminal

    def at_prompt(self, standing: str = "") -> None:
        """Wait for the prompt, with this text in it."""
        self.at(PROMPT + standing)

    def at(self, line: str) -> None:
        """Wait until this text is before the cursor."""
        wanted = line.rstrip()
        self.wait(
            lambda: self.terminal.before_cursor.rstrip().endswith(wanted), f"the line {line!r}"
        )

    def wait(self, is_there: Callable[[], object], name: str = "it") -> None:
        self.terminal.wait_for(_set_name(lambda _screen: is_there(), name), WAIT)

    def do(self, line: str) -> str:
        """Type a line, wait for the next prompt, and return the output in between."""
        self.terminal.line(line)
        self.at_prompt()
        return self.since(line)

    def expect_question(self, line: str, question: str) -> None:
        """Type a line, and wait for this question."""
        self.terminal.line(line)
        self.at(question)

    def since(self, line: str) -> str:
        """Return the output after the last time this line was typed."""
        lines = self.terminal.everything.split("\n")
        while lines and not lines.pop().startswith(PROMPT.strip()):
            pass
        _, found, shown = "".join(f"{row}\n" for row in lines).rpartition(f" {line}\n")
        assert found, f"the line was not typed: {line!r}"
        return shown

    def leave(self) -> None:
        self.at_prompt()
        self.terminal.press("ctrl-d")
        assert self.terminal.wait_for_end() == 0

    @property
    def status(self) -> str:
        """The last line that is not empty."""
        return next((line for line in reversed(self.terminal.screen) if line), "")


def _set_name(wanted: Callable[[list[str]], object], name: str) -> Callable[[list[str]], object]:
    wanted.__qualname__ = name
    return wanted


class Home:
    """A user's home folder, with a configuration, a minimal environment and the state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.config = folder / "brim.toml"
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "BRIM_STATE": str(self.state),
            "BRIM_DATA": str(folder / "data"),
            "BRIM_CONFIG": str(self.config),
            "LANG": "C.UTF-8",
            "SHELL": "/bin/bash",
            "TERM": "xterm-256color",
        }

    def configure(
        self, provider: ScriptedServer, *more: str, window: int = 8_000, reply: int = 0
    ) -> None:
        """Configure one model `fast`; `more` are further lines of its table, then other tables."""
        at = f'endpoint = "{provider.url}"\nmodel = "scripted"\nwindow = {window}\n'
        rest = f"reply = {reply}\n" if reply else ""
        self.config.write_text(f"[models.fast]\n{at}{rest}" + "\n".join(more), encoding="utf-8")

    @contextmanager
    def shell(
        self,
        *arguments: str,
        program: Sequence[str] = PROGRAM,
        start: Start | None = None,
        folder: Path | None = None,
        columns: int = 150,
        rows: int = 40,
        also: Mapping[str, str] = MappingProxyType({}),
    ) -> Iterator[Typist]:
        """Start a shell and wait for its prompt; `also` extends its environment."""
        with (start or Terminal)(
            [*program, *arguments],
            environment=self.environment | dict(also),
            folder=folder or self.folder,
            columns=columns,
            rows=rows,
        ) as terminal:
            typist = Typist(terminal)
            typist.at_prompt()
            yield typist

    def run(self, *arguments: str, lines: str = "") -> subprocess.CompletedProcess[str]:
        """Run brim without a terminal."""
        return run_forked(
            arguments, given=lines, environment=self.environment, folder=self.folder, timeout=WAIT
        )


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def texts(expect_question: ReceivedRequest) -> list[str]:
    """Return the content of each message of a request."""
    return [str(message["content"]) for message in expect_question.body["messages"]]


def list_sent_texts(provider: ScriptedServer, number: int = -1) -> str:
    """Return all message texts of a request."""
    return "\n".join(texts(provider.requests[number]))


def last_words(body: Any) -> str:
    return str(body["messages"][-1]["content"])
