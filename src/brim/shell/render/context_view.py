"""Renders a context report: a header, a bar with the limit marked, and one row per part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions
from rich.text import Text

from brim.fitting.text_tables import apportion, color_of_fill, format_count
from brim.models.pricing import format_dollars
from brim.shell.render.context import ContextReport, ContextRow
from brim.shell.render.sanitize import sanitize
from brim.shell.render.styled_table import StyledTable

MAX_WIDTH: Final = 100
MIN_COMMAND_WIDTH: Final = 12
"""Columns a command needs to be shown at all."""
_COLORS: Final = (
    *("blue", "cyan", "magenta", "green", "yellow", "bright_blue", "bright_magenta"),
    *("bright_cyan", "white", "bright_green", "bright_yellow", "red", "bright_red"),
)
_FILLS: Final = "█▓▒▚▙▜▌▀▞▄▐▟▛"
_LETTERS: Final = "#%@*+=oxszvnw"
_UNSENT: Final = {
    "margin": ("╱", "/"),
    "not for input": ("╳", "X"),
    "reply": ("░", ":"),
    "free": ("·", "."),
}


@dataclass(frozen=True, slots=True)
class Sign:
    """The sign of a part, in the bar and in its row."""

    fill: str
    mark: str
    style: str


@dataclass(frozen=True, slots=True)
class ContextView:
    """A report for any console: with or without colors, in ASCII, wide or narrow."""

    report: ContextReport

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        is_ascii = options.ascii_only or console.is_dumb_terminal
        colors = not console.no_color and console.color_system is not None
        yield from _lines(self.report, options.max_width, colors=colors, is_ascii=is_ascii)


def _lines(report: ContextReport, width: int, *, colors: bool, is_ascii: bool) -> Iterator[Text]:
    """Yield the lines of a report, no wider than the screen."""
    width = max(20, min(width, MAX_WIDTH))
    signs = _signs(report.parts, colors=colors, is_ascii=is_ascii)
    dot = "-" if is_ascii else "·"
    yield _headline(report, dot)
    yield Text(f"used: {report.counted_by}", "dim")
    yield Text(f"window: {sanitize(report.window_from)}", "dim")
    yield Text()
    yield from _bar(report, width - 1, signs, is_ascii=is_ascii)
    yield Text()
    yield from _table(report, signs, is_ascii=is_ascii).lines(width)
    if remarks := list(_remarks(report, dot)):
        yield Text()
        yield from remarks


# Header and footer


def _headline(report: ContextReport, dot: str) -> Text:
    about = "" if report.is_exact else "~"
    color = color_of_fill(report.fill)
    model = "" if report.model in (None, report.name) else f" ({sanitize(report.model or '')})"
    return Text.assemble(
        (sanitize(report.name or "no model named"), "bold"),
        (model, "dim"),
        f" {dot} {about}{report.used:,} of {report.window:,} tokens {dot} ",
        (f"{about}{_share(report.fill)}", f"bold {color}"),
        " of the limit",
    )


def _remarks(report: ContextReport, dot: str) -> Iterator[Text]:
    cut = report.trimmed
    if report.over:
        then = "the next request will be trimmed"
        if not report.can_be_sent:
            then = "it cannot be sent; free something"
        yield Text(f"over by {report.over:,} tokens: {then}", "bold red")
    if not cut.turns and not cut.shortened:
        return
    trimmed = [format_count(len(cut.turns), "turn")] if cut.turns else []
    trimmed += [f"parts of {format_count(len(cut.shortened), 'turn')}"] if cut.shortened else []
    trimmed.append(f"{cut.tokens:,} tokens")
    yield Text.assemble(
        ("trimmed: ", "yellow"), ", ".join(trimmed), (f" {dot} :recall N brings one back", "dim")
    )


# The bar


def _signs(parts: Iterable[ContextRow], *, colors: bool, is_ascii: bool) -> dict[str, Sign]:
    """Assign a color to each part that is sent; without colors, a fill character."""
    signs: dict[str, Sign] = {}
    for part in parts:
        if part.name in _UNSENT:
            fill = _UNSENT[part.name][is_ascii]
            signs[part.name] = Sign(fill, fill, "dim")
            continue
        number = len(signs) % len(_COLORS)
        fill = _LETTERS[number] if is_ascii else "█" if colors else _FILLS[number]
        signs[part.name] = Sign(fill, "■" if colors and not is_ascii else fill, _COLORS[number])
    return signs


def _bar(
    report: ContextReport, width: int, signs: dict[str, Sign], *, is_ascii: bool
) -> Iterator[Text]:
    """Yield the bar (sent, free, reserved, from left to right) and the limit below it."""
    parts = sorted(report.parts, key=_is_reserved)  # free before reserved
    cells = apportion(width, [part.tokens for part in parts], least=1)
    bar = Text(no_wrap=True)
    for part, number in zip(parts, cells, strict=True):
        bar.append(signs[part.name].fill * number, signs[part.name].style)
    kept = sum(n for part, n in zip(parts, cells, strict=True) if _is_reserved(part))
    whole = report.window + report.over
    place = width * report.limit // whole if report.over else width - kept
    yield bar
    yield _marker(min(place, width - 1), report.limit, width, "^" if is_ascii else "▲")


def _is_reserved(part: ContextRow) -> bool:
    return part.name in _UNSENT and part.name != "free"


def _marker(place: int, limit: int, width: int, sign: str) -> Text:
    words = f"limit {limit:,}"
    if place + 2 + len(words) <= width:
        return Text(" " * place + f"{sign} {words}", "dim")
    if place >= len(words) + 1:
        return Text(f"{words} {sign}".rjust(place + 1), "dim")
    return Text(" " * place + sign, "dim")


# The rows


def _table(report: ContextReport, signs: dict[str, Sign], *, is_ascii: bool) -> StyledTable:
    # All prices use as many decimal places as the smallest one needs.
    least = min((part.price for part in report.parts if part.price), default=None)
    places = None if least is None else len(format_dollars(least).partition(".")[2])
    rows = [_row(part, signs[part.name], places, is_ascii=is_ascii) for part in report.parts]
    name = "window and over" if report.over else "window"
    total = [Text(f"  {name}", "dim"), Text(f"{report.window + report.over:,}", "dim")]
    total += [Text() for _ in range(3)]
    about = "" if report.is_exact else "~"
    head = ("", f"{about}tokens", "share", "price", "to free it")
    left, drop_order = ("", "to free it"), ("price", "to free it", "share")
    return StyledTable(head, [*rows, total], left, drop_order, MIN_COMMAND_WIDTH)


def _row(part: ContextRow, sign: Sign, places: int | None, *, is_ascii: bool) -> list[Text]:
    style = "dim" if part.name in _UNSENT else ""
    return [
        Text.assemble((sign.mark, sign.style), " ", (sanitize(part.name), style)),
        Text(f"{part.tokens:,}", style),
        Text(_share(part.share), style),
        Text(_price(part, places, is_ascii=is_ascii), style),
        Text(part.frees, "dim", overflow="crop" if is_ascii else "ellipsis"),
    ]


def _share(share: float) -> str:
    """Format a share: `12 %`, `3.4 %`, `< 0.1 %`."""
    percent = 100 * share
    if 0 < percent < 0.1:
        return "< 0.1 %"
    return f"{percent:,.0f} %" if percent >= 10 or not percent else f"{percent:.1f} %"


def _price(part: ContextRow, places: int | None, *, is_ascii: bool) -> str:
    if part.price is None:
        return "-" if is_ascii else "–"
    most = "<= " if is_ascii else "≤ "
    return f"{most if part.name == 'reply' else ''}{format_dollars(part.price, places)}"
