"""Text of which some parts are not known before the command runs.

A word of a command is kept as plain text in which single characters of a private range stand for
what is not text: something unknown, a pattern that the shell will match against file names.
So words can be joined, cut and compared as any text, and nothing unknown is ever mistaken for
something known.
"""

from __future__ import annotations

from typing import Final

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
_UNREAD: Final = frozenset((UNKNOWN, SPREAD, PIPE, TRUSTED, MAYBE))
_SIGNS: Final = {STAR: "*", ANY: "?", RANGE: "[", OPEN: "{", COMMA: ",", CLOSE: "}", TILDE: "~"}
_MARKED: Final = {sign: mark for mark, sign in _SIGNS.items()}
_GLOBS: Final = {ord(sign): mark for mark, sign in _SIGNS.items() if mark in PATTERNS}
_PLAIN: Final = {ord(mark): sign for mark, sign in _SIGNS.items()}
_SHOWN: Final = {
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


def marked(sign: str) -> str:
    """A character that stands unquoted in a command."""
    return _MARKED.get(sign, sign)


def globbed(text: str) -> str:
    """The value of an unquoted variable: its stars match files, its braces stay."""
    return text.translate(_GLOBS)


def plain(text: str) -> str:
    """The text with its patterns written as they were typed; what is unknown stays marked."""
    return text.translate(_PLAIN)


def bracketed(text: str) -> str:
    """The text with those braces that turned out to be mere characters."""
    return text.translate(_BRACES)


def shown(text: str) -> str:
    """The text for a person to read."""
    return text.translate(_SHOWN)


def is_known(text: str) -> bool:
    return _UNREAD.isdisjoint(text)


def is_pattern(text: str) -> bool:
    return not PATTERNS.isdisjoint(text)


def spread(text: str) -> str:
    """The text as it stands without quotes around it."""
    return text.replace(UNKNOWN, SPREAD)


def held(text: str) -> str:
    """The text as it stands inside quotes: however much it is, it is one word."""
    return text.replace(SPREAD, UNKNOWN)
