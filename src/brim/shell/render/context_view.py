"""How the picture of a window is drawn: a header, one bar with the limit marked, a row a part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from brim.models.spending import format_dollars
from brim.shell.render.sanitize import sanitize

if TYPE_CHECKING:
    from decimal import Decimal

    from rich.console import Console, ConsoleOptions, OverflowMethod, RenderableType
    from rich.text import Text

    from brim.shell.render.context import ContextReport, ContextRow

MAX_WIDTH: Final = 100
MIN_COMMAND_WIDTH: Final = 12
"""Columns that say something of a command; with fewer it is left out."""
MARK_WIDTH: Final = 2
"""Columns before a row."""
_NAME, _TOKENS, _SHARE, _PRICE, _FREES = range(5)
_NARROWER: Final[tuple[tuple[int, tuple[int, ...]], ...]] = (
    *((2, ()), (1, ()), (1, (_PRICE,)), (1, (_PRICE, _FREES)), (1, (_PRICE, _FREES, _SHARE))),
)
"""From wide to narrow: columns between two cells, and the cells that are left out."""
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
    """What a part is known by, in the bar and in its row."""

    fill: str
    mark: str
    style: str


@dataclass(frozen=True, slots=True)
class _ContextView:
    picture: ContextReport

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        is_ascii = options.ascii_only or console.is_dumb_terminal
        colors = not console.no_color and console.color_system is not None
        yield from lines(self.picture, options.max_width, colors=colors, is_ascii=is_ascii)


def render_context(picture: ContextReport) -> RenderableType:
    """The picture for any console: with colours, without, in plain ASCII, wide or narrow."""
    return _ContextView(picture)


def lines(picture: ContextReport, width: int, *, colors: bool, is_ascii: bool) -> Iterator[Text]:
    """The picture, line by line, no wider than the screen."""
    from rich.text import Text

    width = max(20, min(width, MAX_WIDTH))
    signs = _signs(picture.parts, colors=colors, is_ascii=is_ascii)
    dot = "-" if is_ascii else "·"
    yield _headline(picture, dot)
    yield Text(f"used: {picture.counted_by}", "dim")
    yield Text(f"window: {sanitize(picture.window_from)}", "dim")
    yield Text()
    yield from _bar(picture, width - 1, signs, is_ascii=is_ascii)
    yield Text()
    yield from _rows(picture, width, signs, is_ascii=is_ascii)
    if remarks := list(_remarks(picture, dot)):
        yield Text()
        yield from remarks


# Header and footer


def _headline(picture: ContextReport, dot: str) -> Text:
    from rich.text import Text

    about = "" if picture.is_exact else "~"
    color = "red" if picture.fill >= 0.9 else "yellow" if picture.fill >= 0.7 else "green"
    return Text.assemble(
        (sanitize(picture.name or "no model named"), "bold"),
        (
            f" ({sanitize(picture.model)})" if picture.model not in (None, picture.name) else "",
            "dim",
        ),
        f" {dot} {about}{picture.used:,} of {picture.window:,} tokens {dot} ",
        (f"{about}{_share(picture.fill)}", f"bold {color}"),
        " of the limit",
    )


def _remarks(picture: ContextReport, dot: str) -> Iterator[Text]:
    from rich.text import Text

    cut = picture.cut
    if picture.over:
        then = "the next request leaves something out"
        if not picture.can_be_sent:
            then = "this cannot be sent; free something"
        yield Text(f"over by {picture.over:,} tokens: {then}", "bold red")
    if not cut.turns and not cut.shortened:
        return
    said = [_several(len(cut.turns), "turn")] if cut.turns else []
    said += [f"parts of {_several(len(cut.shortened), 'turn')}"] if cut.shortened else []
    said.append(f"{cut.tokens:,} tokens")
    yield Text.assemble(
        ("left out: ", "yellow"), ", ".join(said), (f" {dot} :recall N brings one back", "dim")
    )


def _several(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


# The bar


def _signs(parts: Iterable[ContextRow], *, colors: bool, is_ascii: bool) -> dict[str, Sign]:
    """A colour for each part that is sent; where there are none, a fill."""
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
    picture: ContextReport, width: int, signs: dict[str, Sign], *, is_ascii: bool
) -> Iterator[Text]:
    """What fills the window from left to right: sent, free, then what is kept; the limit below."""
    from rich.text import Text

    parts = _from_left(picture.parts)
    cells = columns([part.tokens for part in parts], width)
    bar = Text(no_wrap=True)
    for part, number in zip(parts, cells, strict=True):
        bar.append(signs[part.name].fill * number, signs[part.name].style)
    kept = sum(n for part, n in zip(parts, cells, strict=True) if _is_kept(part))
    whole = picture.window + picture.over
    place = width * picture.limit // whole if picture.over else width - kept
    yield bar
    yield _marker(min(place, width - 1), picture.limit, width, "^" if is_ascii else "▲")


def _from_left(parts: Sequence[ContextRow]) -> list[ContextRow]:
    """The parts in the order of the bar: what is free comes before what is kept."""
    kept = [part for part in parts if _is_kept(part)]
    return [part for part in parts if not _is_kept(part)] + kept


def _is_kept(part: ContextRow) -> bool:
    return part.name in _UNSENT and part.name != "free"


def columns(sizes: Sequence[int], width: int) -> list[int]:
    """Columns for each size, in all exactly as many as there are; what is not 0 is seen.

    Where there are more sizes than columns, the last ones are not.
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
    picture: ContextReport, width: int, signs: dict[str, Sign], *, is_ascii: bool
) -> Iterator[Text]:
    about = "" if picture.is_exact else "~"
    none = "-" if is_ascii else "–"
    head = ("", f"{about}tokens", "share", "price", "to free it")
    places = _places(picture.parts)
    cells = [
        (
            sanitize(part.name),
            f"{part.tokens:,}",
            _share(part.share),
            _price(part, none, places),
            part.frees,
        )
        for part in picture.parts
    ]
    total = picture.window + picture.over
    cells.append(("window" if not picture.over else "window and over", f"{total:,}", "", "", ""))
    draw = partial(_row, *_widths((head, *cells), width), is_ascii=is_ascii)
    yield draw(Sign("", " ", ""), head, "dim")
    for part, row in zip(picture.parts, cells, strict=False):
        style = "dim" if part.name in _UNSENT else ""
        yield draw(signs[part.name], row, style)
    yield draw(Sign("", " ", ""), cells[-1], "dim")


def _widths(rows: Sequence[Sequence[str]], width: int) -> tuple[list[int], int]:
    """Columns for the cells with the gap before each; 0 for those that there is no room for."""
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
    """A line of the table; columns that are 0 wide are left out."""
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
    """A share as people say it: `12 %`, `3.4 %`, `< 0.1 %`."""
    percent = 100 * share
    if 0 < percent < 0.1:
        return "< 0.1 %"
    return f"{percent:,.0f} %" if percent >= 10 or not percent else f"{percent:.1f} %"


def _places(parts: Iterable[ContextRow]) -> int | None:
    """Places behind the point that the smallest price needs: all have as many, in one column."""
    least = min((part.price for part in parts if part.price), default=None)
    return None if least is None else len(format_dollars(least).partition(".")[2])


def _price(part: ContextRow, none: str, places: int | None) -> str:
    price: Decimal | None = part.price
    if price is None:
        return none
    most = "<= " if none == "-" else "≤ "
    return f"{most if part.name == 'reply' else ''}{format_dollars(price, places)}"
