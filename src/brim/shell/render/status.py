"""The status line: window, cost and folder in one row, by a template.

It is drawn on every key press, so all values are passed in. A template is parsed into units (fields
with the text that belongs to them) separated by gaps; a unit that is empty or does not fit is
dropped together with its gap.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from functools import lru_cache
from typing import Final

from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.utils import get_cwidth

from brim.errors import InputError
from brim.fitting.text_tables import color_of_fill, draw_bar
from brim.models.pricing import format_dollars
from brim.shell.render.sanitize import sanitize

TEMPLATE: Final = (
    "{model} {bar} {ctx_used}/{ctx_limit} ({ctx_percent}) · {cost} · {cwd} · {route} · {goal}"
)
BAR_WIDTH: Final = 12
"""Columns of the bar."""
MAX_FIELD: Final = 40
"""Maximum width of a field; longer ones are shortened in the middle."""
_PLAIN: Final = "class:status"
_DIM: Final = "class:status fg:ansibrightblack"
_FIELD = re.compile(r"\{(\w*)\}")
_WORD = re.compile(r"\S+")
_UNIT = re.compile(r"l*f(?:l+(?=s|\Z))?|l+")
"""A unit, by the kinds of its words (field, label, separator): a field with the labels before it,
and with those after it if a separator follows; or only labels."""

Parts = list[tuple[str, str]]
"""Pairs of style and text."""


@dataclass(frozen=True, slots=True)
class Status:
    """The values of the status line."""

    model: str = ""
    used: int = 0
    """Tokens of the next request."""
    limit: int | None = None
    """Input limit; None while the window is unknown."""
    window: int | None = None
    is_exact: bool = False
    cost: Decimal | None = None
    """Dollars; None if nothing was sent yet."""
    at_least: bool = False
    """The cost is a lower bound: some prices are unknown."""
    route: str = ""
    cwd: str = ""
    session: str = ""
    goal: str = ""

    @property
    def fill(self) -> float:
        """Share of the limit that is used."""
        if not self.limit:
            return float(self.used > 0)
        return self.used / self.limit


@dataclass(frozen=True, slots=True)
class _Unit:
    """Text that is shown as a whole or not at all, and the gap before it."""

    gap: str
    text: str


def render_status(template: str, values: Status, width: int) -> StyleAndTextTuples:
    """Render the status line, dropping the least important units until it fits.

    Raise InputError if the template has an unknown field.
    """
    left: set[str] = set()
    units, end = parse_template(template)
    row: Parts = []
    for unneeded in ("", *DROP_ORDER):
        left.add(unneeded)
        filled = {name: FIELDS[name](values) for name in FIELDS if name not in left}
        row = _row(units, end, filled)
        if _width(row) <= width:
            break
    return [(style, text) for style, text in _crop(row, width) if text]


# The template


@lru_cache(maxsize=8)
def parse_template(template: str) -> tuple[tuple[_Unit, ...], str]:
    """Return the units of a template, and the gap at its end; raise InputError if it is wrong."""
    for name in _FIELD.findall(template):
        if name not in FIELDS:
            near = get_close_matches(name, FIELDS, n=1, cutoff=0.4)
            known = ", ".join(f"{{{field}}}" for field in FIELDS)
            meant = f"Did you mean {{{near[0]}}}? " if near else ""
            raise InputError(f"Unknown field in shell.status: {{{name}}}. {meant}Use {known}.")
    words = list(_WORD.finditer(template))
    kinds = "".join(
        "f" if _FIELD.search(word[0]) else "l" if any(map(str.isalnum, word[0])) else "s"
        for word in words
    )
    units: list[_Unit] = []
    end = 0
    for unit in _UNIT.finditer(kinds):
        start = words[unit.start()].start()
        gap, end_of_unit = template[end:start], words[unit.end() - 1].end()
        units.append(_Unit(gap, template[start:end_of_unit]))
        end = end_of_unit
    return tuple(units), template[end:]


# The row


def _row(units: Iterable[_Unit], end: str, filled: Mapping[str, Parts]) -> Parts:
    """Join the units that are not empty, with one gap between two of them."""
    row: Parts = []
    gaps: list[str] = []
    for unit in units:
        gaps.append(unit.gap)
        shown = _fill_unit(unit, filled)
        if not shown:
            continue
        gap = max(gaps, key=lambda text: len(text.strip())) if row else gaps[0]
        row += [(_PLAIN, sanitize(gap)), *shown]
        gaps = []
    return [*row, (_PLAIN, end)] if row else []


def _fill_unit(unit: _Unit, filled: Mapping[str, Parts]) -> Parts:
    """Fill in the fields of a unit; the text before an empty field is dropped with it."""
    first, *pieces = _FIELD.split(unit.text)
    if not pieces:
        return [(_PLAIN, sanitize(first))]
    parts: Parts = []
    between = ""
    for name, after in zip(pieces[::2], pieces[1::2], strict=True):
        if value := filled.get(name):
            parts += [(_PLAIN, sanitize(between) if parts else sanitize(first)), *value]
        between = after
    return [*parts, (_PLAIN, sanitize(between))] if parts else []


def _width(row: Iterable[tuple[str, str]]) -> int:
    return sum(get_cwidth(text) for _, text in row)


def _crop(row: Sequence[tuple[str, str]], width: int) -> Parts:
    """Cut the row at this width."""
    shown: Parts = []
    for style, text in row:
        while text and _width([*shown, (style, text)]) > width:
            text = text[:-1]
        shown.append((style, text))
    return shown


# The fields


def _text_field(text: str, style: str = _PLAIN) -> Parts:
    line = " ".join(sanitize(text).split())
    if len(line) > MAX_FIELD:
        half = MAX_FIELD // 2
        line = f"{line[: half - 1]}…{line[-half:]}"
    return [(style, line)] if line else []


def short_number(number: int) -> str:
    """Format a number in at most six columns: `812`, `9,431`, `12.4k`, `128k`, `1.05M`."""
    if number < 10_000:
        return f"{number:,}"
    if number < 999_500:
        return f"{number / 1_000:.3g}k"
    if number < 999_500_000:
        return f"{number / 1_000_000:.3g}M"
    return f"{number // 1_000_000:,}M"


def _approximate_sign(values: Status) -> str:
    return "" if values.is_exact else "~"


def _color(values: Status) -> str:
    return f"{_PLAIN} fg:ansi{color_of_fill(values.fill)}"


def _percent_field(values: Status) -> Parts:
    if values.limit is None:
        return []
    return [(_color(values), f"{_approximate_sign(values)}{100 * values.fill:.0f}%")]


def _cost_field(values: Status) -> Parts:
    if values.cost is None:
        return []
    if values.at_least and not values.cost:
        return [(_PLAIN, "$?")]
    return [(_PLAIN, ("≥ " if values.at_least else "") + format_dollars(values.cost))]


def _bar_field(values: Status) -> Parts:
    """Draw the window: used, free up to the limit, reserved for the reply."""
    if not values.limit or not values.window:
        return []
    mark = min(BAR_WIDTH - 2, max(1, round((BAR_WIDTH - 1) * values.limit / values.window)))
    used = draw_bar(min(1.0, values.fill), mark)
    free = "·" * (mark - len(used))
    is_over = values.used > values.limit
    return [
        (_color(values), used),
        (_DIM, free),
        (_color(values) if is_over else _PLAIN, "▶" if is_over else "│"),
        (_DIM, "░" * (BAR_WIDTH - mark - 1)),
    ]


FIELDS: Final[Mapping[str, Callable[[Status], Parts]]] = {
    "model": lambda values: _text_field(values.model, f"{_PLAIN} bold"),
    "ctx_used": lambda values: [(_PLAIN, _approximate_sign(values) + short_number(values.used))],
    "ctx_limit": lambda values: (
        [] if values.limit is None else [(_PLAIN, short_number(values.limit))]
    ),
    "ctx_percent": _percent_field,
    "cost": _cost_field,
    "route": lambda values: _text_field(values.route),
    "cwd": lambda values: _text_field(values.cwd),
    "bar": _bar_field,
    "session": lambda values: _text_field(values.session),
    "goal": lambda values: _text_field(values.goal, f"{_PLAIN} fg:ansimagenta"),
}
DROP_ORDER: Final = (
    *("session", "route", "cwd", "bar", "goal"),
    *("ctx_limit", "ctx_used", "model", "cost", "ctx_percent"),
)
"""The fields from least to most important."""
