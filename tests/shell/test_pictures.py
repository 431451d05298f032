from __future__ import annotations

import io
import json
import re
from xml.etree import ElementTree

import pytest
from rich.console import Console

from brim.session.session import Session
from brim.shell.render.context import build_report as context
from brim.shell.render.context_view import ContextView
from scripts.shell_scenes import COLUMNS, SCENES
from scripts.write_cast import animation, cast
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
    assert {path.stem for path in FOLDER.glob("*.svg")} == {*SCENES, "tour"}


def test_the_pictures_show_the_shell_as_it_is() -> None:
    """Play one scene; `make pictures` plays all of them."""
    kept = (FOLDER / "confirmation.svg").read_text(encoding="utf-8")
    assert texts(picture("confirmation")) == texts(kept)


def test_a_cast_takes_90_seconds_as_text_and_as_a_picture() -> None:
    lines = [json.loads(line) for line in (FOLDER / "tour.cast").read_text("utf-8").splitlines()]
    head, *events = lines
    assert (head["version"], head["width"]) == (2, COLUMNS)
    times = [time for time, kind, _ in events if kind == "o"]
    assert times == sorted(times)
    assert times[-1] == 90
    shown = "".join(text for _, _, text in events)
    for part in ("tail -n 5 app.log", "why is it locked", "clipped", ":context", "could cost"):
        assert part in shown, part


def test_an_animation_shows_one_frame_at_a_time() -> None:
    frames = [(30.0, "one"), (0.1, "short"), (59.9, "two")]
    drawn = animation(frames)
    shown = re.findall(r'keyTimes="0;([\d.]+);([\d.]+)"', drawn)
    assert shown == [("0.00000", "0.33333"), ("0.33333", "1.00000")]
    assert "short" not in drawn
    ElementTree.fromstring(drawn)
    assert len(cast(frames).splitlines()) == 5
