"""The example file with every key, and values without their secrets."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from decimal import Decimal
from importlib import resources
from typing import Any, Final

from brim.config.schema import Config, Group, Named, group_of, key_of
from brim.config.toml_text import format_value, parse_key

HEAD: Final = """\
## All settings of brim. Remove the `# ` in front of a key to set it.
## The values are the defaults, or examples for keys that are "not set".
"""
ALTERNATIVES: Final = frozenset({("mcp", "url")})
"""Keys that contradict another key if both are set."""
SECRET: Final = frozenset({"headers", "env"})
"""Tables whose values are never shown."""
_PASSWORD: Final = re.compile(r"(?<=://)\S*@")
"""User and password in a URL; a password may contain any character, even @."""


def write_example() -> str:
    """Return a file with every key, its default and its explanation, in which nothing is set.

    Keys without a default show the value of `data/config_example.toml`.
    """
    text = resources.files("brim").joinpath("data/config_example.toml").read_text("utf-8")
    examples = tomllib.loads(text)
    lines = [HEAD]
    for section, node in group_of(Config).keys.items():
        values, head = examples.get(section, {}), f"[{section}]"
        if isinstance(node, Named):
            ((name, values),) = values.items()
            node, head = node.inner, f"# [{section}.{name}]"
        assert isinstance(node, Group)
        lines += [f"## {inspect.getdoc(node.made)}", head]
        lines += [*_example_lines(section, node.made, values), ""]
    return "\n".join(lines)


def _example_lines(section: str, made: type[Any], values: Mapping[str, Any]) -> Iterator[str]:
    explained = read_explanations(made)
    for each in fields(made):
        name = key_of(each.name)
        unset = " (not set)" if name in values else ""
        words = f"{explained.get(each.name, '')}{unset}".strip()
        yield from (f"## {part.strip()}" for part in words.splitlines())
        mark = "##" if (section, name) in ALTERNATIVES else "#"
        yield f"{mark} {name} = {format_value(values.get(name, each.default))}"


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
