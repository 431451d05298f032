"""The shell's ways to write a character: backslashes, $'…', braces."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

from brim.shell.risk.marks import CLOSE, COMMA, OPEN, UNKNOWN, marked

MOST_WORDS: Final = 256
"""Words that one pair of braces may turn into."""
MOST_BRACES: Final = 64
_ESCAPES: Final = {
    "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
    "v": "\v",
}  # fmt: skip
_ANSI: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|0?([0-7]{1,3})|c(.)|(.))",
    re.DOTALL,
)
_BARE: Final = re.compile(r"\\(\n)|\\(.)|(.)", re.DOTALL)
_QUOTED: Final = re.compile(r'\\([$`"\\])|\\\n')
_DOCUMENT: Final = re.compile(r"\\([$`\\])|\\\n")
_RANGE: Final = re.compile(r"(-?\d+|[a-zA-Z])\.\.(-?\d+|[a-zA-Z])(?:\.\.(-?\d+))?")


def bare(text: str) -> str:
    """Text outside of quotes, its patterns and braces marked."""
    if text.isalnum():
        return text
    return _BARE.sub(lambda m: "" if m[1] else m[2] or marked(m[3]), text)


def within_quotes(text: str, *, is_document: bool = False) -> str:
    """Text inside double quotes, where a backslash means little; less so in a here-document."""
    return (_DOCUMENT if is_document else _QUOTED).sub(lambda m: m[1] or "", text)


def ansi(text: str) -> str:
    r"""What stands in $'…' (and what `echo -e` and `printf` print): \x72 is an r."""
    return _ANSI.sub(_unescaped, text)


def _unescaped(match: re.Match[str]) -> str:
    hexadecimal = match[1] or match[2] or match[3]
    if hexadecimal or match[4]:
        code = int(hexadecimal, 16) if hexadecimal else int(match[4], 8)
        return chr(code) if 0 < code < 0xD800 else UNKNOWN
    if match[5]:
        return chr(ord(match[5]) & 0x1F)
    return _ESCAPES.get(match[6], match[6])


def braced(text: str) -> list[str]:
    """The words that `{a,b}` and `{1..3}` turn into; far too many of them are one unknown word."""
    if text.count(OPEN) > MOST_BRACES:
        return [UNKNOWN]
    words = [text]
    done: list[str] = []
    while words:
        word = words.pop(0)
        parts = _alternatives(word)
        if parts is None:
            done.append(word)
            continue
        words = parts + words
        if len(words) + len(done) > MOST_WORDS:
            return [UNKNOWN]
    return done


def _alternatives(word: str) -> list[str] | None:
    """The word once for each alternative of its first pair of braces that has any."""
    start = word.find(OPEN)
    while start >= 0:
        end, commas = _pair(word, start)
        if end is not None:
            inner = word[start + 1 : end]
            choices = _choices(inner, [comma - start - 1 for comma in commas])
            if choices:
                return [word[:start] + choice + word[end + 1 :] for choice in choices]
        start = word.find(OPEN, start + 1)
    return None


def _pair(word: str, start: int) -> tuple[int | None, list[int]]:
    """Where the brace that opens at `start` closes, and the commas that belong to it."""
    depth = 0
    commas: list[int] = []
    for at in range(start, len(word)):
        sign = word[at]
        depth += (sign == OPEN) - (sign == CLOSE)
        if depth == 0:
            return at, commas
        if sign == COMMA and depth == 1:
            commas.append(at)
    return None, []


def _choices(inner: str, commas: list[int]) -> list[str]:
    if commas:
        edges = [-1, *commas, len(inner)]
        return [inner[a + 1 : b] for a, b in pairwise(edges)]
    match = _RANGE.fullmatch(inner)
    return _range(match[1], match[2]) if match else []


def _range(first: str, last: str) -> list[str]:
    if first.isalpha() != last.isalpha():
        return []
    if first.isalpha():
        a, b = ord(first), ord(last)
    else:
        a, b = int(first), int(last)
    if abs(a - b) > MOST_WORDS:
        return [UNKNOWN]
    step = 1 if a <= b else -1
    numbers = range(a, b + step, step)
    return [chr(n) if first.isalpha() else str(n) for n in numbers]
