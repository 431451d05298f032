"""What stands in the pictures: somebody at work on a small shop, with answers from a script.

The shell is the real one, in a terminal; the commands are run, in a folder that is made for it.
Only the model is a script, so that every run gives the same screens.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from brim.testing import Say, Scripted
from scripts import shop
from tests.terminal import Terminal

COLUMNS: Final = 96
ROWS: Final = 64
"""More than a scene needs; what is not used is cropped."""
PROMPT: Final = "›"
QUESTION: Final = "[q]uit:"
CACHE_STEP: Final = 128
"""A server's cache knows the beginning of a prompt in steps of this size."""

Scene = Callable[[], str]
"""Gives a screen with its colours."""


class Model:
    """Knows an answer for some words, and has a cache of prompts as servers do."""

    def __init__(self, answers: Mapping[str, str], otherwise: str) -> None:
        self._answers = answers
        self._otherwise = otherwise
        self._last: dict[str, Sequence[Any]] = {}

    def __call__(self, body: Mapping[str, Any]) -> Say:
        messages = body["messages"]
        words = str(messages[-1]["content"])
        found = (answer for key, answer in self._answers.items() if words.endswith(key))
        return Say(next(found, self._otherwise), cached=self._cached(body["model"], messages))

    def _cached(self, model: str, messages: Sequence[Any]) -> int:
        """Tokens of what is the same as in the last request, from the beginning on."""
        from brim import count

        pairs = zip(self._last.get(model, ()), messages, strict=False)
        known = 0
        for before, now in pairs:
            if before != now:
                break
            known += 1
        self._last[model] = messages
        tokens = count({"messages": list(messages[:known]), "model": "gpt-5-mini"}) if known else 0
        return tokens // CACHE_STEP * CACHE_STEP


class Typist:
    """Somebody who sits at the shell's prompt."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal

    def do(self, line: str, until: str = PROMPT) -> None:
        """Type a line, and wait for the prompt or for a question."""
        self.terminal.line(line)
        self.at(until)

    def at(self, end: str) -> None:
        """Wait until this stands before the cursor."""
        self.terminal.wait_for(lambda _: self.terminal.before_cursor.rstrip().endswith(end), 60)


@contextmanager
def at_work(*, tools: bool = False) -> Iterator[Typist]:
    """A shell in the folder of the shop."""
    with (
        TemporaryDirectory() as made,
        Scripted(Model(shop.ANSWERS, shop.SUMMARY), model="gpt-5-mini") as provider,
    ):
        home = Path(made).resolve()
        folder = home / "shop"
        shop.make(folder)
        config = home / "brim.toml"
        config.write_text(shop.config(provider.url, tools=tools), encoding="utf-8")
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "BRIM_STATE": str(home / "state"),
            "BRIM_CONFIG": str(config),
            "LANG": "C.UTF-8",
            "SHELL": "/bin/bash",
        }
        with Terminal(
            [sys.executable, "-m", "brim.cli"],
            environment=environment,
            folder=folder,
            columns=COLUMNS,
            rows=ROWS,
        ) as terminal:
            terminal.wait_for("%)")  # the status line, which comes last
            yield Typist(terminal)


def screen(typist: Typist, first: str) -> str:
    """The screen from the last line on that has these words, as if it had just scrolled there."""
    typist.terminal.settle()
    plain, rows = typist.terminal.screen, typist.terminal.ansi().split("\n")
    begin = max(place for place, line in enumerate(plain) if first in line)
    last = max(place for place, line in enumerate(plain) if line)
    above = [place for place in range(begin, last) if plain[place]][-1]
    return "\n".join([*rows[begin : above + 1], rows[last]])


def first() -> str:
    """A command, and a question about what it printed."""
    with at_work() as typist:
        typist.do("tail -n 5 app.log")
        typist.do("why is it locked, and what can I do?")
        return screen(typist, "tail -n 5")


def confirmation() -> str:
    """Commands that the model proposes: one that is harmless, and one that is not."""
    with at_work() as typist:
        typist.do("clean up what the last build left behind", QUESTION)
        typist.do("y", QUESTION)
        typist.do("yes")
        return screen(typist, "clean up")


def work(typist: Typist) -> None:
    """Talk until the window is nearly full."""
    typist.do(":memory add The shop runs on SQLite and Python 3.12, on one small machine.")
    typist.do(":memory add Money is in cents, and times are in UTC.")
    for line in shop.WORK:
        typist.do(line)


def context() -> str:
    """What fills the window."""
    with at_work(tools=True) as typist:
        work(typist)
        typist.do(":context")
        return screen(typist, ":context")


def cost() -> str:
    """What it has cost."""
    with at_work() as typist:
        work(typist)
        typist.do(":cost detail")
        return screen(typist, ":cost detail")


def status() -> str:
    """The prompt and the line below it: at the beginning, when it is full, after a cut."""
    with at_work() as typist:
        work(typist)
        return screen(typist, "app.log")


SCENES: Final[Mapping[str, tuple[Scene, str]]] = {
    "first": (first, "a command, and a question about it"),
    "context": (context, ":context"),
    "cost": (cost, ":cost detail"),
    "confirmation": (confirmation, "a command needs its user's word"),
    "status": (status, "the prompt and the status line"),
}
"""The scenes by the names of their files, with the titles of the windows."""
