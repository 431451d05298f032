"""The system text, put together from its blocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from brim.fitting.clip import truncate

BACKGROUND_HEADING: Final = "[background]"
PROJECT_HEADING: Final = "[project]"
SUMMARY_HEADING: Final = "[earlier conversation summary]"
BLOCK_SEPARATOR: Final = "\n\n"
MAX_MEMORY_CHARS: Final = 2_000
"""Characters of facts that go into a request."""


class Fact(NamedTuple):
    """Something to remember across conversations."""

    kind: str
    text: str


def build_system_text(
    base: str | None = None,
    *,
    memory: Sequence[Fact] = (),
    project: str | None = None,
    summary: str | None = None,
    goal: str | None = None,
    largest_background: int = MAX_MEMORY_CHARS,
) -> str:
    """Base prompt, facts, project and summary, a blank line between, no heading over nothing.

    With a goal only the base prompt stays, and the goal's instructions come last.
    """
    if goal:
        blocks = [base, build_goal_instructions(goal)]
    else:
        blocks = [
            base,
            _format_block(BACKGROUND_HEADING, format_facts(memory, largest_background)),
            _format_block(PROJECT_HEADING, project),
            _format_block(SUMMARY_HEADING, summary),
        ]
    return BLOCK_SEPARATOR.join(block for block in blocks if block)


def format_facts(memory: Sequence[Fact], largest: int = MAX_MEMORY_CHARS) -> str:
    """A line for each fact, as many whole ones as there is room for; the first in any case."""
    lines = [_format_fact(fact) for fact in memory]
    ends = accumulate(len(line) + 1 for line in lines)
    whole = sum(1 for end in ends if end - 1 <= largest)
    return "\n".join(lines[:whole]) or truncate("\n".join(lines), largest)


def _format_fact(fact: Fact) -> str:
    return f"- ({fact.kind}) {' '.join(fact.text.split())}"


def build_goal_instructions(goal: str) -> str:
    """What a model is told that works towards a goal by itself."""
    return (
        "You work towards a goal by yourself, step by step, until it is reached.\n"
        "When it is reached, write a line that says exactly `GOAL: complete`; a summary may "
        "follow.\n"
        "When you cannot go on without help, write a line that says exactly `GOAL: blocked`, and "
        "why.\n"
        f"The goal: {goal}"
    )


def _format_block(heading: str, text: str | None) -> str:
    return f"{heading}\n{text}" if text else ""
