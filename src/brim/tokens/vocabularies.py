"""Tokenizers that count text: bundled, installed, from a file, and by length.

Bundled: OpenAI's vocabularies, from files in `brim/data`. `tiktoken.get_encoding` would download
them; this module does not. `scripts/pack_vocabularies.py` creates the files and describes them.
Loading one takes about a third of a second, so it happens when the first text is counted. If
splintr is installed, it does the encoding: it produces the same tokens three times faster.

Installed: splintr also contains the vocabularies of the open model families. The `tokenizers`
package reads the `tokenizer.json` of a model.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from threading import Lock
from typing import TYPE_CHECKING

from brim.errors import UnknownTokenizerError
from brim.tokens.text_chunks import Encode, count_in_chunks, encode_in_chunks, utf8_length

if TYPE_CHECKING:
    import tiktoken

BUNDLED_NAMES = ("o200k_base", "cl100k_base")
HEURISTIC_NAMES = ("chars/3.5", "chars/4")
HEURISTIC_UNCERTAINTY = 0.5
"""Share of a count: in 19 of 20 agent texts, o200k yields at most 1.44 times `chars/4`."""
VERIFIED_SPLINTR = "0.22.0"
"""The splintr version whose tokens were compared with tiktoken's; no other version is used."""
INSTALL = "pip install 'brim[models]'"
NORMALIZED = ("qwen", "baichuan")
"""Vocabularies that normalize to NFC first; splintr leaves that to its caller."""


class HeuristicTokenizer:
    """A fixed number of UTF-8 bytes per token: `chars/3.5` rounds up, `chars/4` rounds down."""

    def __init__(self, name: str) -> None:
        self.name = name

    def count(self, text: str) -> int:
        size = utf8_length(text)
        return size // 4 if self.name == "chars/4" else -(-2 * size // 7)


class BundledTokenizer:
    """One of OpenAI's vocabularies; text that looks like a special token is ordinary text."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._encode: Encode | None = None
        self._lock = Lock()

    def count(self, text: str) -> int:
        return count_in_chunks(text, self._encode or self._load())

    def encode(self, text: str) -> list[int]:
        return encode_in_chunks(text, self._load())

    def _load(self) -> Encode:
        if self._encode is None:
            with self._lock:
                if self._encode is None:
                    self._encode = (
                        _splintr_encoder(self.name) or load_encoding(self.name).encode_ordinary
                    )
        return self._encode


def _splintr_encoder(name: str) -> Encode | None:
    """Return splintr's encoder for a bundled vocabulary; None if splintr cannot be used."""
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
    """Load a bundled vocabulary as a new tiktoken encoding."""
    import json
    import lzma
    from importlib import resources

    import tiktoken

    data = resources.files("brim").joinpath("data")
    about = json.loads(data.joinpath("vocabularies.json").read_text(encoding="utf-8"))[name]
    content = lzma.decompress(data.joinpath(f"{name}.xz").read_bytes())
    tokens = about["tokens"]
    offsets = accumulate(content[:tokens], initial=tokens)
    ranks = {content[start:end]: rank for rank, (start, end) in enumerate(pairwise(offsets))}
    return tiktoken.Encoding(
        name, pat_str=about["pattern"], mergeable_ranks=ranks, special_tokens=about["specials"]
    )


class InstalledTokenizer:
    """A vocabulary of another package; text that looks like a special token is ordinary text."""

    def __init__(
        self, name: str, encode: Callable[[str], list[int]], *, normalized: bool = False
    ) -> None:
        self.name = name
        self._encode = encode
        self._normalized = normalized

    def count(self, text: str) -> int:
        return count_in_chunks(self._prepare(text), self._encode)

    def encode(self, text: str) -> list[int]:
        return encode_in_chunks(self._prepare(text), self._encode)

    def _prepare(self, text: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            text = replace_surrogates(text)
        if self._normalized:
            from unicodedata import normalize

            return normalize("NFC", text)
        return text


def replace_surrogates(text: str) -> str:
    """Return the text with unpaired surrogates replaced, as a server would receive it."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def has_splintr() -> bool:
    from importlib.util import find_spec

    return find_spec("splintr") is not None


def load_splintr(name: str) -> InstalledTokenizer:
    """Load a vocabulary of splintr, by splintr's name for it.

    Raise `UnknownTokenizerError` if splintr is not installed or has no such vocabulary.
    """
    try:
        import splintr
    except ImportError:
        raise UnknownTokenizerError(
            f"Unknown tokenizer: {name!r}. If it is an open vocabulary, install it with {INSTALL}."
        ) from None
    try:
        vocabulary = splintr.Tokenizer.from_pretrained(name)
    except ValueError as error:
        raise UnknownTokenizerError(f"Unknown tokenizer: {name!r}: {error}") from None
    normalized = name.lower().startswith(NORMALIZED)
    return InstalledTokenizer(name, vocabulary.encode_ordinary, normalized=normalized)


def load_tokenizer_file(path: str) -> InstalledTokenizer:
    """Load a `tokenizer.json`; the name contains a hash, so two versions of a file differ."""
    from hashlib import sha256
    from pathlib import Path

    try:
        content = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UnknownTokenizerError(f"{path} cannot be read: {error.strerror}") from None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UnknownTokenizerError(f"Reading {path} requires: {INSTALL}") from None
    try:
        vocabulary = Tokenizer.from_buffer(content)
    except Exception as error:  # the package raises plain Exception
        raise UnknownTokenizerError(f"{path} is not a tokenizer: {error}") from None
    # Files contain truncation and padding settings meant for training.
    vocabulary.no_truncation()
    vocabulary.no_padding()
    vocabulary.encode_special_tokens = True
    name = f"{Path(path).name}@{sha256(content).hexdigest()[:12]}"

    def encode(text: str) -> list[int]:
        ids: list[int] = vocabulary.encode(text, add_special_tokens=False).ids
        return ids

    return InstalledTokenizer(name, encode)
