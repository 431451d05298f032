"""The tool loop with one framework, run in its environment by `benchmarks.integrations`.

    .venv-frameworks/langchain/bin/python -m benchmarks.framework_loop langchain ROUNDS

The servers are in this process and the loops in another one, whose CPU time is measured. A round
runs the loop without brim, with brim, and without brim again: the two loops without brim tell the
noise. The time of a loop is the sum of its steps (from one call of the tool to the next), each the
best of all rounds, so that other programs do not matter. The first round warms up both (imports,
vocabulary); before each loop, brim forgets the counts and the conversations of the rounds before.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from multiprocessing import get_context
from typing import Any, NamedTuple

from brim.fitting.api import prefix_cache
from brim.testing import ScriptedServer
from brim.tokens import counter_for, tokenizer_for
from brim.tokens.counter import RequestCounter
from tests.support import frameworks
from tests.support.frameworks import MODEL, name_server


class Cost(NamedTuple):
    """CPU seconds of a framework's loops."""

    plain: float
    """A loop without brim, at a server without a window."""
    fitted: float
    """A loop with brim."""
    again: float
    """The second loop without brim."""
    tokenizing: float
    """Counting the outputs of the loop, each once, with the bare tokenizer."""
    first: float
    """What brim adds to the first round: loading its vocabulary, and imports at first use."""


class Result(NamedTuple):
    """The figures of a framework."""

    cost: Cost
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
        cost, is_whole = loops.result()
        process.submit(run_unfitted, name, unfitted.url).result()
    requests, rejected = unfitted.requests, unfitted.rejected
    failed_at = 1 + requests.index(rejected[0]) if rejected else None
    return Result(cost, len(small.rejected), is_whole, failed_at)


def run_rounds(name: str, rounds: int, large: str, small: str) -> tuple[Cost, bool]:
    """Return the cost of the loops, and whether each history is whole."""
    loop: Any = import_module(f"tests.support.frameworks.{name}")
    settings = {"window": loop.WINDOW, "reply": 500}
    arms = (large, None), (small, settings), (large, None)
    times: list[list[list[float]]] = []
    outcomes: list[frameworks.Outcome] = []
    for _ in range(rounds + 1):
        results = [_run(loop, *arm) for arm in arms]
        times.append([steps for steps, _ in results])
        outcomes += [outcome for _, outcome in results]
    (_, fitted, again), *others = times
    best = (sum(map(min, zip(*arm, strict=True))) for arm in zip(*others, strict=True))
    plain, with_brim, plain_again = best
    tokenizing, first = _time_tokenizer(outcomes[0].outputs), sum(fitted) - sum(again)
    cost = Cost(plain, with_brim, plain_again, tokenizing, first)
    return cost, all(outcome == outcomes[0] for outcome in outcomes)


def _time_tokenizer(texts: Sequence[str]) -> float:
    (tokenizer, _), times = tokenizer_for(MODEL), []
    for _ in range(20):
        start = time.process_time()
        for text in texts:
            tokenizer.count(text)
        times.append(time.process_time() - start)
    return min(times)


def _run(
    loop: Any, url: str, settings: dict[str, int] | None
) -> tuple[list[float], frameworks.Outcome]:
    """Return the CPU seconds of each step of a loop, and its outcome."""
    _forget_rounds()
    gc.collect()
    gc.freeze()  # a collection during a loop reads the objects of this loop only
    frameworks.CALL_TIMES.clear()
    with name_server(url):
        start = time.process_time()
        outcome = loop.run_loop(settings)
        times = start, *frameworks.CALL_TIMES, time.process_time()
        return [after - before for before, after in pairwise(times)], outcome


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
