"""Find shell commands among the arguments of a tool call."""

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
"""Names of arguments that hold the rest of a command."""


def find_commands(arguments: Mapping[str, Any]) -> list[str]:
    """Return every text in the arguments that could be run, at any depth."""
    return list(dict.fromkeys(_find_in_mapping(arguments, is_command=False)))


def _find_in_mapping(arguments: Mapping[str, Any], *, is_command: bool) -> Iterator[str]:
    """`is_command` says that the enclosing name marks everything inside as a command."""
    words: list[str] = []
    for name, value in arguments.items():
        about = {word.lower() for word in _WORDS.findall(name)}
        if is_command or not about.isdisjoint(COMMANDS):
            yield from _find_in_value(value, is_command=True)
            words += _texts(value)
        elif not about.isdisjoint(REST):
            yield from _find_in_value(value, is_command=False)
            words += _texts(value)
        else:
            yield from _find_in_value(value, is_command=False)
    if len(words) > 1:
        yield shlex.join(words)
        yield " ".join(words)


def _find_in_value(value: Any, *, is_command: bool) -> Iterator[str]:
    match value:
        case str():
            if is_command:
                yield value
        case Mapping():
            yield from _find_in_mapping(value, is_command=is_command)
        case Sequence():
            texts = _texts(value)
            if texts and is_command:
                yield shlex.join(texts)
                yield from (text for text in texts if any(map(str.isspace, text)))
            for inner in value:
                if not isinstance(inner, str):
                    yield from _find_in_value(inner, is_command=is_command)
        case _:
            pass


def _texts(value: Any) -> list[str]:
    """Return the texts in an argument."""
    if isinstance(value, str):
        return [value]
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
