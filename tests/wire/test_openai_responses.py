"""OpenAI responses: reading bodies and writing them back."""

from __future__ import annotations

from typing import Any

import pytest

import brim
from brim.messages import Call, Media
from brim.wire.formats import RESPONSES, read_messages
from brim.wire.notes import gap_note
from tests.support.strategies import Raw, text
from tests.support.wire.bodies import PIXEL, find_responses_violations
from tests.support.wire.trims import MODEL, drop_units, output, trim_body

LONG = text(300, 1)
REASONING: Raw = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x" * 300}
SCREEN: Raw = {"type": "computer_screenshot", "image_url": f"data:image/png;base64,{PIXEL}"}


def user(content: Any, **more: Any) -> Raw:
    return {"role": "user", "content": content, **more}


def assistant(words: str, **more: Any) -> Raw:
    part = {"type": "output_text", "text": words, "annotations": []}
    return {"type": "message", "role": "assistant", "content": [part], **more}


def calls(name: str, **more: Any) -> Raw:
    return {"type": "function_call", "call_id": name, "name": "run", "arguments": "{}", **more}


def result(name: str, output: Any = "done", **more: Any) -> Raw:
    return {"type": "function_call_output", "call_id": name, "output": output, **more}


def body(*items: Raw, **more: Any) -> Raw:
    return {"input": list(items), **more}


# Reading


def test_a_text_is_one_user_turn_and_stays_text() -> None:
    given = {"input": "Hello", "instructions": "Be brief."}
    system, turn = read_messages(given, RESPONSES)
    assert (system.role, system.words) == ("system", ("Be brief.",))
    assert (turn.role, turn.words) == ("user", ("Hello",))
    out = brim.fit(given, model=MODEL, window=9_999)
    assert dict(out) == {**given, "model": MODEL}


def test_consecutive_items_are_one_turn_and_each_output_is_one() -> None:
    turns = read_messages(
        body(
            {"role": "developer", "content": "Be brief."},
            user([{"type": "input_text", "text": "go"}]),
            REASONING,
            assistant("I look"),
            calls("a"),
            {"type": "custom_tool_call", "call_id": "b", "name": "sql", "input": "select 1"},
            {"type": "custom_tool_call_output", "call_id": "b", "output": "1"},
            result("a"),
            REASONING,
            assistant("That is it."),
        ),
        RESPONSES,
    )
    roles = ["system", "user", "assistant", "tool", "tool", "assistant"]
    assert [turn.role for turn in turns] == roles
    assert turns[2].words == ("I look",)
    assert turns[2].calls == (Call("a", "run", "{}"), Call("b", "sql", "select 1"))
    assert [turn.answers for turn in turns[3:5]] == ["b", "a"]
    assert len(turns[5].extras) == 1


def test_encrypted_text_counts_by_a_third() -> None:
    (turn,) = read_messages(body(REASONING), RESPONSES)
    assert turn.extras[0].count("x") == 100


