"""The judge's notes and limits while a command is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from brim.shell.risk.findings import Finding
from brim.shell.risk.marks import shown
from brim.shell.risk.scope import Scope

if TYPE_CHECKING:
    from tree_sitter import Node

DEEPEST: Final = 8
"""Shells in substitutions in shells …"""
MOST_CALLS: Final = 2_000
MOST_TEXT: Final = 65_536
"""Characters that are parsed in all, scripts within scripts included."""
MOST_FINDINGS: Final = 20
LONGEST_TEXT: Final = 300


class ExhaustedError(Exception):
    """More than is read of one command; what was found so far stands."""


@dataclass(slots=True)
class Judge:
    """What was found so far, and how much work is left."""

    findings: dict[Finding, None] = field(default_factory=dict)
    calls: int = 0
    parsed: int = 0
    pending: dict[int, tuple[str, Node, Scope]] = field(default_factory=dict)
    """Functions that are defined and not yet called."""

    def note(self, text: str, why: str) -> None:
        piece = " ".join(shown(text).split())
        if len(piece) > LONGEST_TEXT:
            piece = piece[:LONGEST_TEXT] + " …"
        self.findings[Finding(piece, why)] = None
        if len(self.findings) >= MOST_FINDINGS:
            raise ExhaustedError

    def count_call(self, source: str) -> None:
        self.calls += 1
        if self.calls > MOST_CALLS:
            self.note(source, "there is too much in it to be read")
            raise ExhaustedError

    def count_text(self, text: str) -> None:
        self.parsed += len(text)
        if self.parsed > MOST_TEXT:
            self.note(text, "there is too much in it to be read")
            raise ExhaustedError
