"""Words to a model, and what comes of them: the answer, its tool calls and its commands."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from brim.errors import BrimError, StoreError
from brim.providers.fallback import is_fallback_worthwhile
from brim.providers.from_config import create_short_view, request_options
from brim.shell import routing
from brim.shell.context_blocks import fit_blocks
from brim.shell.proposals import offer_commands
from brim.shell.routing import Route
from brim.shell.side_requests import build_summarizer
from brim.shell.tool_calls import STOPPED, answer_calls

if TYPE_CHECKING:
    from brim.fitting.plan import Plan
    from brim.providers.client import Stream
    from brim.session.ledger import Category
    from brim.session.summaries import Summarizer
    from brim.shell.state import Shell
    from brim.wire.reply import Reply

    Piece = tuple[str, str]

MAX_ROUNDS: Final = 25
"""How often a model may call tools for one question."""
DRAFT_INTERVAL: Final = 0.5
"""Seconds between two notes of how far an answer has come."""
SAME_MODEL: Final = "self"
"""In the place of a model's name: the one that is talked to."""


def ask(shell: Shell, words: str) -> bool:
    """Words and all that answers them; whatever goes wrong, the words are not lost.

    Says whether they were answered.
    """
    before = len(shell.session)
    try:
        shell.conversation.say(words)
        _run_turn(shell, words)
    except KeyboardInterrupt:
        is_heard = len(shell.session) > before + 1
        shell.screen.notice("stopped; what was said is kept" if is_heard else "stopped")
    except (BrimError, OSError) as error:
        shell.fail(error)
    else:
        return True
    finally:
        settle(shell)
    restore_line(shell, before, shell.as_language(words))
    return False


def ask_again(shell: Shell) -> bool:
    """Take back the last answer, and ask once more; where that fails, it is there again."""
    place, waiting = shell.conversation.last_exchange(), shell.driver.outputs
    words = shell.driver.copy_turns(place)[0]["content"]
    taken = shell.conversation.take_back(place)
    if ask(shell, words):
        return True
    if len(shell.session) == place and len(taken) > 1:
        shell.conversation.put_back(taken, waiting)
        shell.next_text = ""
        shell.screen.notice("the answer before is back")
    return False


def settle(shell: Shell) -> None:
    """Let no call wait for a result, and turn back to the model that is talked to."""
    with suppress(StoreError):  # it was told already
        if shell.driver.open_calls:
            shell.conversation.close_calls(STOPPED.text)
    shell.turn_to(shell.name)


def restore_line(shell: Shell, before: int, line: str) -> None:
    """Where nothing answered, the line that was typed stands in the prompt again."""
    if len(shell.session) == before + 1:
        with suppress(StoreError):
            shell.conversation.take_back(before)
        if shell.is_script:
            return
        if shell.screen.fills(line):  # what is wrong would be scrolled away by them
            shell.screen.notice("the up key brings your words back")
            return
        shell.next_text = line
        shell.screen.notice("your words are back in the prompt")


def _run_turn(shell: Shell, words: str) -> None:
    """Send what was said until the model calls no more tools, and offer its commands."""
    shell.route = routing.choose_route(words, shell.config.routing)
    category: Category = "main" if shell.route.rule is None else "route"
    for _ in range(MAX_ROUNDS):
        reply = send(shell, shell.route, category)
        if not reply.calls:
            break
        if not answer_calls(shell, reply.calls):
            shell.screen.notice("stopped; what was said is kept")
            return
    else:
        shell.screen.warn(f"{MAX_ROUNDS} rounds of tool calls and no end; say something to go on")
    offer_commands(shell, reply.text)


def send(shell: Shell, route: Route, category: Category = "main") -> Reply:
    """Ask the model that the words are for; where it fails, the next one named, once."""
    name = route.model or shell.name
    said = len(shell.session)
    try:
        return _request_reply(shell, name, route, category)
    except BrimError as error:
        other = routing.fallback_for(name, shell.config.models, {name})
        broke_off = len(shell.session) > said
        if other is None or broke_off or not is_fallback_worthwhile(error):
            raise
        shell.screen.warn(shell.masker.mask(f"{name} failed: {error}").text)
        shell.screen.notice(f"asking {other} instead")
        shell.note("fallback", model=name, other=other, error=type(error).__name__)
        return _request_reply(shell, other, route, category)


def _request_reply(shell: Shell, name: str, route: Route, category: Category) -> Reply:
    session = shell.session
    shell.turn_to(name)
    with shell.screen.waiting(f"{name} …"):
        shell.background.settle()
        client, choice = shell.models.client(name), shell.models.choice(name)
        shell.models.prepare(session, name)
        fit_blocks(shell)
        session.summarize = _automatic_summarizer(shell, name)
        stream = client.stream(
            session,
            system=shell.base_prompt(route.system) if route.system else None,
            short_view=create_short_view(choice, shell.config),
            category=category,
            **request_options(choice),
        )
        pieces = stream.pieces()
        first = next(pieces, None)
    try:
        _show_reply(shell, first, pieces, stream)
    finally:
        shell.conversation.keep()
        _report_reply(shell, stream.plan, stream.reply)
    return stream.reply


def _show_reply(shell: Shell, first: Piece | None, pieces: Iterator[Piece], stream: Stream) -> None:
    """Show an answer while it comes, and note on disk how far it came."""
    screen, said, noted = shell.screen.answer(), "", -DRAFT_INTERVAL
    try:
        for thought, text in _chain(first, pieces):
            if thought:
                screen.think(thought)
            if text:
                screen.say(text)
            said += text
            if time.monotonic() - noted > DRAFT_INTERVAL:
                with suppress(StoreError):  # the whole answer is written down in any case
                    shell.conversation.draft(said)
                noted = time.monotonic()
    finally:
        # A second Ctrl-C does not keep the first from keeping what was said.
        with suppress(KeyboardInterrupt):
            stream.close()
        screen.end()


def _chain(first: Piece | None, pieces: Iterator[Piece]) -> Iterator[Piece]:
    if first is not None:
        yield first
        yield from pieces


def _report_reply(shell: Shell, plan: Plan | None, reply: Reply) -> None:
    """What the user should know about a request and its answer."""
    screen, session = shell.screen, shell.session
    if plan is not None and plan.is_trimmed and (news := _trim_key(plan)) != shell.told_cut:
        screen.notice(format_trim(plan))
        shell.told_cut = news
    if reply.is_cut:
        screen.notice("the answer was cut: there was no room for more")
    if reply.is_empty:
        screen.notice("the answer was empty; :retry asks again")
    for warning in (*session.warnings, session.ledger.uncovered or ""):
        if warning and warning not in shell.told:
            shell.told.add(warning)
            screen.warn(warning)


def _trim_key(plan: Plan) -> object:
    """What makes a cut another one: its edit, or what it leaves out where each is made anew."""
    return plan.outcome_counts() if plan.trim_id is None else plan.trim_id


def format_trim(plan: Plan) -> str:
    """What was left out of a request, in one line."""
    outcomes = ", ".join(
        f"{outcome} {number:,}" for outcome, number in plan.outcome_counts().items()
    )
    return (
        f"{outcomes}: {plan.before:,} → {plan.size:,} tokens (limit {plan.limit:,}) · "
        ":history shows what, :recall N brings it back"
    )


def _automatic_summarizer(shell: Shell, name: str) -> Summarizer | None:
    """Who sums up what leaves by itself, where the configuration wants that."""
    wanted = shell.config.summary.model
    if wanted is None:
        return None
    return build_summarizer(shell, name if wanted == SAME_MODEL else wanted)
