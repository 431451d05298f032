"""Texts that brim inserts into messages, and how it recognizes them.

Marks say how much was removed. Text that contains a mark is not trimmed again: a second trim would
make the number in the mark wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Note:
    """A text that tells the model about a gap in the history."""

    text: str
    tokens: int
    at: int
    """The index of the message before which the note is inserted, or whose text it ends."""
    role: Literal["user", "assistant", "paragraph"]
    """The role of the inserted message; `paragraph` if the note ends message `at`."""


# Marks

MASK: Final = "[content truncated - {age} steps ago, {tokens} tokens]"
"""Replaces a masked output."""

_NOTE_START: Final = "[brim: "
_COPIED = re.compile(r"\s*(?:\[brim: [^\]\n]{0,300}\]\s*)+")

_CLIPPED = re.compile(r"\[brim: (?:about )?[\d,]+ (?:tokens|lines?) omitted[^\]\n]{0,40}\]")


def clip_mark(tokens: int) -> str:
    return f"[brim: about {tokens:,} tokens omitted]"


def entry_mark(tokens: int) -> str:
    """Return the mark of an output that was capped on entry; it may be trimmed again."""
    return f"[about {tokens:,} tokens omitted]"


def repeat_mark(lines: int) -> str:
    word = "line" if lines == 1 else "lines"
    return f"[brim: {lines:,} {word} omitted, repeated later]"


def gap_note(messages: int, tokens: int, tasks: str = "") -> str:
    """Return the note at a gap: what was dropped, how much, and `tasks`, a phrase that names them.

    The numbers are rounded, so that the note of the next trim, whose gap is slightly larger, is
    mostly the same text, and the prefix before the gap stays in the provider's cache.
    """
    word = "message" if messages == 1 else "messages"
    return (
        f"[brim: {round_to_two_digits(messages):,} {word}{tasks} "
        f"(about {round_to_two_digits(tokens):,} tokens) omitted]"
    )


def range_note(
    first: int, last: int, tokens: int, tasks: str, names: Iterable[str], hint: str
) -> str:
    """Return the note at a gap that can be read again: which messages, names in them, and how."""
    listed = f": {', '.join(names)}" if names else ""
    which = f"message {first}" if first == last else f"messages {first} to {last}"
    return (
        f"[brim: {which}{tasks} (about {round_to_two_digits(tokens):,} tokens{listed}) omitted; "
        f"{hint}]"
    )


ID: Final = "{id}"
"""In a hint, the place of the id of what was trimmed."""
ID_DIGITS: Final = 12
_ID = re.compile(rf"omitted;[^\]\n]* id (\d{{{ID_DIGITS}}})\]")


def fill_id(hint: str, id: str = "0" * ID_DIGITS) -> str:
    """Return a hint with an id, which is as long as any other."""
    return hint.replace(ID, id)


def find_id(texts: Iterable[str]) -> str | None:
    """Return the id in the notes of a plan; None if they have none."""
    return next((found[1] for text in texts if (found := _ID.search(text))), None)


def brief_gap_note(messages: int) -> str:
    """Return the note at one of many gaps."""
    return f"[brim: {messages:,} {'message' if messages == 1 else 'messages'} omitted]"


def remove_copied_note(reply: str) -> str:
    """Return a reply without the note at its beginning, which small models copy from requests."""
    return reply[found.end() :] if (found := _COPIED.match(reply)) else reply


def may_begin_with_note(text: str) -> bool:
    """Whether the beginning of a reply can still turn out to be a copied note."""
    begun = text.lstrip()
    return _NOTE_START.startswith(begun[: len(_NOTE_START)]) and not _COPIED.match(text)


def name_tasks(count: int, texts: Iterable[str], length: int, *, is_all: bool) -> str:
    """Return a phrase that names finished tasks by the first words of their user messages.

    `is_all` tells whether nothing else was dropped.
    """
    names = "; ".join(filter(None, (" ".join(text[:length].split()) for text in texts)))
    tasks = f"{count:,} finished {'task' if count == 1 else 'tasks'}"
    return (" of " if is_all else ", with ") + (f"{tasks}: {names}" if names else tasks)


def round_to_two_digits(number: int) -> int:
    """Round to two significant digits."""
    unit = int(10 ** max(0, len(str(number)) - 2))
    return (number + unit // 2) // unit * unit


def fill_mask(template: str, age: int, tokens: int) -> str:
    """Fill in a mask template. Only `{age}` and `{tokens}` are fields; other braces are text."""
    return template.replace("{age}", str(age)).replace("{tokens}", str(tokens))


@lru_cache(maxsize=64)
def _mask_pattern(template: str) -> re.Pattern[str]:
    pattern = re.escape(template)
    for field in ("{age}", "{tokens}"):
        pattern = pattern.replace(re.escape(field), r"\d+")
    return re.compile(pattern)


def is_marked(text: str, template: str = MASK) -> bool:
    """Whether brim has clipped or masked this text before."""
    if "[brim: " in text and _CLIPPED.search(text):
        return True
    return _mask_pattern(template).fullmatch(text) is not None


# Turns and headings that a format or a template requires

CONVERSATION_CONTINUES: Final = "[conversation continues]"
"""A user turn where one is required and there is none."""
INTERRUPTED: Final = "[interrupted]"
"""An assistant turn between a tool result and a user turn."""
RESULTS_ABOVE: Final = "[continue with the results above]"
"""The last user turn if results were folded into assistant text.

Without it, the model would continue that text instead of responding.
"""
RESULT_HEADING: Final = "[result]"
NO_RESULT: Final = "[no result]"
SYSTEM_HEADING: Final = "[system]"
