"""A program and what it is given: the view of a command that the rules look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from brim.shell.risk.ground import Ground
from brim.shell.risk.marks import MAYBE, UNKNOWN, plain
from brim.shell.risk.words import Word


@dataclass(frozen=True, slots=True)
class Call:
    """One program with its arguments, where it stands, and what is piped into it."""

    name: str
    words: tuple[Word, ...]
    ground: Ground
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

    def after(self, count: int) -> Call:
        """The same program without its first words."""
        return Call(self.name, self.words[count:], self.ground, self.stdin, self.lost)


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
