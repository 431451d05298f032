"""Records of recent requests: sizes, decisions, reasons and traces, never message content."""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from random import Random
from typing import Any, Final, Literal, NamedTuple, get_args

from brim.fitting.history import CountedMessages
from brim.fitting.plan import Plan
from brim.messages import Message, Role
from brim.models.pricing import Usage

CountSource = Literal["exact", "server", "estimate", "unknown"]
"""Who counted the tokens: brim exactly, the server, or brim by an estimate."""
RequestEnd = Literal[
    "open",
    "completed",
    "rejected",
    "failed",
    "client_disconnected",
    "upstream_failed",
    "stopped",
]

MAX_DECISIONS: Final = 500_000
"""Messages of all requests together whose decisions are kept."""


_FIELDS: Final = (
    *("id", "time", "path", "format", "model", "alias", "key", "project", "upstream"),
    *("streamed", "dry_run", "status", "code", "end", "tokens_before", "tokens", "limit"),
    *("count", "trimmed", "policy", "resent", "attempts", "fallback", "usage", "cost"),
    *("first_byte", "seconds"),
)
"""All fields of a request, in the order in which they are listed."""
_random: Final = Random()
"""Request ids are not secrets, and the random source of the system needs a system call."""
_NOT_TRIMMED: Final[Mapping[str, int]] = {}
_BARE_MESSAGES: Final = {role: Message(role) for role in get_args(Role)}


def strip_content(plan: Plan) -> Plan:
    """Return a plan without message content: enough to explain the decision for each message."""
    messages = [_BARE_MESSAGES[message.role] for message in plan.history.messages[: plan.length]]
    # All fields by position: `replace` takes 5 % of a small request (`benchmarks.gateway`).
    return Plan(
        CountedMessages(messages, plan.history.token_sums, [], []),
        *(plan.length, plan.budget, plan.policy, plan.before, plan.tokens, plan.exact, ()),
        {at: replace(each, message=messages[at]) for at, each in plan.changes.items()},
        plan.dropped_runs,
        [replace(note, text="") for note in plan.notes],
        plan.warnings,
        *(plan.trim_id, plan.trim_end, plan.server_tokens, plan.calibrated_tokens),
    )


