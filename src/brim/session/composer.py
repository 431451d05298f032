"""Composer: decides what to send of a conversation, and calibrates from the replies.

Its state is one immutable value (`composer_state`). The planner, with its counts and its last trim,
is made from that state when it is needed, and makes the next request cheap and similar to the last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from brim.errors import ContextOverflowError, InputError
from brim.fitting import feedback
from brim.fitting.flow import (
    Measurement,
    SummaryJob,
    apply_measurement,
    plan_request,
    run_flow,
)
from brim.fitting.plan import get_overflow_plan
from brim.fitting.planner import Planner
from brim.fitting.trim import TrimRecord
from brim.messages import Message
from brim.session.composer_state import Compaction, ComposerState, PlannerSnapshot
from brim.session.planner_factory import PlannerFactory, feed, trim_to_mark
from brim.session.request_builder import RequestBuilder
from brim.session.summaries import (
    MAX_SUMMARY_CHARS,
    compute_summary_room,
    is_usable_summary,
    shorten_summary,
    truncate_to_tokens,
)
from brim.session.system_prompt import SystemPrompt
from brim.wire import openai_chat
from brim.wire.formats import FormatName
from brim.wire.json_copy import copy_json

if TYPE_CHECKING:
    from brim.errors import Overflow
    from brim.fitting.budget import Budget
    from brim.fitting.flow import CountMode, Flow
    from brim.fitting.plan import Plan
    from brim.fitting.policies import Policy
    from brim.fitting.profile import ModelProfile
    from brim.tokens import Counter

Turn = dict[str, Any]


class Composer:
    """Decides what to send of one conversation; its owner appends the turns."""

    def __init__(
        self,
        profile: ModelProfile,
        policy: Policy,
        tools: Sequence[Mapping[str, Any]] | None,
        summary_chars: int = MAX_SUMMARY_CHARS,
    ) -> None:
        self.policy = policy
        self.summary_chars = summary_chars
        """The maximum length of a summary."""
        self.turns: list[Turn] = []
        self.changes = 0
        """Increases with every change that may affect the next request."""
        self._state = ComposerState(profile, tools, counted_with=profile.calibration)
        self._planner: Planner | None = None
        self._measured: tuple[Planner, str, str | None] | None = None
        """The planner, system text and summary whose sizes were last set."""
        self._summarizes = False

    @property
    def sent_turns(self) -> list[Turn]:
        """The turns without empty replies, which are never sent."""
        return [turn for turn in self.turns if not turn.get(openai_chat.EMPTY_FIELD)]

    def append(self, turn: Turn, view: Message) -> None:
        self.changes += 1
        self.turns.append(turn)
        if self._planner is not None:
            self._planner.extend([view])

    def clear(self) -> None:
        self.turns.clear()
        self._restart(self._state.clear())

    def rewind(self, length: int) -> None:
        """Keep only the first turns; a trim among them stays."""
        state = self._state.rewind(length, self._snapshot())
        del self.turns[length:]
        self._restart(state)

    def _restart(self, state: ComposerState) -> None:
        """Continue with a state whose decisions have to be made again."""
        self.changes += 1
        self._state, self._planner = state, None

    # Settings

    @property
    def profile(self) -> ModelProfile:
        return self._state.profile

    @profile.setter
    def profile(self, profile: ModelProfile) -> None:
        if profile != self._state.profile:
            current = None if self._planner is None else self._snapshot()
            self._restart(self._state.set_profile(profile, current))

    @property
    def is_trimming(self) -> bool:
        """Whether messages may be dropped; if not, a request that is too long is an error."""
        return self._state.is_trimming

    @is_trimming.setter
    def is_trimming(self, is_trimming: bool) -> None:
        if is_trimming != self._state.is_trimming:
            self._restart(self._state.set_trimming(is_trimming))

    @property
    def tools(self) -> Sequence[Mapping[str, Any]] | None:
        return self._state.tools

    @tools.setter
    def tools(self, tools: Sequence[Mapping[str, Any]] | None) -> None:
        if (tools or None) != (self._state.tools or None):
            self._restart(self._state.set_tools(tools))

    @property
    def pins(self) -> frozenset[int]:
        """Indices of the turns that are never dropped."""
        return self._state.pins

    def pin(self, index: int) -> None:
        self._restart(self._state.pin(index))

    def unpin(self, index: int) -> None:
        self._restart(self._state.unpin(index))

    @property
    def summarizes(self) -> bool:
        """Whether summary jobs are answered."""
        return self._summarizes

    @summarizes.setter
    def summarizes(self, summarizes: bool) -> None:
        if summarizes != self._summarizes:
            self._summarizes = summarizes
            self._restart(self._state.restart())

    # The planner

    @property
    def planner(self) -> Planner:
        """The planner of all turns."""
        if self._planner is None:
            self._planner, self._state = self._planners.resume(self.turns)
        return self._planner

    @property
    def counter(self) -> Counter:
        """The counter of texts; needs no window."""
        return self.profile.counter() if self._planner is None else self._planner.counter

    @property
    def budget(self) -> Budget:
        return self.planner.budget

    @property
    def _planners(self) -> PlannerFactory:
        return PlannerFactory(self._state, self.policy, self.summary_chars, self._summarizes)

    def _renew_planner(self) -> Planner:
        """Return the planner for a trim, which counts with the newest calibration."""
        old, new = self.planner.counter, self.profile.counter()
        if (old.name, old.uncertainty) != (new.name, new.uncertainty):
            measurement = self._state.measurement
            self._restart(self._state.restart())
            if measurement is not None and measurement.rejected:
                # Keep it until a reply comes: otherwise the next request may be too long again.
                self._state = replace(self._state, measurement=measurement)
            self.measure(self._state.system)
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
        )

    def measure(self, system: str) -> None:
        """Set the size of the system text; another text is a new beginning."""
        measured = self.planner, system, self.summary
        if measured == self._measured:
            return
        if system != self._state.system:
            self._state = self._state.set_system(system)
            if self._state.compacted is not None:
                self._planner = None  # repeat the requested trim with the new text
        planner = self.planner
        self._planners.set_sizes(planner, system)
        self._measured = self.planner, system, self.summary

    # Requests

    def create_builder(
        self,
        prompt: SystemPrompt,
        *,
        format: FormatName = "openai",
        cache_marks: bool = False,
        options: Mapping[str, object] | None = None,
    ) -> RequestBuilder:
        return RequestBuilder(
            self.profile.model,
            self.system_text(prompt),
            prompt.role,
            format,
            self.profile.rules(),
            self.tools,
            cache_marks,
            options or {},
        )

    def system_text(self, prompt: SystemPrompt) -> str:
        return prompt.render(self._system_summary)

    def system_parts(self, prompt: SystemPrompt) -> dict[str, str]:
        return prompt.render_parts(self._system_summary)

    @property
    def _system_summary(self) -> str | None:
        return None if self.has_summary_note else self.summary

    def compose(
        self, create_builder: Callable[[], RequestBuilder], count: CountMode = "off"
    ) -> Flow[tuple[Plan, RequestBuilder]]:
        """Decide what to send of all turns, with a summary of the dropped ones.

        `create_builder` is called again after the summary has changed.
        """
        builder = create_builder()
        plan = yield from self._plan(builder, count)
        if self._is_summary_obsolete(plan):
            self._state = self._state.drop_summary()
            builder = create_builder()
            plan = yield from self._plan(builder, count)
        dropped, before = self._find_uncovered(plan), self.summary
        if not dropped:
            return plan, builder
        yield from self._summarize(plan, dropped)
        builder = create_builder()
        try:
            return (yield from self._plan(builder, count)), builder
        except ContextOverflowError:
            self.summary = before
            builder = create_builder()
            return (yield from self._plan(builder, count)), builder

    def _plan(self, builder: RequestBuilder, count: CountMode) -> Flow[Plan]:
        self.measure(builder.system)
        plan = yield from plan_request(
            self.planner,
            partial(builder.build, self.turns),
            count=count,
            measurement=self._state.measurement,
            renew=self._renew_planner,
        )
        if plan.server_tokens is not None or plan.calibrated_tokens is not None:
            self._set_measurement(plan, plan.size)  # until the reply reports more
        return plan

    def plan_turns(
        self, turns: Sequence[Mapping[str, Any]], builder: RequestBuilder, count: CountMode = "off"
    ) -> Flow[Plan]:
        """Decide what to send of other turns in place of all turns, for one request."""
        planner = self._planners.create_like(self.planner, turns, builder.system)
        return (yield from plan_request(planner, partial(builder.build, turns), count=count))

    def current_plan(self, system: str) -> Plan:
        """Return the plan of the conversation as it is, without a new trim."""
        self.measure(system)
        return self._plan_current()

    def _plan_current(self) -> Plan:
        try:
            plan = self.planner.plan_current() or self.planner.plan()
        except ContextOverflowError as error:
            plan = get_overflow_plan(error)
        return apply_measurement(plan, self._state.measurement)

    def preview(self, system: str) -> Plan:
        """Return the plan of the next request as far as it is known, without deciding anything."""
        plan = self.current_plan(system)
        if plan.fits:
            return plan
        trial = self._planners.create_trial(system)
        feed(trial, self.turns, self.planner.last_trim)
        flow = plan_request(trial, lambda _: {}, measurement=self._state.measurement)
        try:
            return run_flow(flow, lambda _: None)
        except ContextOverflowError as error:
            return get_overflow_plan(error)

    # Requested trims

    def plan_compaction(self, system: str, share: float, *, sums_up: bool) -> Compaction:
        """Return what a trim to a share of the conversation would keep, without deciding anything.

        With `sums_up` it leaves room for a summary. Raise `InputError` if nothing can be dropped.
        """
        if not self.is_trimming:
            raise InputError("Cannot compact: trimming is off. Turn it on first.")
        self.measure(system)
        now, planner = self._plan_current(), self.planner
        fixed = planner.counter.overhead + planner.tool_tokens + planner.system_tokens
        movable = max(0, now.tokens - fixed)
        room = 0
        if sums_up:
            room = min(compute_summary_room(planner.budget.limit, self.summary_chars), movable // 4)
        trial = self._planners.create_trial(system, room)
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
        planner = self._planners.create_trial(before.system, room)
        mark = compaction.mark - planner.system_tokens
        trim = TrimRecord(length, planner.budget.limit, mark, room)
        self._state = self._state.compact(trim)
        feed(planner, self.turns)
        plan, self._planner = trim_to_mark(planner, compaction.mark), planner
        try:
            if dropped := self._state.list_uncovered(plan) if room or self.summarizes else []:
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
        return all(turn.get(openai_chat.EMPTY_FIELD) for turn in since)

    def undo_compaction(self) -> None:
        """Undo the last requested trim and its summary."""
        if self._state.undo:
            self._restart(self._state.undo_compaction())

    # Summaries

    @property
    def summary(self) -> str | None:
        """The summary of the dropped turns."""
        return self._state.summary

    @summary.setter
    def summary(self, text: str | None) -> None:
        self._state = replace(self._state, summary=text or None)
        if self.has_summary_note:
            self._restart(self._state.restart())

    @property
    def has_summary_note(self) -> bool:
        """Whether the summary is in the note at the gap: under policies with a low-water mark."""
        return self._planners.has_summary_note

    def _is_summary_obsolete(self, plan: Plan) -> bool:
        """Return whether all turns that the system text summarizes are sent again."""
        is_shown = self.summary and self._state.covered and not self.has_summary_note
        return bool(is_shown) and not plan.dropped_runs

    def _find_uncovered(self, plan: Plan) -> list[int]:
        """Return the dropped turns that are in no summary yet."""
        is_known = plan.trim_id is not None and plan.trim_id == self._state.covered_trim
        if not self.summarizes or is_known:
            return []
        new = self._state.list_uncovered(plan)
        if not new:
            self._state = replace(self._state, covered_trim=plan.trim_id)
        return new

    def _summarize(self, plan: Plan, dropped: Sequence[int]) -> Flow[None]:
        """Ask for one summary of the dropped turns; they are dropped even if there is none."""
        planner = self.planner
        count, history = planner.counter.text, planner.history
        replaced = sum(map(history.tokens, dropped)) + count(self.summary or "")
        turns = [copy_json(self.turns[index]) for index in dropped]
        text = yield SummaryJob(self.summary, turns)
        self._state = self._state.cover(dropped)  # not earlier: an interrupted job is asked again
        if not is_usable_summary(text, replaced, count):
            return
        text = yield from shorten_summary(text, count, self.summary_chars)
        room = planner.summary_room
        room = room or compute_summary_room(self.budget.limit, self.summary_chars)
        if not self.has_summary_note:
            room = min(room, plan.limit - plan.size + self._planners.count_summary(planner.counter))
        summary = truncate_to_tokens(text, room, count) or None
        self._state = replace(self._state, summary=summary)
        if self.has_summary_note:
            self.planner.summary = summary or ""

    # Replies

    def _set_measurement(self, plan: Plan, tokens: int) -> None:
        if self._planner is not None and plan.history is self._planner.history:
            self._state = replace(self._state, measurement=Measurement.of(plan, tokens))

    def record_report(self, plan: Plan, tokens: int) -> None:
        """Record the reported size of a request, unless it was made with another planner."""
        planner = self._planner
        if planner is None or plan.history is not planner.history:
            return
        counted_with = self._state.counted_with
        result = feedback.evaluate_report(plan, tokens, planner, self.profile, counted_with)
        if result is not None:
            self.changes += 1
            self._state = replace(self._state, profile=result.profile)
            if result.is_baseline:
                self._set_measurement(plan, tokens)

    def record_text_count(self, text: str, tokens: int) -> None:
        """Calibrate with the server's count of a text."""
        profile = feedback.calibrate_from_text(text, tokens, self.profile)
        self._state = replace(self._state, profile=profile)

    def record_rejection(self, plan: Plan, overflow: Overflow) -> None:
        """Make the next request smaller after a context-length error."""
        profile, measurement = feedback.evaluate_rejection(plan, overflow, self.profile)
        if profile != self.profile:
            self._restart(replace(self._state, profile=profile).restart())
        self._state = replace(self._state, measurement=measurement)

    # Persistence

    def to_dict(self) -> dict[str, Any]:
        """Return the decisions and measurements as JSON, without the turns."""
        return {"policy": self.policy.name, **self._state.to_dict(self._snapshot())}

    def restore(self, data: Mapping[str, Any], turns: list[Turn]) -> None:
        """Continue where `to_dict` was called, with the same turns."""
        self.turns = turns
        self._state = self._state.restore(data, continues=data["policy"] == self.policy.name)
