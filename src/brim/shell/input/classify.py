"""Classifies a typed line as language, command or meta command, before Enter is pressed.

The first rule that matches decides:

1.  blank: the line is empty.
2.  forced: `!` means command, `?` means language.
3.  meta: `:word` is a meta command; so is `/word` if it exists, and so are `help`, `quit` and
    `exit` on their own.
4.  fence: three backticks anywhere mean language.
5.  apostrophe: `what's`, `don't` and `l'arbre` mean language.
6.  whole line: `yes`, `continue`, `go on` and a few more on their own are language, and `who am i`
    is a command.
7.  compound: a complete `for … do`, `if … then`, `case … in` or `name() {` is a command, as is
    a block that ends with `end` in fish.
8.  unknown: a part that starts with nothing the shell can run means language.
9.  ending: `?`, `.` or `!` after the last word, a comma or colon, or a (remark) mean language.
10. sentence: a word such as `the`, `my`, `is` or `please` among plain words means language.
11. alone: a command without arguments is a command.
12. syntax: a flag, `|`, `&&`, `>` or `$` means command.
13. wordy: more plain words that are not files than the command takes mean language.
14. default: a command.

Rules 8 to 10 check each part of a pipeline or list, and each line. In case of doubt, a line is
language: running a question is worse than sending a command to the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Final

from brim.shell.input.classification import BLANK, Classification
from brim.shell.input.simple_commands import (
    SPOKEN_WORDS,
    CommandCandidate,
    KnownNames,
    is_path,
    split_commands,
    without_documents,
)

_MAX_READ: Final = 2_000
"""Only the first characters of a long text are classified."""
_MAX_NAME: Final = 20
_ANSWERS: Final = frozenset(
    ("yes", "continue", "more", "go on", "go back", "install", "write", "look", "return", "break")
)
"""Lines that answer a model, although the shell has such commands."""
_COMMANDS_LIKE_SENTENCES: Final = frozenset(("who am i",))
"""Lines that are commands, although they read like a sentence."""
_BARE: Final = re.compile(r"help|quit|exit(?:[ \t]+\d+)?")
_MAX_LISTED: Final = 3
"""Names to list of those that start with the typed text."""
_META: Final = re.compile(r":([A-Za-z][A-Za-z-]+|[a-z](?=[!\s]|\Z))")
_QUOTED: Final = re.compile(
    r"""
    "(?:\\.|[^"\\])*+(?:"|\Z)
  | (?:(?<=\s-\w)|(?<![^\W\d_]))'[^']*+(?:'|\Z)
  | (?<=\s)\#\s[^\n]*
    """,
    re.VERBOSE | re.DOTALL,
)
_APOSTROPHE: Final = re.compile(r"(?<=[^\W\d_])['’](?:(?:s|t|re|ve|ll|d|m)(?![\w'’])|[^'’]*\Z)")
_OPENING: Final = re.compile(
    r"""
    (?:\A|[;\n|]|&&)\s*+
    (?=(?:if|for|while|until|case|select|function)\s|\(\(|\[\[\s|[^\s();|&]{1,60}\s?\(\s*\))
    """,
    re.VERBOSE,
)
_COMPOUND: Final = re.compile(
    r"""
    (?:for|select)\s+\w+\s*(?:\sin\s.*)?[;\n]\s{0,40}do\b
  | for\s*\(\(  |  \(\(.*\)\)  |  \[\[\s.*\s\]\]
  | case\s+\S+\s+in\s.*\)
  | function\s+(?P<function>[^\s(]+)\s*(?:\(\s*\))?\s*\{
  | (?P<defined>[^\s()'"$=,]+)\s*\(\s*\)\s*[{(]
    """,
    re.VERBOSE | re.DOTALL,
)
_CONDITION: Final = re.compile(
    r"(?:if|while|until)\s+(?:!\s+)?([^\s;]++).*[;\n]\s{0,40}(?:then|do)\b", re.DOTALL
)
_FISH_BLOCK: Final = re.compile(
    r"(?:for\s+\w+\s+in|while|if|switch|function|begin)\b.*[;\n]\s{0,40}end\s*", re.DOTALL
)
_AFTER_COMPOUND: Final = re.compile(r".*(?:\b(?:done|fi|esac)\b|\}|\)\)|\]\])(.*)", re.DOTALL)
_ENDING: Final = re.compile(r"[^\s/.*\[\]]*[^\W_][)\"']?[?？]+!*|[^\W\d_]{2,}[.!。！]+")
_PAUSE: Final = re.compile(r"[^\W\d_]{2,}[,:]")


def classify(line: str, known: KnownNames) -> Classification:
    """Classify a line by the first rule that matches."""
    typed = _Line(line, known)
    return next(found for rule in _RULES if (found := rule(typed)) is not None)


@dataclass(frozen=True)
class _Line:
    text: str
    known: KnownNames

    @cached_property
    def bare(self) -> str:
        return self.text.strip()

    @cached_property
    def start(self) -> str:
        """The start of the text, up to the end of a word."""
        start = self.bare[:_MAX_READ]
        whole_words = start.rsplit(maxsplit=1)[0] if len(self.bare) > _MAX_READ else start
        return whole_words if len(whole_words) > _MAX_READ // 2 else start

    @cached_property
    def calls(self) -> list[CommandCandidate]:
        return [CommandCandidate.of(part) for part in split_commands(self.start)]

    def command(self, reason: str) -> Classification:
        return Classification("command", self.text, reason)

    def language(self, reason: str = "reads like a sentence") -> Classification:
        return Classification("language", self.text, reason)


def _blank_rule(line: _Line) -> Classification | None:
    if line.bare in ("", "!", "?"):
        return replace(BLANK, reason=f"nothing after {line.bare}") if line.bare else BLANK
    return None


def _forced_rule(line: _Line) -> Classification | None:
    if line.bare == "!!":  # history expansion of other shells
        return Classification("meta", line.bare, "press the up key for the last command")
    if line.bare[0] == "!":
        return Classification("command", line.bare[1:].lstrip(), "forced by !")
    if line.bare[0] == "?":
        return Classification("language", line.bare[1:].lstrip(), "forced by ?")
    return None


def _meta_rule(line: _Line) -> Classification | None:
    if _BARE.fullmatch(line.bare):
        return Classification("meta", line.bare, f"{line.bare.split()[0]} is a meta command")
    if line.start[0] not in ":/":
        return None
    name = re.split(r"\s", line.start[1:], maxsplit=1)[0]
    if name in line.known.metas:
        return Classification("meta", line.bare[1:], f"{name} is a meta command")
    if match := _META.match(line.start):
        return Classification("meta", line.bare[1:], _describe_prefix(match[1], line.known))
    return None


def _describe_prefix(typed: str, known: KnownNames) -> str:
    """List the meta commands that start with the typed text."""
    matching = sorted(name for name in known.metas if name.startswith(typed.lower()))
    more = " …" if len(matching) > _MAX_LISTED else ""
    return ", ".join(matching[:_MAX_LISTED]) + more if matching else "no such command"


def _fence_rule(line: _Line) -> Classification | None:
    return line.language("contains a code block") if "```" in line.start else None


def _apostrophe_rule(line: _Line) -> Classification | None:
    spoken = _QUOTED.sub(" ", without_documents(line.start))
    return line.language() if _APOSTROPHE.search(spoken) else None


def _whole_line_rule(line: _Line) -> Classification | None:
    if line.bare in _ANSWERS:
        return line.language(f"{line.bare} is an answer")
    if line.bare in _COMMANDS_LIKE_SENTENCES and line.calls[0].runs(line.known):
        return _default_rule(line)
    return None


def _compound_rule(line: _Line) -> Classification | None:
    if line.known.is_command("end") and _FISH_BLOCK.fullmatch(line.start):
        return line.command("shell code")
    opening = _OPENING.search(line.start)
    if opening is None:
        return None
    before, code = line.start[: opening.end()], line.start[opening.end() :]
    whole, condition = _COMPOUND.match(code), _CONDITION.match(code)
    test = condition[1] if condition else ""
    is_test = test.startswith(("[", "(", "$", "/", "./")) or line.known.is_command(test)
    if whole is None and not is_test:
        return None
    after = _AFTER_COMPOUND.match(code)
    around = split_commands(before) + (split_commands(after[1]) if after else [])
    new = whole.groups() if whole else ()
    if all(
        call.name in new or _is_valid_neighbor(call, line.known)
        for call in map(CommandCandidate.of, around)
    ):
        return line.command("shell code")
    return line.language()


def _is_valid_neighbor(call: CommandCandidate, known: KnownNames) -> bool:
    """Return whether it may be next to a compound: a loop pasted with a question must not run."""
    if not call.name:
        return True
    return call.runs(known) and (call.takes_text or call.sentence_word(known) is None)


def _unknown_rule(line: _Line) -> Classification | None:
    if not line.calls:
        return line.language(f"{_short(line.start.split()[0])} is not a command")
    for call in line.calls:
        if not call.runs(line.known):
            spoken = {word.lower() for word in call.part.words}
            if not call.name or spoken & SPOKEN_WORDS:
                return line.language()
            return line.language(f"{_short(call.name)} is not a command")
    return None


def _ending_rule(line: _Line) -> Classification | None:
    for call in line.calls:
        if call.takes_text:
            continue
        if call.part.has_stray_parenthesis or any(map(_PAUSE.fullmatch, call.part.words[:-1])):
            return line.language()
    last = line.calls[-1]
    if last.part.words and not last.takes_text and _ENDING.fullmatch(last.part.words[-1]):
        return line.language("ends like a sentence")
    return None


def _sentence_rule(line: _Line) -> Classification | None:
    for call in line.calls:
        if not call.takes_text and (word := call.sentence_word(line.known)) is not None:
            return line.language(f"reads like a sentence: {_short(word)}")
    return None


def _alone_rule(line: _Line) -> Classification | None:
    if len(line.calls) > 1 or line.calls[0].arguments:
        return None
    return _default_rule(line)


def _syntax_rule(line: _Line) -> Classification | None:
    return _default_rule(line) if any(call.has_syntax for call in line.calls) else None


def _wordy_rule(line: _Line) -> Classification | None:
    for call in line.calls:
        odd = islice(call.odd_words(line.known), call.plain_words, None)
        if not call.takes_text and (word := next(odd, None)) is not None:
            return line.language(f"{_short(word)} is not a file")
    return None


def _default_rule(line: _Line) -> Classification:
    call = line.calls[0]
    if not call.name:
        return line.command("sets a variable")
    thing = "path" if is_path(call.name) else "command"
    return line.command(f"{_short(call.name)} is a {thing}")


def _short(word: str) -> str:
    return word if len(word) <= _MAX_NAME else f"{word[: _MAX_NAME - 1]}…"


_RULES: Final[tuple[Callable[[_Line], Classification | None], ...]] = (
    *(_blank_rule, _forced_rule, _meta_rule, _fence_rule, _apostrophe_rule, _whole_line_rule),
    *(_compound_rule, _unknown_rule, _ending_rule, _sentence_rule, _alone_rule, _syntax_rule),
    *(_wordy_rule, _default_rule),
)


# Mistyped commands

_MAX_COMMAND_WORDS: Final = 6
_SENTENCE_END: Final = re.compile(r".*\w[?!.]")
_COMMAND_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]{1,15}")


def suggest_command(
    line: str, names: Iterable[str], classify: Callable[[str], Classification]
) -> str | None:
    """Return the command that a line is one slip away from; None if it is rather a sentence."""
    words = line.split()
    if not words or len(words) > _MAX_COMMAND_WORDS or not _COMMAND_NAME.fullmatch(words[0]):
        return None
    if _SENTENCE_END.fullmatch(words[-1]):
        return None
    typed, rest = words[0], line.strip()[len(words[0]) :]
    for name in sorted(names, key=lambda name: (not _is_swapped(typed, name), name)):
        is_near = _is_swapped(typed, name) or (rest and _is_one_letter_off(typed, name))
        if is_near and classify(name + rest).kind == "command":
            return name + rest
    return None


def _is_swapped(typed: str, name: str) -> bool:
    """Whether two neighbouring letters have changed places."""
    differ = [at for at, (a, b) in enumerate(zip(typed, name, strict=False)) if a != b]
    if len(typed) != len(name) or len(differ) != 2 or differ[1] != differ[0] + 1:
        return False
    first, second = differ
    return (typed[first], typed[second]) == (name[second], name[first])


def _is_one_letter_off(typed: str, name: str) -> bool:
    """Whether one letter is missing, added or another one."""
    short, long = sorted((typed, name), key=len)
    if len(short) < 3 or len(long) - len(short) > 1:
        return False
    at = next(
        (at for at, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short)
    )
    skip = len(long) == len(short)
    return typed != name and short[at + skip :] == long[at + 1 :]
