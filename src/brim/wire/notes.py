"""The marks that brim leaves in a text, and how it knows them again.

A mark says how much was left out. What carries one is not edited again: a second cut would make
the number in it wrong.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

MASK: Final = "[content truncated - {age} steps ago, {tokens} tokens]"
"""What stands in place of a masked output."""

_CUT = re.compile(r"\[brim: (?:about )?[\d,]+ (?:tokens|lines?) [^\]\n]{0,40}left out\]")


def clip_mark(tokens: int) -> str:
    return f"[brim: about {tokens:,} tokens left out]"


def entry_mark(tokens: int) -> str:
    """In an output that was too long when it came; it may be cut again like any other."""
    return f"[about {tokens:,} tokens left out here]"


def repeat_mark(lines: int) -> str:
    word = "line" if lines == 1 else "lines"
    return f"[brim: {lines:,} {word} repeated later left out]"


def gap_note(messages: int, tokens: int) -> str:
    """What stands at a gap: what, how much, how to get it back.

    The numbers are rounded, so that the next edits, whose gaps are a little larger, mostly say
    the same, and what stands before the gap stays the same for the provider's cache.
    """
    word = "message" if messages == 1 else "messages"
    return (
        f"[brim: {round_to_two_digits(messages):,} {word} "
        f"(about {round_to_two_digits(tokens):,} tokens) left out; "
        f"ask for them if needed]"
    )


def round_to_two_digits(number: int) -> int:
    """A number with its first two digits."""
    unit = int(10 ** max(0, len(str(number)) - 2))
    return (number + unit // 2) // unit * unit


def fill_mask(template: str, age: int, tokens: int) -> str:
    """Fill in a mask. Only `{age}` and `{tokens}` are places; other braces are text."""
    return template.replace("{age}", str(age)).replace("{tokens}", str(tokens))


@lru_cache(maxsize=64)
def _mask_pattern(template: str) -> re.Pattern[str]:
    pattern = re.escape(template)
    for place in ("{age}", "{tokens}"):
        pattern = pattern.replace(re.escape(place), r"\d+")
    return re.compile(pattern)


def is_marked(text: str, template: str = MASK) -> bool:
    """Whether brim has cut or masked this text before."""
    if "[brim: " in text and _CUT.search(text):
        return True
    return _mask_pattern(template).fullmatch(text) is not None


_ERRORS: Final = ("error", "exception", "failed", "fatal", "cannot", "unable to")
_NO_ERROR = re.compile(
    r"(?<![\w.,])0+\s+(?:errors?|exceptions?|failed|failures?|fatal)\b"
    r"|(?:errors?|exceptions?|failed|failures?|fatal)\s*[:=]\s*0+(?!\w|[.,]\d)"
)
_EDGE_LINES: Final = 20


def reports_error(text: str) -> bool:
    """Whether an output tells of an error; in a long one only its first and last lines speak."""
    lines = text.splitlines()
    if len(lines) > 2 * _EDGE_LINES:
        text = "\n".join((*lines[:_EDGE_LINES], *lines[-_EDGE_LINES:]))
    text = text.lower()
    if not any(word in text for word in _ERRORS):
        return False
    text = _NO_ERROR.sub("", text)
    return any(word in text for word in _ERRORS)
