"""A simple command seen as a possible command: its name, its arguments, and how they read."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

from brim.shell.input import vocabulary as words
from brim.shell.input.simple_commands import SimpleCommand

SPOKEN_WORDS: Final = words.SENTENCE_WORDS | words.LINK_WORDS
_BEFORE_COMMANDS: Final = words.PREFIXES | words.RUNS_FOR_OTHERS
_PARTS_OF_COMPOUNDS: Final = words.INNER_KEYWORDS | words.OPENING_KEYWORDS
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
        while len(left) > 1 and left[0] in _BEFORE_COMMANDS and not left[1].startswith("-"):
            is_trusted |= left.pop(0) in words.RUNS_FOR_OTHERS
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
        return self.name in words.TAKES_TEXT

    def is_plain(self, place: int) -> bool:
        return place < len(self.arguments) and bool(_PLAIN.fullmatch(self.arguments[place]))

    def names_something(self, place: int, known: KnownNames) -> bool:
        """Return whether any word is valid here: a pattern, a new name, the value of a flag."""
        if self.is_plain(place + 1) and not known.exists(self.arguments[place + 1]):
            return False
        if place > 0:
            return bool(_FLAG.match(self.arguments[place - 1]))
        if self.name in words.TAKES_COMMANDS:
            return known.is_command(self.arguments[0])
        return self.name in words.TAKES_A_NAME

    def sentence_word(self, known: KnownNames) -> str | None:
        """Return the first argument that belongs to a sentence."""
        for place, argument in enumerate(self.arguments):
            if not self.is_plain(place):
                continue
            word = argument.rstrip(".,:;!?").lower()
            is_link = word in words.LINK_WORDS and self._links(place)
            is_sentence = is_link or word in words.SENTENCE_WORDS or _OTHER_SCRIPT.search(word)
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
        if self.name in words.TAKES_COMMANDS and sum(map(self.is_plain, range(9))) > 1:
            return 0
        if "/" in self.name:
            return sys.maxsize
        return words.PLAIN_WORDS.get(self.name, words.PLAIN_WORDS_ELSE)

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
            if self.name in words.TAKES_VARIABLES:
                is_given = self._is_variable(place) and not known.exists(argument)
            if is_given and self.name in words.SCRIPTED and _LETTER.search(argument):
                return
            if self.name in words.TAKES_COMMANDS:
                is_given |= known.is_command(argument)
            if not is_given or self.name in words.NEEDS_SYNTAX:
                yield argument

    def _is_variable(self, place: int) -> bool:
        """Return whether it names a variable: the first by any name, others by one letter."""
        argument = self.arguments[place]
        return bool(_IDENTIFIER.fullmatch(argument)) and (place == 0 or len(argument) == 1)
