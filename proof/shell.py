"""A long conversation in the real shell, in a real terminal, which is killed again and again.

Lines are typed, commands run in between, and `kill -9` comes while typing, with Enter, in the
middle of an answer, during a command, and in between; `brim resume` goes on. What came of it is
read from the outside: from the file of events, and from a relay in front of the model server.
"""

from __future__ import annotations

import json
import os
import random
import re
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from brim.local import LocalServer
from brim.scripted import Body, Say
from brim.testing import Scripted
from proof.material import CODE, PROSE
from proof.progress import progress
from proof.relay import Relay
from tests.terminal import Terminal

KEY: Final = "PROOF_KEY"
MODEL: Final = "proof"
PROMPT: Final = "›"
PATIENCE: Final = 180
"""Seconds without a prompt after which the shell counts as wedged."""
SLOWLY: Final = "Take your time."
"""Words after which an answer is long: it is about to be interrupted."""
WAYS: Final = ("typing", "enter", "answer", "command", "between")
"""When a shell is killed."""
_ROW: Final = re.compile(r"^\S? +(?P<name>\S.*?) {2,}(?P<tokens>[\d,]+)( |$)")
_TURNS: Final = re.compile(r"· \S+: ([\d,]+) turns")


@dataclass
class Figures:
    """What happened in one long conversation."""

    turns: int = 0
    commands: int = 0
    proposed: int = 0
    """Commands that the model proposed."""
    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WAYS, 0))
    resumes: int = 0
    pictures: int = 0
    """How often the rows of `:context` were added up."""
    faults: list[str] = field(default_factory=list)
    refused: int = 0
    largest: int = 0
    """Tokens of the largest prompt, as the server counted it."""
    seconds: float = 0.0


