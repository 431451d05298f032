"""Records: what is remembered of the last requests. Sizes and reasons, never what was said."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from brim.fitting.plan import Decision
from brim.models.pricing import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from brim.fitting.plan import Changed, DroppedRun, Plan
    from brim.messages import Role

CountSource = Literal["exact", "server", "estimate", "unknown"]
"""How sure the tokens are: brim's own exact count, the server's, or an estimate."""
RequestEnd = Literal[
    "open", "whole", "refused", "failed", "client gone", "upstream broke", "stopped"
]

MAX_DECISIONS: Final = 500_000
"""Of so many messages, all requests together, the decisions are kept."""


_ALL_UNKNOWN: Final[Mapping[str, Any]] = dict.fromkeys(
    (
        *("id", "time", "path", "format", "model", "key", "project", "upstream", "streamed"),
        *("dry_run", "status", "code", "end", "tokens_before", "tokens", "limit", "count", "cut"),
        *("policy", "resent", "fallback", "usage", "cost", "first_byte", "seconds"),
    )
)
"""What there is to know of a request, in the order in which it is told."""
_random: Final = Random()
"""Names of requests are no secrets, and the system's randomness takes a system call."""
_NOTHING: Final[Mapping[str, int]] = {}


class PlanSummary(NamedTuple):
    """A plan without what was said: enough to tell what became of each message."""

    roles: Sequence[Role]
    sizes: Sequence[int]
    """Summed, as the history has them."""
    edits: Mapping[int, Changed]
    drops: Sequence[DroppedRun]
    notes: Sequence[tuple[int, int, str]]
    warnings: Sequence[str]
    window: int
    reply: int
    margin: int

    @classmethod
    def of(cls, plan: Plan) -> PlanSummary:
        history, budget = plan.history, plan.budget
        edits = {at: (edit.outcome, edit.tokens, edit.reason) for at, edit in plan.changes.items()}
        return cls(
            [message.role for message in history.messages[: plan.length]],
            history.token_sums,
            edits,
            plan.dropped_runs,
            [(note.at, note.tokens, note.role) for note in plan.notes] if plan.notes else (),
            plan.warnings,
            budget.window,
            budget.reply,
            budget.margin,
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "budget": {"window": self.window, "reply": self.reply, "margin": self.margin},
            "decisions": [decision.to_dict() for decision in self._decisions()],
            "notes": [{"at": at, "tokens": tokens, "as": role} for at, tokens, role in self.notes],
            "warnings": list(self.warnings),
        }

    def _decisions(self) -> Iterator[Decision]:
        dropped = {
            index: drop.reason
            for drop in self.drops
            for index in range(drop.start, drop.stop)
            if self.roles[index] != "system"
        }
        for index, role in enumerate(self.roles):
            before = self.sizes[index + 1] - self.sizes[index]
            yield Decision.for_message(
                index, role, before, self.edits.get(index), dropped.get(index)
            )


