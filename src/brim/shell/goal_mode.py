"""Goal mode: the model plans and acts by itself, as far as its limits let it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final, Literal

from brim.errors import BrimError, StoreError
from brim.models.spending import format_dollars
from brim.shell.chat import restore_line, send, settle
from brim.shell.proposals import offer_commands
from brim.shell.routing import Route
from brim.shell.tool_calls import answer_calls

if TYPE_CHECKING:
    from brim.models.spending import SpendingTotal
    from brim.shell.state import Shell
    from brim.wire.reply import Reply


Kind = Literal["complete", "blocked", "open"]
Ending = Literal["complete", "blocked", "steps", "tokens", "money", "interrupted", "failed"]

REMINDER: Final = (
    "[brim] You neither did anything nor ended. Go on with the next action. If the goal is "
    "reached, write the line `GOAL: complete`; if you cannot go on, the line `GOAL: blocked` and "
    "why; no code block around it."
)
"""What a model is told that talked only."""
MAX_IDLE_REPLIES: Final = 3
"""So many answers in a row without an action end it."""

# Emphasis and backticks may stand around either part. Behind `complete` words must be set off:
# `GOAL: complete the tests` is a goal, and not its end.
_MARK: Final = r"[*_`]{0,3}"
_VERDICT: Final = re.compile(
    rf" {{0,3}}{_MARK}GOAL:{_MARK} {_MARK}(?:"
    rf"(?P<complete>complete){_MARK}(?P<summary>[.!]?{_MARK}\s*|(?:[.:;!]| +[-–—])\s.*| *\(.*)|"
    rf"(?P<blocked>blocked){_MARK}(?P<reason>[.!]?{_MARK}\s*|[.:;,!]\s.*|\s.*))"
)
_SET_OFF: Final = re.compile(r"^[\s.:;,!–—*_`-]*")
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")


@dataclass(frozen=True, slots=True)
class GoalLimits:
    """Where goal mode ends by itself."""

    max_steps: int = 25
    max_tokens: int = 500_000
    max_dollars: Decimal = Decimal(1)


@dataclass(frozen=True, slots=True)
class StepUsage:
    """What one request and its answer took."""

    tokens: int = 0
    """Prompt and answer together."""
    cost: Decimal | None = Decimal(0)
    """Dollars; None where the price is not known."""


@dataclass(frozen=True, slots=True)
class GoalVerdict:
    """What an answer says about the goal."""

    kind: Kind = "open"
    words: str = ""
    """What follows: a summary, or the reason."""


def build_goal_instructions(goal: str) -> str:
    """Return the system text for a model that works towards a goal."""
    return (
        "You work towards a goal by yourself, step by step, until it is reached.\n"
        "When it is reached, write a line that says exactly `GOAL: complete`; a summary may "
        "follow.\n"
        "When you cannot go on without help, write a line that says exactly `GOAL: blocked`, and "
        "why.\n"
        f"The goal: {goal}"
    )


def parse_verdict(text: str) -> GoalVerdict:
    """The verdict in an answer: the last line that is one, outside of code blocks."""
    lines = re.split(r"\r?\n", text)
    found = GoalVerdict()
    for index in _outside(lines):
        if (line := _VERDICT.fullmatch(lines[index])) is None:
            continue
        rest = line["summary"] if line["complete"] else line["reason"]
        rest = rest.rstrip("*_`") if line[0].lstrip()[0] in "*_`" else rest
        words = "\n".join([_SET_OFF.sub("", rest), *lines[index + 1 :]])
        found = GoalVerdict("complete" if line["complete"] else "blocked", words.strip())
    return found


def _outside(lines: list[str]) -> Iterator[int]:
    """Which lines stand outside of fenced code blocks."""
    fence = ""
    for index, line in enumerate(lines):
        mark = _FENCE.fullmatch(line)
        if fence:
            if mark and mark[1].startswith(fence) and not mark[2].strip():
                fence = ""
        elif mark and not (mark[1][0] == "`" and "`" in mark[2]):
            fence = mark[1]
        else:
            yield index


class Goal:
    """How far it has come."""

    def __init__(self, limits: GoalLimits | None = None) -> None:
        self.limits = limits or GoalLimits()
        self.steps = 0
        self.tokens = 0
        self.cost = Decimal(0)
        """Dollars, as far as they are known."""
        self.has_unknown_price = False
        """A step had a price that is not known."""
        self.ended: Ending | None = None
        self.words = ""
        """The model's last words about it, or what went wrong."""
        self._idle = 0

    def after(self, step: StepUsage, said: GoalVerdict, *, acted: bool) -> None:
        """Take in a step: what it took, what was said, and whether anything was done."""
        self.steps += 1
        self.tokens += step.tokens
        self.cost += step.cost or 0
        self.has_unknown_price |= step.cost is None
        self._idle = 0 if acted else self._idle + 1
        if said.kind != "open":
            self.end(said.kind, said.words)
        elif self._idle >= MAX_IDLE_REPLIES:
            self.end("blocked", f"{MAX_IDLE_REPLIES} answers in a row without an action")
        elif (limit := self._limit()) is not None:
            self.end(limit)

    def _limit(self) -> Ending | None:
        """The limit that is reached; what costs nothing never costs too much."""
        if self.steps >= self.limits.max_steps:
            return "steps"
        if self.tokens >= self.limits.max_tokens:
            return "tokens"
        return "money" if self.cost and self.cost >= self.limits.max_dollars else None

    def end(self, why: Ending, words: str = "") -> None:
        """End it; the first reason stays."""
        if self.ended is None:
            self.ended, self.words = why, words

    @property
    def progress(self) -> str:
        """The step that comes, and what was used of what there is."""
        limits = self.limits
        step = min(self.steps + 1, limits.max_steps) if self.ended is None else self.steps
        parts = [
            f"step {step:,} of {limits.max_steps:,}",
            f"{self.tokens:,} of {limits.max_tokens:,} tokens",
        ]
        if spent := self._spent():
            parts.append(f"{spent} of {_dollars(limits.max_dollars)}")
        return " · ".join(parts)

    @property
    def summary(self) -> str:
        """How it ended, in a line."""
        why = _ENDINGS[self.ended] if self.ended else "not ended"
        reason = "" if self.ended == "complete" else " ".join(self.words.split())
        used = [f"{self.steps:,} {'step' if self.steps == 1 else 'steps'}"]
        used += [f"{self.tokens:,} tokens", *filter(None, [self._spent()])]
        return f"goal {why}{f': {reason}' if reason else ''} · {' · '.join(used)}"

    def _spent(self) -> str:
        """What it has cost; nothing where no price is known."""
        if self.has_unknown_price and not self.cost:
            return ""
        return ("at least " if self.has_unknown_price else "") + _dollars(self.cost)


