"""Composer: what is sent of a conversation to its target, and what is learned from the answers.

It keeps what makes the next request cheap and alike the last one: the planner with its counts and
its last edit, what the server reported, and the summary of what was left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from brim.errors import ContextOverflowError, InputError
from brim.fitting import feedback
from brim.fitting.calibration import Calibration
from brim.fitting.clip import truncate
from brim.fitting.flow import Measurement, SummaryJob, apply_measurement, plan_request, run_flow
from brim.fitting.plan import get_overflow_plan
from brim.fitting.planner import Planner
from brim.fitting.policies import OFF
from brim.fitting.trim import TrimRecord
from brim.messages import Message
from brim.session.request_builder import FormatName, RequestBuilder
from brim.session.snapshots import (
    Compaction,
    CompactionUndo,
    PlannerSnapshot,
)
from brim.session.summaries import (
    MAX_SUMMARY_CHARS,
    compute_summary_room,
    is_usable_summary,
    truncate_to_tokens,
)
from brim.session.system_prompt import BLOCK_SEPARATOR, SUMMARY_HEADING, SystemPrompt
from brim.tokens.calibrated_counter import measure_non_latin
from brim.wire import openai_chat
from brim.wire.json_copy import copy_json

if TYPE_CHECKING:
    from brim.errors import Overflow
    from brim.fitting.budget import Budget
    from brim.fitting.flow import CountMode, Flow
    from brim.fitting.plan import Plan
    from brim.fitting.policies import Policy
    from brim.fitting.profile import ModelProfile
    from brim.tokens import Counter

_SUMMARY_HEADING: Final = f"{BLOCK_SEPARATOR}{SUMMARY_HEADING}\n"

Turn = dict[str, Any]


class Composer:
    """Decides about one conversation; whoever has it appends the turns."""

    def __init__(
        self,
        target: ModelProfile,
        policy: Policy,
        tools: Sequence[Mapping[str, Any]] | None,
        summary_chars: int = MAX_SUMMARY_CHARS,
    ) -> None:
        self._target = target
        self.policy = policy
        self.tools = tools
        self.summary_chars = summary_chars
        """A longer summary is made shorter."""
        self.turns: list[Turn] = []
        self.pinned: set[int] = set()
        """Places among the turns."""
        self.summarizes = False
        """Whether somebody answers when a summary is asked for."""
        self.covered: set[int] = set()
        """Those of the turns that a summary was asked of."""
        self._summed_up: int | None = None
        """The ID of the trim whose dropped turns are all covered."""
        self._summary: str | None = None
        self._planner: Planner | None = None
        self._known = target.calibration
        """What the planner counts with; what was learned since waits for the next edit."""
        self._reported: Measurement | None = None
        self._last_system = ""
        self._measured: tuple[Planner, str, str | None] | None = None
        """What the planner was told the size of."""
        self._past: PlannerSnapshot | None = None
        """Where it stood when it was written down, until it goes on from there."""
        self._compacted: TrimRecord | None = None
        """The last edit that was asked for; its mark is that beside the system text, which may
        change."""
        self.changes = 0
        """Grows with everything that may change what is sent."""
        self._before: list[CompactionUndo] = []
        """How it stood before each such edit."""
        self._left: dict[str | None, PlannerSnapshot] = {}
        """Where it stood with other models, when they were left."""
        self._fitting = True

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
        for held in (self.turns, self.pinned, self.covered):
            held.clear()
        self._summary = self._compacted = None
        self._before.clear()
        self._left.clear()
        self.forget()

    def take_back(self, length: int) -> None:
        """Go on as if only the first turns had been said; an edit among them stays."""
        past = self._past if self._planner is None else self._present(self._planner)
        while self._before and self._before[-1].length > length:
            self._stand(self._before.pop())
        del self.turns[length:]
        for held in (self.pinned, self.covered):
            held.intersection_update(range(length))
        self._left.clear()
        self.forget()
        if past is not None and past.trim is not None and past.trim.messages <= length:
            self._past = replace(past, reported=None)

    def forget(self) -> None:
        """Decide anew, from all turns: the last edit is not gone on from."""
        self.changes += 1
        self._planner = self._reported = self._past = self._summed_up = None

    # Who it is sent to

    @property
    def target(self) -> ModelProfile:
        return self._target

    @target.setter
    def target(self, target: ModelProfile) -> None:
        if target == self._target:
            return
        past = self._past
        if target.model != self._target.model:
            if self._planner is not None:
                self._left[self._target.model] = self._present(self._planner)
            past = self._left.pop(target.model, past)
        self._target = target
        self.forget()
        self._past = past

    @property
    def fitting(self) -> bool:
        """Whether anything is left out; without, what does not fit is an error."""
        return self._fitting

    @fitting.setter
    def fitting(self, fitting: bool) -> None:
        if fitting != self._fitting:
            self._fitting = fitting
            self.forget()

    def offer(self, tools: Sequence[Mapping[str, Any]] | None) -> None:
        """Offer other tools from now on."""
        if (tools or None) != (self.tools or None):
            self.tools = tools or None
            self.forget()

    @property
    def planner(self) -> Planner:
        """What decides about this conversation, fed with all of it."""
        if self._planner is None:
            self._planner = self._new_planner()
        return self._planner

    @property
    def counter(self) -> Counter:
        """What texts are counted with; needs no window."""
        return self._target.counter() if self._planner is None else self._planner.counter

    @property
    def budget(self) -> Budget:
        return self.planner.budget

    def _new_planner(self) -> Planner:
        past = self._past
        if past is not None and past.model == self._target.model:
            planner = self._planner_for(self._target.with_calibration(past.known))
            if planner.budget.room == past.room:
                return self._gone_on(planner, past)
        self._known, made, edit = self.calibration, self._compacted, None
        room = None if made is None or self.summarizes else made.summary_room
        planner = self._planner_for(self._target, room)
        if made is not None:
            self._measure(planner, self._last_system)
            edit = made._replace(
                limit=planner.budget.limit,
                low_water_mark=made.low_water_mark + planner.system_tokens,
            )
        self._fed(planner, edit)
        return planner

    def _fed(self, planner: Planner, edit: TrimRecord | None) -> None:
        """Give a planner all turns, and let it make an edit where it fell."""
        views, edited = _read_turns(self.turns), 0
        if edit is not None:
            edited, limit, mark, _ = edit
            planner.extend(views[:edited])
            _compact(planner, mark, limit)
        planner.extend(views[edited:])

    def _planner_for(self, target: ModelProfile, room: int | None = None) -> Planner:
        """`room` is what its edits leave free for a summary, where that is not as always."""
        counter = target.counter()
        budget = target.budget(counter)
        if room is None:
            room = self._summary_room(budget)
        room = room if self.tells_in_note else 0
        policy = self.policy if self._fitting else OFF
        planner = Planner(
            counter, budget, policy, self.tools or (), pins=self.pinned, summary_room=room
        )
        planner.summary = self._summary or ""
        return planner

    def _gone_on(self, planner: Planner, past: PlannerSnapshot) -> Planner:
        """A planner that has the last edit behind it, and decides as the one before would have."""
        self._past, self._known, self._reported = None, past.known, past.reported
        self._last_system = past.system
        self._measure(planner, past.system)
        self._fed(planner, past.trim)
        return planner

    def _renewed(self) -> Planner:
        """The planner for an edit: it counts with what was learned since the last one."""
        old, new = self.planner.counter, self._target.counter()
        if (old.name, old.uncertainty) != (new.name, new.uncertainty):
            reported = self._reported
            self.forget()
            if reported is not None and reported.rejected:
                self._reported = reported  # until an answer comes: the next may fail otherwise
            self.measure(self._last_system)
        return self.planner

    # What is sent

    def drawing(
        self,
        prompt: SystemPrompt,
        *,
        format: FormatName = "chat",
        cache_marks: bool = False,
        options: Mapping[str, object] | None = None,
    ) -> RequestBuilder:
        return RequestBuilder(
            self._target.model,
            self.system_text(prompt),
            prompt.role,
            format,
            self._target.rules(),
            self.tools,
            cache_marks,
            options or {},
        )

    def system_text(self, prompt: SystemPrompt) -> str:
        return prompt.render(self._shown_summary)

    def system_parts(self, prompt: SystemPrompt) -> dict[str, str]:
        return prompt.render_parts(self._shown_summary)

    @property
    def _shown_summary(self) -> str | None:
        return None if self.tells_in_note else self._summary

    def composing(
        self, draw: Callable[[], RequestBuilder], ask: CountMode = "off"
    ) -> Flow[tuple[Plan, RequestBuilder]]:
        """Decide what is sent of all turns, with a summary of those that leave.

        `draw` says anew how a request is made, after the summary has changed.
        """
        drawing = draw()
        plan = yield from self.planning(drawing, ask)
        if self._tells_what_is_there(plan):
            self._summary = None
            self.covered.clear()
            drawing = draw()
            plan = yield from self.planning(drawing, ask)
        evicted, before = self._evicted(plan), self._summary
        if not evicted:
            return plan, drawing
        yield from self._summing_up(plan, evicted)
        drawing = draw()
        try:
            return (yield from self.planning(drawing, ask)), drawing
        except ContextOverflowError:
            self.summary = before
            drawing = draw()
            return (yield from self.planning(drawing, ask)), drawing

    def planning(self, drawing: RequestBuilder, ask: CountMode = "off") -> Flow[Plan]:
        """Decide what is sent of all turns."""
        self.measure(drawing.system)
        draw = partial(drawing.build, self.turns)
        reported, renew = self._reported, self._renewed
        plan = yield from plan_request(
            self.planner, draw, count=ask, measurement=reported, renew=renew
        )
        if plan.server_tokens is not None or plan.calibrated_tokens is not None:
            self.base_on(plan, plan.size)  # until the answer says more
        return plan

    def preview(self, system: str) -> Plan:
        """What the next request would leave in, as far as can be said here; tried apart."""
        plan = self.outlook(system)
        if plan.fits:
            return plan
        trial = self._planner_for(self._target)
        self._measure(trial, system)
        self._fed(trial, self.planner.last_trim)
        try:
            return run_flow(
                plan_request(trial, lambda _: {}, measurement=self._reported), lambda _: None
            )
        except ContextOverflowError as error:
            return get_overflow_plan(error)

    # Compaction

    def compaction(self, system: str, share: float, *, sums_up: bool) -> Compaction:
        """What an edit to a share of the conversation would leave; nothing is decided.

        With `sums_up` it leaves room for a summary. Raises `InputError` where nothing can leave.
        """
        if not self._fitting:
            raise InputError("nothing is left out while fitting is off")
        self.measure(system)
        now, planner = self._as_it_stands(), self.planner
        fixed = planner.counter.overhead + planner.tool_tokens + planner.system_tokens
        said = max(0, now.tokens - fixed)
        room = 0
        if sums_up:
            room = min(compute_summary_room(planner.budget.limit, self.summary_chars), said // 4)
        trial = self._planner_for(self._target, room)
        self._measure(trial, system)
        trial.extend(_read_turns(self.turns))
        mark = fixed + int(share * said) + trial.summary_room
        plan = _compact(trial, mark)
        if plan.tokens >= now.tokens:
            raise InputError("there is nothing to compact: all that is there has to stay")
        return Compaction(plan, mark, now.tokens, room)

    def compacting(self, compaction: Compaction) -> Flow[Plan]:
        """Make the edit, and ask for a summary of what leaves."""
        room, before = compaction.room, self._standing()
        self.forget()
        planner = self._planner_for(self._target, room)
        self._measure(planner, self._last_system)
        mark = compaction.mark - planner.system_tokens
        self._compacted = TrimRecord(len(self.turns), planner.budget.limit, mark, room)
        planner.extend(_read_turns(self.turns))
        plan, self._planner = _compact(planner, compaction.mark), planner
        try:
            if evicted := self._left_by(plan) if room or self.summarizes else []:
                yield from self._summing_up(plan, evicted)
                plan = _compact(planner, compaction.mark)
        except BaseException:
            self._stand(before)
            raise
        self._before.append(before)
        return plan

    @property
    def is_compacted(self) -> bool:
        """Whether an edit was asked for, and nothing was said since."""
        if not self._before:
            return False
        since = self.turns[self._before[-1].length :]
        return all(turn.get(openai_chat.EMPTY_FIELD) for turn in since)

    def uncompact(self) -> None:
        """Take the last edit back that was asked for, and the summary that it brought."""
        if self._before:
            self._stand(self._before.pop())

    def _standing(self) -> CompactionUndo:
        covered = tuple(sorted(self.covered))
        return CompactionUndo(len(self.turns), self._compacted, self._summary, covered)

    def _stand(self, before: CompactionUndo) -> None:
        self._compacted, self._summary = before.compacted, before.summary
        self.covered = set(before.covered)
        self.forget()

    def planning_of(
        self, turns: Sequence[Mapping[str, Any]], drawing: RequestBuilder, ask: CountMode = "off"
    ) -> Flow[Plan]:
        """Decide what is sent of other turns in their place, for this once."""
        full = self.planner
        planner = Planner(full.counter, full.budget, self.policy, self.tools or ())
        planner.system_tokens = _system_size(drawing.system, full.counter)
        planner.foreign_bytes = self._foreign_beside(drawing.system)
        planner.extend(_read_turns(turns))
        return (yield from plan_request(planner, partial(drawing.build, turns), count=ask))

    def measure(self, system: str) -> None:
        """Tell the planner what the system text takes; a changed one is a new beginning."""
        measured = self.planner, system, self._summary
        if measured == self._measured:
            return
        if system != self._last_system:
            self._last_system, self._reported = system, None
            if self._compacted is not None:
                self._planner = None  # the edit is made again beside the new text
        self._measure(self.planner, system)
        self._measured = self.planner, system, self._summary

    def _measure(self, planner: Planner, system: str) -> None:
        planner.system_tokens = _system_size(system, planner.counter)
        planner.foreign_bytes = self._foreign_beside(system)
        if not self.tells_in_note:
            planner.summary_room = self._room_to_reserve(planner)

    def _room_to_reserve(self, planner: Planner) -> int:
        """What an edit leaves free in the system text, for a summary that is not there yet."""
        if not self.summarizes:
            return 0
        count = planner.counter.text
        written = count(self._summary) if self._summary else -count(_SUMMARY_HEADING)
        return max(0, self._summary_room(planner.budget) - written)

    def _foreign_beside(self, system: str) -> int:
        tools = [json.dumps(tool, ensure_ascii=False, default=str) for tool in self.tools or ()]
        return measure_non_latin([Message("system", words=(system, *tools))])

    def outlook(self, system: str) -> Plan:
        """What the conversation takes as it stands, by all that is known.

        Where the server has said what it takes, there is no margin.
        """
        self.measure(system)
        return self._as_it_stands()

    def _as_it_stands(self) -> Plan:
        try:
            plan = self.planner.plan_current() or self.planner.plan()
        except ContextOverflowError as error:
            plan = get_overflow_plan(error)
        return apply_measurement(plan, self._reported)

    # Summaries

    @property
    def summary(self) -> str | None:
        """What is told of the turns that left."""
        return self._summary

    @summary.setter
    def summary(self, text: str | None) -> None:
        self._summary = text or None
        if self.tells_in_note:
            self.forget()

    @property
    def tells_in_note(self) -> bool:
        """Under a policy with a low mark the summary stands in the note at the gap."""
        return self.policy.share is not None

    def _summary_room(self, budget: Budget) -> int:
        if not self.summarizes and not self._summary:
            return 0
        return compute_summary_room(budget.limit, self.summary_chars)

    def _tells_what_is_there(self, plan: Plan) -> bool:
        """Whether all that the system text sums up is sent again: the window has grown."""
        told = self._summary and self.covered and not self.tells_in_note
        return bool(told) and not plan.dropped_runs

    def _evicted(self, plan: Plan) -> list[int]:
        """The turns that leave and were in no summary yet."""
        is_known = plan.trim_id is not None and plan.trim_id == self._summed_up
        if not self.summarizes or is_known:
            return []
        new = self._left_by(plan)
        if not new:
            self._summed_up = plan.trim_id
        return new

    def _left_by(self, plan: Plan) -> list[int]:
        dropped = (index for drop in plan.dropped_runs for index in range(drop.start, drop.stop))
        messages = plan.history.messages
        new = (index for index in dropped if index not in self.covered)
        return [index for index in new if not messages[index].skipped]

    def _summing_up(self, plan: Plan, evicted: Sequence[int]) -> Flow[None]:
        """Ask for one summary of what leaves now; whatever is wrong with it, the turns leave."""
        count, history = self.planner.counter.text, self.planner.history
        replaced = sum(map(history.tokens, evicted)) + count(self._summary or "")
        turns = [copy_json(self.turns[index]) for index in evicted]
        text = yield SummaryJob(self._summary, turns)
        self.covered.update(evicted)  # not before: who is interrupted here will be asked again
        if not is_usable_summary(text, replaced, count):
            return
        if len(text) > self.summary_chars:
            shorter = yield SummaryJob(text, None)
            if is_usable_summary(shorter, count(text), count):
                text = shorter
            text = truncate(text, self.summary_chars)
        room = self.planner.summary_room or compute_summary_room(
            self.budget.limit, self.summary_chars
        )
        if not self.tells_in_note:
            written = count(self._summary) if self._summary else -count(_SUMMARY_HEADING)
            room = min(room, plan.limit - plan.size + written)
        self._summary = truncate_to_tokens(text, room, count) or None
        if self.tells_in_note:
            self.planner.summary = self._summary or ""

    # What is learned

    def base_on(self, plan: Plan, tokens: int) -> None:
        """Let what the server said of a plan be the base of what comes."""
        if self._planner is not None and plan.history is self._planner.history:
            self._reported = Measurement.of(plan, tokens)

    def learn(self, plan: Plan, tokens: int) -> None:
        """Take in what a request really took; of one to another target nothing is learned."""
        planner = self._planner
        if planner is None or plan.history is not planner.history:
            return
        result = feedback.evaluate_report(plan, tokens, planner, self._target, self._known)
        if result is not None:
            self.changes += 1
            self._target = result.profile
            if result.is_baseline:
                self.base_on(plan, tokens)

    def learn_text(self, text: str, tokens: int) -> None:
        """Take in what a server that only counts texts says of one."""
        self._target = feedback.calibrate_from_text(text, tokens, self._target)

    def refused(self, plan: Plan, overflow: Overflow) -> None:
        """Believe a server that says that a request was too long: the next one is smaller."""
        target, reported = feedback.evaluate_rejection(plan, overflow, self._target)
        if target != self._target:
            self._target = target
            self.forget()
        self._reported = reported

    @property
    def calibration(self) -> Calibration:
        return self._target.calibration

    def _learn(self, calibration: Calibration) -> None:
        """Know more from now on; what was decided stays until the next edit."""
        self._target = self._target.with_calibration(calibration)

    # What is kept between runs

    def to_dict(self) -> dict[str, Any]:
        """What was decided and learned; the turns are not in it."""
        past = self._past if self._planner is None else self._present(self._planner)
        return {
            "policy": self.policy.name,
            "pinned": sorted(self.pinned),
            "summary": self._summary,
            "covered": sorted(self.covered),
            "compacted": self._compacted,
            "before": [asdict(standing) for standing in self._before],
            "model": self._target.model,
            "calibration": self.calibration.to_dict(),
            "past": None if past is None else past.to_dict(),
        }

    def _present(self, planner: Planner) -> PlannerSnapshot:
        room, edit = planner.budget.room, planner.last_trim
        return PlannerSnapshot(
            self._target.model, room, self._known, self._last_system, edit, self._reported
        )

    def restore(self, data: Mapping[str, Any], turns: list[Turn]) -> None:
        """Go on where `to_dict` was called, with the same turns."""
        self.turns = turns
        self.pinned = set(data["pinned"])
        self._summary = data["summary"]
        self.covered = set(data["covered"])
        self._compacted = _parse_trim(data.get("compacted"))
        self._before = [
            CompactionUndo(
                one["length"], _parse_trim(one["compacted"]), one["summary"], tuple(one["covered"])
            )
            for one in data.get("before", ())
        ]
        if data.get("model", self._target.model) == self._target.model:
            self._learn(Calibration.from_dict(data["calibration"]))
        if data["past"] is not None and data["policy"] == self.policy.name:
            self._past = PlannerSnapshot.from_dict(data["past"])


def _parse_trim(data: Sequence[int] | None) -> TrimRecord | None:
    return None if data is None else TrimRecord(*data)


def _compact(planner: Planner, mark: int, limit: int | None = None) -> Plan:
    """An edit down to a mark, or as far as it goes."""
    try:
        return planner.compact(mark, limit)
    except ContextOverflowError as error:
        return get_overflow_plan(error)


def _system_size(text: str, counter: Counter) -> int:
    return counter.message(Message("system", words=(text,))) if text else 0


def _read_turns(turns: Sequence[Mapping[str, Any]]) -> list[Message]:
    return [openai_chat.read_message(turn, place) for place, turn in enumerate(turns)]
