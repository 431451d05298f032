"""OpenAI chat completions: reading messages and writing them back."""

from __future__ import annotations

from typing import Any

import pytest

import brim
from brim.messages import Call, Media, Message
from brim.wire import openai_chat
from brim.wire.openai_chat import read_message
from tests.support.strategies import Raw, call, text
from tests.support.wire.bodies import PIXEL
from tests.support.wire.trims import MODEL, drop_thinking, drop_units, output, trim_body

LONG = text(300, 1)
IMAGE: Raw = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}


def user(content: Any, **more: Any) -> Raw:
    return {"role": "user", "content": content, **more}


def calls(*names: str, **more: Any) -> Raw:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [call(n, "x") for n in names],
        **more,
    }


def result(name: str, content: Any = "done", **more: Any) -> Raw:
    return {"role": "tool", "tool_call_id": name, "content": content, **more}


def body(*messages: Raw) -> Raw:
    return {"messages": list(messages)}


# Reading


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("system", "system"),
        ("developer", "system"),
        ("user", "user"),
        ("assistant", "assistant"),
        ("tool", "tool"),
        ("function", "tool"),
        ("critic", "other"),
    ],
)
def test_roles(name: str, role: str) -> None:
    message = read_message({"role": name, "content": "x"}, 0)
    assert message.role == role
    assert (message.outputs if role == "tool" else message.words) == ("x",)


def test_parts_are_text_media_or_unknown() -> None:
    message = read_message(
        user(
            [
                {"type": "text", "text": "look"},
                IMAGE,
                {"type": "image_url", "image_url": {"url": "https://example.com", "detail": "low"}},
                {"type": "input_audio", "input_audio": {"data": "abcd"}},
                {"type": "file", "file": {"file_data": "abcd"}},
                {"type": "odd", "value": [1, 2]},
                "as it is",
            ],
            name="anna",
        ),
        0,
    )
    assert message.words == ("look", "as it is")
    assert message.media == (
        Media("image", 1, 1, size=72),
        Media("image", detail="low"),
        Media("audio", size=3),
        Media("file", size=3),
    )
    assert message.extras == ('{"type":"odd","value":[1,2]}', "anna")


def test_missing_content_is_no_text() -> None:
    assert read_message({"role": "assistant", "content": None}, 0).words == ()
    assert read_message({"role": "assistant"}, 0).words == ()
    assert read_message(user([]), 0).words == ()


def test_calls_are_read_from_any_of_their_shapes() -> None:
    function = {"id": "a", "function": {"name": "run", "arguments": '{"a": 1}'}}
    as_object = {"id": "b", "function": {"name": "run", "arguments": {"a": 1}}}
    custom = {"id": "c", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
    message = read_message({"role": "assistant", "tool_calls": [function, as_object, custom]}, 0)
    assert message.calls == (
        Call("a", "run", '{"a": 1}'),
        Call("b", "run", '{"a":1}'),
        Call("c", "sql", "select 1"),
    )


def test_a_legacy_function_call_is_answered_by_its_name() -> None:
    calling = {"role": "assistant", "function_call": {"name": "run", "arguments": "{}"}}
    result_message = {"role": "function", "name": "run", "content": LONG}
    assert read_message(calling, 0).calls == (Call("run", "run", "{}"),)
    assert read_message(result_message, 1).answers == "run"
    request = brim.fit(body(user("go"), calling, result_message), model=MODEL, window=200, reply=1)
    assert not request.plan.warnings
    assert request.messages[1] is calling
    assert request.messages[2]["name"] == "run"


def test_thinking_is_read_from_any_of_its_fields() -> None:
    for field in ("reasoning_content", "reasoning"):
        assert read_message({"role": "assistant", "content": "x", field: "hm"}, 0).thinking == (
            "hm",
        )
    details = read_message(
        {"role": "assistant", "content": "x", "reasoning_details": [{"text": "hm"}]}, 0
    )
    assert details.thinking == ('[{"text":"hm"}]',)


def test_reserved_fields() -> None:
    message = read_message(user("x", _pin=True, _priority=-2), 0)
    assert (message.pin, message.priority, message.private) == (True, -2, True)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("hello", "must be a mapping, but is a str"),
        (None, "must be a mapping, but is null"),
        ({"content": "hello"}, "has no role"),
        ({"role": "", "content": "hello"}, "has no role"),
        (user(7), "content must be text, parts or null, but is an int"),
        ({"role": "assistant", "tool_calls": "x"}, "tool_calls must be a list, but is a str"),
        ({"role": "assistant", "tool_calls": ["x"]}, "a tool call must be a mapping"),
        (user("x", _priority="high"), "_priority must be a whole number, but is a str"),
    ],
)
def test_the_error_names_an_invalid_message(message: Any, reason: str) -> None:
    with pytest.raises(brim.MessageError, match=reason) as caught:
        brim.count([user("go"), message])
    assert caught.value.index == 1
    assert str(caught.value).startswith("message 1: ")


