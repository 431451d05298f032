"""What a typed line is: light, because the prompt needs it before the first key press."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

Kind = Literal["command", "language", "meta", "nothing"]


@dataclass(frozen=True, slots=True)
class Classification:
    """The kind of a line, and why."""

    kind: Kind
    text: str
    """The line without its prefix (`!`, `?`, `:` or `/`)."""
    reason: str
    """A short text for the prompt."""


BLANK: Final = Classification("nothing", "", "empty")


def flip(line: Classification) -> Classification:
    """Turn a command into language and vice versa; other kinds stay the same."""
    if line.kind == "command":
        return replace(line, kind="language", reason="switched to language")
    if line.kind == "language":
        return replace(line, kind="command", reason="switched to command")
    return line
