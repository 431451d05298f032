"""Settings from one source (a file, a variable or a flag), checked and by dotted key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from brim.config.schema import Config, Group, Leaf, Named, Node, Rows, group_of, key_of
from brim.config.toml_text import Key, abbreviate, format_key, home_as_tilde, key_lines, parse_key
from brim.errors import ConfigError, InputError

VARIABLE: Final = "BRIM_"
FLAGS: Final[Mapping[str | int, str]] = {"endpoint": "--upstream"}
"""Flags whose names differ from their keys."""
SECRET: Final = frozenset({"headers", "env"})
"""Tables whose values are never shown."""
_PASSWORD: Final = re.compile(r"(?<=://)\S*@")
"""User and password in a URL; a password may contain any character, even @."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and its source: `default`, a file and line, a variable, or a flag."""

    value: Any
    source: str


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


class SettingsSource:
    """The settings of one source, and its problems."""

    def __init__(self, where: Callable[[Key], str]) -> None:
        self.where = where
        self.settings: dict[Key, Setting] = {}
        self.problems: list[str] = []

    def add_problem(self, key: Key, sentence: str) -> None:
        self.problems.append(f"{self.where(key)}: {sentence}")

    def take(self, node: Node, key: Key, value: object) -> None:
        """Check a value and everything below it, and keep the valid settings."""
        if isinstance(node, Leaf):
            try:
                self.settings[key] = Setting(node.read(value), self.where(key))
            except InputError as error:
                self.add_problem(key, f"{format_key(key)} must be {error}")
        elif isinstance(node, Rows):
            self._take_rows(node, key, value)
        elif not isinstance(value, Mapping):
            is_named = len(key) == 2 and isinstance(group_of(Config).keys[str(key[0])], Named)
            shape = f"a table of its own, [{key[0]}.NAME]" if is_named else "a table"
            self.add_problem(key, f"{format_key(key)} must be {shape}, not a single value")
        else:
            for name, inner in value.items():
                below = (*key, name)
                if isinstance(node, Named):
                    self.take(node.inner, below, inner)
                elif name in node.keys:
                    self.take(node.keys[name], below, inner)
                else:
                    self.add_problem(below, describe_unknown_key(below, node.keys))

    def _take_rows(self, node: Rows, key: Key, value: object) -> None:
        if not isinstance(value, list | tuple):
            self.add_problem(
                key, f"{format_key(key)} must be a list of tables, not {abbreviate(value)}"
            )
            return
        made = []
        for index, row in enumerate(value):
            below, source = (*key, index), SettingsSource(self.where)
            source.take(node.inner, below, row)
            self.problems += source.problems
            if not source.problems:
                made.append(build(node.inner, below, source.settings))
                if problem := made[-1].find_problem():
                    self.add_problem(below, f"{format_key(below)} {problem}")
        self.settings[key] = Setting(tuple(made), self.where(key))


def describe_unknown_key(key: Key, known: Mapping[str, object]) -> str:
    """Return an error text with the closest known key, in the same table or elsewhere."""
    name = str(key[-1])
    problem = f"{format_key(key)} is not a known key."
    if near := get_close_matches(name.lower(), known, 1):
        return f"{problem} Did you mean {format_key((*key[:-1], near[0]))}?"
    sections = group_of(Config).keys.items()
    elsewhere: dict[str, Key] = {
        inner: (section, inner)
        for section, node in reversed([*sections])  # the first section with this key counts
        for inner in (node.keys if isinstance(node, Group) else ())
    }
    if near := get_close_matches(name.lower(), elsewhere, 1, cutoff=0.8):
        return f"{problem} Did you mean {format_key(elsewhere[near[0]])}?"
    return f"{problem} Known keys: {', '.join(known)}"