def test_media() -> None:
    (turn,) = read_messages(
        body(
            user(
                [
                    {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"},
                    {"type": "input_image", "file_id": "f", "detail": "low"},
                    {"type": "input_file", "file_data": "abcd" * 100},
                    {"type": "input_audio", "input_audio": {"data": "abcd"}},
                ]
            )
        ),
        RESPONSES,
    )
    assert turn.media == (
        Media("image", 1, 1, size=72),
        Media("image", detail="low"),
        Media("file", size=300),
        Media("audio", size=3),
    )
    made = {"type": "image_generation_call", "id": "ig", "result": PIXEL}
    assert read_messages(body(made), RESPONSES)[0].media == (Media("image", 1, 1, size=72),)


@pytest.mark.parametrize(
    ("call", "output_item"),
    [
        ({"type": "computer_call", "call_id": "c"}, {"type": "computer_call_output"}),
        ({"type": "shell_call", "call_id": "c"}, {"type": "shell_call_output"}),
        ({"type": "anything_call", "call_id": "c"}, {"type": "anything_call_output"}),
        (
            {"type": "local_shell_call", "call_id": "c", "id": "lsc"},
            {"type": "local_shell_call_output", "id": "c", "call_id": None},
        ),
        (
            {"type": "mcp_approval_request", "id": "c", "name": "n", "arguments": "{}"},
            {"type": "mcp_approval_response", "approval_request_id": "c", "approve": True},
        ),
        ({"type": "item_reference", "id": "fc_1"}, {"type": "function_call_output"}),
        ({"id": "fc_1"}, {"type": "function_call_output"}),
    ],
)
def test_a_call_of_any_kind_is_answered_by_its_output(call: Raw, output_item: Raw) -> None:
    given = body(user("go"), call, {"call_id": "c", **output_item})
    request = brim.fit(given, model=MODEL, window=9_999)
    assert not request.plan.warnings
    assert [turn.role for turn in read_messages(given, RESPONSES)] == [
        "user",
        "assistant",
        "tool",
    ]


def test_server_side_tools_need_no_output() -> None:
    given = body(
        user("go"),
        {"type": "web_search_call", "id": "ws"},
        {"type": "tool_search_call", "call_id": None, "execution": "server"},
        {"type": "tool_search_output", "call_id": None, "tools": []},
        {"type": "mcp_call", "id": "m", "output": "x"},
        user("and?"),
    )
    assert [turn.role for turn in read_messages(given, RESPONSES)] == [
        "user",
        "assistant",
        "user",
    ]
    assert not brim.fit(given, model=MODEL, window=9_999).plan.warnings


def test_a_program_and_the_calls_it_makes_are_one_turn() -> None:
    by_program = {"caller": {"type": "program", "caller_id": "p"}}
    given = body(
        user("go"),
        {"type": "program", "call_id": "p", "code": "f()"},
        calls("a", **by_program),
        result("a", **by_program),
        calls("b", **by_program),
        result("b", **by_program),
        {"type": "program_output", "call_id": "p", "result": "7"},
        assistant("seven"),
    )
    turns = read_messages(given, RESPONSES)
    assert [turn.role for turn in turns] == ["user", "assistant", "assistant"]
    assert not turns[1].calls


def test_configuration_updates_are_system_turns_and_a_compaction_is_pinned() -> None:
    turns = read_messages(
        body(
            {"type": "additional_tools", "role": "developer", "tools": []},
            {"type": "configuration_update", "reasoning": {"effort": "low"}},
            user("go"),
            {"type": "compaction", "encrypted_content": "x"},
        ),
        RESPONSES,
    )
    assert [turn.role for turn in turns] == ["system", "system", "user", "assistant"]
    assert [turn.pin for turn in turns] == [False, False, False, True]


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ("hello", "must be a mapping, but is a str"),
        ({"content": "hello"}, "has neither a role nor a type"),
        ({"role": "user", "content": 7}, "content must be text or a list, but is an int"),
        ({"role": "user", "content": ["hello"]}, "part 0 of content must be a mapping"),
        ({"role": "user", "content": "x", "_priority": "high"}, "_priority must be a whole number"),
    ],
)
def test_the_error_names_an_invalid_message(item: Any, reason: str) -> None:
    with pytest.raises(brim.MessageError, match=reason) as caught:
        read_messages(body(user("go"), item), RESPONSES)
    assert caught.value.index == 1


def test_an_input_that_is_neither_text_nor_list_is_rejected() -> None:
    with pytest.raises(brim.InputError, match="`input` must be text or a list of items, not int"):
        brim.count({"input": 7})


# A history kept by the server


@pytest.mark.parametrize("more", [{"previous_response_id": "resp_1"}, {"conversation": "conv_1"}])
def test_a_history_kept_by_the_server_is_forwarded_unchanged(more: Raw) -> None:
    given = body(user(LONG), assistant(LONG), user(LONG), **more)
    assert not RESPONSES.is_fittable(given)
    out = brim.fit(given, model=MODEL, window=100, reply=1)
    assert all(now is was for now, was in zip(out.messages, given["input"], strict=True))
    assert brim.fit(more, model=MODEL, window=100, reply=1)["model"] == MODEL


def test_without_a_server_side_id_the_body_is_complete() -> None:
    given = {"input": "x", "previous_response_id": None, "conversation": None}
    assert RESPONSES.is_fittable(given)


# Writing


def test_a_step_is_dropped_with_its_reasoning_and_outputs() -> None:
    step = [REASONING, assistant("I look"), calls("a"), calls("b"), result("b", LONG), result("a")]
    given = body(user("go"), *step, REASONING, assistant("done"), user("and?"))
    out = trim_body(given, drop_units(1)).messages
    assert out == [given["input"][0], *given["input"][7:]]
    assert out[1] is REASONING
    assert not find_responses_violations({"input": out})


