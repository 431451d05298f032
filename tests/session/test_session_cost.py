"""Usage, cost, warnings and caps of a session, and the log of its requests."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

import brim
from brim.models.pricing import Price, Usage
from brim.session.ledger import SpendingLimits
from brim.session.session import get_driver
from tests.support.sessions import (
    CALL,
    CHEAP,
    UNKNOWN,
    cap,
    completion,
    session,
)
from tests.support.strategies import history, text


def test_a_reply_without_usage_is_recorded_with_estimated_tokens() -> None:
    chat = session(window=20_000)
    chat.user("hi")
    plan = chat.request().plan
    arguments = json.dumps({"text": "word " * 4_000})
    call = {**CALL, "function": {"name": "run", "arguments": arguments}}
    chat.receive(completion(None, None, [call]))
    total = chat.ledger.total
    assert total.estimated
    assert total.usage.input == plan.size
    assert total.usage.output > 4_000


def test_the_log_counts_all_requests_and_keeps_the_last_hundred() -> None:
    times = iter(range(1_000))
    chat = session()
    get_driver(chat).clock = lambda: float(next(times))
    assert chat.log.statistics() == type(chat.log.statistics())()
    for _ in range(150):
        chat.user(text(20))
        chat.request(category="goal")
        chat.receive(completion("ok", 10))
    statistics = chat.log.statistics()
    assert statistics.requests == 150
    assert 0 < statistics.trimmed < 150
    assert 0.5 < statistics.utilization <= 1
    entries = chat.log.entries
    assert [entry.time for entry in entries] == [float(n) for n in range(50, 150)]
    assert {(entry.model, entry.category, entry.limit) for entry in entries} == {
        ("gpt-4o", "goal", 2_000)
    }
    last = entries[-1]
    assert last.trimmed
    assert last.before > last.limit >= last.after
    assert last.dropped > 0
    assert chat.ledger.totals["gpt-4o", "goal"].calls == 150


def test_totals_are_by_model_and_category_and_an_unknown_cost_stays_unknown() -> None:
    chat = session(window=100_000, price=CHEAP)
    chat.user("hi")
    chat.request()
    chat.receive(completion("a", 100))
    assert chat.cost == Decimal("0.000125")  # 50 uncached, 50 cached at a tenth, 7 of output
    assert not chat.ledger.has_unknown_cost
    chat.switch(UNKNOWN, window=100_000)
    chat.user("hi")
    chat.request()
    chat.receive(completion("b", 100))
    assert chat.ledger.totals[UNKNOWN, "main"].unknown
    chat.switch(UNKNOWN, window=100_000, price=CHEAP)
    chat.user("hi")
    chat.request()
    chat.receive(completion("c", 100))
    assert chat.ledger.totals[UNKNOWN, "main"].unknown
    assert str(chat.ledger).startswith("at least")
    with pytest.raises(brim.InputError, match="category"):
        chat.request(category="banana")  # type: ignore[arg-type]


def test_a_reply_is_charged_at_the_price_of_the_model_that_was_called() -> None:
    chat = session(window=100_000, price=CHEAP)
    chat.user("hi")
    chat.request()
    chat.switch(UNKNOWN, window=100_000, price=Price(Decimal(1_000), None, Decimal(1_000)))
    chat.receive(completion("a", 100))
    assert chat.cost == Decimal("0.000125")


def test_each_warning_is_given_once_and_again_after_the_ledger_is_reset() -> None:
    limits = SpendingLimits(warn_at_dollars=0.0002, warn_at_tokens=300)
    chat = session(price=CHEAP, limits=limits)
    for _ in range(6):
        chat.user("hi")
        chat.request()
        chat.receive(completion("a", 100))
    assert len(chat.warnings) == 2
    chat.reset()
    assert len(chat.warnings) == 2
    chat.ledger.reset()
    chat.warnings.clear()
    assert chat.warnings == []
    assert (chat.cost, chat.usage) == (Decimal(0), Usage())
    for _ in range(6):
        chat.user("hi")
        chat.request()
        chat.receive(completion("a", 100))
    assert len(chat.warnings) == 2


def test_a_request_that_could_exceed_the_cap_raises_and_is_not_logged() -> None:
    chat = session(window=10_000, reply=1_000, price=CHEAP, limits=cap(0.0105))
    chat.user("hi")
    chat.request()
    chat.receive(completion("a", 900))
    chat.user("again")
    with pytest.raises(brim.errors.SpendingCapError, match="cap_at_dollars"):
        chat.request()
    assert chat.log.statistics().requests == 1
    assert len(chat) == 3
    chat.ledger.reset()
    chat.warnings.clear()
    assert chat.request().messages[-1]["content"] == "again"


def test_the_cap_covers_the_reply_limit_of_the_request() -> None:
    chat = session(window=100_000, reply=1_000, price=CHEAP, limits=cap(0.05))
    chat.user("hi")
    chat.request()
    chat.request(max_tokens=2_000)
    with pytest.raises(brim.errors.SpendingCapError):
        chat.request(max_tokens=50_000)
    with pytest.raises(brim.errors.SpendingCapError):
        chat.request(max_completion_tokens=50_000)


def test_the_ledger_names_a_model_without_a_price_as_not_covered_by_the_cap() -> None:
    chat = brim.Session(UNKNOWN, window=10_000, limits=cap(0))
    chat.user("hi")
    chat.request()
    assert UNKNOWN in (chat.ledger.uncovered or "")


def test_a_reset_keeps_prompt_blocks_totals_and_warnings() -> None:
    limits = SpendingLimits(warn_at_tokens=1)
    chat = session(system="Be brief.", price=CHEAP, limits=limits, summarize=lambda *_: "NOTES")
    prompt = get_driver(chat).prompt
    prompt.blocks["project"] = "src/"
    for turn in history("u20 " + "a60 u60 " * 30):
        chat.append(turn)
    chat.request()
    chat.receive(completion("a", 100))
    chat.add_output("waiting")
    chat.pin(0)
    prompt.instructions = "Be done."
    before = get_driver(chat).system_text
    chat.reset()
    assert len(chat) == len(chat.pins) == 0
    assert not get_driver(chat).joined_outputs
    assert {chat.summary, prompt.instructions} == {None}
    assert before != get_driver(chat).system_text
    assert get_driver(chat).system_text == "Be brief.\n\n[project]\nsrc/"
    assert chat.usage.input == 100
    assert len(chat.warnings) == 1
    assert chat.log.statistics().requests == 1
    chat.user("hello")
    assert not chat.request().plan.is_trimmed
