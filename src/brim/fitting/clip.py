"""Changes of one output text: clip it to a size, remove repeated lines, find reported errors.

The tokens of a piece are estimated from its share of the characters and then counted, so that a
long text is never tokenized again to cut a short piece from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from functools import lru_cache, partial
from typing import Any, Final

from brim.messages import Message
from brim.tokens import Counter
from brim.wire.notes import clip_mark, repeat_mark

_MAX_ENTRIES: Final = 256

HEAD_SHARE: Final = 0.6
"""The share of a clipped text that comes from its beginning."""
_TRIES: Final = 14
_AIM: Final = 0.96
"""The first try aims at this share of the cap, so that a second is rarely needed."""
LARGEST_MARK: Final = "\n" + clip_mark(10_000_000) + "\n"
"""A text clipped to its tokens is clipped to a mark."""
_SHORTEST_LINE: Final = 10
"""Shorter lines are repeated by chance."""
_SHORTEST_RUN: Final = 60
"""Fewer characters of repeated lines cost less than the mark that replaces them."""

_ERRORS: Final = ("error", "exception", "failed", "fatal", "cannot", "unable to")
_NO_ERROR: Final = re.compile(
    r"(?<![\w.,])0+\s+(?:errors?|exceptions?|failed|failures?|fatal)\b"
    r"|(?:errors?|exceptions?|failed|failures?|fatal)\s*[:=]\s*0+(?!\w|[.,]\d)"
)
_EDGE_LINES: Final = 20


def reports_error(text: str) -> bool:
    """Return whether an output reports an error, in its first or last 20 lines."""
    lines = text.splitlines()
    if len(lines) > 2 * _EDGE_LINES:
        text = "\n".join((*lines[:_EDGE_LINES], *lines[-_EDGE_LINES:]))
    text = text.lower()
    if not any(word in text for word in _ERRORS):
        return False
    text = _NO_ERROR.sub("", text)
    return any(word in text for word in _ERRORS)


def clip(
    text: str,
    size: int,
    cap: int,
    count: Callable[[str], int],
    *,
    close: float | None = None,
    mark: Callable[[int], str] = clip_mark,
) -> str:
    """Return the head and the tail of a text of `size` tokens, in at most `cap` tokens.

    With `close`, the result takes at least that share of the cap if a few tries can reach it.
    Without, both parts may be cut at line ends and be a little smaller. The result is empty if
    the cap is too small for the mark.
    """
    if size <= cap and count(text) <= cap:
        return text
    mark_size = count(LARGEST_MARK)
    low, high = 0.0, 0.98 * len(text)
    chars = min(high, _AIM * len(text) * (cap - mark_size) / max(size, 1))
    best = ""
    for attempt in range(_TRIES):
        if chars < 1:
            break
        piece = _cut_piece(text, int(chars), size, mark, at_lines=close is None)
        tokens = count(piece)
        if tokens <= cap:
            best, low = piece, chars
            if close is None or tokens >= close * cap - 2:
                break
            chars *= 1 + 0.9 * (cap - tokens) / max(tokens, 1)
        else:
            high = chars
            chars *= 0.98 * (cap - mark_size) / max(1, tokens - mark_size)
        if attempt > 1 or not low < chars < high:  # uneven density: bisect instead
            chars = (low + high) / 2
    if not best and count(mark(size)) <= cap:
        best = mark(size)
    return best


def _cut_piece(
    text: str, chars: int, size: int, mark: Callable[[int], str], *, at_lines: bool
) -> str:
    head, tail = int(chars * HEAD_SHARE), int(chars * (1 - HEAD_SHARE))
    start, end = text[:head], text[len(text) - tail :]
    if at_lines:
        start, end = _end_at_lines(start, end)
    left = round(size * (1 - (len(start) + len(end)) / len(text)))
    return _join(start, mark(left), end)


def _end_at_lines(start: str, end: str) -> tuple[str, str]:
    """Remove the partial line at a cut if that costs at most a fifth of the part."""
    last = start.rfind("\n")
    if last >= 0.8 * len(start):
        start = start[:last]
    first = end.find("\n")
    if 0 <= first <= 0.2 * len(end):
        end = end[first + 1 :]
    return start, end


def _join(start: str, mark: str, end: str) -> str:
    return "\n".join(part for part in (start, mark, end) if part)


def truncate(text: str, chars: int) -> str:
    """Return the beginning of a text, cut at a line end if one is near, else between words."""
    if len(text) <= chars:
        return text
    piece = text[: max(0, chars)]
    for border in ("\n", " "):
        end = piece.rfind(border)
        if end >= len(piece) // 2:
            return piece[:end].rstrip()
    return piece


class TextLines:
    """The lines of a text."""

    __slots__ = ("all", "significant")

    def __init__(self, text: str) -> None:
        self.all = text.split("\n")
        self.significant = frozenset(line for line in self.all if len(line) >= _SHORTEST_LINE)
        """The lines that are long enough not to be repeated by chance."""

    def without(self, repeated: Container[str]) -> str | None:
        """Return the text without runs of repeated lines; None if no run is worth its mark.

        Short lines within a run (a brace, an empty line) are removed with it.
        """
        kept: list[str] = []
        run: list[str] = []
        removed = 0
        for line in self.all:
            if line in repeated or (run and len(line) < _SHORTEST_LINE):
                run.append(line)
                continue
            if run:
                removed += _close_run(run, kept)
                run.clear()
            kept.append(line)
        removed += _close_run(run, kept)
        return "\n".join(kept) if removed else None


def _close_run(run: list[str], kept: list[str]) -> bool:
    """Replace a run of repeated lines with a mark if that is shorter; return whether it was."""
    if sum(map(len, run)) < _SHORTEST_RUN:
        kept.extend(run)
        return False
    kept.append(repeat_mark(len(run)))
    return True


def clip_message(
    message: Message, text: str, size: int, cap: int, *, counter: Counter, close: float | None
) -> tuple[Message, int]:
    """Return a message with a clipped text in place of its own, and its tokens."""
    clipped = message.with_clipped(clip(text, size, cap, counter.text, close=close))
    return clipped, counter.message(clipped)


class ClipCache:
    """The last results: the next trim of a growing history needs most of them again."""

    def __init__(self, counter: Counter) -> None:
        self.clip_message = lru_cache(_MAX_ENTRIES)(partial(clip_message, counter=counter))
        self.lines = lru_cache(_MAX_ENTRIES)(TextLines)
        self.last: dict[int, tuple[object, Any]] = {}
        """By message index, what was last asked for and the result."""
