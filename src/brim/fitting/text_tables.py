"""Tables and bars as plain text, for the command line, the shell and the gateway's reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from textwrap import wrap
from typing import Final

GAP: Final = 2
"""Columns between two cells."""
MIN_LAST_WIDTH: Final = 16
"""If the last column has fewer characters than this, it goes on lines of its own."""
BLOCKS: Final = " ▏▎▍▌▋▊▉█"
MIN_BAR_WIDTH: Final = 10
"""Minimum columns of a bar."""
DOWNLOAD_WIDTH: Final = 30
WARN_FILL: Final = 0.7
"""Share of a limit from which it is shown in yellow."""
ALERT_FILL: Final = 0.9
"""Share of a limit from which it is shown in red."""


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 row`, `2,000 rows`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_columns(cells: Sequence[Sequence[str]], width: int | None, align: str) -> list[str]:
    """Return rows as aligned columns. The first row is the heading; the last column wraps."""
    *fixed, _ = [max(map(len, column)) for column in zip(*cells, strict=True)]
    used = sum(fixed) + GAP * len(fixed)
    if width is not None and width < used:
        return _format_sentences(cells[1:], width)
    room = None if width is None else width - used
    lines: list[str] = []
    for *front, last in cells:
        start = (" " * GAP).join(
            f"{text:{side}{size}}" for text, side, size in zip(front, align, fixed, strict=False)
        )
        lines += _join_row(start, last, room, width)
    return lines


def fill_lines(text: str, width: int | None, indent: str = "") -> list[str]:
    """Return a text as lines of at most this width; None is unlimited."""
    return [text] if width is None else wrap(text, max(width, 8), subsequent_indent=indent)


def _join_row(start: str, last: str, room: int | None, width: int | None) -> list[str]:
    """Return the lines of a row, with its last column below the others if there is no room."""
    if room is None or width is None or len(last) <= room:
        return [f"{start}  {last}".rstrip()]
    if room < MIN_LAST_WIDTH:
        return [start.rstrip(), *(f"    {line}" for line in fill_lines(last, width - 4))]
    first, *more = fill_lines(last, room)
    indent = " " * (width - room)
    return [f"{start}  {first}", *(indent + line for line in more)]


def _format_sentences(cells: Iterable[Sequence[str]], width: int) -> list[str]:
    rows = (" · ".join(filter(None, row)) for row in cells)
    return [line for row in rows for line in fill_lines(row, width, "  ")]


def choose_columns(sizes: Sequence[int], width: int, drop_order: Iterable[int]) -> list[int]:
    """Return the columns that fit, and always those that are not in `drop_order`."""
    chosen = list(range(len(sizes)))
    for place in drop_order:
        if sum(sizes[each] + GAP for each in chosen) - GAP <= width:
            break
        chosen.remove(place)
    return chosen


def apportion(total: int, weights: Sequence[int], least: int = 0) -> list[int]:
    """Distribute a number by weight, without a remainder; a weight above 0 gets at least `least`.

    If there is less than that, the last ones get nothing.
    """
    whole = sum(weights)
    if not whole:
        return [0] * len(weights)
    shares = [max(least, total * weight // whole) if weight else 0 for weight in weights]
    while sum(shares) > total:
        largest = max(range(len(shares)), key=lambda place: (shares[place], place))
        shares[largest] -= 1
    by_rest = sorted(range(len(weights)), key=lambda place: -(total * weights[place] % whole))
    for place in by_rest[: total - sum(shares)]:
        shares[place] += 1
    return shares


def color_of_fill(share: float) -> str:
    """Return the color of a share of a limit: green, yellow or red."""
    return "red" if share >= ALERT_FILL else "yellow" if share >= WARN_FILL else "green"


# Bars


@dataclass(frozen=True, slots=True)
class Bar:
    """A labeled amount."""

    label: str
    size: Decimal
    amount: str
    """The size as text."""


def draw_bars(
    bars: Sequence[Bar], width: int, *, plain: bool, paint: Callable[[str], str] = str
) -> list[str]:
    """Return a line for each bar; `plain` is for terminals without block characters."""
    most = max((bar.size for bar in bars), default=Decimal(0))
    amount = max((len(bar.amount) for bar in bars), default=0)
    longest = max((len(bar.label) for bar in bars), default=0)
    label = min(longest, max(MIN_BAR_WIDTH, (width - amount) // 2))
    room = max(MIN_BAR_WIDTH, width - label - amount - 2 * GAP)
    lines = []
    for bar in bars:
        signs = draw_bar(bar.size / most if most else Decimal(0), room, plain=plain)
        rest = " " * (room - len(signs))
        start = f"{_shorten(bar.label, label):{label}}  {signs and paint(signs)}{rest}"
        lines.append(f"{start}  {bar.amount}".rstrip())
    return lines


def draw_bar(share: Decimal | float, room: int, *, plain: bool = False) -> str:
    """Return a bar of this share of the width; a share above 0 is always visible."""
    if plain:
        return "#" * max(round(share * room), share > 0)
    whole, rest = divmod(max(round(share * room * 8), share > 0), 8)
    return BLOCKS[-1] * whole + BLOCKS[rest].strip()


def draw_download(done: int, total: int) -> str:
    """Return the progress of a download of `total` bytes as a bar with figures."""
    signs = draw_bar(done / total, DOWNLOAD_WIDTH)
    return f"{signs:·<{DOWNLOAD_WIDTH}} {done / 1e6:.0f} of {total / 1e6:.0f} MB"


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 2]}.."
