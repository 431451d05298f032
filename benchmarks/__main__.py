"""Run all benchmarks of brim."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import (
    comparison,
    cost,
    gateway,
    quality,
    recall,
    recordings,
    replay,
    report,
    search,
    shell,
    speed,
)


def tables(given: report.Options) -> Iterator[report.Table]:
    recorded = recordings.load(given.folder)
    yield from quality.tables(recorded)
    yield from comparison.tables(given)
    pool = replay.Pool()
    for setting in replay.settings(recordings.select(recorded, given.part)):
        replays = list(replay.replays(setting, pool))
        yield cost.table(setting, replays, pool)
        yield recall.table(setting, replays, pool)
    yield from speed.tables(given)
    yield from search.tables(given)
    yield from shell.tables(given)
    yield from gateway.tables(given)


if __name__ == "__main__":
    report.run(__doc__, tables)
