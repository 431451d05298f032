"""Renders a context report: a header, a bar with the limit marked, and one row per part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from brim.models.spending_totals import format_dollars
from brim.shell.render.sanitize import sanitize

if TYPE_CHECKING:
    from decimal import Decimal

    from rich.console import Console, ConsoleOptions, OverflowMethod, RenderableType
    from rich.text import Text

    from brim.shell.render.context import ContextReport, ContextRow

MAX_WIDTH: Final = 100
MIN_COMMAND_WIDTH: Final = 12
"""Columns a command needs to be shown at all."""
MARK_WIDTH: Final = 2
"""Columns before a row."""
_NAME, _TOKENS, _SHARE, _PRICE, _FREES = range(5)
_NARROWER: Final[tuple[tuple[int, tuple[int, ...]], ...]] = (
    *((2, ()), (1, ()), (1, (_PRICE,)), (1, (_PRICE, _FREES)), (1, (_PRICE, _FREES, _SHARE))),
)
"""From wide to narrow: the gap between cells, and the cells that are omitted."""
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
class _ContextView:
    report: ContextReport

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        is_ascii = options.ascii_only or console.is_dumb_terminal
        colors = not console.no_color and console.color_system is not None
        yield from lines(self.report, options.max_width, colors=colors, is_ascii=is_ascii)


def render_context(report: ContextReport) -> RenderableType:
    """Render a report for any console: with or without colors, in ASCII, wide or narrow."""
    return _ContextView(report)


def lines(report: ContextReport, width: int, *, colors: bool, is_ascii: bool) -> Iterator[Text]:
    """Yield the lines of a report, no wider than the screen."""
    from rich.text import Text

    width = max(20, min(width, MAX_WIDTH))
    signs = _signs(report.parts, colors=colors, is_ascii=is_ascii)
    dot = "-" if is_ascii else "·"
    yield _headline(report, dot)
    yield Text(f"used: {report.counted_by}", "dim")
    yield Text(f"window: {sanitize(report.window_from)}", "dim")
    yield Text()
    yield from _bar(report, width - 1, signs, is_ascii=is_ascii)
    yield Text()
    yield from _rows(report, width, signs, is_ascii=is_ascii)
    if remarks := list(_remarks(report, dot)):
        yield Text()
        yield from remarks


# Header and footer


def _headline(report: ContextReport, dot: str) -> Text:
    from rich.text import Text

    about = "" if report.is_exact else "~"
    color = "red" if report.fill >= 0.9 else "yellow" if report.fill >= 0.7 else "green"
    return Text.assemble(
        (sanitize(report.name or "no model named"), "bold"),
        (
            f" ({sanitize(report.model)})" if report.model not in (None, report.name) else "",
            "dim",
        ),
        f" {dot} {about}{report.used:,} of {report.window:,} tokens {dot} ",
        (f"{about}{_share(report.fill)}", f"bold {color}"),
        " of the limit",
    )


def _remarks(report: ContextReport, dot: str) -> Iterator[Text]:
    from rich.text import Text

    cut = report.trimmed
    if report.over:
        then = "the next request will be trimmed"
        if not report.can_be_sent:
            then = "it cannot be sent; free something"
        yield Text(f"over by {report.over:,} tokens: {then}", "bold red")
    if not cut.turns and not cut.shortened:
        return
    trimmed = [_several(len(cut.turns), "turn")] if cut.turns else []
    trimmed += [f"parts of {_several(len(cut.shortened), 'turn')}"] if cut.shortened else []
    trimmed.append(f"{cut.tokens:,} tokens")
    yield Text.assemble(
        ("trimmed: ", "yellow"), ", ".join(trimmed), (f" {dot} :recall N brings one back", "dim")
    )


def _several(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


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
    from rich.text import Text

    parts = _from_left(report.parts)
    cells = columns([part.tokens for part in parts], width)
    bar = Text(no_wrap=True)
    for part, number in zip(parts, cells, strict=True):
        bar.append(signs[part.name].fill * number, signs[part.name].style)
    kept = sum(n for part, n in zip(parts, cells, strict=True) if _is_reserved(part))
    whole = report.window + report.over
    place = width * report.limit // whole if report.over else width - kept
    yield bar
    yield _marker(min(place, width - 1), report.limit, width, "^" if is_ascii else "▲")


def _from_left(parts: Sequence[ContextRow]) -> list[ContextRow]:
    """Return the parts in the order of the bar: free before reserved."""
    kept = [part for part in parts if _is_reserved(part)]
    return [part for part in parts if not _is_reserved(part)] + kept


def _is_reserved(part: ContextRow) -> bool:
    return part.name in _UNSENT and part.name != "free"


def columns(sizes: Sequence[int], width: int) -> list[int]:
    """Distribute exactly `width` columns over the sizes; a size above 0 gets at least one.

    If there are more sizes than columns, the last ones get none.
    """
    whole = sum(sizes)
    if not whole:
        return [0] * len(sizes)
    found = [max(1, width * size // whole) if size else 0 for size in sizes]
    while sum(found) > width:
        largest = max(range(len(found)), key=lambda place: (found[place], place))
        found[largest] -= 1
    missing = width - sum(found)
    by_rest = sorted(range(len(sizes)), key=lambda place: -(width * sizes[place] % whole))
    for place in by_rest[:missing]:
        found[place] += 1
    found[by_rest[0]] += width - sum(found)
    return found


def _marker(place: int, limit: int, width: int, sign: str) -> Text:
    from rich.text import Text

    words = f"limit {limit:,}"
    if place + 2 + len(words) <= width:
        return Text(" " * place + f"{sign} {words}", "dim")
    if place >= len(words) + 1:
        return Text(f"{words} {sign}".rjust(place + 1), "dim")
    return Text(" " * place + sign, "dim")


# The rows


def _rows(
    report: ContextReport, width: int, signs: dict[str, Sign], *, is_ascii: bool
) -> Iterator[Text]:
    about = "" if report.is_exact else "~"
    none = "-" if is_ascii else "–"
    head = ("", f"{about}tokens", "share", "price", "to free it")
    places = _places(report.parts)
    cells = [
        (
            sanitize(part.name),
            f"{part.tokens:,}",
            _share(part.share),
            _price(part, none, places),
            part.frees,
        )
        for part in report.parts
    ]
    total = report.window + report.over
    cells.append(("window" if not report.over else "window and over", f"{total:,}", "", "", ""))
    draw = partial(_row, *_widths((head, *cells), width), is_ascii=is_ascii)
    yield draw(Sign("", " ", ""), head, "dim")
    for part, row in zip(report.parts, cells, strict=False):
        style = "dim" if part.name in _UNSENT else ""
        yield draw(signs[part.name], row, style)
    yield draw(Sign("", " ", ""), cells[-1], "dim")


def _widths(rows: Sequence[Sequence[str]], width: int) -> tuple[list[int], int]:
    """Return the width of each cell with its gap, 0 for cells without room, and the gap."""
    longest = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for gap, left_out in _NARROWER:
        widths = [longest[0], *(size + gap for size in longest[1:])]
        widths = [0 if place in left_out else size for place, size in enumerate(widths)]
        over = MARK_WIDTH + sum(widths) - width
        if over <= 0:
            break
        if gap == 1 and widths[_FREES] - over >= MIN_COMMAND_WIDTH:
            widths[_FREES] -= over
            break
    else:
        widths[0] = max(1, widths[0] - over)
    return widths, gap


def _row(
    widths: Sequence[int], gap: int, sign: Sign, row: Sequence[str], style: str, *, is_ascii: bool
) -> Text:
    """Return a line of the table, without cells of width 0."""
    from rich.text import Text

    text = Text.assemble((sign.mark, sign.style), " ", no_wrap=True, overflow="crop")
    too_long: OverflowMethod = "crop" if is_ascii else "ellipsis"
    for place, (cell, width) in enumerate(zip(row, widths, strict=True)):
        if not width:
            continue
        is_left = place in (_NAME, _FREES)
        before = " " * gap if place == _FREES else ""
        shown = Text(before + cell if is_left else cell.rjust(width), style)
        shown.truncate(width, overflow=too_long, pad=True)
        if place == _FREES:
            shown.stylize("dim")
        text.append_text(shown)
    text.rstrip()
    return text


def _share(share: float) -> str:
    """Format a share: `12 %`, `3.4 %`, `< 0.1 %`."""
    percent = 100 * share
    if 0 < percent < 0.1:
        return "< 0.1 %"
    return f"{percent:,.0f} %" if percent >= 10 or not percent else f"{percent:.1f} %"


def _places(parts: Iterable[ContextRow]) -> int | None:
    """Return the decimal places that the smallest price needs; all prices use as many."""
    least = min((part.price for part in parts if part.price), default=None)
    return None if least is None else len(format_dollars(least).partition(".")[2])


def _price(part: ContextRow, none: str, places: int | None) -> str:
    price: Decimal | None = part.price
    if price is None:
        return none
    most = "<= " if none == "-" else "≤ "
    return f"{most if part.name == 'reply' else ''}{format_dollars(price, places)}"
