"""Session: appending turns, and requests built from the history."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import brim
from tests.support.strategies import Raw, history, text


def session(**settings: Any) -> brim.Session:
    return brim.Session("gpt-4o", window=2_001, reply=1, **settings)


def test_a_session_sends_the_same_messages_as_fit() -> None:
    chat = session(system="Be brief.")
    for message in history("u20 " + "c20 r200 " * 30 + "a10 u5 " + "c9 r90 " * 9):
        chat.append(message)
        sent = chat.request()
        messages: list[Raw] = [{"role": "system", "content": "Be brief."}, *chat.history]
        fitted = brim.fit(messages, model="gpt-4o", window=2_001, reply=1)
        assert sent.messages == fitted.messages
        assert (sent.plan.before, sent.plan.tokens) == (fitted.plan.before, fitted.plan.tokens)
        assert sent.plan.decisions == [
            replace(decision, index=decision.index - 1) for decision in fitted.plan.decisions[1:]
        ]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_leading_system_message_becomes_the_system_prompt(role: str) -> None:
    chat = session()
    chat.append({"role": role, "content": "Be brief."})
    chat.append({"role": "user", "content": "hi"})
    assert chat.history == ({"role": "user", "content": "hi"},)
    assert chat.request().messages[0] == {"role": role, "content": "Be brief."}


def test_trimming_does_not_change_the_history() -> None:
    chat = session()
    turns = history("u20 " + "c20 r300 " * 40)
    for message in turns:
        chat.append(message)
    assert chat.request().plan.is_trimmed
    assert list(chat.history) == turns


def test_append_copies_the_message() -> None:
    chat = session()
    message: Raw = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    chat.append(message)
    message["content"][0]["text"] = "changed"
    assert chat.history[0]["content"] == [{"type": "text", "text": "hi"}]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"role": "banana", "content": "x"}, "banana"),
        ({"role": "user", "content": ""}, "needs content"),
        ({"role": "user"}, "needs content"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "content or tool calls"),
        ({"role": "tool", "content": "x"}, "tool_call_id"),
        ({"role": "tool", "tool_call_id": "unknown", "content": "x"}, "unknown"),
        ({"role": "tool", "tool_call_id": "call-1-0"}, "content"),
    ],
)
def test_an_invalid_turn_raises_and_is_not_appended(message: Raw, error: str) -> None:
    chat = session()
    for turn in history("u1 c1"):
        chat.append(turn)
    with pytest.raises(brim.MessageError, match=error) as caught:
        chat.append(message)
    assert caught.value.index == 2
    assert len(chat.history) == 2


def test_a_tool_result_may_be_empty_and_is_accepted_once() -> None:
    chat = session()
    for turn in history("u1 c1"):
        chat.append(turn)
    result = {"role": "tool", "tool_call_id": "call-1-0", "content": ""}
    chat.append(result)
    with pytest.raises(brim.MessageError, match="call-1-0"):
        chat.append(result)


def test_a_request_contains_model_and_tools_only_if_given() -> None:
    tools = [{"type": "function", "function": {"name": "run"}}]
    chat = brim.Session("gpt-4o", tools=tools)
    chat.append({"role": "user", "content": "hi"})
    assert set(chat.request()) == {"messages", "model", "tools"}
    plain = brim.Session(window=1_000)
    plain.append({"role": "user", "content": text(5)})
    assert set(plain.request()) == {"messages"}
