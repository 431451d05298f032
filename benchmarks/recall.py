"""Future-reference recall: how much of what an agent uses next is still in its request.

    python -m benchmarks.recall [FOLDER] [--json]

At a request whose history H outgrew the budget, with P what was sent and A the next five turns
that the agent really wrote: *wanted* are the entities of A that H holds, except those of the
system prompt and the first user turn; recall is the share of the wanted that P holds. *Far* are
the wanted that none of the newest ten messages of H holds (four in support chats). Entities are
paths, file names, code identifiers, ids, e-mail addresses and numbers of three or more digits.
Sums over all requests, no judge, no model: a lost entity is a risk, not a failure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks import recordings, replay, report, ruler
from benchmarks.replay import Pool, Replay, Setting

NEXT = 5
GAIN = {32_000: 1.0}
"""Points by which `steady` must exceed `sliding`; for other budgets it must not be lower."""

_ENTITY = re.compile(
    r"""
      [\w.+-]+@[\w-]+(?:\.[\w-]+)+          # an e-mail address
    | [\w.~-]*(?:/[\w.-]+)+                 # a path
    | \w[\w-]*(?:\.[A-Za-z_]\w*)+           # a file name, a dotted name
    | \b[A-Za-z]+(?:[_-]\w+)*_\w+           # snake_case
    | \b[A-Za-z]*[a-z][A-Z]\w*              # camelCase
    | \b(?=\w*[A-Za-z])(?=\w*\d)\w{3,}      # letters and digits: an id
    | \b\d{3,}\b                            # a number
    """,
    re.VERBOSE,
)


def entities(text: str) -> frozenset[str]:
    return frozenset(found.strip(".-/") for found in _ENTITY.findall(text))


@dataclass
class Score:
    """Numbers of referenced entities, and of those that were in the request."""

    wanted: int = 0
    found: int = 0
    far: int = 0
    far_found: int = 0

    @property
    def recall(self) -> float | None:
        return 100 * self.found / self.wanted if self.wanted else None

    @property
    def far_recall(self) -> float | None:
        return 100 * self.far_found / self.far if self.far else None


class Reader:
    """The entities of every message in a pool, parsed once."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._read: dict[int, frozenset[str]] = {}

    def __call__(self, number: int) -> frozenset[str]:
        if number not in self._read:
            texts = ruler.texts(self._pool.messages[number])
            self._read[number] = entities("\n".join(texts))
        return self._read[number]


def scores(replays: Iterable[Replay], near: int, pool: Pool) -> dict[str, Score]:
    """Return the recall of every policy over some sessions."""
    totals = {policy: Score() for policy in replay.POLICIES}
    reader = Reader(pool)
    for session in replays:
        for index, wanted, far in _references(session, near, pool, reader):
            for policy, sent in session.sent.items():
                here: set[str] = set().union(*map(reader, sent[index]))
                total = totals[policy]
                total.wanted += len(wanted)
                total.found += len(wanted & here)
                total.far += len(far)
                total.far_found += len(far & here)
    return totals


def _references(
    session: Replay, near: int, pool: Pool, reader: Reader
) -> Iterator[tuple[int, set[str], set[str]]]:
    """Yield for each request the entities that will be used, and those not in recent messages."""
    head = (*range(pool.head(session.history)), pool.first_user(session.history))
    given = set().union(*(reader(session.history[place]) for place in head))
    last: dict[str, int] = {}
    read = 0
    for index, point in enumerate(session.points):
        for place in range(read, point):
            last.update(dict.fromkeys(reader(session.history[place]), place))
        read = point
        if index >= session.first:
            wanted = (_next(session, point, pool, reader) & last.keys()) - given
            yield index, wanted, {entity for entity in wanted if last[entity] < point - near}


def _next(session: Replay, point: int, pool: Pool, reader: Reader) -> set[str]:
    """Return the entities in the agent's next turns."""
    written = (n for n in session.history[point:] if pool.messages[n]["role"] == "assistant")
    return set().union(*(reader(number) for number, _ in zip(written, range(NEXT), strict=False)))


def table(setting: Setting, replays: Sequence[Replay], pool: Pool) -> report.Table:
    totals = scores(replays, setting.near, pool)
    base = totals["sliding"]
    rows: list[dict[str, report.Cell]] = []
    for policy, score in totals.items():
        row: dict[str, report.Cell] = {"policy": policy}
        row |= {"recall %": score.recall, "far recall %": score.far_recall}
        row["against sliding"] = (score.recall or 0) - (base.recall or 0)
        gain = GAIN.get(setting.budget, 0)
        row["target"] = f"recall ≥ {gain:+.0f}" if policy == "steady" else None
        rows.append(row)
    requests = sum(len(session.points) - session.first for session in replays)
    title = f"Recall: {setting.name} ({len(replays)} conversations, {requests:,} requests)"
    formats = {"recall %": ".1f", "far recall %": ".1f", "against sliding": "+.1f"}
    notes = [f"{base.wanted:,} entities referenced, {base.far:,} of them far"]
    return report.Table(title, rows if base.wanted else [], formats, notes)


def tables(recorded: Sequence[recordings.Recording]) -> Iterator[report.Table]:
    pool = Pool()
    for setting in replay.settings(recorded):
        yield table(setting, list(replay.replays(setting, pool)), pool)


if __name__ == "__main__":
    report.run(__doc__, lambda given: tables(recordings.load(given.folder)))
