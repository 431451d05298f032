"""Planner: a history that grows, a budget and a policy; a plan whenever one is wanted.

Everything that makes one more turn cheap is kept here: the counts, the floors, where the last
edit fell and what it left. A stateless call makes a planner, feeds it and throws it away.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from brim.errors import ContextOverflowError, InputError
from brim.fitting.draft import Draft
from brim.fitting.droppable import FloorSums
from brim.fitting.edit_view import HistoryView
from brim.fitting.history import History
from brim.fitting.passes import count_gap_note, run_passes
from brim.fitting.plan import Plan
from brim.fitting.replay import Replay, compute_low_water_mark
from brim.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from brim.fitting.budget import Budget
    from brim.fitting.eviction import Eviction
    from brim.fitting.policies import Policy
    from brim.tokens import Counter


class Planner:
    """Decides what is sent of a growing history."""

    def __init__(
        self,
        counter: Counter,
        budget: Budget,
        policy: Policy,
        tools: Sequence[Mapping[str, object]] = (),
        *,
        pins: Iterable[int] = (),
        mask: str | None = None,
        system: int = 0,
        summary_room: int = 0,
    ) -> None:
        self.counter = counter
        self.budget = budget
        self.policy = policy
        self.tools = counter.tools(tools)
        self._base = counter.overhead + self.tools + system
        """Tokens of the request's frame, of its tools and of a system text of its own."""
        self.history = History(counter, pins) if mask is None else History(counter, pins, mask)
        self._exact = not tools
        self._system = system
        self.summary_room = summary_room
        """Tokens that an edit leaves free for a summary."""
        self.foreign = 0
        """Bytes of text in other scripts that stands outside of the messages."""
        self._summary = ""
        self._draft: Draft | None = None
        self._compacted: tuple[int, int, int] | None = None
        """The edit that was asked for, where edits are not replayed."""
        self.asked = False
        """Whether an edit was asked for, which no replay of the history would find."""
        self._replay: Replay | None = None
        """Where the edits fell, once there may be any."""
        self._note_room = summary_room
        """What a note at a gap has room for, beside its own words, where edits are replayed."""
        self._limit = budget.limit
        self.ratio: float | None = None
        """Actual tokens per counted token, if the server has counted the conversation."""

    @cached_property
    def _floors(self) -> FloorSums:
        return FloorSums(self.policy.floor)

    @property
    def system(self) -> int:
        """Tokens of a system text that stands outside of the messages."""
        return self._system

    @system.setter
    def system(self, tokens: int) -> None:
        if tokens != self._system:
            self._base += tokens - self._system
            self._system = tokens
            self._draft = self._compacted = self._replay = None
            self._note_room = self.summary_room

    @property
    def summary(self) -> str:
        """What an edit's note tells of what was left out."""
        return self._summary

    @summary.setter
    def summary(self, text: str) -> None:
        self._summary = text
        if self._draft is not None:
            self._tell(self._draft)

    def extend(self, messages: Sequence[Message]) -> None:
        self.history.extend(messages)
        if self._exact:
            self._exact = self.counter.exact(messages)

    def check_pins(self) -> None:
        for pin in self.history.pins:
            if not 0 <= pin < len(self.history):
                raise InputError(f"pin {pin}: there are messages 0 to {len(self.history) - 1}")

    def whole(self) -> Plan:
        """All that came in, sent as it is, whether it fits or not."""
        size, length = self._size, len(self.history)
        return Plan(
            self.history,
            length,
            self.budget,
            self.policy.name,
            before=size,
            tokens=size,
            exact=self._exact,
            sent_indices=range(length),
            changes={},
            dropped_runs=(),
            notes=(),
            warnings=self._warnings(),
            trim_id=0,
        )

    def relayed(self) -> Plan:
        """What came in, sent as it is: the server keeps the history, and nobody can count it."""
        said = "the server keeps the history, so this was neither counted whole nor fitted"
        return replace(self.whole(), exact=False, warnings=[said])

    def plan(self) -> Plan:
        """What to send now. Raises `ContextOverflowError` where nothing that may go is enough."""
        untouched = self.untouched()
        if untouched is not None:
            return untouched
        scope = self._scope()
        draft = self._continued(scope) if self._replays else self._still_compact(scope)
        if draft is None and not self._is_over:
            return self.whole()
        if draft is None or draft.tokens > scope.limit:
            draft = self._edited(scope)
        plan = self._finished(draft)
        if draft.tokens > scope.limit:
            raise self.overflow(plan)
        return plan

    def rescale(self, ratio: float, limit: int) -> None:
        """Plan within another limit: a server counts `ratio` tokens for each one counted here."""
        self.ratio = ratio
        if limit != self._limit:
            self._limit = max(0, limit)
            self._draft = self._compacted = self._replay = None

    def untouched(self) -> Plan | None:
        """All that came in, if it fits and no edit was made before; then none was ever due."""
        is_edited = self._replay is not None and self._replay.last is not None
        if is_edited or self._draft is not None or self._is_over:
            return None
        return self.whole()

    def held(self) -> Plan | None:
        """What the last edit left and all that came since, however large; no edit falls here.

        None where a number of turns or tokens asks for a cut in any case.
        """
        if self._draft is not None:
            scope = self._scope()
            self._draft.grow(scope.units, scope.messages)
            return self._finished(self._draft)
        return self.untrimmed()

    def untrimmed(self) -> Plan | None:
        """Return a plan of all messages, or None if a cap of turns or tokens requires a trim."""
        capped = self.policy.max_turns is not None or self.policy.token_budget is not None
        return None if capped and self._is_over else self.whole()

    def edited(self, limit: int | None = None) -> Plan:
        """An edit now, whether it is due or not, down to this limit."""
        self._compacted = None
        return self._edit_now(limit, None)

    def compacted(self, mark: int, limit: int | None = None) -> Plan:
        """An edit down to a mark, as far as that goes without what is given up for the limit alone.

        What comes later goes on from it under every policy.
        """
        limit = self.budget.limit if limit is None else limit
        self._compacted = (len(self.history), limit, mark)
        return self._edit_now(limit, mark)

    def _edit_now(self, limit: int | None, mark: int | None) -> Plan:
        self.asked = True
        scope = self._scope()
        if limit is not None:
            scope = replace(scope, limit=max(0, limit))
        if not self._replays:
            draft = self._run(scope, self._target(scope.limit) if mark is None else mark)
            self._draft = draft if self._compacted else None
        else:
            fallen = self._replayed().edit_now(scope, mark)
            draft = self._draft = self._run(fallen.scope, fallen.mark, fallen.outline)
        plan = self._finished(draft)
        if draft.tokens > scope.limit:
            raise self.overflow(plan)
        return plan

    def size_of(self, plan: Plan) -> int:
        """What a plan of the same messages takes, as this planner counts."""
        count = self.counter.message
        changed, tokens = plan.changed_messages, self._base
        for index in plan.sent_indices:
            tokens += count(changed.get(index, self.history.messages[index]))
        for note in plan.notes:
            if note.role != "paragraph":
                tokens += count(Message(note.role, words=(note.text,)))
        return tokens

    @property
    def last_edit(self) -> tuple[int, int, int] | None:
        """How many messages the last edit saw, its limit and its mark: enough to make it again."""
        if not self._replays:
            return self._compacted
        last = None if self._replay is None else self._replay.last
        return None if last is None else (last.scope.messages, last.scope.limit, last.mark)

    @property
    def _size(self) -> int:
        """Tokens of all that came in."""
        return self._base + self.history.sizes[-1]

    def _scope(self) -> HistoryView:
        history = self.history
        history.group()
        units, messages, limit = len(history.units), len(history), self._limit
        return HistoryView(history, units, messages, self._base, limit, self.policy.keep_recent)

    @property
    def _is_over(self) -> bool:
        """Whether something has to leave of all that came in."""
        most = self.policy.max_turns
        return self._size > self._target(self._limit) or (
            most is not None and self.history.turns > most
        )

    def _target(self, limit: int) -> int:
        budget = self.policy.token_budget
        return limit if budget is None else min(limit, budget)

    @property
    def _replays(self) -> bool:
        """Whether the places of its edits follow from the history."""
        return self.policy.share is not None

    def _replayed(self) -> Replay:
        assert self.policy.share is not None
        if self._replay is None:
            note = count_gap_note(self.counter) + self._note_room
            self._replay = Replay(self._scope(), self._floors, self.policy.share, note)
        return self._replay

    def _continued(self, scope: HistoryView) -> Draft | None:
        """The last edit that fell, with all that came since."""
        fallen = self._replayed().advance(self.history)
        if fallen is None:
            return None
        if self._draft is None or self._draft.edited != fallen.scope.units:
            self._draft = self._run(fallen.scope, fallen.mark, fallen.outline)
        self._draft.grow(scope.units, scope.messages)
        return self._draft

    def _still_compact(self, scope: HistoryView) -> Draft | None:
        """What an edit left that was asked for, as long as nothing more has to leave."""
        draft = self._draft
        if draft is None:
            return None
        draft.grow(scope.units, scope.messages)
        most = self.policy.max_turns
        if draft.tokens > self._target(scope.limit) or (
            most is not None and len(draft.kept()) > most
        ):
            self._draft = self._compacted = None
        return self._draft

    def _edited(self, scope: HistoryView) -> Draft:
        """An edit at the very end of the history, whether a request point or not."""
        target = self._target(scope.limit)
        if self.policy.share is not None:
            target = compute_low_water_mark(scope, self.policy.share)
        return self._run(scope, target)

    def _run(self, scope: HistoryView, target: int, outline: Eviction | None = None) -> Draft:
        self._floors.extend(self.history)
        notes = self.policy.notes
        target = max(0, target - self.summary_room)
        draft = Draft(scope, self._floors, target, notes=notes, outline=outline)
        run_passes(self.policy.passes, draft, first=self.policy.first)
        if draft.tokens > scope.limit and draft.wants_notes:
            draft.forgo_notes()
        self._tell(draft)
        return draft

    def _tell(self, draft: Draft) -> None:
        """Put the summary into the note of a gap, where there is a note and room for it."""
        if self.summary_room and draft.wants_notes:
            draft.tell(self._summary)
            if draft.tokens > draft.scope.limit:
                draft.tell("")

    def _finished(self, draft: Draft) -> Plan:
        scope = draft.scope
        return Plan(
            self.history,
            scope.messages,
            self.budget,
            self.policy.name,
            before=scope.total,
            tokens=draft.tokens,
            exact=self._exact,
            sent_indices=draft.kept(),
            changes=dict(draft.edits),
            dropped_runs=draft.drops(),
            notes=tuple(draft.notes),
            warnings=self._warnings(),
            trim_id=draft.edited if self._replays else None,
        )

    def overflow(self, plan: Plan) -> ContextOverflowError:
        """The error that says what cannot be left out, by size, and what to do about it."""
        scope, history = self._scope(), self.history
        pins = scope.hard() - scope.last_words - {scope.open_unit}
        parts = {
            "system": self._system + history.system_sizes[scope.messages],
            "tools": self.tools,
            "pins": sum(map(history.unit_tokens, pins)),
            "last user": sum(map(history.unit_tokens, scope.last_words)),
            "open step": history.unit_tokens(scope.open_unit) if scope.open_unit >= 0 else 0,
        }
        largest = max(parts, key=lambda name: parts[name])
        advice = ADVICE[largest] if self.policy.passes else WITHOUT_FITTING
        return ContextOverflowError(plan, parts, advice)

    def _warnings(self) -> list[str]:
        if not self.history.has_steps:
            return []
        self.history.group()
        units = self.history.units
        return [f"message {units[unit].start}: {units[unit].fault}" for unit in self.history.faults]


WITHOUT_FITTING = "Nothing may be left out, because fitting is off; switch it on."
ADVICE = {
    "system": "Shorten the system prompt, or use a model with a larger window.",
    "tools": "Offer fewer tools or shorter descriptions, or use a model with a larger window.",
    "pins": "Unpin some messages, or use a model with a larger window.",
    "last user": "Shorten the last message, or use a model with a larger window.",
    "open step": "Ask for less in one tool call, or use a model with a larger window.",
}
