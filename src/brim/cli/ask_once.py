"""One question to one model, for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.errors import InputError, StoreError
from brim.providers.from_config import (
    choose_model,
    create_session,
    create_short_view,
    open_client,
    request_options,
)
from brim.session.ledger import DailyCap
from brim.session.session import get_driver
from brim.storage import Database, SpendLog, state_folder

if TYPE_CHECKING:
    from brim.config import Config
    from brim.models.spending import SpendingTotal
    from brim.providers.client import Stream
    from brim.session.session import Session


@dataclass(frozen=True, slots=True)
class Question:
    """What somebody wants to know."""

    question: str | None
    given: str | None = None
    """What came through a pipe."""
    system: str | None = None
    window: int | None = None
    max_tokens: int | None = None

    def turn(self) -> dict[str, str]:
        """The user's turn; what was given stands before the words, as an output."""
        given = (self.given or "").strip("\n")
        if not self.question or not self.question.strip():
            if not given.strip():
                raise InputError('there is no question; try: brim ask "why?" < build.log')
            return {"role": "user", "content": given}
        turn = {"role": "user", "content": self.question}
        return {**turn, "_output": given} if given.strip() else turn


class AskAnswer:
    """What the model says, piece by piece, and what there is to know about it afterwards."""

    def __init__(self, session: Session, stream: Stream) -> None:
        self._session = session
        self._stream = stream

    def __iter__(self) -> Iterator[str]:
        return self._stream.texts()

    @property
    def notices(self) -> list[str]:
        """What its reader should know: what was cut, and what the spending limits say."""
        plan = self._stream.plan
        cut = [str(plan)] if plan is not None and plan.is_trimmed else []
        ended = ["the answer was cut: no room for more"] if self._stream.reply.is_cut else []
        return cut + ended + self._session.warnings

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
    asked: Question, config: Config, name: str | None, environment: Mapping[str, str]
) -> Iterator[AskAnswer]:
    """Ask; the answer comes while it is read."""
    turn = asked.turn()
    choice = choose_model(config, name, environment)
    if asked.window is not None:
        choice = replace(choice, model=replace(choice.model, window=asked.window))
    session = create_session(choice, config, system=asked.system)
    driver = get_driver(session)
    driver.profile = replace(driver.profile, called=choice.name)
    session.append(turn)
    with (
        _record_spending(session, config, environment),
        open_client(choice, config, environment) as client,
    ):
        options = request_options(choice, asked.max_tokens)
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
    """Let what a session costs be booked beside what all others did, and capped with them."""
    database = Database(state_folder(environment))
    spending = SpendLog(database)

    def book(model: str, category: str, call: SpendingTotal) -> None:
        project = str(Path.cwd())
        try:
            spending.add(call, session="", project=project, model=model, category=category)
        except StoreError as error:  # the answer is there, and is not lost for that
            session.warnings.append(str(error))

    session.ledger.on_record = book
    if (cap := config.cost.cap_per_day_dollars) is not None:
        session.ledger.daily_cap = DailyCap(cap, lambda: spending.today().cost)
    try:
        yield
    finally:
        database.close()
