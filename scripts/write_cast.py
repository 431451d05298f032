"""Record a terminal cast of the shell: a log, a question, a full window, a trim, and a cap.

The shell, its terminal and the commands are real; the model is the script of the pictures. Times
are those of a reader, not of the machine, so that the cast takes 90 seconds everywhere.

    PYTHONPATH=. python scripts/write_cast.py       # docs/pictures/tour.cast and tour.svg
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from scripts import shop_talk
from scripts.shell_scenes import COLUMNS, PROMPT, Typist, at_work
from scripts.write_pictures import FOLDER, svg

SECONDS: Final = 90.0
ROWS: Final = 30
CAP: Final = "\n[cost]\ncap_at_dollars = 0.0094\n"
TITLE: Final = "90 seconds of brim"
KEYS: Final = 4
"""Keys per frame."""
LONG: Final = 5.0
"""Seconds for a screen that is worth reading."""
SHORTEST: Final = 0.35
"""Seconds; the animated picture leaves shorter frames out."""


@dataclass(slots=True)
class Recorder:
    """Screens with their times."""

    typist: Typist
    frames: list[tuple[float, str]] = field(default_factory=list)
    """The seconds that each screen is shown, and the screen."""

    def show(self, seconds: float) -> None:
        self.typist.terminal.settle()
        self.frames.append((seconds, self.typist.terminal.ansi()))

    def do(self, line: str, seconds: float = 1.0, until: str = PROMPT) -> None:
        """Type a line key by key, and show its result for some seconds."""
        terminal = self.typist.terminal
        for start in range(0, len(line), KEYS):
            terminal.type(line[start : start + KEYS])
            self.typist.at(line[: start + KEYS].rstrip())
            self.frames.append((0.09 * KEYS, terminal.ansi()))
        terminal.press("enter")
        self.typist.at(until)
        self.show(seconds)


def record() -> list[tuple[float, str]]:
    """Play the tour and return its frames, which take 90 seconds together."""
    with at_work(rows=ROWS, more=CAP) as typist:
        recorder = Recorder(typist)
        recorder.show(1)
        recorder.do("tail -n 5 app.log", 2)
        recorder.do("why is it locked, and what can I do?", LONG)
        for line in (*shop_talk.WORK, *shop_talk.MORE):
            typist.terminal.line(line)
            typist.at(PROMPT)
            recorder.show(0.8)
        recorder.frames[-1] = (LONG, recorder.frames[-1][1])
        recorder.do(":context", 2 * LONG)
        recorder.do("and what should I do first, in one word?", LONG, until="word?")
    total = sum(seconds for seconds, _ in recorder.frames)
    return [(seconds * SECONDS / total, screen) for seconds, screen in recorder.frames]


def cast(frames: list[tuple[float, str]]) -> str:
    """Return the frames in asciinema's format, version 2."""
    head = {"version": 2, "width": COLUMNS, "height": ROWS, "title": TITLE}
    lines, now = [json.dumps(head)], 0.0
    for seconds, screen in frames:
        drawn = "\x1b[H\x1b[2J" + screen.replace("\n", "\r\n")
        lines.append(json.dumps([round(now, 3), "o", drawn]))
        now += seconds
    lines.append(json.dumps([round(now, 3), "o", ""]))
    return "\n".join(lines) + "\n"


def animation(frames: list[tuple[float, str]]) -> str:
    """Return an SVG that shows the frames one after another, again and again."""
    kept = list(_merge_short(frames))
    starts = [0.0]
    for seconds, _ in kept:
        starts.append(starts[-1] + seconds / SECONDS)
    pictures = []
    for (_, screen), (start, end) in zip(kept, pairwise(starts), strict=True):
        rows = screen.split("\n")[:ROWS]
        drawn = svg("\n".join([*rows, *[" "] * (ROWS - len(rows))]), TITLE, COLUMNS)
        times = f'values="hidden;visible;hidden" keyTimes="0;{start:.5f};{min(end, 1):.5f}"'
        pictures.append(
            f'<g visibility="hidden"><animate attributeName="visibility" {times} '
            f'calcMode="discrete" dur="{SECONDS:g}s" repeatCount="indefinite"/>{drawn}</g>'
        )
    size = re.search(r'viewBox="([^"]*)"', pictures[0])
    assert size is not None
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size[1]}" role="img"'
    return f'{head} aria-label="{TITLE}">\n' + "\n".join(pictures) + "\n</svg>\n"


def _merge_short(frames: list[tuple[float, str]]) -> Iterator[tuple[float, str]]:
    """Yield the frames that can be seen; a short one lends its time to the next."""
    waiting = 0.0
    for place, (seconds, screen) in enumerate(frames):
        waiting += seconds
        if waiting >= SHORTEST or place == len(frames) - 1:
            yield waiting, screen
            waiting = 0.0


def main(folder: Path = FOLDER) -> None:
    frames = record()
    for name, text in (("tour.cast", cast(frames)), ("tour.svg", animation(frames))):
        (folder / name).write_text(text, encoding="utf-8")
        print(f"wrote docs/pictures/{name}")


if __name__ == "__main__":
    main()
