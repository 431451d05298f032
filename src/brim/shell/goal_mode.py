"""Goal mode: the model plans and acts on its own until the goal is reached or a limit ends it.

The model reports the end itself, on a line `GOAL: complete` or `GOAL: blocked`. If it does neither
and does not act, it gets a reminder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final, Literal

from brim.errors import BrimError, InputError, StoreError
from brim.fitting.text_tables import format_count
from brim.models.pricing import format_dollars
from brim.shell.chat import restore_line, send, settle
from brim.shell.edit_proposals import offer_edits
from brim.shell.model_clients import Route
from brim.shell.proposals import offer_commands
from brim.shell.sandbox import choose_sandbox
from brim.shell.tool_calls import answer_calls

if TYPE_CHECKING:
    from brim.config import GoalConfig
    from brim.models.pricing import SpendingTotal
    from brim.shell.sandbox import Sandbox
    from brim.shell.state import Shell
    from brim.wire.reply import Reply

Kind = Literal["complete", "blocked", "open"]
Ending = Literal["complete", "blocked", "steps", "tokens", "money", "interrupted", "failed"]

CONTINUE: Final = "[brim] The output of your commands is above. Continue towards the goal."
REMINDER: Final = (
    "[brim] Your reply contains no action. Continue with the next one. If the goal is reached, "
    "write the line `GOAL: complete`. If you cannot continue, write the line `GOAL: blocked` and "
    "the reason. Do not put it into a code block."
)
"""Sent to a model that neither acted nor ended."""
MAX_IDLE_REPLIES: Final = 3
"""Consecutive replies without an action after which goal mode ends."""


SANDBOX_NOTE: Final = (
    "Commands that change something run in a sandbox: only files in {project} can be changed, "
    "{network}. Each runs in a new shell; only `cd` on a line of its own lasts.\n"
)


def build_goal_instructions(goal: str, sandbox: Sandbox | None = None) -> str:
    """Return the system prompt for a model that works towards a goal."""
    network = "connections are allowed" if sandbox and sandbox.network else "there is no network"
    note = SANDBOX_NOTE.format(project=sandbox.project, network=network) if sandbox else ""
    return note + (
        "Work towards the goal below on your own, step by step, until it is reached.\n"
        "Avoid destructive operations unless the goal requires them.\n"
        "If a step fails, find out why, and make a new plan before you continue.\n"
        "A note tells you if a command was skipped: it did not run, so continue without it.\n"
        "When it is reached, write a line with exactly `GOAL: complete`; a summary may follow.\n"
        "If you cannot continue without help, write a line with exactly `GOAL: blocked`, followed "
        "by the reason.\n"
        f"The goal: {goal}"
    )


def pursue(shell: Shell, text: str) -> bool:
    """Work towards a goal until the model or a limit ends it; return whether it was reached."""
    goal = Goal(shell.config.goal)
    before, shell.route = len(shell.session), Route()
    shell.sandbox = _open_sandbox(shell)
    try:
        shell.conversation.add_message(text)
        shell.goal = text
        shell.driver.prompt.instructions = build_goal_instructions(text, shell.sandbox)
        shell.save("goal", words=text)
        while goal.ended is None:
            _run_step(shell, goal)
    except KeyboardInterrupt:
        goal.end("interrupted")
    except StoreError as error:
        goal.end("failed", str(error))
    finally:
        settle(shell)
        _finish(shell, goal)
    restore_line(shell, before, f":goal {text}")
    return goal.ended == "complete"


def _open_sandbox(shell: Shell) -> Sandbox | None:
    """Return where commands run without a question; None if each is asked about.

    Raise InputError if a sandbox is required and does not work.
    """
    use = shell.config.goal.sandbox
    if use == "off":
        return None
    state, network = shell.storage.conversations.folder, shell.config.goal.network
    sandbox, reason = choose_sandbox(shell.project.root, state, network=network)
    if sandbox is not None:
        shell.screen.notice(f"commands run in a sandbox ({reason})")
    elif use == "required":
        raise InputError(f"Goal mode needs a sandbox (goal.sandbox): {reason}.")
    else:
        shell.screen.warn(f"no sandbox, so commands are asked about: {reason}")
    return sandbox


def _run_step(shell: Shell, goal: Goal) -> None:
    """Send one request and carry out what the model asks for."""
    shell.screen.notice(goal.progress)
    before = shell.session.ledger.total
    acted, verdict, has_results = True, GoalVerdict(), False
    try:
        reply = send(shell, shell.route, "goal")
        acted, verdict = _act(shell, reply), parse_verdict(reply.text)
        has_results = bool(reply.calls)
    except KeyboardInterrupt:
        goal.end("interrupted")
    except (BrimError, OSError) as error:
        goal.end("failed", str(error))
    goal.add_step(_measure_step(before, shell.session.ledger.total), verdict, acted=acted)
    if goal.ended is None and not has_results:
        shell.conversation.add_message(CONTINUE if acted else REMINDER, from_brim=True)


def _act(shell: Shell, reply: Reply) -> bool:
    """Run the tool calls or commands of a reply; return whether there were any."""
    if reply.calls:
        if not answer_calls(shell, reply.calls, autonomous=True):
            raise KeyboardInterrupt
        return True
    if parse_verdict(reply.text).kind != "open":
        return False
    waiting = len(shell.driver.outputs)
    offer_edits(shell, reply.text, autonomous=True)
    if not offer_commands(shell, reply.text, autonomous=True):
        raise KeyboardInterrupt
    return len(shell.driver.outputs) > waiting


def _measure_step(before: SpendingTotal, after: SpendingTotal) -> StepUsage:
    """Return the usage of a step; its cost is None if a call without a price may be part of it."""
    cost = after.cost - before.cost
    return StepUsage(after.tokens - before.tokens, None if after.unknown and not cost else cost)


def _finish(shell: Shell, goal: Goal) -> None:
    shell.goal = shell.sandbox = shell.driver.prompt.instructions = None
    with suppress(StoreError):
        shell.save("goal_ended", why=goal.ended, words=goal.reason)
    show = shell.screen.notice if goal.ended == "complete" else shell.screen.warn
    show(shell.secrets.mask(goal.summary).text)


# Progress and limits


@dataclass(frozen=True, slots=True)
class StepUsage:
    """Usage of one request and its reply."""

    tokens: int = 0
    """Prompt and reply together."""
    cost: Decimal | None = Decimal(0)
    """Dollars; None if the price is unknown."""


class Goal:
    """Progress of one goal."""

    def __init__(self, limits: GoalConfig) -> None:
        self.limits = limits
        self.steps = 0
        self.tokens = 0
        self.cost = Decimal(0)
        """Dollars of the steps with a known price."""
        self.has_unknown_price = False
        self.ended: Ending | None = None
        self.reason = ""
        """The model's last text about the goal, or an error."""
        self._idle = 0

    def add_step(self, step: StepUsage, verdict: GoalVerdict, *, acted: bool) -> None:
        """Add a step, and end the goal if the verdict, idleness or a limit says so."""
        self.steps += 1
        self.tokens += step.tokens
        self.cost += step.cost or 0
        self.has_unknown_price |= step.cost is None
        self._idle = 0 if acted else self._idle + 1
        if verdict.kind != "open":
            self.end(verdict.kind, verdict.text)
        elif self._idle >= MAX_IDLE_REPLIES:
            self.end("blocked", f"{MAX_IDLE_REPLIES} replies in a row without an action")
        elif (limit := self._reached_limit()) is not None:
            self.end(limit)

    def _reached_limit(self) -> Ending | None:
        """Return the limit that is reached; a free model never reaches the dollar limit."""
        if self.steps >= self.limits.max_steps:
            return "steps"
        if self.tokens >= self.limits.max_tokens:
            return "tokens"
        return "money" if self.cost and self.cost >= self.limits.max_dollars else None

    def end(self, ending: Ending, reason: str = "") -> None:
        """End the goal; only the first call counts."""
        if self.ended is None:
            self.ended, self.reason = ending, reason

    @property
    def progress(self) -> str:
        """The next step, and what is used of each limit."""
        limits = self.limits
        step = min(self.steps + 1, limits.max_steps) if self.ended is None else self.steps
        parts = [
            f"step {step:,} of {limits.max_steps:,}",
            f"{self.tokens:,} of {limits.max_tokens:,} tokens",
        ]
        if spent := self._format_cost():
            parts.append(f"{spent} of {_dollars(limits.max_dollars)}")
        return " · ".join(parts)

    @property
    def summary(self) -> str:
        """One line about how it ended."""
        ending = _ENDINGS[self.ended] if self.ended else "not ended"
        reason = "" if self.ended == "complete" else " ".join(self.reason.split())
        used = [format_count(self.steps, "step")]
        used += [f"{self.tokens:,} tokens", *filter(None, [self._format_cost()])]
        return f"goal {ending}{f': {reason}' if reason else ''} · {' · '.join(used)}"

    def _format_cost(self) -> str:
        """Return the cost so far; empty if no price is known."""
        if self.has_unknown_price and not self.cost:
            return ""
        return ("at least " if self.has_unknown_price else "") + _dollars(self.cost)


