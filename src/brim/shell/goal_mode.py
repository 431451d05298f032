"""Goal mode: the model plans and acts by itself, as far as its limits let it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from brim.errors import BrimError, StoreError
from brim.shell.chat import restore_line, send, settle
from brim.shell.goal import REMINDER, Goal, GoalLimits, GoalVerdict, StepUsage, parse_verdict
from brim.shell.proposals import offer_commands
from brim.shell.routing import Route
from brim.shell.tool_calls import answer_calls

if TYPE_CHECKING:
    from brim.session.ledger import SpendingTotal
    from brim.shell.state import Shell
    from brim.wire.reply import Reply

CONTINUE: Final = "[brim] That is what the commands printed. Go on towards the goal."


def pursue(shell: Shell, words: str) -> bool:
    """Work towards a goal until a limit or the model ends it; says whether it was reached."""
    limits = shell.config.goal
    goal = Goal(GoalLimits(limits.max_steps, limits.max_tokens, limits.max_dollars))
    before, shell.route = len(shell.session), Route()
    try:
        shell.conversation.say(words)
        shell.session.goal = words
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
    waiting = len(shell.session.outputs)
    if not offer_commands(shell, reply.text, by_itself=True):
        raise KeyboardInterrupt
    return len(shell.session.outputs) > waiting


def _measure_step(before: SpendingTotal, after: SpendingTotal) -> StepUsage:
    """What a step took; calls without a price may have come before it, and may be part of it."""
    cost = after.cost - before.cost
    return StepUsage(after.tokens - before.tokens, None if after.unknown and not cost else cost)


def _finish(shell: Shell, goal: Goal) -> None:
    shell.session.goal = None
    with suppress(StoreError):
        shell.keep("goal_ended", why=goal.ended, words=goal.words)
    show = shell.screen.notice if goal.ended == "complete" else shell.screen.warn
    show(shell.masker.masked(goal.summary).text)
