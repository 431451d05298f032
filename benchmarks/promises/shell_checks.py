"""Checks a conversation from the outside: its stored events, and the relay's records.

It does not use brim's code: it reads the database directly.
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

from benchmarks.promises.relay import Exchange, select_exchanges

_PLANNED_COMMAND: Final = re.compile(r"echo ((?:made|proposed)-[\d-]+)")
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
class TypedInput:
    """The actions at the keyboard."""

    sent: list[str] = field(default_factory=list)
    """Lines that must be stored in this order."""
    maybe: set[str] = field(default_factory=set)
    """Lines sent at the moment of a kill: they may be stored, but only once."""
    interrupted: set[str] = field(default_factory=set)
    """Lines whose reply was interrupted."""
    printed: list[str] = field(default_factory=list)
    """The expected outputs of finished commands."""


def read_events(state: Path) -> list[Event]:
    """Return all events on disk."""
    with closing(sqlite3.connect(state / "brim.sqlite3")) as base:
        rows = base.execute("SELECT session, kind, data FROM events ORDER BY session, number")
        return [Event(session, kind, json.loads(data)) for session, kind, data in rows]


def read_spending(state: Path) -> float:
    """Return the dollars that were recorded or are reserved."""
    with closing(sqlite3.connect(state / "brim.sqlite3")) as base:
        rows = base.execute("SELECT cost FROM spending UNION ALL SELECT cost FROM reservations")
        return sum(float(cost) for (cost,) in rows)


def select_turns(events: Sequence[Event]) -> list[Mapping[str, Any]]:
    return [event.data["message"] for event in events if event.kind == "turn"]


def find_problems(
    events: Sequence[Event], exchanges: Sequence[Exchange], typed: TypedInput, window: int
) -> Iterator[str]:
    """Return descriptions of all errors."""
    if (sessions := len({event.session for event in events})) != 1:
        yield f"there are {sessions} conversations"
    yield from (f"taken back: {event.data}" for event in events if event.kind == "back")
    turns = select_turns(events)
    yield from _check_lines(turns, typed)
    yield from _check_replies(turns, exchanges, typed)
    yield from _check_outputs(events, exchanges, typed)
    yield from _check_requests(exchanges, typed, window)


def count_kept_replies(events: Sequence[Event], typed: TypedInput) -> int:
    """Return the number of interrupted replies of which a part is stored."""
    turns = select_turns(events)
    return sum(
        turn["content"] in typed.interrupted and following["role"] == "assistant"
        for turn, following in pairwise(turns)
    )


def _check_lines(turns: Sequence[Mapping[str, Any]], typed: TypedInput) -> Iterator[str]:
    """Check that every line is stored once, in the order of input."""
    lines = [turn["content"] for turn in turns if turn["role"] == "user"]
    times = Counter(lines)
    yield from (f"lost: {line!r}" for line in typed.sent if not times[line])
    yield from (f"there {number} times: {line!r}" for line, number in times.items() if number > 1)
    if [line for line in lines if line not in typed.maybe] != typed.sent:
        yield f"{len(lines)} lines in the file are not the {len(typed.sent)} that were sent"


def _check_replies(
    turns: Sequence[Mapping[str, Any]], exchanges: Sequence[Exchange], typed: TypedInput
) -> Iterator[str]:
    """Check that every stored reply is the server's, up to a disconnect of the client."""
    for turn, following in zip(turns, [*turns[1:], {"role": "none"}], strict=True):
        if turn["role"] != "user":
            continue
        line, answered = turn["content"], select_exchanges(exchanges, turn["content"])
        sent = answered[0].text if answered else ""
        is_answered = following["role"] == "assistant"
        kept = following.get("content") or "" if is_answered else ""
        if line in typed.interrupted and not sent.startswith(kept):
            yield f"the interrupted answer to {line!r} is {kept!r}, not of {sent!r}"
        elif line not in typed.interrupted and not (is_answered and kept == sent):
            yield f"the answer to {line!r} is {kept!r}, not {sent!r}"


def _check_outputs(
    events: Sequence[Event], exchanges: Sequence[Exchange], typed: TypedInput
) -> Iterator[str]:
    """Check that every command is stored once, and its output was sent with the next message."""
    commands = [event.data["command"] for event in events if event.kind == "ran"]
    ran = [found[1] for found in map(_PLANNED_COMMAND.match, commands) if found]
    if ran != typed.printed:
        yield f"{len(ran)} commands in the file, {len(typed.printed)} were run"
    waiting: list[str] = []
    for event in events:
        if event.kind == "output":
            waiting.append(event.data["text"])
        elif event.kind == "turn" and event.data["message"]["role"] == "user":
            yield from _check_output(event.data["message"], "\n\n".join(waiting), exchanges)
            waiting.clear()


def _check_output(
    turn: Mapping[str, Any], output: str, exchanges: Sequence[Exchange]
) -> Iterator[str]:
    line, sent = turn["content"], turn.get("_output", "")
    if sent != output:
        yield f"with {line!r} was sent {sent!r}, not {output!r}"
    for each in select_exchanges(exchanges, line):
        if sent not in each.last_text and _CLIPPED not in each.last_text:
            yield f"not sent with {line!r}: {sent!r}"


def _check_requests(exchanges: Sequence[Exchange], typed: TypedInput, window: int) -> Iterator[str]:
    """Check that every line was sent once, was accepted, and fitted."""
    times = {line: len(select_exchanges(exchanges, line)) for line in typed.sent}
    yield from (f"sent {number} times: {line!r}" for line, number in times.items() if number != 1)
    yield from (f"status {each.status}" for each in exchanges if each.status >= 400)
    tokens = [each.prompt_tokens for each in exchanges]
    yield from (f"{size:,} tokens in a window of {window:,}" for size in tokens if size > window)


def is_sum_correct(lines: Sequence[str], window: int) -> bool:
    """Return whether the rows of `:context` add up to the window."""
    rows = [int(row["tokens"].replace(",", "")) for row in map(_ROW.match, lines) if row]
    over = _OVER.search("\n".join(lines))
    whole = window + (int(over[1].replace(",", "")) if over else 0)
    return len(rows) > 2 and rows[-1] == whole == sum(rows[:-1])
