"""Long texts in pieces that a tokenizer can swallow.

Cutting a text where a word ends in front of a space or a punctuation mark does not change its
count: the patterns by which byte-pair tokenizers split text before merging all end a piece there.
Where no such place is near (a million spaces, a picture in base64) the cut is made anyway.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

LENGTH = 32_768
"""Characters per chunk; tiktoken's pattern gives up on whitespace some thirty times as long."""
SEARCH = 4_096
"""How far past `LENGTH` a good place is looked for."""

_PLACE = re.compile(r"(?<=[^\W_])(?=[\s,.;:!?\"(){}\[\]<>=/，。、；：！？])")


def chunks(text: str) -> Iterator[tuple[str, bool]]:
    """Cut a text; beside each chunk, whether the cut after it leaves the count as it was."""
    start = 0
    while len(text) - start > LENGTH + SEARCH:
        place = _PLACE.search(text, start + LENGTH, start + LENGTH + SEARCH)
        end = place.start() if place else start + LENGTH
        yield text[start:end], place is not None
        start = end
    yield text[start:], True
