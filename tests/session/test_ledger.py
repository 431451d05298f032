"""The ledger: usage, cost, warnings and caps of a session; and the log of its requests."""

from __future__ import annotations

import json
import pickle
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import BrimError, InputError, SpendingCapError
from brim.models.pricing import Price, Usage, compute_max_cost, cost, format_dollars
from brim.session.ledger import CATEGORIES, Ledger, SpendingLimits
from brim.session.request_log import (
    MAX_LOGGED_REQUESTS,
    LoggedRequest,
    RequestLog,
    RequestStatistics,
)

CHEAP = Price(Decimal(2), Decimal(1), Decimal(10))
"""$2 and $10 per million tokens of input and output."""


def record(ledger: Ledger, model: str = "m", category: str = "main", **changes: Any) -> list[str]:
    call = {"usage": Usage(1_000, 0, 100), "counted": 1_000, "price": CHEAP, **changes}
    return ledger.record(model, category, **call)


def test_totals_are_by_model_and_category() -> None:
    ledger = Ledger()
    record(ledger)
    record(ledger, usage=Usage(2_000, 500, 50), counted=2_100)
    record(ledger, category="summary")
    record(ledger, model="other")
    assert list(ledger.totals) == [("m", "main"), ("m", "summary"), ("other", "main")]
    total = ledger.totals["m", "main"]
    assert (total.calls, total.usage, total.counted) == (2, Usage(3_000, 500, 150), 3_100)
    assert total.cost == Decimal("0.003") + Decimal("0.004")
    assert not total.unknown
    assert not total.estimated
    assert ledger.usage == Usage(5_000, 500, 350)
    assert ledger.cost == Decimal("0.013")
    assert str(ledger) == "$0.0130"


@pytest.mark.parametrize("category", ["", "Main", "other", "goals"])
def test_an_unknown_category_raises(category: str) -> None:
    ledger = Ledger()
    with pytest.raises(InputError, match="main, summary, goal, route"):
        record(ledger, category=category)
    assert not ledger.totals


@pytest.mark.parametrize("category", CATEGORIES)
def test_known_categories_are_accepted(category: str) -> None:
    assert record(Ledger(), category=category) == []


def test_an_empty_ledger_costs_nothing() -> None:
    ledger = Ledger()
    assert (ledger.cost, ledger.usage, ledger.has_unknown_cost) == (Decimal(0), Usage(), False)
    assert str(ledger) == "$0.00"
    assert ledger.format_table() == "no calls yet"


def test_an_unknown_cost_is_not_zero_and_stays_unknown() -> None:
    ledger = Ledger()
    record(ledger, price=None)
    assert ledger.totals["m", "main"].unknown
    assert ledger.has_unknown_cost
    assert str(ledger) == "unknown"
    record(ledger)
    assert ledger.totals["m", "main"].unknown
    assert str(ledger) == "at least $0.0030"


def test_a_price_without_output_is_unknown() -> None:
    ledger = Ledger()
    record(ledger, price=Price(input=Decimal(2)))
    assert str(ledger) == "unknown"


def test_a_reported_cost_overrides_the_price() -> None:
    ledger = Ledger()
    record(ledger, cost=Decimal("0.5"))
    record(ledger, cost=Decimal(0))
    record(ledger, model="unlisted", price=None, cost=Decimal("0.25"))
    assert ledger.cost == Decimal("0.75")
    assert not ledger.has_unknown_cost


@pytest.mark.parametrize("reported", ["NaN", "Infinity", "-1"])
def test_an_invalid_reported_cost_is_ignored(reported: str) -> None:
    ledger = Ledger()
    record(ledger, cost=Decimal(reported))
    assert ledger.cost == Decimal("0.003")


def test_a_call_without_usage_is_recorded_with_estimated_tokens() -> None:
    ledger = Ledger()
    record(ledger, usage=None, counted=1_000, counted_output=100)
    total = ledger.totals["m", "main"]
    assert total.usage == Usage(1_000, 0, 100)
    assert total.cost == Decimal("0.003")
    assert total.estimated
    record(ledger)
    assert ledger.totals["m", "main"].estimated


