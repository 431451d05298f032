"""Usage, prices and cost."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import InputError
from brim.models.pricing import Price, Usage, cost, price
from brim.wire.reply import parse_reported_cost, parse_usage

usages = st.builds(
    lambda fresh, cached, output, brief, lasting: Usage(
        fresh + cached + brief + lasting, cached, output, brief + lasting, lasting
    ),
    *[st.integers(0, 10**9)] * 5,
)
rates = st.decimals(0, 1_000, places=4)
prices = st.builds(Price, rates, st.none() | rates, rates, st.none() | rates)


def test_a_price_of_other_numbers_is_the_price_of_their_decimals() -> None:
    exact = Price(Decimal(2), output=Decimal("0.1"))
    numbers: list[Any] = [2, 0.1]
    assert Price(numbers[0], output=numbers[1]) == exact
    assert cost(Usage(input=1_000_000), Price(numbers[1])) == Decimal("0.1")


@pytest.mark.parametrize("rate", [-1, float("nan"), float("inf"), "2", True])
def test_a_price_that_is_no_number_of_dollars_is_an_error(rate: Any) -> None:
    with pytest.raises(InputError, match=r"Price: output must be a number of at least 0"):
        Price(output=rate)


@given(usages, usages)
def test_usages_add(one: Usage, other: Usage) -> None:
    assert one + other == other + one
    assert one + Usage() == one
    assert (one + other).input == one.input + other.input
    assert (one + other).written == one.written + other.written
    assert (one + other).lasting == one.lasting + other.lasting


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
        (Usage(1_000_000, 0, 0, 400_000), Price(Decimal(2), written=Decimal(3)), "2.4"),
        (Usage(1_000_000, 0, 0, 400_000), Price(Decimal(2)), "2"),
        (Usage(1_000_000, 0, 0, 400_000, 300_000), Price(Decimal(2), written=Decimal(3)), "2.7"),
        (Usage(1_000_000, 0, 0, 400_000, 300_000), Price(Decimal(2)), "2.6"),
        (
            Usage(1_000_000, 500_000, 0, 400_000),
            Price(Decimal(2), Decimal(1), None, Decimal(3)),
            "1.9",
        ),
        (Usage(), Price(), "0"),
    ],
)
def test_cached_and_written_tokens_are_part_of_the_input(
    usage: Usage, listed: Price, expected: str
) -> None:
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
def test_list_prices_are_found_by_every_name(model: str, provider: str | None) -> None:
    assert price(model, provider) == Price(Decimal("2.5"), Decimal("1.25"), Decimal(10))


@pytest.mark.parametrize("name", ["", "no-such-model", "ollama/llama3.2", "smollm2", "a/b/c"])
def test_a_model_without_a_price_has_none(name: str) -> None:
    assert price(name) is None


def test_an_unknown_provider_has_no_prices() -> None:
    assert price("gpt-4o", "unknown") is None


def test_long_prompts_cost_more_if_the_list_says_so() -> None:
    short, long = price("gemini-2.5-pro"), price("gemini-2.5-pro", tokens=250_000)
    assert short == Price(Decimal("1.25"), Decimal("0.125"), Decimal(10))
    assert long == Price(Decimal("2.5"), Decimal("0.25"), Decimal(15))


def test_cache_writes_have_their_own_price() -> None:
    listed = price("claude-sonnet-4-5")
    assert listed is not None
    assert listed.input is not None
    assert listed.written is not None
    assert listed.written > listed.input


def test_one_hour_cache_writes_cost_twice_the_input() -> None:
    for_an_hour = {
        "input_tokens": 10,
        "output_tokens": 1,
        "cache_creation_input_tokens": 100_000,
        "cache_read_input_tokens": 0,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 100_000},
    }
    usage, listed = parse_usage({"usage": for_an_hour}), price("claude-sonnet-4-5")
    assert usage == Usage(100_010, 0, 1, 100_000, 100_000)
    assert cost(usage, listed) == Decimal("0.6") + Decimal("0.000045")


# Reports of providers


def chat(prompt: object, output: object = 2, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": output, **more}


REPORTS = {
    "chat": (chat(10), Usage(10, 0, 2)),
    "chat, cached": (
        chat(10, prompt_tokens_details={"cached_tokens": 6, "cache_write_tokens": 3}),
        Usage(10, 6, 2, 3),
    ),
    "chat, thinking within": (
        chat(10, 8, completion_tokens_details={"reasoning_tokens": 5}, total_tokens=18),
        Usage(10, 0, 8),
    ),
    "chat, thinking beside": (
        chat(10, 3, completion_tokens_details={"reasoning_tokens": 5}, total_tokens=18),
        Usage(10, 0, 8),
    ),
    "chat, null details": (
        chat(10, prompt_tokens_details=None, completion_tokens_details=None),
        Usage(10, 0, 2),
    ),
    "chat, nothing said": ({"prompt_tokens": 10}, Usage(10)),
    "chat in Anthropic's words": (
        chat(10, cache_read_input_tokens=6, cache_creation_input_tokens=1),
        Usage(10, 6, 2, 1),
    ),
    "DeepSeek": (chat(10, prompt_cache_hit_tokens=6, prompt_cache_miss_tokens=4), Usage(10, 6, 2)),
    "cached beside": (chat(10, cached_tokens=6), Usage(10, 6, 2)),
    "responses": (
        {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 6, "cache_write_tokens": 1},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 4},
        },
        Usage(10, 6, 5, 1),
    ),
    "Anthropic": ({"input_tokens": 10, "output_tokens": 2}, Usage(10, 0, 2)),
    "Anthropic, cached": (
        {
            "input_tokens": 10,
            "cache_read_input_tokens": 60,
            "cache_creation_input_tokens": 30,
            "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
            "output_tokens": 2,
        },
        Usage(100, 60, 2, 30, 20),
    ),
    "Anthropic, by time": (
        {
            "input_tokens": 10,
            "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
            "output_tokens": 2,
        },
        Usage(40, 0, 2, 30, 20),
    ),
    "Anthropic, all cached": (
        {"input_tokens": 0, "cache_read_input_tokens": 60, "output_tokens": 2},
        Usage(60, 60, 2),
    ),
    "Gemini": (
        {
            "promptTokenCount": 10,
            "toolUsePromptTokenCount": 3,
            "cachedContentTokenCount": 6,
            "candidatesTokenCount": 2,
            "thoughtsTokenCount": 5,
        },
        Usage(13, 6, 7),
    ),
    "Gemini, in snakes": (
        {"prompt_token_count": 10, "candidates_token_count": 2, "thoughts_token_count": None},
        Usage(10, 0, 2),
    ),
    "Ollama": ({"prompt_eval_count": 10, "eval_count": 2}, Usage(10, 0, 2)),
    "llama.cpp": ({"timings": {"prompt_n": 4, "cache_n": 6, "predicted_n": 2}}, Usage(10, 6, 2)),
    "floats": (chat(10.0, 2.0), Usage(10, 0, 2)),
    "two shapes, one of them empty": (
        chat(0, 0, input_tokens=10, output_tokens=2),
        Usage(10, 0, 2),
    ),
}


@pytest.mark.parametrize("name", REPORTS)
def test_usage_is_parsed_in_every_shape(name: str) -> None:
    report, expected = REPORTS[name]
    assert parse_usage(report) == expected
    assert parse_usage({"id": "x", "usage": report}) == (None if "timings" in report else expected)


def test_usage_takes_precedence_over_timings() -> None:
    timings = {"prompt_n": 4, "cache_n": 6, "predicted_n": 2}
    assert parse_usage({"usage": chat(11), "timings": timings}) == Usage(11, 0, 2)
    assert parse_usage({"usage": None, "timings": timings}) == Usage(10, 6, 2)
    assert parse_usage({"usage": {}, "timings": timings}) == Usage(10, 6, 2)
    assert parse_usage({"usageMetadata": {"promptTokenCount": 3}}) == Usage(3)


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"usage": None},
        {"usage": "10"},
        {"usage": []},
        chat(0),
        chat(-1),
        chat("10"),
        chat(True),
        chat(10.5),
        chat(float("nan")),
        chat(None),
        chat(10, -2),
        chat(10, "2"),
        {"input_tokens": None, "cache_read_input_tokens": 5, "output_tokens": 1},
        {"timings": {"prompt_n": "x"}},
    ],
)
def test_impossible_numbers_are_rejected(payload: dict[str, Any]) -> None:
    assert parse_usage(payload) is None


def test_a_cached_part_never_exceeds_the_prompt() -> None:
    details = {"cached_tokens": 60, "cache_write_tokens": 5}
    assert parse_usage(chat(10, prompt_tokens_details=details)) == Usage(10, 10, 2, 0)
    details = {"cached_tokens": 8, "cache_write_tokens": 5}
    assert parse_usage(chat(10, prompt_tokens_details=details)) == Usage(10, 8, 2, 2)
    assert parse_usage(chat(10, prompt_tokens_details={"cached_tokens": -3})) == Usage(10, 0, 2)


NAMES = sorted(
    {key for payload, _ in REPORTS.values() for key in payload}
    | {"usage", "cost", "cost_details", "is_byok", "upstream_inference_cost", "total_cost"}
)
nonsense = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
    lambda values: st.one_of(
        st.lists(values, max_size=3), st.dictionaries(st.sampled_from(NAMES), values, max_size=6)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(NAMES), nonsense, max_size=8))
def test_a_usage_is_consistent_or_none(payload: dict[str, Any]) -> None:
    usage, dollars = parse_usage(payload), parse_reported_cost(payload)
    if usage is not None:
        assert usage.input > 0
        assert usage.output >= 0
        assert 0 <= usage.cached <= usage.input
        assert 0 <= usage.lasting <= usage.written <= usage.input - usage.cached
    assert dollars is None or (dollars.is_finite() and dollars >= 0)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"cost": 0.000014}, "0.000014"),
        ({"cost": 0}, "0"),
        ({"cost": Decimal("0.1")}, "0.1"),
        ({"cost": 0.95, "cost_details": {"upstream_inference_cost": 0.9}}, "0.95"),
        (
            {"cost": 0.05, "is_byok": True, "cost_details": {"upstream_inference_cost": 1}},
            "1.05",
        ),
        ({"cost": {"input_tokens_cost": 0.1, "total_cost": 0.3}}, "0.3"),
        ({"cost": None}, None),
        ({"cost": "0.1"}, None),
        ({"cost": True}, None),
        ({"cost": -1}, None),
        ({"cost": float("inf")}, None),
        ({"cost": Decimal("sNaN")}, None),
        ({"cost": 10**400}, "1e400"),
        ({}, None),
    ],
)
def test_a_reported_cost_is_parsed(usage: dict[str, Any], expected: str | None) -> None:
    wanted = None if expected is None else Decimal(expected)
    assert parse_reported_cost(usage) == wanted
    assert parse_reported_cost({"usage": usage}) == wanted


def test_a_model_with_a_fee_for_each_request_has_no_price_by_tokens_alone() -> None:
    assert price("sonar", "perplexity") is None
