"""The scenes of the shell's pictures: a user works on a small shop, with scripted replies.

The shell is the real one, in a terminal; the commands are run, in a folder that is made for it.
Only the model is a script, so that every run gives the same screens.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from brim.testing import ScriptedServer, TextReply
from scripts import shop, shop_talk
from tests.support.terminal import Terminal

COLUMNS: Final = 96
ROWS: Final = 64
"""More rows than a scene needs; unused rows are cropped."""
PROMPT: Final = "›"
QUESTION: Final = "[q]uit:"
STATUS: Final = "%)"
"""Part of the status line, which is drawn last."""
CACHE_STEP: Final = 128
"""The simulated prompt cache matches prefixes in steps of this many tokens."""


class Model:
    """Returns scripted replies, and simulates a prompt cache."""

    def __init__(self, answers: Mapping[str, str], otherwise: str) -> None:
        self._answers = answers
        self._otherwise = otherwise
        self._last: dict[str, Sequence[Any]] = {}

    def __call__(self, body: Mapping[str, Any]) -> TextReply:
        messages = body["messages"]
        words = str(messages[-1]["content"])
        found = (answer for key, answer in self._answers.items() if words.endswith(key))
        return TextReply(next(found, self._otherwise), cached=self._cached(body["model"], messages))

    def _cached(self, model: str, messages: Sequence[Any]) -> int:
        """Return the tokens of the prefix in common with the last request."""
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
    """A user at the shell's prompt."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal

    def do(self, line: str, until: str = PROMPT) -> None:
        """Type a line, and wait for the prompt or for a question."""
        self.terminal.line(line)
        self.at(until)

    def at(self, end: str) -> None:
        """Wait until this text is before the cursor."""
        self.terminal.wait_for(lambda _: self.terminal.before_cursor.rstrip().endswith(end), 60)


@contextmanager
def at_work(*, tools: bool = False, rows: int = ROWS, more: str = "") -> Iterator[Typist]:
    """Run a shell in the folder of the shop; `more` is added to its configuration."""
    with (
        TemporaryDirectory() as made,
        ScriptedServer(Model(shop_talk.ANSWERS, shop_talk.SUMMARY), model="gpt-5-mini") as provider,
    ):
        home = Path(made).resolve()
        folder = home / "shop"
        shop.make(folder)
        config = home / "brim.toml"
        config.write_text(shop.config(provider.url, tools=tools) + more, encoding="utf-8")
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
            rows=rows,
        ) as terminal:
            terminal.wait_for(STATUS)
            yield Typist(terminal)


def screen(typist: Typist, words: str) -> str:
    """Return the screen, starting at the last line that contains this text."""
    terminal = typist.terminal
    terminal.wait_for(lambda lines: STATUS in _strip_empty(lines)[-1])
    terminal.settle()
    lines, rows = _strip_empty(terminal.screen), terminal.ansi().split("\n")
    begin = max(place for place, line in enumerate(lines) if words in line)
    end = max(place for place, line in enumerate(lines[:-1]) if line)
    return "\n".join([*rows[begin : end + 1], rows[len(lines) - 1]])


def _strip_empty(lines: Sequence[str]) -> list[str]:
    """Return the lines without trailing empty ones."""
    return "\n".join(lines).rstrip("\n").split("\n")


def first() -> str:
    """A command, and a question about what it printed."""
    with at_work() as typist:
        typist.do("tail -n 5 app.log")
        typist.do("why is it locked, and what can I do?")
        return screen(typist, "tail -n 5")


def confirmation() -> str:
    """Commands that the model proposes: one that only reads, and one that destroys."""
    with at_work() as typist:
        typist.do("clean up what the last build left behind", QUESTION)
        typist.do("yes")
        return screen(typist, "clean up")


def work(typist: Typist) -> None:
    """Continue until the window is nearly full."""
    typist.do(":memory add The shop runs on SQLite and Python 3.12, on one small machine.")
    typist.do(":memory add Money is in cents, and times are in UTC.")
    for line in shop_talk.WORK:
        typist.do(line)


def more(typist: Typist) -> None:
    """Continue until a trim."""
    for line in shop_talk.MORE:
        typist.do(line)


def sum_up(typist: Typist) -> None:
    typist.do(":compact", "[n]o:")
    typist.do("y")


def context() -> str:
    """The content of the window, with a summary and pending output."""
    with at_work(tools=True) as typist:
        work(typist)
        more(typist)
        sum_up(typist)
        for line in shop_talk.LAST:
            typist.do(line)
        typist.do(":context")
        return screen(typist, ":context")


def cost() -> str:
    """The cost of the conversation."""
    with at_work() as typist:
        work(typist)
        more(typist)
        sum_up(typist)
        typist.do(":cost detail")
        return screen(typist, ":cost detail")


def status() -> str:
    """The prompt and the status line: at the start, when the window is full, and after a trim."""
    with at_work() as typist:
        typist.do(":tree")  # it would come by itself, sooner or later
        states = [type_line(typist, "git diff --stat")]
        work(typist)
        states.append(type_line(typist, "make checkout faster"))
        more(typist)
        states.append(screen(typist, ":recall"))
    return "\n\n".join(states)


def type_line(typist: Typist, line: str) -> str:
    """Return the screen with a typed line that is not sent."""
    typist.terminal.type(line)
    typist.at(line)
    seen = screen(typist, line)
    typist.terminal.press("ctrl-u")
    typist.at(PROMPT)
    return seen


@dataclass(frozen=True, slots=True)
class Scene:
    """A function that plays a scene, and the title of its window."""

    play: Callable[[], str]
    """Returns a screen with its colors."""
    title: str


SCENES: Final[Mapping[str, Scene]] = {
    "first": Scene(first, "a command, and a question about it"),
    "context": Scene(context, "what fills the window"),
    "cost": Scene(cost, "what it has cost"),
    "confirmation": Scene(confirmation, "the model proposes, you decide"),
    "status": Scene(status, "the prompt and the status line"),
}
"""The scenes by the names of their pictures."""
