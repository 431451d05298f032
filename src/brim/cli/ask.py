"""`brim ask`: one question to one model."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brim.cli.main import main
from brim.cli.options import load_config, number_option, print_notices
from brim.errors import InputError
from brim.shell.render.sanitize import sanitize
from brim.wire.reply import check_finish

if TYPE_CHECKING:
    from brim.config import Config
    from brim.providers.client import Stream
    from brim.providers.from_config import ModelChoice
    from brim.session.session import Session


@main.command()
@click.argument("question", required=False)
@click.option("-m", "--model", metavar="NAME", help="Model of the configuration (see below).")
@click.option("--system", metavar="TEXT", help="System prompt.")
@number_option("--window", help="Context window in tokens.")
@number_option("--max-tokens", help="Maximum length of the reply in tokens.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object at the end.")
def ask(
    question: str | None,
    model: str | None,
    system: str | None,
    window: int | None,
    max_tokens: int | None,
    as_json: bool,
) -> None:
    """Ask a model one question.

    Piped input is sent together with the QUESTION, and clipped if it is too long; without a
    QUESTION, the input is the question. The reply is printed to standard output as it arrives, and
    everything else to standard error.

    The model is the first one of the configuration (`brim config`), or the one that -m names.
    Without a configuration, -m takes any model of the provider whose key is in OPENAI_API_KEY or
    ANTHROPIC_API_KEY, and -m local is the embedded model (after `brim local`).

    \b
    brim ask "why did this fail?" < build.log
    git diff | brim ask "write a commit message" -m fast
    """
    from brim.providers.from_config import choose_model, create_session

    config = load_config().config
    piped = "" if sys.stdin.isatty() else sys.stdin.buffer.read().decode("utf-8", "replace")
    message = _build_message(question, piped)
    choice = choose_model(config, model, os.environ)
    if window is not None:
        choice = replace(choice, model=replace(choice.model, window=window))
    session = create_session(choice, config)
    session.system = system or ""
    session.append(message)
    with _open_answer(session, choice, config, max_tokens) as stream:
        for text in stream.texts():
            if not as_json:
                shown = sanitize(text) if sys.stdout.isatty() else text
                click.echo(shown, nl=False, color=True)  # else click removes sequences in a pipe
        if not as_json:
            click.echo()
        print_notices(_list_notices(session, stream))
        if as_json:
            click.echo(json.dumps(_to_dict(session, stream), ensure_ascii=False))
        check_finish(stream.reply)


def _build_message(question: str | None, piped: str) -> dict[str, str]:
    """Return the user's message; piped input is its output block, which can be clipped."""
    piped = piped.strip("\n")
    if question and question.strip():
        message = {"role": "user", "content": question}
        return {**message, "_output": piped} if piped.strip() else message
    if not piped.strip():
        raise InputError('There is no question. Try: brim ask "why?" < build.log')
    return {"role": "user", "content": piped}


@contextmanager
def _open_answer(
    session: Session, choice: ModelChoice, config: Config, max_tokens: int | None
) -> Iterator[Stream]:
    """Yield the reply to the session's message, which arrives while it is read."""
    from brim.providers.from_config import create_short_view, open_client, request_options
    from brim.storage import Database, SpendLog, lock_single, state_folder

    options = request_options(choice, max_tokens)
    view = create_short_view(choice, config)
    with (
        closing(Database(state_folder(os.environ))) as database,
        lock_single(database) as name,
        open_client(choice, config, os.environ) as client,
    ):
        cap = config.cost.cap_per_day_dollars
        SpendLog(database).follow(session, str(Path.cwd()), cap, name)
        with closing(client.stream(session, short_view=view, **options)) as stream:
            yield stream


def _list_notices(session: Session, stream: Stream) -> list[str]:
    """Return what was trimmed, whether the reply is incomplete, and warnings about spending."""
    notices = []
    if stream.plan is not None and stream.plan.is_trimmed:
        notices.append(str(stream.plan))
    if stream.reply.is_cut:
        notices.append("The reply is incomplete: it reached the token limit.")
    return notices + session.warnings


def _to_dict(session: Session, stream: Stream) -> dict[str, Any]:
    reply, plan = stream.reply, stream.plan
    usage, total = reply.usage, session.ledger.total
    return {
        "text": reply.text,
        "model": session.model,
        "finish": reply.finish,
        "usage": None
        if usage is None
        else {"input": usage.input, "cached": usage.cached, "output": usage.output},
        "cost": None if total.unknown else str(total.cost),
        "plan": None if plan is None else plan.to_dict(),
        "notices": _list_notices(session, stream),
    }
