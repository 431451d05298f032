"""Low-water marks of `steady`: recall against the bill, for marks from 60 to 95 % of the limit.

    python -m benchmarks.marks [FOLDER] [--part chosen] [--json]

Each cell is the share of the needed entities (or spans) that the requests still contain, in %, and
in parentheses the bill relative to `sliding`, both as in `benchmarks.recall`. `many tasks` chains
12 to 40 tasks. Progress is printed to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from benchmarks import recall, recordings, replay, report
from benchmarks.replay import Pool, Setting

MARKS = (60, 70, 75, 80, 85, 90, 95)
"""In % of the limit."""
POLICIES: replay.Policies = {
    "sliding": ("sliding", None),
    "default": ("steady", None),
    **{f"{mark} %": ("steady", mark / 100) for mark in MARKS},
}


def settings(recorded: Sequence[recordings.Recording]) -> list[Setting]:
    """Return the rows: those of `recall`, smaller limits, and sessions of many tasks."""
    coding = [recording for recording in recorded if not recording.chat]
    many = recordings.sessions(recorded, most=40, least=12)
    rows = [
        *replay.settings(recorded),
        Setting("one task, 4k", 4_000, coding),
        Setting("many tasks, 128k", 128_000, many),
    ]
    return sorted(rows, key=lambda row: row.budget)


def tables(recorded: Sequence[recordings.Recording]) -> Iterator[report.Table]:
    entities: list[dict[str, report.Cell]] = []
    spans: list[dict[str, report.Cell]] = []
    pool = Pool()
    for setting in settings(recorded):
        print(f"{setting.name} …", file=sys.stderr, flush=True)
        replays = replay.replays(setting, pool, POLICIES)
        found = recall.totals(replays, setting.near, pool, controls=False)
        if found:
            entities.append({"sessions": setting.name, **_show(found, "entities")})
            spans.append({"sessions": setting.name, **_show(found, "spans")})
    yield report.Table("Low-water marks: needed entities in % (bill)", entities)
    yield report.Table("Low-water marks: needed spans in % (bill)", spans)


def _show(found: dict[str, recall.Total], kind: str) -> dict[str, report.Cell]:
    base = found["sliding"].bill
    cells: dict[str, report.Cell] = {}
    for policy, total in found.items():
        share = getattr(total, kind).recall
        bill = f"{total.bill / base:.2f}".removeprefix("0")
        cells[policy] = None if share is None else f"{share:.1f} ({bill})"
    return cells


if __name__ == "__main__":
    report.run(__doc__, lambda given: tables(recordings.load(given.folder, given.part)))
