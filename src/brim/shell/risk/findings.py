"""What the judge says of a command: the pieces that could destroy something, each with its why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One piece of a command that needs the user's yes."""

    text: str
    why: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """All that was found in a command; nothing found means that it may run as others do."""

    findings: tuple[Finding, ...]

    @property
    def is_destructive(self) -> bool:
        return bool(self.findings)
