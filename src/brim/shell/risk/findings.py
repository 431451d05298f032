"""What an assessment found: the parts of a command that need a typed yes, with reasons."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from brim.shell.risk.syntax import display

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tree_sitter import Node

    from brim.shell.risk.expansion import Word
    from brim.shell.risk.file_view import FileView
    from brim.shell.risk.shell_state import ShellState


@dataclass(frozen=True, slots=True)
class Finding:
    """One part of a command that needs a typed yes, with the reason."""

    text: str
    why: str


@dataclass(frozen=True, slots=True)
class Assessment:
    """All findings of a command; without findings it is not destructive."""

    findings: tuple[Finding, ...]

    @property
    def is_destructive(self) -> bool:
        return bool(self.findings)


DEEPEST: Final = 8
"""Levels of nested shells and substitutions."""
MOST_CALLS: Final = 2_000
MOST_TEXT: Final = 65_536
"""Characters that are parsed in total, nested scripts included."""
MOST_FINDINGS: Final = 20
LONGEST_TEXT: Final = 300


class LimitReachedError(Exception):
    """A work limit is reached; the findings so far are valid."""


@dataclass(slots=True)
class FindingLog:
    """The findings so far, and the work that was done for them."""

    findings: dict[Finding, None] = field(default_factory=dict)
    calls: int = 0
    parsed: int = 0
    pending: dict[int, tuple[str, Node, ShellState]] = field(default_factory=dict)
    """Functions that are defined but not called yet."""

    def add(self, text: str, why: str) -> None:
        piece = " ".join(display(text).split())
        if len(piece) > LONGEST_TEXT:
            piece = piece[:LONGEST_TEXT] + " …"
        self.findings[Finding(piece, why)] = None
        if len(self.findings) >= MOST_FINDINGS:
            raise LimitReachedError

    def count_call(self, source: str) -> None:
        self.calls += 1
        if self.calls > MOST_CALLS:
            self.add(source, "it is too long to assess")
            raise LimitReachedError

    def count_text(self, text: str) -> None:
        self.parsed += len(text)
        if self.parsed > MOST_TEXT:
            self.add(text, "it is too long to assess")
            raise LimitReachedError


class Evaluator(Protocol):
    """The interpreter, as the code for redirections, builtins and programs sees it."""

    log: FindingLog
    state: ShellState
    depth: int

    @property
    def files(self) -> FileView: ...

    def inner(self, state: ShellState | None = None) -> Evaluator:
        """Return an evaluator for a shell inside this one."""

    def script(self, text: str, source: str, stdin: str | None = None) -> str:
        """Assess a text as a script; return what it prints."""

    def run(self, node: Node, stdin: str | None = None) -> str:
        """Assess one statement; return what it prints."""

    def follow_substitutions(self, node: Node) -> None:
        """Assess the substitutions inside a node that is not a command itself."""

    def substitute(self, node: Node) -> str:
        """Assess `$(…)` or `<(…)`; return what it prints."""

    def words(self, nodes: Sequence[Node]) -> list[Word]:
        """Return the words that these nodes expand to."""

    def text(self, node: Node) -> str:
        """Return the node as one text, without splitting."""
