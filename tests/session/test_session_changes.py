"""Changes to a session by its user: compaction, rewinding, tools, pins and other models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

import brim
from brim.errors import ContextOverflowError, InputError, SpendingCapError
from brim.fitting.flow import run_flow
from brim.fitting.policies import PolicyName, resolve_policy
from brim.fitting.profile import ModelProfile
from brim.models.pricing import Price, SpendingTotal
from brim.session.ledger import DailyCap
from brim.session.session import Session, get_driver
from brim.wire.template_rules import PERMISSIVE, TemplateRules
from brim.wire.template_source import find_rules
from tests.support.sessions import (
    UNKNOWN,
    session,
)
from tests.support.strategies import history
from tests.support.wire.template_validator import find_violation

POLICIES = ("steady", "thrift", "rolling", "sliding", "recall")


def create_session(policy: PolicyName = "steady", exchanges: int = 20, **settings: Any) -> Session:
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
def test_a_planned_compaction_predicts_the_size_after_it(policy: PolicyName) -> None:
    session = create_session(policy)
    before = session.tokens
    driver = get_driver(session)
    planned = driver.plan_compaction(0.5, with_summary=False)
    assert planned.before == before == session.tokens
    assert planned.plan.size < 0.65 * before
    compacted = run_flow(driver.composer.compact(planned), lambda _: None)
    assert compacted.size == planned.plan.size == session.tokens


@pytest.mark.parametrize("policy", POLICIES)
def test_later_requests_continue_from_a_compaction(policy: PolicyName) -> None:
    session = create_session(policy)
    compacted = session.compact()
    session.user("and now?")
    request = session.request()
    assert request.plan.size < compacted.size + 30
    assert request.plan.outcome_counts() == compacted.outcome_counts()
    get_driver(session).prompt.blocks["background"] = "- (fact) the build needs make"
    assert session.request().plan.outcome_counts() == compacted.outcome_counts()
    restored = Session.from_dict(json.loads(json.dumps(session.to_dict())))
    assert dict(restored.request()) == dict(session.request())


@pytest.mark.parametrize("policy", POLICIES)
def test_a_compaction_can_summarize_the_dropped_turns(policy: PolicyName) -> None:
    session = create_session(policy)
    session.compact(summarize=summarize)
    assert session.summary is not None
    assert session.summary.startswith("SUMMARY of ")
    session.user("and now?")
    assert "SUMMARY of " in json.dumps(session.request()["messages"])
    # The summarizer of one compaction does not become the summarizer of the session.
    assert session.summarize is None


@pytest.mark.parametrize("policy", POLICIES)
def test_a_compaction_can_be_undone(policy: PolicyName) -> None:
    session = create_session(policy)
    before = dict(session.request())
    session.compact(summarize=summarize)
    session.undo_compaction()
    assert session.summary is None
    assert dict(session.request()) == before


def test_compacting_a_short_conversation_raises() -> None:
    session = Session("gpt-4o", window=4_000)
    session.user("hi")
    with pytest.raises(InputError, match="Nothing to compact"):
        session.compact()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_compacted_conversation_is_trimmed_again_when_it_is_full(policy: PolicyName) -> None:
    session = create_session(policy)
    session.compact()
    for number in range(80):
        session.user(f"again {number} " + "word " * 40)
        session.assistant("text " * 20)
        assert session.request().plan.fits


@pytest.mark.parametrize("policy", POLICIES)
def test_rewind_removes_the_last_turns(policy: PolicyName) -> None:
    session = create_session(policy, exchanges=3)
    before = dict(session.request())
    session.pin(0)
    session.user("no, wait")
    session.assistant("yes?")
    removed = session.rewind(6)
    assert [turn["content"] for turn in removed] == ["no, wait", "yes?"]
    assert len(session) == 6
    assert session.pins == [0]
    session.unpin(0)
    assert dict(session.request()) == before


def test_a_trim_is_kept_when_later_turns_are_rewound() -> None:
    session = create_session(exchanges=60)
    session.user("one")
    prefix = session.request()["messages"][:-1]
    session.assistant("two")
    length = len(session)
    session.user("three")
    session.request()
    session.rewind(length)
    session.user("four")
    assert session.request()["messages"][: len(prefix)] == prefix


def test_rewinding_before_a_compaction_undoes_it() -> None:
    session = create_session(exchanges=20)
    session.compact()
    session.rewind(38)
    assert session.current_plan.dropped_runs == ()


@pytest.mark.parametrize("length", [-1, 7, "2"])
def test_rewinding_to_an_invalid_length_raises(length: Any) -> None:
    session = create_session(exchanges=3)
    with pytest.raises(InputError, match="has 6"):
        session.rewind(length)
    assert len(session) == 6


def test_a_reply_to_a_rewound_request_is_charged_but_not_stored() -> None:
    session = create_session(exchanges=1)
    session.user("no, wait")
    session.request()
    stream = session.receive(iter([{"choices": [{"delta": {"content": "late"}}]}]))
    session.rewind(2)
    list(stream)
    assert len(session) == 2
    assert session.ledger.total.calls == 1


def test_with_trimming_off_a_long_conversation_raises() -> None:
    session = create_session(exchanges=60)
    session.user("now")
    assert session.request().plan.is_trimmed
    session.trim = False
    with pytest.raises(ContextOverflowError):
        session.request()
    with pytest.raises(InputError, match="trimming is off"):
        session.compact()
    session.trim = True
    assert session.request().plan.is_trimmed


def test_tools_can_be_changed() -> None:
    tool = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
    session = create_session(exchanges=2)
    before = session.tokens
    session.tools = [tool]
    assert session.request()["tools"] == [tool]
    assert session.tokens > before
    session.tools = None
    assert "tools" not in session.request()
    assert session.tokens == before


def test_switching_to_another_model_and_back_sends_the_same_prefix() -> None:
    session = create_session(exchanges=60)
    session.user("one")
    before = session.request()["messages"]
    main = get_driver(session).profile
    session.assistant("two")
    session.user("three")
    get_driver(session).profile = ModelProfile("gpt-4o-mini", 4_000, 200)
    session.request()
    get_driver(session).profile = main
    assert session.request()["messages"][: len(before)] == before


def test_the_ledger_and_the_log_use_the_configured_name_of_a_model() -> None:
    session = Session("gpt-4o")
    get_driver(session).profile = ModelProfile("gpt-4o", called="large")
    session.user("hi")
    session.request()
    session.receive({"choices": [{"message": {"role": "assistant", "content": "ho"}}]})
    assert list(session.ledger.totals) == [("large", "main")]
    assert session.log.entries[0].model == "large"


class Records:
    """A store of calls in memory."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, SpendingTotal]] = []
        self.reserved: dict[int, tuple[str, str, SpendingTotal]] = {}

    def reserve(self, model: str, category: str, most: SpendingTotal) -> int:
        number = len(self.reserved) + 1
        self.reserved[number] = model, category, most
        return number

    def record(
        self, model: str, category: str, call: SpendingTotal | None, reservation: int | None
    ) -> None:
        if reservation is not None:
            del self.reserved[reservation]
        if call is not None:
            self.calls.append((model, category, call))


