"""What a call used, and what that costs."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.usage import Price, Usage, cost, price, register_price

usages = st.builds(
    lambda fresh, cached, output: Usage(fresh + cached, cached, output),
    *[st.integers(0, 10**9)] * 3,
)
rates = st.decimals(0, 1_000, places=4)
prices = st.builds(Price, rates, st.none() | rates, rates)


@given(usages, usages)
def test_usages_add(one: Usage, other: Usage) -> None:
    assert one + other == other + one
    assert one + Usage() == one
    assert (one + other).input == one.input + other.input


@given(usages, usages, prices)
def test_costs_add_with_their_usages(one: Usage, other: Usage, listed: Price) -> None:
    first, second, both = (cost(usage, listed) for usage in (one, other, one + other))
    assert first is not None
    assert second is not None
    assert both is not None
    assert abs(first + second - both) < Decimal("0.000000001")


@pytest.mark.parametrize(
    ("usage", "listed", "expected"),
    [
        (Usage(1_000_000, 0, 0), Price(Decimal(2), Decimal(1), Decimal(8)), "2"),
        (Usage(1_000_000, 400_000, 0), Price(Decimal(2), Decimal(1), Decimal(8)), "1.6"),
        (Usage(1_000_000, 400_000, 0), Price(Decimal(2), None, Decimal(8)), "2"),
        (Usage(0, 0, 250_000), Price(Decimal(2), None, Decimal(8)), "2"),
        (Usage(), Price(), "0"),
    ],
)
def test_cached_tokens_are_part_of_the_input(usage: Usage, listed: Price, expected: str) -> None:
    assert cost(usage, listed) == Decimal(expected)


@pytest.mark.parametrize(
    "listed", [None, Price(), Price(input=Decimal(1)), Price(output=Decimal(1))]
)
def test_an_unknown_price_is_not_zero(listed: Price | None) -> None:
    assert cost(Usage(10, 0, 10), listed) is None


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("gpt-4o", None),
        ("gpt-4o-2024-08-06", None),
        ("gpt-4o", "openai"),
        ("openai/gpt-4o", None),
        ("openrouter/openai/gpt-4o", None),
    ],
)
def test_list_prices_are_found_by_every_spelling(model: str, provider: str | None) -> None:
    assert price(model, provider) == Price(Decimal("2.5"), Decimal("1.25"), Decimal(10))


@pytest.mark.parametrize("name", ["", "no-such-model", "ollama/llama3.2", "smollm2", "a/b/c"])
def test_a_model_without_a_price_has_none(name: str) -> None:
    assert price(name) is None


def test_a_seller_that_does_not_exist_has_no_prices() -> None:
    assert price("gpt-4o", "nobody") is None


def test_long_prompts_cost_more_where_the_list_says_so() -> None:
    short, long = price("gemini-2.5-pro"), price("gemini-2.5-pro", tokens=250_000)
    assert short == Price(Decimal("1.25"), Decimal("0.125"), Decimal(10))
    assert long == Price(Decimal("2.5"), Decimal("0.25"), Decimal(15))


def test_a_price_of_ones_own_goes_before_the_list() -> None:
    own = Price(Decimal("0.5"), None, Decimal(2))
    register_price("house-model", own)
    assert price("openai/House-Model:free") == own
    assert price("house-models") is None
