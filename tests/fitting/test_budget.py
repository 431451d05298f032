from __future__ import annotations

from typing import Any

import pytest

import brim
from brim.fitting.budget import Budget, compute_budget


def test_the_limit_is_the_window_minus_reply_and_margin() -> None:
    assert Budget(8_192, 1_000, 192).limit == 7_000
    assert Budget(400_000, 1_000, 0, largest_input=272_000).limit == 272_000


@pytest.mark.parametrize(("window", "reply"), [(0, 0), (100, 100), (100, 4_000)])
def test_a_window_smaller_than_the_reply_has_a_limit_of_zero(window: int, reply: int) -> None:
    check = Budget(window, reply).check(50)
    assert (check.limit, check.available, check.within, check.percent) == (0, 0, False, 100.0)
    assert Budget(window, reply).check(0).within


def test_a_check_compares_a_count_with_the_limit() -> None:
    check = Budget(1_000, 200).check(600)
    assert (check.limit, check.current, check.available) == (800, 600, 200)
    assert check.within
    assert check.percent == 75.0


@pytest.mark.parametrize("wrong", [-1, 1.5, "8k", True, [1], {}])
@pytest.mark.parametrize("name", ["window", "reply", "margin"])
def test_an_invalid_number_raises_an_error_that_names_it(name: str, wrong: Any) -> None:
    numbers = {"window": 100, "reply": 10, "margin": 0, name: wrong}
    with pytest.raises(brim.BudgetError, match=name):
        Budget(**numbers)
    with pytest.raises(brim.BudgetError, match=name):
        brim.fit([{"role": "user", "content": "hi"}], **numbers)


@pytest.mark.parametrize(
    ("model", "window", "reply"),
    [
        ("gpt-4o", 128_000, 4_096),
        ("gpt-4o", 8_000, 2_000),
        (None, 4_096, 1_024),
    ],
)
def test_the_default_reply_is_a_quarter_of_the_window_and_at_most_4096(
    model: str | None, window: int, reply: int
) -> None:
    assert compute_budget(model, window, None, 0.0).reply == reply


def test_the_smallest_limit_of_a_model_applies() -> None:
    budget = compute_budget("gpt-5-mini", None, 1_000, 0.0)
    assert (budget.window, budget.limit) == (400_000, 272_000)


def test_the_margin_covers_the_uncertainty_at_the_limit() -> None:
    budget = compute_budget(None, 10_000, 2_000, 0.25)
    assert (budget.margin, budget.limit) == (1_600, 6_400)
    assert budget.limit * 1.25 <= budget.window - budget.reply


def test_an_unknown_window_is_an_error_that_says_what_to_pass() -> None:
    with pytest.raises(brim.BudgetError, match=r"window=.*model="):
        brim.fit([{"role": "user", "content": "hi"}])
    with pytest.raises(brim.BudgetError, match="my-own-model"):
        brim.fit([{"role": "user", "content": "hi"}], model="my-own-model")


TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("model", "is_measured"), [("gpt-4o", False), ("llama-3.1-8b", True), ("qwen3-8b", True)]
)
def test_tools_have_the_margin_of_their_family(model: str, is_measured: bool) -> None:
    pytest.importorskip("splintr")
    plain = brim.fit(HELLO, model=model, window=8_192).plan.budget
    tools = brim.fit(HELLO, model=model, window=8_192, tools=[TOOL] * 9).plan.budget
    assert plain.margin == 0
    assert (tools.margin > 0) is is_measured
    assert brim.Session(model, window=8_192, tools=[TOOL] * 9).budget == tools


@pytest.mark.parametrize(("window", "added"), [(8_192, 160), (256, 85)])
def test_the_margin_for_an_unknown_model_covers_what_its_template_may_add(
    window: int, added: int
) -> None:
    budget = brim.fit(HELLO, model="acme/unknown", window=window, reply=0).plan.budget
    assert budget.limit == int((window - added) / 1.25)


def test_other_scripts_count_more_for_an_unknown_model() -> None:
    thai = [{"role": "user", "content": "สะพานที่ซ่อมแล้ว" * 9}]
    plan = brim.fit(thai, model="acme/unknown", window=8_192).plan
    assert plan.tokens > brim.count(thai, model="acme/unknown") * 1.5


@pytest.mark.parametrize("margin", [0, 70])
def test_a_given_margin_replaces_the_uncertainty(margin: int) -> None:
    budget = brim.fit(
        HELLO, model="claude-x", window=8_192, margin=margin, tools=[TOOL]
    ).plan.budget
    assert (budget.margin, budget.limit) == (margin, 8_192 - 2_048 - margin)
    session = brim.Session("claude-x", window=8_192, margin=margin)
    assert session.budget == budget
    assert brim.Session.from_dict(session.to_dict()).budget == budget
    with pytest.raises(brim.BudgetError, match="negative"):
        brim.Session("claude-x", margin=-1)


@pytest.mark.parametrize(("given", "reply"), [(100, 100), (9_000, 2_048), (None, 2_048)])
def test_a_smaller_reply_limit_reserves_less(given: int | None, reply: int) -> None:
    body = {"model": "gpt-4o", "messages": HELLO, "max_tokens": given}
    assert brim.fit(body, window=8_192).plan.budget.reply == reply
    assert brim.fit(body, window=8_192, reply=500).plan.budget.reply == 500
