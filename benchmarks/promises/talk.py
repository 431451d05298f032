"""A long conversation in the real shell and a real terminal, with random kills.

Lines are typed, commands run in between, and `kill -9` comes while typing, with Enter, in the
middle of an answer, during a command, or at a prompt; then `brim resume` goes on.
"""

from __future__ import annotations

import os
import random
import re
import sys
import time
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Final

from benchmarks.promises import witness
from benchmarks.promises.material import CODE, PROSE
from benchmarks.promises.progress import progress
from benchmarks.promises.relay import Relay
from benchmarks.promises.witness import Done, Event
from tests.support.terminal import Terminal

KEY: Final = "PROOF_KEY"
MODEL: Final = "proof"
PROMPT: Final = "›"
PATIENCE: Final = 180
"""Seconds without a prompt after which the shell counts as stuck."""
SLOWLY: Final = "Take your time."
"""Text that requests a long reply, which will be interrupted."""
WAYS: Final = ("typing", "enter", "answer", "command", "prompt")
"""The moments at which a shell is killed."""
_HANGING_UP: Final = (
    "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
"""A closed terminal must end its programs, even if this process runs under `nohup`."""
_TURNS: Final = re.compile(r"· \S+: ([\d,]+) turns")
_OURS: Final = re.compile(r"\$ echo (proposed-\d+)\n")


@dataclass
class Figures:
    """The figures of one long conversation."""

    turns: int = 0
    commands: int = 0
    proposed: int = 0
    """Commands that the model proposed."""
    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WAYS, 0))
    resumes: int = 0
    kept: int = 0
    """Interrupted replies of which a part was kept."""
    pictures: int = 0
    """Number of checks of the totals of `:context`."""
    wrong: list[str] = field(default_factory=list)
    requests: int = 0
    refused: int = 0
    largest: int = 0
    """Tokens of the largest prompt, as the server counted it."""
    seconds: float = 0.0


