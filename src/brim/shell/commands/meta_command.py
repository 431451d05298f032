"""Registry of meta commands: how a command is registered, found, checked and run; the overview."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from brim.data import load_table
from brim.errors import InputError
from brim.shell.state import Shell

Function = Callable[[Shell, str], RenderableType | None]
Arguments = Callable[[Shell], Iterable[str]]
_CHOICES: Final = re.compile(r"\[([a-z|]+)\]")
HINTS: Final = {
    "!!": "History expansion (!!) is not supported. Press the up key for the last line."
}
"""Errors for names that other shells have."""


@dataclass(frozen=True, slots=True)
class MetaCommand:
    """A meta command; running it returns what to show."""

    name: str
    usage: str
    """The argument, in brackets if optional. Lower-case alternatives are literal; if there are only
    such, no other argument is accepted."""
    help: str
    run: Function
    arguments: Arguments
    aliases: tuple[str, ...] = ()
    missing: str = ""
    """Error if a required argument is missing."""

    @property
    def signature(self) -> str:
        return f":{self.name} {self.usage}".rstrip()

    @property
    def summary(self) -> str:
        return self.help.split("\n", 1)[0]

    @property
    def choices(self) -> tuple[str, ...]:
        """The only arguments that are accepted; empty if there are others."""
        fixed = _CHOICES.fullmatch(self.usage)
        return tuple(fixed[1].split("|")) if fixed else ()

    def check(self, argument: str) -> None:
        """Raise InputError if the argument is missing or not accepted."""
        if not argument:
            if self.missing:
                raise InputError(self.missing)
        elif not self.usage:
            raise InputError(f":{self.name} takes no argument: {argument!r}. Leave it out.")
        elif self.choices and argument not in self.choices:
            raise InputError(f"Unknown argument: {argument!r}. Use {' or '.join(self.choices)}.")


COMMANDS: Final[dict[str, MetaCommand]] = {}


def command(
    usage: str = "",
    *,
    name: str | None = None,
    aliases: tuple[str, ...] = (),
    arguments: Arguments | tuple[str, ...] = (),
    missing: str = "",
) -> Callable[[Function], Function]:
    """Register a function as a meta command; `arguments` are what Tab completes after it."""
    offered = arguments if callable(arguments) else lambda _shell: arguments

    def register(function: Function) -> Function:
        key = name or function.__name__
        text = inspect.cleandoc(function.__doc__ or "")
        COMMANDS[key] = MetaCommand(key, usage, text, function, offered, aliases, missing)
        return function

    return register


def names() -> Mapping[str, MetaCommand]:
    """Return the commands by every name and alias."""
    return {
        name: command for command in COMMANDS.values() for name in (command.name, *command.aliases)
    }


def find(name: str) -> MetaCommand:
    """Return a command by its name or alias; raise InputError if there is none."""
    known = names()
    if name in known:
        return known[name]
    if name in HINTS:
        raise InputError(HINTS[name])
    near = get_close_matches(name, known, n=1)
    hint = f"Did you mean :{near[0]}?" if near else "See :help for a list."
    raise InputError(f"Unknown command: :{name}. {hint}")


def run(shell: Shell, text: str) -> RenderableType | None:
    """Run the command in a line without its colon, and return what to show."""
    name, *rest = text.split(maxsplit=1) or [""]
    argument = "".join(rest).strip()
    found = find(name.lower())
    found.check(argument)
    return found.run(shell, argument)


def completions(shell: Shell) -> dict[str, Callable[[str], Iterable[str]]]:
    """Return a function for each command that lists its possible arguments."""

    def offered(command: MetaCommand) -> Callable[[str], Iterable[str]]:
        return lambda _typed: command.choices or command.arguments(shell)

    return {name: offered(command) for name, command in names().items()}


def parse_number(argument: str, what: str, *, example: str, least: int = 0) -> int:
    """Parse a whole number; `what` and `example` are used in the error message."""
    if not argument:
        raise InputError(f"The {what} is missing. Example: {example}")
    try:
        number = int(argument)
    except ValueError:
        raise InputError(f"The {what} must be a number: {argument!r}. Example: {example}") from None
    if number < least:
        raise InputError(f"The {what} must be at least {least}: {number}.")
    return number


WIDE: Final = 90
"""Screen width from which two lists are shown side by side."""
GAP: Final = 2
KEYS: Final[Mapping[str, str]] = load_table("help")["keys"]
GROUPS: Final[Mapping[str, Mapping[str, str]]] = load_table("help")["commands"]
TOUR: Final[str] = load_table("help")["tour"].strip()
END: Final = ":help NAME shows the details; /name works as well as :name"


@dataclass(frozen=True, slots=True)
class Overview:
    """All keys and commands, in one list or in two side by side."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        del console  # the options have its width
        columns = 2 if options.max_width >= WIDE else 1
        width = options.max_width // columns - GAP
        keys = [_row(name, about, 15, "") for name, about in KEYS.items()]
        yield from _arrange(keys, -(-len(keys) // columns), width)
        yield Text()
        rows: list[Text] = []
        for name, group in GROUPS.items():
            rows += [Text(name, "dim underline")]
            rows += [_row(f":{one}", about, 11, "bold") for one, about in group.items()]
            rows += [Text()]
        left = sum(len(group) + 2 for group in [*GROUPS.values()][:2])
        yield from _arrange(rows, left if columns > 1 else len(rows), width)
        yield Text(END, "dim")


def _row(name: str, about: str, width: int, style: str) -> Text:
    return Text.assemble((name.ljust(width), style), (about, "" if style else "dim"))


def _arrange(rows: list[Text], height: int, width: int) -> Iterator[Text]:
    """Arrange the rows in columns of this height, from left to right."""
    for place in range(height):
        line = Text(no_wrap=True, overflow="ellipsis")
        for column, row in enumerate(rows[place::height]):
            line.pad_right(column * (width + GAP) - len(line))
            line.append_text(row)
        line.rstrip()
        yield line
