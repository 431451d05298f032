"""Shell syntax: the parse tree, quoting and braces, and text that is only partly known."""

from __future__ import annotations

import fnmatch
import re
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from brim.errors import InputError

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

UNKNOWN: Final = "\ue000"
"""Unknown text inside one word."""
SPREAD: Final = "\ue001"
"""Unknown text that may expand to any number of words."""
TRUSTED: Final = "\ue00a"
"""Output of a program that is meant to be evaluated, such as `ssh-agent`."""
MAYBE: Final = "\ue00b"
"""Prefix of a text that is one of several candidates."""
STAR: Final = "\ue002"
ANY: Final = "\ue003"
RANGE: Final = "\ue004"
OPEN: Final = "\ue005"
COMMA: Final = "\ue006"
CLOSE: Final = "\ue007"
TILDE: Final = "\ue008"
PIPE: Final = "\ue009"
"""Delimiter around the output of <(…)."""

PATTERNS: Final = frozenset((STAR, ANY, RANGE))
_UNKNOWN_MARKS: Final = frozenset((UNKNOWN, SPREAD, PIPE, TRUSTED, MAYBE))
_SIGNS: Final = {STAR: "*", ANY: "?", RANGE: "[", OPEN: "{", COMMA: ",", CLOSE: "}", TILDE: "~"}
_MARK_OF: Final = {sign: mark for mark, sign in _SIGNS.items()}
_GLOBS: Final = {ord(sign): mark for mark, sign in _SIGNS.items() if mark in PATTERNS}
_PLAIN: Final = {ord(mark): sign for mark, sign in _SIGNS.items()}
_DISPLAY: Final = {
    **_PLAIN,
    ord(UNKNOWN): "…",
    ord(SPREAD): "…",
    ord(PIPE): "",
    ord(TRUSTED): "…",
    ord(MAYBE): "",
}
_BRACES: Final = {ord(mark): _SIGNS[mark] for mark in (OPEN, COMMA, CLOSE, TILDE)}
_CLEAN: Final = dict.fromkeys(range(0xE000, 0xE010), "\ufffd")


def clean(text: str) -> str:
    """Return external text without characters that could be mistaken for marks."""
    return text.translate(_CLEAN)


def mark_sign(sign: str) -> str:
    """Return the mark for an unquoted special character, or the character itself."""
    return _MARK_OF.get(sign, sign)


def mark_globs(text: str) -> str:
    """Mark the patterns in an unquoted value; braces stay plain text."""
    return text.translate(_GLOBS)


def plain(text: str) -> str:
    """Return the text with patterns as typed; unknown parts stay marked."""
    return text.translate(_PLAIN)


def restore_braces(text: str) -> str:
    """Return the text with braces as plain characters."""
    return text.translate(_BRACES)


def display(text: str) -> str:
    """Return the text for people to read."""
    return text.translate(_DISPLAY)


def is_known(text: str) -> bool:
    return _UNKNOWN_MARKS.isdisjoint(text)


def is_pattern(text: str) -> bool:
    return not PATTERNS.isdisjoint(text)


def mark_unquoted(text: str) -> str:
    """Return a value as it expands without quotes: unknown text may split."""
    return text.replace(UNKNOWN, SPREAD)


def mark_quoted(text: str) -> str:
    """Return a value as it expands inside quotes: one word."""
    return text.replace(SPREAD, UNKNOWN)


MOST_WORDS: Final = 256
"""Words that one pair of braces may expand to."""
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


def unquote_bare(text: str) -> str:
    """Unquote text outside of quotes, marking its patterns and braces."""
    if text.isalnum():
        return text
    return _BARE.sub(lambda m: "" if m[1] else m[2] or mark_sign(m[3]), text)


def unquote_double(text: str, *, is_document: bool = False) -> str:
    """Unquote text inside double quotes or a here-document."""
    return (_DOCUMENT if is_document else _QUOTED).sub(lambda m: m[1] or "", text)


def unescape_ansi(text: str) -> str:
    r"""Unescape the content of $'…' (also `echo -e` and `printf`): \x72 is an r."""
    return _ANSI.sub(_unescape, text)


def _unescape(match: re.Match[str]) -> str:
    hexadecimal = match[1] or match[2] or match[3]
    if hexadecimal or match[4]:
        code = int(hexadecimal, 16) if hexadecimal else int(match[4], 8)
        return chr(code) if 0 < code < 0xD800 else UNKNOWN
    if match[5]:
        return chr(ord(match[5]) & 0x1F)
    return _ESCAPES.get(match[6], match[6])


def expand_braces(text: str) -> list[str]:
    """Return the words that `{a,b}` and `{1..3}` expand to; one unknown word beyond the limit."""
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
    """Return the word with each alternative of its first pair of braces; None without one."""
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
    """Return where the brace at `start` closes, and its own commas."""
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


_TRIM_OPERATORS: Final = ("#", "##", "%", "%%")
_PLAIN_PATTERN: Final = re.compile(r"[\w.*?/:@+= -]*")


def apply_expansion_operator(text: str, operator: str, raw: str) -> str:
    """Apply `${x%.txt}` and similar, and changes of case; UNKNOWN for other operators."""
    if not is_known(text):
        return UNKNOWN
    cases = {"^^": text.upper(), ",,": text.lower()}
    if raw in cases:
        return cases[raw]
    pattern = raw[len(operator) :]
    if (
        operator not in _TRIM_OPERATORS
        or not _PLAIN_PATTERN.fullmatch(pattern)
        or len(text) > 1_000
    ):
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


LONGEST: Final = 16_384
"""Characters that are parsed; the grammar can take quadratic time on invalid text."""
KNOTS: Final = ("=(", "<<", "${")
"""Constructs that make the grammar slow if there are many."""
MOST_KNOTS: Final = 300
DEEPEST_TREE: Final = 90
"""Levels of nesting inside one text."""


class UnreadableError(InputError):
    """A command whose meaning cannot be determined."""


def parse_command(text: str) -> Node:
    """Return the root of the parse tree; raise UnreadableError if it has errors or is too deep."""
    if len(text) > LONGEST:
        raise UnreadableError(f"it is too long to parse ({len(text):,} characters)")
    if any(text.count(knot) > MOST_KNOTS for knot in KNOTS):
        raise UnreadableError("it is too complex to parse")
    text = text.replace("\r\n", "\n")
    if "\0" in text or "\r" in text:
        raise UnreadableError("it contains a control character")
    root = _parser().parse(text.encode("utf-8", "replace")).root_node
    if root.has_error:
        raise UnreadableError("it is not a valid shell command")
    if _is_deep(root):
        raise UnreadableError("it is nested too deeply")
    return root


@cache
def _parser() -> Parser:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def _is_deep(root: Node) -> bool:
    """Return whether a branch exceeds the depth limit, without recursion."""
    cursor = root.walk()
    depth = 0
    while True:
        if cursor.goto_first_child():
            depth += 1
            if depth > DEEPEST_TREE:
                return True
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return False
            depth -= 1


def text_of(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def text_between(node: Node, start: int, end: int) -> str:
    """Return the text of a node between two byte positions of the source."""
    whole = node.text or b""
    return whole[start - node.start_byte : end - node.start_byte].decode("utf-8", "replace")
