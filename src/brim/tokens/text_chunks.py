"""Long texts in pieces that a tokenizer can swallow.

Tokenizers split a text into words before they merge, and all of them begin a new word at a space
that follows a letter, so a cut there leaves the count as it was. The byte-pair ones also begin one
at punctuation. Where no such place is near (a million spaces, a picture in base64) the cut is made
anyway, and counts a little on the high side.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

LENGTH = 32_768
"""Characters per chunk: tiktoken's pattern gives up on white space thirty times as long, and the
time that one endless word takes grows faster than its length."""
SEARCH = 4_096
"""How far past `LENGTH` a good place is looked for."""
SLACK = 2
"""Tokens added for a cut where there was no good place."""

_SPACE = re.compile(r"(?<=[^\W\d_])(?= )|(?<=\n)(?=[^\W\d_])")
_PUNCTUATION = re.compile(r"(?<=[^\W_])(?=[\s,.;:!?\"(){}\[\]<>=/，。、；：！？])")

Encode = Callable[[str], list[int]]


def count_in_chunks(text: str, encode: Encode) -> int:
    """Count a text of any length; if the encoder breaks down, by the number of its bytes."""
    if len(text) <= LENGTH:
        return _count_chunk(text, encode)
    total = sum(
        _count_chunk(chunk, encode) + SLACK * (not clean) for chunk, clean in split_chunks(text)
    )
    return min(total, utf8_length(text))


def encode_in_chunks(text: str, encode: Encode) -> list[int]:
    return [token for chunk, _ in split_chunks(text) for token in encode(chunk)]


def split_chunks(text: str) -> Iterator[tuple[str, bool]]:
    """Cut a text; beside each chunk, whether the cut after it is at a good place."""
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
    """The bytes of a text: hardly a vocabulary makes more tokens of it, and OpenAI's never."""
    return len(text.encode("utf-8", "surrogatepass"))
