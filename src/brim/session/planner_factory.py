"""The planners of a conversation, made from the composer's state.

Their counts include the tools, the system text and a summary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from brim.errors import ContextOverflowError
from brim.fitting.budget import Budget
from brim.fitting.flow import apply_ratio
from brim.fitting.plan import Plan, get_overflow_plan
from brim.fitting.planner import Planner
from brim.fitting.policies import OFF
from brim.fitting.profile import ModelProfile
from brim.fitting.summarizer import SUMMARY_HEADING, compute_summary_room
from brim.fitting.trim import TrimRecord
from brim.messages import Message
from brim.session.composer_state import ComposerState
from brim.session.system_prompt import BLOCK_SEPARATOR
from brim.tokens import Counter
from brim.tokens.counter import measure_non_latin
from brim.wire import openai_chat

_SUMMARY_HEADING: Final = f"{BLOCK_SEPARATOR}{SUMMARY_HEADING}\n"

Turns = Sequence[Mapping[str, Any]]


def resume_planner(state: ComposerState, turns: Turns) -> tuple[Planner, ComposerState]:
    """Return a planner that has repeated the last trim, and the state that belongs to it."""
    profile, trim = state.profile, None
    snapshot, requested = state.snapshot, state.compacted
    if snapshot is not None and snapshot.model == profile.model:
        planner = _create_planner(state, profile.with_calibration(snapshot.known))
        if planner.budget.room == snapshot.room:
            set_sizes(planner, state, snapshot.system)
            if snapshot.ratio is not None:
                apply_ratio(planner, snapshot.ratio)
            feed(planner, turns, snapshot.trim)
            return planner, state.continue_from(snapshot)
    room = None if requested is None or state.summarizes else requested.summary_room
    planner = _create_planner(state, profile, room)
    if requested is not None:
        set_sizes(planner, state, state.system)
        mark = requested.low_water_mark + planner.system_tokens
        trim = requested._replace(limit=planner.budget.limit, low_water_mark=mark)
    feed(planner, turns, trim)
    return planner, replace(state, counted_with=profile.calibration)


def _create_planner(
    state: ComposerState, profile: ModelProfile, summary_room: int | None = None
) -> Planner:
    """Return a planner without turns; `summary_room` None: the usual room for a summary."""
    counter = profile.counter()
    budget = profile.budget(counter)
    if summary_room is None:
        summary_room = _summary_room(state, budget)
    planner = Planner(
        counter,
        budget,
        state.policy if state.is_trimming else OFF,
        state.offered_tools,
        pins=state.pins,
        summary_room=summary_room if state.has_summary_note else 0,
        recall_hint=state.recall_hint,
    )
    planner.summary = state.summary or ""
    return planner


def create_trial(state: ComposerState, system: str, summary_room: int | None = None) -> Planner:
    """Return a planner without turns, to see what another decision would result in."""
    planner = _create_planner(state, state.profile, summary_room)
    set_sizes(planner, state, system)
    return planner


def create_like(full: Planner, state: ComposerState, turns: Turns, system: str) -> Planner:
    """Return a planner of other turns, with the counter and budget of the full one."""
    planner = Planner(full.counter, full.budget, state.policy, state.offered_tools)
    _set_system_size(planner, state, system)
    feed(planner, turns)
    return planner


def set_sizes(planner: Planner, state: ComposerState, system: str) -> None:
    """Set the sizes of the system text and of the room for a summary in it."""
    _set_system_size(planner, state, system)
    if not state.has_summary_note:
        planner.summary_room = 0
        if state.summarizes:  # room in the system text for a summary yet to be written
            room = _summary_room(state, planner.budget) - count_summary(state, planner.counter)
            planner.summary_room = max(0, room)


def _set_system_size(planner: Planner, state: ComposerState, system: str) -> None:
    text = Message("system", words=(system,))
    counter = planner.counter
    planner.system_tokens = counter.message(text) if system else counter.default_system
    tools = (json.dumps(tool, ensure_ascii=False, default=str) for tool in state.offered_tools)
    planner.foreign_bytes = measure_non_latin([Message("system", words=(system, *tools))])


def count_summary(state: ComposerState, counter: Counter) -> int:
    """Return the tokens of the summary; negative without one: its heading is missing too."""
    summary = state.summary
    return counter.text(summary) if summary else -counter.text(_SUMMARY_HEADING)


def _summary_room(state: ComposerState, budget: Budget) -> int:
    if not state.summarizes and not state.summary:
        return 0
    return compute_summary_room(budget.limit, state.summary_chars)


def feed(planner: Planner, turns: Turns, trim: TrimRecord | None = None) -> None:
    """Give a planner all turns, and repeat a trim at its place among them."""
    views = [openai_chat.read_message(turn, index) for index, turn in enumerate(turns)]
    trimmed = 0
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
