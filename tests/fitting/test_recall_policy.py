"""The policy `recall`: half of the room for older turns that match the last user message."""

from __future__ import annotations

import brim
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
