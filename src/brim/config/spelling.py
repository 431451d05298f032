"""How keys, values and paths are written."""

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
    """A value as it is written in a file."""
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
    """A value as an error repeats it."""
    text = format_value(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def format_key(key: Key) -> str:
    """A key as it is written, with its place in a list in brackets."""
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
    """A key, with its levels, and where it ends."""
    parts: list[str] = []
    while found := _PART.match(text, position):
        part, dot = found.groups()
        parts.append(tomllib.loads(f"key = {part}")["key"] if part[0] in "\"'" else part)
        position = found.end()
        if not dot:
            break
    return tuple(parts), position


def escape_unprintable(data: bytes) -> str:
    """A file's text in which nothing can hide: signs that are not seen are spelled out."""
    text = data.decode("utf-8-sig").replace("\r\n", "\n")
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" else f"\\u{ord(sign):04x}" for sign in text
    )


def home_as_tilde(path: Path) -> str:
    """A path as its owner would write it."""
    with suppress(ValueError, RuntimeError):
        inside = path.relative_to(Path.home()).as_posix()
        return "~" if inside == "." else f"~/{inside}"
    return str(path)
