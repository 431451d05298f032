"""Plan, Decision and Request: what is sent, and why.

A plan is data. It stores the changed messages and the dropped runs with their token counts; the
decision about each message is computed when it is read.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, zip_longest
from typing import Any, Literal, NamedTuple, cast

from brim.errors import ContextOverflowError, InputError
from brim.fitting.budget import Budget
from brim.fitting.history import CountedMessages
from brim.fitting.picture import Segment, join_segments, render_html, render_line
from brim.fitting.search import Source, read_texts
from brim.messages import Message, Role
from brim.wire.notes import ID_DIGITS, Note, find_id
from brim.wire.openai_chat import find_origins

Outcome = Literal["kept", "clipped", "masked", "summarized", "dropped", "skipped"]
"""`skipped` is for empty replies of a session, which are never sent."""
OUTCOMES: tuple[Outcome, ...] = ("clipped", "masked", "summarized", "dropped")
"""The outcomes of trimmed messages."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to one message of the history."""

    index: int
    """The position of the message in the history."""
    role: Role
    outcome: Outcome
    before: int
    """Tokens of the message in the history."""
    after: int
    """Tokens of the message as it is sent; 0 if it is dropped."""
    reason: str

    def to_dict(self) -> dict[str, object]:
        """Return the decision as JSON data."""
        return {
            "index": self.index,
            "role": self.role,
            "outcome": self.outcome,
            "before": self.before,
            "after": self.after,
            "reason": self.reason,
        }

    def __str__(self) -> str:
        size = f"{self.before:,} tokens"
        if self.outcome != "dropped" and self.after != self.before:
            size = f"{self.before:,} to {self.after:,} tokens"
        return f"{self.outcome} message {self.index} ({self.role}, {size}): {self.reason}"


@dataclass(frozen=True, slots=True)
class ChangedMessage:
    """A message that is sent in another form."""

    message: Message
    tokens: int
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class DroppedRun:
    """Consecutive messages that are not sent; system messages between them are."""

    start: int
    stop: int
    reason: str


