"""`fit(summarize=)`: a summary in place of what was dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given

import brim
from brim.fitting.policies import PolicyName
from tests.support.strategies import histories

POLICIES: tuple[PolicyName, ...] = ("steady", "thrift", "rolling", "sliding")
HEADING = "[earlier conversation summary]"
LONG = "the words of a long message " * 12
Call = tuple[str | None, Sequence[Mapping[str, object]] | None]


class Recorder:
    """A summarizer that returns a number and records its calls."""

    def __init__(self, result: object = "") -> None:
        self.calls: list[Call] = []
        self.result = result

    def __call__(self, previous: str | None, evicted: Any) -> object:
        self.calls.append((previous, evicted))
        if isinstance(self.result, Exception):
            raise self.result
        return self.result or f"Summary {len(self.calls)}."


def chat(length: int, *, system: bool = True) -> list[dict[str, object]]:
    roles = ("user", "assistant")
    messages: list[dict[str, object]] = []
    if system:
        messages.append({"role": "system", "content": "Be brief."})
    return messages + [{"role": roles[i % 2], "content": f"{i} {LONG}"} for i in range(length)]


def fit(given: Any, **options: Any) -> brim.Request:
    model = {} if isinstance(given, Mapping) else {"model": "gpt-4o"}
    return brim.fit(given, **{**model, "window": 1_000, "reply": 100, **options})


def read_text(request: brim.Request) -> str:
    return "\n".join(str(message["content"]) for message in request.messages)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_summary_is_sent_in_place_of_what_was_dropped(policy: PolicyName) -> None:
    summarize = Recorder()
    request = fit(chat(31), policy=policy, summarize=summarize)
    ((previous, evicted),) = summarize.calls
    assert previous is None
    assert evicted is not None
    dropped = [chat(31)[decision.index] for decision in request.plan.dropped]
    assert [turn["content"] for turn in evicted] == [turn["content"] for turn in dropped]
    assert read_text(request).count("Summary 1.") == 1
    assert brim.count(request.messages, model="gpt-4o") <= request.plan.tokens <= 900


@pytest.mark.parametrize("policy", ["rolling", "sliding"])
@pytest.mark.parametrize("system", [True, False])
def test_without_notes_the_summary_is_in_the_system_text(policy: Any, system: bool) -> None:
    messages = chat(31, system=system)
    request = fit(messages, policy=policy, summarize=Recorder())
    text = f"{HEADING}\nSummary 1."
    first = request.messages[0]
    assert first == {"role": "system", "content": f"Be brief.\n\n{text}" if system else text}
    origin, _, changed = next(request.outgoing)
    assert (origin, changed) == (0 if system else None, True)
    sent = [message for origin, message, changed in request.outgoing if not changed]
    assert all(any(message is own for own in messages) for message in sent)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_growing_conversation_is_summarized_once_per_trim(policy: PolicyName) -> None:
    summarize, messages, plans = Recorder(), chat(1), []
    for number in range(1, 40):
        plans.append(fit(messages, policy=policy, summarize=summarize).plan)
        messages = chat(2 * number + 1)
    assert 1 < len(summarize.calls) <= 39
    assert [previous for previous, _ in summarize.calls[:2]] == [None, "Summary 1."]
    dropped = [turn for _, evicted in summarize.calls for turn in evicted or ()]
    assert len(dropped) == len(plans[-1].dropped)
    before = len(summarize.calls)
    fit(chat(77), policy=policy, summarize=summarize)
    assert len(summarize.calls) == before


@pytest.mark.parametrize("result", [7, "   ", LONG * 999, RuntimeError("down"), None], ids=type)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_summarizer_never_stops_the_conversation(policy: PolicyName, result: object) -> None:
    summarize = (lambda *_: None) if result is None else Recorder(result)
    plain, request = fit(chat(31), policy=policy), fit(chat(31), policy=policy, summarize=summarize)
    assert request.plan.fits
    assert HEADING not in read_text(request)
    assert len(request.plan.dropped) >= len(plain.plan.dropped)
    assert ["without a summary" in warning for warning in request.plan.warnings] == [True]


def test_a_long_summary_is_shortened_by_its_writer() -> None:
    summarize = Recorder("many words of a summary " * 100)
    fit(chat(61), window=4_000, summarize=summarize)
    assert [evicted is None for _, evicted in summarize.calls] == [False, True]


def test_nothing_is_summarized_if_everything_fits() -> None:
    summarize = Recorder()
    fit(chat(3), summarize=summarize)
    assert not summarize.calls


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("shape", ["anthropic", "responses"])
def test_the_other_formats_have_summaries_too(policy: PolicyName, shape: str) -> None:
    turns = chat(31, system=False)
    body: dict[str, object] = {"model": "claude-opus-4-5", "max_tokens": 100, "messages": turns}
    body["system"] = "Be brief."
    if shape == "responses":
        body = {"model": "gpt-4o", "instructions": "Be brief.", "input": turns}
    summarize = Recorder()
    request = fit(body, policy=policy, summarize=summarize)
    assert {turn["role"] for turn in summarize.calls[0][1] or ()} == {"user", "assistant"}
    assert str(dict(request)).count("Summary 1.") == 1
    assert brim.count(request) <= request.plan.limit


@given(histories())
def test_requests_with_summaries_stay_within_the_limit(turns: list[dict[str, Any]]) -> None:
    for policy in POLICIES:
        try:
            request = fit(turns, window=300, reply=20, policy=policy, summarize=Recorder("A. B."))
        except brim.ContextOverflowError:
            continue
        assert brim.count(request.messages, model="gpt-4o") <= request.plan.limit


def test_a_summarizer_that_cannot_be_called_is_an_error() -> None:
    with pytest.raises(brim.InputError, match="not a function"):
        fit(chat(2), summarize="text")
    with pytest.raises(brim.InputError, match="not a function"):
        brim.Session(summarize="text")  # type: ignore[arg-type]
