"""A long conversation in the real shell and a real terminal, with random kills.

Lines are typed, commands run in between, and `kill -9` comes while typing, with Enter, in the
middle of an answer, during a command, or at a prompt; then `brim resume` continues.
"""

from __future__ import annotations

import os
import random
import re
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Final

from benchmarks.promises import shell_checks
from benchmarks.promises.material import CODE, PROSE
from benchmarks.promises.progress import progress
from benchmarks.promises.relay import Relay
from benchmarks.promises.shell_checks import Event, TypedInput
from tests.support.terminal import Terminal

KEY: Final = "PROOF_KEY"
MODEL: Final = "proof"
PROMPT: Final = "›"
CAP_ROOM: Final = 1.5
"""Dollars that are left when a run begins to approach its cap."""
MAX_CALLS_TO_CAP: Final = 60
BACK: Final = "your message is back"
PROMPT_TIMEOUT: Final = 180
"""Seconds without a prompt after which the shell counts as stuck."""
LONG_REPLY_REQUEST: Final = "Take your time."
"""Text that requests a long reply, which will be interrupted."""
KILL_MOMENTS: Final = ("typing", "enter", "answer", "command", "prompt")
"""The moments at which a shell is killed."""
_RESET_HANGUP: Final = (
    "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
"""A closed terminal must end its programs, even if this process runs under `nohup`."""
_TURNS: Final = re.compile(r"· \S+: ([\d,]+) turns")
_PLANNED_COMMAND: Final = re.compile(r"\$ echo (proposed-\d+) \| tee -a made\n")


@dataclass(frozen=True)
class Price:
    """Dollars per million tokens."""

    prompt: float
    reply: float


@dataclass
class Figures:
    """The figures of one long conversation."""

    turns: int = 0
    commands: int = 0
    proposed: int = 0
    """Commands that the model proposed."""
    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KILL_MOMENTS, 0))
    resumes: int = 0
    kept: int = 0
    """Interrupted replies of which a part was kept."""
    context_checks: int = 0
    """Number of checks of the totals of `:context`."""
    problems: list[str] = field(default_factory=list)
    requests: int = 0
    rejected: int = 0
    largest: int = 0
    """Tokens of the largest prompt, as the server counted it."""
    seconds: float = 0.0
    recorded: float = 0.0
    """Dollars that brim has recorded, with what is still reserved."""
    actual: float = 0.0
    """Dollars that the server charges for what it has received and sent."""
    cap: float = 0.0


