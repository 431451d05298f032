from __future__ import annotations

import io
import re
from xml.etree import ElementTree

import pytest
from rich.console import Console

from brim.session.session import Session
from brim.shell.render.context import build_report as context
from brim.shell.render.context_view import ContextView
from scripts.shell_scenes import SCENES
from scripts.write_pictures import CHARACTER_WIDTH, FOLDER, picture, svg

SVG = "{http://www.w3.org/2000/svg}"
SCREEN = "\x1b[1mbold\x1b[0m plain \x1b[31;44mred\x1b[0m\n\n日本 <&> 🙂\n"


def texts(drawn: str) -> list[str]:
    root = ElementTree.fromstring(drawn)
    found = ["".join(text.itertext()).replace("\xa0", " ") for text in root.iter(f"{SVG}text")]
    return found[1:]


def test_a_picture_needs_nothing_from_outside() -> None:
    drawn = svg(SCREEN, "a title & more", 40)
    assert re.findall(r"https?:[^\"' ]*", drawn) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"@font-face|url\(|<script|<image|href", drawn)


def test_the_same_screen_gives_the_same_bytes() -> None:
    assert svg(SCREEN, "a", 40) == svg(SCREEN, "a", 40)
    assert svg(SCREEN, "a", 40) != svg(SCREEN, "b", 40)


def test_what_is_on_the_screen_is_in_the_picture() -> None:
    drawn = svg(SCREEN, "a title & more", 40)
    assert texts(drawn) == ["bold", " plain ", "red", "日", "本", " <&> ", "🙂"]
    assert ElementTree.fromstring(drawn).get("aria-label") == "a title & more"


def test_characters_are_in_their_columns() -> None:
    lengths = [float(length) for length in re.findall(r'textLength="([^"]*)"', svg(SCREEN, "", 40))]
    assert lengths == [CHARACTER_WIDTH * columns for columns in (4, 7, 3, 2, 2, 5, 2)]


def test_a_line_is_not_longer_than_the_screen() -> None:
    assert texts(svg("x" * 50, "long", 40)) == ["x" * 40]


def test_a_picture_of_a_real_screen() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=72, color_system="standard")
    console.print(ContextView(context(Session("gpt-4o", system="Hello.", window=900))))
    words = " ".join(texts(svg(file.getvalue(), "what fills the window", 72)))
    assert "gpt-4o" in words
    assert "limit 675" in words


@pytest.mark.parametrize("name", SCENES)
def test_every_scene_has_its_picture(name: str) -> None:
    root = ElementTree.fromstring((FOLDER / f"{name}.svg").read_text(encoding="utf-8"))
    assert root.get("aria-label") == SCENES[name].title


def test_there_is_no_picture_without_a_scene() -> None:
    assert {path.stem for path in FOLDER.glob("*.svg")} == set(SCENES)


def test_the_pictures_show_the_shell_as_it_is() -> None:
    """Play one scene; `make pictures` plays all of them."""
    kept = (FOLDER / "confirmation.svg").read_text(encoding="utf-8")
    assert texts(picture("confirmation")) == texts(kept)
