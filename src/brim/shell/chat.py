"""Sends a message to a model, shows the reply, and handles its tool calls and commands."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from brim.errors import BrimError, ContextOverflowError, StoreError
from brim.providers.errors import is_fallback_worthwhile
from brim.providers.from_config import create_short_view, request_options
from brim.shell.attachments import attach_files, read_text
from brim.shell.conversation import FILES
from brim.shell.edit_proposals import offer_edits
from brim.shell.model_clients import Route, choose_route, fallback_for
from brim.shell.proposals import offer_commands
from brim.shell.run_command import save_text
from brim.shell.session_setup import fit_blocks, system_prompt
from brim.shell.tool_calls import STOPPED, answer_calls
from brim.wire.notes import may_begin_with_note, remove_copied_note
from brim.wire.reply import check_finish

if TYPE_CHECKING:
    from brim.fitting.plan import Plan
    from brim.fitting.summarizer import Summarizer
    from brim.providers.client import Stream
    from brim.session.ledger import Category
    from brim.shell.state import Shell
    from brim.wire.reply import Reply

    Piece = tuple[str, str]

MAX_ROUNDS: Final = 25
"""Rounds of tool calls for one message."""
DRAFT_INTERVAL: Final = 0.5
"""Seconds between two saves of an incomplete reply."""
PASTED: Final = "My message is above; it was too long and is clipped in the middle."
"""Sent with a pasted text that does not fit."""
SAME_MODEL: Final = "self"
"""Instead of a model's name: the current model."""


def ask(shell: Shell, message: str, again: Mapping[str, Any] | None = None) -> bool:
    """Send a message and handle the reply; return whether that succeeded.

    `again` is its turn if it was sent before. If it fails before anything was received, the message
    goes back into the prompt.
    """
    before, waiting = len(shell.session), shell.driver.outputs
    try:
        if again is None:
            content, files = attach_files(shell, message)
        else:
            content, files = again["content"], again.get(FILES, {})
        shell.conversation.add_message(content, files=files)
        try:
            _run_turn(shell, message)
        except ContextOverflowError:
            if "\n" not in message or len(shell.session) > before + 1:
                raise
            _clip_message(shell, before, message)
            _run_turn(shell, message)
    except KeyboardInterrupt:
        has_reply = len(shell.session) > before + 1
        shell.screen.notice("stopped; the partial reply is kept" if has_reply else "stopped")
    except (BrimError, OSError) as error:
        shell.show_error(error)
    else:
        return True
    finally:
        settle(shell)
    restore_line(shell, before, shell.as_language(message))
    if len(shell.session) == before:
        shell.conversation.restore((), waiting)
    return False


def _clip_message(shell: Shell, before: int, message: str) -> None:
    """Send a pasted text that does not fit as output, which can be clipped."""
    shell.conversation.rewind(before)
    path = save_text(shell, message)
    shell.conversation.add_output(message, path)
    shell.conversation.add_message(PASTED)
    where = f"; all of it is in {path}" if path else ""
    shell.screen.notice(f"your message does not fit, so it is sent clipped{where}")


def ask_again(shell: Shell) -> bool:
    """Remove the last reply and send its message again; if that fails, restore the old reply."""
    place, waiting = shell.conversation.last_exchange(), shell.driver.outputs
    turn = shell.driver.copy_turns(place)[0]
    removed = shell.conversation.rewind(place)
    if ask(shell, read_text(turn), turn):
        return True
    if len(shell.session) == place and len(removed) > 1:
        shell.conversation.restore(removed, waiting)
        shell.input.prefill("")
        shell.screen.notice("the previous reply was restored")
    return False


def settle(shell: Shell) -> None:
    """Close open tool calls, and return to the current model after a route or fallback."""
    with suppress(StoreError):  # already reported
        if shell.driver.open_calls:
            shell.conversation.close_calls(STOPPED.text)
    shell.use_model(shell.models.current)


def restore_line(shell: Shell, before: int, line: str) -> None:
    """If there was no reply, remove the message and put the typed line back into the prompt."""
    if len(shell.session) <= before + 1:
        with suppress(StoreError):
            shell.conversation.rewind(before)
        if shell.options.is_script:
            return
        if shell.screen.fills(line):  # a long line would push the error off the screen
            shell.screen.notice("press the up key to get your message back")
            return
        shell.input.prefill(line)
        shell.screen.notice("your message is back in the prompt")


def _run_turn(shell: Shell, message: str) -> None:
    """Send requests until the model makes no more tool calls, then offer its commands."""
    shell.route = choose_route(message, shell.config.routing)
    category: Category = "main" if shell.route.rule is None else "route"
    for _ in range(MAX_ROUNDS):
        reply = send(shell, shell.route, category)
        if not reply.calls:
            break
        if not answer_calls(shell, reply.calls):
            shell.screen.notice("stopped; the partial reply is kept")
            return
    else:
        shell.screen.warn(
            f"stopped after {MAX_ROUNDS} rounds of tool calls; send a message to continue"
        )
    offer_edits(shell, reply.text)
    offer_commands(shell, reply.text)


