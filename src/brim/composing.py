"""Composer: what is sent of a conversation to its target, and what is learned from the answers.

It keeps what makes the next request cheap and alike the last one: the planner with its counts and
its last edit, what the server reported, and the summary of what was left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from brim.calibration import Calibration
from brim.drawing import Drawing, FormatName
from brim.memory import copied
from brim.messages import Message
from brim.planner import Planner
from brim.planning import Reported, SummaryJob, based, planning
from brim.summary import LARGEST, cut_to, cut_to_room, is_summary, room_for
from brim.system import Fact, system_text
from brim.tokens.calibrated import foreign_size
from brim.wire import openai_chat

if TYPE_CHECKING:
    from brim.budget import Budget
    from brim.overflow import Overflow
    from brim.plan import Plan
    from brim.planning import Ask, Planning
    from brim.policies import Policy
    from brim.target import Target

SHRINK: Final = 0.85
"""What is tried of a request that a server refused without giving numbers."""

Turn = dict[str, Any]


@dataclass(slots=True)
class Prompt:
    """What the system text is made of."""

    base: str = ""
    role: str = "system"
    memory: list[Fact] | None = None
    project: str | None = None
    goal: str | None = None


class Composer:
    """Decides about one conversation; whoever has it appends the turns."""

    def __init__(
        self, target: Target, policy: Policy, tools: Sequence[Mapping[str, Any]] | None
    ) -> None:
        self._target = target
        self.policy = policy
        self.tools = tools
        self.turns: list[Turn] = []
        self.pinned: set[int] = set()
        """Places among the turns."""
        self.summarizes = False
        """Whether somebody answers when a summary is asked for."""
        self.covered: set[int] = set()
        """Those of the turns that a summary was asked of."""
        self._summary: str | None = None
        self._planner: Planner | None = None
        self._reported: Reported | None = None
        self._last_system = ""
        self.last_edit: tuple[int, int] | None = None
        """Where the last edit fell before this was written down, and its limit."""

    def append(self, turn: Turn, view: Message) -> None:
        self.turns.append(turn)
        if self._planner is not None:
            self._planner.extend([view])

    def clear(self) -> None:
        for held in (self.turns, self.pinned, self.covered):
            held.clear()
        self._summary = None
        self.forget()

    def forget(self) -> None:
        """Decide anew, from all turns: the last edit is not gone on from."""
        self._planner = self._reported = self.last_edit = None

    # Who it is sent to

    @property
    def target(self) -> Target:
        return self._target

    @target.setter
    def target(self, target: Target) -> None:
        if target != self._target:
            edit = self.last_edit
            self._target = target
            self.forget()
            self.last_edit = edit

    @property
    def planner(self) -> Planner:
        """What decides about this conversation, fed with all of it."""
        if self._planner is None:
            self._planner = self._new_planner()
        return self._planner

    @property
    def budget(self) -> Budget:
        return self.planner.budget

    def _new_planner(self) -> Planner:
        counter = self._target.counter()
        budget = self._target.budget(counter)
        room = self._summary_room(budget) if self.tells_in_note else 0
        planner = Planner(
            counter, budget, self.policy, self.tools or (), pins=self.pinned, summary_room=room
        )
        planner.summary = self._summary or ""
        views = _views(self.turns)
        if self.last_edit is not None:
            edited, limit = self.last_edit
            planner.extend(views[:edited])
            planner.edited(limit)
            views = views[edited:]
        planner.extend(views)
        return planner

    def _renewed(self) -> Planner:
        """The planner for an edit: it counts with what was learned since the last one."""
        if self._target.counter().name != self.planner.counter.name:
            system = self.planner.system
            self.forget()
            self.planner.system = system
        return self.planner

    # What is sent

    def drawing(
        self,
        prompt: Prompt,
        *,
        format: FormatName = "chat",
        cache_marks: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> Drawing:
        return Drawing(
            self._target.model,
            self.system_text(prompt),
            prompt.role,
            format,
            self._target.rules(),
            self.tools,
            cache_marks,
            options or {},
        )

    def system_text(self, prompt: Prompt) -> str:
        return system_text(
            prompt.base,
            memory=prompt.memory or (),
            project=prompt.project,
            summary=None if self.tells_in_note else self._summary,
            goal=prompt.goal,
        )

    def planning(self, drawing: Drawing, ask: Ask = "off") -> Planning[Plan]:
        """Decide what is sent of all turns."""
        self.measure(drawing.system)
        draw = partial(drawing.body, self.turns)
        reported, renew = self._reported, self._renewed
        return (yield from planning(self.planner, draw, ask=ask, reported=reported, renew=renew))

    def planning_of(
        self, turns: Sequence[Mapping[str, Any]], drawing: Drawing, ask: Ask = "off"
    ) -> Planning[Plan]:
        """Decide what is sent of other turns in their place, for this once."""
        full = self.planner
        planner = Planner(full.counter, full.budget, self.policy, self.tools or ())
        planner.system = self._system_size(drawing.system)
        planner.extend(_views(turns))
        return (yield from planning(planner, partial(drawing.body, turns), ask=ask))

    def measure(self, system: str) -> None:
        """Tell the planner what the system text takes; a changed one is a new beginning."""
        tokens = self._system_size(system)
        if self.summarizes and not self.tells_in_note:
            written = self.planner.counter.text(self._summary) if self._summary else 0
            tokens += max(0, self._summary_room(self.budget) - written)
        self.planner.system = tokens
        if system != self._last_system:
            self._last_system, self._reported = system, None

    def _system_size(self, text: str) -> int:
        return self.planner.counter.message(Message("system", words=(text,))) if text else 0

    @property
    def tokens(self) -> int:
        """What the conversation takes as it stands."""
        return self._as_it_stands().size

    @property
    def limit(self) -> int:
        """What it may take: without a margin where the server has said what it takes."""
        return self._as_it_stands().limit

    def _as_it_stands(self) -> Plan:
        return based(self.planner.held() or self.planner.plan(), self._reported)

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
        return room_for(budget.limit) if self.summarizes or self._summary else 0

    def evicted(self, plan: Plan) -> list[int]:
        """The turns that leave and were in no summary yet."""
        if not self.summarizes:
            return []
        dropped = (index for drop in plan.drops for index in range(drop.start, drop.stop))
        return [index for index in dropped if index not in self.covered]

    def summing_up(self, evicted: Sequence[int]) -> Planning[None]:
        """Ask for one summary of what leaves now; whatever is wrong with it, the turns leave."""
        self.covered.update(evicted)
        count, history = self.planner.counter.text, self.planner.history
        replaced = sum(map(history.tokens, evicted)) + count(self._summary or "")
        turns = [copied(self.turns[index]) for index in evicted]
        text = yield SummaryJob(self._summary, turns)
        if not is_summary(text, replaced, count):
            return
        if len(text) > LARGEST:
            shorter = yield SummaryJob(text, None)
            if is_summary(shorter, count(text), count):
                text = shorter
            text = cut_to(text, LARGEST)
        self._summary = cut_to_room(text, self._summary_room(self.budget), count) or None
        if self.tells_in_note:
            self.planner.summary = self._summary or ""

    # What is learned

    def base_on(self, plan: Plan, tokens: int) -> None:
        """Let what the server said of a plan be the base of what comes."""
        if self._planner is not None and plan.history is self._planner.history:
            self._reported = Reported.of(plan, tokens)

    def learn(self, plan: Plan, tokens: int) -> None:
        """Take in what a request really took."""
        self.base_on(plan, tokens)
        if self.planner.counter.density:
            self._learn(self.calibration.learn(plan.tokens, foreign_size(plan.sent), tokens))

    def learn_text(self, text: str, tokens: int) -> None:
        """Take in what a server that only counts texts says of one."""
        counter = self.planner.counter
        if counter.density:
            foreign = foreign_size([Message("user", words=(text,))])
            self._learn(self.calibration.learn(counter.text(text), foreign, tokens))

    def refused(self, plan: Plan, overflow: Overflow) -> None:
        """Believe a server that says that a request was too long: the next one is smaller."""
        if overflow.limit and overflow.limit < plan.budget.window:
            # So it is with tokens a minute, too: a larger request is refused whenever it comes.
            self._learn(self.calibration.with_window(overflow.limit))
            self.forget()
        tokens = overflow.sent or 0
        if not tokens or overflow.at_least:
            tokens = max(tokens, int(max(plan.tokens, self.budget.room) / SHRINK))
        self._reported = Reported.of(plan, tokens)

    @property
    def calibration(self) -> Calibration:
        return self._target.calibration

    def _learn(self, calibration: Calibration) -> None:
        """Know more from now on; what was decided stays until the next edit."""
        self._target = self._target.learned(calibration)

    # What is kept between runs

    def to_dict(self) -> dict[str, Any]:
        """What was decided and learned; the turns are not in it."""
        edit = self.last_edit if self._planner is None else self._planner.last_edit
        return {
            "policy": self.policy.name,
            "pinned": sorted(self.pinned),
            "summary": self._summary,
            "covered": sorted(self.covered),
            "edit": edit,
            "calibration": self.calibration.to_dict(),
        }

    def restore(self, data: Mapping[str, Any], turns: list[Turn]) -> None:
        """Go on where `to_dict` was called, with the same turns."""
        self.turns = turns
        self.pinned = set(data["pinned"])
        self._summary = data["summary"]
        self.covered = set(data["covered"])
        self._learn(Calibration.from_dict(data["calibration"]))
        if data["edit"] is not None and data["policy"] == self.policy.name:
            edited, limit = data["edit"]
            self.last_edit = edited, limit


def _views(turns: Sequence[Mapping[str, Any]]) -> list[Message]:
    return [openai_chat.read(turn, place) for place, turn in enumerate(turns)]