def test_a_clipped_output_keeps_its_other_fields_and_parts() -> None:
    image = {"type": "input_image", "file_id": "f"}
    parts = [
        {"type": "input_text", "text": LONG, "x": 1},
        image,
        {"type": "input_text", "text": "y"},
    ]
    given = body(user("go"), calls("a"), calls("b"), result("a", LONG, x=1), result("b", parts))
    out = trim_body(given, output(2, "short"), output(3, "brief")).messages
    assert out[3] == result("a", "short", x=1)
    assert out[4] == result("b", [{"type": "input_text", "text": "brief", "x": 1}, image])
    emptied = trim_body(given, output(3, "")).messages[4]
    assert emptied == result("b", [image])


def test_a_note_is_the_last_paragraph_of_the_turn_before_the_gap() -> None:
    def add_note(*before: Raw) -> list[Raw]:
        given = body(user("go"), *before, user(LONG), assistant("yes"), user("then"))
        out = trim_body(given, drop_units(2, 3), notes=True).messages
        assert out[0] is given["input"][0]
        assert out[-1] is given["input"][-1]
        return list(out[1:-1])

    note = "[brim: 2 messages (about "
    items = add_note(REASONING, assistant("one", id="msg_1"))
    assert items[0] is REASONING
    assert items[1]["id"] == "msg_1"
    assert items[1]["content"][0]["text"].startswith("one\n\n" + note)
    assert add_note({"role": "assistant", "content": "one"})[0]["content"].startswith(
        "one\n\n" + note
    )
    search, added = add_note({"type": "web_search_call", "id": "ws"})
    assert search == {"type": "web_search_call", "id": "ws"}
    assert added["role"] == "assistant"
    assert added["content"].startswith(note)
    assert add_note(calls("a"), result("a"))[1]["output"].startswith("done\n\n" + note)
    assert add_note(calls("a"), result("a", {"type": "odd"}))[1]["output"][0] == {"type": "odd"}
    assert add_note(calls("a"), result("a", []))[1]["output"][0]["text"].startswith(note)
    patched = {"type": "apply_patch_call_output", "call_id": "a", "status": "completed"}
    assert add_note({"type": "apply_patch_call", "call_id": "a"}, patched)[1]["output"].startswith(
        note
    )


def test_a_note_after_an_output_without_text_is_an_item_of_the_same_turn() -> None:
    screen = {"type": "computer_call_output", "call_id": "a", "output": SCREEN}
    step: list[Raw] = [{"type": "computer_call", "call_id": "a"}, screen]
    given = body(user("go"), *step, user(LONG), assistant("yes"), user("then"))
    request = trim_body(given, drop_units(2, 3), notes=True)
    assert request.messages[2] is screen
    assert request.messages[3]["role"] == "user"
    roles = [turn.role for turn in read_messages(dict(request), RESPONSES)]
    assert roles == ["user", "assistant", "tool", "user"]


def test_a_note_is_recognized_by_its_text() -> None:
    screen = {"type": "computer_call_output", "call_id": "a", "output": SCREEN}
    note = gap_note(1_234, 5_678_901)
    for content, turns in ((note, 1), ("[brim: what is this?]", 2)):
        part = {"type": "input_text", "text": content}
        assert len(read_messages(body(screen, user([part])), RESPONSES)) == turns


def test_notes_between_turns_of_one_role_are_turns() -> None:
    given = body(user("go"), assistant(LONG), user("then"))
    out = trim_body(given, drop_units(1)).messages
    assert out[1]["role"] == "assistant"
    given = body(
        user("go"), assistant("one", _pin=True), user(LONG), assistant("two"), user("then")
    )
    out = trim_body(given, drop_units(2))["input"]
    assert [item["role"] for item in out] == ["user", "assistant", "user", "assistant", "user"]
    assert out[2]["content"].startswith("[brim: 1 message ")
    assert "_pin" not in out[1]


def test_max_output_tokens_is_lowered_to_the_room() -> None:
    given = body(user(LONG), max_output_tokens=5_000)
    out = brim.fit(given, model=MODEL, window=1_500, reply=200)
    assert out["max_output_tokens"] == 1_500 - out.plan.tokens
    assert given["max_output_tokens"] == 5_000