class TextCount(int):
    """A request's tokens if the server counts only texts: its structure is estimated."""

    margin: int
    """Tokens by which the count may be too low."""

    def __new__(cls, tokens: int, margin: int) -> TextCount:
        count = super().__new__(cls, tokens)
        count.margin = margin
        return count

    def __reduce__(self) -> tuple[object, ...]:
        return TextCount, (int(self), self.margin)


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """What is sent of a history, and why the rest is not. All indices are history indices."""

    history: CountedMessages
    length: int
    """Number of messages planned. The history may have grown since."""
    budget: Budget
    policy: str
    before: int
    """Tokens of the whole history: messages, tools and framing."""
    tokens: int
    """Tokens of what is sent, as counted by brim."""
    exact: bool
    """Whether `tokens` is exact for this model; otherwise it is an estimate."""
    sent_indices: Sequence[int]
    """The messages that are sent, in order."""
    changes: Mapping[int, ChangedMessage]
    dropped_runs: Sequence[DroppedRun]
    notes: Sequence[Note]
    warnings: Sequence[str]
    trim_id: int | None = None
    """Plans with the same ID send the same messages up to the last trim. 0 means that nothing was
    trimmed, None that every plan is trimmed independently."""
    trim_end: int | None = None
    """The index of the last message before the last trim; None if there was none."""
    server_tokens: int | None = None
    """Tokens of what is sent, as counted by the server; None if it was not asked."""
    calibrated_tokens: int | None = None
    """Tokens estimated from the usage of the previous request and the messages since; None if
    that usage is unknown."""

    @property
    def limit(self) -> int:
        """The most tokens that may be sent; without a margin if the server counted them."""
        if self.server_tokens is not None:
            return max(0, self.budget.room - self.server_margin)
        return self.budget.limit if self.calibrated_tokens is None else self.budget.room

    @property
    def server_margin(self) -> int:
        """Tokens by which `server_tokens` may be too low: 0 unless only texts were counted."""
        return self.server_tokens.margin if isinstance(self.server_tokens, TextCount) else 0

    @property
    def is_server_counted(self) -> bool:
        """Whether the server counted the request as a whole."""
        return self.server_tokens is not None and not isinstance(self.server_tokens, TextCount)

    @property
    def size(self) -> int:
        """The best known token count of what is sent."""
        if self.server_tokens is not None:
            return self.server_tokens
        return self.tokens if self.calibrated_tokens is None else self.calibrated_tokens

    def scale(self, tokens: int) -> int:
        """Return a number of brim's count in proportion to the best known size."""
        return round(tokens * self.size / self.tokens) if self.tokens else tokens

    @property
    def size_before(self) -> int:
        """The best known token count of the whole history."""
        return self.scale(self.before)

    @property
    def reply_room(self) -> int:
        """Tokens of the window that remain for the reply; a count by the server needs no margin."""
        margin = self.budget.margin if self.server_tokens is None else self.server_margin
        return self.budget.window - self.size - margin

    @property
    def fits(self) -> bool:
        return self.size <= self.limit

    @property
    def is_trimmed(self) -> bool:
        """Whether any message is dropped or sent changed."""
        return bool(self.changes or self.dropped_runs)

    @property
    def changed_messages(self) -> dict[int, Message]:
        """The messages that are sent in another form, including those that a note ends."""
        changed = {index: change.message for index, change in self.changes.items()}
        for note in self.notes:
            if note.role == "paragraph":
                message = changed.get(note.at, self.history.messages[note.at])
                changed[note.at] = message.with_paragraph(note.text)
        return changed

    @property
    def sent(self) -> Iterator[Message]:
        """The messages that are sent, in their original form."""
        return map(self.history.messages.__getitem__, self.sent_indices)

    @property
    def sent_messages(self) -> list[Message]:
        """The messages in the form in which they are sent, with the notes."""
        changed, messages = self.changed_messages, self.history.messages
        sent = [changed.get(index, messages[index]) for index in self.sent_indices]
        notes = (
            Message(note.role, words=(note.text,))
            for note in self.notes
            if note.role != "paragraph"
        )
        return [*sent, *notes]

    @property
    def decisions(self) -> list[Decision]:
        """One decision for each message. Their savings minus the notes equal the plan's."""
        return [self._decide(index) for index in range(self.length)]

    @property
    def dropped(self) -> list[Decision]:
        """The decisions about messages that are not sent."""
        runs = self.dropped_runs
        indices = (index for run in runs for index in range(run.start, run.stop))
        decisions = map(self._decide, indices)
        return [decision for decision in decisions if decision.outcome == "dropped"]

    @property
    def clipped(self) -> list[Decision]:
        """The decisions about messages that are sent without a part of their text."""
        decisions = map(self._decide, sorted(self.changes))
        return [decision for decision in decisions if decision.outcome == "clipped"]

    def _decide(self, index: int) -> Decision:
        message, before = self.history.messages[index], self.history.tokens(index)
        role = message.role
        if message.skipped:
            return Decision(index, role, "skipped", 0, 0, "empty reply")
        if (change := self.changes.get(index)) is not None:
            return Decision(index, role, change.outcome, before, change.tokens, change.reason)
        if (run := self._find_run(index)) is not None:
            return Decision(index, role, "dropped", before, 0, run.reason)
        return Decision(index, role, "kept", before, before, "needed no change")

    def _find_run(self, index: int) -> DroppedRun | None:
        if self.history.messages[index].role == "system":
            return None
        place = bisect_right(self.dropped_runs, index, key=lambda run: run.start) - 1
        if place >= 0 and index < self.dropped_runs[place].stop:
            return self.dropped_runs[place]
        return None

    def outcome_counts(self) -> dict[Outcome, int]:
        """Return the number of trimmed messages by outcome."""
        if not self.is_trimmed:
            return {}
        counts: Tally[Outcome] = Tally(change.outcome for change in self.changes.values())
        for run in self.dropped_runs:
            counts["dropped"] += self.history.count_turns(run.start, run.stop)
        return {outcome: counts[outcome] for outcome in OUTCOMES if counts[outcome]}

    def __str__(self) -> str:
        about = "" if self.exact or self.is_server_counted else "about "
        counts = self.outcome_counts().items()
        outcomes = ", ".join(f"{outcome} {number:,}" for outcome, number in counts)
        over = "" if self.fits else " (does not fit)"
        size = f"{about}{self.size:,} of {self.limit:,} tokens{over}"
        return f"{size}; {outcomes or 'nothing trimmed'}"

    def __repr__(self) -> str:
        return f"Plan({self})"

    def _segments(self) -> list[Segment]:
        """Return the history by outcome, in order."""
        return join_segments(
            Segment(decision.outcome, decision.before, decision.reason)
            for decision in self.decisions
            if decision.before
        )

    def _repr_html_(self) -> str:
        """Return a picture of the plan for a notebook."""
        reply = min(self.budget.reply, self.budget.window)
        free = max(0, self.budget.window - self.size - reply)
        window = [Segment("kept", self.size), Segment("free", free), Segment("reply", reply)]
        return render_html(str(self), self._segments(), window)

    def __rich__(self) -> str:
        """Return the text that rich prints: the plan in one line, and the history by outcome."""
        return f"{self}\n{render_line(self._segments())}"

    def to_dict(self) -> dict[str, object]:
        """Return the whole plan as JSON data."""
        return {
            "policy": self.policy,
            "before": self.before,
            "tokens": self.tokens,
            "limit": self.limit,
            "fits": self.fits,
            "exact": self.exact,
            "server_tokens": self.server_tokens,
            "budget": {
                "window": self.budget.window,
                "reply": self.budget.reply,
                "margin": self.budget.margin,
            },
            "summary": str(self),
            "decisions": [decision.to_dict() for decision in self.decisions],
            "notes": [
                {"text": note.text, "tokens": note.tokens, "at": note.at, "as": note.role}
                for note in self.notes
            ],
            "warnings": list(self.warnings),
        }

    def to_json(self) -> str:
        """Return the whole plan as JSON text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)


def get_overflow_plan(error: ContextOverflowError) -> Plan:
    """Return the plan of the smallest request, which does not fit."""
    return cast(Plan, error.plan)


class OutgoingMessage(NamedTuple):
    """A message that is sent, and where it comes from."""

    origin: int | None
    """The index of the input message; None for a note and a session's system prompt."""
    message: Any
    changed: bool
    """Whether it differs from the input message; a note has none, so it does."""