def test_a_reader_continues_where_it_stopped() -> None:
    reader = openai_chat.ChatReader()
    assert reader.read(body(user("a"))) == [Message("user", ("a",))]
    assert reader.read(body(user("a"), user("b"))) == [Message("user", ("b",))]


# Writing


def test_every_output_limit_is_lowered_to_the_room() -> None:
    limits = {"max_tokens": 5_000, "max_completion_tokens": 300}
    out = brim.fit(body(user(text(300))) | limits, model=MODEL, window=1_500, reply=200)
    assert out["max_tokens"] == 1_500 - out.plan.tokens
    assert out["max_completion_tokens"] == 300


def test_unchanged_messages_are_the_same_objects_without_private_fields() -> None:
    given = body(user("go", _pin=True, x_odd=1), calls("a"), result("a", [IMAGE]))
    out = brim.fit(given, model=MODEL, window=9_999).messages
    assert out[0] == user("go", x_odd=1)
    assert all(
        after is before for after, before in zip(out[1:], given["messages"][1:], strict=True)
    )
    assert given["messages"][0]["_pin"]


def test_a_clipped_output_keeps_its_other_fields_and_parts() -> None:
    parts = [{"type": "text", "text": LONG, "x": 1}, IMAGE, {"type": "text", "text": "last"}]
    given = body(user("go"), calls("a", "b"), result("a", LONG, y=2, x=1), result("b", parts))
    out = trim_body(given, output(2, "short"), output(3, "brief")).messages
    assert out[2] == result("a", "short", y=2, x=1)
    assert out[3] == result("b", [{"type": "text", "text": "brief", "x": 1}, IMAGE])


def test_thinking_is_removed_from_all_its_fields() -> None:
    thoughtful = {"role": "assistant", "content": "x", "reasoning": LONG, "reasoning_content": "y"}
    given = body(user("go"), thoughtful, user("then"))
    assert trim_body(given, drop_thinking(1)).messages[1] == {"role": "assistant", "content": "x"}


def test_a_step_is_dropped_with_its_results_and_a_note_separates_user_turns() -> None:
    given = body(user("go"), calls("a", "b"), result("b"), result("a", LONG), user("then"))
    out = trim_body(given, drop_units(1))["messages"]
    assert [message["role"] for message in out] == ["user", "assistant", "user"]
    assert out[1]["content"].startswith("[brim: 3 messages (about ")


def test_a_note_is_the_last_paragraph_of_the_turn_before_the_gap() -> None:
    def add_note(*before: Raw) -> Any:
        given = body(user("go"), *before, user(LONG), calls("z"), result("z"), user("then"))
        return trim_body(given, drop_units(2, 3), notes=True).messages[len(before)]["content"]

    note = "[brim: 3 messages (about "
    assert add_note({"role": "assistant", "content": "one"}).startswith("one\n\n" + note)
    assert add_note(calls("a"), result("a")).startswith("done\n\n" + note)
    assert add_note(calls("a"), result("a", [IMAGE]))[1]["text"].startswith(note)


@pytest.mark.parametrize("model", ["gpt-4o", "claude-opus-5"])
def test_an_image_without_a_source_counts_as_an_image(model: str) -> None:
    turns = [{"role": "user", "content": [{"type": "image"}]}]
    assert brim.count(turns, model=model) > 1_000
    assert brim.count({"model": model, "system": "x", "messages": turns}) > 1_000
