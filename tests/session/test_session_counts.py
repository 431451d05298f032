"""Counts of a session before and after the server reports usage."""

from __future__ import annotations

import pytest

import brim
from brim.fitting.policies import PolicyName
from tests.support.sessions import (
    CALL,
    UNKNOWN,
    completion,
    session,
)
from tests.support.strategies import text


def test_tool_arguments_and_short_turns_are_counted() -> None:
    chat = session(window=100_000)
    chat.user("hi")
    small = chat.tokens
    chat.assistant("ok")
    assert chat.tokens >= small + 4
    call = {**CALL, "function": {"name": "run", "arguments": "word " * 8_000}}
    chat.assistant(None, [call])
    assert chat.tokens > 8_000


def test_max_tokens_is_lowered_to_the_room_left_and_never_added() -> None:
    chat = brim.Session("gpt-4o", window=4_000, reply=500)
    chat.user("hi")
    assert "max_tokens" not in chat.request()
    request = chat.request(max_tokens=50_000)
    assert request["max_tokens"] == 4_000 - request.plan.size
    assert chat.request(max_tokens=100)["max_tokens"] == 100


def test_reported_usage_does_not_change_trims_if_the_count_is_exact() -> None:
    unreported, reported = session(), session()
    for number in range(60):
        for chat in (unreported, reported):
            chat.user(text(20, number))
        sent = unreported.request()
        assert reported.request().messages == sent.messages
        unreported.receive(completion("ok"))
        reported.receive(completion("ok", sent.plan.size + (-5, 0, 9)[number % 3]))


@pytest.mark.parametrize("model", [UNKNOWN, "gpt-4o"])
@pytest.mark.parametrize("policy", ["steady", "thrift", "rolling", "sliding"])
def test_usage_that_excludes_cached_tokens_does_not_cause_an_overflow(
    model: str, policy: PolicyName
) -> None:
    tools = [{"type": "function", "function": {"name": "run"}}]
    chat = brim.Session(model, window=2_001, reply=1, policy=policy, tools=tools)
    for number in range(60):
        chat.user(text(20, number))
        request = chat.request()
        assert brim.count(request.messages, model="gpt-4o") <= 2_000
        chat.receive(completion("ok", 12))


@pytest.mark.parametrize("policy", ["steady", "thrift", "rolling", "sliding"])
def test_without_reported_usage_the_margin_covers_a_denser_tokenizer(
    policy: PolicyName,
) -> None:
    chat = brim.Session(UNKNOWN, window=2_001, reply=1, policy=policy)
    for number in range(90):
        chat.user(f"{number} the budget of the parser reads a file, and writes another one")
        request = chat.request()
        assert 1.25 * brim.count(request.messages, model="gpt-4o") <= 2_000
        chat.assistant("yes it does")
    assert request.plan.is_trimmed


class FailingTokenizer:
    name = "failing"

    def count(self, text: str) -> int:
        raise RuntimeError(text)


def test_a_session_survives_a_tokenizer_that_raises() -> None:
    chat = brim.Session(UNKNOWN, window=2_001, reply=1, tokenizer=FailingTokenizer())
    chat.user("hi")
    assert chat.request().messages == [{"role": "user", "content": "hi"}]
