"""`brim.search`: passages of what was trimmed, ranked without a model."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brim
from tests.support.strategies import Raw

SMALL_TALK = [
    Raw(role=role, content=f"{word} number {n}: nothing of interest, only words to fill the room")
    for n in range(40)
    for role, word in (("user", "remark"), ("assistant", "reply"))
]


def find(messages: list[Raw], query: str, tokens: int = 500) -> list[int]:
    return [passage.index for passage in brim.search(messages, query, tokens=tokens)]


def say(*texts: str) -> list[Raw]:
    """Return a conversation in which the texts are between small talk."""
    half = len(SMALL_TALK) // 2
    turns = [Raw(role="user", content=text) for text in texts]
    return [*SMALL_TALK[:half], *turns, *SMALL_TALK[half:]]


FIRST = len(SMALL_TALK) // 2


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("My parking place is 4711, next to the lift.", "Where do I park?"),
        ("We store the boxes upstairs.", "storing a box"),
        ("I am volunteering at the shelter.", "How often do you volunteer?"),
        ("Grandma taught me to swim.", "Who teaches, and did anyone teach you?"),
        ("I lost the ring.", "Where was it losing, or when did you lose it?"),
        ("The bug is in src/shop/cart.py, line 88.", "src/shop/cart.py"),
        ("The bug is in /home/me/src/shop/cart.py:88", "cart.py"),
        ("It calls getUserName() twice.", "getUserName"),
        ("It calls get_user_name() twice.", "user name?"),
        ("Die STRASSE ist gesperrt.", "Straße"),
        ("Ticket \uff21\uff22\uff23-4711 is open.", "abc-4711"),
        ("密码是 hunter2，放在抽屉里", "密码在哪个抽屉？"),
        ("使用pytest运行所有测试", "how is pytest started"),
        ("열쇠는 서랍에 있습니다", "서랍"),
        ("กุญแจอยู่ในลิ้นชัก", "ลิ้นชัก"),
        ("चाबी हिन्दी किताब के नीचे है", "हिन्दी"),
        ("Ключ лежит под ковриком.", "ключ"),
    ],
)
def test_a_passage_is_found_by_its_words_names_and_characters(text: str, query: str) -> None:
    assert find(say(text), query) == [FIRST]


def test_a_part_of_a_word_is_not_a_match() -> None:
    assert find(say("The carpet is red."), "car") == []
    assert find(say("A comment on metal."), "meet, and come with me") == []


def test_contractions_are_not_looked_for() -> None:
    messages = say("I don't know.", "It's done.", "We'll see", "Anna's bike isn't blue.")
    assert find(messages, "don't, it's, we'll, isn\u2019t") == []
    assert find(messages, "Is this Anna\u2019s, and isn't it?") == [FIRST + 3]


def test_of_a_long_text_the_passages_with_the_words_are_returned() -> None:
    lines = [f"line {n} is here, and nothing is in it" for n in range(90)]
    lines[3], lines[88] = "\u201eThe key is blue.\u201c", "The key is red."
    lines[40] = "Der Schl\u00fcssel ist gr\u00fcn."
    for line in (lines[3], lines[40], lines[88]):
        (passage,) = brim.search(say("\n".join(lines)), line, tokens=180)
        assert line in passage.text


def test_a_path_counts_more_than_its_parts() -> None:
    messages = say(
        "a cart in the src of the shop", "see src/shop/cart.py", "py in the shop: a cart"
    )
    best = brim.search(messages, "src/shop/cart.py", tokens=8)
    assert [passage.text for passage in best] == ["see src/shop/cart.py"]


def test_rare_words_count_more_and_frequent_words_do_not_count() -> None:
    messages = say("the lift", "the number of the lift is in the drawer with the words")
    assert find(messages, "which number was nothing to reply?") == []
    assert find(messages, "number of the drawer", tokens=20) == [FIRST + 1]


def test_passages_are_in_history_order_within_the_budget() -> None:
    messages = say(
        "blue key " * 2, "blue door, green key, red key, far away", "blue key, blue door"
    )
    passages = brim.search(messages, "blue door", tokens=100)
    assert [passage.index for passage in passages] == [FIRST, FIRST + 1, FIRST + 2]
    room = passages[2].tokens
    assert brim.search(messages, "blue door", tokens=room) == [passages[2]]
    assert brim.search(messages, "blue door", tokens=0) == []
    assert [passage.tokens for passage in passages] == [
        brim.count(passage.text, model="gpt-4o") for passage in passages
    ]


def test_equal_passages_are_returned_once_the_newest() -> None:
    assert find(say("the blue key", "the red key", "the blue key"), "blue") == [FIRST + 2]


def test_nothing_matches_an_empty_query_or_history() -> None:
    assert brim.search([], "blue", tokens=100) == []
    assert brim.search(SMALL_TALK, "", tokens=100) == []
    assert brim.search(SMALL_TALK, "?! …", tokens=100) == []


def test_passages_are_whole_lines_of_about_500_characters_or_200_in_small_windows() -> None:
    lines = [f"line {n}: {'text ' * (n % 9)}end" for n in range(300)]
    lines[150] = "line 150: the blue key"
    messages = say("\n".join(lines))
    for window, most in ((None, 500), (128_000, 500), (8_192, 200)):
        (passage,) = brim.search(messages, "blue key", tokens=400, window=window)
        assert set(passage.text.split("\n")) <= set(lines)
        assert most / 2 < len(passage.text) <= most


def test_a_line_that_is_too_long_is_split_after_a_sentence() -> None:
    (passage,) = brim.search(
        say("He said something. " * 90 + "The key is blue. " + "She said more. " * 90),
        "blue key",
        tokens=400,
    )
    assert "The key is blue." in passage.text
    assert len(passage.text) <= 625
    assert passage.text.rstrip().endswith(".")


def test_calls_are_searched_by_the_values_of_their_arguments() -> None:
    arguments = json.dumps({"path": "a.py", "text": "x = 1\ndef blue():\n    return 'é'"})
    call = {"id": "1", "type": "function", "function": {"name": "write", "arguments": arguments}}
    step: list[Raw] = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "written"},
    ]
    (passage,) = brim.search([*SMALL_TALK, *step], "blue", tokens=100)
    assert passage.index == len(SMALL_TALK)
    assert passage.text == "write\na.py\nx = 1\ndef blue():\n    return 'é'"
    for invalid in ("{no JSON: blue", "[" * 100_000 + " blue"):
        call["function"]["arguments"] = invalid  # type: ignore[index]
        assert find([*SMALL_TALK, *step], "blue") == [len(SMALL_TALK)]


def test_a_query_may_be_a_long_text_without_spaces() -> None:
    texts = ["a." * 5_000, "b.c." * 100, "blue"]
    assert find(say(*texts), "a." * 50_000 + " blue") == [FIRST + 2]


def test_of_a_plan_only_trimmed_messages_are_searched() -> None:
    messages = [Raw(role="system", content="The lift is old."), *say("The key is blue.")]
    messages += [Raw(role="user", content="The blue lift is new. Where is the key?")]
    request = brim.fit(messages, model="gpt-4o", window=700, reply=100, policy="sliding")
    plan = request.plan
    assert len(plan.dropped) > FIRST
    found = brim.search(plan, "the blue key and the lift", tokens=200)
    assert [(passage.index, passage.role) for passage in found] == [(FIRST + 1, "user")]
    assert brim.search(request, "the blue key and the lift", tokens=200) == found
    fitting = brim.fit(messages, model="gpt-4o").plan
    assert brim.search(fitting, "the blue key", tokens=200) == []


def test_of_a_clipped_output_only_the_trimmed_part_is_searched() -> None:
    lines = [f"log {n}: {'value ' * 5}{n * n}" for n in range(400)]
    lines[3], lines[200] = "log: the blue door", "log: the red door"
    call = {"id": "1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "read the log"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "\n".join(lines)},
    ]
    request = brim.fit(messages, model="gpt-4o", window=2_000, reply=200)
    assert "blue door" in str(request.messages[-1]["content"])
    assert brim.search(request.plan, "blue", tokens=300) == []
    (passage,) = brim.search(request.plan, "red", tokens=300)
    assert (passage.index, passage.role) == (2, "tool")
    assert lines[200] in passage.text


def test_a_request_of_a_session_is_searched_like_its_plan() -> None:
    session = brim.Session("gpt-4o", window=700, reply=100, policy="sliding")
    for message in say("The key is blue."):
        session.append(message)
    session.user("Where is the key?")
    (passage,) = brim.search(session.request(), "blue key", tokens=100)
    assert session.history[passage.index]["content"] == passage.text == "The key is blue."


def test_other_formats_are_searched_by_the_numbers_of_their_plans() -> None:
    body = {"model": "claude-sonnet-4-5", "max_tokens": 100, "system": "Be brief."}
    body["messages"] = say("The key is blue.")
    (passage,) = brim.search(body, "blue", tokens=100)
    assert passage.index == FIRST + 1  # the system text is message 0


def test_invalid_arguments_raise_an_error_that_names_them() -> None:
    with pytest.raises(brim.InputError, match="query is not a text: int"):
        brim.search(SMALL_TALK, 5, tokens=10)  # type: ignore[arg-type]
    with pytest.raises(brim.InputError, match="list of messages"):
        brim.search(7, "blue", tokens=10)  # type: ignore[arg-type]


WORDS = st.sampled_from(
    ["key", "blue", "Tür", "密码", "กุญแจ", "a/b.py", "x_y", "…", "\n", "\n\n", " "]
)
TEXTS = st.lists(WORDS, max_size=60).map(" ".join)


@pytest.mark.property
@given(st.lists(TEXTS, max_size=8), TEXTS, st.integers(-5, 300))
def test_every_passage_is_a_part_of_its_message(texts: list[str], query: str, tokens: int) -> None:
    messages = [Raw(role="user", content=text) for text in texts]
    found = brim.search(messages, query, tokens=tokens, window=4_096)
    assert found == brim.search(messages, query, tokens=tokens, window=4_096)
    assert sum(passage.tokens for passage in found) <= max(tokens, 0)
    assert [passage.index for passage in found] == sorted(passage.index for passage in found)
    assert all(passage.text in texts[passage.index] for passage in found)
