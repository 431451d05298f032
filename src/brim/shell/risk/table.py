"""The table of what programs do (`brim/data/commands.toml`), read once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from brim.data import load_table


@cache
def load_patterns(kind: str = "patterns") -> Mapping[str, re.Pattern[str]]:
    """Return the patterns of `data/commands.toml`."""
    return {name: re.compile(text) for name, text in load_table("commands")[kind].items()}


@cache
def load_names(kind: str = "names") -> Mapping[str, frozenset[str]]:
    """Return the lists of names in a part of the table."""
    return {key: frozenset(text.split()) for key, text in load_table("commands")[kind].items()}


@cache
def _load_languages() -> Mapping[str, Mapping[str, str]]:
    return {
        name: {**entry, "language": language}
        for language, entry in load_table("commands")["languages"].items()
        for name in (language, *entry.get("names", "").split())
    }


def language_of(name: str) -> Mapping[str, str] | None:
    """Return the language that a program interprets: python for python3.12."""
    languages = _load_languages()
    match = re.fullmatch(r"([a-z]+?)(?:[\d.]+\w?)?", name)
    return languages.get(name) or (languages.get(match[1]) if match else None)
