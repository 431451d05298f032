"""`brim ask`: one question to one model."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brim.cli.main import main
from brim.errors import InputError, StoreError

if TYPE_CHECKING:
    from brim.config import Config
    from brim.models.spending_totals import SpendingTotal
    from brim.providers.client import Stream
    from brim.session.session import Session


@main.command()
@click.argument("question", required=False)
@click.option("-m", "--model", metavar="NAME", help="Model of the configuration (see below).")
@click.option("--system", metavar="TEXT", help="System prompt.")
@click.option("--window", type=click.IntRange(1), metavar="N", help="Context window in tokens.")
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    metavar="N",
    help="Maximum length of the reply in tokens.",
)
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
    from brim import config
    from brim.shell.render.sanitize import sanitize

    loaded = config.discover(folder=Path.cwd(), environment=os.environ)
    for notice in loaded.notices:
        click.echo(f"brim: {notice}", err=True)
    piped = None if sys.stdin.isatty() else sys.stdin.buffer.read().decode("utf-8", "replace")
    request = Question(question, piped, system, window, max_tokens)
    with open_answer(request, loaded.config, model, os.environ) as answer:
        for text in answer:
            if not as_json:
                click.echo(sanitize(text) if sys.stdout.isatty() else text, nl=False)
        if not as_json:
            click.echo()
        for notice in answer.notices:
            click.echo(f"brim: {notice}", err=True)
        if as_json:
            click.echo(json.dumps(answer.to_dict(), ensure_ascii=False))


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its options."""

    text: str | None
    piped: str | None = None
    """Piped input."""
    system: str | None = None
    window: int | None = None
    max_tokens: int | None = None

    def message(self) -> dict[str, str]:
        """Return the user's message; piped input is its output block, which can be clipped."""
        piped = (self.piped or "").strip("\n")
        if not self.text or not self.text.strip():
            if not piped.strip():
                raise InputError('There is no question. Try: brim ask "why?" < build.log')
            return {"role": "user", "content": piped}
        message = {"role": "user", "content": self.text}
        return {**message, "_output": piped} if piped.strip() else message


class AskAnswer:
    """The reply as an iterator of text, and facts about it afterwards."""

    def __init__(self, session: Session, stream: Stream) -> None:
        self._session = session
        self._stream = stream

    def __iter__(self) -> Iterator[str]:
        return self._stream.texts()

    @property
    def notices(self) -> list[str]:
        """What was trimmed, whether the reply is incomplete, and warnings about spending."""
        plan = self._stream.plan
        trimmed = [str(plan)] if plan is not None and plan.is_trimmed else []
        cut_off = (
            ["The reply is incomplete: it reached the token limit."]
            if self._stream.reply.is_cut
            else []
        )
        return trimmed + cut_off + self._session.warnings

    def to_dict(self) -> dict[str, Any]:
        reply, plan = self._stream.reply, self._stream.plan
        usage, total = reply.usage, self._session.ledger.total
        return {
            "text": reply.text,
            "model": self._session.model,
            "finish": reply.finish,
            "usage": None
            if usage is None
            else {"input": usage.input, "cached": usage.cached, "output": usage.output},
            "cost": None if total.unknown else str(total.cost),
            "plan": None if plan is None else plan.to_dict(),
            "notices": self.notices,
        }


@contextmanager
def open_answer(
    question: Question, config: Config, name: str | None, environment: Mapping[str, str]
) -> Iterator[AskAnswer]:
    """Send the question; the reply arrives while it is iterated."""
    from brim.providers.from_config import (
        choose_model,
        create_session,
        create_short_view,
        open_client,
        request_options,
    )
    from brim.session.session import get_driver

    message = question.message()
    choice = choose_model(config, name, environment)
    if question.window is not None:
        choice = replace(choice, model=replace(choice.model, window=question.window))
    session = create_session(choice, config, system=question.system)
    driver = get_driver(session)
    driver.profile = replace(driver.profile, called=choice.name)
    session.append(message)
    with (
        _record_spending(session, config, environment),
        open_client(choice, config, environment) as client,
    ):
        options = request_options(choice, question.max_tokens)
        view = create_short_view(choice, config)
        stream = client.stream(session, short_view=view, **options)
        try:
            yield AskAnswer(session, stream)
        finally:
            stream.close()


@contextmanager
def _record_spending(
    session: Session, config: Config, environment: Mapping[str, str]
) -> Iterator[None]:
    """Record the cost of a session with all others, and apply the daily cap."""
    from brim.session.ledger import DailyCap
    from brim.storage import Database, SpendLog, state_folder

    database = Database(state_folder(environment))
    spending = SpendLog(database)

    def record(model: str, category: str, call: SpendingTotal) -> None:
        project = str(Path.cwd())
        try:
            spending.add(call, session="", project=project, model=model, category=category)
        except StoreError as error:  # the reply has arrived and is not lost
            session.warnings.append(str(error))

    session.ledger.on_record = record
    if (cap := config.cost.cap_per_day_dollars) is not None:
        session.ledger.daily_cap = DailyCap(cap, lambda: spending.today().cost)
    try:
        yield
    finally:
        database.close()
