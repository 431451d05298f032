"""Session: appending turns and outputs of commands, and the requests built from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import brim
from brim.session.session import get_driver
from tests.support.sessions import (
    CALL,
    anthropic_message,
    completion,
    session,
)
from tests.support.strategies import Raw, history, text


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


# Appending


def test_an_error_names_the_index_of_the_invalid_turn() -> None:
    chat = session()
    chat.user("hi")
    chat.assistant(None, [CALL])
    for invalid in (
        {"role": "tool", "tool_call_id": "call_2", "content": "x"},
        {"role": "tool", "tool_call_id": 1, "content": "x"},
        {"role": "tool", "tool_call_id": "", "content": "x"},
        {"role": "function", "name": "run", "content": "x"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": []},
        {"role": "user", "content": []},
        {"role": "system", "content": None},
        {"role": "developer"},
        {"role": ""},
        {"content": "x"},
        "x",
        None,
    ):
        with pytest.raises(brim.MessageError, match="message 2"):
            chat.append(invalid)
    assert len(chat) == 2
    chat.tool("call_1", "")
    with pytest.raises(brim.MessageError, match="call_1"):
        chat.tool("call_1", "again")
    chat.user("next")
    with pytest.raises(brim.MessageError, match="call_1"):
        chat.tool("call_1", "too late")


def test_call_ids_may_repeat_and_results_may_come_in_any_order() -> None:
    chat = session()
    chat.user("hi")
    for _ in range(2):
        chat.assistant(None, [CALL, {**CALL, "id": "call_2"}])
        chat.tool("call_2", "b")
        chat.append({"role": "system", "content": "in between"})
        chat.tool("call_1", "a")
    assert not chat.request().plan.warnings


def test_two_user_turns_after_a_failed_request_are_valid() -> None:
    chat = session()
    chat.user("hi")
    chat.request()
    chat.user("are you there?")
    assert [turn["role"] for turn in chat.request().messages] == ["user", "user"]


def test_a_failed_append_keeps_the_waiting_output() -> None:
    chat = session()
    chat.add_output("listing")
    with pytest.raises(brim.MessageError):
        chat.user("")
    assert get_driver(chat).joined_outputs == "listing"
    chat.user("what is it?")
    assert get_driver(chat).joined_outputs == ""


def test_a_system_turn_with_more_than_text_stays_in_the_history() -> None:
    odd = {"role": "system", "content": [{"type": "odd", "value": 1}]}
    chat = session()
    chat.append(odd)
    chat.user("hi")
    assert chat.request().messages[0] == odd
    marked = {"role": "system", "content": "Be brief.", "cache_control": {"type": "ephemeral"}}
    chat = session()
    chat.append(marked)
    chat.user("hi")
    assert chat.request().messages[0] == marked


def test_inputs_are_copied_and_never_modified() -> None:
    parts: list[Raw] = [{"type": "text", "text": "hi"}]
    calls: list[Raw] = [{**CALL, "function": dict(CALL["function"])}]
    tools: list[Raw] = [
        {"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}
    ]
    options: Raw = {"stop": ["\n"]}
    before = json.dumps([parts, calls, tools, options])
    chat = session(tools=tools)
    chat.user(parts)
    chat.assistant(None, calls)
    chat.tool("call_1", "x")
    first = chat.request(**options)
    assert json.dumps([parts, calls, tools, options]) == before
    sent = json.dumps(dict(first))

    first["messages"][0]["content"][0]["text"] = "changed"
    first["messages"][1]["tool_calls"][0]["function"]["name"] = "changed"
    first["tools"][0]["function"]["parameters"]["type"] = "changed"
    first["stop"].append("changed")
    turns: Any = chat.history
    turns[0]["content"][0]["text"] = "changed"
    definitions: Any = chat.tools
    definitions[0]["function"]["name"] = "changed"
    parts[0]["text"] = "changed"
    calls[0]["function"]["name"] = "changed"
    tools[0]["function"]["name"] = "changed"
    assert json.dumps(dict(chat.request(stop=["\n"]))) == sent


@pytest.mark.parametrize("format_", ["openai", "anthropic", "responses"])
def test_internal_fields_are_never_sent(format_: Any) -> None:
    chat = brim.Session("claude-sonnet-4-5", window=4_000, format=format_)
    chat.append({"role": "user", "content": "hi", "_pin": True, "_priority": 2, "_mine": 1})
    chat.add_output("listing")
    thinking = {"type": "thinking", "thinking": "hm", "signature": "abc"}
    chat.receive(anthropic_message(thinking, {"type": "text", "text": "Hello."}))
    chat.user("and?")
    chat.receive(completion(None))
    chat.receive(completion(""))
    chat.user("well?")
    body = chat.request(max_tokens=5_000)
    assert not [key for key in _keys(dict(body)) if key.startswith("_")]
    again = chat.request(max_tokens=5_000)
    assert json.dumps(dict(again)) == json.dumps(dict(body))
    _modify(dict(body))
    assert json.dumps(dict(chat.request(max_tokens=5_000))) == json.dumps(dict(again))


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from _keys(item)


def _modify(value: Any) -> None:
    """Modify every object and list of a body."""
    if isinstance(value, dict):
        for item in value.values():
            _modify(item)
        value["modified"] = True
    elif isinstance(value, list):
        for item in value:
            _modify(item)
        value.append("modified")


# Outputs of commands


def test_outputs_are_sent_before_the_text_of_the_next_user_turn() -> None:
    chat = session()
    chat.add_output("a.py")
    chat.add_output("b.py\n")
    chat.add_output("  \n")
    assert len(chat) == 0
    waiting = chat.tokens
    chat.user("which one?")
    assert chat.request().messages == [
        {"role": "user", "content": "[exec output]\na.py\n\nb.py\n\n\nwhich one?"}
    ]
    assert chat.tokens > waiting > 3
    chat.user("continue")
    assert chat.request().messages[1] == {"role": "user", "content": "continue"}
    assert chat.history[0]["content"] == "which one?"


def test_an_output_before_content_parts_is_a_separate_part() -> None:
    chat = session()
    chat.add_output("a.py")
    chat.user([{"type": "text", "text": "which one?"}])
    assert chat.request().messages[0]["content"] == [
        {"type": "text", "text": "[exec output]\na.py"},
        {"type": "text", "text": "which one?"},
    ]


@pytest.mark.parametrize("limit", [0, 10, 60, 2_000])
def test_a_long_output_is_clipped_to_a_fifth_of_the_limit(limit: int) -> None:
    chat = session(window=limit + 1)
    text_ = chat.add_output("line of output\n" * 5_000, path="/tmp/output.txt")
    assert get_driver(chat).count_text(text_) <= max(
        limit * 0.2, get_driver(chat).count_text("[full output: /tmp/output.txt]")
    )
    assert "/tmp/output.txt" in text_
    assert get_driver(chat).joined_outputs == text_
    if limit == 2_000:
        assert text_.startswith("line of output")
        assert get_driver(chat).count_text(text_) > 200


def test_old_outputs_are_clipped_and_the_text_of_the_user_is_kept() -> None:
    chat = session()
    chat.user("begin")
    for number in range(12):
        chat.add_output(text(200, number))
        chat.user(f"what about {number}?")
        chat.assistant("fine")
        plan = chat.request().plan
    assert plan.outcome_counts().get("clipped")
    sent = json.dumps(chat.request().messages)
    for decision in plan.decisions:
        if decision.role == "user" and decision.outcome == "clipped":
            assert str(chat.history[decision.index]["content"]) in sent


def test_an_output_must_be_text() -> None:
    with pytest.raises(brim.InputError, match="text"):
        session().add_output(b"bytes")  # type: ignore[arg-type]
