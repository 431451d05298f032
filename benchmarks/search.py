"""CPU time of `brim.search` in histories of recorded text, and what search adds to a fit.

    python -m benchmarks.search [--json]

The first search splits the trimmed text; later ones, with other queries, only rank it. The queries
are the first words of user messages.

The second table compares fits with and without search: the recall tool with its notes and `steady`,
and the policy `recall` with `sliding`. A session is fitted at each request point, and *one call*
fits 100,000 tokens. Each round has text that was not counted before, so all times include counting
it; medians are shown. *Search %* is what finding and ranking messages adds alone; the rest
chooses among single turns, and writes and counts the notes at their gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from statistics import median
from time import thread_time
from typing import Any, TypeAlias

import brim
from benchmarks import material, report
from benchmarks.recordings import Message
from benchmarks.worker import measure_time
from brim.fitting.history import History

SIZES = ((20_000, 8_192), (100_000, 8_192), (100_000, 32_768), (1_000_000, 131_072))
"""Tokens of the history and of the window."""
QUERIES = 20
QUERY_CHARS = 100
TOKENS = 2_000
TURNS = 400
CALL_TOKENS = 100_000
ROUNDS = 9
Work: TypeAlias = "Callable[[list[Message], Mapping[str, Any]], None]"
WITHOUT_AND_WITH: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "recall tool": ({"policy": "steady"}, {"policy": "steady", "recall": True}),
    "policy recall": ({"policy": "sliding"}, {"policy": "recall"}),
}


def measure(messages: list[Message], size: int, window: int) -> dict[str, report.Cell]:
    plan = brim.fit(messages, model="gpt-4o", window=window, reply=500).plan
    users = [message["content"] for message in messages if message["role"] == "user"]
    queries = [" ".join(text.split())[:QUERY_CHARS] for text in users][-QUERIES:]
    times = [measure_time(partial(brim.search, plan, query, tokens=TOKENS)) for query in queries]
    later = sorted(times[1:])
    return {
        "history": f"{size:,} tokens",
        "window": f"{window:,}",
        "first": 1000 * times[0],
        "later, median": 1000 * later[len(later) // 2],
        "later, slowest": 1000 * later[-1],
    }


def compare(name: str, window: int, work: Work) -> dict[str, report.Cell]:
    """Return the median CPU time of `work` without and with a search, measured in turns."""
    spent: tuple[list[float], list[float]] = [], []
    searched = list[float]()
    for seed in range(2 * ROUNDS):
        options = {"window": window, "reply": 500, **WITHOUT_AND_WITH[name][seed % 2]}
        create = material.of_turns if work is grow else material.of_tokens
        messages = create(TURNS if work is grow else CALL_TOKENS, 1_000 + seed)
        with measure_search() as times:
            spent[seed % 2].append(measure_time(partial(work, messages, options)))
        searched += [sum(times)] * (seed % 2)
    without, given = map(median, spent)
    return {
        "search": name,
        "fits": "session" if work is grow else "one call",
        "window": f"{window:,}",
        "without": 1000 * without,
        "with": 1000 * given,
        "added %": 100 * (given / without - 1),
        "search %": 100 * median(searched) / without if any(searched) else None,
    }


@contextmanager
def measure_search() -> Iterator[list[float]]:
    """Yield a list to which the times are added that messages are ranked for."""
    times, rank = list[float](), History.rank_units

    def rank_timed(history: History, query: str, stop: int) -> Any:
        start = thread_time()
        ranked = rank(history, query, stop)
        times.append(thread_time() - start)
        return ranked

    History.rank_units = rank_timed  # type: ignore[method-assign, assignment]
    yield times
    History.rank_units = rank  # type: ignore[method-assign]


def grow(messages: list[Message], options: Mapping[str, Any]) -> None:
    session = brim.Session(model="gpt-4o", **options)
    for message in messages:
        session.append(message)
        if message["role"] in {"user", "tool"}:
            session.request()


def fit(messages: list[Message], options: Mapping[str, Any]) -> None:
    brim.fit(messages, model="gpt-4o", **options)


def tables(_: report.Options) -> Iterator[report.Table]:
    measure(material.of_tokens(SIZES[0][0], seed=0), *SIZES[0])  # loads the vocabulary
    rows = [
        measure(material.of_tokens(size, seed), size, window)
        for seed, (size, window) in enumerate(SIZES, 1)
    ]
    formats = dict.fromkeys(("first", "later, median", "later, slowest"), ".1f")
    yield report.Table("Search: CPU milliseconds", rows, formats)
    grow(material.of_turns(TURNS, seed=0), {"window": 8_192, "recall": True})
    compared = (("recall tool", grow), ("policy recall", grow), ("policy recall", fit))
    rows = [compare(name, window, work) for name, work in compared for window in (8_192, 32_768)]
    title = (
        f"Search in sessions of {TURNS} turns, calls of {CALL_TOKENS:,} tokens: CPU milliseconds"
    )
    formats = dict.fromkeys(("without", "with", "added %", "search %"), ".0f")
    yield report.Table(title, rows, formats)


if __name__ == "__main__":
    report.run(__doc__, tables)