def test_each_call_is_recorded_in_the_store() -> None:
    session = Session("gpt-4o")
    session.ledger.store = store = Records()
    session.user("hi")
    session.request(category="goal")
    usage = {"prompt_tokens": 8, "completion_tokens": 2}
    message = {"role": "assistant", "content": "ho"}
    session.receive({"choices": [{"message": message}], "usage": usage})
    ((model, category, total),) = store.calls
    assert (model, category, total.tokens) == ("gpt-4o", "goal", 10)


def test_a_daily_cap_limits_the_spending_of_a_day() -> None:
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
    ("arguments", "repaired"),
    [
        ('{"a": 12', {"_raw": '{"a": 12'}),
        ("", None),
        ('{"a": 12}', None),
    ],
)
def test_truncated_arguments_are_stored_as_valid_json(
    arguments: str, repaired: dict[str, str] | None
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
    response = {"choices": [{"message": message, "finish_reason": "length"}]}
    reply = session.receive(response)
    assert reply.calls[0].arguments == arguments
    stored: Any = session.history[-1]
    assert stored["tool_calls"][0]["function"]["arguments"] == (
        arguments if repaired is None else json.dumps(repaired)
    )


def test_a_mark_is_stored_and_not_sent() -> None:
    session = Session("gpt-4o")
    session.user("continue", _source=True)
    assert session.history[0]["_source"] is True
    assert session.request()["messages"] == [{"role": "user", "content": "continue"}]
    with pytest.raises(InputError, match="Invalid mark: name"):
        session.user("again", name="x")
    assert len(session) == 1


# Pins, recall and other models


def test_a_pinned_turn_is_kept_until_it_is_unpinned() -> None:
    chat = session()
    for turn in history("u20 " + "a60 u60 " * 30):
        chat.append(turn)
    kept = json.dumps(chat.request().messages)
    middle = next(
        decision.index
        for decision in chat.request().plan.decisions
        if decision.outcome == "dropped"
    )
    content = json.dumps(chat.history[middle]["content"])[1:-1]
    assert content not in kept
    chat.pin(middle)
    assert chat.pins == [middle]
    assert content in json.dumps(chat.request().messages)
    chat.unpin(middle)
    assert chat.pins == []
    assert json.dumps(chat.request().messages) == kept
    for invalid in (-1, len(chat), "1"):
        with pytest.raises(brim.InputError, match="does not exist"):
            chat.pin(invalid)  # type: ignore[arg-type]


def test_recall_sends_a_dropped_turn_again_and_keeps_the_prefix() -> None:
    chat = session()
    for turn in history("u20 " + "c9 r90 " * 30):
        chat.append(turn)
    before = chat.request().messages
    dropped = next(
        decision
        for decision in chat.request().plan.decisions
        if decision.outcome == "dropped" and decision.role == "tool"
    )
    content = chat.history[dropped.index]["content"]
    assert chat.recall(dropped.index) == f"[turn {dropped.index}, tool]\n{content}"
    chat.user("look again")
    after = chat.request()["messages"]
    assert content in after[-1]["content"]
    if after[: len(before)] != before:
        assert chat.request().plan.trim_id
    with pytest.raises(brim.InputError, match="no text"):
        chat.recall(1)


@pytest.mark.parametrize("policy", ["steady", "thrift", "rolling", "sliding"])
@pytest.mark.parametrize("summarize", [None, lambda *_: "NOTES"])
def test_after_a_switch_to_a_larger_window_all_turns_are_sent_again(
    policy: PolicyName, summarize: Any
) -> None:
    chat = session(window=100_000, policy=policy)
    turns = history("u20 " + "c9 r200 a30 u60 " * 30)
    for turn in turns:
        chat.append(turn)
    whole = chat.request().messages
    chat.summarize = summarize
    chat.switch("gpt-4o-mini", window=2_001, reply=1)
    small = chat.request()
    assert small.plan.is_trimmed
    assert small["model"] == "gpt-4o-mini"
    assert list(chat.history) == turns
    for again in (chat, brim.Session.from_dict(json.loads(json.dumps(chat.to_dict())))):
        again.switch("gpt-4o", window=100_000)
        sent = [turn for turn in again.request().messages if turn["role"] != "system"]
        assert sent == whole
        assert not again.request().plan.is_trimmed


def test_a_switch_changes_counts_window_and_template() -> None:
    chat = brim.Session("gpt-4o", system="Be brief.")
    for turn in history("u9 c9 r9 u9"):
        chat.append(turn)
    free = chat.request()
    chat.switch("gemma-2-9b-it", window=4_000, reply=100)
    strict = chat.request()
    rules = get_driver(chat).profile.rules()
    assert not rules.free
    assert find_violation(strict.messages, rules) is None
    assert (strict.plan.budget.window, strict.plan.budget.reply) == (4_000, 100)
    assert strict.plan.size >= brim.count(strict.messages, model="gemma-2-9b-it")
    chat.switch("gpt-4o")
    assert dict(chat.request()) == dict(free)
    with pytest.raises(brim.InputError):
        chat.switch("gpt-4o", window=-1)
    with pytest.raises(brim.InputError):
        chat.switch("gpt-4o", template="no such rules")
    assert chat.model == "gpt-4o"


def test_a_template_can_be_named() -> None:
    chat = brim.Session("local", window=4_000, system="Be brief.", template="gemma")
    for turn in history("u9 c9 r9 u9 u9"):
        chat.append(turn)
    assert find_violation(chat.request().messages, find_rules("gemma")) is None


def test_an_unknown_window_raises_on_request_but_not_on_counting() -> None:
    chat = brim.Session(UNKNOWN)
    chat.user("hi")
    assert get_driver(chat).count_text("hello there") > 0
    with pytest.raises(brim.BudgetError, match="window"):
        chat.request()
    chat.switch(UNKNOWN, window=1_000)
    assert chat.request().messages


def test_tokens_and_room_never_raise() -> None:
    chat = session(window=101, policy=resolve_policy("sliding", max_turns=2))
    for turn in history("u20 a20 u400 a9"):
        chat.append(turn)
    with pytest.raises(brim.ContextOverflowError):
        chat.request()
    assert chat.tokens > 100
    assert chat.room == 0
    assert len(chat) == 4


def test_tools_that_are_nested_too_deeply_are_an_input_error() -> None:
    schema: dict[str, object] = {}
    for _ in range(2_000):
        schema = {"properties": {"a": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    with pytest.raises(brim.InputError, match="nested too deeply"):
        brim.Session("gpt-4o", tools=[tool])
    with pytest.raises(brim.InputError, match="nested too deeply"):
        brim.fit([{"role": "user", "content": "Hi"}], model="gpt-4o", tools=[tool])


def test_a_note_that_a_reply_begins_with_is_not_stored() -> None:
    session = Session("gpt-4o")
    for text in ("[brim: 1,200 messages (about 34,000 tokens) omitted]\n\nParis.", "[brim: no"):
        session.user("capital of France?")
        session.request()
        session.receive({"choices": [{"message": {"role": "assistant", "content": text}}]})
    assert [turn["content"] for turn in session.history[1::2]] == ["Paris.", "[brim: no"]


@pytest.mark.parametrize(
    ("trial", "role"),
    [
        (None, "assistant"),
        (PERMISSIVE, "system"),
        (replace(PERMISSIVE, one_system=True), "assistant"),
    ],
)
def test_a_note_is_no_assistant_turn_if_the_template_is_known_to_accept_a_system_turn(
    trial: TemplateRules | None, role: str
) -> None:
    session = Session("gpt-4o", window=300, reply=50)
    driver = get_driver(session)
    driver.profile = replace(driver.profile, trial=trial)
    for number in range(20):
        session.user(f"question {number} " + "word " * 10)
        session.assistant(f"answer {number} " + "text " * 10)
    session.user("and now?")
    notes = [m["role"] for m in session.request()["messages"] if m["content"].startswith("[brim: ")]
    assert notes == [role]
