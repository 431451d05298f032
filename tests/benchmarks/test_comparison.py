"""The comparison with peers counts and judges without brim's own code."""

from __future__ import annotations

from benchmarks import comparison, subjects
from benchmarks.recordings import Message


def test_brim_is_within_the_budget_and_valid_in_every_case() -> None:
    found = comparison.measure("brim sliding", None)
    assert found["cases"] > 300
    assert (found["over"], found["good"]) == (0, 100)


def test_a_tool_that_changes_nothing_is_over_budget_in_every_case() -> None:
    def keep(messages: list[Message], limit: int) -> None:
        del messages, limit

    subjects.BRIM["keep"] = lambda: subjects.Subject(list, keep)
    try:
        found = comparison.measure("keep", None)
    finally:
        del subjects.BRIM["keep"]
    assert (found["over"], found["good"]) == (100, 0)
