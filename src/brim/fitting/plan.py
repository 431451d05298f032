"""Plan and Decision: what is to be sent, and why.

A plan is data. It stores what was changed and the runs that were dropped, with their sums; the
decision about each message is made out when somebody reads it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter as Tally
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from brim.fitting.budget import Budget
    from brim.fitting.history import History
    from brim.messages import Message, Role

Outcome = Literal["kept", "clipped", "masked", "summarized", "dropped"]
Changed = tuple[Outcome, int, str]
"""What became of a message that goes out changed: its fate, its tokens, and why."""
OUTCOMES: tuple[Outcome, ...] = ("clipped", "masked", "summarized", "dropped")


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to one message."""

    index: int
    role: Role
    fate: Outcome
    before: int
    after: int
    reason: str

    @classmethod
    def on(
        cls, index: int, role: Role, before: int, edit: Changed | None, dropped: str | None
    ) -> Decision:
        """The decision on a message: its edit, else why it was dropped, else nothing happens."""
        if edit is not None:
            fate, after, reason = edit
            return cls(index, role, fate, before, after, reason)
        if dropped is not None:
            return cls(index, role, "dropped", before, 0, dropped)
        return cls(index, role, "kept", before, before, "needed no change")

    def to_dict(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "role": self.role,
            "fate": self.fate,
            "before": self.before,
            "after": self.after,
            "reason": self.reason,
        }

    def __str__(self) -> str:
        size = f"{self.before:,} tokens"
        if self.fate != "dropped" and self.after != self.before:
            size = f"{self.before:,} to {self.after:,} tokens"
        return f"{self.fate} message {self.index} ({self.role}, {size}): {self.reason}"


@dataclass(frozen=True, slots=True)
class ChangedMessage:
    """A message that goes out changed."""

    message: Message
    tokens: int
    fate: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class DroppedRun:
    """A run of messages that does not go out; system turns within it do."""

    start: int
    stop: int
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """What the reader of the request is told about a gap."""

    text: str
    tokens: int
    at: int
    """The message that it stands before as a turn, or closes as a paragraph."""
    role: Literal["user", "assistant", "paragraph"]


class Plan(NamedTuple):
    """What is sent of a history, and why the rest is not."""

    history: History
    length: int
    """How many messages came in. The history may have grown since."""
    budget: Budget
    policy: str
    before: int
    """Tokens of what came in: messages, tools and framing."""
    tokens: int
    """Tokens of what goes out."""
    exact: bool
    kept: Sequence[int]
    """The messages that go out, in order."""
    edits: Mapping[int, ChangedMessage]
    drops: Sequence[DroppedRun]
    notes: Sequence[Note]
    warnings: Sequence[str]
    edition: int | None = None
    """Plans of one edition begin alike: 0 for all that was said, None where each is cut anew."""
    counted: int | None = None
    """What the server itself counted of what goes out, where it was asked."""
    based: int | None = None
    """What it takes by what the server reported of the request before, and what came since."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return id(self)

    @property
    def limit(self) -> int:
        """What may be sent: less a margin, but for what the server itself has counted."""
        is_measured = self.counted is not None or self.based is not None
        return self.budget.room if is_measured else self.budget.limit

    @property
    def size(self) -> int:
        """Tokens of what goes out: the server's own count, else brim's."""
        if self.counted is not None:
            return self.counted
        return self.tokens if self.based is None else self.based

    @property
    def fits(self) -> bool:
        return self.size <= self.limit

    @property
    def cut(self) -> bool:
        """Whether anything goes out otherwise than it came in."""
        return bool(self.edits or self.drops)

    @property
    def changed(self) -> dict[int, Message]:
        """The messages that go out in another form, notes in their text included."""
        changed = {index: edit.message for index, edit in self.edits.items()}
        for note in self.notes:
            if note.role == "paragraph":
                message = changed.get(note.at, self.history.messages[note.at])
                changed[note.at] = message.with_paragraph(note.text)
        return changed

    @property
    def sent(self) -> Iterator[Message]:
        """The messages that go out, as they came in."""
        return map(self.history.messages.__getitem__, self.kept)

    @property
    def decisions(self) -> list[Decision]:
        """One for each message that came in. With the notes they add up to the difference."""
        return [self._decision(index) for index in range(self.length)]

    def _decision(self, index: int) -> Decision:
        history = self.history
        edit = self.edits.get(index)
        changed = None if edit is None else (edit.fate, edit.tokens, edit.reason)
        drop = self._drop_of(index)
        role, before = history.messages[index].role, history.tokens(index)
        return Decision.on(index, role, before, changed, None if drop is None else drop.reason)

    def _drop_of(self, index: int) -> DroppedRun | None:
        if self.history.messages[index].role == "system":
            return None
        place = bisect_right(self.drops, index, key=lambda drop: drop.start) - 1
        if place >= 0 and index < self.drops[place].stop:
            return self.drops[place]
        return None

    def tally(self) -> dict[Outcome, int]:
        """How many messages met which fate; `kept` is not listed."""
        tally: Tally[Outcome] = Tally(edit.fate for edit in self.edits.values())
        for drop in self.drops:
            within = self.history.systems_between(drop.start, drop.stop)
            tally["dropped"] += drop.stop - drop.start - len(within)
        return {fate: tally[fate] for fate in OUTCOMES if tally[fate]}

    def __str__(self) -> str:
        about = "" if self.exact or self.counted is not None else "about "
        fates = ", ".join(f"{fate} {number:,}" for fate, number in self.tally().items())
        over = "" if self.fits else " (does not fit)"
        return f"{about}{self.size:,} of {self.limit:,} tokens{over}; {fates or 'nothing left out'}"

    def to_dict(self) -> dict[str, Any]:
        """The whole plan as plain data, ready for JSON."""
        return {
            "policy": self.policy,
            "before": self.before,
            "tokens": self.tokens,
            "limit": self.limit,
            "fits": self.fits,
            "exact": self.exact,
            "counted": self.counted,
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