class RequestRecord:
    """One request, from its arrival to its actual cost."""

    model: str = ""
    alias: str | None = None
    """The name in the request, if it stands for the model."""
    key: str | None = None
    """Name of the key that pays; None if no keys are required."""
    project: str | None = None
    upstream: str | None = None
    streamed: bool = False
    dry_run: bool = False
    """Whether the client requested only the plan, so that nothing is sent."""
    status: int = 0
    code: str | None = None
    """The error code of the response."""
    end: RequestEnd = "open"
    tokens_before: int | None = None
    tokens: int | None = None
    limit: int | None = None
    count: CountSource | None = None
    trimmed: Mapping[str, int] = _NOT_TRIMMED
    policy: str | None = None
    resent: int = 0
    attempts: int = 0
    """How many routes were tried."""
    fallback: str | None = None
    retrieve_id: str | None = None
    """The id of what it dropped, if that is kept."""
    usage: Usage | None = None
    is_usage_estimated: bool = False
    """Whether brim counted the usage, because the upstream did not report it."""
    cost: Decimal | None = None
    first_byte: float | None = None
    """Seconds until the response began."""
    seconds: float = 0.0
    trace: TraceContext | None = None
    """Its place in a trace; None if requests are not traced."""
    plan: Plan | None = None
    """The plan; without message content once the request has ended."""

    def __init__(self, path: str, format: str) -> None:
        self.problems: list[tuple[str, str, str]] = []
        """Upstream, model and problem of each attempt that did not lead to an answer."""
        self.path = path
        self.format = format
        self.time = time.time()
        """When it arrived, in seconds since 1970."""
        # The time comes first, so that rows written together are neighbors in an index of ids: a
        # third of the time of settling, and less to write (`benchmarks.gateway`).
        self.id = f"brim_{int(1_000 * self.time):012x}{_random.getrandbits(48):012x}"
        self.started = time.perf_counter()
        """The same on the clock that measures durations."""

    def set_plan(self, plan: Plan, *, is_window_known: bool, is_whole: bool) -> None:
        """Record the decisions.

        If the window is unknown there is no limit. If the server keeps a part of the conversation,
        its tokens are unknown.
        """
        self.tokens_before, self.tokens = plan.before, plan.size
        self.limit = plan.limit if is_window_known else None
        self.count = "exact" if plan.exact else "estimate"
        if not is_whole:
            self.count = "unknown"
        elif plan.is_server_counted:
            self.count = "server"
        self.trimmed = dict(plan.outcome_counts().items()) if plan.is_trimmed else _NOT_TRIMMED
        self.policy = plan.policy
        self.plan = plan

    def decisions(self) -> dict[str, Any]:
        """Return the decision for each message, as long as it is kept."""
        if (plan := self.plan) is None:
            return {"plan": None}
        window, reply, margin = plan.budget.window, plan.budget.reply, plan.budget.margin
        shown = {
            "budget": {"window": window, "reply": reply, "margin": margin},
            "decisions": [decision.to_dict() for decision in plan.decisions],
            "notes": [
                {"at": each.at, "tokens": each.tokens, "as": each.role} for each in plan.notes
            ],
            "warnings": list(plan.warnings),
        }
        return {"plan": shown}

    def to_dict(self) -> dict[str, Any]:
        """Return all fields except the decisions, as JSON values."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in _FIELDS}
        if (usage := self.usage) is not None:
            fields["usage"] = {
                "input": usage.input,
                "cached": usage.cached,
                "written": usage.written,
                "output": usage.output,
                "estimated": self.is_usage_estimated,
            }
        if self.cost is not None:
            fields["cost"] = float(self.cost)
        return fields


class RecentRequests:
    """The most recent requests by id, the newest last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._records: OrderedDict[str, RequestRecord] = OrderedDict()
        self._decisions: OrderedDict[str, int] = OrderedDict()
        self._messages = 0

    def add(self, record: RequestRecord) -> None:
        self._records[record.id] = record
        while len(self._records) > self._most:
            self._forget(self._records.popitem(last=False)[1])

    def summarize_plan(self, record: RequestRecord) -> None:
        """Keep the decisions of a request, and drop the oldest ones above the limit."""
        plan, record.plan = record.plan, None
        if plan is None or record.id not in self._records:
            return
        record.plan = strip_content(plan)
        self._messages += plan.length - self._decisions.get(record.id, 0)
        self._decisions[record.id] = plan.length
        while self._messages > MAX_DECISIONS and len(self._decisions) > 1:
            self._forget(self._records[next(iter(self._decisions))])

    def _forget(self, record: RequestRecord) -> None:
        self._messages -= self._decisions.pop(record.id, 0)
        record.plan = None

    def find(self, id: str) -> RequestRecord | None:
        return self._records.get(id)

    def newest(self, number: int) -> list[RequestRecord]:
        records = list(self._records.values())
        return records[: -number - 1 : -1]


# Traces

TRACEPARENT: Final = b"traceparent"
_HEADER: Final = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)
_SAMPLED: Final = 1


class TraceContext(NamedTuple):
    """The trace that a request belongs to, its own span, and the client's."""

    trace_id: int
    span_id: int
    parent_id: int | None = None
    is_sampled: bool = True

    @classmethod
    def of(cls, header: bytes | None) -> TraceContext:
        """Return a new span in the client's trace, or in a new one if the header is invalid."""
        found = None if header is None else _HEADER.fullmatch(header.strip())
        span_id = _random.getrandbits(64) or 1
        if found is None:
            return cls(_random.getrandbits(128) or 1, span_id)
        is_sampled = bool(int(found[3], 16) & _SAMPLED)
        return cls(int(found[1], 16), span_id, int(found[2], 16), is_sampled)

    def header(self) -> bytes:
        """Return the header for a request to an upstream."""
        return b"00-%032x-%016x-%02x" % (self.trace_id, self.span_id, self.is_sampled)
