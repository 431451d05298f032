"""Planner: a growing history, a budget and a policy; it plans what to send.

A planner keeps everything that makes the next plan cheap: token counts, floors, the last trim and
its result. A stateless call creates a planner, adds the messages and discards it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from brim.errors import ContextOverflowError, InputError
from brim.fitting.budget import Budget
from brim.fitting.draft import Draft
from brim.fitting.history import History, HistoryView, UnitIndex
from brim.fitting.passes import Pass, count_gap_note, drop_trimmed, run_passes
from brim.fitting.plan import Plan
from brim.fitting.policies import Policy, no_thinking_floor
from brim.fitting.replay import Replay
from brim.fitting.trim import (
    Floors,
    FloorSums,
    Trim,
    TrimRecord,
    compute_low_water_mark,
    decide_trim,
)
from brim.messages import Message
from brim.tokens import Counter
from brim.wire.notes import MASK


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
        system_tokens: int = 0,
        summary_room: int = 0,
        recall_hint: str = "",
    ) -> None:
        self.counter = counter
        self.budget = budget.with_margin(counter.tool_margin(tools, budget.room))
        self.policy = policy
        self.tool_tokens = counter.tools(tools)
        self._base = counter.overhead + self.tool_tokens + system_tokens
        """Tokens of the request's framing, its tools and its separate system text."""
        if mask is None:
            mask = MASK if policy.rolling is None else policy.rolling.placeholder
        self.history = History(counter, pins, mask)
        self._exact = not tools
        self._system_tokens = system_tokens
        self.summary_room = summary_room
        """Tokens that a trim leaves free for a summary."""
        self._recall_hint = recall_hint
        """What notes say about how to read what they stand for; empty if it is impossible."""
        self.foreign_bytes = 0
        """Bytes of text in other scripts outside of the messages."""
        self._summary = ""
        self._draft: Draft | None = None
        """The result of the last trim, with the messages since."""
        self._compaction: TrimRecord | None = None
        """The trim that the caller requested, if the policy's trims are not replayed."""
        self.has_requested_trim = False
        """Whether the caller requested a trim, which a replay of the history would not find."""
        self._replay: Replay | None = None
        self._note_room = summary_room
        """Tokens that a replayed trim leaves for a summary in each note."""
        self._limit = self.budget.limit
        self._floors = Floors(policy.floor, policy.task_floor or policy.floor)
        self._sizes = FloorSums(no_thinking_floor)
        self.ratio: float | None = None
        """Actual tokens per counted token, if the server has counted the conversation."""

    @property
    def system_tokens(self) -> int:
        """Tokens of a system text outside of the messages. A change discards the last trim."""
        return self._system_tokens

    @system_tokens.setter
    def system_tokens(self, tokens: int) -> None:
        if tokens != self._system_tokens:
            self._base += tokens - self._system_tokens
            self._system_tokens = tokens
            self._draft = self._compaction = self._replay = None
            self._note_room = self.summary_room

    @property
    def summary(self) -> str:
        """The summary of the dropped messages, which a note contains."""
        return self._summary

    @summary.setter
    def summary(self, text: str) -> None:
        self._summary = text
        if self._draft is not None:
            self._add_summary(self._draft)

    def extend(self, messages: Sequence[Message]) -> None:
        """Add messages to the history."""
        self.history.extend(messages)
        if self._exact:
            self._exact = self.counter.exact(messages)

    def check_pins(self) -> None:
        """Raise `InputError` if a pin is not the index of a message."""
        for pin in self.history.pins:
            if not 0 <= pin < len(self.history):
                raise InputError(
                    f"Pin {pin} is not a message. Use an index from 0 to {len(self.history) - 1}."
                )

    # Plans

    def plan(self) -> Plan:
        """Return what to send now.

        Raise `ContextOverflowError` if the messages that must be sent are above the limit.
        """
        untrimmed = self.plan_untrimmed()
        if untrimmed is not None:
            return untrimmed
        view = self._view()
        draft = self._continue_replay(view) if self._replays else self._continue_compaction(view)
        if draft is None and not self._is_over:
            return self.plan_all()
        if draft is None or draft.tokens > view.limit:
            draft = self._trim_at_end(view)
        plan = self._build_plan(draft)
        if draft.tokens > view.limit:
            raise self.overflow_error(plan)
        return plan

    def rescale(self, ratio: float, limit: int) -> None:
        """Plan within another limit: a server counts `ratio` tokens for each one counted here."""
        self.ratio = ratio
        if limit != self._limit:
            self._limit = max(0, limit)
            self._draft = self._compaction = self._replay = None

    def plan_all(self) -> Plan:
        """Return a plan that sends every message unchanged, whether or not they fit."""
        size, length = self._tokens, len(self.history)
        return Plan(
            self.history.first(length),
            length,
            self.budget,
            self.policy.name,
            before=size,
            tokens=size,
            exact=self._exact,
            sent_indices=self.history.sendable,
            changes={},
            dropped_runs=(),
            notes=(),
            warnings=self._find_warnings(),
            trim_id=0,
        )

    def plan_relay(self) -> Plan:
        """Return a plan that sends a part of a history that the server stores."""
        warning = "The server stores the history, so it was neither counted in full nor trimmed."
        return replace(self.plan_all(), exact=False, warnings=[warning])

    def plan_untrimmed(self) -> Plan | None:
        """Return a plan that sends everything; None if that does not fit or was trimmed before."""
        is_trimmed = self._replay is not None and self._replay.last is not None
        if is_trimmed or self._draft is not None or self._is_over:
            return None
        return self.plan_all()

    def plan_current(self) -> Plan | None:
        """Return a plan that continues from the last trim without another one, of any size.

        Return None if a maximum of turns or tokens requires a trim in any case.
        """
        if self._draft is not None:
            self._draft.extend(self.history.end)
            return self._build_plan(self._draft)
        return self.plan_unless_capped()

    def plan_unless_capped(self) -> Plan | None:
        """Return a plan that sends everything; None if a maximum of turns or tokens forbids it."""
        is_capped = self.policy.max_turns is not None or self.policy.token_budget is not None
        return None if is_capped and self._is_over else self.plan_all()

    def trim(self, limit: int | None = None) -> Plan:
        """Trim now, due or not, and return the plan; `limit` replaces the budget's limit.

        Raise `ContextOverflowError` if the messages that must be sent are above the limit.
        """
        self._compaction = None
        return self._trim_now(limit, None)

    def compact(self, mark: int, limit: int | None = None) -> Plan:
        """Trim down to `mark`, as far as passes do that are not reserved for the limit.

        Later plans continue from it under every policy. Raise `ContextOverflowError` as `trim`.
        """
        limit = self.budget.limit if limit is None else limit
        self._compaction = TrimRecord(len(self.history), limit, mark)
        return self._trim_now(limit, mark)

    def count_plan(self, plan: Plan) -> int:
        """Return the tokens of a plan of the same messages with this planner's counter."""
        count = self.counter.message
        changed, tokens = plan.changed_messages, self._base
        for index in plan.sent_indices:
            tokens += count(changed.get(index, self.history.messages[index]))
        for note in plan.notes:
            if note.role != "paragraph":
                tokens += count(Message(note.role, words=(note.text,)))
        return tokens

    @property
    def last_trim(self) -> TrimRecord | None:
        """The last trim, so that another planner can repeat it; None if there was none."""
        if not self._replays:
            return self._compaction
        last = None if self._replay is None else self._replay.last
        return None if last is None else last.record

    def overflow_error(self, plan: Plan) -> ContextOverflowError:
        """Return the error that lists what cannot be dropped, by size, with advice."""
        view, history = self._view(), self.history
        sent = [decision.after for decision in plan.decisions]

        def measure(units: Iterable[UnitIndex]) -> int:
            return sum(sent[index] for unit in units for index in history.members(unit))

        required = {
            "system": self._system_tokens + history.system_token_sums[view.messages],
            "tools": self.tool_tokens,
            "pins": measure(view.required_units() - view.last_users - {view.open_unit}),
            "last user": measure(view.last_users),
            "open step": measure([view.open_unit] if view.open_unit >= 0 else []),
        }
        parts = {name: plan.scale(tokens) for name, tokens in required.items()}
        largest = max(parts, key=parts.__getitem__)
        parts["other"] = max(0, plan.size - sum(parts.values()))
        return ContextOverflowError(plan, parts, self._advise(plan, largest))

    def _advise(self, plan: Plan, largest: str) -> str:
        budget = self.budget
        if budget.reply >= budget.window:
            return (
                f"The reply of {budget.reply:,} tokens takes the whole window of "
                f"{budget.window:,}. Set a smaller reply."
            )
        advice = ADVICE[largest] if self.policy.passes else WITHOUT_FITTING
        if plan.size <= budget.window // 2 < budget.reply:
            advice += f" A reply smaller than {budget.reply:,} tokens also makes room."
        return advice

    # State

    @property
    def _tokens(self) -> int:
        """Tokens of the whole history."""
        return self._base + self.history.token_sums[-1]

    def _view(self) -> HistoryView:
        limit, keep_recent = self._limit, self.policy.keep_recent
        return HistoryView(self.history, self.history.end, self._base, limit, keep_recent)

    @property
    def _is_over(self) -> bool:
        """Whether the whole history exceeds the limit or a maximum."""
        most = self.policy.max_turns
        is_over = self._tokens > self._cap(self._limit)
        return is_over or (most is not None and self.history.turn_count > most)

    def _cap(self, limit: int) -> int:
        budget = self.policy.token_budget
        return limit if budget is None else min(limit, budget)

    @property
    def _replays(self) -> bool:
        """Whether a replay of the history finds the policy's trims."""
        return self.policy.share is not None

    # Drafts

    def _trim_now(self, limit: int | None, mark: int | None) -> Plan:
        self.has_requested_trim = True
        view = self._view()
        if limit is not None:
            view = view.within(max(0, limit))
        if self._replays:
            draft = self._draft = self._carry_out(self._start_replay().trim_now(view, mark))
        else:
            draft = self._run(view, self._cap(view.limit) if mark is None else mark)
            self._draft = draft if self._compaction else None
        plan = self._build_plan(draft)
        if draft.tokens > view.limit:
            raise self.overflow_error(plan)
        return plan

    def _start_replay(self) -> Replay:
        assert self.policy.share is not None
        if self._replay is None:
            note = count_gap_note(self.counter, self._recall_hint) + self._note_room
            share = self.policy.share
            self._replay = Replay(self._view(), self._floors, self._sizes, share, note)
        return self._replay

    def _continue_replay(self, view: HistoryView) -> Draft | None:
        """Return the result of the last trim with the messages since; None without a trim."""
        trim = self._start_replay().advance(self.history)
        if trim is None:
            return None
        if self._draft is None or self._draft.trimmed_units != trim.view.units:
            self._draft = self._carry_out(trim)
        self._draft.extend(view.point)
        return self._draft

    def _continue_compaction(self, view: HistoryView) -> Draft | None:
        """Return the result of the requested trim; None once something else must be dropped."""
        draft = self._draft
        if draft is None:
            return None
        draft.extend(view.point)
        most = self.policy.max_turns
        if draft.tokens > self._cap(view.limit) or (
            most is not None and len(draft.sent_indices()) > most
        ):
            self._draft = self._compaction = None
        return self._draft

    def _trim_at_end(self, view: HistoryView) -> Draft:
        """Trim at the end of the history, which need not be a request point."""
        if self.policy.share is None:
            return self._run(view, self._cap(view.limit))
        mark = compute_low_water_mark(view, self.policy.share)
        target = max(0, mark - self.summary_room)
        note = count_gap_note(self.counter, self._recall_hint)
        trim = decide_trim(view, self._floors.of(view), self._sizes, target, note)
        return self._run(view, mark, trim)

    def _carry_out(self, trim: Trim) -> Draft:
        return self._run(trim.view, trim.low_water_mark, trim)

    def _run(self, view: HistoryView, target: int, trim: Trim | None = None) -> Draft:
        """Return a draft after the policy's passes, the first of which carries out `trim`."""
        target = max(0, target - self.summary_room)
        policy = self.policy
        floors = self._floors.of(view)
        hint = self._recall_hint
        draft = Draft(
            view, floors, target, notes=policy.notes, brief=policy.brief_notes, recall_hint=hint
        )
        passes: tuple[Pass, ...] = self.policy.passes
        if trim is not None:
            passes = (partial(drop_trimmed, trim=trim), *passes)
        run_passes(draft, passes, first=self.policy.first)
        if draft.tokens > view.limit and draft.optional_notes:
            draft.remove_optional_notes()
        self._add_summary(draft)
        return draft

    def _add_summary(self, draft: Draft) -> None:
        """Add the summary to the note at a gap, if there is a note and room for it."""
        if self.policy.has_summary_note and self.summary_room and draft.optional_notes:
            draft.set_summary(self._summary)
            if draft.tokens > draft.view.limit:
                draft.set_summary("")

    def _build_plan(self, draft: Draft) -> Plan:
        view = draft.view
        trim_id = draft.trimmed_units if self._replays else None
        return Plan(
            self.history.first(view.messages),
            view.messages,
            self.budget,
            self.policy.name,
            before=view.tokens,
            tokens=draft.tokens,
            exact=self._exact,
            sent_indices=draft.sent_indices(),
            changes=dict(draft.changes),
            dropped_runs=draft.dropped_runs(),
            notes=tuple(draft.notes),
            warnings=self._find_warnings(),
            trim_id=trim_id,
            trim_end=self.history.units[trim_id - 1].last if trim_id else None,
        )

    def _find_warnings(self) -> list[str]:
        history = self.history
        unknown = [f"message {index}: an unknown role" for index in history.unknown_roles]
        if not history.has_steps:
            return unknown
        history.group()
        defective = (history.units[unit] for unit in history.defective_units)
        return [*unknown, *(f"message {unit.start}: {unit.defect}" for unit in defective)]


WITHOUT_FITTING = "Fitting is off, so nothing may be dropped. Turn it on."
ADVICE = {
    "system": "Shorten the system prompt, or use a model with a larger window.",
    "tools": "Offer fewer tools or shorter descriptions, or use a model with a larger window.",
    "pins": "Unpin some messages, or use a model with a larger window.",
    "last user": "Shorten the last message, or use a model with a larger window.",
    "open step": "Ask for less in one tool call, or use a model with a larger window.",
}
