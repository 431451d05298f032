"""Shapes of rows: what is read as the conversation, and how it is written back."""

from __future__ import annotations

import json
from typing import Any

import pytest

import brim
from brim.batch import Fitter
from tests.support.chats import CHAT, LONG, make_chat, make_sharegpt

WINDOW: Any = {"model": "gpt-4o", "window": 400}


def fit_row(row: Any, **options: Any) -> Any:
    (fitted,) = Fitter(**WINDOW, **options)([row])
    return fitted


def fit_chat(messages: Any) -> Any:
    return brim.fit(messages, **WINDOW).messages


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (CHAT, "messages"),
        ({"id": 1, "messages": CHAT}, "messages"),
        ({"messages": json.dumps(CHAT)}, "messages"),
        ({"input": "hello", "model": "gpt-4o"}, "body"),
        ({"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}, "body"),
        ({"custom_id": "7", "body": {"messages": CHAT}}, "body"),
        ({"custom_id": "7", "params": {"messages": CHAT}}, "body"),
        ({"conversations": [{"from": "human", "value": "hi"}]}, "sharegpt"),
        ({"messages": [{"from": "human", "value": "hi"}]}, "sharegpt"),
        ({"conversations": CHAT}, "conversations"),
        ({"conversation": CHAT, "model": "vicuna-13b", "messages": None}, "lmsys"),
    ],
)
def test_the_shape_is_detected(row: Any, name: str) -> None:
    fitter = Fitter(**WINDOW)
    (result,) = fitter.process([row])
    assert result.message == ""
    assert fitter.shape is not None
    assert fitter.shape.name == name


def test_the_first_row_with_a_known_shape_decides() -> None:
    rows: list[Any] = [{"conversations": None}, {"conversations": make_sharegpt(1)}]
    first, second = Fitter(**WINDOW)(rows)
    assert "no list of turns" in first["brim_error"]
    assert second["brim_error"] == ""


@pytest.mark.parametrize("row", [{"text": "a", "label": 1}, 5, {"conversation": "text"}])
def test_an_unknown_shape_is_an_error_that_lists_the_known_ones(row: Any) -> None:
    with pytest.raises(brim.InputError, match=r"messages .*body .*sharegpt .*lmsys"):
        Fitter(**WINDOW)([row])
    with pytest.raises(brim.InputError, match="Unknown shape: 'alpaca'"):
        Fitter(shape="alpaca", **WINDOW)


def test_a_row_keeps_its_other_fields_and_their_order() -> None:
    row: Any = {"id": 1, "messages": make_chat(1), "meta": {"a": None}}
    fitted = fit_row(row)
    assert list(fitted)[:3] == ["id", "messages", "meta"]
    assert fitted["messages"] == fit_chat(make_chat(1))
    assert fitted["meta"] == {"a": None}


def test_the_model_and_tools_of_a_row_stay_if_options_replace_them() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    row: Any = {"model": "vicuna-13b", "tools": tools, "messages": make_chat(1)}
    fitted = fit_row(row, tools=[])
    assert fitted["model"] == "vicuna-13b"
    assert fitted["tools"] is tools
    assert fitted["messages"] == fit_chat(make_chat(1))


@pytest.mark.parametrize("key", ["body", "params"])
def test_the_request_in_a_batch_row_is_fitted_in_place(key: str) -> None:
    row: Any = {"custom_id": "7", key: {"model": "gpt-4o", "messages": make_chat(7), "user": "me"}}
    fitted = fit_row(row)
    assert fitted["custom_id"] == "7"
    assert fitted[key] == row[key] | {"messages": fit_chat(make_chat(7))}


def test_a_body_of_another_format_keeps_it() -> None:
    row: Any = {"model": "gpt-4o", "input": make_chat(3), "instructions": "Be brief."}
    fitted = fit_row(row)
    assert list(fitted)[:3] == ["model", "input", "instructions"]
    assert 0 < len(fitted["input"]) < len(row["input"])


@pytest.mark.parametrize("dump", [list, json.dumps])
def test_gemini_bodies_are_fitted_and_keep_their_shape(dump: Any) -> None:
    contents = [{"role": "user", "parts": [{"text": turn["content"]}]} for turn in make_chat(3)]
    row: Any = {"contents": dump(contents), "generationConfig": {"maxOutputTokens": 390}}
    fitted = fit_row(row)
    assert list(fitted)[:2] == ["contents", "generationConfig"]
    kept = fitted["contents"] if dump is list else json.loads(fitted["contents"])
    assert 0 < len(kept) < len(contents)
    assert kept[-1] == contents[-1]
    assert fitted["generationConfig"]["maxOutputTokens"] < 390


