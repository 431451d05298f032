"""Shell commands among the arguments of a tool call, whatever the tool calls them; pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
COMMANDS: Final = frozenset(
    {"argv", "bash", "cmd", "cmdline", "command", "commands", "commandline", "exec", "execute"}
    | {"program", "run", "script", "scripts", "sh", "shell", "zsh"}
)
"""Words in the name of an argument that holds a command."""
REST: Final = frozenset(("args", "argument", "arguments", "params", "parameters"))
"""And of one that holds the rest of its words."""


def commands_among(arguments: Mapping[str, Any]) -> list[str]:
    """What could be run of the arguments, however deep it stands: whole, or word by word."""
    return list(dict.fromkeys(_among(arguments, is_command=False)))


def _among(arguments: Mapping[str, Any], *, is_command: bool) -> Iterator[str]:
    """`is_command`: what stands in here is one, because of the name that it stands under."""
    words: list[str] = []
    for name, value in arguments.items():
        about = {word.lower() for word in _WORDS.findall(name)}
        if is_command or not about.isdisjoint(COMMANDS):
            yield from _inside(value, is_command=True)
            words += _texts(value)
        elif not about.isdisjoint(REST):
            yield from _inside(value, is_command=False)
            words += _texts(value)
        else:
            yield from _inside(value, is_command=False)
    if len(words) > 1:
        yield shlex.join(words)
        yield " ".join(words)


def _inside(value: Any, *, is_command: bool) -> Iterator[str]:
    match value:
        case str():
            if is_command:
                yield value
        case Mapping():
            yield from _among(value, is_command=is_command)
        case Sequence():
            texts = _texts(value)
            if texts and is_command:
                yield shlex.join(texts)
                yield from (text for text in texts if any(map(str.isspace, text)))
            for inner in value:
                if not isinstance(inner, str):
                    yield from _inside(inner, is_command=is_command)
        case _:
            pass


def _texts(value: Any) -> list[str]:
    """The words that an argument holds."""
    if isinstance(value, str):
        return [value]
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
