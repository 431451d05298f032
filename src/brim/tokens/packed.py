"""OpenAI's vocabularies, from the files that brim brings along.

`tiktoken.get_encoding` downloads what it needs; this does not. The files are made by
`scripts/pack_vocabularies.py`, which describes them. Loading one takes a third of a second, so it
waits for the first text.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from threading import Lock
from typing import TYPE_CHECKING

from brim.tokens.chunks import count_in_chunks, encode_in_chunks

if TYPE_CHECKING:
    import tiktoken

NAMES = ("o200k_base", "cl100k_base")


class PackedTokenizer:
    """One of OpenAI's vocabularies; text that looks like a special token is ordinary text."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._encoding: tiktoken.Encoding | None = None
        self._loading = Lock()

    def count(self, text: str) -> int:
        encoding = self._encoding or self._loaded()
        return count_in_chunks(text, encoding.encode_ordinary)

    def encode(self, text: str) -> list[int]:
        return encode_in_chunks(text, self._loaded().encode_ordinary)

    def _loaded(self) -> tiktoken.Encoding:
        if self._encoding is None:
            with self._loading:
                if self._encoding is None:
                    self._encoding = load(self.name)
        return self._encoding


def load(name: str) -> tiktoken.Encoding:
    """A vocabulary as tiktoken's own class, made anew."""
    import json
    import lzma
    from importlib import resources

    import tiktoken

    data = resources.files("brim").joinpath("data")
    about = json.loads(data.joinpath("vocabularies.json").read_text(encoding="utf-8"))[name]
    content = lzma.decompress(data.joinpath(f"{name}.xz").read_bytes())
    tokens = about["tokens"]
    places = accumulate(content[:tokens], initial=tokens)
    ranks = {content[start:end]: rank for rank, (start, end) in enumerate(pairwise(places))}
    return tiktoken.Encoding(
        name, pat_str=about["pattern"], mergeable_ranks=ranks, special_tokens=about["specials"]
    )
