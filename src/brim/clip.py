"""Making one text smaller: clipped to a size, or without the lines that come again.

The size of a piece is first guessed by its share of the characters and then counted, so that a
long text is never tokenised again for the sake of a short piece of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brim.marks import clip_mark, repeat_mark

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

HEAD: Final = 0.6
"""Of what stays of a clipped text, the part from its beginning."""
_TRIES: Final = 8
_SHORTEST_RUN: Final = 60
"""Fewer characters of repeated lines than this cost less than the mark in their place."""


def clip(text: str, size: int, cap: int, count: Callable[[str], int], *, close: bool = False) -> str:
    """Head and tail of a text of `size` tokens, in at most `cap` tokens.

    With `close` the piece comes as near to the cap as a few counts allow; without, it may end
    at a line's end and be a little smaller. Less room than the mark takes gives the empty text.
    """
    mark_size = count(_join("", clip_mark(size), ""))
    chars = len(text) * (cap - mark_size) / max(size, 1)
    best = ""
    for _ in range(_TRIES):
        if chars < 1:
            break
        piece = _piece(text, int(chars), size, at_lines=not close)
        tokens = count(piece)
        if tokens <= cap:
            best = piece
            if not close or tokens >= cap - 2 - cap // 100:
                break
            chars *= 1 + 0.9 * (cap - tokens) / max(tokens, 1)
        elif best:
            break
        else:
            chars = min(chars * 0.98 * (cap - mark_size) / max(1, tokens - mark_size), chars - 1)
    if not best and cap >= mark_size:
        best = clip_mark(size) if count(clip_mark(size)) <= cap else ""
    return best


def _piece(text: str, chars: int, size: int, *, at_lines: bool) -> str:
    head, tail = int(chars * HEAD), int(chars * (1 - HEAD))
    start, end = text[:head], text[len(text) - tail :]
    if at_lines:
        start, end = _whole_lines(start, end)
    left = round(size * (1 - (len(start) + len(end)) / len(text)))
    return _join(start, clip_mark(left), end)


def _whole_lines(start: str, end: str) -> tuple[str, str]:
    """Give up a broken line at the cut, where that costs at most a fifth of the piece."""
    last = start.rfind("\n")
    if last >= 0.8 * len(start):
        start = start[:last]
    first = end.find("\n")
    if 0 <= first <= 0.2 * len(end):
        end = end[first + 1 :]
    return start, end


def _join(start: str, mark: str, end: str) -> str:
    return "\n".join(part for part in (start, mark, end) if part)


def without_repeats(lines: Sequence[str], last: Mapping[str, int], place: int) -> str | None:
    """The text of output number `place` without the runs of lines that a later output repeats.

    `last` tells the last output that each line stands in. None where nothing worth it repeats.
    """
    kept: list[str] = []
    run: list[str] = []
    removed = False

    def close_run() -> None:
        nonlocal removed
        if sum(map(len, run)) >= _SHORTEST_RUN:
            kept.append(repeat_mark(len(run)))
            removed = True
        else:
            kept.extend(run)
        run.clear()

    for line in lines:
        if last[line] > place:
            run.append(line)
        else:
            if run:
                close_run()
            kept.append(line)
    close_run()
    return "\n".join(kept) if removed else None