_ENDINGS: Final[dict[Ending, str]] = {
    "complete": "complete",
    "blocked": "blocked",
    "steps": "stopped at its step limit (goal.max_steps)",
    "tokens": "stopped at its token limit (goal.max_tokens)",
    "money": "stopped at its cost limit (goal.max_dollars)",
    "interrupted": "interrupted",
    "failed": "failed",
}


def _dollars(amount: Decimal) -> str:
    """Format with cents, and with more digits only below one cent."""
    return format_dollars(amount) if 0 < amount < Decimal("0.01") else format_dollars(amount, 2)


# The verdict

# Emphasis and backticks may surround either part. Text after `complete` must be separated by
# punctuation: `GOAL: complete the tests` is a goal, not its end.
_MARK: Final = r"[*_`]{0,3}"
_VERDICT: Final = re.compile(
    rf" {{0,3}}{_MARK}GOAL:{_MARK} {_MARK}(?:"
    rf"(?P<complete>complete){_MARK}(?P<summary>[.!]?{_MARK}\s*|(?:[.:;!]| +[-–—])\s.*| *\(.*)|"
    rf"(?P<blocked>blocked){_MARK}(?P<reason>[.!]?{_MARK}\s*|[.:;,!]\s.*|\s.*))"
)
_SEPARATOR: Final = re.compile(r"^[\s.:;,!–—*_`-]*")
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")


@dataclass(frozen=True, slots=True)
class GoalVerdict:
    """What a reply says about the goal."""

    kind: Kind = "open"
    text: str = ""
    """The text after it: a summary, or the reason."""


def parse_verdict(reply: str) -> GoalVerdict:
    """Return the last verdict in a reply that is not inside a code block."""
    lines = re.split(r"\r?\n", reply)
    found = GoalVerdict()
    for index in _lines_outside_code(lines):
        if (line := _VERDICT.fullmatch(lines[index])) is None:
            continue
        rest = line["summary"] if line["complete"] else line["reason"]
        rest = rest.rstrip("*_`") if line[0].lstrip()[0] in "*_`" else rest
        text = "\n".join([_SEPARATOR.sub("", rest), *lines[index + 1 :]])
        found = GoalVerdict("complete" if line["complete"] else "blocked", text.strip())
    return found


def _lines_outside_code(lines: list[str]) -> Iterator[int]:
    """Yield the indices of lines outside fenced code blocks."""
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
