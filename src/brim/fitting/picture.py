"""A plan as a picture: the history by outcome, and the window that the request takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby
from typing import Final, NamedTuple

COLORS: Final = {
    "kept": "#4c9f70",
    "clipped": "#e0a93b",
    "masked": "#c77d3a",
    "summarized": "#7d6fb2",
    "dropped": "#b0483f",
    "reply": "#7fa7c9",
    "free": "#dddddd",
}
SIGNS: Final = {"kept": "█", "clipped": "▓", "masked": "▒", "summarized": "▒", "dropped": "░"}
_ROW: Final = "display:flex;align-items:center;margin:2px 0"
_BAR: Final = "display:flex;flex:1 0 0;height:18px"


class Segment(NamedTuple):
    """A part of a bar."""

    name: str
    tokens: int
    title: str = ""


def join_segments(segments: Iterable[Segment]) -> list[Segment]:
    """Return the segments with neighbors of the same name and title joined."""
    return [
        Segment(name, sum(each.tokens for each in group), title)
        for (name, title), group in groupby(segments, lambda each: (each.name, each.title))
    ]


def render_html(summary: str, history: Sequence[Segment], window: Sequence[Segment]) -> str:
    """Return HTML without scripts: the history by outcome, the window, and the colors."""
    legend = " ".join(
        f'<span style="color:{COLORS[name]}">■</span> {name}'
        for name in dict.fromkeys(each.name for each in (*history, *window))
    )
    return (
        f"<div><div>{escape(summary)}</div>{_render_bar('history', history)}"
        f"{_render_bar('window', window)}<small>{legend}</small></div>"
    )


def _render_bar(label: str, segments: Sequence[Segment]) -> str:
    parts = "".join(
        f'<div title="{escape(f"{each.name}: {each.tokens:,} tokens {each.title}".strip())}" '
        f'style="flex:{each.tokens} 0 0;background:{COLORS[each.name]}"></div>'
        for each in segments
        if each.tokens
    )
    return (
        f'<div style="{_ROW}"><small style="width:5em">{label}</small>'
        f'<div style="{_BAR}" role="img" aria-label="{label}">{parts}</div></div>'
    )


def render_line(segments: Sequence[Segment], width: int = 60) -> str:
    """Return the history as one line: a sign for each share of its tokens."""
    total = sum(each.tokens for each in segments) or 1
    line, done, drawn = "", 0, 0
    for each in segments:
        done += each.tokens
        end = round(width * done / total)
        line += SIGNS[each.name] * (end - drawn)
        drawn = end
    return line
