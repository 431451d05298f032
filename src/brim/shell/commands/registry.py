"""How a meta command is entered, found and run."""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class Command:
    """Something that can be done by its name; it gives what is to be shown."""

    name: str
    usage: str
    help: str
    run: Function
    arguments: Arguments
    aliases: tuple[str, ...] = ()

    @property
    def head(self) -> str:
        return f":{self.name} {self.usage}".rstrip()

    @property
    def summary(self) -> str:
        return self.help.split("\n", 1)[0]


COMMANDS: Final[dict[str, Command]] = {}


def command(
    usage: str = "",
    *,
    name: str | None = None,
    aliases: tuple[str, ...] = (),
    arguments: Arguments | tuple[str, ...] = (),
) -> Callable[[Function], Function]:
    """Enter a function under its name; `arguments` are what may follow it."""

    def enter(function: Function) -> Function:
        offered = arguments if callable(arguments) else lambda _shell: arguments
        called = name or function.__name__
        text = _dedented(function.__doc__ or "")
        COMMANDS[called] = Command(called, usage, text, function, offered, aliases)
        return function

    return enter


def names() -> Mapping[str, Command]:
    """Every name that a command goes by."""
    return {
        name: command for command in COMMANDS.values() for name in (command.name, *command.aliases)
    }


def find(name: str) -> Command:
    known = names()
    if name in known:
        return known[name]
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean :{near[0]}?" if near else ":help lists what there is"
    raise InputError(f"there is no command :{name}; {hint}")


def run(shell: Shell, text: str) -> RenderableType | None:
    """Do what a line after the colon says, and give what is to be shown."""
    name, _, words = text.strip().partition(" ")
    return find(name.lower()).run(shell, words.strip())


def completions(shell: Shell) -> dict[str, Callable[[str], Iterable[str]]]:
    """What may follow each command, for what was typed so far."""

    def offered(command: Command) -> Callable[[str], Iterable[str]]:
        return lambda _typed: command.arguments(shell)

    return {name: offered(command) for name, command in names().items()}


def _dedented(text: str) -> str:
    lines = text.strip().split("\n")
    return "\n".join([lines[0], *(line.removeprefix("    ") for line in lines[1:])])


def number(words: str, what: str) -> int:
    """A whole number that was typed."""
    try:
        return int(words)
    except ValueError:
        raise InputError(f"{what} is a number, not {words or 'nothing'!r}") from None


def choice(words: str, *choices: str) -> str:
    """One of some words that was typed."""
    if words not in choices:
        raise InputError(f"say one of {', '.join(choices)}, not {words!r}")
    return words
