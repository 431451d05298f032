"""The example file with every key, and values without their secrets."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from decimal import Decimal
from typing import Any, Final

from brim.config.schema import NAMES, Config, Group, Named, Node, group_of, key_of
from brim.config.toml_text import format_value, parse_key

HEAD: Final = """\
## All settings of brim. Remove the `# ` in front of a key to set it.
## The values are the defaults, or examples for keys that are "not set".
"""
SECRET: Final = frozenset({"headers", "env"})
"""Tables whose values are never shown."""
_PASSWORD: Final = re.compile(r"(?<=://)\S*@")
"""User and password in a URL; a password may contain any character, even @."""


def write_example() -> str:
    """Return a file with every key, its default and its explanation, in which nothing is set."""
    sections = [_section(name, node) for name, node in group_of(Config).keys.items()]
    return "\n".join([HEAD, *sections])


def _section(name: str, node: Node) -> str:
    named = isinstance(node, Named)
    group = node.inner if isinstance(node, Named) else node
    assert isinstance(group, Group)
    head = f"# [{name}.{NAMES[name]}]" if named else f"[{name}]"
    lines = [f"## {inspect.getdoc(group.made)}", head]
    explained = read_explanations(group.made)
    for each in fields(group.made):
        says, line = _example_line(each)
        words = f"{explained.get(each.name, '')}{says}".strip()
        lines += [*(f"## {part.strip()}" for part in words.splitlines()), line]
    return "\n".join(lines) + "\n"


def _example_line(each: Any) -> tuple[str, str]:
    name = key_of(each.name)
    if "example" in each.metadata:
        return " (not set)", f"# {name} = {format_value(each.metadata['example'])}"
    if "instead" in each.metadata:  # contradicts another key if both are set
        return " (not set)", f"## {name} = {format_value(each.metadata['instead'])}"
    return "", f"# {name} = {format_value(each.default)}"


def read_explanations(made: type[Any]) -> dict[str, str]:
    """Return the docstrings of the fields of a class; empty if its source is not installed."""
    try:
        (body,) = ast.parse(inspect.getsource(made)).body
    except (OSError, TypeError):
        return {}
    assert isinstance(body, ast.ClassDef)
    found = {}
    for given, below in zip(body.body, body.body[1:], strict=False):
        match given, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = text
    return found


def redact(key: str, value: object) -> object:
    """Return a value without secrets, as JSON types."""
    if SECRET & set(parse_key(key, 0)[0][2:3]):
        return "***" if not isinstance(value, Mapping) or value else {}
    return _plain(value)


def _plain(value: Any) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        given = {key_of(each.name): getattr(value, each.name) for each in fields(value)}
        return {name: _plain(inner) for name, inner in given.items() if inner is not None}
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, str):
        return _PASSWORD.sub("***@", value)
    return float(value) if isinstance(value, Decimal) else value
