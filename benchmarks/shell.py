"""Latency of the shell: from Enter to the sent request, and from start to prompt.

    python -m benchmarks.shell [--json]

The conversation has 5,000 turns and lies in a file, as that of any shell does. The server is on
this machine, in a process of its own, and says when the last byte of a request was there; a small
window, of which most is left out, and one that everything fits into. Wall time throughout: on a
busy machine it says more about the others.
"""

from __future__ import annotations

import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

from benchmarks import environment, material, report
from benchmarks.arrivals import MODEL
from benchmarks.report import Cell, Options, Table
from brim.session.session import Session
from brim.shell.conversation import SavedConversation
from brim.storage import ConversationStore, Database
from tests.support.terminal import Terminal

TURNS = 5_000
WINDOWS = {"8k": 8_192, "1M": 1_048_576}
LONGEST = 400
"""Characters per turn; all turns together fit the large window."""
CATALOGUED = "gpt-5-mini"
RESUMED = (100, 1_000, TURNS)
ROUNDS = 20
STARTS = 10
IMPORTS = 5
PROMPT = "›"
STEPS = {
    "log": "written down",
    "compose": "composed",
    "serialise": "made into JSON",
}


class Place:
    """A folder with its own configuration and state."""

    def __init__(self, folder: Path, url: str, model: str = MODEL) -> None:
        """`model` is the server's name for it; the catalog may know its window."""
        self.folder = folder
        self.state = folder / "state"
        (folder / "brim.toml").write_text(
            f'[models.{MODEL}]\nendpoint = "{url}"\nmodel = "{model}"\nreply = 1024\n'
        )
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "SHELL": "/bin/bash",
            "BRIM_STATE": str(self.state),
            "BRIM_CONFIG": str(folder / "brim.toml"),
        }

    def save(self, turns: int) -> str:
        """Save a conversation and return its name."""
        database = Database(self.state)
        log = ConversationStore(database)
        conversation = SavedConversation(Session(MODEL), log, log.create(self.folder, MODEL))
        for turn in _talk(turns):
            conversation.session.append(turn)
        conversation.save()
        log.unlock(conversation.name)
        database.close()
        return conversation.name

    def terminal(self, *arguments: str) -> Terminal:
        command = [sys.executable, "-X", "utf8", "-m", "brim.cli", *arguments]  # not forked
        return Terminal(command, environment=self.environment, folder=self.folder)


def _talk(turns: int) -> Iterator[dict[str, Any]]:
    """Yield messages and replies of typical length."""
    chance = random.Random(5)
    texts = material.load_texts()
    for place in range(turns):
        role = "assistant" if place % 2 else "user"
        text = chance.choice(texts[role])
        start = chance.randrange(max(1, len(text) - LONGEST))
        yield {"role": role, "content": f"{place}: {text[start : start + LONGEST]}"}


@contextmanager
def run_server(window: int) -> Iterator[str]:
    """Run a server that records when requests arrive; yield its address."""
    command = [sys.executable, "-m", "benchmarks.arrivals", str(window)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=environment.ROOT
    ) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.terminate()


def _arrivals(url: str) -> list[float]:
    """Return the times at which the last byte of each request arrived."""
    with urlopen(f"{url}/arrivals") as answer:
        return [last for _first, last in json.load(answer)]


# From Enter to the wire


def wire() -> Table:
    rows: list[dict[str, Cell]] = []
    for name, window in WINDOWS.items():
        with TemporaryDirectory() as folder, run_server(window) as url:
            place = Place(Path(folder), f"{url}/v1")
            saved = place.save(TURNS)
            rows += _inside(name, place, saved, url)
            rows += _measure_typing(name, place, saved, url)
    return Table(
        f"Shell: from Enter to the request on the wire, {TURNS:,} turns, ms",
        rows,
        {"median": ".1f", "worst": ".1f"},
        [f"of {ROUNDS} requests after a first one; target of the median of all: at most 5", load()],
    )