class RequestRecord:
    """One request, from its arrival to what it came to."""

    model: str = ""
    key: str | None = None
    """The name of the key that pays, where keys are asked for."""
    project: str | None = None
    upstream: str | None = None
    streamed: bool = False
    is_dry_run: bool = False
    """Whether the client asked for the plan alone: nothing was to be sent."""
    status: int = 0
    code: str | None = None
    """What went wrong, in the word that the client was told."""
    end: RequestEnd = "open"
    before: int | None = None
    tokens: int | None = None
    limit: int | None = None
    count: CountSource | None = None
    cut: Mapping[str, int] = _NOTHING
    policy: str | None = None
    resent: int = 0
    fallback: str | None = None
    usage: Usage | None = None
    is_usage_counted: bool = False
    """Whether the usage is brim's own count, because the upstream's did not come."""
    cost: Decimal | None = None
    first_byte: float | None = None
    """Seconds until the answer began."""
    seconds: float = 0.0
    plan: Plan | None = None
    """What was decided, until it is sketched."""
    sketch: PlanSummary | None = None

    def __init__(self, path: str, form: str) -> None:
        self.id = f"brim_{_random.getrandbits(96):024x}"
        self.path = path
        self.form = form
        self.time = time.time()
        """When it came, in seconds since 1970."""
        self.begun = time.perf_counter()
        """The same on the clock that durations are taken from."""

    @property
    def cut_in_words(self) -> str:
        if not self.cut:
            return "none"
        return ", ".join(f"{outcome}={number}" for outcome, number in self.cut.items())

    def planned(self, plan: Plan, *, is_known: bool, is_whole: bool) -> None:
        """Take down what was decided.

        Where nobody knows the window there is no limit, and where the server keeps a part of the
        conversation nobody knows its tokens.
        """
        self.before, self.tokens = plan.before, plan.size
        self.limit = plan.limit if is_known else None
        self.count = _count_source(plan) if is_whole else "unknown"
        self.cut = dict(plan.outcome_counts().items()) if plan.is_trimmed else _NOTHING
        self.policy = plan.policy
        self.plan = plan

    def decisions(self) -> dict[str, Any]:
        """What became of each message, as long as that is remembered."""
        if self.plan is not None:
            return {"plan": PlanSummary.of(self.plan).to_dict()}
        return {"plan": None if self.sketch is None else self.sketch.to_dict()}

    def to_dict(self) -> dict[str, Any]:
        """Everything about it but the decisions, ready for JSON."""
        return {**_ALL_UNKNOWN, **self.known()}

    def known(self) -> dict[str, Any]:
        """The same without what is not known."""
        known: dict[str, Any] = {
            "id": self.id,
            "time": self.time,
            "path": self.path,
            "format": self.form,
            "model": self.model,
            "streamed": self.streamed,
            "dry_run": self.is_dry_run,
            "status": self.status,
            "end": self.end,
            "cut": dict(self.cut),
            "resent": self.resent,
            "seconds": self.seconds,
        }
        if self.tokens is not None:
            known["tokens_before"] = self.before
            known["tokens"] = self.tokens
            known["count"] = self.count
            known["policy"] = self.policy
            if self.limit is not None:
                known["limit"] = self.limit
        if self.upstream is not None:
            known["upstream"] = self.upstream
        if self.first_byte is not None:
            known["first_byte"] = self.first_byte
        if self.key is not None:
            known["key"] = self.key
        if self.project is not None:
            known["project"] = self.project
        if self.code is not None:
            known["code"] = self.code
        if self.fallback is not None:
            known["fallback"] = self.fallback
        if (usage := self.usage) is not None:
            known["usage"] = {
                "input": usage.input,
                "cached": usage.cached,
                "written": usage.written,
                "output": usage.output,
                "counted": self.is_usage_counted,
            }
        if self.cost is not None:
            known["cost"] = float(self.cost)
        return known


def _count_source(plan: Plan) -> CountSource:
    if plan.server_tokens is not None:
        return "server"
    return "exact" if plan.exact else "estimate"


class RecentRequests:
    """The last requests by their id, the newest last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._records: OrderedDict[str, RequestRecord] = OrderedDict()
        self._sketched: OrderedDict[str, int] = OrderedDict()
        self._messages = 0

    def add(self, record: RequestRecord) -> None:
        self._records[record.id] = record
        while len(self._records) > self._most:
            self._forget(self._records.popitem(last=False)[1])

    def sketched(self, record: RequestRecord) -> None:
        """Hold the decisions of a request, and let go of the oldest ones that are too many."""
        plan, record.plan = record.plan, None
        if plan is None or record.id not in self._records:
            return
        record.sketch = PlanSummary.of(plan)
        self._messages += plan.length - self._sketched.get(record.id, 0)
        self._sketched[record.id] = plan.length
        while self._messages > MAX_DECISIONS and len(self._sketched) > 1:
            self._forget(self._records[next(iter(self._sketched))])

    def _forget(self, record: RequestRecord) -> None:
        self._messages -= self._sketched.pop(record.id, 0)
        record.sketch = None

    def find(self, id: str) -> RequestRecord | None:
        return self._records.get(id)

    def newest(self, number: int) -> list[RequestRecord]:
        records = list(self._records.values())
        return records[: -number - 1 : -1]
