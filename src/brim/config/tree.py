"""The keys as a tree, made from the classes that hold their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Final, Literal, TypeAlias, get_args, get_origin, get_type_hints

from brim.config.kinds import PLAIN, one_of

NAMES: Final = {"models": "fast", "mcp": "files", "upstreams": "openai"}
"""What an example calls an entry that its owner names."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A single value, and who reads it."""

    read: Callable[[object], object]
    is_text: bool


@dataclass(frozen=True, slots=True)
class Group:
    """A table of known keys, and the class that it becomes."""

    made: type[Any]
    keys: Mapping[str, Node]


@dataclass(frozen=True, slots=True)
class Named:
    """A table whose keys its owner chooses."""

    inner: Group | Leaf


@dataclass(frozen=True, slots=True)
class Rows:
    """A list of tables."""

    inner: Group


Node: TypeAlias = Leaf | Group | Named | Rows


@cache
def group_of(made: type[Any]) -> Group:
    """The keys of a class, with all below them."""
    hints = get_type_hints(made, include_extras=True)
    return Group(made, {key_of(each.name): _node(hints[each.name]) for each in fields(made)})


def _node(hint: Any) -> Node:
    parts = get_args(hint)
    if hasattr(hint, "__metadata__"):
        return Leaf(hint.__metadata__[0], hint.__origin__ is str)
    if get_origin(hint) is Literal:
        return Leaf(one_of(*parts), is_text=True)
    if get_origin(hint) is Mapping:
        inner = _node(parts[1])
        assert isinstance(inner, Group | Leaf)
        return Named(inner)
    if get_origin(hint) is tuple:
        return Rows(group_of(parts[0]))
    if parts:  # or None
        return _node(parts[0])
    return Leaf(PLAIN[hint], hint is str) if hint in PLAIN else group_of(hint)


def key_of(name: str) -> str:
    """A field that is called as a word of Python ends in an underscore; its key does not."""
    return name.rstrip("_")
