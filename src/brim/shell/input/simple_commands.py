"""Simple commands of a typed line, as a shell would see them, and how their arguments read.

It runs on every key press and accepts any text, including sentences: an approximation that never
fails. Risk assessment uses a real grammar instead.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

from brim.data import load_table

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


@dataclass(slots=True)
class SimpleCommand:
    """One simple command of a line, in the sense of POSIX; it grows while the line is read."""

    words: tuple[str, ...] = ()
    """Its words as typed, without leading assignments and redirections."""
    assigns: bool = False
    redirects: bool = False
    is_piped: bool = False
    """A pipe, `&&`, `||` or `&` follows."""
    has_stray_parenthesis: bool = False
    """It contains a parenthesis that no shell would accept, as (here)."""
    awaits_target: bool = False
    """The next word is the target of a redirection."""

    def add(self, word: str) -> None:
        if self.awaits_target:
            self.awaits_target = False
        elif not self.words and _ASSIGNMENT.match(word):
            self.assigns = True
        elif self.words or word not in ("{", "}"):
            self.words += (word,)


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
    now, last = SimpleCommand(), ""
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
                now = SimpleCommand()
    return WordAtCursor(last, now.words, now.awaits_target)


def without_documents(text: str) -> str:
    """Remove the bodies of here-documents."""
    return _HERE_DOCUMENT.sub(r"\1", text) if "<<" in text else text


def split_commands(text: str) -> list[SimpleCommand]:
    """Return the simple commands of a text, without comments and here-documents."""
    text = _LEADING_COMMENTS.sub("", without_documents(text))
    return [part for part in _split_tokens(text) if part.words or part.assigns or part.redirects]


def _split_tokens(text: str) -> Iterator[SimpleCommand]:
    now, depth = SimpleCommand(), 0
    for token in _TOKEN.finditer(text):
        match token.lastgroup:
            case "word" | "other":
                now.add(token.group())
            case "redirection":
                now.redirects = now.awaits_target = True
            case "pipe" | "end":
                now.is_piped = token.lastgroup == "pipe"
                yield now
                now = SimpleCommand()
            case "parenthesis" if token.group() == "(":
                depth += 1
                now.has_stray_parenthesis |= bool(now.words)
            case "parenthesis":
                depth -= 1
                now.has_stray_parenthesis |= depth < 0
    yield now


# Commands and their arguments


_TABLE: Final = load_table("words")
WORDS: Final = {
    name: frozenset(words.split()) for name, words in _TABLE.items() if name != "plain_words"
}
_PLAIN_WORDS: Final = {
    name: sys.maxsize if number == "any" else int(number)
    for number, names in _TABLE["plain_words"].items()
    for name in names.split()
}
"""How many plain words each command takes."""
SPOKEN_WORDS: Final = WORDS["sentence"] | WORDS["link"]
BEFORE_COMMANDS: Final = WORDS["prefixes"] | WORDS["runs_for_others"]
_PARTS_OF_COMPOUNDS: Final = WORDS["inner_keywords"] | WORDS["opening_keywords"]
_MAX_PLAIN_WORDS: Final = 2
"""Plain words that are not files, for commands that are not in the list."""
_PATH: Final = re.compile(r"(?:~[\w-]*|\.{1,2})?/|~\Z|\.\.\Z")
_VARIABLE: Final = re.compile(r"\$[A-Za-z_{(]")
_FLAG: Final = re.compile(r"--?[A-Za-z0-9]|\+[A-Za-z]+\Z")
_PLAIN: Final = re.compile(r"[^\W\d_]+(?:[-'’][^\W\d_]+)*[.,:;!?]*")
_LETTER: Final = re.compile(r"[^\W\d_]")
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_NAME: Final = re.compile(r"[~./]*[^\W\d_]\w")
_OTHER_SCRIPT: Final = re.compile(r"[^\W\d_\u0000-\u024f\u1e00-\u1eff]")


@dataclass(frozen=True, slots=True)
class KnownNames:
    """What the user's shell and folder contain."""

    is_command: Callable[[str], bool]
    """Whether a name is an alias, function, builtin, keyword or program on PATH."""
    exists: Callable[[str], bool]
    """Whether a path exists, relative to the user's folder."""
    metas: Collection[str]
    """Names and aliases of meta commands."""


def is_path(word: str) -> bool:
    """Return whether a word can only be a path: `./x`, `~/x`, `/x`, `..`."""
    return bool(_PATH.match(word))


