"""Input cost of growing sessions with prompt caching, relative to `sliding`.

    python -m benchmarks.cost [FOLDER] [--json]

Totals over all requests after the history first exceeds the budget. `untrimmed` is what the same
requests would cost in an unlimited window.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks import cache, recordings, replay, report
from benchmarks.replay import Pool, Replay, Setting

UNTRIMMED = "untrimmed"
TARGETS = {
    "several tasks, 32k": 0.25,
    "several tasks, 16k": 0.45,
    "one task, 32k": 0.30,
    "one task, 16k": 0.45,
}
"""Maximum cost of `steady` as a share of `sliding`, by Anthropic's rules."""


@dataclass
class Bill:
    """The cost of the requests of one policy."""

    costs: dict[str, float] = field(default_factory=lambda: dict.fromkeys(cache.RULES, 0.0))
    """By rule, in tokens at the full price."""
    requests: int = 0
    trims: int = 0


def bills(replays: Iterable[Replay], pool: Pool) -> dict[str, Bill]:
    """Return the cost of every policy over some sessions."""
    totals = {policy: Bill() for policy in (UNTRIMMED, *replay.POLICIES)}
    for session in replays:
        whole = [session.history[:point] for point in session.points]
        for policy, sent in {UNTRIMMED: whole, **session.sent}.items():
            _add(totals[policy], sent, session.first, pool)
    return totals


def _add(bill: Bill, sent: Sequence[tuple[int, ...]], first: int, pool: Pool) -> None:
    session = to_prompts(sent, pool)
    for rule, price in cache.RULES.items():
        bill.costs[rule] += price(session, first)
    bill.requests += len(session) - first
    bill.trims += cache.trims(session, first)


def to_prompts(sent: Sequence[tuple[int, ...]], pool: Pool) -> list[cache.Prompt]:
    """Return the requests of one session as a cache sees them."""
    return cache.prompts(sent, pool.tokens, [pool.head(request) for request in sent])


def table(setting: Setting, replays: Sequence[Replay], pool: Pool) -> report.Table:
    totals = bills(replays, pool)
    base = totals["sliding"].costs
    rows: list[dict[str, report.Cell]] = []
    for policy, bill in totals.items():
        row: dict[str, report.Cell] = {"policy": policy}
        row |= {rule: bill.costs[rule] / base[rule] for rule in cache.RULES if base[rule]}
        row["trims per 100"] = 100 * bill.trims / bill.requests if bill.requests else None
        target = TARGETS.get(setting.name) if policy == "steady" else None
        row["target"] = f"Anthropic ≤ {target:.2f}" if target else None
        rows.append(row)
    count = totals["sliding"].requests
    rejected = sum(session.rejected for session in replays)
    return report.Table(
        f"Cost: {setting.name} ({len(replays)} conversations, {count:,} requests)",
        rows if count else [],
        dict.fromkeys(cache.RULES, ".3f") | {"trims per 100": ".0f"},
        [f"{rejected} requests omitted: under some policy they do not fit"] if rejected else [],
    )


def tables(recorded: Sequence[recordings.Recording]) -> Iterator[report.Table]:
    pool = Pool()
    for setting in replay.settings(recorded):
        yield table(setting, list(replay.replays(setting, pool)), pool)


if __name__ == "__main__":
    report.run(__doc__, lambda given: tables(recordings.load(given.folder, given.part)))
