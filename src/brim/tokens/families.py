"""What the models of one family have in common, as far as counting goes (tables in TOML)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Literal

from brim.models.catalog import NameIndex

if TYPE_CHECKING:
    from brim.tokens import Tokenizer

FALLBACK_TOKENIZER = "o200k_base"


@dataclass(frozen=True, slots=True)
class ImageRule:
    """How a provider counts a picture; `media.py` has the rules."""

    rule: Literal["flat", "tiles", "patches", "blocks"] = "flat"
    cap: int = 1_000
    """Tokens (before `factor`) of the largest picture, and of one whose size is not known."""
    caps: Mapping[str, int] = field(default_factory=dict)
    """Other caps, by the detail that was asked for."""
    base: int = 0
    """Tokens of any picture, under `tiles`."""
    side: int = 1
    """Pixels of a tile, a patch or a block."""
    each: int = 1
    """Tokens of one of them."""
    edge: int = 0
    """Pixels to which the longer side is reduced first; 0 for no such rule."""
    factor: float = 1.0
    """What is billed for a token."""


@dataclass(frozen=True, slots=True)
class Family:
    """Models that share a vocabulary, a chat template and a way to see pictures.

    Numbers are tokens. Where nothing is known about a template, a message is taken to cost 4
    beside its text, and a request 3.
    """

    name: str = "any"
    names: tuple[str, ...] = ()
    """The beginnings of model names."""
    vocabulary: str | None = None
    """The tokenizer's name; None where nobody outside has it."""
    tokenizer: Tokenizer | None = None
    """One that was registered, in the place of the vocabulary."""
    uncertainty: float = 0.25
    """Share of a count made with a stand-in by which the truth may be higher."""
    known: bool = False
    """The template is known to the token, so that a plain request can be counted exactly."""
    request: int = 3
    message: int = 4
    extra: int = 0
    """A name or an unknown part, beside its text."""
    call: int = 10
    """A tool call, beside its name and arguments."""
    result: int = 0
    """A tool's turn, beside what any message costs."""
    ids: bool = False
    """The template prints the ids of calls and results."""
    tool: int = 16
    """A tool's definition, beside its JSON."""
    tool_prompt: int = 0
    """What the provider says to the model as soon as there are tools."""
    pictures: ImageRule = ImageRule()
    audio: int = 400
    """Bytes of sound per token."""
    page: int = 2_400
    """A page of a file."""


UNKNOWN_FAMILY = Family()


@cache
def families() -> NameIndex[Family]:
    """The families, by the beginnings of model names."""
    import tomllib
    from importlib import resources

    text = resources.files("brim").joinpath("data/families.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    index: NameIndex[Family] = NameIndex(versions=True)
    for name, table in tables.items():
        facts = {**tables.get(table.get("like"), {}), **table}
        facts.pop("like", None)
        pictures = ImageRule(**facts.pop("pictures", {}))
        beginnings = tuple(facts.pop("names"))
        family = Family(name, beginnings, pictures=pictures, **facts)
        for beginning in beginnings:
            index.add(beginning, family)
    return index
