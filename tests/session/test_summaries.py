from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from threading import Event
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brim
from brim.fitting.clip import truncate
from brim.fitting.flow import SummaryJob
from brim.fitting.policies import PolicyName
from brim.providers.summarizers import with_timeout
from brim.session.driver import RequestSettings
from brim.session.session import get_driver
from brim.session.summaries import (
    build_summary_messages,
    compute_summary_room,
    format_transcript,
    is_usable_summary,
    truncate_to_tokens,
)
from tests.support.strategies import Raw, history, text

POLICIES = ("steady", "thrift", "rolling", "sliding")
HEADING = "[earlier conversation summary]"
Asked = tuple[str | None, Sequence[Mapping[str, Any]] | None]


class Scribe:
    """A summarizer that says what it is told to, and remembers what it was asked."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.asked: list[Asked] = []

    def __call__(self, previous: str | None, evicted: Sequence[Mapping[str, Any]] | None) -> object:
        self.asked.append((previous, evicted))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer(previous, evicted) if callable(answer) else answer


def session(policy: PolicyName, summarize: Any = None, **more: Any) -> brim.Session:
    settings = {"window": 2_001, "reply": 1, "system": "Be brief.", **more}
    return brim.Session("gpt-4o", policy=policy, summarize=summarize, **settings)


def talk(chat: brim.Session, sketch: str) -> list[brim.Request]:
    """Append turn by turn, with a request after each that one could be made at."""
    sent = []
    for turn in history(sketch):
        chat.append(turn)
        if turn["role"] in ("user", "tool"):
            sent.append(chat.request())
            assert sent[-1].plan.size <= 2_000
    return sent


def told(request: brim.Request) -> str:
    return json.dumps(request.messages)


LONG = "u20 " + "a60 u60 " * 30


@pytest.mark.parametrize("policy", POLICIES)
def test_the_first_summary_stands_where_the_policy_puts_it(policy: PolicyName) -> None:
    scribe = Scribe("NOTES: they spoke of parsers.")
    chat = session(policy, scribe)
    sent = talk(chat, LONG)
    assert chat.summary == "NOTES: they spoke of parsers."
    assert scribe.asked[0][0] is None
    assert told(sent[-1]).count("NOTES: they spoke of parsers.") == 1
    in_system = f"Be brief.\n\n{HEADING}\nNOTES: they spoke of parsers."
    if policy in ("rolling", "sliding"):
        assert sent[-1].messages[0]["content"] == in_system
    else:
        assert sent[-1].messages[0]["content"] == "Be brief."
    assert sent[-1].plan.size == brim.count(sent[-1].messages, model="gpt-4o")


@pytest.mark.parametrize("policy", POLICIES)
def test_an_extension_gets_the_summary_so_far_and_each_turn_is_told_of_once(
    policy: PolicyName,
) -> None:
    scribe = Scribe(lambda previous, evicted: f"{previous or 'NOTES'}+{len(evicted)}")
    chat = session(policy, scribe)
    talk(chat, LONG)
    assert len(scribe.asked) > 1
    so_far = [previous for previous, _ in scribe.asked]
    assert so_far[0] is None
    assert all(previous and previous.startswith("NOTES+") for previous in so_far[1:])
    evicted = [turn["content"] for _, turns in scribe.asked for turn in turns or ()]
    assert len(evicted) == len(set(evicted))
    left_out = {
        decision.index
        for decision in chat.request().plan.decisions
        if decision.outcome == "dropped"
    }
    assert {chat.history[index]["content"] for index in left_out} <= set(evicted)


@pytest.mark.parametrize("policy", POLICIES)
def test_one_edit_asks_for_one_summary(policy: PolicyName) -> None:
    scribe = Scribe("NOTES")
    chat = session(policy, scribe)
    for turn in history("u20 " + "a30 u30 " * 60):
        chat.append(turn)
    chat.request()
    assert len(scribe.asked) == 1
    assert len(scribe.asked[0][1] or ()) > 20
    chat.request()
    assert len(scribe.asked) == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_a_summary_of_nine_thousand_characters_is_compressed_and_then_cut(
    policy: PolicyName,
) -> None:
    scribe = Scribe("so it was\n" * 900)
    chat = session(policy, scribe, window=40_001)
    for turn in history("u20 " + "a600 u600 " * 60):
        chat.append(turn)
    request = chat.request()
    assert [evicted is None for _, evicted in scribe.asked] == [False, True]
    assert scribe.asked[1][0] == "so it was\n" * 900
    assert chat.summary is not None
    assert len(chat.summary) <= 2_000
    assert chat.summary.endswith("so it was")
    assert json.dumps(chat.summary)[1:-1] in told(request)
    assert request.plan.size <= 40_000


def test_a_compression_that_works_is_taken() -> None:
    scribe = Scribe("so it was\n" * 900, "In short: so it was.")
    chat = session("steady", scribe, window=40_001)
    for turn in history("u20 " + "a600 u600 " * 60):
        chat.append(turn)
    chat.request()
    assert chat.summary == "In short: so it was."


async def _later() -> str:
    return "too late"


FAILURES: list[Callable[[], object]] = [
    lambda: None,
    lambda: "",
    lambda: " \n",
    lambda: 42,
    lambda: b"bytes",
    lambda: ["a list"],
    lambda: RuntimeError("no"),
    lambda: TimeoutError(),
    lambda: KeyError("x"),
    lambda: lambda *_: _later(),
    lambda: lambda *_: text(30_000),
]


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("policy", POLICIES)
def test_whatever_a_summarizer_does_the_turns_just_leave(
    policy: PolicyName, failure: Callable[[], object]
) -> None:
    chat = session(policy, Scribe(failure()))
    sent = talk(chat, LONG)
    assert chat.summary is None
    assert HEADING not in told(sent[-1])
    assert sent[-1].plan.outcome_counts()["dropped"] > 0
    assert list(chat.history) == history(LONG)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_failed_extension_leaves_the_summary_that_was(policy: PolicyName) -> None:
    chat = session(policy, Scribe("NOTES", RuntimeError("no")))
    sent = talk(chat, LONG)
    assert chat.summary == "NOTES"
    assert "NOTES" in told(sent[-1])


def test_a_time_limit_ends_a_summarizer_that_hangs() -> None:
    done = Event()
    chat = session("sliding", with_timeout(lambda *_: done.wait(5) and "late", 0.05))
    for turn in history(LONG):
        chat.append(turn)
    assert chat.request().plan.outcome_counts()["dropped"] > 0
    assert chat.summary is None
    done.set()


def test_what_a_summarizer_does_to_the_turns_does_not_reach_the_history() -> None:
    def vandal(_previous: str | None, evicted: Any) -> str:
        for turn in evicted or ():
            turn.clear()
        return "NOTES"

    chat = session("sliding", vandal)
    talk(chat, LONG)
    assert list(chat.history) == history(LONG)


@pytest.mark.parametrize("policy", POLICIES)
def test_what_fits_is_not_cut_for_the_sake_of_a_summary(policy: PolicyName) -> None:
    plain, summing = session(policy), session(policy, Scribe("NOTES"))
    for turn in history(LONG):
        for chat in (plain, summing):
            chat.append(turn)
        if not plain.request().plan.is_trimmed:
            assert summing.request().messages == plain.request().messages
            assert summing.tokens == plain.tokens


@pytest.mark.parametrize("policy", POLICIES)
def test_where_only_the_hard_parts_fit_a_summary_does_not_make_it_overflow(
    policy: PolicyName,
) -> None:
    turns = history("u60 a60 u60 a60 u60 a60 u600")
    least = brim.Session("gpt-4o", window=100_000)
    least.append(turns[-1])
    for spare in range(0, 60, 3):
        chat = brim.Session(
            "gpt-4o",
            window=least.tokens + spare + 1,
            reply=1,
            policy=policy,
            summarize=Scribe("They spoke of this and of that and of many other things."),
        )
        for turn in turns:
            chat.append(turn)
        assert chat.request().plan.fits


@pytest.mark.parametrize("policy", POLICIES)
def test_the_prefix_before_the_note_survives_an_extension_under_steady(policy: PolicyName) -> None:
    chat = session(policy, Scribe(lambda _, evicted: f"NOTES {len(evicted)}"))
    sent = talk(chat, LONG)
    if policy in ("steady", "thrift"):
        assert {request.messages[0]["content"] for request in sent} == {"Be brief."}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_summary_can_be_set_and_reset_forgets_it(policy: PolicyName) -> None:
    scribe = Scribe("NOTES")
    chat = session(policy, scribe)
    talk(chat, LONG)
    chat.summary = "Written by hand."
    assert "Written by hand." in told(chat.request())
    chat.reset()
    assert chat.summary is None
    assert "Written by hand." not in get_driver(chat).system_text


def test_goal_mode_leaves_the_summary_block_out() -> None:
    chat = session("sliding", Scribe("NOTES"))
    talk(chat, LONG)
    get_driver(chat).prompt.instructions = "Be done."
    assert "NOTES" not in told(chat.request())
    get_driver(chat).prompt.instructions = None
    assert "NOTES" in told(chat.request())


def test_the_planning_generator_asks_and_takes_none_for_an_answer() -> None:
    chat = session("sliding", Scribe("never called"))
    for turn in history(LONG):
        chat.append(turn)
    planning = get_driver(chat).plan_request(RequestSettings())
    job = next(planning)
    assert isinstance(job, SummaryJob)
    assert job.previous is None
    with pytest.raises(StopIteration) as done:
        planning.send(None)
    assert done.value.value.plan.is_trimmed
    assert chat.summary is None


# What is asked, and what is taken


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize(
    ("answer", "taken"),
    [("a b", True), ("a b c", True), ("a b c d", False), ("", False), (" ", False), (7, False)],
)
def test_an_answer_is_a_text_no_larger_than_what_it_replaces(answer: object, taken: bool) -> None:
    assert is_usable_summary(answer, 3, words) is taken


@given(st.text(max_size=200), st.integers(0, 220))
def test_a_cut_is_a_beginning_of_at_most_so_many_characters(given_: str, chars: int) -> None:
    cut = truncate(given_, chars)
    assert given_.startswith(cut)
    assert len(cut) <= chars


def test_a_cut_ends_at_a_lines_end_or_at_a_words() -> None:
    assert truncate("one two\nthree four", 12) == "one two"
    assert truncate("one two three four", 12) == "one two"
    assert truncate("x" * 30, 12) == "x" * 12


@given(st.text(alphabet="ab \n", max_size=300), st.integers(0, 40))
def test_a_cut_to_a_room_fits_it(given_: str, room: int) -> None:
    assert words(truncate_to_tokens(given_, room, words)) <= room


@pytest.mark.parametrize(("limit", "room"), [(0, 0), (800, 100), (4_096, 512), (200_000, 666)])
def test_the_room_for_a_summary_is_bounded(limit: int, room: int) -> None:
    assert compute_summary_room(limit) == room


def test_a_question_that_is_too_long_is_cut_first() -> None:
    turns = history("u500 " + "c9 r3000 " * 5)
    count = get_driver(brim.Session("gpt-4o")).count_text
    asked = build_summary_messages("So far.", turns, room=2_000, count=count, focus="the parser")
    assert brim.count(asked, model="gpt-4o") <= 2_000
    assert "the parser" in asked[0]["content"]
    assert "So far." in asked[1]["content"]


def test_a_transcript_tells_all_that_was_said() -> None:
    turns: list[Raw] = [
        {"role": "user", "content": "look", "_output": "ls: no such file"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "function": {"name": "run", "arguments": {"cmd": "ls"}}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "a.py"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
    ]
    assert format_transcript(turns) == (
        "user:\n[exec output]\nls: no such file\nlook\n\n"
        'assistant:\n[tool: run] {"cmd": "ls"}\n\n'
        "tool:\na.py\n\n"
        "user:\n[image_url]"
    )


@pytest.mark.parametrize("policy", ["sliding", "rolling"])
def test_a_summary_of_what_is_all_sent_again_is_not_told(policy: PolicyName) -> None:
    chat = brim.Session(
        "gpt-4o", window=400, reply=50, policy=policy, summarize=lambda *_: "All about boats."
    )
    for number in range(20):
        chat.user(f"Question {number}: " + "some words " * 8)
        chat.assistant("An answer.")
    chat.user("Go on.")
    assert "All about boats." in chat.request().messages[0]["content"]
    chat.switch("gpt-4o", window=32_000)
    whole = chat.request()
    assert not whole.plan.is_trimmed
    assert "boats" not in str(whole.messages)
    chat.switch("gpt-4o", window=400, reply=50)
    assert "All about boats." in chat.request().messages[0]["content"]


def test_a_summary_that_somebody_else_wrote_is_told_though_nothing_left() -> None:
    chat = brim.Session("gpt-4o", policy="sliding")
    chat.summary = "We spoke of boats."
    chat.user("Go on.")
    assert "We spoke of boats." in chat.request().messages[0]["content"]


def test_how_long_a_summary_may_be_can_be_said() -> None:
    asked: list[str | None] = []

    def summarize(previous: str | None, turns: object) -> str:
        asked.append(previous if turns is None else "")
        return "one line\n" * 30

    chat = brim.Session("gpt-4o", window=2_000, reply=50, summarize=summarize, summary_chars=40)
    for number in range(60):
        chat.user(f"Question {number}: " + "some words " * 20)
        chat.assistant("An answer.")
    chat.user("Go on.")
    chat.request()
    assert chat.summary is not None
    assert len(chat.summary) <= 40
    assert len(asked) == 2
    again = brim.Session.from_dict(chat.to_dict())
    assert again.to_dict()["settings"]["summary_chars"] == 40
