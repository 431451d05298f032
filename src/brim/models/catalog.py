"""Model names and the model catalog: context, input and output sizes, from `data/models.toml`.

A model has many names (`openai/gpt-4o`, `openai:gpt-4o`, `gpt-4o-2024-08-06`, `gpt-4o.gguf`). The
catalog, tokenizers and template rules are all found by the rules of `NameIndex`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar

from brim.data import load_table
from brim.errors import InputError

T = TypeVar("T")

_PROVIDERS = re.compile(r"\A(?:[a-z]+\.)+(?=[a-z])")
"""Amazon's prefix of region and vendor: `us.anthropic.claude-…`."""
_TUNED = re.compile(r"\Aft:")
_FILE = re.compile(r"(?:[-.](?:i?q\d[^-./]*|b?fp?\d+))?\.(?:gguf|ggml|bin|safetensors)\Z")
_SEPARATORS = re.compile(r"[._ ]+")
_NEXT_VERSION = re.compile(r"-\d{1,2}(?![0-9a-z])")
"""A version number, which makes it another model; a date or a parameter count does not."""


def candidate_names(name: str) -> list[str]:
    """Return the normalized names that a model's name may mean, longest first.

    Letters are lower case and separators are hyphens, so that `claude-opus-4.6` and
    `claude-opus-4-6` are the same name. Folders, providers, tags and file endings are removed.
    """
    full = name.strip().lower().replace("\\", "/").rstrip("/")
    found: dict[str, None] = {}
    while True:
        bare = _FILE.sub("", _TUNED.sub("", full))
        before, _, after = bare.partition(":")  # provider:name or name:tag
        for candidate in (bare, after, after.partition(":")[0], before):
            found.setdefault(_SEPARATORS.sub("-", candidate))
            found.setdefault(_SEPARATORS.sub("-", _PROVIDERS.sub("", candidate)))
        _, slash, full = full.partition("/")
        if not slash:
            return [candidate for candidate in found if candidate]


class NameIndex(Generic[T]):
    """Values by model name: the name itself or its longest prefix."""

    def __init__(self, *, versions: bool) -> None:
        self._versions = versions
        self._entries: dict[str, T] = {}

    def add(self, name: str, value: T) -> None:
        """Add a value, replacing an earlier one of the same name."""
        normalized = _SEPARATORS.sub("-", name.strip().lower())
        if not normalized:
            raise InputError("The model name is empty.")
        self._entries[normalized] = value

    def find(self, name: str) -> T | None:
        """Return the value of a name; None if there is none.

        A prefix ends at a word boundary: `gpt` does not match `gptfoo`. With `versions`, a prefix
        also matches later versions (`gpt-5` matches `gpt-5.9`).
        """
        if not self._entries:
            return None
        matches = [match for each in candidate_names(name) for match in self._matches(each)]
        return self._entries[max(matches, key=len)] if matches else None

    def values(self) -> Iterable[T]:
        return self._entries.values()

    def _matches(self, candidate: str) -> Iterator[str]:
        if candidate in self._entries:
            yield candidate
        for end in range(len(candidate) - 1, 0, -1):
            if candidate[end].isalnum() or candidate[:end] not in self._entries:
                continue
            if not self._versions and _NEXT_VERSION.match(candidate, end):
                return  # a shorter prefix matches even less
            yield candidate[:end]


# The catalog


@dataclass(frozen=True, slots=True)
class Model:
    """A model and its sizes in tokens; an unknown size is None."""

    name: str
    provider: str
    context: int | None = None
    """Input and output combined."""
    largest_input: int | None = None
    """If it is smaller than the context minus the output."""
    largest_output: int | None = None


def model(name: str) -> Model | None:
    """Return a model by any of its names; None if it is unknown."""
    return _index().find(name)


def models() -> list[Model]:
    """Return all models of the catalog, in the order of the file."""
    return list(dict.fromkeys(_index().values()))


@cache
def _index() -> NameIndex[Model]:
    index: NameIndex[Model] = NameIndex(versions=False)
    for provider, entries in load_table("models").items():
        for name, facts in entries.items():
            entry = Model(
                name, provider, facts.get("context"), facts.get("input"), facts.get("output")
            )
            for alias in (name, *facts.get("also", ())):
                index.add(alias, entry)
    return index
