"""A recorded run of an agent, kept inside a small window turn by turn.

The run is a real one (`data/demo.json` says whose). Nothing is sent anywhere: every request is
made, counted and compared with what a client would have sent that knows no limit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

import click

import brim
from brim.demo.bars import Part, Scale, bar, cut, legend, verdict
from brim.demo.paths import command, recording, short
from brim.fitting import explain

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from brim.fitting.plan import Plan

MODEL: Final = "gpt-4o"
WINDOW: Final = 4_096
POLICY: Final = "steady"
TICK: Final = 0.08
"""Seconds between two pictures."""
GROWING: Final = 3
"""Pictures of a request that grows."""
HOLDING: Final = 3
READING: Final = 6
"""Pictures more where there is something to read."""
DETAILS: Final = 6
"""Lines for what was done."""
COLORS: Final = {
    "system": "blue",
    "user": "green",
    "assistant": "cyan",
    "tool": "yellow",
    "note": "magenta",
}

Message = Mapping[str, Any]


# The run


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of the run."""

    number: int
    said: str
    """What happened since the last request, in a line."""
    plan: Plan
    parts: list[Part]
    """What is sent, in order."""
    grown: list[Part]
    """What would have been sent without a change of what was sent before."""
    whole: list[Part]
    """What a client sends that knows no limit."""
    changed: bool
    """Whether anything that was sent before is not sent again as it was."""
    cached: int
    """Tokens at the front that were sent before just so: a prompt cache has them."""

    @property
    def refused(self) -> bool:
        """Whether the naive client's request is too long."""
        return self.plan.before > self.plan.limit


@dataclass(slots=True)
class Totals:
    """The run so far."""

    requests: int = 0
    refused: int = 0
    sent: int = 0
    naive: int = 0
    cached: int = 0
    changes: int = 0
    turns: list[Turn] = field(default_factory=list)

    def add(self, turn: Turn) -> None:
        self.requests += 1
        self.refused += turn.refused
        self.sent += turn.plan.tokens
        self.naive += turn.plan.before
        self.cached += turn.cached
        self.changes += turn.changed
        self.turns.append(turn)

    @property
    def share(self) -> float:
        """The part of all prompt tokens that a cache would have had."""
        return self.cached / self.sent if self.sent else 0.0


def load() -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = json.loads(recording().read_text(encoding="utf-8"))["messages"]
    return messages


def play(messages: Sequence[Message], policy: str = POLICY) -> Iterator[Turn]:
    """The requests of a run: one before each turn of the assistant."""
    session = brim.Session(MODEL, window=WINDOW, policy=policy)
    sent: list[Message] = []
    since: list[Message] = []
    number = 0
    for message in messages:
        if message["role"] == "assistant":
            number += 1
            request = session.request()
            same = _common(sent, request.messages)
            yield Turn(
                number,
                _in_a_line(since),
                request.plan,
                [_part(each) for each in request.messages],
                [_part(each) for each in (*sent, *since)],
                [_part(each) for each in messages[: len(session.history) + 1]],
                changed=same < len(sent),
                cached=sum(_part(each)[1] for each in request.messages[:same]),
            )
            sent, since = list(request.messages), []
        session.append(message)
        since.append(message)


