"""Tokenizers that count text: bundled, installed, from a file, and by length.

Bundled: OpenAI's vocabularies, from files in `brim/data`. `tiktoken.get_encoding` would download
them; this module does not. `scripts/pack_vocabularies.py` creates the files and describes them.
Loading one takes about a third of a second, so it happens when the first text is counted. If
splintr is installed, it does the encoding: it produces the same tokens three times faster.

Installed: splintr also contains the vocabularies of the open model families. The `tokenizers`
package reads the `tokenizer.json` of a model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from threading import Lock
from typing import TYPE_CHECKING

from brim.errors import UnknownTokenizerError

if TYPE_CHECKING:
    import tiktoken

Encode = Callable[[str], list[int]]

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


class VocabularyTokenizer:
    """A vocabulary; text that looks like a special token is ordinary text."""

    def __init__(self, name: str, encode: Encode | None = None) -> None:
        """Without `encode`, the bundled vocabulary of this name is loaded on first use."""
        self.name = name
        self._encode = encode
        self._lock = Lock()

    def count(self, text: str) -> int:
        return count_in_chunks(text, self._encode or self._load())

    def encode(self, text: str) -> list[int]:
        encode = self._load()
        return [token for chunk, _ in split_chunks(text) for token in encode(chunk)]

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
    return _accept_any_text(splintr.Tokenizer.from_pretrained(name).encode_ordinary)


def _accept_any_text(encode: Encode, *, normalized: bool = False) -> Encode:
    """Return an encoder that replaces unpaired surrogates, as a server would receive them."""
    from unicodedata import normalize

    def encode_any(text: str) -> list[int]:
        if normalized:
            text = normalize("NFC", text)
        try:
            return encode(text)
        except UnicodeEncodeError:
            return encode(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))

    return encode_any


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


def has_splintr() -> bool:
    from importlib.util import find_spec

    return find_spec("splintr") is not None


def load_splintr(name: str) -> VocabularyTokenizer:
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
    return VocabularyTokenizer(
        name, _accept_any_text(vocabulary.encode_ordinary, normalized=normalized)
    )


def load_tokenizer_file(path: str) -> VocabularyTokenizer:
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

    return VocabularyTokenizer(name, _accept_any_text(encode))


# Long texts are split into chunks that a tokenizer can process. Tokenizers split a text into words
# before merging, and all of them start a new word at a space after a letter, so splitting there
# does not change the count. Byte-pair tokenizers also start one at punctuation. If there is no such
# position (a million spaces, base64 data), the text is split anyway, and the count is slightly too
# high.

LENGTH = 32_768
"""Characters per chunk. tiktoken's pattern fails on white space thirty times as long, and the time
for a single long word grows faster than its length."""
SEARCH = 4_096
"""Characters after `LENGTH` in which a good position is searched."""
SLACK = 2
"""Tokens added for a split at a bad position."""

_SPACE = re.compile(r"(?<=[^\W\d_])(?= )|(?<=\n)(?=[^\W\d_])")
_PUNCTUATION = re.compile(r"(?<=[^\W_])(?=[\s,.;:!?\"(){}\[\]<>=/，。、；：！？])")


def count_in_chunks(text: str, encode: Encode) -> int:
    """Count a text of any length; if the encoder crashes, return the number of bytes."""
    if len(text) <= LENGTH:
        return _count_chunk(text, encode)
    total = sum(
        _count_chunk(chunk, encode) + SLACK * (not clean) for chunk, clean in split_chunks(text)
    )
    return min(total, utf8_length(text))


def split_chunks(text: str) -> Iterator[tuple[str, bool]]:
    """Return the chunks, each with whether the split after it is at a good position."""
    start = 0
    while len(text) - start > LENGTH + SEARCH:
        first, last = start + LENGTH, start + LENGTH + SEARCH
        place = _SPACE.search(text, first, last) or _PUNCTUATION.search(text, first, last)
        end = place.start() if place else first
        yield text[start:end], place is not None
        start = end
    yield text[start:], True


def _count_chunk(text: str, encode: Encode) -> int:
    try:
        return len(encode(text))
    except BaseException as error:
        # A panic in Rust is not an Exception, and its class cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        return utf8_length(text)


def utf8_length(text: str) -> int:
    """Return the UTF-8 length: an upper bound of the tokens for nearly every vocabulary."""
    return len(text.encode("utf-8", "surrogatepass"))
