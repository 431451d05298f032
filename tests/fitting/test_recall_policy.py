"""The policy `recall`: half of the room for older turns that match the last user message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brim
from brim.fitting.api import prefix_cache
from tests.support.strategies import Raw, history

TALK = [
    Raw(role=role, content=f"{word} {n}: nothing of interest, only words that fill the room")
    for n in range(100)
    for role, word in (("user", "remark"), ("assistant", "reply"))
]


def place(*facts: tuple[int, str]) -> list[Raw]:
    """Return small talk in which some messages state facts."""
    messages = [dict(message) for message in TALK]
    for index, text in facts:
        messages[index]["content"] = text
    return messages


def fit(messages: list[Raw], question: str, window: int = 1_000) -> brim.Request:
    conversation = [*messages, Raw(role="user", content=question)]
    return brim.fit(conversation, model="gpt-4o", window=window, reply=100, policy="recall")


def test_turns_that_match_the_question_stay_in_their_order_with_notes_at_the_gaps() -> None:
    facts = (40, "The blue key is in the drawer."), (12, "My locker has the number 4711.")
    request = fit(place(*facts), "Which locker, and where is the key?")
    texts = [str(message["content"]) for message in request.messages]
    locker = next(n for n, text in enumerate(texts) if "4711" in text)
    key = next(n for n, text in enumerate(texts) if "drawer" in text)
    assert locker < key
    assert "[brim: 12 messages omitted]" not in texts[locker]
    noted = "\n".join(texts[locker + 1 : key + 1])
    assert "messages omitted]" in noted
    assert request.plan.tokens > 0.9 * request.plan.limit


def test_the_newest_half_of_the_room_stays_as_in_sliding() -> None:
    request = fit(place((4, "The blue key.")), "Where is the key?")
    plan = request.plan
    newest = range(len(TALK) - 12, len(TALK) + 1)
    assert {4, *newest} <= {*plan.sent_indices}


def test_an_assistant_message_stays_with_the_user_message_that_it_answers() -> None:
    plan = fit(place((11, "The key is in the drawer.")), "Where is the drawer?").plan
    assert {10, 11} <= {*plan.sent_indices}


def test_an_answer_stays_without_a_long_question_that_does_not_match() -> None:
    question = "tell me more of what you remember of last year " * 50
    facts = (0, question), (1, "The key is blue."), (10, question), (11, "A key in the drawer.")
    request = fit(place(*facts), "Where is the blue key in the drawer?")
    assert {1, 11} <= {*request.plan.sent_indices}
    assert not {0, 10} & {*request.plan.sent_indices}
    roles = [message["role"] for message in request.messages]
    assert roles[:3] == ["user", "assistant", "user"]


def test_the_answer_to_a_matching_question_stays_too() -> None:
    facts = (20, "When is your flight to Lisbon?"), (21, "On the third of May.")
    plan = fit(place(*facts), "On which day is the flight?").plan
    assert {20, 21} <= {*plan.sent_indices}


def test_without_a_match_the_newest_turns_take_all_of_the_room() -> None:
    request = fit(TALK, "Lisbon?")
    dropped = {decision.index for decision in request.plan.dropped}
    assert dropped == {*range(max(dropped) + 1)}
    assert request.plan.tokens > 0.9 * request.plan.limit


def test_names_of_speakers_are_found() -> None:
    messages = place()
    for index in range(0, len(messages), 2):
        messages[index]["name"] = "Ann"
    messages[30]["name"] = "Boris"
    assert 30 in fit(messages, "Did Boris make a remark?").plan.sent_indices


def test_a_name_that_one_speaker_says_is_that_of_the_other() -> None:
    calls = [(n, f"Boris, what a long day it was for us, number {n}") for n in range(0, 160, 16)]
    facts = (42, "I bought a kayak."), (81, "I sold the kayak.")
    messages = place(*calls, *facts)
    for index in (42, 81):  # both match, but only the assistant is Boris
        messages[index]["content"] += " It was old, and the weather was fine that day." * 8
    plan = fit(messages, "What did Boris do with the kayak?", window=580).plan
    assert 81 in plan.sent_indices
    assert 42 not in plan.sent_indices


def test_everyday_words_find_related_ones() -> None:
    messages = place((40, "I left my job at the bank."), (80, "The moon was red over the bay."))
    sent = {*fit(messages, "What was my career before?").plan.sent_indices}
    assert sent & {40, 80} == {40}


def test_the_outputs_of_a_matching_step_stay_with_their_call() -> None:
    messages = history("u20 " + "c30 r80 " * 20 + "a20 u10")
    messages[8]["content"] = "The port of the server is 4711."
    messages[-1]["content"] = "Which port has the server?"
    request = brim.fit(messages, model="gpt-4o", window=1_500, reply=100, policy="recall")
    assert {7, 8} <= {*request.plan.sent_indices}


def test_every_reason_says_that_a_message_does_not_match() -> None:
    plan = fit(place((4, "The blue key.")), "Where is the key?").plan
    assert {decision.reason for decision in plan.dropped} == {
        "does not match the last user message"
    }


def test_later_questions_of_a_session_find_identifiers_and_other_scripts_too() -> None:
    parts = "py, a cart in the shop of src; 码头 密室"
    others = [(n, parts) for n in range(20, 160)]
    messages = place((4, "see src/shop/cart.py"), (12, "密码 4711"), *others)
    session = brim.Session("gpt-4o", window=1_000, reply=100, policy="recall")
    for message in [*messages, Raw(role="user", content="Hello?")]:
        session.append(message)
    session.request()
    for index, question in ((4, "What about src/shop/cart.py?"), (12, "密码?")):
        session.append(Raw(role="assistant", content="Well."))
        session.user(question)
        assert index in session.request().plan.sent_indices


WORDS = st.sampled_from(
    [
        *("key", "keys", "keyed", "keyring", "blue", "Tür", "a/b.py", "b.py", "getName", "of"),
        *("it's", "Ann", "job", "career", "works"),
    ]
)
OTHERS = st.sampled_from(["密码", "码头", "กุญแจ", "x_y", "y", "…"])


@pytest.mark.property
@given(st.lists(st.lists(WORDS | OTHERS, min_size=1, max_size=12).map(" ".join), max_size=24))
def test_a_grown_conversation_keeps_the_turns_that_a_new_one_keeps(texts: list[str]) -> None:
    messages = [
        Raw(role=role, content=f"{place}: {text}")
        for place, text in enumerate(texts)
        for role in ("user", "assistant")
    ]
    session = brim.Session("gpt-4o", window=300, reply=100, policy="recall")
    for end, message in enumerate(messages, 1):
        session.append(message)
        if message["role"] == "user":
            prefix_cache.clear()
            new = brim.fit(messages[:end], model="gpt-4o", window=300, reply=100, policy="recall")
            assert session.request().messages == new.messages


def test_a_turn_is_found_in_a_history_with_thousands_of_matches() -> None:
    messages = place((4, "The blue key.")) * 8 + TALK * 2
    request = fit(messages, "Which remark, of interest, is about the blue key?")
    assert {4 + n * len(TALK) for n in range(8)} <= {*request.plan.sent_indices}
