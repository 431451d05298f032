"""Composer: decides what to send of a conversation, and calibrates from the replies.

Its state is one immutable value (`composer_state`). The planner, with its counts and its last trim,
is made from that state when it is needed, and makes the next request cheap and similar to the last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from brim.errors import ContextOverflowError, InputError, Overflow
from brim.fitting import feedback
from brim.fitting.flow import (
    CountMode,
    Flow,
    Measurement,
    apply_measurement,
    plan_request,
    run_flow,
)
from brim.fitting.plan import Plan, get_overflow_plan
from brim.fitting.planner import Planner
from brim.fitting.profile import ModelProfile
from brim.fitting.summarizer import compute_summary_room, truncate_to_tokens, write_summary
from brim.fitting.trim import TrimRecord
from brim.messages import Message
from brim.session import planner_factory
from brim.session.composer_state import Compaction, ComposerState, PlannerSnapshot
from brim.session.planner_factory import feed, trim_to_mark
from brim.session.request_builder import RequestBuilder
from brim.tokens import Counter
from brim.wire.body_parts import copy_json
from brim.wire.openai_chat import EMPTY_FIELD

Turns = Sequence[Mapping[str, Any]]


class Composer:
    """Decides what to send of one conversation.

    Its owner appends the turns to the list, and reports every change of it.
    """

    def __init__(self, state: ComposerState, turns: Turns) -> None:
        self.turns = turns
        self.changes = 0
        """Increases with every change that may affect the next request."""
        self._state = state
        self._planner: Planner | None = None
        self._measured: tuple[Planner, str, str | None] | None = None
        """The planner, system text and summary whose sizes were last set."""

    def append(self, view: Message) -> None:
        """Take note of a new turn."""
        self.changes += 1
        if self._planner is not None:
            self._planner.extend([view])

    def clear(self) -> None:
        """Forget the conversation."""
        self._restart(self._state.clear())

    def rewind(self, length: int) -> None:
        """Continue with the first turns only; a trim among them stays."""
        self._restart(self._state.rewind(length, self._snapshot()))

    # State

    @property
    def state(self) -> ComposerState:
        """The settings, decisions and measurements."""
        return self._state

    def change(self, state: ComposerState) -> None:
        """Use other settings; if they differ, all decisions are made again."""
        if state != self._state:
            self._restart(state.restart())

    def set_command_hint(self, hint: str) -> None:
        """Name a command in notes; only before the first request, because notes do not change."""
        self._state = replace(self._state, command_hint=hint)

    def set_profile(self, profile: ModelProfile) -> None:
        if profile != self._state.profile:
            current = None if self._planner is None else self._snapshot()
            self._restart(self._state.set_profile(profile, current))

    def set_summary(self, text: str | None) -> None:
        """Replace the summary of the dropped turns."""
        self._state = replace(self._state, summary=text or None)
        if self._state.has_summary_note:
            self._restart(self._state.restart())

    def _restart(self, state: ComposerState) -> None:
        """Continue with a state whose decisions have to be made again."""
        self.changes += 1
        self._state, self._planner = state, None

    def to_dict(self) -> dict[str, Any]:
        """Return the decisions and measurements as JSON, without the turns."""
        return self._state.to_dict(self._snapshot())

    def restore(self, data: Mapping[str, Any]) -> None:
        """Continue where `to_dict` was called, with the same turns."""
        self._state = self._state.restore(data)

    # The planner

    @property
    def planner(self) -> Planner:
        """The planner of all turns."""
        if self._planner is None:
            self._planner, self._state = planner_factory.resume_planner(self._state, self.turns)
        return self._planner

    @property
    def counter(self) -> Counter:
        """The counter of texts; needs no window."""
        return self._state.profile.counter() if self._planner is None else self._planner.counter

    @property
    def _newest_counter(self) -> Counter:
        """The counter with the newest calibration; the planner has it after the next trim."""
        profile = self._state.profile
        is_newest = profile.calibration == self._state.counted_with
        return self.counter if is_newest else profile.counter()

    def _renew_planner(self) -> Planner:
        """Return the planner for a trim, which counts with the newest calibration."""
        old, new = self.planner.counter, self._state.profile.counter()
        if (old.name, old.uncertainty) != (new.name, new.uncertainty):
            measurement = self._state.measurement
            self._restart(self._state.restart())
            if measurement is not None and measurement.rejected:
                # Keep it until a reply comes: otherwise the next request may be too long again.
                self._state = replace(self._state, measurement=measurement)
            self._measure(self._state.system)
        return self.planner

    def _snapshot(self) -> PlannerSnapshot | None:
        """Return where the conversation is now, for another planner to continue."""
        planner, state = self._planner, self._state
        if planner is None:
            return state.snapshot
        return PlannerSnapshot(
            state.profile.model,
            planner.budget.room,
            state.counted_with,
            state.system,
            planner.last_trim,
            state.measurement,
            planner.ratio,
            state.answered,
        )

    def _measure(self, system: str) -> None:
        """Set the size of the system text; a different text starts a new prefix."""
        if (self.planner, system, self._state.summary) == self._measured:
            return
        if system != self._state.system:
            self._state = replace(self._state, system=system, measurement=None)
            if self._state.compacted is not None:
                self._planner = None  # repeat the requested trim with the new text
        planner = self.planner
        planner_factory.set_sizes(planner, self._state, system)
        self._measured = planner, system, self._state.summary

    # Requests

    def compose(
        self, create_builder: Callable[[], RequestBuilder], count: CountMode = "off"
    ) -> Flow[tuple[Plan, RequestBuilder]]:
        """Decide what to send of all turns, with a summary of the dropped ones.

        `create_builder` is called again after the summary has changed.
        """
        builder = create_builder()
        plan = yield from self._plan(builder, count)
        if self._is_summary_obsolete(plan):
            self._state = replace(self._state, summary=None, covered=frozenset())
            builder = create_builder()
            plan = yield from self._plan(builder, count)
        dropped, before = self._find_uncovered(plan), self._state.summary
        if not dropped:
            return plan, builder
        yield from self._summarize(plan, dropped)
        builder = create_builder()
        try:
            return (yield from self._plan(builder, count)), builder
        except ContextOverflowError:
            self.set_summary(before)
            builder = create_builder()
            return (yield from self._plan(builder, count)), builder

    def _plan(self, builder: RequestBuilder, count: CountMode) -> Flow[Plan]:
        self._measure(builder.system)
        plan = yield from plan_request(
            self.planner,
            partial(builder.build, self.turns),
            count=count,
            measurement=self._state.measurement,
            counter=self._newest_counter,
            growth=self._state.profile.calibration.growth,
            renew=self._renew_planner,
        )
        if plan.is_server_counted or plan.calibrated_tokens is not None:
            self._set_measurement(plan, plan.size)  # until the reply reports more
        return plan

    def plan_turns(self, turns: Turns, builder: RequestBuilder, count: CountMode) -> Flow[Plan]:
        """Decide what to send of other turns in place of all turns, for one request."""
        planner = planner_factory.create_like(self.planner, self._state, turns, builder.system)
        return (yield from plan_request(planner, partial(builder.build, turns), count=count))

    def get_current_plan(self, system: str) -> Plan:
        """Return the plan of the conversation as it is, without a new trim."""
        self._measure(system)
        try:
            plan = self.planner.plan_current() or self.planner.plan()
        except ContextOverflowError as error:
            plan = get_overflow_plan(error)
        return apply_measurement(plan, self._state.measurement, self._newest_counter)

    def preview(self, system: str) -> tuple[Plan, Counter]:
        """Return the plan of the next request as far as it is known, without deciding anything.

        The counter is the one that counted it.
        """
        plan = self.get_current_plan(system)
        if plan.fits:
            return plan, self.counter
        trial = planner_factory.create_trial(self._state, system)
        feed(trial, self.turns, self.planner.last_trim)
        flow = plan_request(trial, lambda _: {}, measurement=self._state.measurement)
        try:
            plan = run_flow(flow, lambda _: None)
        except ContextOverflowError as error:
            plan = get_overflow_plan(error)
        return plan, trial.counter

    # Requested trims

    def plan_compaction(self, system: str, share: float, *, with_summary: bool) -> Compaction:
        """Return what a trim to a share of the conversation would keep, without deciding anything.

        With a summary it leaves room for one. Raise `InputError` if nothing can be dropped.
        """
        if not self._state.is_trimming:
            raise InputError("Cannot compact: trimming is off. Turn it on first.")
        now, planner = self.get_current_plan(system), self.planner
        fixed = planner.counter.overhead + planner.tool_tokens + planner.system_tokens
        movable = max(0, now.tokens - fixed)
        room = 0
        if with_summary:
            usual = compute_summary_room(planner.budget.limit, self._state.summary_chars)
            room = min(usual, movable // 4)
        trial = planner_factory.create_trial(self._state, system, room)
        feed(trial, self.turns)
        mark = fixed + int(share * movable) + trial.summary_room
        plan = trim_to_mark(trial, mark)
        if plan.tokens >= now.tokens:
            raise InputError("Nothing to compact: every message has to be kept.")
        return Compaction(plan, mark, now.tokens, room)

    def compact(self, compaction: Compaction) -> Flow[Plan]:
        """Trim as planned, and summarize the dropped turns."""
        room, before, length = compaction.room, self._state, len(self.turns)
        self._restart(before.restart())
        planner = planner_factory.create_trial(self._state, before.system, room)
        mark = compaction.mark - planner.system_tokens
        trim = TrimRecord(length, planner.budget.limit, mark, room)
        self._state = replace(self._state, compacted=trim)
        feed(planner, self.turns)
        plan, self._planner = trim_to_mark(planner, compaction.mark), planner
        try:
            with_summary = room or before.summarizes
            if dropped := self._state.list_uncovered(plan) if with_summary else []:
                yield from self._summarize(plan, dropped)
                plan = trim_to_mark(planner, compaction.mark)
        except BaseException:
            self._restart(before.restart())
            raise
        self._state = self._state.keep_undo(before, length)
        return plan

    @property
    def is_compacted(self) -> bool:
        """Whether nothing was sent since a requested trim."""
        if not self._state.undo:
            return False
        since = self.turns[self._state.undo[-1].length :]
        return all(turn.get(EMPTY_FIELD) for turn in since)

    def undo_compaction(self) -> None:
        """Undo the last requested trim and its summary."""
        if self._state.undo:
            self._restart(self._state.undo_compaction())

    # Summaries

    def _is_summary_obsolete(self, plan: Plan) -> bool:
        """Return whether all turns that the system text summarizes are sent again."""
        is_shown = self._state.system_summary and self._state.covered
        return bool(is_shown) and not plan.dropped_runs

    def _find_uncovered(self, plan: Plan) -> list[int]:
        """Return the dropped turns that are in no summary yet."""
        is_known = plan.trim_id is not None and plan.trim_id == self._state.covered_trim
        if not self._state.summarizes or is_known:
            return []
        new = self._state.list_uncovered(plan)
        if not new:
            self._state = replace(self._state, covered_trim=plan.trim_id)
        return new

    def _summarize(self, plan: Plan, dropped: Sequence[int]) -> Flow[None]:
        """Ask for one summary of the dropped turns; they are dropped even if there is none."""
        state, planner = self._state, self.planner
        count, history = planner.counter.text, planner.history
        replaced = sum(map(history.tokens, dropped)) + count(state.summary or "")
        turns = [copy_json(self.turns[index]) for index in dropped]
        text = yield from write_summary(state.summary, turns, replaced, count, state.summary_chars)
        # Not earlier: an interrupted job is asked again.
        self._state = replace(self._state, covered=self._state.covered.union(dropped))
        if text is None:
            return
        room = planner.summary_room
        room = room or compute_summary_room(planner.budget.limit, state.summary_chars)
        if not state.has_summary_note:
            shown = planner_factory.count_summary(state, planner.counter)
            room = min(room, plan.limit - plan.size + shown)
        summary = truncate_to_tokens(text, room, count) or None
        self._state = replace(self._state, summary=summary)
        if state.has_summary_note:
            self.planner.summary = summary or ""

    # Replies

    def _set_measurement(self, plan: Plan, tokens: int) -> None:
        if self._planner is not None and plan.history.is_of(self._planner.history):
            self._state = replace(self._state, measurement=Measurement.of(plan, tokens))

    def record_report(self, plan: Plan, tokens: int) -> None:
        """Record the reported size of a request, unless it was made with another planner."""
        planner, state = self._planner, self._state
        if planner is None or not plan.history.is_of(planner.history):
            return
        result = feedback.evaluate_report(
            plan, tokens, planner, state.profile, state.counted_with, state.answered
        )
        if result is not None:
            self.changes += 1
            self._state = replace(state, profile=result.profile)
            if result.is_baseline:
                self._set_measurement(plan, tokens)
                self._state = replace(self._state, answered=self._state.measurement)

    def record_rejection(self, plan: Plan, overflow: Overflow) -> None:
        """Make the next request smaller after a context-length error."""
        self._learn_rejected_size(plan, overflow)
        before = self._state.profile
        profile, measurement = feedback.evaluate_rejection(plan, overflow, before)
        if profile != before:
            self._restart(replace(self._state, profile=profile).restart())
            self._measure(self._state.system)
            measurement = measurement.rescale(self.planner.count_plan(plan) / max(1, plan.tokens))
        self._state = replace(self._state, measurement=measurement)

    def _learn_rejected_size(self, plan: Plan, overflow: Overflow) -> None:
        """Calibrate from the size of a rejected request; the planner counts with it later."""
        planner, state = self.planner, self._state
        tokens = overflow.sent
        if tokens and feedback.names_size(overflow) and plan.history.is_of(planner.history):
            profile = feedback.add_size(
                plan, tokens, planner, state.profile, state.counted_with, state.answered
            )
            self._state = replace(state, profile=profile)
