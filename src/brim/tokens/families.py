"""Model families: what their models share for counting (tables in `data/families.toml`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from brim.data import load_table
from brim.models.catalog import NameIndex
from brim.tokens.protocols import Tokenizer

FALLBACK_TOKENIZER = "o200k_base"


@dataclass(frozen=True, slots=True)
class ImageRule:
    """How a provider counts an image; `media_tokens.py` implements the rules."""

    rule: Literal["flat", "tiles", "patches", "blocks"] = "flat"
    cap: int = 1_000
    """Tokens (before `factor`) of the largest image, and of an image of unknown size."""
    caps: Mapping[str, int] = field(default_factory=dict)
    """Other caps, by the requested detail."""
    base: int = 0
    """Tokens of every image, under `tiles`."""
    side: int = 1
    """Side of a tile, patch or block in pixels."""
    each: int = 1
    """Tokens of one tile, patch or block."""
    edge: int = 0
    """Pixels to which the longer side is reduced first; 0: not reduced."""
    factor: float = 1.0
    """Billed tokens per counted token."""


@dataclass(frozen=True, slots=True)
class Family:
    """Models that share a vocabulary, a chat template and an image rule.

    Numbers are tokens. If the template is unknown, a message counts 4 tokens in addition to its
    text, and a request 3.
    """

    name: str = "any"
    names: tuple[str, ...] = ()
    """Prefixes of model names."""
    vocabulary: str | None = None
    """Name of the tokenizer; None if it is not public."""
    tokenizer: Tokenizer | None = None
    """A registered tokenizer that replaces the vocabulary."""
    specials: tuple[str, ...] = ()
    """Special tokens of the template that the vocabulary does not know."""
    splits_marks: bool = False
    """Whether llama.cpp splits words at combining marks, where the model's own pattern does not."""
    bos: bool = False
    """Whether servers put a first token before the prompt that the template does not print."""
    ratio: float = 1.0
    """Actual tokens per token of the fallback tokenizer, if that was measured."""
    uncertainty: float = 0.25
    """Share by which the actual count may exceed a count of the fallback tokenizer."""
    known: bool = False
    """Whether the template is known to the token, so that plain requests are counted exactly."""
    request: int = 3
    message: int = 4
    extra: int = 0
    """A name or an unknown part, in addition to its text."""
    call: int = 10
    """A tool call, in addition to its name and arguments."""
    result: int = 0
    """A tool result, in addition to the tokens of every message."""
    ids: bool = False
    """Whether the template prints the ids of calls and results."""
    tool: int = 16
    """A tool definition, in addition to its JSON."""
    tool_prompt: int = 0
    """The prompt that the provider adds if there are tools."""
    tool_margin: float = 0.5
    """Share by which the count of tool definitions may be too low; the default: unmeasured."""
    step_margin: float = 0.17
    """Share by which the rest of a request with tools may be too low: calls and results."""
    images: ImageRule = ImageRule()
    audio: int = 400
    """Bytes of audio per token."""
    page: int = 2_400
    """A page of a file."""


UNKNOWN_FAMILY = Family()


@cache
def families() -> NameIndex[Family]:
    """Return the families, indexed by prefixes of model names."""
    tables = load_table("families")
    index: NameIndex[Family] = NameIndex(versions=True)
    for name, table in tables.items():
        facts = {**tables.get(table.get("like"), {}), **table}
        facts.pop("like", None)
        images = ImageRule(**facts.pop("images", {}))
        prefixes = tuple(facts.pop("names"))
        specials = tuple(facts.pop("specials", ()))
        family = Family(name, prefixes, images=images, specials=specials, **facts)
        for prefix in prefixes:
            index.add(prefix, family)
    return index