class Request(dict[str, Any]):
    """The arguments of a client's call, e.g. `client.chat.completions.create(**request)`."""

    def __init__(
        self,
        body: Mapping[str, object],
        plan: Plan,
        messages_key: str = "messages",
        origins: Sequence[tuple[int | None, bool]] | None = None,
    ) -> None:
        super().__init__(body)
        self._messages_key = messages_key
        self._origins = origins
        """The input index of each message and whether it changed; None: as the plan says."""
        self.plan = plan
        """What is sent of the history, and why."""

    @property
    def messages(self) -> list[dict[str, object]]:
        """The messages that are sent; empty if the server stores the whole conversation."""
        messages: list[dict[str, object]] = self.get(self._messages_key, [])
        return messages

    @property
    def outgoing(self) -> Iterator[OutgoingMessage]:
        """The messages that are sent, each with the index of the input message it comes from."""
        origins: Iterable[tuple[int | None, bool]] | None = self._origins
        if origins is None and self.plan.is_trimmed:
            origins = compare_chat_messages(self.plan)
        if origins is None:
            origins = ((index, False) for index in range(len(self.messages)))
        elif self._origins == () != tuple(self.messages):
            raise InputError(
                "The messages were converted to another format, so they have no origins in the "
                "session. Use its history and plan.decisions."
            )
        for (origin, changed), message in zip(origins, self.messages, strict=True):
            yield OutgoingMessage(origin, message, changed)

    def __reduce__(self) -> tuple[object, ...]:
        return Request, (dict(self), self.plan, self._messages_key, self._origins)

    def __repr__(self) -> str:
        return f"Request({', '.join(self)}; {self.plan})"


def compare_chat_messages(plan: Plan) -> list[tuple[int | None, bool]]:
    """Return for each chat message of a plan its index in the history, and whether it changed."""
    changes, seen = plan.changed_messages, plan.history.messages
    return [
        (index, index is None or index in changes or seen[index].private)
        for index in find_origins(plan)
    ]


def compute_id(messages: Iterable[Message]) -> str:
    """Return an id of messages for notes: digits, the same for the same content."""
    digest = blake2b(digest_size=8)
    for message in messages:
        digest.update(
            "\0".join((message.role, *read_texts(message), "\1")).encode("utf-8", "replace")
        )
    return f"{int.from_bytes(digest.digest()) % 10**ID_DIGITS:0{ID_DIGITS}}"


def find_plan_id(plan: Plan) -> str:
    """Return the id of what a plan trimmed: that in its notes, or that of its messages."""
    noted = find_id(note.text for note in plan.notes)
    return noted or compute_id(plan.history.messages[: plan.length])


def find_trimmed_texts(plan: Plan) -> Iterator[Source]:
    """Yield the texts of a plan that are not sent, or not completely, in history order."""
    runs = (range(run.start, run.stop) for run in plan.dropped_runs)
    messages, changes = plan.history.messages, plan.changes
    for index in sorted({*chain.from_iterable(runs), *changes}):
        message, visible = messages[index], ""
        if message.role == "system" or message.skipped:
            continue
        texts: Iterable[str]
        if index in changes:
            sent = changes[index].message.clippable
            visible = "\n".join(sent)
            changed = zip_longest(message.clippable, sent)
            texts = (old for old, new in changed if old and old != new)
        else:
            texts = read_texts(message)
        for text in texts:
            yield Source(index, message.role, text, visible)


def count_since_trim(plan: Plan) -> int | None:
    """Return how many messages are sent that came after the last trim; None without a trim.

    All messages before them stay the same until the next trim: there the cacheable prefix ends.
    """
    last = plan.trim_end
    return None if last is None else sum(1 for index in plan.sent_indices if index > last)
