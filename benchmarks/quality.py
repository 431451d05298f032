"""Whether every fitted conversation fits, is valid, and uses its budget.

    python -m benchmarks.quality [FOLDER] [--json]

Each conversation is fitted to 2k, 4k and 8k tokens where it is longer than that: as it ended, and
for some fifty also at each of their request points. Every fit starts from nothing; a last table
says whether sessions, and calls that remember earlier ones, send the same. *Feasible* means that
system text, last user turn and open step fit unclipped. *Good* means within the budget by an
independent count, every result after its call and every call answered, and system text, last user
turn and last message as they were. What is not feasible is *handled* where brim raises its error,
or clips the open step and the rest is right.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import brim
from benchmarks import limited, recordings, report, ruler, validity
from benchmarks.recordings import Message, Recording, request_points

POLICIES = ("steady", "thrift", "rolling", "sliding")
BUDGETS = (2_000, 4_000, 8_000)
SAMPLE = 50
FILL = {"steady": 0.85, "rolling": 0.95, "sliding": 0.90}
"""Minimum average share of the budget that a policy's requests use."""


@dataclass(frozen=True)
class Verdict:
    """The result of fitting one history."""

    feasible: bool
    raised: bool
    faults: tuple[str, ...] = ()
    fill: float = 0.0
    user_first: bool = True
    users_met: bool = False
    assistants_met: bool = False
    agrees: bool = True
    """Whether the plan reports the same number as the independent count."""

    @property
    def handled(self) -> bool:
        """Whether the result is good, or the best possible if the open step had to be clipped."""
        if self.raised:
            return not self.feasible
        return not self.faults or (not self.feasible and set(self.faults) == {CLIPPED})


CLIPPED = "last message changed"


def judge(messages: Sequence[Message], limit: int, policy: str) -> Verdict:
    """Fit a history that exceeds the limit and check the result."""
    feasible = ruler.request_tokens(validity.hard_parts(messages)) <= limit
    limited.forget()
    try:
        request = limited.fit(messages, limit, policy)
    except brim.ContextOverflowError:
        return Verdict(feasible, raised=True, faults=("refused",) if feasible else ())
    fitted = list(request.messages)
    size = ruler.request_tokens(fitted)
    faults = ["over budget"] if size > limit else []
    faults += validity.call_faults(fitted) + validity.kept_faults(fitted, messages)
    return Verdict(
        feasible,
        False,
        tuple(faults),
        size / limit,
        validity.user_first(fitted) or not any(m["role"] == "user" for m in messages),
        validity.has_new_neighbors(fitted, messages, "user"),
        validity.has_new_neighbors(fitted, messages, "assistant"),
        size == request.plan.tokens,
    )


@dataclass
class Tally:
    """The verdicts for one policy and one budget."""

    verdicts: list[Verdict] = field(default_factory=list)

    def row(self, policy: str, budget: str) -> dict[str, report.Cell]:
        feasible = [verdict for verdict in self.verdicts if verdict.feasible]
        sent = [verdict for verdict in feasible if not verdict.raised]
        hopeless = [verdict for verdict in self.verdicts if not verdict.feasible]
        return {
            "policy": policy,
            "budget": budget,
            "over %": _percent("over budget" in verdict.faults for verdict in self.verdicts),
            "feasible": len(feasible),
            "good %": _percent(not verdict.faults for verdict in feasible),
            "user first %": _percent(verdict.user_first for verdict in sent),
            "users met %": _percent(verdict.users_met for verdict in sent),
            "assistants met %": _percent(verdict.assistants_met for verdict in sent),
            "fill": sum(v.fill for v in sent) / len(sent) if sent else None,
            "infeasible": len(hopeless),
            "handled %": _percent(verdict.handled for verdict in hopeless),
            "plan agrees %": _percent(v.agrees for v in self.verdicts if not v.raised),
        }

    @property
    def faults(self) -> Counter[str]:
        return Counter(
            fault for verdict in self.verdicts for fault in verdict.faults if verdict.feasible
        )


def _percent(truths: Iterable[bool]) -> float | None:
    known = list(truths)
    return 100 * sum(known) / len(known) if known else None


