"""How a meta command is entered, found and run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from brim.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from brim.shell.state import Shell

    Function = Callable[[Shell, str], RenderableType | None]
    Arguments = Callable[[Shell], Iterable[str]]


_CHOICES: Final = re.compile(r"\[([a-z|]+)\]")
HINTS: Final = {"!!": "there is no !! here; the up key brings back the last command"}
"""What is said about names that other shells have."""


@dataclass(frozen=True, slots=True)
class MetaCommand:
    """Something that can be done by its name; it gives what is to be shown."""

    name: str
    usage: str
    """The words that it takes: in brackets where it can do without; a lower-case one is meant as it
    stands, and where all are, no others are taken."""
    help: str
    run: Function
    arguments: Arguments
    aliases: tuple[str, ...] = ()
    asks_for: str = ""
    """What to say where its words are missing: `say which file, as in :export talk.md`."""

    @property
    def head(self) -> str:
        return f":{self.name} {self.usage}".rstrip()

    @property
    def summary(self) -> str:
        return self.help.split("\n", 1)[0]

    def check(self, words: str) -> None:
        """Raise `InputError` for words that it does not take, and where it lacks some."""
        if not words:
            if self.asks_for:
                raise InputError(self.asks_for)
        elif not self.usage:
            raise InputError(f":{self.name} takes no words, so say it without {words!r}")
        elif fixed := _CHOICES.fullmatch(self.usage):
            choice(words, *fixed[1].split("|"))


COMMANDS: Final[dict[str, MetaCommand]] = {}


def command(
    usage: str = "",
    *,
    name: str | None = None,
    aliases: tuple[str, ...] = (),
    arguments: Arguments | tuple[str, ...] = (),
    asks_for: str = "",
) -> Callable[[Function], Function]:
    """Enter a function under its name; `arguments` are what Tab offers behind it."""

    def enter(function: Function) -> Function:
        offered = arguments if callable(arguments) else lambda _shell: arguments
        called = name or function.__name__
        text = _dedent(function.__doc__ or "")
        COMMANDS[called] = MetaCommand(called, usage, text, function, offered, aliases, asks_for)
        return function

    return enter


def names() -> Mapping[str, MetaCommand]:
    """Every name that a command goes by."""
    return {
        name: command for command in COMMANDS.values() for name in (command.name, *command.aliases)
    }


def find(name: str) -> MetaCommand:
    known = names()
    if name in known:
        return known[name]
    if name in HINTS:
        raise InputError(HINTS[name])
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean :{near[0]}?" if near else ":help lists what there is"
    raise InputError(f"there is no command :{name}; {hint}")


def run(shell: Shell, text: str) -> RenderableType | None:
    """Do what a line after the colon says, and give what is to be shown."""
    name, *rest = text.split(maxsplit=1) or [""]
    words = "".join(rest).strip()
    found = find(name.lower())
    found.check(words)
    return found.run(shell, words)


def completions(shell: Shell) -> dict[str, Callable[[str], Iterable[str]]]:
    """What may follow each command, for what was typed so far."""

    def offered(command: MetaCommand) -> Callable[[str], Iterable[str]]:
        return lambda _typed: command.arguments(shell)

    return {name: offered(command) for name, command in names().items()}


def _dedent(text: str) -> str:
    lines = text.strip().split("\n")
    return "\n".join([lines[0], *(line.removeprefix("    ") for line in lines[1:])])


def number(words: str, what: str, *, example: str, least: int = 0) -> int:
    """A whole number that was typed; `what` it is the number of goes into what is said of it."""
    if not words:
        raise InputError(f"say which {what}, as in {example}")
    try:
        found = int(words)
    except ValueError:
        raise InputError(f"the {what} is a number, not {words!r}, as in {example}") from None
    if found < least:
        raise InputError(f"the {what} is {least} or more, not {found}")
    return found


def choice(words: str, *choices: str) -> str:
    """One of some words that was typed."""
    if words not in choices:
        *others, last = choices
        known = f"one of {', '.join(choices)}" if others else last
        raise InputError(f"say {known}, not {words!r}")
    return words
