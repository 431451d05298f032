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
"""Some text inside one word."""
SPREAD: Final = "\ue001"
"""Some text that may turn into any number of words."""
TRUSTED: Final = "\ue00a"
"""The output of a program that is made to be evaluated, as that of `ssh-agent` is."""
MAYBE: Final = "\ue00b"
"""Before a text that is only one of those that may stand here."""
STAR: Final = "\ue002"
ANY: Final = "\ue003"
RANGE: Final = "\ue004"
OPEN: Final = "\ue005"
COMMA: Final = "\ue006"
CLOSE: Final = "\ue007"
TILDE: Final = "\ue008"
PIPE: Final = "\ue009"
"""Stands on both sides of what comes out of <(…)."""

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
    """Text from outside, in which no character can pass for a mark."""
    return text.translate(_CLEAN)


def mark_sign(sign: str) -> str:
    """A character that stands unquoted in a command."""
    return _MARK_OF.get(sign, sign)


def mark_globs(text: str) -> str:
    """The value of an unquoted variable: its stars match files, its braces stay."""
    return text.translate(_GLOBS)


def plain(text: str) -> str:
    """The text with its patterns written as they were typed; what is unknown stays marked."""
    return text.translate(_PLAIN)


def restore_braces(text: str) -> str:
    """The text with those braces that turned out to be mere characters."""
    return text.translate(_BRACES)


def display(text: str) -> str:
    """The text for a person to read."""
    return text.translate(_DISPLAY)


def is_known(text: str) -> bool:
    return _UNKNOWN_MARKS.isdisjoint(text)


def is_pattern(text: str) -> bool:
    return not PATTERNS.isdisjoint(text)


def mark_unquoted(text: str) -> str:
    """The text as it stands without quotes around it."""
    return text.replace(UNKNOWN, SPREAD)


def mark_quoted(text: str) -> str:
    """The text as it stands inside quotes: however much it is, it is one word."""
    return text.replace(SPREAD, UNKNOWN)


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


def unquote_bare(text: str) -> str:
    """Text outside of quotes, its patterns and braces marked."""
    if text.isalnum():
        return text
    return _BARE.sub(lambda m: "" if m[1] else m[2] or mark_sign(m[3]), text)


def unquote_double(text: str, *, is_document: bool = False) -> str:
    """Text inside double quotes, where a backslash means little; less so in a here-document."""
    return (_DOCUMENT if is_document else _QUOTED).sub(lambda m: m[1] or "", text)


def unescape_ansi(text: str) -> str:
    r"""What stands in $'…' (and what `echo -e` and `printf` print): \x72 is an r."""
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


_TRIM_OPERATORS: Final = ("#", "##", "%", "%%")
_PLAIN_PATTERN: Final = re.compile(r"[\w.*?/:@+= -]*")


def apply_expansion_operator(text: str, operator: str, raw: str) -> str:
    """`${x%.txt}` and its kind, and changes of case; anything else is unknown."""
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
"""Characters that are read; the grammar can take quadratic time over nonsense."""
KNOTS: Final = ("=(", "<<", "${")
"""What the grammar takes its time over, if there is much of it."""
MOST_KNOTS: Final = 300
DEEPEST_TREE: Final = 90
"""Brackets within brackets within a single text."""


class UnreadableError(InputError):
    """A command that no reader can be sure of."""


def parse_command(text: str) -> Node:
    """The root of the tree, free of errors and not too deep to shell."""
    if len(text) > LONGEST:
        raise UnreadableError(f"it is too long to be read ({len(text):,} characters)")
    if any(text.count(knot) > MOST_KNOTS for knot in KNOTS):
        raise UnreadableError("it is too tangled to be read")
    text = text.replace("\r\n", "\n")
    if "\0" in text or "\r" in text:
        raise UnreadableError("it has a character in it that no command has")
    root = _parser().parse(text.encode("utf-8", "replace")).root_node
    if root.has_error:
        raise UnreadableError("it cannot be read as a shell command")
    if _is_deep(root):
        raise UnreadableError("it is nested too deep to be read")
    return root


@cache
def _parser() -> Parser:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def _is_deep(root: Node) -> bool:
    """Whether some branch is longer than is walked; looks at each node once, without recursion."""
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
    """The text of a node between two byte positions of the whole."""
    whole = node.text or b""
    return whole[start - node.start_byte : end - node.start_byte].decode("utf-8", "replace")
