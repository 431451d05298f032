"""What `:help` shows: keys and commands, each with a clause, on one screen where it is wide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

WIDE: Final = 90
"""From so many columns on, two lists stand side by side."""
GAP: Final = 2
KEYS: Final = {
    "!ls": "a command, whatever it looks like",
    "?who": "language, whatever it looks like",
    "shift-tab": "the other one of the two",
    "tab": "complete",
    "alt-enter": "another line",
    "ctrl-r": "search in what was typed before",
    "ctrl-x ctrl-e": "type in your editor",
    "ctrl-c": "stop the answer, give up the line",
    "ctrl-d": "leave",
}
GROUPS: Final[Mapping[str, Mapping[str, str]]] = {
    "looking": {
        "context": "what fills the window",
        "request": "what would be sent now",
        "history": "the turns, and what of them is sent",
        "cost": "what it has cost",
        "usage": "how full the last requests were",
        "tokens": "count a text",
    },
    "talking": {
        "goal": "let the model work by itself",
        "retry": "ask again",
        "edit": "change your last words",
        "undo": "take back the last exchange",
        "compact": "sum up the older half",
        "pin": "never leave out a turn",
        "recall": "bring back a turn",
        "output": "what goes along with your next words",
        "rolling": "whether anything is left out",
        "reset": "begin a new conversation",
    },
    "keeping": {
        "memory": "facts for every conversation",
        "tree": "the project's files for the model",
        "mcp": "tools of MCP servers",
        "save": "give the conversation a title",
        "sessions": "list the conversations",
        "resume": "go on with another one",
        "export": "write this one to a file",
    },
    "models": {
        "model": "go on with another model",
        "models": "which ones there are",
        "route": "which words go to which model",
    },
    "brim": {
        "help": "this, or all about one command",
        "config": "what is set, and where",
        "doctor": "what is wrong with the set-up",
        "quit": "leave",
    },
}
"""What commands are about, and each in a clause; their docstrings say more."""
END: Final = ":help NAME says more of one; /name works as well as :name"


@dataclass(frozen=True, slots=True)
class Overview:
    """All that can be done, in one list or in two side by side."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        del console  # how wide it is stands in the options
        columns = 2 if options.max_width >= WIDE else 1
        width = options.max_width // columns - GAP
        keys = [_row(name, about, 15, "") for name, about in KEYS.items()]
        yield from _beside(keys, -(-len(keys) // columns), width)
        yield Text()
        lists = [_group(name) for name in GROUPS]
        left = len(lists[0]) + len(lists[1])
        rows = [row for group in lists for row in group]
        yield from _beside(rows, left if columns > 1 else len(rows), width)
        yield Text(END, "dim")


def _group(name: str) -> list[Text]:
    rows = [_row(f":{one}", about, 11, "bold") for one, about in GROUPS[name].items()]
    return [Text(name, "dim underline"), *rows, Text()]


def _row(name: str, about: str, width: int, style: str) -> Text:
    return Text.assemble((name.ljust(width), style), (about, "" if style else "dim"))


def _beside(rows: list[Text], height: int, width: int) -> Iterator[Text]:
    """The rows in lists of this height, the next one to the right of the one before."""
    for place in range(height):
        line = Text(no_wrap=True, overflow="ellipsis")
        for column, row in enumerate(rows[place::height]):
            line.pad_right(column * (width + GAP) - len(line))
            line.append_text(row)
        line.rstrip()
        yield line
