"""A provider's prompt cache, as far as clients can observe it.

It caches whole messages, tools and blocks of system text of any size; real caches also have a
minimum size, and expire. OpenAI's formats cache every prefix of a prompt. Anthropic caches the
prefixes that the client marks, and finds them from a mark at most a few blocks later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import accumulate
from typing import Any, Final

from brim.testing.script import Body

MARK: Final = "cache_control"
MAX_MARKS: Final = 4
LOOKBACK_BLOCKS: Final = 20
PROMPT: Final = (
    *("tools", "system", "instructions", "systemInstruction", "messages", "input", "contents"),
)
"""The parts of a body that a model reads, in its reading order."""

Part = tuple[str, Any]


class PromptCache:
    """The prefixes of earlier prompts."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()

    def take(self, body: Body, count: Callable[[Body], int], *, marks: bool) -> tuple[int, int]:
        """Return the tokens of a prompt that were cached, and those that are cached now.

        `marks`: only marked prefixes are cached.
        """
        parts = list(_iter_parts(body))
        digests = _compute_digests(str(body.get("model")), parts)
        ends = [end for end, part in enumerate(parts, 1) if not marks or _count_marks(part)]
        if marks and body.get(MARK) and parts:
            ends.append(len(parts))
        reached = {max(end - back, 0) for end in ends for back in range(LOOKBACK_BLOCKS)}
        known = max((end for end in reached if digests[end] in self._known), default=0)
        self._known |= {digests[end] for end in ends}
        read = count(_build_body(parts[:known])) if known else 0
        return read, count(_build_body(parts[: ends[-1]])) - read if ends else 0


def count_cache_marks(body: Body) -> int:
    """Return the number of cache marks in a request."""
    return bool(body.get(MARK)) + _count_marks(list(_iter_parts(body)))


def _iter_parts(body: Body) -> Iterator[Part]:
    for key in PROMPT:
        given = body.get(key) or ()
        for item in [given] if isinstance(given, str | Mapping) else given:
            yield key, item


def _build_body(parts: Sequence[Part]) -> dict[str, Any]:
    """Return a request that consists of these parts."""
    body: dict[str, Any] = {"messages": []}
    for key, item in parts:
        if isinstance(item, str):
            body[key] = item
        else:
            body.setdefault(key, []).append(item)
    return body


def _compute_digests(model: str, parts: Sequence[Part]) -> list[bytes]:
    """Return a digest of each prefix of a prompt, from the empty one to the whole."""
    raws = (json.dumps(_strip_marks(part)).encode() for part in parts)
    start = sha256(model.encode()).digest()
    return list(accumulate(raws, lambda so_far, raw: sha256(so_far + raw).digest(), initial=start))


def _count_marks(value: Any) -> int:
    if isinstance(value, Mapping):
        return bool(value.get(MARK)) + _count_marks(value.get("content"))
    return sum(map(_count_marks, value)) if isinstance(value, list | tuple) else 0


def _strip_marks(value: Any) -> Any:
    """Return the value without cache marks, which are not part of the prompt.

    Only a block can be marked, so marking a text turns it into a block: both are equal here.
    """
    match value:
        case {"role": _, "content": str(text)}:
            return _strip_marks({**value, "content": [{"type": "text", "text": text}]})
        case Mapping():
            return {key: _strip_marks(inner) for key, inner in value.items() if key != MARK}
        case list() | tuple():
            return [_strip_marks(each) for each in value]
        case _:
            return value
