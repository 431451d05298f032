"""What models of one family have in common, as far as counting goes (tables in TOML)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from brim.catalog import Index

STAND_IN = "o200k_base"


@dataclass(frozen=True, slots=True)
class Family:
    """Models that share a vocabulary, a chat template and a way to see pictures."""

    name: str = "any"
    names: tuple[str, ...] = ()
    """The beginnings of model names."""
    vocabulary: str | None = None
    """The tokenizer's name; None where nobody outside has it."""
    uncertainty: float = 0.25
    """Share of a count made with a stand-in by which the truth may be higher."""
    message: int = 4
    request: int = 3
    extra: int = 0
    """Tokens of a name or an unknown part beside its own text."""
    known: bool = False
    """The template is known to the token, so that a plain request can be counted exactly."""
    ids: bool = False
    """The template prints the ids of calls and results."""
    tool_prompt: int = 0
    """Tokens of the text that the provider adds when there are tools."""
    image: Mapping[str, object] = field(default_factory=dict, hash=False)
    audio: int = 400
    """Bytes of sound per token."""


ANY = Family()


@cache
def families() -> Index[Family]:
    """The families by the beginnings of model names."""
    import tomllib

    text = resources.files("brim").joinpath("data/families.toml").read_text(encoding="utf-8")
    index: Index[Family] = Index(versions=True)
    for name, facts in tomllib.loads(text).items():
        family = Family(name, tuple(facts.pop("names")), **facts)
        for beginning in family.names:
            index.add(beginning, family)
    return index
