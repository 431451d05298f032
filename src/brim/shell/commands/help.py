"""The overview of `:help`: keys and commands on one screen, in two columns if it is wide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

WIDE: Final = 90
"""Screen width from which two lists are shown side by side."""
GAP: Final = 2
KEYS: Final = {
    "!ls": "run as a command",
    "?who": "send to the model",
    "shift-tab": "switch between the two",
    "tab": "complete",
    "alt-enter": "new line",
    "ctrl-r": "search the history",
    "ctrl-x ctrl-e": "open your editor",
    "ctrl-c": "stop the reply, discard the line",
    "ctrl-d": "leave",
}
GROUPS: Final[Mapping[str, Mapping[str, str]]] = {
    "inspect": {
        "context": "what fills the window",
        "request": "the next request",
        "history": "the turns, and which are sent",
        "cost": "the cost so far",
        "usage": "how full the last requests were",
        "tokens": "count the tokens of a text",
    },
    "conversation": {
        "goal": "let the model work on its own",
        "retry": "ask again",
        "edit": "edit your last message",
        "undo": "remove the last exchange",
        "compact": "summarize the older half",
        "pin": "never trim a turn",
        "recall": "send a turn again",
        "output": "sent with your next message",
        "rolling": "switch fitting on or off",
        "reset": "start a new conversation",
    },
    "saved": {
        "memory": "facts for every conversation",
        "tree": "show the project's files to the model",
        "mcp": "tools of MCP servers",
        "save": "give the conversation a title",
        "sessions": "list the conversations",
        "resume": "continue another one",
        "export": "write this one to a file",
    },
    "models": {
        "model": "switch the model",
        "models": "list the models",
        "route": "show the routing rules",
    },
    "brim": {
        "help": "this, or one command",
        "config": "the settings and their sources",
        "doctor": "check the setup",
        "quit": "leave",
    },
}
"""The commands by topic, each with a short description; their docstrings have the details."""
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
        lists = [_group(name) for name in GROUPS]
        left = len(lists[0]) + len(lists[1])
        rows = [row for group in lists for row in group]
        yield from _arrange(rows, left if columns > 1 else len(rows), width)
        yield Text(END, "dim")


def _group(name: str) -> list[Text]:
    rows = [_row(f":{one}", about, 11, "bold") for one, about in GROUPS[name].items()]
    return [Text(name, "dim underline"), *rows, Text()]


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
