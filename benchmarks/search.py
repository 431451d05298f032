"""CPU time of `brim.search` in histories of recorded text, trimmed to a window.

    python -m benchmarks.search [--json]

The first search splits the trimmed text; later ones, with other queries, only rank it. The queries
are the first words of user messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import brim
from benchmarks import material, report
from benchmarks.recordings import Message
from benchmarks.worker import measure_time

SIZES = ((20_000, 8_192), (100_000, 8_192), (100_000, 32_768), (1_000_000, 131_072))
"""Tokens of the history and of the window."""
QUERIES = 20
QUERY_CHARS = 100
TOKENS = 2_000


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


def tables(_: report.Options) -> Iterator[report.Table]:
    measure(material.of_tokens(SIZES[0][0], seed=0), *SIZES[0])  # loads the vocabulary
    rows = [
        measure(material.of_tokens(size, seed), size, window)
        for seed, (size, window) in enumerate(SIZES, 1)
    ]
    formats = dict.fromkeys(("first", "later, median", "later, slowest"), ".1f")
    yield report.Table("Search: CPU milliseconds", rows, formats)


if __name__ == "__main__":
    report.run(__doc__, tables)
