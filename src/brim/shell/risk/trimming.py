"""`${x%.txt}`, `${x^^}` and their kind: what is left of a value."""

from __future__ import annotations

import fnmatch
import re
from typing import Final

from brim.shell.risk.marks import UNKNOWN, is_known

_CUTS: Final = ("#", "##", "%", "%%")
_PLAIN_PATTERN: Final = re.compile(r"[\w.*?/:@+= -]*")


def trimmed(text: str, operator: str, raw: str) -> str:
    """`${x%.txt}` and its kind, and changes of case; anything else is unknown."""
    if not is_known(text):
        return UNKNOWN
    cases = {"^^": text.upper(), ",,": text.lower()}
    if raw in cases:
        return cases[raw]
    pattern = raw[len(operator) :]
    if operator not in _CUTS or not _PLAIN_PATTERN.fullmatch(pattern) or len(text) > 1_000:
        return UNKNOWN
    return _without(text, operator, re.compile(fnmatch.translate(pattern)))


def _without(text: str, operator: str, pattern: re.Pattern[str]) -> str:
    lengths = range(len(text) + 1)
    for length in reversed(lengths) if len(operator) == 2 else lengths:
        if operator[0] == "#" and pattern.match(text[:length]):
            return text[length:]
        if operator[0] == "%" and pattern.match(text[len(text) - length :]):
            return text[: len(text) - length]
    return text
