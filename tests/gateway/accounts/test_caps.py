"""Parsing caps; ambiguous input is rejected with a suggestion."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from brim.errors import InputError
from brim.gateway.accounts.caps import (
    ALL,
    PERIODS,
    Cap,
    dump_caps,
    key_scope,
    load_caps,
    name_periods,
    period_kind,
    project_scope,
    reset_time,
    scope_parts,
)


@pytest.mark.parametrize(
    ("words", "cap"),
    [
        ("5/day", Cap(5_000_000, "dollars", "day")),
        ("$1.5 a day", Cap(1_500_000, "dollars", "day")),
        ("1,000/month", Cap(1_000_000_000, "dollars", "month")),
        ("$12,345.67", Cap(12_345_670_000)),
        ("1_000", Cap(1_000_000_000)),
        ("1,500,000 tokens/day", Cap(1_500_000, "tokens", "day")),
        ("5M tokens/day", Cap(5_000_000, "tokens", "day")),
        ("2Mtokens/day", Cap(2_000_000, "tokens", "day")),
        ("1.5k tokens", Cap(1_500, "tokens")),
    ],
)
def test_a_cap_is_parsed(words: str, cap: Cap) -> None:
    assert Cap.parse(words) == cap


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("1,5/day", "1.5/day"),
        ("0,50", "0.50"),
        ("$12,3456/month", "$12.3456/month"),
        ("1,5M tokens/day", "1.5M tokens/day"),
        ("1,00,000", "100000"),
        ("1000,000.50/day", "1000000.50/day"),
    ],
)
def test_a_decimal_comma_is_rejected(words: str, meant: str) -> None:
    with pytest.raises(InputError) as rejected:
        Cap.parse(words)
    assert str(rejected.value).endswith(f"Did you mean {meant}?")
    assert Cap.parse(meant).limit > 0, "what is proposed can be taken"


@pytest.mark.parametrize(
    ("words", "tokens", "money"),
    [
        ("5M/day", "5M tokens/day", "5000000/day"),
        ("$2k", "2k tokens", "2000"),
        ("1.5k dollars per month", "1.5k tokens/month", "1500/month"),
    ],
)
def test_large_caps_have_thousands_separators(words: str, tokens: str, money: str) -> None:
    with pytest.raises(InputError) as rejected:
        Cap.parse(words)
    assert f"Did you mean {tokens}? In dollars, write " in str(rejected.value)
    assert Cap.parse(tokens).unit == "tokens"
    assert Cap.parse(money).unit == "dollars"
    assert Cap.parse(str(rejected.value).split()[-1].removesuffix(".")) == Cap.parse(money)


def test_dumped_caps_can_be_loaded() -> None:
    caps = (Cap(5), Cap(7, "tokens", "day"), Cap(9, "dollars", "month"))
    assert load_caps(dump_caps(caps)) == caps
    assert load_caps(None) == ()


def test_a_scope_is_split_into_kind_and_name() -> None:
    scopes = (key_scope("k_1"), project_scope("web"), ALL)
    assert [scope_parts(scope) for scope in scopes] == [
        ("key", "k_1"),
        ("project", "web"),
        (ALL, ""),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [('[[5, "dollars", "year"]]', "Unknown period: 'year'"), ('[[5, "euros", "day"]]', "euros")],
)
def test_an_unknown_period_or_unit_is_an_error(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        load_caps(text)


def test_periods_are_named_by_their_days() -> None:
    names = name_periods("2026-11-15")
    assert names == {
        "day": "2026-11-15",
        "week": "W2026-11-09",
        "month": "2026-11",
        "total": "total",
    }
    assert [period_kind(name) for name in names.values()] == list(PERIODS)


def test_caps_reset_when_the_next_period_begins() -> None:
    now = datetime(2026, 12, 31, 23, 59, tzinfo=UTC).timestamp()
    new_year = datetime(2027, 1, 1, tzinfo=UTC).timestamp()
    assert {period: reset_time(period, now) for period in PERIODS} == {
        "day": new_year,
        "week": datetime(2027, 1, 4, tzinfo=UTC).timestamp(),
        "month": new_year,
        "total": None,
    }
