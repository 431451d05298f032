"""The commands in a model's answer, and what the model is told about how to write them."""

from __future__ import annotations

from itertools import groupby
from typing import Final

PREFIX: Final = "CMD: "

DEFAULT_PROMPT: Final = "You help somebody at a terminal. Answer briefly."
RULE: Final = (
    f"To run a shell command, write it on a line of its own that begins with exactly `{PREFIX}`, "
    "without quotes or markup around it:\n"
    f"{PREFIX}df -h\n"
    "The user confirms each one, and you see its output next; do not make it up. Without such a "
    "line nothing is run."
)
"""Always in the system text, whatever the base prompt is."""
TOOLS_RULE: Final = (
    f"Where a tool does what is needed, call it; `{PREFIX}` lines are for all other work on this "
    "machine. Never do one thing both ways."
)
"""Added when tools are on offer."""


def commands_in(answer: str) -> tuple[str, ...]:
    """What stands behind `CMD: ` at the beginning of a line, in order, also in code blocks.

    A line is what ends with a line feed; nothing else can hide the beginning of a command. Half
    a character, which no shell can be told, becomes a sign for one.
    """
    whole = answer.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    lines = (line for line in whole.split("\n") if line.startswith(PREFIX))
    commands = (line.removeprefix(PREFIX).strip() for line in lines)
    return tuple(command for command, _ in groupby(filter(None, commands)))
