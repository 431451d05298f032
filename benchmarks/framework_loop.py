"""The tool loop with one framework, run in its environment by `benchmarks.integrations`.

    .venv-frameworks/langchain/bin/python -m benchmarks.framework_loop langchain ROUNDS

The servers are in this process and the loops in another one, whose CPU time is measured.
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

from brim.testing import ScriptedServer
from tests.support.frameworks import MODEL, name_server


class Result(NamedTuple):
    """The figures of a framework."""

    plain: float
    """CPU seconds of a loop without brim, at a server without a window; the best round."""
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
        ScriptedServer(replies, model=MODEL) as large,
        ScriptedServer(replies, window=loop.WINDOW, model=MODEL) as small,
        ScriptedServer(replies, window=loop.WINDOW, model=MODEL) as unfitted,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process,
    ):
        loops = process.submit(run_rounds, name, rounds, large.url, small.url)
        plain, fitted, is_whole = loops.result()
        process.submit(run_unfitted, name, unfitted.url).result()
    requests, rejected = unfitted.requests, unfitted.rejected
    failed_at = 1 + requests.index(rejected[0]) if rejected else None
    return Result(plain, fitted, len(small.rejected), is_whole, failed_at)


def run_rounds(name: str, rounds: int, large: str, small: str) -> tuple[float, float, bool]:
    """Run the loop without and with brim in turn; the first round only warms up."""
    loop: Any = import_module(f"tests.support.frameworks.{name}")
    settings = {"window": loop.WINDOW, "reply": 500}
    plain, fitted, is_whole = [], [], True
    for _ in range(rounds + 1):
        before, expected = _run(loop, large, None)
        after, outcome = _run(loop, small, settings)
        plain.append(before)
        fitted.append(after)
        is_whole = is_whole and outcome == expected
    return min(plain[1:]), min(fitted[1:]), is_whole


def _run(loop: Any, url: str, settings: dict[str, int] | None) -> tuple[float, object]:
    gc.collect()
    with name_server(url):
        start = time.process_time()
        outcome = loop.run_loop(settings)
        return time.process_time() - start, outcome


def run_unfitted(name: str, url: str) -> None:
    """Run the loop without brim in the small window; some frameworks exit when it fails."""
    loop: Any = import_module(f"tests.support.frameworks.{name}")
    with name_server(url), suppress(BaseException):
        loop.run_loop()


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))._asdict()))
