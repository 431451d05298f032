"""A program with its arguments, and the kinds of rules that look at one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from brim.shell.risk.expansion import Word
from brim.shell.risk.file_view import FileView
from brim.shell.risk.syntax import MAYBE, UNKNOWN, is_known, plain


@dataclass(frozen=True, slots=True)
class Invocation:
    """One program with its arguments, its working folder and its standard input."""

    name: str
    words: tuple[Word, ...]
    files: FileView
    stdin: str | None = None
    """The standard input as far as it is known; None for the terminal."""
    lost: str = ""

    @property
    def texts(self) -> list[str]:
        return [word.text for word in self.words]

    def options(self) -> Iterator[str]:
        """Yield every argument before `--` that begins with a dash."""
        for whole in self.texts:
            text = whole.replace(MAYBE, "")
            if text == "--":
                return
            if text.startswith("-") and len(text) > 1:
                yield plain(text)

    def has(self, *flags: str) -> bool:
        """Return whether an option is given: `-f` also in `-rf`, `--force` also abbreviated."""
        return any(_is_flag(option, flag) for option in self.options() for flag in flags)

    def is_guarded(self, letters: str, *names: str, others: str = "") -> bool:
        """Return whether an option makes the call safe; `others` may share its dash.

        Stricter than `has`: the letter must not be part of the value of another option.
        """
        clusters = [option[1:] for option in self.options() if not option.startswith("--")]
        return any(
            set(c) <= set(letters + others) and set(c) & set(letters) for c in clusters
        ) or any(option.partition("=")[0] in names for option in self.options())

    def value(self, *flags: str) -> str | None:
        """Return the value of the last of these options: `-o x`, `-ox`, `--out x`, `--out=x`."""
        return next(reversed(self.values(*flags)), None)

    def values(self, *flags: str) -> list[str]:
        found = []
        texts = self.texts
        for at, text in enumerate(texts):
            following = texts[at + 1] if at + 1 < len(texts) else UNKNOWN
            found += [
                v for flag in flags if (v := _value(plain(text), flag, following)) is not None
            ]
        return found

    def operands(self, *valued: str) -> list[str]:
        """Return the arguments that are neither options nor values of the `valued` options."""
        found: list[str] = []
        texts = iter(self.texts)
        for text in texts:
            if text == "--":
                return [*found, *texts]
            if not text.startswith("-") or text == "-":
                found.append(text)
            elif any(_takes_next(text, flag) for flag in valued):
                next(texts, None)
        return found

    def after(self, count: int) -> Invocation:
        """Return the same program without its first arguments."""
        return Invocation(self.name, self.words[count:], self.files, self.stdin, self.lost)


def _is_flag(option: str, flag: str) -> bool:
    if flag.startswith("--"):
        name = option.partition("=")[0]
        return name == flag or (len(name) > 4 and flag.startswith(name))
    if option.startswith("--"):
        return False
    return option == flag or (len(flag) == 2 and flag[1] in option[1:])


def _value(text: str, flag: str, following: str) -> str | None:
    if text == flag:
        return following
    if flag.startswith("--"):
        name, equals, value = text.partition("=")
        return value if equals and _is_flag(name, flag) else None
    if text.startswith("--") or not text.startswith("-"):
        return None
    if len(flag) == 2 and flag[1] in text[1:]:
        return text[1:].partition(flag[1])[2] or following
    return None


def _takes_next(text: str, flag: str) -> bool:
    if flag.startswith("--"):
        return text == flag
    if text == flag:
        return True
    return len(flag) == 2 and not text.startswith("--") and text.endswith(flag[1])


Rule = Callable[[Invocation], str | None]
"""Return why an invocation is destructive; None if it is not."""
NOT_YET_KNOWN: Final = "what it does is known only at run time"
Branch = str | Rule | Mapping[str, "Branch"]


def always(why: str) -> Rule:
    """Return a rule: destructive, except for `--help` and `--version`."""
    return lambda call: None if call.texts in (["--help"], ["--version"]) else why


def flag(*flags: str, why: str) -> Rule:
    """Return a rule: destructive with one of these options."""
    return lambda call: why if call.has(*flags) or any(f in call.texts for f in flags) else None


def first_word(*starts: str, why: str, otherwise: Rule | None = None) -> Rule:
    """Return a rule: destructive if the first argument begins with one of these."""

    def rule(call: Invocation) -> str | None:
        name = plain(call.texts[0]).lower() if call.words else ""
        if name.startswith(tuple(start.lower() for start in starts)):
            return why
        return otherwise(call) if otherwise else None

    return rule


def verbs(*names: str, why: str, depth: int = 1, otherwise: Rule | None = None) -> Rule:
    """Return a rule: destructive if one of these is among the first operands."""

    def rule(call: Invocation) -> str | None:
        operands = call.operands()[: depth + 1]
        alone = _standalone_words(call)[: depth + 1]
        if any(operand in names for operand in (*operands, *alone)):
            return why
        if operands and not is_known(operands[0]):
            return NOT_YET_KNOWN
        return otherwise(call) if otherwise else None

    return rule


def _standalone_words(call: Invocation) -> list[str]:
    """Return the arguments that follow no option, so that they cannot be its value."""
    pairs = pairwise(["", *call.texts])
    return [text for before, text in pairs if not before.startswith("-") and text[:1] != "-"]


def subcommands(branches: Mapping[str, Branch], *valued: str) -> Rule:
    """Return a rule per subcommand; `valued` are the options before it that take a value."""

    def rule(call: Invocation) -> str | None:
        at = command_at(call, *valued)
        if at is None:
            return None
        name = call.texts[at]
        if at and name not in branches and call.texts[at - 1].startswith("-"):
            # this word may be the value of an option that the table does not know
            later = next(
                (n for n in range(at + 1, len(call.texts)) if call.texts[n] in branches), at
            )
            name, at = call.texts[later], later
        if not is_known(name):
            return NOT_YET_KNOWN
        branch = branches.get(name)
        if branch is None or isinstance(branch, str):
            return branch
        chosen = subcommands(branch) if isinstance(branch, Mapping) else branch
        return chosen(call.after(at + 1))

    return rule


def command_at(call: Invocation, *valued: str) -> int | None:
    """Return the position of the subcommand; None if there is none."""
    texts, at = call.texts, 0
    while at < len(texts):
        if not texts[at].startswith("-"):
            return at
        at += 2 if texts[at] in valued else 1
    return None


def any_of(*rules: Rule) -> Rule:
    """Return a rule: destructive if one of these rules applies."""
    return lambda call: next((why for rule in rules if (why := rule(call))), None)


def split_names(names: str) -> frozenset[str]:
    """Return the names in a text as a set."""
    return frozenset(names.split())


def for_programs(rule: Rule, names: str) -> dict[str, Rule]:
    """Return a table with one rule for several programs."""
    return dict.fromkeys(names.split(), rule)
