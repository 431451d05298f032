"""Recorded conversations, fitted at each of their requests."""

from __future__ import annotations

import pytest

import brim
from benchmarks.recordings import Message, load
from benchmarks.validity import call_faults, has_new_neighbors, kept_faults, user_first
from brim.fitting.policies import PolicyName
from tests.support.histories import is_feasible, is_request_point

RECORDINGS = load()
MODEL = "gpt-4o"


def requests(messages: list[Message]) -> list[list[Message]]:
    return [messages[:end] for end in range(1, len(messages)) if is_request_point(messages[:end])]


@pytest.mark.parametrize("policy", ["steady", "thrift", "rolling", "sliding"])
@pytest.mark.parametrize("limit", [2_000, 4_000, 8_000])
def test_every_feasible_request_fits_and_is_valid(policy: PolicyName, limit: int) -> None:
    cut = 0
    for recording in RECORDINGS:
        for messages in requests(recording.messages):
            if not is_feasible(messages, limit):
                continue
            request = brim.fit(messages, model=MODEL, window=limit + 1, reply=1, policy=policy)
            cut += request.plan.is_trimmed
            assert request.plan.tokens <= limit
            assert not call_faults(request.messages)
            assert not kept_faults(request.messages, messages)
            assert user_first(request.messages)
            assert not has_new_neighbors(request.messages, messages, "user")
            assert not has_new_neighbors(request.messages, messages, "assistant")
    assert cut > 20, "the conversations are long enough to be trimmed"


@pytest.mark.parametrize(("policy", "least"), [("steady", 0.85), ("rolling", 0.95)])
def test_the_window_is_well_filled(policy: PolicyName, least: float) -> None:
    """Chats only: messages of a text-only agent may be as large as the window."""
    fills = []
    for recording in RECORDINGS:
        for limit in (2_000, 4_000):
            messages = recording.messages
            fits = brim.count(messages, model=MODEL) <= limit
            if not recording.chat or fits or not is_feasible(messages, limit):
                continue
            plan = brim.fit(messages, model=MODEL, window=limit + 1, reply=1, policy=policy).plan
            fills.append(plan.tokens / limit)
    assert sum(fills) / len(fills) >= least


def test_steady_changes_the_prefix_less_than_half_as_often_as_sliding() -> None:
    """All chats, joined to one long conversation."""
    system, *_ = RECORDINGS[-1].messages
    chats = [recording.messages[1:] for recording in RECORDINGS if recording.chat]
    whole = [system, *(message for messages in chats for message in messages)]
    changes: dict[PolicyName, int] = {"steady": 0, "sliding": 0}
    for policy in changes:
        before: list[Message] = []
        for messages in requests(whole):
            request = brim.fit(messages, model=MODEL, window=8_001, reply=1, policy=policy)
            changes[policy] += request.messages[: len(before)] != before
            before = request.messages
    assert changes["steady"] < changes["sliding"] / 2
