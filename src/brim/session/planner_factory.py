"""PlannerFactory: makes the planners of a conversation from the composer's state."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from brim.errors import ContextOverflowError
from brim.fitting.flow import apply_ratio
from brim.fitting.plan import get_overflow_plan
from brim.fitting.planner import Planner
from brim.fitting.policies import OFF
from brim.messages import Message
from brim.session.summaries import compute_summary_room
from brim.session.system_prompt import BLOCK_SEPARATOR, SUMMARY_HEADING
from brim.tokens.calibrated_counter import measure_non_latin
from brim.wire import openai_chat

if TYPE_CHECKING:
    from brim.fitting.budget import Budget
    from brim.fitting.plan import Plan
    from brim.fitting.policies import Policy
    from brim.fitting.profile import ModelProfile
    from brim.fitting.trim import TrimRecord
    from brim.session.composer_state import ComposerState
    from brim.tokens import Counter

_SUMMARY_HEADING: Final = f"{BLOCK_SEPARATOR}{SUMMARY_HEADING}\n"

Turns = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class PlannerFactory:
    """Makes planners whose counts include the tools, the system text and a summary."""

    state: ComposerState
    policy: Policy
    summary_chars: int
    """The maximum length of a summary."""
    summarizes: bool
    """Whether summary jobs are answered."""

    @property
    def has_summary_note(self) -> bool:
        """Whether the summary is in the note at the gap: under policies with a low-water mark."""
        return self.policy.share is not None

    def resume(self, turns: Turns) -> tuple[Planner, ComposerState]:
        """Return a planner that has repeated the last trim, and the state that belongs to it."""
        state, profile, trim = self.state, self.state.profile, None
        snapshot, requested = state.snapshot, state.compacted
        if snapshot is not None and snapshot.model == profile.model:
            planner = self.create(profile.with_calibration(snapshot.known))
            if planner.budget.room == snapshot.room:
                self.set_sizes(planner, snapshot.system)
                if snapshot.ratio is not None:
                    apply_ratio(planner, snapshot.ratio)
                feed(planner, turns, snapshot.trim)
                return planner, state.continue_from(snapshot)
        room = None if requested is None or self.summarizes else requested.summary_room
        planner = self.create(profile, room)
        if requested is not None:
            self.set_sizes(planner, state.system)
            mark = requested.low_water_mark + planner.system_tokens
            trim = requested._replace(limit=planner.budget.limit, low_water_mark=mark)
        feed(planner, turns, trim)
        return planner, replace(state, counted_with=profile.calibration)

    def create(self, profile: ModelProfile, summary_room: int | None = None) -> Planner:
        """Return a planner without turns; `summary_room` None: the usual room for a summary."""
        counter = profile.counter()
        budget = profile.budget(counter)
        if summary_room is None:
            summary_room = self._summary_room(budget)
        planner = Planner(
            counter,
            budget,
            self.policy if self.state.is_trimming else OFF,
            self.state.tools or (),
            pins=self.state.pins,
            summary_room=summary_room if self.has_summary_note else 0,
        )
        planner.summary = self.state.summary or ""
        return planner

    def create_trial(self, system: str, summary_room: int | None = None) -> Planner:
        """Return a planner without turns, to see what another decision would result in."""
        planner = self.create(self.state.profile, summary_room)
        self.set_sizes(planner, system)
        return planner

    def create_like(self, full: Planner, turns: Turns, system: str) -> Planner:
        """Return a planner of other turns, with the counter and budget of the full one."""
        planner = Planner(full.counter, full.budget, self.policy, self.state.tools or ())
        self._set_system_size(planner, system)
        planner.extend(read_turns(turns))
        return planner

    def set_sizes(self, planner: Planner, system: str) -> None:
        """Set the sizes of the system text and of the room for a summary in it."""
        self._set_system_size(planner, system)
        if not self.has_summary_note:
            planner.summary_room = self._room_to_reserve(planner)

    def _set_system_size(self, planner: Planner, system: str) -> None:
        text = Message("system", words=(system,))
        planner.system_tokens = planner.counter.message(text) if system else 0
        tools = (
            json.dumps(tool, ensure_ascii=False, default=str) for tool in self.state.tools or ()
        )
        planner.foreign_bytes = measure_non_latin([Message("system", words=(system, *tools))])

    def _room_to_reserve(self, planner: Planner) -> int:
        """Return the tokens to keep free in the system text for a summary yet to be written."""
        if not self.summarizes:
            return 0
        return max(0, self._summary_room(planner.budget) - self.count_summary(planner.counter))

    def count_summary(self, counter: Counter) -> int:
        """Return the tokens of the summary; negative without one: its heading is missing too."""
        summary = self.state.summary
        return counter.text(summary) if summary else -counter.text(_SUMMARY_HEADING)

    def _summary_room(self, budget: Budget) -> int:
        if not self.summarizes and not self.state.summary:
            return 0
        return compute_summary_room(budget.limit, self.summary_chars)


def feed(planner: Planner, turns: Turns, trim: TrimRecord | None = None) -> None:
    """Give a planner all turns, and repeat a trim at its place among them."""
    views, trimmed = read_turns(turns), 0
    if trim is not None:
        trimmed, limit, mark, _ = trim
        planner.extend(views[:trimmed])
        trim_to_mark(planner, mark, limit)
    planner.extend(views[trimmed:])


def trim_to_mark(planner: Planner, mark: int, limit: int | None = None) -> Plan:
    """Trim to a mark, or as far as possible."""
    try:
        return planner.compact(mark, limit)
    except ContextOverflowError as error:
        return get_overflow_plan(error)


def read_turns(turns: Turns) -> list[Message]:
    return [openai_chat.read_message(turn, index) for index, turn in enumerate(turns)]
