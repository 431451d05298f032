"""A plan lists a decision for each message; plans are compared by identity."""

from __future__ import annotations

import re
from io import StringIO

from rich.console import Console

import brim
from tests.support.strategies import history

MODEL = "gpt-4o"


def make_plan() -> brim.Plan:
    return brim.fit([{"role": "user", "content": "hi"}], model=MODEL).plan


def test_plans_are_equal_if_they_send_the_same() -> None:
    one, other = make_plan(), make_plan()
    assert one == other
    assert not one != other  # noqa: SIM202 - both operators
    assert one != brim.fit([{"role": "user", "content": "ho"}], model=MODEL).plan


def test_dropped_and_clipped_are_the_decisions_with_these_outcomes() -> None:
    messages = history("s5 u30 " + "c20 r300 " * 30)
    plan = brim.fit(messages, model=MODEL, window=1_501, reply=1).plan
    assert plan.dropped == [each for each in plan.decisions if each.outcome == "dropped"]
    assert plan.clipped == [each for each in plan.decisions if each.outcome == "clipped"]
    counts = {"dropped": len(plan.dropped), "clipped": len(plan.clipped)}
    assert counts == plan.outcome_counts()
    assert all(counts.values())


def test_system_messages_within_a_dropped_run_are_not_dropped() -> None:
    messages = history("s5 u30 " + "c20 r60 s5 " * 60)
    plan = brim.fit(messages, model=MODEL, window=2_001, reply=1).plan
    assert plan.dropped
    assert not [each for each in plan.dropped if each.role == "system"]
    assert plan.outcome_counts()["dropped"] == len(plan.dropped)


def test_a_plan_without_trims_has_no_dropped_or_clipped_messages() -> None:
    assert make_plan().dropped == make_plan().clipped == []


def test_an_empty_reply_of_a_session_is_skipped_and_keeps_the_indices_of_the_history() -> None:
    session = brim.Session(MODEL, window=1_001, reply=1)
    session.user("one")
    session.request()
    session.receive({"choices": [{"message": {"role": "assistant", "content": ""}}]})
    for number in range(40):
        session.user("word " * 30)
        session.assistant(f"answer {number}")
    session.user("last")
    plan = session.request().plan
    assert [each.index for each in plan.decisions] == list(range(len(session.history)))
    empty = plan.decisions[1]
    assert (empty.outcome, empty.before, empty.after) == ("skipped", 0, 0)
    assert 1 not in plan.sent_indices
    assert plan.dropped
    assert all(session.history[each.index]["content"] != "last" for each in plan.dropped)


def test_a_plan_is_one_line_in_a_terminal() -> None:
    plan = brim.fit(history("s5 u30 " + "c20 r300 " * 30), model=MODEL, window=1_500).plan
    assert repr(plan) == f"Plan({plan})"
    assert len(repr(plan)) < 100


def test_a_plan_is_a_picture_in_a_notebook_and_in_rich() -> None:
    messages = history("s5 u30 " + "c20 r300 " * 30)
    plan = brim.fit(messages, model=MODEL, window=1_500, reply=100).plan
    html = plan._repr_html_()
    widths = [int(width) for width in re.findall(r"flex:(\d+) 0 0;background", html)]
    assert sum(widths) == sum(each.before for each in plan.decisions) + plan.budget.window
    assert {"kept", "dropped", "clipped"} <= set(re.findall(r'title="(\w+):', html))
    assert "<script" not in html
    console = Console(file=StringIO(), width=100)
    console.print(plan)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert str(plan).split(";")[0] in printed
    assert {"█", "░", "▓"} <= set(printed)
