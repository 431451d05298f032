"""Splits a typed line into simple commands, as a shell would see them.

It runs on every key press and accepts any text, including sentences: an approximation that never
fails. Risk assessment uses a real grammar instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_TOKEN: Final = re.compile(
    r"""
    (?P<space> [ \t\r\f\v]+ | \\\n )
  | (?P<comment> \#(?=\s|\Z)[^\n]* )
  | (?P<redirection> \d*(?:<<<|<<-?|>>|<>|&>>?|>\||[<>]&?)(?!\()[ \t]* )
  | (?P<pipe> \|\|?&? | && | & )
  | (?P<end> ;+ | \n )
  | (?P<parenthesis> [()] )
  | (?P<word> (?:
        \\.
      | "(?:\\.|[^"\\])*+(?:"|\Z)
      | '[^']*+(?:'|\Z)
      | [$<>=]\((?:[^()]|\([^()]*+\))*+(?:\)|\Z)
      | `[^`]*+(?:`|\Z)
      | \$\{[^}]*+(?:\}|\Z)
      | [^\s|&;<>()'"\\`]
    )++ )
  | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_HERE_DOCUMENT: Final = re.compile(
    r"""(<<-?[ \t]*(['"]?)(\w+)\2[^\n]*)\n(?:(?:[^\n]*\n)*?[ \t]*\3[ \t]*(?=\n|\Z)|.*\Z)""",
    re.DOTALL,
)
_LEADING_COMMENTS: Final = re.compile(r"\A(?:\s*\#(?:[ \t][^\n]*)?\n)+")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=")


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    """One simple command of a line, in the sense of POSIX."""

    words: tuple[str, ...]
    """Its words as typed, without leading assignments and redirections."""
    assigns: bool = False
    redirects: bool = False
    is_piped: bool = False
    """A pipe, `&&`, `||` or `&` follows."""
    has_stray_parenthesis: bool = False
    """It contains a parenthesis that no shell would accept, as (here)."""


@dataclass(slots=True)
class _Open:
    words: list[str] = field(default_factory=list)
    assigns: bool = False
    redirects: bool = False
    awaits_target: bool = False
    has_stray_parenthesis: bool = False

    def add(self, word: str) -> None:
        if self.awaits_target:
            self.awaits_target = False
        elif not self.words and _ASSIGNMENT.match(word):
            self.assigns = True
        elif self.words or word not in ("{", "}"):
            self.words.append(word)

    def closed(self, *, is_piped: bool) -> SimpleCommand:
        return SimpleCommand(
            words=tuple(self.words),
            assigns=self.assigns,
            redirects=self.redirects,
            is_piped=is_piped,
            has_stray_parenthesis=self.has_stray_parenthesis,
        )


@dataclass(frozen=True, slots=True)
class WordAtCursor:
    """The word being typed at the end of a line."""

    word: str
    """As typed; empty after a space."""
    before: tuple[str, ...]
    """The words before it in its simple command, without assignments."""
    is_target: bool
    """It follows a redirection."""


def word_at_end(text: str) -> WordAtCursor:
    """Return the word at the end of a text."""
    now, last = _Open(), ""
    for token in _TOKEN.finditer(text):
        if last:
            now.add(last)
            last = ""
        match token.lastgroup:
            case "word" | "other":
                last = token.group()
            case "redirection":
                now.awaits_target = True
            case "pipe" | "end" | "parenthesis":
                now = _Open()
    return WordAtCursor(last, tuple(now.words), now.awaits_target)


def without_documents(text: str) -> str:
    """Remove the bodies of here-documents."""
    return _HERE_DOCUMENT.sub(r"\1", text) if "<<" in text else text


def split_commands(text: str) -> list[SimpleCommand]:
    """Return the simple commands of a text, without comments and here-documents."""
    text = _LEADING_COMMENTS.sub("", without_documents(text))
    return [part for part in _split_tokens(text) if part.words or part.assigns or part.redirects]


def _split_tokens(text: str) -> Iterator[SimpleCommand]:
    now, depth = _Open(), 0
    for token in _TOKEN.finditer(text):
        match token.lastgroup:
            case "word" | "other":
                now.add(token.group())
            case "redirection":
                now.redirects = now.awaits_target = True
            case "pipe" | "end":
                yield now.closed(is_piped=token.lastgroup == "pipe")
                now = _Open()
            case "parenthesis" if token.group() == "(":
                depth += 1
                now.has_stray_parenthesis |= bool(now.words)
            case "parenthesis":
                depth -= 1
                now.has_stray_parenthesis |= depth < 0
    yield now.closed(is_piped=False)
