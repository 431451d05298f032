"""A plan is one answer to one history: it is itself, and no other."""

from __future__ import annotations

import brim


def plan() -> brim.Plan:
    return brim.fit([{"role": "user", "content": "hi"}], model="gpt-4o").plan


def test_two_plans_are_two_though_they_are_of_the_same_messages() -> None:
    one, other = plan(), plan()
    assert not one == other  # noqa: SIM201 - both ways of asking
    assert one != other
    assert len({one, other}) == 2


def test_a_plan_is_itself() -> None:
    one = plan()
    same = one
    assert one == same
    assert not one != same  # noqa: SIM202 - both ways of asking
    assert {one, same} == {one}
