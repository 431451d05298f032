"""The conversation in lines, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from textwrap import wrap
from typing import TYPE_CHECKING, Final

import click

from brim.demo.bars import Part
from brim.demo.paths import command, recording, short
from brim.demo.talk import REPLY, Talk, Totals, Turn, left_out

if TYPE_CHECKING:
    from brim.demo.naive import Outcome

LETTERS: Final = {"system": "S", "user": "u", "output": "o", "assistant": "a", "note": "n"}
COLUMNS: Final = 56
"""Of the bar that is the window."""
WIDTH: Final = 79


def show(talk: Talk) -> None:
    """Each turn as soon as it has ended."""
    click.echo(f"{title(talk)}\n{_legend()}\n")
    for turn in talk.turns():
        if turn.ended:
            click.echo("\n".join([*lines(turn, talk.server.window), ""]))


def title(talk: Talk) -> str:
    window = talk.server.window
    return (
        f"{len(talk.lines)} turns with {talk.server.model}, on this machine\n"
        f"window {window:,} = {window - REPLY:,} for the prompt + {REPLY} for the answer"
    )


def _legend() -> str:
    roles = ", ".join(f"{letter} {role}" for role, letter in LETTERS.items())
    return (
        "naive: the same words and answers, sent whole by a client that knows no limit\n"
        f"in the bars: {roles}; | the limit"
    )


def lines(turn: Turn, window: int) -> list[str]:
    """A turn in words."""
    rows = [("you", turn.line.words)]
    if turn.clipped:
        rows.insert(0, ("output", output_of(turn)))
    rows += [
        ("model", one_line(turn.answer)),
        ("brim", f"[{bar(turn.parts, window)}]"),
        ("", counts(turn)),
    ]
    if turn.plan.is_trimmed:
        rows.append(("", cut(turn)))
    if turn.line.pinned or (turn.changed and turn.pinned is not None):
        rows.append(("", f"pinned: {pin(turn)}"))
    rows.append(("naive", verdict(turn.naive)))
    first = [f"turn {turn.number}", *[""] * len(rows)]
    return [line for row, name in zip(rows, first, strict=False) for line in _wrapped(name, *row)]


def _wrapped(name: str, who: str, text: str) -> list[str]:
    start = f"{name:8}{who:8}"
    return wrap(text, WIDTH, initial_indent=start, subsequent_indent=" " * len(start))


def bar(parts: Sequence[Part], window: int) -> str:
    """The window, a letter a role."""
    filled = ""
    for (role, _), end in zip(parts, accumulate(tokens for _, tokens in parts), strict=True):
        filled += LETTERS[role] * (round(COLUMNS * end / window) - len(filled))
    limit = round(COLUMNS * (window - REPLY) / window)
    return f"{filled[:limit]:.<{limit}}|{'':.<{COLUMNS - limit}}"


def output_of(turn: Turn) -> str:
    whole, kept = turn.clipped or (0, 0)
    clipped = f", clipped to {kept:,}" if kept < whole else ""
    return f"`{turn.line.command}` printed {whole:,} tokens{clipped}"


def counts(turn: Turn) -> str:
    """What brim took the request for, beside what the server says."""
    plan, usage = turn.plan, turn.usage
    known = "counted" if plan.exact else "estimated"
    if plan.server_tokens is not None:
        known = "asked of the server"
    said = f"{plan.size:,} of {plan.limit:,} tokens, {known}"
    if usage is None:
        return said
    return f"{said}; server: {usage.input:,}, {usage.cached:,} cached"


def cut(turn: Turn) -> str:
    """What is left out and why; in short, where it is what was left out before."""
    if turn.changed:
        return left_out(turn.plan)
    outcomes = ", ".join(
        f"{outcome} {number}" for outcome, number in turn.plan.outcome_counts().items()
    )
    return f"as before: {outcomes}"


def pin(turn: Turn) -> str:
    if turn.line.pinned:
        return "this turn is never left out"
    return "that turn is still sent" if turn.pinned else "that turn is not sent"


def verdict(naive: Outcome) -> str:
    if naive.status is None:
        return f"{naive.tokens:,} tokens, still fits (counted, not sent)"
    if not naive.refused:
        return f"{naive.tokens:,} tokens, HTTP {naive.status}"
    sizes = f"{naive.counted or naive.tokens:,} tokens, window {naive.window or 0:,}"
    return f"HTTP {naive.status} {naive.error}: {sizes}"


def one_line(text: str) -> str:
    """Text of a model, with nothing in it that a terminal would obey."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def tally(totals: Totals) -> str:
    """Who was refused how often."""
    since = "" if totals.first_refused is None else f", from turn {totals.first_refused} on"
    return (
        f"{totals.turns} {'turn' if totals.turns == 1 else 'turns'}. "
        f"Sent whole, {totals.naive_refused} got HTTP 400{since}. "
        f"With brim: {totals.refused or 'none'}."
    )


def summary(totals: Totals) -> str:
    """What came of it, and what to try next."""
    return f"""
{tally(totals)}
Prompt tokens sent: {totals.sent:,}. All that was said, each time anew: {totals.naive:,}.
The prefix changed {times(totals.changes)}; {totals.share:.0%} of the tokens came from the \
server's cache.

The model is small and often wrong. What to try next:

  {command()} fit {short(str(recording()))} --window 4096 --dry-run --explain
  {command()} local serve --port 8080 --key ""

and in Python, with that server or any other:

  import brim
  chat = brim.Session(system="Answer briefly.")
  with brim.Client("http://127.0.0.1:8080") as client:
      chat.user("Why is the sky blue?")
      print(client.send(chat, max_tokens=100).text)
"""


def times(number: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(number, f"{number} times")
