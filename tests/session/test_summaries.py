"""Summaries of trimmed turns: when they are requested, accepted, shortened and sent."""

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
from brim.fitting.summarizer import compute_summary_room, is_usable_summary, truncate_to_tokens
from brim.providers.summarizers import with_timeout
from brim.session.driver import RequestSettings
from brim.session.session import get_driver
from brim.session.summaries import build_summary_messages, format_transcript
from tests.support.strategies import Raw, history, text

POLICIES = ("steady", "thrift", "rolling", "sliding", "recall")
HEADING = "[earlier conversation summary]"
SummarizerCall = tuple[str | None, Sequence[Mapping[str, Any]] | None]


class ScriptedSummarizer:
    """A summarizer that returns scripted results and records its calls."""

    def __init__(self, *results: object) -> None:
        self.results = list(results)
        self.calls: list[SummarizerCall] = []

    def __call__(self, previous: str | None, evicted: Sequence[Mapping[str, Any]] | None) -> object:
        self.calls.append((previous, evicted))
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(result, BaseException):
            raise result
        return result(previous, evicted) if callable(result) else result


def session(policy: PolicyName, summarize: Any = None, **changes: Any) -> brim.Session:
    settings = {"window": 2_001, "reply": 1, "system": "Be brief.", **changes}
    return brim.Session("gpt-4o", policy=policy, summarize=summarize, **settings)


def run_conversation(chat: brim.Session, sketch: str) -> list[brim.Request]:
    """Append the turns of a sketch, and return a request after each user and tool turn."""
    sent = []
    for turn in history(sketch):
        chat.append(turn)
        if turn["role"] in ("user", "tool"):
            sent.append(chat.request())
            assert sent[-1].plan.size <= 2_000
    return sent


def render(request: brim.Request) -> str:
    return json.dumps(request.messages)


LONG = "u20 " + "a60 u60 " * 30


@pytest.mark.parametrize("policy", POLICIES)
def test_the_policy_decides_where_the_summary_is_sent(policy: PolicyName) -> None:
    summarizer = ScriptedSummarizer("NOTES: about parsers.")
    chat = session(policy, summarizer)
    sent = run_conversation(chat, LONG)
    assert chat.summary == "NOTES: about parsers."
    assert summarizer.calls[0][0] is None
    assert render(sent[-1]).count("NOTES: about parsers.") == 1
    in_system = f"Be brief.\n\n{HEADING}\nNOTES: about parsers."
    if policy in ("rolling", "sliding", "recall"):
        assert sent[-1].messages[0]["content"] == in_system
    else:
        assert sent[-1].messages[0]["content"] == "Be brief."
    assert sent[-1].plan.size == brim.count(sent[-1].messages, model="gpt-4o")


@pytest.mark.parametrize("window", [900, 1_300, 1_800])
def test_a_summary_of_finished_tasks_is_sent_in_every_request(window: int) -> None:
    chat = session("steady", ScriptedSummarizer("NOTES"), window=window)
    sent = run_conversation(chat, ("u40 " + "c10 r60 " * 6 + "a20 ") * 4 + "u30 " + "c10 r60 " * 12)
    trimmed = [request for request in sent if request.plan.dropped_runs]
    assert trimmed
    assert all("NOTES" in render(request) for request in trimmed)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_summarizer_gets_the_previous_summary_and_each_turn_once(
    policy: PolicyName,
) -> None:
    summarizer = ScriptedSummarizer(
        lambda previous, evicted: f"{previous or 'NOTES'}+{len(evicted)}"
    )
    chat = session(policy, summarizer)
    run_conversation(chat, LONG)
    assert len(summarizer.calls) > 1
    summaries = [previous for previous, _ in summarizer.calls]
    assert summaries[0] is None
    assert all(previous and previous.startswith("NOTES+") for previous in summaries[1:])
    evicted = [turn["content"] for _, turns in summarizer.calls for turn in turns or ()]
    assert len(evicted) == len(set(evicted))
    dropped = {
        decision.index
        for decision in chat.request().plan.decisions
        if decision.outcome == "dropped"
    }
    assert {chat.history[index]["content"] for index in dropped} <= set(evicted)