def _common(before: Sequence[Message], now: Sequence[Message]) -> int:
    pairs = zip(before, now, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _part(message: Message) -> Part:
    content = message.get("content")
    is_note = message["role"] != "system" and str(content).startswith("[brim: ")
    tokens = brim.count([message], model=MODEL)
    return "note" if is_note else message["role"], tokens - tokens.parts["framing"]


def _in_a_line(since: Sequence[Message]) -> str:
    """What was said last: the call and what came of it, or the words."""
    calls = [call["function"] for each in since for call in each.get("tool_calls") or ()]
    said = f"{since[-1]['role']}: {since[-1].get('content') or ''}"
    if calls:
        said = f"{calls[-1]['name']}({calls[-1]['arguments']}) → {since[-1].get('content') or '∅'}"
    return " ".join(said.split())


# In lines


def show(console: Console | None, *, fast: bool) -> None:
    """The run, drawn where there is something to draw on, and what came of it."""
    messages = load()
    totals = show_live(messages, console, fast=fast) if console else show_plainly(messages)
    click.echo(summary(totals, messages))


def show_plainly(messages: Sequence[Message]) -> Totals:
    totals = Totals()
    click.echo(f"{_title(messages)}\n")
    for turn in play(messages):
        totals.add(turn)
        plan = turn.plan
        naive = "refused" if turn.refused else "sent"
        cut = f"cut: {_tally(plan)}" if turn.changed else ""
        line = f"request {turn.number:2}  {plan.before:6,} tokens   naive: {naive:7}"
        click.echo(f"{line}   brim: {plan.tokens:5,} of {plan.limit:,}   {cut}".rstrip())
    return totals


def _title(messages: Sequence[Message]) -> str:
    tokens = brim.count(messages, model=MODEL)
    reply = WINDOW // 4
    return (
        f"{len(messages)} messages, {tokens:,} tokens: a case of an airline's support agent\n"
        f"window {WINDOW:,} = {WINDOW - reply:,} for the prompt + {reply:,} for the reply"
    )


def _tally(plan: Plan) -> str:
    return (
        ", ".join(f"{outcome} {number}" for outcome, number in plan.outcome_counts().items())
        or "nothing"
    )


def summary(totals: Totals, messages: Sequence[Message]) -> str:
    sliding = Totals()
    for turn in play(messages, "sliding"):
        sliding.add(turn)
    return f"""
{totals.requests} requests. A naive client: {totals.refused} refused, context_length_exceeded. \
brim: none.
Prompt tokens sent {totals.sent:,}; with the whole history {totals.naive:,} \
({1 - totals.sent / totals.naive:.0%} saved).
The prefix changed {totals.changes} times; a prompt cache would have served {totals.share:.0%} \
of the tokens.
Dropping the oldest instead (sliding): {sliding.changes} times, {sliding.share:.0%}.

Next, the same on the command line, with what happened to each message:

  {command()} fit {short(str(recording()))} --window {WINDOW} --dry-run --explain

and in Python:

  import brim
  request = brim.fit(messages, model="{MODEL}", reply=1_000)
  client.chat.completions.create(**request)
"""


# On a screen


def show_live(messages: Sequence[Message], console: Console, *, fast: bool) -> Totals:
    """Draw each request as it grows and is cut."""
    from rich.live import Live

    totals = Totals()
    edit: Turn | None = None
    with Live(console=console, auto_refresh=False) as live:

        def draw(turn: Turn, parts: Sequence[Part], whole: Sequence[Part], pictures: int) -> None:
            view = View(messages, turn, parts, whole, edit, totals, console.width)
            live.update(_screen(view), refresh=True)
            if not fast:
                time.sleep(TICK * pictures)

        for turn in play(messages):
            before = totals.turns[-1] if totals.turns else None
            for step in range(1, GROWING + 1):
                parts = _between(before.parts if before else [], turn.grown, step / GROWING)
                whole = _between(before.whole if before else [], turn.whole, step / GROWING)
                draw(turn, parts, whole, 1)
            totals.add(turn)
            edit = turn if turn.changed else edit
            draw(turn, turn.parts, turn.whole, HOLDING + READING * turn.changed)
    return totals


def _between(before: Sequence[Part], after: Sequence[Part], share: float) -> list[Part]:
    """A bar on its way: what was there, and a share of what came."""
    kept = len(before)
    return [*after[:kept], *((role, round(tokens * share)) for role, tokens in after[kept:])]


@dataclass(frozen=True, slots=True)
class View:
    """What one picture shows."""

    messages: Sequence[Message]
    turn: Turn
    parts: Sequence[Part]
    whole: Sequence[Part]
    edit: Turn | None
    """The last request that changed what was sent before."""
    totals: Totals
    width: int


def _screen(view: View) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    requests = sum(message["role"] == "assistant" for message in view.messages)
    scale = Scale(view.width, WINDOW, view.turn.plan.limit)
    return Group(
        Text.assemble(("brim", "bold"), (f" · {_title(view.messages)}", "dim")),
        Text(),
        Text(f"request {view.turn.number} of {requests}", "bold"),
        cut(view.turn.said, view.width),
        Text(),
        scale.marks(),
        Text("naive   ") + _drawn(scale, view.whole, "refused"),
        Text("brim    ") + _drawn(scale, view.parts, "too long"),
        legend(COLORS),
        Text(),
        *_details(view.edit, view.width),
        Text(),
        *_totals(view.totals),
    )


def _drawn(scale: Scale, parts: Sequence[Part], over: str) -> Text:
    tokens = sum(tokens for _, tokens in parts) + brim.count([], model=MODEL)
    return bar(scale, parts, COLORS) + verdict(tokens, over if tokens > scale.limit else "")


def _details(edit: Turn | None, width: int) -> list[Text]:
    """The last cut in words, in a fixed number of lines."""
    if edit is None:
        lines = ["Nothing has been left out yet."]
    else:
        lines = [f"Cut at request {edit.number}: {edit.plan}"]
        rows = [row for row in explain.build_rows(edit.plan) if row.outcome != "kept"]
        lines += [
            f"  {row.place or 'note':7} {row.outcome:8} "
            f"{row.before:6,} → {row.after:<6,} {row.reason}"
            for row in rows
        ]
        if len(lines) > DETAILS:
            lines[DETAILS - 1 :] = [f"  ... and {len(lines) - DETAILS + 1} more"]
    lines += [""] * (DETAILS - len(lines))
    return [cut(line, width, "bold" if at == 0 else "") for at, line in enumerate(lines)]


def _totals(totals: Totals) -> list[Text]:
    from rich.text import Text

    saved = totals.naive - totals.sent
    return [
        Text(f"naive   {totals.refused} of {totals.requests} requests refused", "red"),
        Text(
            f"brim    0 refused · {saved:,} tokens saved · {totals.changes} changes of the prefix"
            f" · {totals.share:.0%} cached",
            "green",
        ),
    ]
