"""Draw terminal screens as SVG pictures for the documentation.

A picture is self-contained: no fonts, URLs or scripts. The same screen gives the
same bytes.

    make pictures                                               # all of them
    PYTHONPATH=. python scripts/write_pictures.py context       # one, by its name
"""

from __future__ import annotations

import io
import re
import sys
from html import escape, unescape
from pathlib import Path
from zlib import crc32

from rich.cells import cell_len
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from scripts.shell_scenes import COLUMNS, SCENES

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
ASPECT = 0.6
"""Width of a character divided by its height, about the same in all fonts below."""
CHARACTER_WIDTH = 20 * ASPECT
LINE_HEIGHT = 20 * 1.22
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
THEME = TerminalTheme(
    (13, 17, 23),
    (230, 237, 243),
    [
        *((72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34)),
        *((88, 166, 255), (188, 140, 255), (57, 197, 207), (177, 186, 196)),
    ],
    [
        *((139, 148, 158), (255, 161, 152), (86, 211, 100), (227, 179, 65)),
        *((121, 192, 255), (210, 168, 255), (86, 212, 221), (240, 246, 252)),
    ],
)
PAD = 22
"""Space around the screen inside the window."""
BAR = 50
"""Height of the title bar."""
FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 @WIDTH@ @HEIGHT@" role="img" \
aria-label="@TITLE@">
<style>
.{unique_id}-matrix {{ font: {char_height}px @FONTS@; white-space: pre; }}
.{unique_id}-title {{ font: 16px @FONTS@; fill: #8b949e; }}
{styles}
</style>
<rect x="1" y="1" width="@INNER_WIDTH@" height="@INNER_HEIGHT@" rx="12" fill="#0d1117" \
stroke="#3d444d" stroke-width="2"/>
<g fill="#3d444d"><circle cx="28" cy="24" r="7"/><circle cx="52" cy="24" r="7"/>\
<circle cx="76" cy="24" r="7"/></g>
<text class="{unique_id}-title" x="@MIDDLE@" y="30" text-anchor="middle">@TITLE@</text>
<g transform="translate(@PAD@, @BAR@)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
_CLIP = re.compile(r' clip-path="url\(#[^)]*\)"')
_WORDS = re.compile(
    r'<text class="([^"]+)" x="([^"]+)" y="([^"]+)" textLength="[^"]+">([^<]*)</text>'
)


def svg(ansi: str, title: str, columns: int = COLUMNS) -> str:
    """Return a picture of a screen, given as text with escape sequences."""
    console = Console(
        record=True,
        width=columns,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        _environ={},
    )
    for line in ansi.rstrip("\n").split("\n"):
        console.print(Text.from_ansi(line), no_wrap=True, overflow="crop", highlight=False)
    drawn = console.export_svg(
        title=title,
        theme=THEME,
        code_format=FORMAT,
        font_aspect_ratio=ASPECT,
        unique_id=f"s{crc32(f'{title}{columns}{ansi}'.encode()):08x}",
    )
    drawn = _WORDS.sub(_place_text, _CLIP.sub("", drawn))
    return _fill_frame(drawn, title, columns, ansi.rstrip("\n").count("\n") + 1)


def _fill_frame(drawn: str, title: str, columns: int, rows: int) -> str:
    """Return the picture with the placeholders of its frame replaced."""
    width, height = 2 * PAD + columns * CHARACTER_WIDTH, BAR + rows * LINE_HEIGHT + PAD
    places: dict[str, object] = {
        "TITLE": escape(title),
        "FONTS": FONTS,
        "WIDTH": f"{width:g}",
        "HEIGHT": f"{height:g}",
        "INNER_WIDTH": f"{width - 2:g}",
        "INNER_HEIGHT": f"{height - 2:g}",
        "MIDDLE": f"{width / 2:g}",
        "PAD": PAD,
        "BAR": BAR,
    }
    return re.sub("@([A-Z_]+)@", lambda found: str(places.get(found[1], found[0])), drawn)


def _place_text(found: re.Match[str]) -> str:
    """Return text elements as wide as on the screen in any font; wide characters alone."""
    style, x, y, words = found.groups()
    place, tags = float(x), []
    for piece in _pieces(unescape(words)):
        width = cell_len(piece) * CHARACTER_WIDTH
        if piece.strip(" \n\xa0"):
            tags.append(
                f'<text class="{style}" x="{place:g}" y="{y}" textLength="{width:g}" '
                f'lengthAdjust="spacingAndGlyphs">{escape(piece)}</text>'
            )
        place += width
    return "".join(tags)


def _pieces(words: str) -> list[str]:
    """Split text into runs of narrow characters and single wide characters."""
    pieces = [""]
    for sign in words:
        follows_narrow = cell_len(pieces[-1][-1:]) < 2
        if cell_len(sign) == 0 or (cell_len(sign) == 1 and follows_narrow):
            pieces[-1] += sign
        else:
            pieces.append(sign)
    return pieces


def main(names: list[str]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names or SCENES:
        path = FOLDER / f"{name}.svg"
        path.write_text(picture(name), encoding="utf-8")
        print(f"wrote {path.relative_to(FOLDER.parents[1])}")


def picture(name: str) -> str:
    """Play a scene and return the picture of its last screen."""
    scene = SCENES[name]
    return svg(scene.play(), scene.title, COLUMNS)


if __name__ == "__main__":
    main(sys.argv[1:])
