from __future__ import annotations

import pytest

import brim
from brim.fitting.budget import Budget, compute_budget


def test_the_limit_is_what_the_parts_leave() -> None:
    assert Budget(8_192, 1_000, 192).limit == 7_000
    assert Budget(400_000, 1_000, 0, largest_input=272_000).limit == 272_000


@pytest.mark.parametrize(("window", "reply"), [(0, 0), (100, 100), (100, 4_000)])
def test_a_window_no_larger_than_the_reply_gives_defined_numbers(window: int, reply: int) -> None:
    check = Budget(window, reply).check(50)
    assert (check.limit, check.available, check.within, check.percent) == (0, 0, False, 100.0)
    assert Budget(window, reply).check(0).within


def test_a_check_tells_how_a_count_stands() -> None:
    check = Budget(1_000, 200).check(600)
    assert (check.limit, check.current, check.available) == (800, 600, 200)
    assert check.within
    assert check.percent == 75.0


@pytest.mark.parametrize("wrong", [-1, 1.5, "8k", True])
@pytest.mark.parametrize("name", ["window", "reply", "margin"])
def test_what_is_no_number_of_tokens_is_refused_by_name(name: str, wrong: object) -> None:
    numbers = {"window": 100, "reply": 10, "margin": 0, name: wrong}
    with pytest.raises(brim.BudgetError, match=name):
        Budget(**numbers)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "window", "reply"),
    [
        ("gpt-4o", 128_000, 4_096),
        ("gpt-4o", 8_000, 2_000),
        (None, 4_096, 1_024),
    ],
)
def test_without_a_word_a_quarter_or_4096_is_kept_for_the_reply(
    model: str | None, window: int, reply: int
) -> None:
    assert compute_budget(model, window, None, 0.0).reply == reply


def test_the_tightest_number_of_a_model_rules() -> None:
    budget = compute_budget("gpt-5-mini", None, 1_000, 0.0)
    assert (budget.window, budget.limit) == (400_000, 272_000)


def test_the_margin_covers_the_uncertainty_at_the_limit() -> None:
    budget = compute_budget(None, 10_000, 2_000, 0.25)
    assert (budget.margin, budget.limit) == (1_600, 6_400)
    assert budget.limit * 1.25 <= budget.window - budget.reply


def test_with_neither_window_nor_known_model_it_says_what_to_give() -> None:
    with pytest.raises(brim.BudgetError, match=r"window=.*model="):
        brim.fit([{"role": "user", "content": "hi"}])
    with pytest.raises(brim.BudgetError, match="my-own-model"):
        brim.fit([{"role": "user", "content": "hi"}], model="my-own-model")