def build(node: Node, key: Key, settings: Mapping[Key, Setting]) -> Any:
    """Return the value at a key: a single one, or the object of everything below it."""
    if key in settings:
        return settings[key].value
    names = _names(key, settings)
    if isinstance(node, Group):
        known = {key_of(each.name): each.name for each in fields(node.made)}
        given = {known[str(name)]: (*key, name) for name in names}
        return node.made(
            **{name: build(node.keys[key_of(name)], at, settings) for name, at in given.items()}
        )
    assert isinstance(node, Named)
    return MappingProxyType(
        {str(name): build(node.inner, (*key, name), settings) for name in names}
    )


def _names(key: Key, settings: Mapping[Key, Setting]) -> list[str | int]:
    """Return the names one level below a key, in the order in which they were set."""
    size = len(key)
    return list(dict.fromkeys(k[size] for k in settings if len(k) > size and k[:size] == key))


def _parse_toml(data: bytes, name: str) -> tuple[dict[str, Any], str]:
    """Return the tables and the text of a file."""
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
        return tomllib.loads(text, parse_float=Decimal), text
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{name}:{line}: the file is not UTF-8"]) from None
    except (ValueError, ArithmeticError, RecursionError) as error:
        at = re.search(r" \(at line (\d+), column (\d+)\)$", str(error))
        line = int(at[1]) if at else data.count(b"\n") + 1
        column = f", column {at[2]}" if at else ""
        reason = str(error)[: at.start()] if at else str(error)
        raise ConfigError([f"{name}:{line}: not TOML{column}: {reason}"]) from None


def read_file(data: bytes, path: Path) -> SettingsSource:
    """Return the settings of a file, each with its line."""
    name = home_as_tilde(path)
    tables, text = _parse_toml(data, name)
    lines = key_lines(text)

    def where(key: Key) -> str:
        while key and key not in lines:
            key = key[:-1]
        return f"{name}:{lines.get(key, 1)}"

    source = SettingsSource(where)
    source.take(group_of(Config), (), tables)
    return source


def check_file(data: bytes, path: Path) -> None:
    """Raise ConfigError for all problems of a file that do not depend on other sources."""
    if problems := read_file(data, path).problems:
        raise ConfigError(problems)


def read_variables(
    environment: Mapping[str, str], files: Mapping[Key, Setting]
) -> list[SettingsSource]:
    """Return a source for each variable that names a key; empty variables are ignored."""
    sections = group_of(Config).keys
    sources = []
    for name, text in environment.items():
        parts = name.removeprefix(VARIABLE).split("__")
        if not name.startswith(VARIABLE) or len(parts) < 2 or not text.strip():
            continue
        if parts[0].lower() in sections:  # others may belong to another program
            sources.append(_read_variable(name, parts, text, files))
    return sources


def _read_variable(
    name: str, parts: Sequence[str], text: str, files: Mapping[Key, Setting]
) -> SettingsSource:
    source = SettingsSource(lambda _: name)
    node: Node = group_of(Config)
    key: Key = ()
    for part in parts:
        if isinstance(node, Group):
            key = (*key, part.lower())
            if part.lower() not in node.keys:
                source.add_problem(key, describe_unknown_key(key, node.keys))
                return source
            node = node.keys[part.lower()]
        elif isinstance(node, Named) and isinstance(node.inner, Group):
            known = (str(name) for name in _names(key, files))
            same = (name for name in known if re.sub(r"\W", "_", name).lower() == part.lower())
            key = (*key, next(same, part.lower()))
            node = node.inner
        else:
            source.add_problem(key, f"{format_key(key)} can only be set as a whole")
            return source
    source.take(node, key, text if isinstance(node, Leaf) and node.is_text else _parse_value(text))
    return source


def _parse_value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text.strip()}", parse_float=Decimal)["value"]
    except (ValueError, ArithmeticError, RecursionError):
        return text


def read_flag(name: str, value: object) -> SettingsSource:
    """Return the setting of a flag, which is usually named after the last part of its key."""
    key, _ = parse_key(name, 0)
    flag = FLAGS.get(key[-1], f"--{str(key[-1]).replace('_', '-')}")
    source = SettingsSource(lambda _: flag)
    for part in reversed(key):
        value = {part: value}
    source.take(group_of(Config), (), value)
    return source
