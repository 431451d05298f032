"""The model catalog: context, input and output sizes, from `data/models.toml`.

The file is read on first use. `names.py` resolves the many names of a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from brim.models.names import NameIndex


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
    import tomllib
    from importlib import resources

    text = resources.files("brim").joinpath("data/models.toml").read_text(encoding="utf-8")
    index: NameIndex[Model] = NameIndex(versions=False)
    for provider, entries in tomllib.loads(text).items():
        for name, facts in entries.items():
            entry = Model(
                name, provider, facts.get("context"), facts.get("input"), facts.get("output")
            )
            for alias in (name, *facts.get("also", ())):
                index.add(alias, entry)
    return index
