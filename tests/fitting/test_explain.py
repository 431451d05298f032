"""A plan as text: rows that add up, for a terminal of any width."""

from __future__ import annotations

from typing import Any

import pytest

import brim
from brim.fitting.explain import (
    PlanRow,
    build_rows,
    render_header,
    render_model,
    render_models,
    render_plan,
)
from brim.fitting.plan import get_overflow_plan
from brim.fitting.policies import POLICIES

WORD = "word " * 40


def steps(number: int, output: str = WORD) -> list[dict[str, Any]]:
    """Return an agent's run: a system prompt, a task, and steps that call a tool."""
    run: list[dict[str, Any]] = [
        {"role": "system", "content": "Answer briefly."},
        {"role": "user", "content": "Find the bug."},
    ]
    for step in range(number):
        function = {"name": "read", "arguments": f'{{"page": {step}}}'}
        call = {"id": f"call{step}", "type": "function", "function": function}
        run.append({"role": "assistant", "content": None, "tool_calls": [call]})
        run.append({"role": "tool", "tool_call_id": f"call{step}", "content": f"{step} {output}"})
    return run


def plan_of(messages: list[dict[str, Any]], window: int = 1_000, **options: Any) -> brim.Plan:
    return brim.fit(messages, model="gpt-4o", window=window, **options).plan


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("window", [600, 900, 2_000, 100_000])
def test_rows_add_up_and_contain_every_message_once(policy: str, window: int) -> None:
    plan = plan_of(steps(40), window, policy=policy)
    found = build_rows(plan)
    assert sum(row.before for row in found) == plan.before
    assert sum(row.after for row in found) == plan.tokens
    named: list[int] = []
    for row in found:
        if row.place:
            first, _, last = row.place.partition("–")
            named += range(int(first), int(last or first) + 1)
    assert named == list(range(plan.length))


def test_consecutive_messages_with_the_same_outcome_share_a_row() -> None:
    plan = plan_of(steps(200))
    dropped = [row for row in build_rows(plan) if row.outcome == "dropped"]
    assert len(dropped) == 1
    assert dropped[0].role == "assistant, tool"
    assert dropped[0].after == 0
    assert "–" in dropped[0].place


def test_a_system_message_has_its_own_row() -> None:
    first, second, *_ = build_rows(plan_of(steps(3), 100_000))
    assert (first.place, first.role) == ("0", "system")
    assert (second.place, second.role) == ("1–7", "mixed")


def test_a_note_has_a_row_next_to_its_gap() -> None:
    plan = plan_of(steps(200))
    assert plan.notes
    found = build_rows(plan)
    place = next(i for i, row in enumerate(found) if row.outcome == "dropped")
    note = found[place - 1]
    assert (note.place, note.role, note.outcome, note.before) == ("", "note", "added", 0)
    assert note.after == plan.notes[0].tokens
    assert note.reason.startswith("tells what was dropped")


def test_tools_and_framing_have_a_row() -> None:
    tools = [{"type": "function", "function": {"name": "read", "parameters": {}}}]
    plan = plan_of(steps(1), 100_000, tools=tools)
    *_, last = build_rows(plan)
    assert last == PlanRow("", "request", "kept", last.before, last.before, "tools and framing")
    assert last.before > 3


def test_the_header_shows_the_parts_of_the_limit() -> None:
    chat = [{"role": "user", "content": "hello"}]
    assert render_header(plan_of(chat)) == (
        "8 → 8 tokens, limit 750 = window 1,000 − reply 250 − margin 0; "
        "counted exactly, policy steady"
    )
    guess = render_header(brim.fit(chat, window=1_000).plan)
    assert guess.startswith("about 8 → 8 tokens, limit 600 = window 1,000 − reply 250 − margin 150")
    assert "estimated" in guess


def test_the_header_shows_the_largest_input_if_it_decides_the_limit() -> None:
    plan = brim.fit([{"role": "user", "content": "hello"}], model="gpt-5-mini").plan
    assert "limit 272,000 = largest input 272,000 − margin 0" in render_header(plan)


@pytest.mark.parametrize("width", [20, 40, 55, 60, 80, 120])
def test_a_table_is_not_wider_than_the_given_width(width: int) -> None:
    plan = plan_of(steps(60))
    text = render_plan(plan, width)
    assert max(map(len, text.splitlines())) <= width
    flat = " ".join(text.split())
    assert f"{plan.before:,}" in flat
    assert "middle of the current task" in flat


def test_a_table_without_a_width_has_one_line_per_row() -> None:
    plan = plan_of(steps(60))
    lines = render_plan(plan).splitlines()
    assert lines[0] == render_header(plan)
    assert lines[2].split() == ["message", "role", "outcome", "before", "after", "why"]
    assert len(lines) == 3 + len(build_rows(plan)) + 1
    total = ["total", "122", "messages", f"{plan.before:,}", f"{plan.tokens:,}"]
    assert lines[-1].split() == [*total, "fits", f"{plan.limit:,}"]


def test_warnings_follow_the_table() -> None:
    lonely = [*steps(1), {"role": "tool", "tool_call_id": "x", "content": "orphaned"}]
    assert render_plan(plan_of(lonely)).splitlines()[-1].startswith("warning: message 4: ")


def test_a_plan_that_does_not_fit_says_so() -> None:
    with pytest.raises(brim.ContextOverflowError) as caught:
        plan_of([{"role": "user", "content": WORD * 100}], 100)
    assert render_plan(get_overflow_plan(caught.value)).endswith("does not fit 75")


FACTS: dict[str, Any] = {
    "name": "some-model",
    "provider": "acme",
    "context": 8_192,
    "largest_input": None,
    "largest_output": None,
    "tokenizer": "o200k_base",
    "exact": False,
    "price": {"input": 0.25, "cached": None, "output": 2.0},
}


def test_missing_facts_about_a_model_are_unknown_and_not_zero() -> None:
    text = render_model("Some-Model:free", FACTS)
    assert text.startswith("some-model, found for Some-Model:free\n")
    assert "largest input   unknown\n" in text
    assert "fallback: counts are estimates" in text
    assert "0.25 / unknown / 2 (dollars" in text


def test_an_unknown_price_is_one_word() -> None:
    unpriced = {**FACTS, "price": dict.fromkeys(FACTS["price"])}
    assert "price           unknown (" in render_model("some-model", unpriced)


def test_a_list_of_models_omits_prices_if_there_is_no_room() -> None:
    wide, narrow = render_models([FACTS]), render_models([FACTS], 60)
    assert "0.25 / unknown / 2" in wide
    assert "0.25" not in narrow
    assert narrow.splitlines()[1].split() == [
        "some-model",
        "8,192",
        "unknown",
        "unknown",
        "~o200k_base",
    ]
    assert max(map(len, narrow.splitlines())) <= 60
