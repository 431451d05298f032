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
    """One program with its arguments, where it stands, and what is piped into it."""

    name: str
    words: tuple[Word, ...]
    files: FileView
    stdin: str | None = None
    """What is piped in, as far as it is known; None if it is the terminal."""
    lost: str = ""

    @property
    def texts(self) -> list[str]:
        return [word.text for word in self.words]

    def options(self) -> Iterator[str]:
        """Everything before `--` that begins with a dash."""
        for whole in self.texts:
            text = whole.replace(MAYBE, "")
            if text == "--":
                return
            if text.startswith("-") and len(text) > 1:
                yield plain(text)

    def has(self, *flags: str) -> bool:
        """Whether one of the options is given: `-f` also inside `-rf`, `--force` also cut short."""
        return any(_is_flag(option, flag) for option in self.options() for flag in flags)

    def is_guarded(self, letters: str, *names: str, others: str = "") -> bool:
        """Whether an option is given that makes the call safe; others may share its dash.

        Stricter than `has`: the letter must not be part of another option's value.
        """
        clusters = [option[1:] for option in self.options() if not option.startswith("--")]
        return any(
            set(c) <= set(letters + others) and set(c) & set(letters) for c in clusters
        ) or any(option.partition("=")[0] in names for option in self.options())

    def value(self, *flags: str) -> str | None:
        """What the last of these options is set to: `-o x`, `-ox`, `--out x`, `--out=x`."""
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
        """What is no option, and no value of those options that take one as a word of its own."""
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
        """The same program without its first words."""
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
"""Why a call is destructive; None if it is not."""
NOT_YET_KNOWN: Final = "what it is asked to do is only known at run time"
Branch = str | Rule | Mapping[str, "Branch"]


def always(why: str) -> Rule:
    """A program that destroys whatever it is given; asked for its help, it does not."""
    return lambda call: None if call.texts in (["--help"], ["--version"]) else why


def flag(*flags: str, why: str) -> Rule:
    """Destructive with one of these options."""
    return lambda call: why if call.has(*flags) or any(f in call.texts for f in flags) else None


def first_word(*starts: str, why: str, otherwise: Rule | None = None) -> Rule:
    """Destructive if the first word begins so."""

    def rule(call: Invocation) -> str | None:
        name = plain(call.texts[0]).lower() if call.words else ""
        if name.startswith(tuple(start.lower() for start in starts)):
            return why
        return otherwise(call) if otherwise else None

    return rule


def verbs(*names: str, why: str, depth: int = 1, otherwise: Rule | None = None) -> Rule:
    """Destructive if one of these is among the first words that are no options."""

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
    """The words that follow no option, and so cannot be the value of one."""
    pairs = pairwise(["", *call.texts])
    return [text for before, text in pairs if not before.startswith("-") and text[:1] != "-"]


def subcommands(branches: Mapping[str, Branch], *valued: str) -> Rule:
    """A program with subcommands; `valued` are the options before them that take a word."""

    def rule(call: Invocation) -> str | None:
        at = command_at(call, *valued)
        if at is None:
            return None
        name = call.texts[at]
        if at and name not in branches and call.texts[at - 1].startswith("-"):
            # an option that is not known here may have taken this word for its value
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
    """Where the subcommand stands."""
    texts, at = call.texts, 0
    while at < len(texts):
        if not texts[at].startswith("-"):
            return at
        at += 2 if texts[at] in valued else 1
    return None


def any_of(*rules: Rule) -> Rule:
    """Destructive if one of these says so."""
    return lambda call: next((why for rule in rules if (why := rule(call))), None)


def split_names(names: str) -> frozenset[str]:
    """Names that are written as one text."""
    return frozenset(names.split())


def for_programs(rule: Rule, names: str) -> dict[str, Rule]:
    """One rule for several programs."""
    return dict.fromkeys(names.split(), rule)