_ENDINGS: Final[dict[Ending, str]] = {
    "complete": "complete",
    "blocked": "blocked",
    "steps": "stopped at its limit of steps (goal.max_steps)",
    "tokens": "stopped at its limit of tokens (goal.max_tokens)",
    "money": "stopped at its limit of money (goal.max_dollars)",
    "interrupted": "interrupted",
    "failed": "failed",
}


def _dollars(amount: Decimal) -> str:
    """Cents, and more places only where there is not one cent."""
    return format_dollars(amount) if 0 < amount < Decimal("0.01") else format_dollars(amount, 2)


CONTINUE: Final = "[brim] That is what the commands printed. Go on towards the goal."


def pursue(shell: Shell, words: str) -> bool:
    """Work towards a goal until a limit or the model ends it; says whether it was reached."""
    limits = shell.config.goal
    goal = Goal(GoalLimits(limits.max_steps, limits.max_tokens, limits.max_dollars))
    before, shell.route = len(shell.session), Route()
    try:
        shell.conversation.say(words)
        shell.goal = words
        shell.driver.prompt.instructions = build_goal_instructions(words)
        shell.keep("goal", words=words)
        while goal.ended is None:
            _step(shell, goal)
    except KeyboardInterrupt:
        goal.end("interrupted")
    except StoreError as error:
        goal.end("failed", str(error))
    finally:
        settle(shell)
        _finish(shell, goal)
    restore_line(shell, before, f":goal {words}")
    return goal.ended == "complete"


def _step(shell: Shell, goal: Goal) -> None:
    """One request, and what the model wants done."""
    shell.screen.notice(goal.progress)
    before = shell.session.ledger.total
    acted, said, has_results = True, GoalVerdict(), False
    try:
        reply = send(shell, shell.route, "goal")
        acted, said, has_results = _act(shell, reply), parse_verdict(reply.text), bool(reply.calls)
    except KeyboardInterrupt:
        goal.end("interrupted")
    except (BrimError, OSError) as error:
        goal.end("failed", str(error))
    goal.after(_measure_step(before, shell.session.ledger.total), said, acted=acted)
    if goal.ended is None and not has_results:
        shell.conversation.urge(CONTINUE if acted else REMINDER)


def _act(shell: Shell, reply: Reply) -> bool:
    """Do what an answer asks for; says whether it asked for anything."""
    if reply.calls:
        if not answer_calls(shell, reply.calls, by_itself=True):
            raise KeyboardInterrupt
        return True
    if parse_verdict(reply.text).kind != "open":
        return False
    waiting = len(shell.driver.outputs)
    if not offer_commands(shell, reply.text, by_itself=True):
        raise KeyboardInterrupt
    return len(shell.driver.outputs) > waiting


def _measure_step(before: SpendingTotal, after: SpendingTotal) -> StepUsage:
    """What a step took; calls without a price may have come before it, and may be part of it."""
    cost = after.cost - before.cost
    return StepUsage(after.tokens - before.tokens, None if after.unknown and not cost else cost)


def _finish(shell: Shell, goal: Goal) -> None:
    shell.goal = shell.driver.prompt.instructions = None
    with suppress(StoreError):
        shell.keep("goal_ended", why=goal.ended, words=goal.words)
    show = shell.screen.notice if goal.ended == "complete" else shell.screen.warn
    show(shell.masker.mask(goal.summary).text)
