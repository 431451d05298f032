"""The system text, put together from its blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

BACKGROUND: Final = "[background]"
PROJECT: Final = "[project]"
SUMMARY: Final = "[earlier conversation summary]"
GAP: Final = "\n\n"
LARGEST_BACKGROUND: Final = 2_000
"""Characters of facts that go into a request."""


class Fact(NamedTuple):
    """Something to remember across conversations."""

    kind: str
    text: str


def system_text(
    base: str | None = None,
    *,
    memory: Sequence[Fact] = (),
    project: str | None = None,
    summary: str | None = None,
    goal: str | None = None,
    largest_background: int = LARGEST_BACKGROUND,
) -> str:
    """Base prompt, facts, project and summary, a blank line between, no heading over nothing.

    With a goal only the base prompt stays, and the goal's instructions come last.
    """
    if goal:
        blocks = [base, goal_text(goal)]
    else:
        blocks = [
            base,
            _headed(BACKGROUND, background(memory, largest_background)),
            _headed(PROJECT, project),
            _headed(SUMMARY, summary),
        ]
    return GAP.join(block for block in blocks if block)


def background(memory: Sequence[Fact], largest: int = LARGEST_BACKGROUND) -> str:
    """A line for each fact, whole lines only, as many as there is room for."""
    lines: list[str] = []
    room = largest
    for fact in memory:
        line = f"- ({fact.kind}) {' '.join(fact.text.split())}"
        room -= len(line) + 1
        if room < -1:
            break
        lines.append(line)
    return "\n".join(lines)


def goal_text(goal: str) -> str:
    """What a model is told that works towards a goal by itself."""
    return (
        "You work towards a goal by yourself, step by step, until it is reached.\n"
        "When it is reached, write a line that says exactly `GOAL: complete`; a summary may "
        "follow.\n"
        "When you cannot go on without help, write a line that says exactly `GOAL: blocked`, and "
        "why.\n"
        f"The goal: {goal}"
    )


def _headed(heading: str, text: str | None) -> str:
    return f"{heading}\n{text}" if text else ""