@dataclass(frozen=True, slots=True)
class CommandCandidate:
    """A simple command, seen as a command name and its arguments."""

    part: SimpleCommand
    name: str
    arguments: tuple[str, ...]
    is_trusted: bool = False
    """It runs as another user, who may have other programs."""

    @classmethod
    def of(cls, part: SimpleCommand) -> CommandCandidate:
        """Return the command after `sudo`, `time` and similar, unless a flag comes between."""
        left, is_trusted = list(part.words), False
        while len(left) > 1 and left[0] in BEFORE_COMMANDS and not left[1].startswith("-"):
            is_trusted |= left.pop(0) in WORDS["runs_for_others"]
            while len(left) > 1 and re.match(r"\w+=", left[0]):
                left.pop(0)
        name = left[0].strip("\"'\\") if left else ""
        return cls(part, name, tuple(left[1:]), is_trusted)

    def runs(self, known: KnownNames) -> bool:
        """Return whether a shell would find something to run."""
        if not self.name:
            return self.part.assigns
        if self.name in _PARTS_OF_COMPOUNDS:
            return False
        return (
            (self.is_trusted and self.name not in SPOKEN_WORDS)
            or known.is_command(self.name)
            or is_path(self.name)
            or bool(_VARIABLE.match(self.name))
            or ("/" in self.name and known.exists(self.name))
        )

    @property
    def takes_text(self) -> bool:
        return self.name in WORDS["takes_text"]

    def is_plain(self, place: int) -> bool:
        return place < len(self.arguments) and bool(_PLAIN.fullmatch(self.arguments[place]))

    def names_something(self, place: int, known: KnownNames) -> bool:
        """Return whether any word is valid here: a pattern, a new name, the value of a flag."""
        if self.is_plain(place + 1) and not known.exists(self.arguments[place + 1]):
            return False
        if place > 0:
            return bool(_FLAG.match(self.arguments[place - 1]))
        if self.name in WORDS["takes_commands"]:
            return known.is_command(self.arguments[0])
        return self.name in WORDS["takes_a_name"]

    def sentence_word(self, known: KnownNames) -> str | None:
        """Return the first argument that belongs to a sentence."""
        for place, argument in enumerate(self.arguments):
            if not self.is_plain(place):
                continue
            word = argument.rstrip(".,:;!?").lower()
            is_link = word in WORDS["link"] and self._links(place)
            is_sentence = is_link or word in WORDS["sentence"] or _OTHER_SCRIPT.search(word)
            if (
                is_sentence
                and not self.names_something(place, known)
                and not known.exists(argument)
            ):
                return word
        return None

    def _links(self, place: int) -> bool:
        """Return whether the next word could be part of a sentence; after `a` only a plain one."""
        follower = self.arguments[place + 1] if place + 1 < len(self.arguments) else ""
        if self.is_plain(place + 1):
            return len(follower) > 1
        return self.arguments[place] != "a" and bool(_NAME.match(follower))

    @property
    def plain_words(self) -> int:
        """The number of plain words that are not files it takes."""
        if self.name in WORDS["takes_commands"] and sum(map(self.is_plain, range(9))) > 1:
            return 0
        if "/" in self.name:
            return sys.maxsize
        return _PLAIN_WORDS.get(self.name, _MAX_PLAIN_WORDS)

    @property
    def has_syntax(self) -> bool:
        return (
            self.part.redirects
            or self.part.is_piped
            or any(_FLAG.match(a) or "$" in a or a in ("=", "==", "!=") for a in self.arguments)
        )

    def odd_words(self, known: KnownNames) -> Iterator[str]:
        """Yield plain words that are neither files nor, if one is expected, commands."""
        for place, argument in enumerate(self.arguments):
            is_given = not self.is_plain(place) or known.exists(argument)
            if self.name in WORDS["takes_variables"]:
                is_given = self._is_variable(place) and not known.exists(argument)
            if is_given and self.name in WORDS["scripted"] and _LETTER.search(argument):
                return
            if self.name in WORDS["takes_commands"]:
                is_given |= known.is_command(argument)
            if not is_given or self.name in WORDS["needs_syntax"]:
                yield argument

    def _is_variable(self, place: int) -> bool:
        """Return whether it names a variable: the first by any name, others by one letter."""
        argument = self.arguments[place]
        return bool(_IDENTIFIER.fullmatch(argument)) and (place == 0 or len(argument) == 1)