def test_a_reply_limit_is_lowered_to_the_room_left() -> None:
    rows: list[Any] = [{"messages": make_chat(1), "max_tokens": 390}]
    (row,) = Fitter(model="gpt-4o", window=400, reply=50)(rows)
    assert 50 <= row["max_tokens"] < 390


def test_text_columns_stay_text() -> None:
    row = {"messages": json.dumps(make_chat(2))}
    assert json.loads(fit_row(row)["messages"]) == fit_chat(make_chat(2))
    assert fit_row({"messages": json.dumps(CHAT)})["messages"] == json.dumps(CHAT)


def test_the_nulls_of_arrow_are_not_counted_and_come_back() -> None:
    def with_nulls(chat: Any) -> Any:
        return [{"name": None, "tool_calls": None, **turn} for turn in chat]

    fitted = fit_row({"messages": with_nulls(make_chat(1))})
    expected = fit_chat(make_chat(1))
    assert fitted["brim_tokens"] == brim.count(expected, model="gpt-4o")
    kept = [turn for turn in fitted["messages"] if "name" in turn]
    assert kept == [turn for turn in with_nulls(expected) if turn in with_nulls(make_chat(1))]


def test_sharegpt_keeps_names_and_further_fields() -> None:
    turns = [{**turn, "weight": 1} for turn in make_sharegpt(1)]
    fitted = fit_row({"conversations": turns})["conversations"]
    expected = fit_chat(make_chat(1))
    assert [turn["value"] for turn in fitted] == [turn["content"] for turn in expected]
    assert {turn["from"] for turn in fitted} <= {"human", "gpt"}
    assert all(turn in turns for turn in fitted if "weight" in turn)
    (note,) = [turn for turn in fitted if "weight" not in turn]
    assert list(note) == ["from", "value"]


def test_a_clipped_sharegpt_turn_keeps_its_fields() -> None:
    turns: list[Any] = [
        {"from": "human", "value": "run it"},
        {"from": "function_call", "value": '{"name": "run", "arguments": {}}'},
        {"from": "observation", "value": f"{LONG * 4} end", "id": 3},
    ]
    human, call, result = fit_row({"conversations": turns})["conversations"]
    assert (human, call) == (turns[0], turns[1])
    assert list(result) == ["from", "id", "value"]
    assert result["value"].endswith(" end")
    assert len(result["value"]) < len(turns[2]["value"])


def test_system_text_and_tools_in_columns_of_their_own_count() -> None:
    row: Any = {"conversations": make_sharegpt(1), "system": "Be brief. " * 20}
    tools = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}]
    bare, with_system = fit_row({**row, "system": ""}), fit_row(row)
    with_tools = fit_row({**row, "tools": json.dumps(tools)})
    before = [each["brim_tokens_before"] for each in (bare, with_system, with_tools)]
    assert before == sorted(set(before))
    assert with_tools["system"] == row["system"]
    assert with_tools["conversations"][-1] == row["conversations"][-1]


def test_a_column_and_other_names_can_be_given() -> None:
    chat = [{"speaker": "client", "text": turn["content"]} for turn in make_chat(1)]
    for turn in chat[1::2]:
        turn["speaker"] = "agent"
    mapping = {"role": "speaker", "content": "text", "user": "client", "assistant": "agent"}
    fitted = fit_row({"chat": chat}, column="chat", mapping=mapping)["chat"]
    assert [turn["text"] for turn in fitted] == [turn["content"] for turn in fit_chat(make_chat(1))]
    assert {turn["speaker"] for turn in fitted} <= {"client", "agent"}
    assert fit_row({"chat": make_chat(1)}, column="chat")["chat"] == fit_chat(make_chat(1))


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ("text", "no list of turns in 'conversations'"),
        ([{"from": "human", "value": "a"}, {"value": "b"}], "Turn 1 of 'conversations' has no"),
        ([{"from": "human", "value": 5}], "content must be text"),
        ([], "no"),
    ],
)
def test_a_row_of_another_shape_gets_an_error(turns: Any, reason: str) -> None:
    row = {"conversations": turns}
    fitted = fit_row(row, shape="sharegpt")
    assert fitted["conversations"] == turns
    assert (reason in fitted["brim_error"]) or not turns