def test_each_warning_is_given_once() -> None:
    ledger = Ledger(SpendingLimits(warn_at_dollars="0.006", warn_at_tokens=3_000))
    assert record(ledger) == []
    assert record(ledger) == ["This session has cost $0.0060; warn_at_dollars is $0.0060."]
    assert record(ledger) == ["This session has used 3,300 tokens; warn_at_tokens is 3,000."]
    assert record(ledger) == []


def test_one_call_can_cause_both_warnings() -> None:
    assert len(record(Ledger(SpendingLimits(warn_at_dollars=0.001, warn_at_tokens=1)))) == 2


def test_a_reset_clears_totals_and_warnings() -> None:
    ledger = Ledger(SpendingLimits(warn_at_tokens=1_000, cap_at_dollars=1))
    assert len(record(ledger, price=None)) == 1
    ledger.reset()
    assert not ledger.totals
    assert (ledger.cost, ledger.has_unknown_cost, ledger.uncovered) == (Decimal(0), False, None)
    assert len(record(ledger)) == 1


@pytest.mark.parametrize("name", ["warn_at_dollars", "warn_at_tokens", "cap_at_dollars"])
@pytest.mark.parametrize("value", [-1, "-0.01", "much", "", float("nan"), "inf", True, [1]])
def test_an_invalid_limit_raises_with_its_name(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=name):
        SpendingLimits(**{name: value})


@pytest.mark.parametrize("value", [5, 5.0, "5", "5.00", Decimal(5)])
def test_limits_accept_any_number_type(value: Any) -> None:
    ledger = Ledger(
        SpendingLimits(warn_at_dollars=value, warn_at_tokens=value, cap_at_dollars=value)
    )
    assert ledger.warn_at_dollars == ledger.warn_at_tokens == ledger.cap_at_dollars == 5


def test_a_float_limit_is_converted_exactly() -> None:
    assert Ledger(SpendingLimits(cap_at_dollars=0.1)).cap_at_dollars == Decimal("0.1")


def test_check_raises_before_a_call_could_exceed_the_cap() -> None:
    ledger = Ledger(SpendingLimits(cap_at_dollars="0.01"))
    record(ledger)
    ledger.check("m", tokens=1_000, reply=500, price=CHEAP)
    with pytest.raises(SpendingCapError) as caught:
        ledger.check("m", tokens=1_000, reply=501, price=CHEAP)
    error = caught.value
    assert isinstance(error, BrimError)
    assert (error.cap, error.spent, error.estimate) == (
        Decimal("0.01"),
        Decimal("0.003"),
        Decimal("0.00701"),
    )
    assert str(error) == (
        "This call to m could cost $0.0070, and $0.0030 of $0.0100 is spent. Raise "
        "cap_at_dollars, shorten the request or its reply, use a cheaper model, or reset the "
        "cost."
    )
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert ledger.cost == Decimal("0.003")


def test_without_a_cap_check_never_raises() -> None:
    Ledger().check("m", tokens=10**12, reply=10**12, price=CHEAP)


def test_a_cap_of_zero_allows_free_calls() -> None:
    ledger = Ledger(SpendingLimits(cap_at_dollars=0))
    ledger.check("free", tokens=1_000, reply=10, price=Price(Decimal(0), None, Decimal(0)))
    with pytest.raises(SpendingCapError):
        ledger.check("m", tokens=1, reply=0, price=CHEAP)


def test_the_maximum_cost_includes_more_expensive_cache_writes() -> None:
    price = Price(Decimal(2), Decimal(1), Decimal(10), Decimal("2.5"))
    assert compute_max_cost(1_000_000, 100_000, price) == Decimal("3.5")
    assert compute_max_cost(1_000_000, 100_000, CHEAP) == Decimal(3)


