"""What is known about models: how much they take in and how much they give out.

The numbers stand in `data/models.toml`, which is read when the first question is asked. A model
has many spellings (`openai/gpt-4o`, `gpt-4o-2024-08-06`, `Qwen2.5-7B-Instruct-Q4_K_M.gguf`); the
rules that see through them are here too, because tokenizers are found by the same rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Generic, TypeVar

from brim.errors import InputError

T = TypeVar("T")

_PROVIDERS = re.compile(r"\A(?:[a-z]+\.)+(?=[a-z])")
"""Amazon's way: `us.anthropic.claude-…`, where a region and a maker stand before the name."""
_TUNED = re.compile(r"\Aft:")
_FILE = re.compile(r"(?:[-.](?:i?q\d[^-./]*|b?fp?\d+))?\.(?:gguf|ggml|bin|safetensors)\Z")
_SEPARATORS = re.compile(r"[._ ]+")
_NEXT_VERSION = re.compile(r"-\d{1,2}(?![0-9a-z])")
"""What makes another model of a name; a date or a number of parameters does not."""
_lock = Lock()


def candidate_names(name: str) -> list[str]:
    """The plain names that a model's name may stand for, the fullest first.

    Letters are lower case and every separator is a hyphen, so that `claude-opus-4.6` and
    `claude-opus-4-6` are one name. Folders, providers, tags and file endings are taken off.
    """
    full = name.strip().lower().replace("\\", "/").rstrip("/")
    found: dict[str, None] = {}
    while True:
        bare = _FILE.sub("", _TUNED.sub("", full))
        for spelling in (bare, bare.split(":")[0], _PROVIDERS.sub("", bare.split(":")[0])):
            found.setdefault(_SEPARATORS.sub("-", spelling))
        _, slash, full = full.partition("/")
        if not slash:
            return [spelling for spelling in found if spelling]


class NameIndex(Generic[T]):
    """Finds things by a model's name: by the exact name, then by the longest prefix of it."""

    def __init__(self, *, versions: bool) -> None:
        self._versions = versions
        self._entries: dict[str, T] = {}

    def add(self, name: str, value: T) -> None:
        """Enter a name; what stood under it before is replaced."""
        spelled = _SEPARATORS.sub("-", name.strip().lower())
        if not spelled:
            raise InputError("a model's name cannot be empty")
        self._entries[spelled] = value

    def find(self, name: str) -> T | None:
        """Look for a name; a prefix ends where a word ends, so `gptfoo` is not `gpt`.

        With `versions`, a prefix may also stand for later versions (`gpt-5` for `gpt-5.9`).
        """
        if not self._entries:
            return None
        found = candidate_names(name)
        for spelling in found:
            if spelling in self._entries:
                return self._entries[spelling]
        prefixes = [prefix for spelling in found for prefix in self._prefixes(spelling)]
        return self._entries[max(prefixes, key=len)] if prefixes else None

    def values(self) -> Iterable[T]:
        return self._entries.values()

    def _prefixes(self, spelling: str) -> Iterator[str]:
        for end in range(len(spelling) - 1, 0, -1):
            if spelling[end].isalnum() or spelling[:end] not in self._entries:
                continue
            if not self._versions and _NEXT_VERSION.match(spelling, end):
                return  # and a shorter name is even less the model's
            yield spelling[:end]


@dataclass(frozen=True, slots=True)
class Model:
    """What a model takes and gives, in tokens; a number that nobody knows is None."""

    name: str
    provider: str
    context: int | None = None
    """Input and output together."""
    largest_input: int | None = None
    """Where it is less than the rest of the context."""
    largest_output: int | None = None


def model(name: str) -> Model | None:
    """Find a model by any of its spellings; an unknown one is None."""
    return _index().find(name)


def models() -> list[Model]:
    """All models of the catalog, each once, in the order of the table."""
    return list(dict.fromkeys(_index().values()))


def register(entry: Model) -> None:
    """Add a model, or replace what the catalog says about it, for this process."""
    for number in (entry.context, entry.largest_input, entry.largest_output):
        if number is not None and number <= 0:
            raise InputError(f"{entry.name}: {number} is not a size; what is unknown is None")
    _index().add(entry.name, entry)


def _index() -> NameIndex[Model]:
    with _lock:
        return _load()


@cache
def _load() -> NameIndex[Model]:
    import tomllib
    from importlib import resources

    text = resources.files("brim").joinpath("data/models.toml").read_text(encoding="utf-8")
    index: NameIndex[Model] = NameIndex(versions=False)
    for provider, entries in tomllib.loads(text).items():
        for name, facts in entries.items():
            entry = Model(
                name, provider, facts.get("context"), facts.get("input"), facts.get("output")
            )
            for spelling in (name, *facts.get("also", ())):
                index.add(spelling, entry)
    return index
