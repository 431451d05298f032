"""A session whose user changes it: compaction, taking back, tools, fitting off."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest

from brim.errors import ContextOverflowError, InputError, SpendingCapError
from brim.fitting.flow import run_flow
from brim.fitting.policies import PolicyName
from brim.fitting.profile import ModelProfile
from brim.models.pricing import Price
from brim.models.spending import SpendingTotal
from brim.session.ledger import DailyCap
from brim.session.session import Session, get_driver

POLICIES = ("steady", "thrift", "rolling", "sliding")


def talk(policy: PolicyName = "steady", exchanges: int = 20, **settings: Any) -> Session:
    session = Session(
        "gpt-4o", window=4_000, reply=200, policy=policy, system="Be brief.", **settings
    )
    for number in range(exchanges):
        session.user(f"question {number} " + "word " * 30)
        session.assistant(f"answer {number} " + "text " * 30)
    return session


def summarize(previous: str | None, evicted: Sequence[Mapping[str, Any]] | None) -> str:
    return f"SUMMARY of {len(evicted or ())} turns, after {previous}"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_compaction_is_shown_before_it_is_made(policy: PolicyName) -> None:
    session = talk(policy)
    before = session.tokens
    driver = get_driver(session)
    shown = driver.plan_compaction(0.5, with_summary=False)
    assert shown.before == before == session.tokens
    assert shown.plan.size < 0.65 * before
    made = run_flow(driver.compact(shown), lambda _: None)
    assert made.size == shown.plan.size == session.tokens


@pytest.mark.parametrize("policy", POLICIES)
def test_what_comes_after_a_compaction_goes_on_from_it(policy: PolicyName) -> None:
    session = talk(policy)
    made = session.compact()
    session.user("and now?")
    request = session.request()
    assert request.plan.size < made.size + 30
    assert request.plan.outcome_counts() == made.outcome_counts()
    get_driver(session).prompt.blocks["background"] = "- (fact) the build needs make"
    assert session.request().plan.outcome_counts() == made.outcome_counts()
    restored = Session.from_dict(json.loads(json.dumps(session.to_dict())))
    assert dict(restored.request()) == dict(session.request())


@pytest.mark.parametrize("policy", POLICIES)
def test_a_compaction_can_sum_up_what_leaves(policy: PolicyName) -> None:
    session = talk(policy)
    session.compact(summarize=summarize)
    assert session.summary is not None
    assert session.summary.startswith("SUMMARY of ")
    session.user("and now?")
    assert "SUMMARY of " in json.dumps(session.request()["messages"])
    # Nobody sums up what leaves by itself.
    assert session.summarize is None


@pytest.mark.parametrize("policy", POLICIES)
def test_a_compaction_can_be_taken_back(policy: PolicyName) -> None:
    session = talk(policy)
    before = dict(session.request())
    session.compact(summarize=summarize)
    session.undo_compaction()
    assert session.summary is None
    assert dict(session.request()) == before


def test_nothing_to_compact_is_said() -> None:
    session = Session("gpt-4o", window=4_000)
    session.user("hi")
    with pytest.raises(InputError, match="Nothing to compact"):
        session.compact()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_compacted_conversation_is_cut_again_when_it_is_full(policy: PolicyName) -> None:
    session = talk(policy)
    session.compact()
    for number in range(80):
        session.user(f"again {number} " + "word " * 40)
        session.assistant("text " * 20)
        assert session.request().plan.fits


@pytest.mark.parametrize("policy", POLICIES)
def test_turns_are_taken_back(policy: PolicyName) -> None:
    session = talk(policy, exchanges=3)
    before = dict(session.request())
    session.pin(0)
    session.user("no, wait")
    session.assistant("yes?")
    taken = session.rewind(6)
    assert [turn["content"] for turn in taken] == ["no, wait", "yes?"]
    assert len(session) == 6
    assert session.pins == [0]
    session.unpin(0)
    assert dict(session.request()) == before


def test_an_edit_outlives_what_is_taken_back_after_it() -> None:
    session = talk(exchanges=60)
    session.user("one")
    prefix = session.request()["messages"][:-1]
    session.assistant("two")
    length = len(session)
    session.user("three")
    session.request()
    session.rewind(length)
    session.user("four")
    assert session.request()["messages"][: len(prefix)] == prefix


def test_a_compaction_is_gone_with_the_turns_that_it_saw() -> None:
    session = talk(exchanges=20)
    session.compact()
    session.rewind(38)
    assert session.current_plan.dropped_runs == ()


@pytest.mark.parametrize("length", [-1, 7, "2"])
def test_no_more_is_taken_back_than_there_is(length: Any) -> None:
    session = talk(exchanges=3)
    with pytest.raises(InputError, match="has 6"):
        session.rewind(length)
    assert len(session) == 6


def test_an_answer_to_what_was_taken_back_is_paid_but_not_kept() -> None:
    session = talk(exchanges=1)
    session.user("no, wait")
    session.request()
    stream = session.receive(iter([{"choices": [{"delta": {"content": "late"}}]}]))
    session.rewind(2)
    list(stream)
    assert len(session) == 2
    assert session.ledger.total.calls == 1


def test_without_fitting_nothing_is_left_out() -> None:
    session = talk(exchanges=60)
    session.user("now")
    assert session.request().plan.is_trimmed
    session.trim = False
    with pytest.raises(ContextOverflowError):
        session.request()
    with pytest.raises(InputError, match="trimming is off"):
        session.compact()
    session.trim = True
    assert session.request().plan.is_trimmed


def test_tools_can_change() -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    session = talk(exchanges=2)
    before = session.tokens
    session.tools = [tool]
    assert session.request()["tools"] == [tool]
    assert session.tokens > before
    session.tools = None
    assert "tools" not in session.request()
    assert session.tokens == before


def test_another_model_and_back_sends_the_same_prefix() -> None:
    session = talk(exchanges=60)
    session.user("one")
    before = session.request()["messages"]
    main = get_driver(session).profile
    session.assistant("two")
    session.user("three")
    get_driver(session).profile = ModelProfile("gpt-4o-mini", 4_000, 200)
    session.request()
    get_driver(session).profile = main
    assert session.request()["messages"][: len(before)] == before


def test_a_model_is_on_the_bill_under_its_users_name() -> None:
    session = Session("gpt-4o")
    get_driver(session).profile = ModelProfile("gpt-4o", called="clever")
    session.user("hi")
    session.request()
    session.receive({"choices": [{"message": {"role": "assistant", "content": "ho"}}]})
    assert list(session.ledger.totals) == [("clever", "main")]
    assert session.log.entries[0].model == "clever"


def test_a_call_is_told_of_when_it_is_booked() -> None:
    session = Session("gpt-4o")
    calls: list[tuple[str, str, SpendingTotal]] = []
    session.ledger.on_record = lambda *call: calls.append(call)
    session.user("hi")
    session.request(category="goal")
    usage = {"prompt_tokens": 8, "completion_tokens": 2}
    message = {"role": "assistant", "content": "ho"}
    session.receive({"choices": [{"message": message}], "usage": usage})
    ((model, category, slot),) = calls
    assert (model, category, slot.tokens) == ("gpt-4o", "goal", 10)


def test_a_day_has_a_cap_of_its_own() -> None:
    spent = [Decimal("0.999")]
    price = Price(Decimal(1), Decimal(1), Decimal(1), Decimal(1))
    session = Session("gpt-4o", window=4_000, reply=1_000, price=price)
    session.ledger.daily_cap = DailyCap(Decimal(1), lambda: spent[0])
    session.user("hi")
    with pytest.raises(SpendingCapError, match="cap_per_day_dollars") as caught:
        session.request()
    assert "$0.9990 of $1.00 is spent today" in str(caught.value)
    spent[0] = Decimal("0.9")
    assert session.request()


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ('{"a": 12', {"_raw": '{"a": 12'}),
        ("", None),
        ('{"a": 12}', None),
    ],
)
def test_arguments_that_broke_off_do_not_spoil_later_requests(
    arguments: str, kept: dict[str, str] | None
) -> None:
    session = Session("gpt-4o")
    session.user("add")
    session.request()
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "add", "arguments": arguments},
    }
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    answer = {"choices": [{"message": message, "finish_reason": "length"}]}
    reply = session.receive(answer)
    assert reply.calls[0].arguments == arguments
    sent = session.history[-1]["tool_calls"][0]["function"]["arguments"]
    assert sent == (arguments if kept is None else json.dumps(kept))


def test_a_mark_is_kept_and_not_sent() -> None:
    session = Session("gpt-4o")
    session.user("go on", _mine=True)
    assert session.history[0]["_mine"] is True
    assert session.request()["messages"] == [{"role": "user", "content": "go on"}]
    with pytest.raises(InputError, match="Invalid mark: name"):
        session.user("again", name="x")
    assert len(session) == 1