@pytest.mark.parametrize("policy", POLICIES)
def test_one_trim_requests_one_summary(policy: PolicyName) -> None:
    summarizer = ScriptedSummarizer("NOTES")
    chat = session(policy, summarizer)
    for turn in history("u20 " + "a30 u30 " * 60):
        chat.append(turn)
    chat.request()
    assert len(summarizer.calls) == 1
    assert len(summarizer.calls[0][1] or ()) > 20
    chat.request()
    assert len(summarizer.calls) == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_a_summary_that_stays_too_long_is_truncated(
    policy: PolicyName,
) -> None:
    summarizer = ScriptedSummarizer("some text\n" * 900)
    chat = session(policy, summarizer, window=40_001)
    for turn in history("u20 " + "a600 u600 " * 60):
        chat.append(turn)
    request = chat.request()
    assert [evicted is None for _, evicted in summarizer.calls] == [False, True]
    assert summarizer.calls[1][0] == "some text\n" * 900
    assert chat.summary is not None
    assert len(chat.summary) <= 2_000
    assert chat.summary.endswith("some text")
    assert json.dumps(chat.summary)[1:-1] in render(request)
    assert request.plan.size <= 40_000


def test_a_shortened_summary_is_used() -> None:
    summarizer = ScriptedSummarizer("some text\n" * 900, "In short: some text.")
    chat = session("steady", summarizer, window=40_001)
    for turn in history("u20 " + "a600 u600 " * 60):
        chat.append(turn)
    chat.request()
    assert chat.summary == "In short: some text."


async def _summarize_async() -> str:
    return "an awaitable is not accepted"


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
    lambda: lambda *_: _summarize_async(),
    lambda: lambda *_: text(30_000),
]


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("policy", POLICIES)
def test_turns_are_dropped_without_a_summary_if_the_summarizer_fails(
    policy: PolicyName, failure: Callable[[], object]
) -> None:
    chat = session(policy, ScriptedSummarizer(failure()))
    sent = run_conversation(chat, LONG)
    assert chat.summary is None
    assert HEADING not in render(sent[-1])
    assert sent[-1].plan.outcome_counts()["dropped"] > 0
    assert list(chat.history) == history(LONG)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_previous_summary_is_kept_if_the_summarizer_fails(policy: PolicyName) -> None:
    chat = session(policy, ScriptedSummarizer("NOTES", RuntimeError("no")))
    sent = run_conversation(chat, LONG)
    assert chat.summary == "NOTES"
    assert "NOTES" in render(sent[-1])


def test_a_summarizer_that_hangs_times_out() -> None:
    done = Event()
    chat = session("sliding", with_timeout(lambda *_: done.wait(5) and "late", 0.05))
    for turn in history(LONG):
        chat.append(turn)
    assert chat.request().plan.outcome_counts()["dropped"] > 0
    assert chat.summary is None
    done.set()


def test_a_summarizer_cannot_change_the_history() -> None:
    def clear_turns(_previous: str | None, evicted: Any) -> str:
        for turn in evicted or ():
            turn.clear()
        return "NOTES"

    chat = session("sliding", clear_turns)
    run_conversation(chat, LONG)
    assert list(chat.history) == history(LONG)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_conversation_that_fits_is_not_trimmed_for_a_summary(policy: PolicyName) -> None:
    plain, summarized = session(policy), session(policy, ScriptedSummarizer("NOTES"))
    for turn in history(LONG):
        for chat in (plain, summarized):
            chat.append(turn)
        if not plain.request().plan.is_trimmed:
            assert summarized.request().messages == plain.request().messages
            assert summarized.tokens == plain.tokens


@pytest.mark.parametrize("policy", POLICIES)
def test_a_summary_never_makes_a_conversation_overflow(
    policy: PolicyName,
) -> None:
    turns = history("u60 a60 u60 a60 u60 a60 u600")
    shortest = brim.Session("gpt-4o", window=100_000)
    shortest.append(turns[-1])
    for spare in range(0, 60, 3):
        chat = brim.Session(
            "gpt-4o",
            window=shortest.tokens + spare + 1,
            reply=1,
            policy=policy,
            summarize=ScriptedSummarizer("The conversation was about several different topics."),
        )
        for turn in turns:
            chat.append(turn)
        assert chat.request().plan.fits


@pytest.mark.parametrize("policy", POLICIES)
def test_cache_stable_policies_keep_the_prefix_before_the_summary(policy: PolicyName) -> None:
    chat = session(policy, ScriptedSummarizer(lambda _, evicted: f"NOTES {len(evicted)}"))
    sent = run_conversation(chat, LONG)
    if policy in ("steady", "thrift"):
        assert {request.messages[0]["content"] for request in sent} == {"Be brief."}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_summary_can_be_set_and_is_removed_by_reset(policy: PolicyName) -> None:
    summarizer = ScriptedSummarizer("NOTES")
    chat = session(policy, summarizer)
    run_conversation(chat, LONG)
    chat.summary = "Written by the user."
    assert "Written by the user." in render(chat.request())
    chat.reset()
    assert chat.summary is None
    assert "Written by the user." not in get_driver(chat).system_text


