"""The result of a review: the risk, and the parts of a command that need a typed yes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from brim.shell.risk.syntax import display

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
        piece = " ".join(display(text).split())
        piece = piece if len(piece) <= LONGEST_SHOWN else piece[:LONGEST_SHOWN] + " …"
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
