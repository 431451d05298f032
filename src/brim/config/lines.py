"""On which line a key stands; the parser of the standard library does not tell."""

from __future__ import annotations

import re

from brim.config.spelling import Key, parse_key

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
    """The line of every table and key of a TOML text that has been parsed before.

    What stands inside of a value is not looked into: its line is that of the value's key.
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
    """Where the next table or key begins, behind blanks and comments."""
    found = _BLANK.match(text, position)
    return found.end() if found else position


def _resolve_table(name: Key, rows: dict[Key, int], *, is_row: bool) -> Key:
    """The key of a table; below a list of tables it belongs to the last of them."""
    key: Key = ()
    for depth, part in enumerate(name, 1):
        key = (*key, part)
        if is_row and depth == len(name):
            rows[key] = rows.get(key, -1) + 1
        if key in rows:
            key = (*key, rows[key])
    return key


def _find_statement_end(text: str, position: int) -> int:
    """Where a statement ends, behind brackets and strings that span lines."""
    depth = 0
    while found := _TOKEN.match(text, position):
        token, position = found.group(), found.end()
        if token == "\n" and depth <= 0:
            break
        depth += (token in ("[", "{")) - (token in ("]", "}"))
    return position
