"""Bars: sums as a picture made of signs, as wide as there is room."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Final

BLOCKS: Final = " ▏▎▍▌▋▊▉█"
MIN_BAR_WIDTH: Final = 10
"""Columns that a bar has at least, however long what stands beside it."""
MAX_IDLE_DAYS: Final = 7
"""Days without anything that get a line each; a longer row of them shares one."""


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    size: Decimal
    beside: str
    """The same in words."""


def draw_bars(
    bars: Sequence[Bar], width: int, *, plain: bool, paint: Callable[[str], str] = str
) -> list[str]:
    """A line for each; `plain` for screens that have no blocks."""
    most = max((bar.size for bar in bars), default=Decimal(0))
    beside = max((len(bar.beside) for bar in bars), default=0)
    longest = max((len(bar.label) for bar in bars), default=0)
    label = min(longest, max(MIN_BAR_WIDTH, (width - beside) // 2))
    room = max(MIN_BAR_WIDTH, width - label - beside - 4)
    lines = []
    for bar in bars:
        signs = _draw_bar(bar.size / most if most else Decimal(0), room, plain)
        rest = " " * (room - len(signs))
        start = f"{_shorten(bar.label, label):{label}}  {signs and paint(signs)}{rest}"
        lines.append(f"{start}  {bar.beside}".rstrip())
    return lines


def fill_idle_days(bars: Iterable[Bar]) -> Iterator[Bar]:
    """Bars of days with those between them that had nothing, so that the axis is one of time."""
    last: date | None = None
    for bar in bars:
        day = date.fromisoformat(bar.label)
        idle = 0 if last is None else (day - last).days - 1
        if idle > MAX_IDLE_DAYS:
            yield Bar(f"{idle} days", Decimal(0), "")
        elif last is not None:
            for number in range(1, idle + 1):
                yield Bar((last + timedelta(days=number)).isoformat(), Decimal(0), "")
        yield bar
        last = day


def _draw_bar(share: Decimal, room: int, plain: bool) -> str:
    """A bar as long as its share of the room; what is not nothing is always to be seen."""
    if plain:
        return "#" * max(round(share * room), share > 0)
    whole, rest = divmod(max(round(share * room * 8), share > 0), 8)
    return BLOCKS[-1] * whole + BLOCKS[rest].strip()


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 2]}.."
