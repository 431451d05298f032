"""Messages are grouped into units; what is true of a prefix stays true."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brim
from brim.errors import InputError
from brim.fitting.history import ORPHAN, UNANSWERED, History, unit_range
from brim.messages import Message
from brim.tokens import counter_for
from brim.wire.formats import CHAT, read_messages
from tests.support.strategies import Raw, histories, history


def grown(messages: list[Raw]) -> History:
    grown = History(counter_for("gpt-4o"))
    grown.extend(read_messages({"messages": messages}, CHAT))
    grown.group()
    return grown


def units(sketch: str) -> list[list[int]]:
    h = grown(history(sketch))
    return [h.members(unit) for unit in unit_range(0, len(h.units))]


@pytest.mark.parametrize(
    ("sketch", "expected"),
    [
        ("u1 a1 u1", [[0], [1], [2]]),
        ("u1 c1 r1 u1", [[0], [1, 2], [3]]),
        ("u1 ccc1 r1 r1 r1 a1", [[0], [1, 2, 3, 4], [5]]),
        ("s1 u1 c1 s1 r1 a1", [[1], [2, 4], [5]]),
        ("u1 c1 u1", [[0], [1], [2]]),
        ("o1 u1 o1", [[0], [1], [2]]),
        ("", []),
    ],
)
def test_a_step_is_an_assistant_message_with_the_results_of_its_calls(
    sketch: str, expected: list[list[int]]
) -> None:
    assert units(sketch) == expected


def test_results_may_arrive_in_any_order_and_ids_may_repeat() -> None:
    step = history("cc1 r1 r1")
    step[1], step[2] = step[2], step[1]
    h = grown([*history("u1"), *step, *step])
    assert [h.members(unit) for unit in unit_range(0, 3)] == [[0], [1, 2, 3], [4, 5, 6]]
    assert not h.defective_units


@pytest.mark.parametrize(
    ("sketch", "defects"),
    [
        ("u1 c1 r1 a1", {}),
        ("u1 c1", {}),
        ("u1 cc1 r1", {}),
        ("u1 cc1 r1 u1", {1: UNANSWERED}),
        ("u1 c1 u1", {1: UNANSWERED}),
        ("o1 u1 c1 o1 a1", {0: ORPHAN, 2: UNANSWERED, 3: ORPHAN}),
    ],
)
def test_orphans_and_unanswered_calls_are_defects_once_that_is_certain(
    sketch: str, defects: dict[int, str]
) -> None:
    h = grown(history(sketch))
    assert {unit: h.units[unit].defect for unit in h.defective_units} == defects


def test_a_second_result_for_the_same_call_is_an_orphan() -> None:
    messages = history("u1 cc1 r1 r1")
    h = grown([*messages[:3], messages[2], messages[3]])
    assert [h.units[unit].defect for unit in h.defective_units] == [UNANSWERED, ORPHAN, ORPHAN]


def test_request_points_follow_user_messages_and_complete_steps() -> None:
    h = grown(history("s1 u1 cc1 r1 r1 a1 u1 c1"))
    assert h.request_points == [(2, 1), (5, 2), (7, 4)]


def test_age_is_the_number_of_later_steps() -> None:
    h = grown(history("u1 c1 r1 a1 u1 c1 r1 c1 r1"))
    assert [h.age(index, len(h.units)) for index in (2, 6, 8)] == [2, 1, 0]


def test_a_prefix_has_the_same_units_as_the_whole_history() -> None:
    messages = history("s1 u1 cc1 r1 r1 o1 a1 u1 c1 u1 c1 r1 a1")
    whole = grown(messages)
    for end in range(len(messages) + 1):
        part = grown(messages[:end])
        assert part.token_sums == whole.token_sums[: end + 1]
        assert part.request_points == [point for point in whole.request_points if point[0] <= end]
        assert [unit.start for unit in part.units] == [
            u.start for u in whole.units if u.start < end
        ]


def list_groups(h: History) -> dict[str, Any]:
    """Return everything that a grouped history contains."""
    units = [[getattr(unit, name) for name in unit.__slots__] for unit in h.units]
    return {name: value for name, value in vars(h).items() if name != "counter"} | {"units": units}


@given(histories(), st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=12))
def test_the_result_does_not_depend_on_when_a_history_is_grouped(
    messages: list[Raw], parts: list[tuple[int, bool]]
) -> None:
    turns, h, done = (
        read_messages({"messages": messages}, CHAT),
        History(counter_for("gpt-4o")),
        0,
    )
    for size, is_grouped in parts:
        h.extend(turns[done : done + size])
        done += size
        if is_grouped:
            h.group()
    h.extend(turns[done:])
    h.group()
    assert list_groups(h) == list_groups(grown(messages))


def test_no_message_is_added_if_one_cannot_be_counted() -> None:
    h = grown(history("u1 a1"))
    before = list_groups(h)
    odd: Any = (["no text"],)
    with pytest.raises(InputError):
        h.extend([Message("user", ("fine",)), Message("user", odd)])
    assert list_groups(h) == before


@pytest.mark.parametrize(
    ("sketch", "warnings"),
    [
        ("s1 u1 a1", []),
        ("u1 o1", ["message 1: " + ORPHAN]),
        ("u1 c1 u1", ["message 1: " + UNANSWERED]),
    ],
)
def test_defects_are_warnings_even_if_everything_fits(sketch: str, warnings: list[str]) -> None:
    plan = brim.fit(history(sketch), model="gpt-4o").plan
    assert not plan.is_trimmed
    assert plan.warnings == warnings
