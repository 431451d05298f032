"""Risk assessment: whether a shell command only reads, destroys something, or does anything else.

The command is parsed, its words are expanded, and every simple command in it is looked up in a
table (`brim/data/commands.toml`). Wrappers (sudo, xargs, sh -c, ssh), substitutions, aliases and
the files that a command runs are followed. Nothing is ever run. *Read-only* needs a known program
with known options; a command that cannot be parsed counts as destructive.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Final

__all__ = ["Assessment", "Finding", "Risk", "assess"]

MOST_WORK: Final = 131_072
"""Characters that are parsed in total, nested scripts included."""
CALL_WORK: Final = 64
"""What the review of one command counts for, in characters."""
MOST_FINDINGS: Final = 20
LONGEST_SHOWN: Final = 300


class Risk(IntEnum):
    """What a command may do; the higher, the worse."""

    READ_ONLY = 0
    OTHER = 1
    DESTRUCTIVE = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """One part of a command that needs a typed yes, with the reason."""

    text: str
    why: str


class LimitReachedError(Exception):
    """A work limit is reached; the findings so far are valid."""


@dataclass(slots=True)
class Assessment:
    """What a command may do; a review adds to it."""

    risk: Risk = Risk.READ_ONLY
    findings: dict[Finding, None] = field(default_factory=dict)
    """The parts that need a typed yes, in order."""
    runs_changed_file: bool = False
    """Whether it runs a file that may have been changed in this conversation."""
    work: int = 0

    @property
    def is_destructive(self) -> bool:
        return self.risk is Risk.DESTRUCTIVE

    @property
    def is_read_only(self) -> bool:
        return self.risk is Risk.READ_ONLY

    def add(self, text: str, why: str) -> None:
        """Record a destructive part."""
        from brim.shell.risk.words import display

        piece = " ".join(display(text).split())
        if len(piece) > LONGEST_SHOWN:
            piece = piece[:LONGEST_SHOWN] + " …"
        self.findings[Finding(piece, why)] = None
        self.risk = Risk.DESTRUCTIVE
        if len(self.findings) >= MOST_FINDINGS:
            raise LimitReachedError

    def raise_to_other(self) -> None:
        """Record that the command is not read-only."""
        self.risk = max(self.risk, Risk.OTHER)

    def count(self, source: str, work: int) -> None:
        self.work += work
        if self.work > MOST_WORK:
            self.add(source, "it is too long to assess")
            raise LimitReachedError


def assess(
    command: str,
    *,
    variables: Mapping[str, str],
    folder: Path,
    home: Path | None = None,
    aliases: Mapping[str, str] | None = None,
    functions: frozenset[str] = frozenset(),
    project: Path | None = None,
    since: float | None = None,
    is_fish: bool = False,
) -> Assessment:
    """Return what a command may do.

    `variables` are those of the user's shell, exported or not; a missing variable is empty. Files
    in `project`, and those that changed after `since`, may have been written by the model. Without
    `since`, no file that is run counts as read-only. What only fish understands is destructive.
    """
    from brim.shell.risk.places import Places
    from brim.shell.risk.review import Review
    from brim.shell.risk.words import clean, reads_alike_in_fish

    text, found = clean(command), Assessment()
    known = {"PWD": str(folder)} | {name: clean(value) for name, value in variables.items()}
    places = Places((folder,), home or Path(known.get("HOME") or "/"), project, since)
    cleaned = {name: clean(text) for name, text in (aliases or {}).items()}
    try:
        if is_fish and not reads_alike_in_fish(text):
            found.add(text, "fish may read it in another way")
        Review(found, places, text, known, cleaned, functions).script(text, text)
    except LimitReachedError:
        pass
    except Exception as error:  # an internal error must not let a command through
        with suppress(LimitReachedError):
            found.add(text, f"it could not be assessed ({type(error).__name__})")
    return found
