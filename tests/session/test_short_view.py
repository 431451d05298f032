"""ShortView: the last turns, shortened, for small models."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brim
from brim.session.session import get_driver
from brim.session.short_view import ShortView
from tests.support.strategies import Raw, histories, history


def shorten(view: ShortView, turns: list[Raw]) -> list[Any]:
    return list(view.shorten(turns))


def roles(turns: Any) -> str:
    """Return the initials of the roles."""
    return "".join(turn["role"][0] for turn in turns)


@pytest.mark.parametrize(
    ("sketch", "keep_turns", "expected"),
    [
        ("u1", 2, "u"),
        ("u1 a1 u1", 2, "au"),
        ("u1 a1 u1", 1, "u"),
        ("u1 a1", 1, "ua"),
        ("u1 c1 r1", 2, "uat"),
        ("u1 ccc1 r1 r1 r1", 2, "uattt"),
        ("u1 ccc1 r1 r1 r1", 1, "uattt"),
        ("u1 a1 u1 c1 r1 c1 r1", 2, "uat"),
        ("u1 c1 r1 c1 r1", 3, "uatat"),
        ("u1 cc1 r1 s1 r1", 2, "uatst"),
        ("u1 c1 s1 r1", 2, "uast"),
        ("u1 c1 s1 r1 a1 u1", 2, "au"),
        ("u1 c1 s1 r1 s1 u1", 2, "su"),
        ("", 2, ""),
    ],
)
def test_the_view_has_the_last_turns_with_their_calls_and_the_last_user_turn(
    sketch: str, keep_turns: int, expected: str
) -> None:
    assert roles(shorten(ShortView(keep_turns), history(sketch))) == expected


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "2", None])
def test_settings_must_be_positive_integers(value: Any) -> None:
    with pytest.raises(brim.InputError, match="keep_turns"):
        ShortView(keep_turns=value)
    with pytest.raises(brim.InputError, match="max_turn_chars"):
        ShortView(max_turn_chars=value)


def test_user_text_is_kept_and_other_text_is_shortened_to_its_end() -> None:
    turns: list[Raw] = [
        {"role": "user", "content": "x" * 900, "_output": "o" * 900 + "end"},
        {"role": "assistant", "content": "a" * 900 + "end"},
        {"role": "tool", "tool_call_id": "1", "content": "r" * 900 + "end"},
    ]
    user, assistant, result = shorten(ShortView(3), turns)
    assert user["content"] == "x" * 900
    assert user["_output"] == "o" * 797 + "end"
    assert assistant["content"] == "a" * 797 + "end"
    assert result["content"] == "r" * 797 + "end"


def test_text_parts_are_shortened_and_other_parts_are_kept() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
    parts = [{"type": "text", "text": "a" * 50}, image, {"type": "text", "text": "b" * 60}]
    turns: list[Raw] = [
        {"role": "user", "content": "?"},
        {"role": "tool", "tool_call_id": "1", "content": parts},
    ]
    short = shorten(ShortView(2, 70), turns)[-1]["content"]
    assert short == [{"type": "text", "text": "a" * 10}, image, {"type": "text", "text": "b" * 60}]
    assert shorten(ShortView(2, 60), turns)[-1]["content"] == [image, parts[2]]
    assert shorten(ShortView(2, 110), turns)[-1] is turns[-1]


@pytest.mark.parametrize("letter", ["é", "e\u0301", "日", "🙂"])
def test_shortening_does_not_split_a_character(letter: str) -> None:
    for max_chars in range(1, 9):
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": letter * 20}]
        text = shorten(ShortView(2, max_chars), turns)[-1]["content"]
        assert text == letter * (len(text) // len(letter))
        assert len(text) <= max_chars


@pytest.mark.parametrize(
    "arguments",
    [
        json.dumps({"path": "a.py", "text": "word " * 5_000}),
        json.dumps({"rows": [{"n": n, "text": "x" * 50} for n in range(500)]}),
        json.dumps({f"key{n}": n for n in range(500)}),
        json.dumps("é" * 3_000),
        json.dumps(list(range(5_000))),
        "[" * 400 + "]" * 401,
        "not valid json " * 100,
        '{"a": ' + "9" * 6_000 + "}",
    ],
)
def test_shortened_arguments_are_valid_json(arguments: str) -> None:
    turn_with_call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": arguments}}],
    }
    (turn,) = shorten(ShortView(1), [turn_with_call])
    short = turn["tool_calls"][0]["function"]["arguments"]
    assert len(short) <= 800
    json.loads(short)
    assert turn_with_call["tool_calls"][0]["function"]["arguments"] == arguments  # type: ignore[index]


def test_arguments_given_as_an_object_are_shortened() -> None:
    function = {"name": "f", "arguments": {"path": "a.py", "text": "word " * 5_000}}
    turn_with_call = {"role": "assistant", "content": None, "tool_calls": [{"function": function}]}
    short = shorten(ShortView(1), [turn_with_call])[0]["tool_calls"][0]["function"]["arguments"]
    assert short["path"] == "a.py"
    assert len(json.dumps(short)) < 900


@given(histories(faults=False), st.integers(1, 6), st.integers(1, 60))
def test_every_result_follows_its_call_and_the_last_user_turn_is_kept(
    turns: list[Raw], keep_turns: int, max_chars: int
) -> None:
    before = json.dumps(turns)
    short = shorten(ShortView(keep_turns, max_chars), turns)
    assert json.dumps(turns) == before
    open_calls: set[str] = set()
    for turn in short:
        if turn.get("tool_calls"):
            open_calls = {call["id"] for call in turn["tool_calls"]}
        if turn["role"] == "tool":
            assert turn["tool_call_id"] in open_calls
    users = [turn for turn in turns if turn["role"] == "user"]
    if users:
        shown = [turn for turn in short if turn["role"] == "user"]
        assert shown[-1]["content"] == users[-1]["content"]


def test_a_short_view_changes_one_request_and_not_the_history() -> None:
    chat = brim.Session("gpt-4o", system="Be brief.")
    for turn in history("u9 a900 u9 c9 r900"):
        chat.append(turn)
    whole = chat.request()
    short = chat.request(short_view=True)
    assert roles(short.messages) == "suat"
    assert len(short["messages"][-1]["content"]) == 800
    assert short.plan.size == brim.count(short.messages, model="gpt-4o")
    assert chat.request().messages == whole.messages
    assert list(chat.history) == history("u9 a900 u9 c9 r900")
    longer = chat.request(short_view=ShortView(4, 100))
    assert roles(longer.messages) == "sauat"
    assert chat.request(short_view=False).messages == whole.messages


def test_a_short_view_that_is_too_long_is_trimmed() -> None:
    chat = brim.Session("gpt-4o", window=301, reply=1)
    for turn in history("u9 c9 r900 c9 r900 c9 r900"):
        chat.append(turn)
    request = chat.request(short_view=ShortView(6, 5_000))
    assert request.plan.is_trimmed
    assert request.plan.size <= 300


@pytest.mark.parametrize(
    ("instructions", "expected"), [("All tests pass.", "suauat"), ("", "suat"), (None, "suat")]
)
def test_a_session_with_instructions_ignores_the_short_view(
    instructions: str | None, expected: str
) -> None:
    chat = brim.Session("gpt-4o", system="Be brief.")
    for turn in history("u9 a9 u9 c9 r9"):
        chat.append(turn)
    get_driver(chat).prompt.instructions = instructions
    assert roles(chat.request(short_view=True).messages) == expected


def test_usage_of_a_short_request_does_not_calibrate_the_session() -> None:
    chat = brim.Session("example/unknown-model", window=50_000)
    for turn in history("u900 a900 u900"):
        chat.append(turn)
    before = chat.tokens
    chat.request(short_view=ShortView(1))
    chat.receive(completion("ok", 1_000))
    calibration = get_driver(chat).profile.calibration
    assert calibration.ratios == calibration.densities == ()
    assert chat.tokens > before


def completion(text: str, tokens: int) -> Raw:
    return {
        "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": tokens, "completion_tokens": 1},
    }


@pytest.mark.parametrize("by_index", [True, False])
def test_a_short_view_keeps_pinned_turns(by_index: bool) -> None:
    chat = brim.Session("gpt-4o", window=2_000)
    chat.user("the rule", **({} if by_index else {"_pin": True}))
    for number in range(60):
        chat.assistant(f"noted {number}")
        chat.user(f"and {number}? " * 20)
    if by_index:
        chat.pin(0)
    messages = chat.request(short_view=ShortView(keep_turns=3)).messages
    assert messages[0]["content"] == "the rule"
    assert len(messages) == 4
    assert "_pin" not in messages[0]


def test_a_short_view_keeps_the_whole_step_of_a_pinned_result() -> None:
    turns = history("u1 cc1 r1 r1 a1 u1 a1 u1")
    turns[2]["_pin"] = True
    assert roles(shorten(ShortView(1), turns)) == "attu"
