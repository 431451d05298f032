"""Checks a conversation from the outside: its stored events, and the relay's records.

Nothing here asks brim: the file is read as any program reads it.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from benchmarks.promises.relay import Exchange, answering

_OURS: Final = re.compile(r"echo ((?:made|proposed)-[\d-]+)")
_CLIPPED: Final = "[brim: about "
"""Replaces content that did not fit a request."""
_ROW: Final = re.compile(r"^\S? +(?P<name>\S.*?) {2,}(?P<tokens>[\d,]+)( |$)")
_OVER: Final = re.compile(r"over by ([\d,]+) tokens")


@dataclass(frozen=True)
class Event:
    """A stored event."""

    session: str
    kind: str
    data: Mapping[str, Any]


@dataclass
class Done:
    """The actions at the keyboard."""

    said: list[str] = field(default_factory=list)
    """Lines that must be stored in this order."""
    maybe: set[str] = field(default_factory=set)
    """Lines sent at the moment of a kill: they may be stored, but only once."""
    broken: set[str] = field(default_factory=set)
    """Lines whose reply was interrupted."""
    printed: list[str] = field(default_factory=list)
    """The expected outputs of finished commands."""


def events_in(state: Path) -> list[Event]:
    """Return all events on disk."""
    with closing(sqlite3.connect(state / "brim.sqlite3")) as base:
        rows = base.execute("SELECT session, kind, data FROM events ORDER BY session, number")
        return [Event(session, kind, json.loads(data)) for session, kind, data in rows]


def turns_of(events: Sequence[Event]) -> list[Mapping[str, Any]]:
    return [event.data["message"] for event in events if event.kind == "turn"]


def wrong(
    events: Sequence[Event], exchanges: Sequence[Exchange], done: Done, window: int
) -> Iterator[str]:
    """Return descriptions of all errors."""
    if (sessions := len({event.session for event in events})) != 1:
        yield f"there are {sessions} conversations"
    yield from (f"taken back: {event.data}" for event in events if event.kind == "back")
    turns = turns_of(events)
    yield from _wrong_lines(turns, done)
    yield from _wrong_answers(turns, exchanges, done)
    yield from _wrong_outputs(events, exchanges, done)
    yield from _wrong_requests(exchanges, done, window)


def kept(events: Sequence[Event], done: Done) -> int:
    """Return the number of interrupted replies of which a part is stored."""
    turns = turns_of(events)
    return sum(
        turn["content"] in done.broken and following["role"] == "assistant"
        for turn, following in pairwise(turns)
    )


def _wrong_lines(turns: Sequence[Mapping[str, Any]], done: Done) -> Iterator[str]:
    """Check that every line is stored once, in the order of input."""
    lines = [turn["content"] for turn in turns if turn["role"] == "user"]
    times = Counter(lines)
    yield from (f"lost: {line!r}" for line in done.said if not times[line])
    yield from (f"there {number} times: {line!r}" for line, number in times.items() if number > 1)
    if [line for line in lines if line not in done.maybe] != done.said:
        yield f"{len(lines)} lines in the file are not the {len(done.said)} that were sent"


def _wrong_answers(
    turns: Sequence[Mapping[str, Any]], exchanges: Sequence[Exchange], done: Done
) -> Iterator[str]:
    """Check that every stored reply is the server's, up to a disconnect of the client."""
    for turn, following in zip(turns, [*turns[1:], {"role": "none"}], strict=True):
        if turn["role"] != "user":
            continue
        line, sent = turn["content"], answering(exchanges, turn["content"])
        said = sent[0].text if sent else ""
        is_answered = following["role"] == "assistant"
        kept = following.get("content") or "" if is_answered else ""
        if line in done.broken and not said.startswith(kept):
            yield f"the broken answer to {line!r} is {kept!r}, not of {said!r}"
        elif line not in done.broken and not (is_answered and kept == said):
            yield f"the answer to {line!r} is {kept!r}, not {said!r}"


def _wrong_outputs(
    events: Sequence[Event], exchanges: Sequence[Exchange], done: Done
) -> Iterator[str]:
    """Check that every command is stored once, and its output was sent with the next message."""
    commands = [event.data["command"] for event in events if event.kind == "ran"]
    ran = [found[1] for found in map(_OURS.match, commands) if found]
    if ran != done.printed:
        yield f"{len(ran)} commands in the file, {len(done.printed)} were run"
    waiting: list[str] = []
    for event in events:
        if event.kind == "output":
            waiting.append(event.data["text"])
        elif event.kind == "turn" and event.data["message"]["role"] == "user":
            yield from _wrong_output(event.data["message"], "\n\n".join(waiting), exchanges)
            waiting.clear()


def _wrong_output(
    turn: Mapping[str, Any], output: str, exchanges: Sequence[Exchange]
) -> Iterator[str]:
    line, said = turn["content"], turn.get("_output", "")
    if said != output:
        yield f"with {line!r} went {said!r}, not {output!r}"
    for each in answering(exchanges, line):
        if said not in each.last_words and _CLIPPED not in each.last_words:
            yield f"not sent with {line!r}: {said!r}"


def _wrong_requests(exchanges: Sequence[Exchange], done: Done, window: int) -> Iterator[str]:
    """Check that every line was sent once, was accepted, and fitted."""
    times = {line: len(answering(exchanges, line)) for line in done.said}
    yield from (f"sent {number} times: {line!r}" for line, number in times.items() if number != 1)
    yield from (f"status {each.status}" for each in exchanges if each.status >= 400)
    tokens = [each.prompt_tokens for each in exchanges]
    yield from (f"{size:,} tokens in a window of {window:,}" for size in tokens if size > window)


def adds_up(lines: Sequence[str], window: int) -> bool:
    """Return whether the rows of `:context` add up to the window."""
    rows = [int(row["tokens"].replace(",", "")) for row in map(_ROW.match, lines) if row]
    over = _OVER.search("\n".join(lines))
    whole = window + (int(over[1].replace(",", "")) if over else 0)
    return len(rows) > 2 and rows[-1] == whole == sum(rows[:-1])
