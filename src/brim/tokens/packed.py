"""OpenAI's vocabularies, from the files that brim brings along.

`tiktoken.get_encoding` downloads what it needs; this does not. The files are made by
`scripts/pack_vocabularies.py`, which describes them. Loading one takes a third of a second, so it
waits for the first text.
"""

from __future__ import annotations

import json
import lzma
from importlib import resources
from itertools import accumulate, pairwise
from threading import Lock
from typing import TYPE_CHECKING

from brim.tokens.chunks import LENGTH, chunks

if TYPE_CHECKING:
    import tiktoken

NAMES = ("o200k_base", "cl100k_base")
SLACK = 2
"""Tokens added for a cut inside of a word or a run, so that the count stays on the high side."""


class PackedTokenizer:
    """One of OpenAI's vocabularies; text that looks like a special token is ordinary text."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._encoding: tiktoken.Encoding | None = None
        self._loading = Lock()

    def count(self, text: str) -> int:
        if len(text) <= LENGTH:
            return self._count(text)
        return sum(self._count(chunk) + SLACK * (not clean) for chunk, clean in chunks(text))

    def encode(self, text: str) -> list[int]:
        encode = self._load().encode_ordinary
        return [token for chunk, _ in chunks(text) for token in encode(chunk)]

    def _count(self, text: str) -> int:
        try:
            return len((self._encoding or self._load()).encode_ordinary(text))
        except BaseException as error:
            # A panic in Rust is not an Exception, and its class cannot be imported.
            if type(error).__name__ != "PanicException":
                raise
            return len(text.encode("utf-8", "surrogatepass"))

    def _load(self) -> tiktoken.Encoding:
        with self._loading:
            if self._encoding is None:
                self._encoding = _load(self.name)
            return self._encoding


def _load(name: str) -> tiktoken.Encoding:
    import tiktoken

    data = resources.files("brim").joinpath("data")
    about = json.loads(data.joinpath("vocabularies.json").read_text(encoding="utf-8"))[name]
    content = lzma.decompress(data.joinpath(f"{name}.xz").read_bytes())
    size = about["tokens"]
    places = accumulate(content[:size], initial=size)
    ranks = {content[start:end]: rank for rank, (start, end) in enumerate(pairwise(places))}
    return tiktoken.Encoding(
        name, pat_str=about["pattern"], mergeable_ranks=ranks, special_tokens=about["specials"]
    )