class ShellRun:
    """One conversation over several shell processes."""

    def __init__(
        self,
        folder: Path,
        relay: Relay,
        *,
        window: int,
        reply: int,
        key: str = "",
        seed: int,
        price: Price | None = None,
    ) -> None:
        self.figures = Figures()
        self._relay = relay
        self._window = window
        self._rng = random.Random(seed)
        self._folder = _project(folder)
        self._environment = _environment(folder, key)
        self._state = folder / "state"
        self._config = folder / "brim.toml"
        self._price, self._reply = price, reply
        self._configure(cap=1_000.0)
        self._typed = TypedInput()
        self._events: list[Event] = []
        """The events on disk at the last kill."""
        self._terminal = self._start()

    def run(self, turns: int, kills: int) -> Figures:
        """Run this many turns; failures are part of the figures."""
        figures, began = self.figures, time.monotonic()
        try:
            self._run_turns(turns, kills)
            if self._price is not None:
                self._reach_cap()
        except AssertionError as error:
            figures.problems.append(f"it stopped: {error}")
        finally:
            self._terminal.close()
        events = shell_checks.read_events(self._state)
        exchanges = self._relay.exchanges
        figures.problems += shell_checks.find_problems(events, exchanges, self._typed, self._window)
        figures.recorded = shell_checks.read_spending(self._state)
        figures.kept = shell_checks.count_kept_replies(events, self._typed)
        figures.requests, figures.rejected = len(exchanges), self._relay.rejected
        figures.largest = max((each.prompt_tokens for each in exchanges), default=0)
        figures.seconds = time.monotonic() - began
        return figures

    def _run_turns(self, turns: int, kills: int) -> None:
        places = sorted(self._rng.sample(range(2, turns), kills))
        moments = islice(cycle(self._rng.sample(KILL_MOMENTS, len(KILL_MOMENTS))), kills)
        killed = dict(zip(places, moments, strict=True))
        self._wait_for_prompt()
        for number in range(1, turns + 1):
            for place in range(self._rng.choice((0, 0, 0, 1, 1, 3))):
                self._command(f"{number}-{place}")
            if (moment := killed.get(number)) is None:
                self._send(self._compose_line(number))
            else:
                self._kill(moment, number)
            if number % max(1, turns // 20) == 0:
                self._check_context_view()
            progress(number, turns)

    def _configure(self, cap: float) -> None:
        text = f'endpoint = "{self._relay.url}"\nkey_env = "{KEY}"\nreply = {self._reply}\n'
        if self._price is not None:
            rates = f"input = {self._price.prompt}, output = {self._price.reply}"
            text += f"price = {{ {rates} }}\n[cost]\ncap_at_dollars = {cap}\n"
        self._config.write_text(f"[models.{MODEL}]\n{text}")

    def _reach_cap(self) -> None:
        """Continue with a cap that is almost reached, and with kills, until a call is rejected."""
        figures = self.figures
        figures.cap = round(shell_checks.read_spending(self._state) + CAP_ROOM, 6)
        self._configure(figures.cap)
        self._stop()
        self._resume()
        for number in range(MAX_CALLS_TO_CAP):
            text = f"Please say something about number {10_000 + number}: it is the last part."
            if number % 3 == 2:
                text += f" {LONG_REPLY_REQUEST}"
            self._terminal.line(text)
            self._terminal.wait_for(partial(self._is_sent_or_back, text), PROMPT_TIMEOUT)
            if not self._relay.saw(text):  # rejected: stored, and taken back
                self._typed.maybe.add(text)
                self._typed.interrupted.add(text)
                return
            self._typed.sent.append(text)
            if number % 3 == 2:
                self._typed.interrupted.add(text)
                self._stop()
                self._resume()
            else:
                self._wait_for_prompt()
        figures.problems.append("the cap did not reject a call")

    def _is_sent_or_back(self, text: str, _lines: list[str]) -> bool:
        is_back = self._terminal.before_cursor.endswith(text)
        return bool(self._relay.saw(text)) or (is_back and BACK in "\n".join(self._terminal.screen))

    # Input

    def _compose_line(self, number: int) -> str:
        text = self._rng.choice(PROSE).split()[: self._rng.choice((4, 8, 14))]
        return f"Please say something about number {number}: {' '.join(text)}."

    def _send(self, text: str) -> None:
        self._terminal.line(text)
        self._typed.sent.append(text)
        self.figures.turns += 1
        self._wait_for_prompt()

    def _command(self, name: str) -> None:
        """Run a command; some print far more than fits."""
        printed = f"made-{name}"
        more = self._rng.choice(("", "", "; seq 1 300", "; cat notes.txt", "; false"))
        self._terminal.line(f"echo {printed}{more}")
        self._wait_for_prompt()
        self._typed.printed.append(printed)
        self.figures.commands += 1

    def _check_context_view(self) -> None:
        self._terminal.press("ctrl-l")
        self._terminal.wait_for(lambda lines: lines[0].startswith(PROMPT))
        self._terminal.line(":context")
        self._wait_for_prompt()
        if not shell_checks.is_sum_correct(self._terminal.screen, self._window):
            shown = "\n".join(self._terminal.screen).rstrip()
            self.figures.problems.append(f":context does not add up:\n{shown}")
        self.figures.context_checks += 1

    def _wait_for_prompt(self) -> None:
        """Wait for the prompt; run only those proposed commands that the script planned."""
        while True:
            self._terminal.wait_for(self._is_at_prompt, PROMPT_TIMEOUT)
            if self._terminal.before_cursor.strip() == PROMPT:
                return
            self.figures.proposed += 1
            planned = _PLANNED_COMMAND.findall("\n".join(self._terminal.screen))[-1:]
            self._terminal.line("y" if planned else "s")
            self._typed.printed += planned

    def _is_at_prompt(self, _lines: list[str]) -> bool:
        before = self._terminal.before_cursor.strip()
        return before == PROMPT or before.endswith("[q]uit:")

    # Kills

    def _kill(self, moment: str, number: int) -> None:
        text = self._compose_line(number)
        match moment:
            case "typing":
                self._kill_while_typing(text)
            case "enter":
                self._kill_after_enter(text)
            case "answer":
                self._kill_in_reply(f"{text} {LONG_REPLY_REQUEST}")
            case "command":
                self._kill_during_command(number)
            case _:
                self._stop()
        self.figures.kills[moment] += 1
        self._resume()
        if moment not in ("enter", "answer"):
            self._send(text)

    def _kill_while_typing(self, text: str) -> None:
        part = text[: self._rng.randrange(1, len(text))]
        self._terminal.type(part)
        self._terminal.wait_for(lambda _: self._terminal.before_cursor.endswith(part))
        self._stop()

    def _kill_after_enter(self, text: str) -> None:
        """Kill at any time after Enter, so the line may be lost."""
        self._terminal.line(text)
        time.sleep(self._rng.uniform(0, 0.06))
        self._stop()
        self._typed.interrupted.add(text)
        if self._relay.saw(text):
            self._typed.sent.append(text)
        else:
            self._typed.maybe.add(text)
        self.figures.turns += 1

    def _kill_in_reply(self, text: str) -> None:
        self._terminal.line(text)
        self._relay.wait_for_pieces(text, self._rng.randrange(2, 20), PROMPT_TIMEOUT)
        time.sleep(self._rng.uniform(0, 0.7))
        self._stop()
        self._typed.sent.append(text)
        self._typed.interrupted.add(text)
        self.figures.turns += 1

    def _kill_during_command(self, number: int) -> None:
        """Kill while a command runs, which must end with its shell."""
        self._terminal.line(f"sh -c 'echo begun-{number} $$; exec sleep 3600'")
        begun = re.compile(rf"^begun-{number} (\d+)")
        self._terminal.wait_for(lambda lines: any(map(begun.match, lines)))
        process = next(int(row[1]) for row in map(begun.match, self._terminal.screen) if row)
        self._stop()
        if not _has_ended(process):
            self.figures.problems.append(f"the command of turn {number} outlived its shell")

    def _stop(self) -> None:
        self._terminal.kill()
        self._terminal.close()
        events = shell_checks.read_events(self._state)
        if events[: len(self._events)] != self._events:
            self.figures.problems.append("stored events have changed")
        self._events = events

    def _resume(self) -> None:
        """Resume, and check that all turns are there."""
        self._terminal = self._start("resume")
        self._wait_for_prompt()
        reported = _TURNS.search("\n".join(self._terminal.screen))
        turns = shell_checks.select_turns(shell_checks.read_events(self._state))
        if reported is None or int(reported[1].replace(",", "")) != len(turns):
            self.figures.problems.append(
                f"resumed with {reported and reported[0]}, not {len(turns)} turns"
            )
        self.figures.resumes += 1

    def _start(self, *arguments: str) -> Terminal:
        return Terminal(
            [sys.executable, "-ISc", _RESET_HANGUP, "-m", "brim.cli", *arguments],
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