class Talk:
    """One conversation over several shell processes."""

    def __init__(
        self, folder: Path, relay: Relay, *, window: int, reply: int, key: str = "", seed: int
    ) -> None:
        self.figures = Figures()
        self._relay = relay
        self._window = window
        self._chance = random.Random(seed)
        self._folder = _project(folder)
        self._environment = _environment(folder, key)
        self._state = folder / "state"
        (folder / "brim.toml").write_text(
            f'[models.{MODEL}]\nendpoint = "{relay.url}"\nkey_env = "{KEY}"\nreply = {reply}\n'
        )
        self._done = Done()
        self._events: list[Event] = []
        """The events on disk at the last kill."""
        self._terminal = self._started()

    def run(self, turns: int, kills: int) -> Figures:
        """Run this many turns; failures are part of the figures."""
        figures, began = self.figures, time.monotonic()
        try:
            self._talk(turns, kills)
        except AssertionError as error:
            figures.wrong.append(f"it stopped: {error}")
        finally:
            self._terminal.close()
        events = witness.events_in(self._state)
        exchanges = self._relay.exchanges
        figures.wrong += witness.wrong(events, exchanges, self._done, self._window)
        figures.kept = witness.kept(events, self._done)
        figures.requests, figures.refused = len(exchanges), self._relay.refused
        figures.largest = max((each.prompt_tokens for each in exchanges), default=0)
        figures.seconds = time.monotonic() - began
        return figures

    def _talk(self, turns: int, kills: int) -> None:
        places = sorted(self._chance.sample(range(2, turns), kills))
        ways = islice(cycle(self._chance.sample(WAYS, len(WAYS))), kills)
        killed = dict(zip(places, ways, strict=True))
        self._ready()
        for number in range(1, turns + 1):
            for place in range(self._chance.choice((0, 0, 0, 1, 1, 3))):
                self._command(f"{number}-{place}")
            if (way := killed.get(number)) is None:
                self._say(self._words(number))
            else:
                self._kill(way, number)
            if number % max(1, turns // 20) == 0:
                self._look()
            progress(number, turns)

    # Input

    def _words(self, number: int) -> str:
        words = self._chance.choice(PROSE).split()[: self._chance.choice((4, 8, 14))]
        return f"Please say something about number {number}: {' '.join(words)}."

    def _say(self, words: str) -> None:
        self._terminal.line(words)
        self._done.said.append(words)
        self.figures.turns += 1
        self._ready()

    def _command(self, name: str) -> None:
        """Run a command; some print far more than fits."""
        printed = f"made-{name}"
        more = self._chance.choice(("", "", "; seq 1 300", "; cat notes.txt", "; false"))
        self._terminal.line(f"echo {printed}{more}")
        self._ready()
        self._done.printed.append(printed)
        self.figures.commands += 1

    def _look(self) -> None:
        self._terminal.press("ctrl-l")
        self._terminal.wait_for(lambda lines: lines[0].startswith(PROMPT))
        self._terminal.line(":context")
        self._ready()
        if not witness.adds_up(self._terminal.screen, self._window):
            shown = "\n".join(self._terminal.screen).rstrip()
            self.figures.wrong.append(f":context does not add up:\n{shown}")
        self.figures.pictures += 1

    def _ready(self) -> None:
        """Wait for the prompt; run only those proposed commands that the script planned."""
        while True:
            self._terminal.wait_for(self._is_at_prompt, PATIENCE)
            if self._terminal.before_cursor.strip() == PROMPT:
                return
            self.figures.proposed += 1
            ours = _OURS.findall("\n".join(self._terminal.screen))[-1:]
            self._terminal.line("y" if ours else "s")
            self._done.printed += ours

    def _is_at_prompt(self, _lines: list[str]) -> bool:
        before = self._terminal.before_cursor.strip()
        return before == PROMPT or before.endswith("[q]uit:")

    # Kills

    def _kill(self, way: str, number: int) -> None:
        words = self._words(number)
        match way:
            case "typing":
                self._while_typing(words)
            case "enter":
                self._with_enter(words)
            case "answer":
                self._in_answer(f"{words} {SLOWLY}")
            case "command":
                self._during_command(number)
            case _:
                self._end()
        self.figures.kills[way] += 1
        self._resume()
        if way not in ("enter", "answer"):
            self._say(words)

    def _while_typing(self, words: str) -> None:
        part = words[: self._chance.randrange(1, len(words))]
        self._terminal.type(part)
        self._terminal.wait_for(lambda _: self._terminal.before_cursor.endswith(part))
        self._end()

    def _with_enter(self, words: str) -> None:
        """Kill at any time after Enter, so the line may be lost."""
        self._terminal.line(words)
        time.sleep(self._chance.uniform(0, 0.06))
        self._end()
        self._done.broken.add(words)
        if self._relay.saw(words):
            self._done.said.append(words)
        else:
            self._done.maybe.add(words)
        self.figures.turns += 1

    def _in_answer(self, words: str) -> None:
        self._terminal.line(words)
        self._relay.wait_for_pieces(words, self._chance.randrange(2, 20), PATIENCE)
        time.sleep(self._chance.uniform(0, 0.7))
        self._end()
        self._done.said.append(words)
        self._done.broken.add(words)
        self.figures.turns += 1

    def _during_command(self, number: int) -> None:
        """Kill while a command runs, which must end with its shell."""
        self._terminal.line(f"sh -c 'echo begun-{number} $$; exec sleep 3600'")
        begun = re.compile(rf"^begun-{number} (\d+)")
        self._terminal.wait_for(lambda lines: any(map(begun.match, lines)))
        process = next(int(row[1]) for row in map(begun.match, self._terminal.screen) if row)
        self._end()
        if not _has_ended(process):
            self.figures.wrong.append(f"the command of turn {number} outlived its shell")

    def _end(self) -> None:
        self._terminal.kill()
        self._terminal.close()
        events = witness.events_in(self._state)
        if events[: len(self._events)] != self._events:
            self.figures.wrong.append("what was on disk has changed")
        self._events = events

    def _resume(self) -> None:
        """Resume, and check that all turns are there."""
        self._terminal = self._started("resume")
        self._ready()
        told = _TURNS.search("\n".join(self._terminal.screen))
        turns = witness.turns_of(witness.events_in(self._state))
        if told is None or int(told[1].replace(",", "")) != len(turns):
            self.figures.wrong.append(f"resumed with {told and told[0]}, not {len(turns)} turns")
        self.figures.resumes += 1

    def _started(self, *arguments: str) -> Terminal:
        return Terminal(
            [sys.executable, "-ISc", _HANGING_UP, "-m", "brim.cli", *arguments],
            columns=160,
            rows=40,
            environment=self._environment,
            folder=self._folder,
        )


def _project(folder: Path) -> Path:
    """Create a small project as the working folder."""
    root = folder / "project"
    (root / ".git").mkdir(parents=True)
    (root / "notes.txt").write_text("\n".join([*PROSE, *CODE]))
    for name in ("main.py", "README.md", "tests/test_main.py"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(CODE[0])
    return root


def _environment(folder: Path, key: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "SHELL": "/bin/bash",
        "BRIM_STATE": str(folder / "state"),
        "BRIM_CONFIG": str(folder / "brim.toml"),
        KEY: key or "none",
    }


def _has_ended(process: int, timeout: float = 20) -> bool:
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False
