"""OpenAI's vocabularies, from the files that brim brings along.

`tiktoken.get_encoding` downloads what it needs; this does not. The files are made by
`scripts/pack_vocabularies.py`, which describes them. Loading one takes a third of a second, so it
waits for the first text. Where splintr is installed it does the work: it makes the same tokens in a
third of the time.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from threading import Lock
from typing import TYPE_CHECKING

from brim.tokens.chunks import Encode, count_in_chunks, encode_in_chunks
from brim.tokens.installed import replace_surrogates

if TYPE_CHECKING:
    import tiktoken

NAMES = ("o200k_base", "cl100k_base")
VERIFIED_SPLINTR = "0.22.0"
"""The version of splintr whose tokens were compared with tiktoken's; no other is trusted."""


class BundledTokenizer:
    """One of OpenAI's vocabularies; text that looks like a special token is ordinary text."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._encode: Encode | None = None
        self._loading = Lock()

    def count(self, text: str) -> int:
        return count_in_chunks(text, self._encode or self._loaded())

    def encode(self, text: str) -> list[int]:
        return encode_in_chunks(text, self._loaded())

    def _loaded(self) -> Encode:
        if self._encode is None:
            with self._loading:
                if self._encode is None:
                    self._encode = (
                        _splintr_encoder(self.name) or load_encoding(self.name).encode_ordinary
                    )
        return self._encode


def _splintr_encoder(name: str) -> Encode | None:
    """The same vocabulary as splintr runs it, where it is installed."""
    try:
        import splintr
    except ImportError:
        return None
    if splintr.__version__ != VERIFIED_SPLINTR:
        return None
    encode_ordinary: Encode = splintr.Tokenizer.from_pretrained(name).encode_ordinary

    def encode(text: str) -> list[int]:
        try:
            return encode_ordinary(text)
        except UnicodeEncodeError:
            return encode_ordinary(replace_surrogates(text))

    return encode


def load_encoding(name: str) -> tiktoken.Encoding:
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
