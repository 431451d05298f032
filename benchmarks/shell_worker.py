"""One measurement of the shell in its own process; `benchmarks.shell` starts it.

    python -m benchmarks.shell_worker NAME ROUNDS

It resumes the saved conversation NAME, asks ROUNDS questions, and prints for each of them when
it was asked and how long the steps took, as JSON. Environment variables set its folders.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rich.console import Console

from brim import config
from brim.providers import transport
from brim.providers.client import AsyncClient
from brim.shell.chat import ask
from brim.shell.conversation import SavedConversation
from brim.shell.main import build_shell, start_background_work
from brim.shell.render.screen import Screen
from brim.shell.state import StartOptions

WORDS = "And what does that mean for number {}?"


class Stopwatch:
    """Durations of the steps of the current question."""

    def __init__(self) -> None:
        self.steps: dict[str, float] = {}

    def add(self, step: str, began: float) -> None:
        self.steps[step] = self.steps.get(step, 0.0) + time.monotonic() - began

    def around(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            began = time.monotonic()
            try:
                return function(*given, **named)
            finally:
                self.add(step, began)

        return timed

    def around_async(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        async def timed(*given: Any, **named: Any) -> Any:
            began = time.monotonic()
            try:
                return await function(*given, **named)
            finally:
                self.add(step, began)

        return timed


@contextmanager
def time_steps(watch: Stopwatch) -> Iterator[None]:
    with (
        patch.object(
            SavedConversation, "add_message", watch.around("log", SavedConversation.add_message)
        ),
        patch.object(
            AsyncClient, "_make_request", watch.around_async("compose", AsyncClient._make_request)
        ),
        patch.object(transport, "encode_body", watch.around("serialise", transport.encode_body)),
    ):
        yield


def main(name: str, rounds: str) -> None:
    folder = Path.cwd()
    loaded = config.discover(folder=folder, environment=os.environ)
    questions: list[dict[str, float]] = []
    with ExitStack() as ends, Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        screen = Screen(Console(file=nowhere, force_terminal=True, width=100))
        began = time.monotonic()
        shell = build_shell(StartOptions(resume=name), loaded, os.environ, screen, ends)
        resumed = time.monotonic() - began
        start_background_work(shell)
        shell.background.settle()
        for number in range(int(rounds)):
            watch = Stopwatch()
            with time_steps(watch):
                began = time.monotonic()
                ask(shell, WORDS.format(number))
            questions.append({"began": began, **watch.steps})
    print(json.dumps({"resumed": resumed, "questions": questions}))


if __name__ == "__main__":
    main(*sys.argv[1:])
