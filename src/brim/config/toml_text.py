"""Keys, values and paths as TOML text, and the lines of keys."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

Key: TypeAlias = tuple[str | int, ...]


def format_value(value: Any) -> str:
    """Return a value as TOML."""
    match value:
        case None:
            return "not set"
        case bool():
            return str(value).lower()
        case str():
            return json.dumps(value, ensure_ascii=False)
        case Mapping():
            inner = ", ".join(
                f"{format_key((name,))} = {format_value(part)}" for name, part in value.items()
            )
            return f"{{ {inner} }}" if inner else "{}"
        case list() | tuple():
            return f"[{', '.join(map(format_value, value))}]"
        case _:
            return str(value)


def abbreviate(value: object) -> str:
    """Return a value for an error message, at most 80 characters long."""
    text = format_value(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def format_key(key: Key) -> str:
    """Return a dotted key, with list indices in brackets."""
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            bare = re.fullmatch(r"[A-Za-z0-9_-]+", part)
            text += f".{part if bare else json.dumps(part, ensure_ascii=False)}"
    return text.removeprefix(".")


_PART = re.compile(r"""[ \t]*("(?:\\.|[^"\\])*"|'[^']*'|[A-Za-z0-9_-]+)[ \t]*(\.?)""")


def parse_key(text: str, position: int) -> tuple[Key, int]:
    """Return the parts of the dotted key at a position, and the position after it."""
    parts: list[str] = []
    while found := _PART.match(text, position):
        part, dot = found.groups()
        parts.append(tomllib.loads(f"key = {part}")["key"] if part[0] in "\"'" else part)
        position = found.end()
        if not dot:
            break
    return tuple(parts), position


def escape_unprintable(data: bytes) -> str:
    """Return a file's text with all unprintable characters escaped, so that nothing is hidden."""
    text = data.decode("utf-8-sig").replace("\r\n", "\n")
    return "".join(
        char if char.isprintable() or char in "\n\t" else f"\\u{ord(char):04x}" for char in text
    )


def home_as_tilde(path: Path) -> str:
    """Return a path with the home folder as `~`."""
    with suppress(ValueError, RuntimeError):
        inside = path.relative_to(Path.home()).as_posix()
        return "~" if inside == "." else f"~/{inside}"
    return str(path)


# Line numbers, which the parser of the standard library does not report

_BLANK = re.compile(r"(?:\s|#[^\n]*)*")
_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:\\.|[^"\\])*"'
    r"|'[^']*'"
    r"|\#[^\n]*"
    r"|[\[\]{}\n]"
    r"""|[^"'\#\[\]{}\n]+""",
    re.DOTALL,
)


def key_lines(text: str) -> dict[Key, int]:
    """Return the line of every table and key of a valid TOML text.

    The keys of an inline table have no line of their own.
    """
    lines: dict[Key, int] = {}
    rows: dict[Key, int] = {}
    table: Key = ()
    position = _skip_blanks(text, 0)
    while position < len(text):
        line = text.count("\n", 0, position) + 1
        brackets = 0
        while text[position] == "[":
            brackets, position = brackets + 1, position + 1
        name, position = parse_key(text, position)
        if brackets:
            table = _resolve_table(name, rows, is_row=brackets == 2)
            lines[table] = line
        key = table if brackets else (*table, *name)
        for size in range(1, len(key) + 1):
            lines.setdefault(key[:size], line)
        position = _skip_blanks(text, _find_statement_end(text, position))
    return lines


def _skip_blanks(text: str, position: int) -> int:
    """Return the position of the next table or key, after blanks and comments."""
    found = _BLANK.match(text, position)
    return found.end() if found else position


def _resolve_table(name: Key, rows: dict[Key, int], *, is_row: bool) -> Key:
    """Return the key of a table; inside a list of tables, it belongs to the last of them."""
    key: Key = ()
    for depth, part in enumerate(name, 1):
        key = (*key, part)
        if is_row and depth == len(name):
            rows[key] = rows.get(key, -1) + 1
        if key in rows:
            key = (*key, rows[key])
    return key


def _find_statement_end(text: str, position: int) -> int:
    """Return the end of a statement, which may span lines in brackets and strings."""
    depth = 0
    while found := _TOKEN.match(text, position):
        token, position = found.group(), found.end()
        if token == "\n" and depth <= 0:
            break
        depth += (token in ("[", "{")) - (token in ("]", "}"))
    return position