def test_a_model_without_a_price_passes_the_check_and_is_named_as_uncovered() -> None:
    ledger = Ledger(SpendingLimits(cap_at_dollars="0.001"))
    assert ledger.uncovered is None
    ledger.check("house", tokens=10**9, reply=10**9, price=None)
    record(ledger, model="attic", price=None)
    assert ledger.uncovered == (
        "The cap of $0.0010 does not cover attic, house: the price is unknown."
    )
    record(ledger)
    ledger.check("house", tokens=10**9, reply=10**9, price=None)


def test_a_model_is_covered_once_its_price_is_known() -> None:
    ledger = Ledger(SpendingLimits(cap_at_dollars=1))
    ledger.check("house", tokens=1, reply=1, price=None)
    ledger.check("house", tokens=1, reply=1, price=CHEAP)
    assert ledger.uncovered is None


def test_without_a_cap_no_model_is_uncovered() -> None:
    ledger = Ledger()
    record(ledger, price=None)
    assert ledger.uncovered is None


def test_a_model_that_reports_its_cost_is_capped_without_a_price() -> None:
    ledger = Ledger(SpendingLimits(cap_at_dollars=1))
    record(ledger, model="unlisted", price=None, cost=Decimal(1))
    ledger.check("local", tokens=1, reply=1, price=None)
    with pytest.raises(SpendingCapError, match=r"\$1.00 of \$1.00 is spent") as caught:
        ledger.check("unlisted", tokens=1, reply=1, price=None)
    assert caught.value.estimate is None


def test_the_table_has_a_row_for_each_total_and_the_current_tokens() -> None:
    ledger = Ledger()
    record(ledger, model="gpt-5-mini", usage=Usage(558, 100, 20), counted=498)
    record(ledger, model="gpt-5-mini", category="summary", usage=Usage(558, 0, 20), counted=560)
    record(ledger, model="house", usage=None, counted=1_200, counted_output=7, price=None)
    assert ledger.format_table(1_310).splitlines() == [
        "model       category  calls        prompt  cached      completion                cost",
        "gpt-5-mini  main          1  558 ~est=498     100              20           $0.001216",
        "gpt-5-mini  summary       1           558       0              20           $0.001316",
        "house       main          1         1,200       0   7 (estimated)             unknown",
        "total                     3         2,316     100  47 (estimated)  at least $0.002532",
        "the conversation now has 1,310 tokens",
    ]


@pytest.mark.parametrize(
    ("reported", "counted", "shown"),
    [
        (558, 508, "558"),
        (558, 502, "558 ~est=502"),
        (1_000, 900, "1,000"),
        (1_000, 899, "1,000 ~est=899"),
        (1_000, 1_100, "1,000"),
        (1_000, 1_101, "1,000 ~est=1,101"),
        (1_000, 0, "1,000"),
    ],
)
def test_the_table_shows_an_estimate_that_was_off_by_more_than_a_tenth(
    reported: int, counted: int, shown: str
) -> None:
    ledger = Ledger()
    record(ledger, usage=Usage(reported, 0, 5), counted=counted)
    row = ledger.format_table().splitlines()[1]
    assert f" {shown}  " in row
    assert ("~est" in row) == ("~est" in shown)


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        ("0", "$0.00"),
        ("0.0021", "$0.0021"),
        ("0.00214", "$0.0021"),
        ("0.000015", "$0.000015"),
        ("0.5", "$0.5000"),
        ("1", "$1.00"),
        ("1234.5", "$1,234.50"),
    ],
)
def test_dollars_are_shown_with_their_significant_digits(amount: str, shown: str) -> None:
    assert format_dollars(Decimal(amount)) == shown


def test_a_saved_ledger_is_restored() -> None:
    ledger = Ledger(SpendingLimits(warn_at_tokens=1))
    record(ledger, usage=Usage(1_000, 10, 5, 7, 3))
    record(ledger, model="house", category="goal", usage=None, price=None)
    saved = json.loads(json.dumps(ledger.to_dict()))
    again = Ledger(SpendingLimits(warn_at_tokens=1))
    again.restore(saved)
    assert again.totals == ledger.totals
    assert again.to_dict() == ledger.to_dict()
    assert record(again) == []


