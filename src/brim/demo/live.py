"""The conversation on a screen: the words, the window, and what became of both clients."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from brim.demo import plain
from brim.demo.bars import LABEL, Scale, bar, cut, legend, verdict
from brim.demo.talk import REPLY, Talk, Turn

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

PAUSE: Final = 0.3
"""Seconds between two turns."""
READING: Final = 1.0
"""Seconds more where there is something to read."""
ANSWER: Final = 3
"""Lines for the model's words."""
COLORS: Final = {
    "system": "blue",
    "user": "green",
    "output": "yellow",
    "assistant": "cyan",
    "note": "magenta",
}


def show(talk: Talk, console: Console, *, fast: bool) -> None:
    from rich.live import Live

    was_refused = False
    with Live(console=console, auto_refresh=False) as live:
        for turn in talk.turns():
            live.update(screen(talk, turn, console), refresh=True)
            if turn.ended and not fast:
                news = turn.changed or turn.naive.refused > was_refused
                time.sleep(PAUSE + READING * news)
                was_refused = turn.naive.refused


def screen(talk: Talk, turn: Turn, console: Console) -> RenderableType:
    """One picture, of as many lines whatever it shows."""
    from rich.console import Group
    from rich.text import Text

    width, window = console.width, talk.server.window
    scale = Scale(width, window, window - REPLY)
    naive, plan = turn.naive, turn.plan
    refused = f"HTTP {naive.status}" if naive.refused else ""
    first, _, second = plain.title(talk).partition("\n")
    return Group(
        cut(f"brim · {first}", width, "bold"),
        cut(second, width, "dim"),
        Text(),
        cut(f"turn {turn.number} of {len(talk.lines)}", width, "bold"),
        *_words(turn, console),
        Text(),
        scale.marks(),
        Text("naive   ") + bar(scale, turn.whole, COLORS) + verdict(naive.tokens, refused),
        Text("brim    ")
        + bar(scale, turn.parts, COLORS)
        + verdict(plan.size, "" if plan.fits else "too long"),
        legend(COLORS),
        Text(),
        *_happened(turn, width),
        Text(),
        *_totals(talk, width),
    )


def _words(turn: Turn, console: Console) -> list[Text]:
    from rich.text import Text

    width = console.width
    output = plain.output_of(turn) if turn.clipped else ""
    answer = Text(plain.one_line(turn.answer), COLORS["assistant"])
    lines = list(answer.wrap(console, max(10, width - LABEL - 1)))[:ANSWER]
    lines += [Text()] * (ANSWER - len(lines))
    names = ["model", *[""] * (ANSWER - 1)]
    return [
        cut(f"{'output' if output else '':{LABEL}}{output}", width, COLORS["output"]),
        cut(f"{'you':{LABEL}}{turn.line.words}", width, COLORS["user"]),
        *(Text(f"{name:{LABEL}}") + line for name, line in zip(names, lines, strict=True)),
    ]


def _happened(turn: Turn, width: int) -> list[Text]:
    """What was done in this turn, in a fixed number of lines."""
    pinned = "nothing yet" if turn.pinned is None else plain.pin(turn)
    left_out = plain.cut(turn) if turn.plan.is_trimmed else "nothing"
    rows = {
        "left out": (left_out, "bold" if turn.changed else ""),
        "pinned": (pinned, ""),
        "counted": (plain.counts(turn), ""),
        "naive": (plain.verdict(turn.naive), "red" if turn.naive.refused else ""),
    }
    return [cut(f"{name:10}{text}", width, style) for name, (text, style) in rows.items()]


def _totals(talk: Talk, width: int) -> list[Text]:
    totals = talk.totals
    return [
        cut(f"naive   {totals.naive_refused} of {totals.turns} requests refused", width, "red"),
        cut(
            f"brim    {totals.refused} refused · {totals.sent:,} tokens, not {totals.naive:,} · "
            f"prefix changed {totals.changes}× · {totals.share:.0%} cached",
            width,
            "green",
        ),
    ]