def _inside(name: str, place: Place, saved: str, url: str) -> list[dict[str, Cell]]:
    """Measure the steps inside the shell."""
    paths = os.pathsep.join([str(environment.ROOT), str(environment.ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.shell_worker", saved, str(ROUNDS + 1)],
        capture_output=True,
        text=True,
        check=True,
        cwd=place.folder,
        env={**place.environment, "PYTHONPATH": paths},
    )
    report = json.loads(done.stdout.splitlines()[-1])
    questions, arrived = report["questions"], _arrivals(url)
    wholes = [last - one["began"] for one, last in zip(questions, arrived, strict=True)]
    steps = {title: [one[step] for one in questions[1:]] for step, title in STEPS.items()}
    sent = [whole - sum(each) for whole, *each in zip(wholes[1:], *steps.values(), strict=True)]
    steps |= {"got ready and sent": sent, "all": wholes[1:]}
    return [
        *(_row(name, title, seconds) for title, seconds in steps.items()),
        _row(name, "all, the first one", wholes[:1]),
    ]


def _measure_typing(name: str, place: Place, saved: str, url: str) -> list[dict[str, Cell]]:
    """Measure from outside: from a key press in a terminal to the arrival of the request."""
    before, pressed = len(_arrivals(url)), []
    with place.terminal("resume", saved) as terminal:
        for number in range(ROUNDS + 1):
            _wait_for_prompt(terminal)
            words = f"And what about number {number}?"
            terminal.type(words)
            terminal.wait_for(lambda _: terminal.before_cursor.endswith(words))  # noqa: B023
            pressed.append(time.monotonic())
            terminal.press("enter")
        _wait_for_prompt(terminal)
    arrived = _arrivals(url)[before:]
    taken = [last - began for began, last in zip(pressed, arrived, strict=True)]
    return [_row(name, "in a terminal", taken[1:])]


def _row(window: str, step: str, seconds: Sequence[float]) -> dict[str, Cell]:
    return {
        "window": window,
        "step": step,
        "median": 1000 * statistics.median(seconds),
        "worst": 1000 * max(seconds),
    }


def _wait_for_prompt(terminal: Terminal) -> None:
    terminal.wait_for(lambda _: terminal.before_cursor.strip() == PROMPT)


# From nothing to a prompt


def starts() -> Table:
    rows: list[dict[str, Cell]] = []
    with TemporaryDirectory() as folder, _closed_address() as url:
        place = Place(Path(folder), url)
        rows.append(_measure_start("brim", place))
        for turns in RESUMED:
            saved = place.save(turns)
            rows.append(_measure_start(f"brim resume, {turns:,} turns", place, "resume", saved))
        place = Place(Path(folder), url, CATALOGUED)
        rows.append(_measure_start("brim, window known", place))
        rows.append(_measure_start(f"the same, {RESUMED[-1]:,} turns", place, "resume", saved))
    return Table(
        "Shell: from the start to the prompt, ms",
        rows,
        {"best": ".0f", "median": ".0f"},
        [
            f"of {STARTS} starts, the model's address refuses connections; target: at most 300",
            "imports, ms: " + ", ".join(f"{name} {ms:.0f}" for name, ms in _imports()),
            load(),
        ],
    )


@contextmanager
def _closed_address() -> Iterator[str]:
    """Yield an address without a server; the port stays bound, so it stays unused."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}/v1"


def _measure_start(name: str, place: Place, *arguments: str) -> dict[str, Cell]:
    taken = []
    for _ in range(STARTS):
        began = time.monotonic()
        with place.terminal(*arguments) as terminal:
            _wait_for_prompt(terminal)
            taken.append(1000 * (time.monotonic() - began))
            terminal.press("ctrl-d")
            terminal.wait_for_end()
    return {"start": name, "best": min(taken), "median": statistics.median(taken)}


def _imports() -> list[tuple[str, float]]:
    """Return the slowest imports, without their own imports; the best time of each."""
    runs = [_measure_imports() for _ in range(IMPORTS)]
    best = {name: min(run.get(name, 0.0) for run in runs) for name in runs[0]}
    return sorted(best.items(), key=lambda item: -item[1])[:6]


def _measure_imports() -> dict[str, float]:
    command = [sys.executable, "-X", "importtime", "-c", "import brim.cli.main, brim.shell.main"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    own: dict[str, float] = {}
    for line in done.stderr.splitlines()[1:]:
        alone, _, name = (part.strip() for part in line.removeprefix("import time:").split("|"))
        package = name.partition(".")[0]
        own[package] = own.get(package, 0.0) + int(alone) / 1000
    return own


def load() -> str:
    """Return a note about the load of the machine."""
    return f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"


def tables(_options: Options) -> Iterator[Table]:
    yield wire()
    yield starts()


if __name__ == "__main__":
    report.run(__doc__, tables)
