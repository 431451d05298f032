"""Split long texts into chunks that a tokenizer can process.

Tokenizers split a text into words before merging, and all of them start a new word at a space after
a letter, so splitting there does not change the count. Byte-pair tokenizers also start one at
punctuation. If there is no such position (a million spaces, base64 data), the text is split anyway,
and the count is slightly too high.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

LENGTH = 32_768
"""Characters per chunk. tiktoken's pattern fails on white space thirty times as long, and the time
for a single long word grows faster than its length."""
SEARCH = 4_096
"""Characters after `LENGTH` in which a good position is searched."""
SLACK = 2
"""Tokens added for a split at a bad position."""

_SPACE = re.compile(r"(?<=[^\W\d_])(?= )|(?<=\n)(?=[^\W\d_])")
_PUNCTUATION = re.compile(r"(?<=[^\W_])(?=[\s,.;:!?\"(){}\[\]<>=/，。、；：！？])")

Encode = Callable[[str], list[int]]


def count_in_chunks(text: str, encode: Encode) -> int:
    """Count a text of any length; if the encoder crashes, return the number of bytes."""
    if len(text) <= LENGTH:
        return _count_chunk(text, encode)
    total = sum(
        _count_chunk(chunk, encode) + SLACK * (not clean) for chunk, clean in split_chunks(text)
    )
    return min(total, utf8_length(text))


def encode_in_chunks(text: str, encode: Encode) -> list[int]:
    return [token for chunk, _ in split_chunks(text) for token in encode(chunk)]


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