def test_instructions_replace_the_summary() -> None:
    chat = session("sliding", ScriptedSummarizer("NOTES"))
    run_conversation(chat, LONG)
    get_driver(chat).prompt.instructions = "Work alone."
    assert "NOTES" not in render(chat.request())
    get_driver(chat).prompt.instructions = None
    assert "NOTES" in render(chat.request())


def test_the_flow_yields_a_summary_job_and_accepts_none() -> None:
    chat = session("sliding", ScriptedSummarizer("never called"))
    for turn in history(LONG):
        chat.append(turn)
    flow = get_driver(chat).plan_request(RequestSettings())
    job = next(flow)
    assert isinstance(job, SummaryJob)
    assert job.previous is None
    with pytest.raises(StopIteration) as done:
        flow.send(None)
    assert done.value.value.plan.is_trimmed
    assert chat.summary is None


# Messages to a summarizer, and checks of its result


def count_words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize(
    ("result", "usable"),
    [("a b", True), ("a b c", True), ("a b c d", False), ("", False), (" ", False), (7, False)],
)
def test_a_usable_summary_is_text_no_larger_than_the_turns(result: object, usable: bool) -> None:
    assert is_usable_summary(result, 3, count_words) is usable


@given(st.text(max_size=200), st.integers(0, 220))
def test_truncate_returns_a_prefix_within_the_limit(full_text: str, chars: int) -> None:
    prefix = truncate(full_text, chars)
    assert full_text.startswith(prefix)
    assert len(prefix) <= chars


def test_truncate_ends_at_a_line_or_a_word() -> None:
    assert truncate("one two\nthree four", 12) == "one two"
    assert truncate("one two three four", 12) == "one two"
    assert truncate("x" * 30, 12) == "x" * 12


@given(st.text(alphabet="ab \n", max_size=300), st.integers(0, 40))
def test_truncate_to_tokens_fits_the_room(full_text: str, room: int) -> None:
    assert count_words(truncate_to_tokens(full_text, room, count_words)) <= room


@pytest.mark.parametrize(("limit", "room"), [(0, 0), (800, 100), (4_096, 512), (200_000, 666)])
def test_the_room_for_a_summary_is_limited(limit: int, room: int) -> None:
    assert compute_summary_room(limit) == room


def test_turns_too_long_for_the_summarizer_are_clipped() -> None:
    turns = history("u500 " + "c9 r3000 " * 5)
    count = get_driver(brim.Session("gpt-4o")).count_text
    messages = build_summary_messages("So far.", turns, room=2_000, count=count, focus="the parser")
    assert brim.count(messages, model="gpt-4o") <= 2_000
    assert "the parser" in messages[0]["content"]
    assert "So far." in messages[1]["content"]


def test_a_transcript_contains_outputs_calls_results_and_media() -> None:
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
        'assistant:\n[tool: run] {"cmd":"ls"}\n\n'
        "tool:\na.py\n\n"
        "user:\n[image]"
    )


@pytest.mark.parametrize("policy", ["sliding", "rolling"])
def test_a_summary_is_not_sent_if_all_its_turns_are_sent_again(policy: PolicyName) -> None:
    chat = brim.Session(
        "gpt-4o", window=400, reply=50, policy=policy, summarize=lambda *_: "All about boats."
    )
    for number in range(20):
        chat.user(f"Question {number}: " + "some words " * 8)
        chat.assistant("An answer.")
    chat.user("Continue.")
    assert "All about boats." in chat.request()["messages"][0]["content"]
    chat.switch("gpt-4o", window=32_000)
    whole = chat.request()
    assert not whole.plan.is_trimmed
    assert "boats" not in str(whole.messages)
    chat.switch("gpt-4o", window=400, reply=50)
    assert "All about boats." in chat.request()["messages"][0]["content"]


def test_a_summary_set_by_the_caller_is_sent_even_if_nothing_was_trimmed() -> None:
    chat = brim.Session("gpt-4o", policy="sliding")
    chat.summary = "We discussed boats."
    chat.user("Continue.")
    assert "We discussed boats." in chat.request()["messages"][0]["content"]


def test_summary_chars_limits_the_summary() -> None:
    calls: list[str | None] = []

    def summarize(previous: str | None, turns: object) -> str:
        calls.append(previous if turns is None else "")
        return "one line\n" * 30

    chat = brim.Session("gpt-4o", window=2_000, reply=50, summarize=summarize, summary_chars=40)
    for number in range(60):
        chat.user(f"Question {number}: " + "some words " * 20)
        chat.assistant("An answer.")
    chat.user("Continue.")
    chat.request()
    assert chat.summary is not None
    assert len(chat.summary) <= 40
    assert len(calls) == 2
    restored: Any = brim.Session.from_dict(chat.to_dict()).to_dict()
    assert restored["settings"]["summary_chars"] == 40
