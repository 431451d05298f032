"""Goal mode: verdicts, progress and limits."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.config import GoalConfig
from brim.shell.goal_mode import (
    MAX_IDLE_REPLIES,
    REMINDER,
    Ending,
    Goal,
    GoalVerdict,
    StepUsage,
    build_goal_instructions,
    parse_verdict,
)
from brim.shell.prompt_texts import RULE

OPEN = GoalVerdict()


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("GOAL: complete", "complete", ""),
        ("GOAL: complete.", "complete", ""),
        ("GOAL: complete  ", "complete", ""),
        ("  GOAL: complete", "complete", ""),
        ("**GOAL: complete**", "complete", ""),
        ("**GOAL:** complete", "complete", ""),
        ("`GOAL: complete`.", "complete", ""),
        ("***GOAL: complete.***", "complete", ""),
        ("_GOAL: blocked_", "blocked", ""),
        ("GOAL: complete\r\nAll is done.\r\n", "complete", "All is done."),
        ("I did it.\nGOAL: complete\n\nTwo:\n- a\n- b\n", "complete", "Two:\n- a\n- b"),
        ("GOAL: complete - all tests pass", "complete", "all tests pass"),
        ("GOAL: complete — all tests pass\nMore.", "complete", "all tests pass\nMore."),
        ("GOAL: complete. All tests pass.", "complete", "All tests pass."),
        ("GOAL: complete: all tests pass", "complete", "all tests pass"),
        ("GOAL: complete (all tests pass)", "complete", "(all tests pass)"),
        ("GOAL: blocked", "blocked", ""),
        ("GOAL: blocked because the key is missing", "blocked", "because the key is missing"),
        ("GOAL: blocked: no network", "blocked", "no network"),
        ("**GOAL: blocked** — no network", "blocked", "no network"),
        ("**GOAL: blocked — no network**", "blocked", "no network"),
        ("GOAL: blocked, no network", "blocked", "no network"),
        ("GOAL: blocked\nI need a password.", "blocked", "I need a password."),
        ("GOAL: blocked\nwait\nGOAL: complete\nyes", "complete", "yes"),
        ("GOAL: complete\nno\nGOAL: blocked\nsorry", "blocked", "sorry"),
        ("```\ncode\n```\nGOAL: complete", "complete", ""),
        ("```py\n````\nGOAL: blocked\n", "blocked", ""),
        ("~~~\n```\n~~~\nGOAL: complete", "complete", ""),
        ("GOAL: complete\n```\nGOAL: blocked\n```", "complete", "```\nGOAL: blocked\n```"),
        ("inline ```code``` here\nGOAL: complete", "complete", ""),
        ("```inline``` at the start\nGOAL: complete", "complete", ""),
        ("", "open", ""),
        ("All is done.", "open", ""),
        ("goal: complete", "open", ""),
        ("GOAL: Complete", "open", ""),
        ("GOAL:complete", "open", ""),
        ("GOAL:  complete", "open", ""),
        ("GOAL: completed", "open", ""),
        ("GOAL: incomplete", "open", ""),
        ("GOAL: complete the tests", "open", ""),
        ("GOAL: complete-ish", "open", ""),
        ("GOAL: blocked-list", "open", ""),
        ("GOAL: blockedness", "open", ""),
        ("The line is GOAL: complete", "open", ""),
        ("> GOAL: complete", "open", ""),
        ("- GOAL: complete", "open", ""),
        ("    GOAL: complete", "open", ""),
        ("```\nGOAL: complete\n```", "open", ""),
        ("```\nGOAL: complete", "open", ""),
        ("````\n```\nGOAL: complete\n````", "open", ""),
        ("~~~\n```\nGOAL: complete\n~~~", "open", ""),
        ("``` \nx\n``` not the end\nGOAL: complete\n```", "open", ""),
        ("one\u2028GOAL: complete", "open", ""),
    ],
)  # fmt: skip
def test_verdicts(text: str, kind: str, words: str) -> None:
    assert parse_verdict(text) == GoalVerdict(kind, words)  # type: ignore[arg-type]


@given(st.text(alphabet="GOAL: completeblocked`~*_.-\n\r x", max_size=60))
def test_only_a_verdict_line_ends_a_goal(text: str) -> None:
    found = parse_verdict(text)
    if found.kind != "open":
        assert any(
            "GOAL:" in line and found.kind in line
            for line in text.replace("\r\n", "\n").split("\n")
        )
    assert found.text in text.replace("\r\n", "\n")


@given(
    st.text(alphabet="abc \n.", max_size=40),
    st.sampled_from(["complete", "blocked"]),
    st.text(alphabet="abc \n.", max_size=40),
)
def test_a_verdict_on_its_own_line_always_counts(before: str, kind: str, after: str) -> None:
    found = parse_verdict(f"{before}\nGOAL: {kind}\n{after}")
    assert found == GoalVerdict(kind, after.strip())  # type: ignore[arg-type]


def test_the_instructions_contain_valid_verdicts() -> None:
    instructions = build_goal_instructions("make the tests pass")
    for kind in ("complete", "blocked"):
        assert f"`GOAL: {kind}`" in instructions
        assert f"`GOAL: {kind}`" in REMINDER
    assert parse_verdict(REMINDER).kind == "open"
    for part in ("destructive operations unless the goal requires", "new plan", "was skipped"):
        assert part in instructions
    assert "confirms" not in RULE + instructions


def goal(**limits: int | Decimal) -> Goal:
    return Goal(GoalConfig(**limits))  # type: ignore[arg-type]


def test_a_goal_continues_while_the_model_acts() -> None:
    ours = goal()
    for _ in range(20):
        ours.add_step(StepUsage(100, Decimal("0.001")), OPEN, acted=True)
    assert ours.ended is None
    assert (ours.steps, ours.tokens, ours.cost) == (20, 2_000, Decimal("0.020"))


@pytest.mark.parametrize(
    ("limits", "step", "steps", "ending"),
    [
        ({"max_steps": 3}, StepUsage(1), 3, "steps"),
        ({"max_tokens": 1_000}, StepUsage(400), 3, "tokens"),
        ({"max_tokens": 800}, StepUsage(400), 2, "tokens"),
        ({"max_dollars": Decimal("0.10")}, StepUsage(1, Decimal("0.05")), 2, "money"),
        ({"max_dollars": Decimal(0)}, StepUsage(1, Decimal("0.05")), 1, "money"),
        ({"max_dollars": Decimal(0), "max_steps": 4}, StepUsage(1, Decimal(0)), 4, "steps"),
        ({"max_dollars": Decimal(0), "max_steps": 4}, StepUsage(1, None), 4, "steps"),
        ({"max_steps": 1, "max_tokens": 1}, StepUsage(1), 1, "steps"),
    ],
)
def test_limits(
    limits: dict[str, int | Decimal], step: StepUsage, steps: int, ending: Ending
) -> None:
    ours = goal(**limits)
    while ours.ended is None:
        ours.add_step(step, OPEN, acted=True)
    assert (ours.steps, ours.ended) == (steps, ending)
    assert ours.progress.startswith(f"step {steps} of ")


def test_a_verdict_takes_precedence_over_limits() -> None:
    ours = goal(max_steps=1)
    ours.add_step(StepUsage(1), GoalVerdict("complete", "All is done."), acted=True)
    assert (ours.ended, ours.reason) == ("complete", "All is done.")


def test_a_model_that_never_acts_is_stopped() -> None:
    ours = goal()
    for acted in (False, False, True, False, False):
        ours.add_step(StepUsage(1), OPEN, acted=acted)
        assert ours.ended is None
    ours.add_step(StepUsage(1), OPEN, acted=False)
    assert ours.ended == "blocked"
    assert ours.reason == f"{MAX_IDLE_REPLIES} replies in a row without an action"


def test_only_the_first_ending_counts() -> None:
    ours = goal()
    ours.end("interrupted")
    ours.end("failed", "later")
    assert (ours.ended, ours.reason) == ("interrupted", "")


def test_progress_shows_the_next_step() -> None:
    ours = goal()
    ours.add_step(StepUsage(6_000, Decimal("0.01")), OPEN, acted=True)
    ours.add_step(StepUsage(6_400, Decimal("0.01")), OPEN, acted=True)
    assert ours.progress == "step 3 of 25 · 12,400 of 500,000 tokens · $0.02 of $1.00"


@pytest.mark.parametrize(
    ("costs", "shown"),
    [
        ([], " · $0.00 of $1.00"),
        ([Decimal("0.0004")], " · $0.0004 of $1.00"),
        ([None], ""),
        ([None, Decimal("0.25")], " · at least $0.25 of $1.00"),
    ],
)
def test_an_unknown_price_is_not_zero(costs: list[Decimal | None], shown: str) -> None:
    ours = goal()
    for cost in costs:
        ours.add_step(StepUsage(10, cost), OPEN, acted=True)
    assert ours.progress.partition(" tokens")[2] == shown


@pytest.mark.parametrize(
    ("ending", "words", "says"),
    [
        ("complete", "A long\nsummary.", "goal complete · 1 step · 10 tokens · $0.00"),
        ("blocked", "No\n\nkey.", "goal blocked: No key. · 1 step"),
        ("steps", "", "goal.max_steps"),
        ("tokens", "", "goal.max_tokens"),
        ("money", "", "goal.max_dollars"),
        ("interrupted", "", "goal interrupted · "),
        ("failed", "The server is gone.", "goal failed: The server is gone. · "),
    ],
)
def test_the_summary_describes_the_ending(ending: Ending, words: str, says: str) -> None:
    ours = goal()
    ours.add_step(StepUsage(10), OPEN, acted=True)
    ours.end(ending, words)
    assert says in ours.summary
    assert "\n" not in ours.summary


@given(st.lists(st.tuples(st.integers(0, 10_000), st.booleans()), max_size=60))
def test_a_goal_always_ends_within_its_limits(steps: list[tuple[int, bool]]) -> None:
    ours = goal(max_steps=10, max_tokens=20_000)
    for tokens, acted in steps:
        if ours.ended is not None:
            break
        before = ours.tokens
        ours.add_step(StepUsage(tokens), OPEN, acted=acted)
        assert before < 20_000
    assert ours.steps <= 10
    assert (ours.ended is None) <= (len(steps) < 10)