class Talk:
    """One conversation, through as many shells as it takes."""

    def __init__(
        self, folder: Path, relay: Relay, *, window: int, reply: int, key: str = "", seed: int
    ) -> None:
        self.figures = Figures()
        self._relay = relay
        self._window = window
        self._chance = random.Random(seed)
        self._folder = _project(folder)
        self._state = folder / "state"
        self._environment = _environment(folder, key)
        (folder / "brim.toml").write_text(
            f'[models.{MODEL}]\nendpoint = "{relay.url}"\nkey_env = "{KEY}"\nreply = {reply}\n'
        )
        self._said: list[str] = []
        """Lines that have to be in the log."""
        self._maybe: set[str] = set()
        """Lines whose Enter came together with the end."""
        self._broken: set[str] = set()
        """Lines whose answer was interrupted."""
        self._printed: list[str] = []
        """What commands have printed that were run to their end."""
        self._events: list[Event] = []
        """What was on disk at the last kill."""
        self._terminal = self._started()

    def run(self, turns: int, kills: int) -> Figures:
        """Talk for so many turns; whatever is wrong afterwards is in the figures."""
        began = time.monotonic()
        try:
            self._talk(turns, kills)
        except AssertionError as error:
            self.figures.faults.append(f"wedged: {error}")
        finally:
            self._terminal.close()
        self.figures.faults += self._wrong()
        self.figures.refused = self._relay.refused
        self.figures.largest = max(
            (each.prompt_tokens for each in self._relay.exchanges), default=0
        )
        self.figures.seconds = time.monotonic() - began
        return self.figures

    def _talk(self, turns: int, kills: int) -> None:
        places = self._chance.sample(range(2, turns), kills)
        ways = dict(zip(sorted(places), _shuffled(kills, self._chance), strict=True))
        pictures = max(1, turns // 10)
        self._ready()
        for number in range(1, turns + 1):
            for place in range(self._chance.choice((0, 0, 0, 1, 1, 3))):
                self._command(f"{number}-{place}")
            if (way := ways.get(number)) is None:
                self._say(self._words(number))
            else:
                self._kill(way, number)
            if number % pictures == 0:
                self._look()
            progress(number, turns)

    # What is typed

    def _words(self, number: int) -> str:
        words = self._chance.choice(PROSE).split()[: self._chance.choice((4, 8, 14))]
        return f"Please say something about number {number}: {' '.join(words)}."

    def _say(self, words: str) -> None:
        self._terminal.line(words)
        self._said.append(words)
        self._ready()
        self.figures.turns += 1

    def _command(self, name: str) -> None:
        """Run a command; some print far more than there is room for."""
        printed = f"made-{name}"
        more = self._chance.choice(("", "", "; seq 1 300", "; cat notes.txt", "; false"))
        self._terminal.line(f"echo {printed}{more}")
        self._ready()
        self._printed.append(printed)
        self.figures.commands += 1

    def _look(self) -> None:
        """Whether the rows of `:context` add up to the window."""
        self._terminal.press("ctrl-l")
        self._terminal.wait_for(lambda lines: lines[0].startswith(PROMPT))
        self._terminal.line(":context")
        self._ready()
        rows = [
            (row["name"], row["tokens"]) for row in map(_ROW.match, self._terminal.screen) if row
        ]
        sizes = [int(tokens.replace(",", "")) for _, tokens in rows]
        *parts, window = sizes or [0]
        if (
            not parts
            or sum(parts) != window
            or self._window not in (window, window - _over(self._terminal.screen))
        ):
            shown = "\n".join(self._terminal.screen).rstrip()
            self.figures.faults.append(f":context does not add up: {sizes}\n{shown}")
        self.figures.pictures += 1

    def _ready(self) -> None:
        """Wait for the prompt; commands that the model proposes are agreed to if they are ours."""
        while True:
            self._terminal.wait_for(self._is_at_prompt, PATIENCE)
            if self._terminal.before_cursor.strip() == PROMPT:
                return
            self.figures.proposed += 1
            ours = re.findall(r"\$ echo (proposed-\d+)\n", "\n".join(self._terminal.screen))
            self._terminal.line("y" if ours else "s")
            self._printed += ours[-1:]

    def _is_at_prompt(self, _lines: list[str]) -> bool:
        before = self._terminal.before_cursor.strip()
        return before == PROMPT or before.endswith("[q]uit:")

    # How it is ended

    def _kill(self, way: str, number: int) -> None:
        words = self._words(number)
        if way == "typing":
            self._typing(words)
        elif way == "enter":
            self._enter(words)
        elif way == "answer":
            self._answer(f"{words} {SLOWLY}")
        elif way == "command":
            self._during_command(number)
        else:
            self._end()
        self.figures.kills[way] += 1
        self._resume()
        if way in ("typing", "command", "between"):
            self._say(words)

    def _typing(self, words: str) -> None:
        part = words[: self._chance.randrange(1, len(words))]
        self._terminal.type(part)
        self._terminal.wait_for(lambda _: self._terminal.before_cursor.endswith(part.rstrip()))
        self._end()

    def _enter(self, words: str) -> None:
        """Any time from Enter on: the line may or may not have been taken."""
        self._terminal.line(words)
        time.sleep(self._chance.uniform(0, 0.06))
        self._end()
        self._broken.add(words)
        (self._said.append if self._relay.saw(words) else self._maybe.add)(words)
        self.figures.turns += 1

    def _answer(self, words: str) -> None:
        self._terminal.line(words)
        self._relay.wait_for_pieces(words, self._chance.randrange(2, 20), PATIENCE)
        time.sleep(self._chance.uniform(0, 0.7))
        self._end()
        self._said.append(words)
        self._broken.add(words)
        self.figures.turns += 1

    def _during_command(self, number: int) -> None:
        """A command ends with its shell."""
        self._terminal.line(f"sh -c 'echo begun-{number} $$; exec sleep 3600'")
        found = re.compile(rf"^begun-{number} (\d+)")
        self._terminal.wait_for(lambda lines: any(map(found.match, lines)))
        process = next(int(row[1]) for row in map(found.match, self._terminal.screen) if row)
        self._end()
        if not _has_ended(process):
            self.figures.faults.append(f"the command of turn {number} outlived its shell")

    def _end(self) -> None:
        self._terminal.kill()
        self._terminal.close()
        events = self._on_disk()
        if events[: len(self._events)] != self._events:
            self.figures.faults.append("what was on disk has changed")
        self._events = events

    def _resume(self) -> None:
        """Go on, with all turns that there were."""
        self._terminal = self._started("resume")
        self._ready()
        told = _TURNS.search("\n".join(self._terminal.screen))
        turns = [event.data["message"] for event in self._on_disk() if event.kind == "turn"]
        if told is None or int(told[1].replace(",", "")) != len(turns):
            self.figures.faults.append(f"resumed with {told and told[0]}, not {len(turns)} turns")
        self.figures.resumes += 1

    def _started(self, *arguments: str) -> Terminal:
        return Terminal(
            [sys.executable, "-m", "brim.cli", *arguments],
            columns=160,
            rows=40,
            environment=self._environment,
            folder=self._folder,
        )

    # What came of it

    def _on_disk(self) -> list[Event]:
        """The events of the conversation, read without brim."""
        with closing(sqlite3.connect(self._state / "brim.sqlite3")) as base:
            rows = base.execute("SELECT session, kind, data FROM events ORDER BY session, number")
            found = [(session, Event(kind, json.loads(data))) for session, kind, data in rows]
        if len({session for session, _ in found}) > 1:
            self.figures.faults.append("there are several conversations")
        return [event for _, event in found]

    def _wrong(self) -> Iterator[str]:
        """All that is not as it should be."""
        events = self._on_disk()
        turns = [event.data["message"] for event in events if event.kind == "turn"]
        lines = [turn["content"] for turn in turns if turn["role"] == "user"]
        expected = [line for line in lines if line not in self._maybe]
        if expected != self._said:
            yield from _differences(expected, self._said)
        yield from (f"taken back: {event.data}" for event in events if event.kind == "back")
        yield from self._wrong_answers(turns)
        yield from self._wrong_requests()

    def _wrong_answers(self, turns: list[dict[str, Any]]) -> Iterator[str]:
        """Whether every answer in the log is what the server said, as far as its reader lived."""
        for turn, following in zip(turns, [*turns[1:], {"role": "nothing"}], strict=True):
            if turn["role"] != "user":
                continue
            line, exchanges = turn["content"], self._relay.saw(turn["content"])
            said = exchanges[0].text if exchanges else ""
            kept = following.get("content") or "" if following["role"] == "assistant" else ""
            if line in self._broken and not said.startswith(kept):
                yield f"the broken answer to {line!r} is {kept!r}, not of {said!r}"
            elif line not in self._broken and (following["role"] != "assistant" or kept != said):
                yield f"the answer to {line!r} is {kept!r}, not {said!r}"

    def _wrong_requests(self) -> Iterator[str]:
        """Whether every line was sent once, and everything printed came before the model."""
        for line in self._said:
            if (times := len(self._relay.saw(line))) != 1:
                yield f"sent {times} times: {line!r}"
        sent = "\n".join(each.last_words for each in self._relay.exchanges)
        yield from (f"never sent: {text}" for text in self._printed[:-1] if text not in sent)


@dataclass(frozen=True)
class Event:
    """A row of the file."""

    kind: str
    data: Mapping[str, Any]


def _project(folder: Path) -> Path:
    """A small project to talk in."""
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


def _shuffled(number: int, chance: random.Random) -> list[str]:
    """So many ways to be killed, each as often as the others."""
    ways = [WAYS[place % len(WAYS)] for place in range(number)]
    chance.shuffle(ways)
    return ways


def _over(lines: list[str]) -> int:
    found = re.search(r"over by ([\d,]+) tokens", "\n".join(lines))
    return int(found[1].replace(",", "")) if found else 0


def _has_ended(process: int, timeout: float = 20) -> bool:
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def _differences(found: list[str], wanted: list[str]) -> Iterator[str]:
    yield f"{len(found)} lines in the log, {len(wanted)} were sent"
    yield from (f"lost: {line!r}" for line in wanted if line not in found)
    yield from (
        f"there {found.count(line)} times: {line!r}" for line in {*found} if found.count(line) > 1
    )


# Two conversations


def with_model(folder: Path, model: Path, *, turns: int, kills: int, seed: int = 512) -> Figures:
    """With the embedded model, in a window of 512 tokens."""
    with (
        LocalServer.start(model, window=512, threads=1) as server,
        Relay(server.url, _brief) as relay,
    ):
        talk = Talk(folder, relay, window=server.window, reply=64, key=server.key, seed=seed)
        return talk.run(turns, kills)


def _brief(words: str) -> Mapping[str, Any]:
    """The shell has no way to ask for short answers, and nobody here reads long ones."""
    return {"max_tokens": 200 if words.endswith(SLOWLY) else 40, "temperature": 0.7, "seed": 7}


def with_script(folder: Path, *, turns: int, kills: int, seed: int = 2_000) -> Figures:
    """With a scripted model, in a window of 2,000 tokens."""
    with Scripted(answer, window=2_000, model=MODEL) as server, Relay(server.url) as relay:
        talk = Talk(folder, relay, window=2_000, reply=200, seed=seed)
        return talk.run(turns, kills)


def answer(body: Body) -> Say:
    """Something of any length; every seventh time with a command."""
    words = str(body["messages"][-1]["content"])
    found = re.findall(r"number (\d+):", words)
    number = int(found[-1]) if found else 0
    chance = random.Random(number)
    text = " ".join(chance.choices(" ".join(PROSE).split(), k=chance.choice((3, 20, 80))))
    if words.endswith(SLOWLY):
        return Say(" ".join(PROSE), pause=0.03)
    return Say(f"{text}\nCMD: echo proposed-{number}" if number % 7 == 0 else text)
