"""Language or command: what a typed line is, decided before Enter.

The first rule that applies wins:

1.  blank: nothing was typed.
2.  forced: `!` makes a command, `?` makes language.
3.  own: `:word` is a command of brim's own; so is `/word`, where brim has that one, and so are
    `help`, `quit` and `exit` by themselves.
4.  fenced: three backticks anywhere make language.
5.  apostrophe: `what's`, `don't` and `l'arbre` are language.
6.  whole: `yes`, `continue`, `go on` and a few more by themselves are language, and `who am i` is
    a command.
7.  compound: a whole `for … do`, `if … then`, `case … in` or `name() {` is a command.
8.  unknown: a part that begins with nothing the shell can run makes language.
9.  ending: `?`, `.` or `!` behind the last word, a comma or colon before, a (remark): language.
10. sentence: a word such as `the`, `my`, `is` or `please` among plain words makes language.
11. alone: a command by itself is a command.
12. syntax: a flag, `|`, `&&`, `>` or `$` makes a command.
13. wordy: more plain words that name no file than the command takes make language.
14. else: a command.

Rules 8 to 10 look at each part of a pipeline or list, and of several lines. When in doubt a line is
language: a question that runs is worse than a command that is asked about.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Final, Literal

from brim.shell.input import vocabulary as words
from brim.shell.input.calls import SPOKEN, Call, Known, is_path
from brim.shell.input.parts import parts, without_documents

__all__ = ["Decision", "Kind", "Known", "classify", "flipped"]

Kind = Literal["command", "language", "meta", "nothing"]

_READ: Final = 2_000
"""So many characters of a long text decide; the rest of a paste changes nothing."""
_LONGEST_NAME: Final = 20
_BARE: Final = re.compile(r"help|quit|exit(?:[ \t]+\d+)?")
_LISTED: Final = 3
"""So many names are given of those that begin like what is typed."""
_META: Final = re.compile(r":([A-Za-z][A-Za-z-]+|[a-z])(?=[!\s]|\Z)")
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
_BEHIND_COMPOUND: Final = re.compile(r".*(?:\b(?:done|fi|esac)\b|\}|\)\)|\]\])(.*)", re.DOTALL)
_ENDING: Final = re.compile(r"[^\s/.*\[\]]*[^\W_][)\"']?[?？]+!*|[^\W\d_]{2,}[.!。！]+")
_PAUSE: Final = re.compile(r"[^\W\d_]{2,}[,:]")


@dataclass(frozen=True, slots=True)
class Decision:
    """What a line is, and why."""

    kind: Kind
    text: str
    """The line without its forcing prefix; for meta without the `:` or `/`."""
    reason: str
    """A few words for the prompt."""


def classify(line: str, known: Known) -> Decision:
    """What a line is."""
    looked_at = _Line(line, known)
    return next(decision for rule in _RULES if (decision := rule(looked_at)) is not None)


def flipped(decision: Decision) -> Decision:
    """What one key makes of it: command to language and back; all else stays."""
    if decision.kind == "command":
        return replace(decision, kind="language", reason="flipped to language")
    if decision.kind == "language":
        return replace(decision, kind="command", reason="flipped to a command")
    return decision


@dataclass(frozen=True)
class _Line:
    text: str
    known: Known

    @cached_property
    def bare(self) -> str:
        return self.text.strip()

    @cached_property
    def start(self) -> str:
        """What is looked at, cut between two words: half a word could be no command."""
        start = self.bare[:_READ]
        whole_words = start.rsplit(maxsplit=1)[0] if len(self.bare) > _READ else start
        return whole_words if len(whole_words) > _READ // 2 else start

    @cached_property
    def calls(self) -> list[Call]:
        return [Call.of(part) for part in parts(self.start)]

    def command(self, reason: str) -> Decision:
        return Decision("command", self.text, reason)

    def language(self, reason: str = "reads like a sentence") -> Decision:
        return Decision("language", self.text, reason)


def _blank(line: _Line) -> Decision | None:
    if line.bare in ("", "!", "?"):
        return Decision("nothing", "", f"nothing behind {line.bare}" if line.bare else "empty")
    return None


def _forced(line: _Line) -> Decision | None:
    if line.bare == "!!":  # the habit of other shells, not the negation of nothing
        return Decision("meta", line.bare, "the up key brings back the last command")
    if line.bare[0] == "!":
        return Decision("command", line.bare[1:].lstrip(), "forced by !")
    if line.bare[0] == "?":
        return Decision("language", line.bare[1:].lstrip(), "forced by ?")
    return None


def _own(line: _Line) -> Decision | None:
    if _BARE.fullmatch(line.bare):
        return Decision("meta", line.bare, f"{line.bare.split()[0]} is brim's own")
    if line.start[0] not in ":/":
        return None
    name = re.split(r"\s", line.start[1:], maxsplit=1)[0]
    if name in line.known.metas:
        return Decision("meta", line.bare[1:], f"{name} is brim's own")
    if match := _META.match(line.start):
        return Decision("meta", line.bare[1:], _beginning(match[1], line.known))
    return None


def _beginning(typed: str, known: Known) -> str:
    """What brim has that begins so."""
    begun = sorted(name for name in known.metas if name.startswith(typed.lower()))
    more = " …" if len(begun) > _LISTED else ""
    return ", ".join(begun[:_LISTED]) + more if begun else "no such command"


def _fenced(line: _Line) -> Decision | None:
    return line.language("holds a code block") if "```" in line.start else None


def _apostrophe(line: _Line) -> Decision | None:
    spoken = _QUOTED.sub(" ", without_documents(line.start))
    return line.language() if _APOSTROPHE.search(spoken) else None


def _whole(line: _Line) -> Decision | None:
    if line.bare in words.ANSWERS:
        return line.language(f"{line.bare} is an answer")
    if line.bare in words.COMMANDS_LIKE_SENTENCES and line.calls[0].runs(line.known):
        return _else(line)
    return None


def _compound(line: _Line) -> Decision | None:
    opening = _OPENING.search(line.start)
    if opening is None:
        return None
    before, code = line.start[: opening.end()], line.start[opening.end() :]
    whole, condition = _COMPOUND.match(code), _CONDITION.match(code)
    if whole is None and not (condition and _tests(condition[1], line.known)):
        return None
    behind = _BEHIND_COMPOUND.match(code)
    around = parts(before) + (parts(behind[1]) if behind else [])
    new = whole.groups() if whole else ()
    if all(call.name in new or _is_fit(call, line.known) for call in map(Call.of, around)):
        return line.command("shell code")
    return line.language()


def _tests(word: str, known: Known) -> bool:
    return word.startswith(("[", "(", "$", "/", "./")) or known.is_command(word)


def _is_fit(call: Call, known: Known) -> bool:
    """Whether it may stand by a compound: a loop that was pasted with a question must not run."""
    if not call.name:
        return True
    return call.runs(known) and (call.takes_text or call.sentence_word(known) is None)


def _unknown(line: _Line) -> Decision | None:
    if not line.calls:
        return line.language(f"{_short(line.start.split()[0])} is no command")
    for call in line.calls:
        if not call.runs(line.known):
            said = {word.lower() for word in call.part.words}
            if not call.name or said & SPOKEN:
                return line.language()
            return line.language(f"{_short(call.name)} is no command")
    return None


def _ending(line: _Line) -> Decision | None:
    for call in line.calls:
        if call.takes_text:
            continue
        if call.part.has_stray_parenthesis or any(map(_PAUSE.fullmatch, call.part.words[:-1])):
            return line.language()
    last = line.calls[-1]
    if last.part.words and not last.takes_text and _ENDING.fullmatch(last.part.words[-1]):
        return line.language("ends like a sentence")
    return None


def _sentence(line: _Line) -> Decision | None:
    for call in line.calls:
        if not call.takes_text and (word := call.sentence_word(line.known)) is not None:
            return line.language(f"reads like a sentence: {_short(word)}")
    return None


def _alone(line: _Line) -> Decision | None:
    if len(line.calls) > 1 or line.calls[0].arguments:
        return None
    return _else(line)


def _syntax(line: _Line) -> Decision | None:
    return _else(line) if any(call.has_syntax for call in line.calls) else None


def _wordy(line: _Line) -> Decision | None:
    for call in line.calls:
        odd = islice(call.odd_words(line.known), call.plain_words, None)
        if not call.takes_text and (word := next(odd, None)) is not None:
            return line.language(f"{_short(word)} is no file")
    return None


def _else(line: _Line) -> Decision:
    call = line.calls[0]
    if not call.name:
        return line.command("sets a variable")
    thing = "path" if is_path(call.name) else "command"
    return line.command(f"{_short(call.name)} is a {thing}")


def _short(word: str) -> str:
    return word if len(word) <= _LONGEST_NAME else f"{word[: _LONGEST_NAME - 1]}…"


_RULES: Final[tuple[Callable[[_Line], Decision | None], ...]] = (
    *(_blank, _forced, _own, _fenced, _apostrophe, _whole, _compound, _unknown),
    *(_ending, _sentence, _alone, _syntax, _wordy, _else),
)
