"""The tool loop with one framework, run in its environment by `benchmarks.integrations`.

    .venv-frameworks/langchain/bin/python -m benchmarks.framework_loop langchain ROUNDS

The servers are in this process and the loops in another one, whose CPU time is measured. A round
runs the loop without brim, with brim, and without brim again: the two loops without brim tell the
noise. The first round warms up both (imports, vocabulary); before each loop, brim forgets the
counts and the conversations of the rounds before.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from typing import Any, NamedTuple

from brim.fitting.api import prefix_cache
from brim.testing import ScriptedServer
from brim.tokens import counter_for
from brim.tokens.counter import RequestCounter
from tests.support.frameworks import MODEL, name_server


class Result(NamedTuple):
    """The figures of a framework."""

    plain: float
    """CPU seconds of a loop without brim, at a server without a window; the best round."""
    again: float
    """The same of the second loop without brim."""
    fitted: float
    """CPU seconds of a loop with brim."""
    errors: int
    """Context-length errors of all loops with brim."""
    is_whole: bool
    """Whether the framework's history had all outputs after each loop with brim."""
    failed_at: int | None
    """The first request without brim that is too long."""


def measure(name: str, rounds: int) -> Result:
    loop: Any = import_module(f"tests.support.frameworks.{name}")
    replies = [*loop.REPLIES] * (rounds + 1)
    with (
        ScriptedServer(replies * 2, model=MODEL) as large,
        ScriptedServer(replies, window=loop.WINDOW, model=MODEL) as small,
        ScriptedServer(replies, window=loop.WINDOW, model=MODEL) as unfitted,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process,
    ):
        loops = process.submit(run_rounds, name, rounds, large.url, small.url)
        best, is_whole = loops.result()
        process.submit(run_unfitted, name, unfitted.url).result()
    requests, rejected = unfitted.requests, unfitted.rejected
    failed_at = 1 + requests.index(rejected[0]) if rejected else None
    plain, fitted, again = best
    return Result(plain, again, fitted, len(small.rejected), is_whole, failed_at)


def run_rounds(name: str, rounds: int, large: str, small: str) -> tuple[list[float], bool]:
    """Return the best CPU time of each of the three loops, and whether each history is whole."""
    loop: Any = import_module(f"tests.support.frameworks.{name}")
    settings = {"window": loop.WINDOW, "reply": 500}
    arms = (large, None), (small, settings), (large, None)
    times, outcomes = [], []
    for _ in range(rounds + 1):
        results = [_run(loop, *arm) for arm in arms]
        times.append([seconds for seconds, _ in results])
        outcomes += [outcome for _, outcome in results]
    best = [min(each) for each in zip(*times[1:], strict=True)]
    return best, all(outcome == outcomes[0] for outcome in outcomes)


def _run(loop: Any, url: str, settings: dict[str, int] | None) -> tuple[float, object]:
    _forget_rounds()
    gc.collect()
    with name_server(url):
        start = time.process_time()
        outcome = loop.run_loop(settings)
        return time.process_time() - start, outcome


def _forget_rounds() -> None:
    """Let brim read and count each text again; its vocabulary stays loaded."""
    prefix_cache.clear()
    for counter in (counter_for(None), counter_for(MODEL)):
        assert isinstance(counter, RequestCounter)
        counter.table.turn()
        counter.table.turn()


def run_unfitted(name: str, url: str) -> None:
    """Run the loop without brim in the small window; some frameworks exit when it fails."""
    loop: Any = import_module(f"tests.support.frameworks.{name}")
    with name_server(url), suppress(BaseException):
        loop.run_loop()


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))._asdict()))
