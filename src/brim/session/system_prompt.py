"""System prompt of a session: a base text, blocks under headings, and the summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple

from brim.errors import InputError
from brim.fitting.clip import truncate
from brim.fitting.summarizer import SUMMARY_HEADING

BLOCK_SEPARATOR: Final = "\n\n"
MAX_MEMORY_CHARS: Final = 2_000


class Fact(NamedTuple):
    """A fact that is remembered across conversations."""

    kind: str
    text: str


@dataclass(slots=True)
class SystemPrompt:
    """The parts of the system text."""

    base: str = ""
    role: str = "system"
    blocks: dict[str, str] = field(default_factory=dict)
    """Texts by heading, in order; a block without text is omitted."""
    instructions: str | None = None
    """Text that replaces all blocks, including the summary."""

    def __post_init__(self) -> None:
        if not isinstance(self.base, str):
            raise InputError(f"The system prompt must be text, not {type(self.base).__name__}.")

    def render_parts(self, summary: str | None = None) -> dict[str, str]:
        """Return the texts of the parts that are not empty, each with its heading.

        The keys are "system", the headings of the blocks, "summary" and "instructions".
        """
        parts = {"system": self.base}
        if self.instructions:
            parts["instructions"] = self.instructions
        else:
            for heading, text in self.blocks.items():
                parts[heading] = f"[{heading}]\n{text}" if text else ""
            parts["summary"] = f"{SUMMARY_HEADING}\n{summary}" if summary else ""
        return {name: text for name, text in parts.items() if text}

    def render(self, summary: str | None = None) -> str:
        """Return the whole system text; a blank line separates the parts."""
        return BLOCK_SEPARATOR.join(self.render_parts(summary).values())


def format_facts(facts: Sequence[Fact], max_chars: int = MAX_MEMORY_CHARS) -> str:
    """Return one line per fact, as many as fit in `max_chars`.

    If not even the first fact fits, it is truncated.
    """
    lines = [f"- ({fact.kind}) {' '.join(fact.text.split())}" for fact in facts]
    ends = accumulate(len(line) + 1 for line in lines)
    fitting = sum(1 for end in ends if end - 1 <= max_chars)
    return "\n".join(lines[:fitting]) or truncate("\n".join(lines), max_chars)