def ends(recorded: Iterable[Recording]) -> Iterator[Sequence[Message]]:
    """Yield every complete conversation."""
    return (recording.messages for recording in recorded)


def sample(recorded: Sequence[Recording]) -> Sequence[Recording]:
    """Return about fifty conversations, evenly spaced."""
    return recorded[:: max(1, len(recorded) // SAMPLE)]


def points(recorded: Iterable[Recording]) -> Iterator[Sequence[Message]]:
    """Yield the history of conversations at each of their requests."""
    for recording in recorded:
        for point in request_points(recording.messages):
            yield recording.messages[:point]


def tally(histories: Iterable[Sequence[Message]]) -> dict[tuple[str, int], Tally]:
    """Fit each history to every budget that it exceeds, with every policy."""
    tallies = {(policy, budget): Tally() for policy in POLICIES for budget in BUDGETS}
    for messages in histories:
        size = ruler.request_tokens(messages)
        for (policy, budget), found in tallies.items():
            if size > budget:
                found.verdicts.append(judge(messages, budget, policy))
    return tallies


def table(title: str, tallies: dict[tuple[str, int], Tally]) -> report.Table:
    rows: list[dict[str, report.Cell]] = []
    faults: list[str] = []
    for policy in POLICIES:
        own = {budget: found for (name, budget), found in tallies.items() if name == policy}
        rows += [found.row(policy, f"{budget:,}") for budget, found in own.items()]
        whole = Tally([verdict for found in own.values() for verdict in found.verdicts])
        target = FILL.get(policy)
        rows.append(whole.row(policy, "all") | {"target": f"fill ≥ {target}" if target else None})
        faults += [f"{policy}: {fault} in {count}" for fault, count in whole.faults.items()]
    rows = [row | {"target": row.get("target")} for row in rows]
    formats = {name: ".1f" for name in rows[0] if name.endswith("%")} | {"fill": ".3f"}
    return report.Table(title, rows, formats, faults or ["no fault in what is feasible"])


def agreement(recorded: Sequence[Recording]) -> report.Table:
    """Compare a session and cached stateless calls with calls without a cache."""
    found: dict[tuple[str, int], list[tuple[bool, bool]]] = defaultdict(list)
    for recording in recorded:
        for budget in BUDGETS:
            for policy, outcome in _compare(recording.messages, budget):
                found[policy, budget].append(outcome)
    rows: list[dict[str, report.Cell]] = [
        {
            "policy": policy,
            "budget": f"{budget:,}",
            "requests": len(outcomes),
            "session %": _percent(session for session, _ in outcomes),
            "cached %": _percent(cached for _, cached in outcomes),
        }
        for (policy, budget), outcomes in sorted(found.items())
    ]
    formats = {"session %": ".1f", "cached %": ".1f"}
    notes = ["cached: all policies in turn at each request, so that shared entries would show"]
    return report.Table("Quality: equal to a call without a cache", rows, formats, notes)


def _compare(messages: list[Message], budget: int) -> Iterator[tuple[str, tuple[bool, bool]]]:
    points = request_points(messages)
    cached = [
        [_list_sent(partial(limited.fit, messages[:point], budget, policy)) for policy in POLICIES]
        for point in points
    ]
    for place, policy in enumerate(POLICIES):
        session = limited.session(budget, policy)
        for start, point, row in zip([0, *points], points, cached, strict=False):
            for message in messages[start:point]:
                session.append(message)
            limited.forget()
            fresh = _list_sent(partial(limited.fit, messages[:point], budget, policy))
            yield policy, (_list_sent(session.request) == fresh, row[place] == fresh)


def _list_sent(ask: Callable[[], brim.Request]) -> list[Message] | None:
    """Return the messages of a request; None if it does not fit."""
    try:
        return list(ask().messages)
    except brim.ContextOverflowError:
        return None


def tables(recorded: Sequence[Recording]) -> Iterator[report.Table]:
    some = sample(recorded)
    yield table(f"Quality: {len(recorded)} complete conversations", tally(ends(recorded)))
    yield table(f"Quality: {len(some)} conversations at every request", tally(points(some)))
    yield agreement(some)


if __name__ == "__main__":
    report.run(__doc__, lambda given: tables(recordings.load(given.folder)))