@pytest.mark.parametrize(
    "saved",
    [
        {},
        {"totals": 5, "warned": []},
        {"totals": [{}], "warned": []},
        {"totals": [{"model": "m", "category": "main", "usage": {}, "cost": "x"}], "warned": []},
        {"totals": [{"model": "m", "category": "main", "usage": 1, "cost": "1"}], "warned": []},
    ],
)
def test_invalid_saved_data_raises(saved: Any) -> None:
    with pytest.raises(InputError, match="saved costs"):
        Ledger().restore(saved)
    with pytest.raises(InputError, match="saved request log"):
        RequestLog.from_dict(saved)


usages = st.builds(
    lambda uncached, cached, output: Usage(uncached + cached, cached, output),
    *[st.integers(0, 10**6)] * 3,
)
calls = st.tuples(
    st.sampled_from(["a", "b"]),
    st.sampled_from(CATEGORIES),
    st.none() | usages,
    st.integers(0, 10**6),
    st.none() | st.just(CHEAP),
)


@given(st.lists(calls, max_size=20))
def test_totals_add_up(recorded: list[Any]) -> None:
    ledger = Ledger()
    for model, category, usage, counted, price in recorded:
        ledger.record(model, category, usage=usage, counted=counted, price=price)
    totals = ledger.totals.values()
    assert sum(total.calls for total in totals) == len(recorded)
    assert sum((total.cost for total in totals), Decimal(0)) == ledger.cost
    assert sum((total.usage for total in totals), Usage()) == ledger.usage
    assert ledger.has_unknown_cost == any(price is None for *_, price in recorded)
    assert len(ledger.format_table(1).splitlines()) >= len(totals)


@given(st.lists(st.tuples(usages, st.integers(0, 50_000)), max_size=30), st.integers(0, 5))
def test_calls_that_pass_the_check_never_exceed_the_cap(
    requests: list[tuple[Usage, int]], cap: int
) -> None:
    ledger = Ledger(SpendingLimits(cap_at_dollars=cap))
    for usage, reply in requests:
        used = Usage(usage.input, usage.cached, min(usage.output, reply))
        try:
            ledger.check("m", tokens=used.input, reply=reply, price=CHEAP)
        except SpendingCapError:
            continue
        ledger.record("m", "main", usage=used, counted=used.input, price=CHEAP)
    assert ledger.cost <= cap
    assert ledger.cost == cost(ledger.usage, CHEAP)


def entry(
    number: int = 0, *, after: int = 500, limit: int = 1_000, trimmed: bool = False
) -> LoggedRequest:
    return LoggedRequest(
        1_700_000_000.0 + number, "m", "main", 800, after, limit, trimmed, 3 * trimmed
    )


def test_an_empty_log_has_zero_statistics() -> None:
    assert RequestLog().statistics() == RequestStatistics(0, 0, 0.0)
    assert RequestLog().entries == ()


def test_the_log_keeps_the_last_hundred_requests_and_counts_all() -> None:
    log = RequestLog()
    for number in range(150):
        log.add(entry(number, after=250 if number % 2 else 750, trimmed=number < 30))
    assert len(log.entries) == MAX_LOGGED_REQUESTS == 100
    assert [log.entries[0], log.entries[-1]] == [entry(50, after=750), entry(149, after=250)]
    assert log.statistics() == RequestStatistics(150, 30, 0.5)


def test_a_limit_of_zero_has_a_utilization_of_zero() -> None:
    log = RequestLog()
    log.add(entry(limit=0))
    assert log.statistics() == RequestStatistics(1, 0, 0.0)


def test_a_saved_log_is_restored() -> None:
    log = RequestLog()
    for number in range(120):
        log.add(entry(number, trimmed=True))
    again = RequestLog.from_dict(json.loads(json.dumps(log.to_dict())))
    assert again.entries == log.entries
    assert again.statistics() == log.statistics()
    again.add(entry())
    assert again.statistics().requests == 121