def send(shell: Shell, route: Route, category: Category = "main") -> Reply:
    """Send a request to the model of the route; if it fails, to its fallback, once."""
    name = route.model or shell.models.current
    length = len(shell.session)
    try:
        return _request_reply(shell, name, route, category)
    except BrimError as error:
        other = fallback_for(name, shell.config.models, {name})
        has_partial_reply = len(shell.session) > length
        if other is None or has_partial_reply or not is_fallback_worthwhile(error):
            raise
        shell.screen.warn(shell.secrets.mask(f"{name} failed: {error}").text)
        shell.screen.notice(f"asking {other} instead")
        shell.record("fallback", model=name, other=other, error=type(error).__name__)
        return _request_reply(shell, other, route, category)


def _request_reply(shell: Shell, name: str, route: Route, category: Category) -> Reply:
    session = shell.session
    shell.use_model(name)
    with shell.screen.waiting(f"{name} …"):
        shell.background.settle()
        client, choice = shell.models.client(name), shell.models.choice(name)
        shell.models.prepare(session, name)
        fit_blocks(shell)
        session.summarize = _automatic_summarizer(shell, name)
        stream = client.stream(
            session,
            system=system_prompt(shell, route.system) if route.system else None,
            short_view=create_short_view(choice, shell.config),
            category=category,
            **request_options(choice),
        )
        pieces = stream.pieces()
        first = next(pieces, None)
    try:
        _show_reply(shell, pieces if first is None else chain([first], pieces), stream)
    finally:
        shell.conversation.save()
        _report_reply(shell, stream.plan, stream.reply)
    check_finish(stream.reply)
    return stream.reply


def _show_reply(shell: Shell, pieces: Iterator[Piece], stream: Stream) -> None:
    """Show a reply while it arrives, and save drafts of it."""
    view, received, saved = shell.screen.open_reply(), "", -DRAFT_INTERVAL
    try:
        for thought, text in _drop_copied_note(pieces):
            if thought:
                view.add_thinking(thought)
            if text:
                view.add_text(text)
            received += text
            if time.monotonic() - saved > DRAFT_INTERVAL:
                with suppress(StoreError):  # the complete reply is saved in any case
                    shell.conversation.save_draft(received)
                saved = time.monotonic()
    finally:
        # A second Ctrl-C must not prevent that the partial reply is kept.
        with suppress(KeyboardInterrupt):
            stream.close()
        view.close()


def _drop_copied_note(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield the pieces of a reply without the note that it begins with."""
    held, is_opening = "", True
    for thought, text in pieces:
        if not is_opening:
            yield thought, text
            continue
        held += text
        is_opening = may_begin_with_note(held)
        yield thought, "" if is_opening else remove_copied_note(held)
    if is_opening:
        yield "", held


def _report_reply(shell: Shell, plan: Plan | None, reply: Reply) -> None:
    """Tell the user about trimmed, incomplete and empty replies, and new warnings."""
    screen = shell.screen
    if plan is not None and plan.is_trimmed and shell.notices.is_new_trim(_trim_key(plan)):
        screen.notice(format_trim(plan))
    if reply.is_cut:
        screen.notice("the reply is incomplete: it reached the output limit")
    if reply.is_empty:
        screen.notice("the reply was empty; :retry asks again")
    show_warnings(shell)


def show_warnings(shell: Shell) -> None:
    """Show the warnings of the conversation that the user has not seen."""
    session = shell.session
    for warning in (*session.warnings, session.ledger.uncovered or ""):
        if warning and shell.notices.is_new(warning):
            shell.screen.warn(warning)


def _trim_key(plan: Plan) -> object:
    """Return a value that differs if the trim differs."""
    return plan.outcome_counts() if plan.trim_id is None else plan.trim_id


def format_trim(plan: Plan) -> str:
    """Describe in one line what was trimmed from a request."""
    outcomes = ", ".join(
        f"{outcome} {number:,}" for outcome, number in plan.outcome_counts().items()
    )
    return (
        f"{outcomes}: {plan.before:,} → {plan.size:,} tokens (limit {plan.limit:,}) · "
        ":history shows the turns, :recall N brings one back"
    )


def _automatic_summarizer(shell: Shell, name: str) -> Summarizer | None:
    """Return the configured summarizer for trimmed turns; None if there is none."""
    model = shell.config.summary.model
    if model is None:
        return None
    model = name if model == SAME_MODEL else model
    return shell.models.build_summarizer(model, shell.session)
