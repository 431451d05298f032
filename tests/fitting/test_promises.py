"""Guarantees for every input and every policy."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brim
from brim.fitting.api import prefix_cache
from brim.fitting.history import History, HistoryView
from brim.fitting.plan import get_overflow_plan
from brim.fitting.policies import PolicyName, steady_share
from brim.fitting.trim import compute_low_water_mark
from brim.tokens import counter_for
from tests.support.histories import is_feasible, is_request_point, pairs_are_whole
from tests.support.strategies import Raw, histories, limits, policies

MODEL = "gpt-4o"

TOOLS = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}]


def fit(messages: list[Raw], limit: int, policy: PolicyName, **more: Any) -> brim.Request:
    return brim.fit(messages, model=MODEL, window=limit + 1, reply=1, policy=policy, **more)


def fit_messages(
    messages: list[Raw], limit: int, policy: PolicyName, **more: Any
) -> brim.Request | None:
    """Return the fitted request, or None on `ContextOverflowError`."""
    try:
        return fit(messages, limit, policy, **more)
    except brim.ContextOverflowError as error:
        overflow = error
    assert overflow.plan.size == overflow.tokens > overflow.limit == limit
    return None


# 1. Never above the limit


@given(histories(), limits, policies, st.sampled_from((None, TOOLS)))
def test_a_request_takes_at_most_the_limit(
    messages: list[Raw], limit: int, policy: PolicyName, tools: Any
) -> None:
    request = fit_messages(messages, limit, policy, tools=tools)
    if request is not None:
        assert (
            brim.count(request.messages, model=MODEL, tools=tools) == request.plan.tokens <= limit
        )


# 2. Always valid


def neighbours(messages: list[Raw]) -> list[tuple[Raw, Raw]]:
    turns = [m for m in messages if m["role"] not in ("system", "developer")]
    return list(pairwise(turns))


@given(histories(marks=False), limits, policies)
def test_a_trimmed_request_is_valid(messages: list[Raw], limit: int, policy: PolicyName) -> None:
    request = fit_messages(messages, limit, policy)
    if request is None or not request.plan.is_trimmed:
        return
    out = request.messages
    assert pairs_are_whole(out)
    turns = [m["role"] for m in out if m["role"] not in ("system", "developer")]
    if "user" in (m["role"] for m in messages):
        assert turns[0] == "user"


@given(histories(marks=False), limits, policies)
def test_trimming_creates_no_neighbours_of_the_same_role(
    messages: list[Raw], limit: int, policy: PolicyName
) -> None:
    request = fit_messages(messages, limit, policy)
    if request is None:
        return
    turns = [i for i, m in enumerate(messages) if m["role"] not in ("system", "developer")]
    place = {index: number for number, index in enumerate(turns)}
    kept = [index for index in request.plan.sent_indices if index in place]
    noted = {note.at for note in request.plan.notes if note.role != "paragraph"}
    for before, after in pairwise(kept):
        roles = messages[before]["role"], messages[after]["role"]
        if roles in (("user", "user"), ("assistant", "assistant")):
            assert place[after] == place[before] + 1 or after in noted
    for one, other in neighbours(request.messages):
        if one["role"] == other["role"] in ("user", "assistant"):
            assert one in messages or other in messages, "a note creates no new pair"


@given(histories(), limits, policies)
def test_system_messages_are_unchanged_and_in_order(
    messages: list[Raw], limit: int, policy: PolicyName
) -> None:
    request = fit_messages(messages, limit, policy)
    if request is None:
        return
    for role in ("system", "developer"):
        total = [m["content"] for m in messages if m["role"] == role]
        assert [m["content"] for m in request.messages if m["role"] == role] == total


@given(histories(marks=False), limits, policies)
def test_a_feasible_history_fits(messages: list[Raw], limit: int, policy: PolicyName) -> None:
    if is_feasible(messages, limit):
        assert fit(messages, limit, policy).plan.fits


@given(histories(faults=False, marks=False), limits, policies)
def test_a_feasible_history_fits_and_keeps_the_last_user_message(
    messages: list[Raw], limit: int, policy: PolicyName
) -> None:
    if not messages or not is_feasible(messages, limit):
        return
    request = fit(messages, limit, policy)
    users = [m for m in messages if m["role"] == "user"]
    assert all(user in request.messages for user in users[-1:])
    assert request.messages[-1] == messages[-1]


# 3. No needless changes


@given(histories(), policies)
def test_a_conversation_that_fits_is_returned_as_the_same_objects(
    messages: list[Raw], policy: PolicyName
) -> None:
    size = brim.count(messages, model=MODEL)
    request = fit(messages, int(size), policy)
    assert not request.plan.is_trimmed
    assert len(request.messages) == len(messages)
    for before, after in zip(messages, request.messages, strict=True):
        private = any(key.startswith("_") for key in before)
        assert private or after is before
        assert after == {key: value for key, value in before.items() if key[0] != "_"}


# 4. Deterministic and idempotent


@given(histories(), limits, policies)
def test_the_same_input_gives_the_same_output_with_or_without_cache(
    messages: list[Raw], limit: int, policy: PolicyName
) -> None:
    first = fit_messages(messages, limit, policy)
    prefix_cache.clear()
    second = fit_messages(copy.deepcopy(messages), limit, policy)
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert first.messages == second.messages
        assert first.plan.to_dict() == second.plan.to_dict()


@given(histories(), limits, policies)
def test_fitting_a_fitted_request_changes_nothing(
    messages: list[Raw], limit: int, policy: PolicyName
) -> None:
    request = fit_messages(messages, limit, policy)
    if request is not None:
        again = fit(request.messages, limit, policy)
        assert all(a is b for a, b in zip(request.messages, again.messages, strict=True))


# 5. Cache-stable


@given(histories(marks=False), st.integers(100, 3_000))
def test_a_trim_happens_only_when_it_is_due(messages: list[Raw], limit: int) -> None:
    """Until then, every request starts with the messages of the previous one."""
    before: list[Raw] = []
    edit: tuple[int, int, int] | None = None
    for end in range(1, len(messages) + 1):
        if not is_request_point(messages[:end]):
            continue
        prefix_cache.clear()
        request = fit_messages(messages[:end], limit, "steady")
        if request is None:
            return
        if request.messages[: len(before)] != before:
            total = request.plan.before
            users = [m["role"] for m in messages[:end]].count("user")
            if edit is None:
                assert total > limit
            elif users > 1 or messages[end - 1]["role"] != "user":
                # (the first user message makes the messages before it invalid)
                came_in, size, mark = edit
                slack = limit - mark if size <= mark else limit - size - NOTES
                assert total - came_in > slack - NOTES * len(request.plan.warnings)
            edit = total, request.plan.tokens, mark_of(request)
        before = request.messages


NOTES = 60
"""Tokens reserved for the note at a gap."""


@given(histories(faults=False, marks=False), st.integers(300, 3_000))
def test_the_prefix_changes_no_more_often_than_documented(messages: list[Raw], limit: int) -> None:
    changes, before = 0, None
    lowest = limit
    for end in range(1, len(messages) + 1):
        if not is_request_point(messages[:end]):
            continue
        request = fit_messages(messages[:end], limit, "steady")
        if request is None:
            return
        if before is not None and request.messages[: len(before)] != before:
            changes += 1
        before = request.messages
        if request.plan.is_trimmed:
            lowest = min(lowest, mark_of(request))
            if request.plan.tokens > mark_of(request) and not continues(request):
                return  # no guarantee after a trim that could not reach its mark
    if before is not None and lowest < limit:
        total = int(brim.count(messages, model=MODEL))
        assert changes <= 1 + total / (limit - lowest)


def mark_of(request: brim.Request) -> int:
    history = history_of(request)
    view = HistoryView(history, history.end, 3, request.plan.limit, 0)
    return compute_low_water_mark(view, steady_share)


def continues(request: brim.Request) -> bool:
    """Return whether the request continues from an earlier trim."""
    runs = request.plan.dropped_runs
    trimmed = max([run.stop for run in runs] + list(request.plan.changes), default=0)
    return any(point > trimmed for point, _ in history_of(request).request_points[:-1])


def history_of(request: brim.Request) -> History:
    history = History(counter_for(MODEL))
    history.extend(request.plan.history.messages[: request.plan.length])
    history.group()
    return history


# 6. The input is not changed


@given(histories(), limits, policies)
def test_the_input_is_never_changed(messages: list[Raw], limit: int, policy: PolicyName) -> None:
    before = copy.deepcopy(messages)
    fit_messages(messages, limit, policy)
    assert messages == before


# 7. Every decision is explained


@given(histories(), limits, policies)
def test_decisions_and_notes_add_up_to_the_difference(
    messages: list[Raw], limit: int, policy: PolicyName
) -> None:
    try:
        plan = fit(messages, limit, policy).plan
    except brim.ContextOverflowError as error:
        plan = get_overflow_plan(error)
    decisions = plan.decisions
    assert [decision.index for decision in decisions] == list(range(len(messages)))
    assert all(decision.reason for decision in decisions)
    saved = sum(decision.before - decision.after for decision in decisions)
    assert plan.before - plan.tokens == saved - sum(note.tokens for note in plan.notes)
    for decision in decisions:
        changed = decision.after < decision.before
        assert changed == (decision.outcome in ("clipped", "masked", "dropped"))


# 8. A session gives the same results as fit


@given(histories(faults=False, marks=False), limits, policies)
def test_a_session_sends_what_fit_sends(
    messages: list[Raw], limit: int, policy: PolicyName
) -> None:
    session = brim.Session(MODEL, window=limit + 1, reply=1, policy=policy)
    for end, message in enumerate(messages, 1):
        try:
            session.append(message)
        except brim.MessageError:
            return  # stricter than fit: an empty message
        request = fit_messages(messages[:end], limit, policy)
        if request is None:
            with pytest.raises(brim.ContextOverflowError):
                session.request()
        else:
            assert session.request().messages == request.messages


@given(histories(), limits, policies)
def test_a_grown_history_is_fitted_as_if_it_were_new(
    messages: list[Raw], limit: int, policy: PolicyName
) -> None:
    cold = []
    for end in range(len(messages) + 1):
        prefix_cache.clear()
        request = fit_messages(messages[:end], limit, policy)
        cold.append(request and (request.messages, request.plan.to_dict()))
    prefix_cache.clear()
    for end in range(len(messages) + 1):
        request = fit_messages(messages[:end], limit, policy)
        assert cold[end] == (request and (request.messages, request.plan.to_dict()))
