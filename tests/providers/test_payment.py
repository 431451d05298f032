"""What a call can cost is reserved before it is sent, and its reservation ends in every case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from decimal import Decimal
from pathlib import Path

import pytest

from brim.errors import BrimError, SpendingCapError
from brim.models.pricing import Price
from brim.providers.client import Client
from brim.session.ledger import DailyCap, SpendingLimits
from brim.session.session import Session
from brim.storage import ConversationStore, Database, SpendAccount, SpendLog, presume_abandoned
from brim.testing import ErrorReply, ScriptedServer, TextReply

PRICE = Price(Decimal(100), Decimal(100), Decimal(100), Decimal(100))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(Database(tmp_path)) as opened:
        yield opened


def make_priced_session(
    database: Database, cap: str | None = None, *, name: str = "one"
) -> Session:
    limits = SpendingLimits(cap_at_dollars=cap)
    session = Session("scripted", window=2_000, reply=100, margin=0, price=PRICE, limits=limits)
    session.ledger.store = SpendAccount(SpendLog(database), "p", name, session.warnings.append)
    session.user("hello there")
    return session


def count_reserved(database: Database) -> int:
    return len(SpendLog(database).reserved_sessions())


def test_the_most_is_reserved_while_a_call_is_in_flight(database: Database) -> None:
    with ScriptedServer("Good day to you.") as server, Client(server.url) as client:
        session = make_priced_session(database)
        stream = client.stream(session)
        assert count_reserved(database) == 1
        held = SpendLog(database).today().cost
        stream.close()
    assert count_reserved(database) == 0
    assert held > Decimal("0.01") > session.ledger.cost > 0
    assert SpendLog(database).today().cost == session.ledger.cost


@pytest.mark.parametrize("status", [400, 429, 500])
def test_a_rejected_call_costs_nothing(status: int, database: Database) -> None:
    with ScriptedServer(lambda _body: ErrorReply(status, retry_after=0)) as server:
        session = make_priced_session(database)
        with Client(server.url, retries=1) as client, suppress(BrimError):
            client.send(session)
    assert len(server.requests) == (1 if status == 400 else 2)
    assert not session.ledger.cost
    assert not count_reserved(database)


def test_a_server_that_cannot_be_reached_costs_nothing(database: Database) -> None:
    session = make_priced_session(database)
    with Client("http://127.0.0.1:9/v1", retries=0) as client, suppress(BrimError):
        client.send(session)
    assert not session.ledger.cost
    assert not count_reserved(database)


def test_each_attempt_that_may_have_been_charged_counts(database: Database) -> None:
    with (
        ScriptedServer([TextReply("a", cut_after=0), "Well."]) as server,
        Client(server.url, retries=1) as client,
    ):
        session = make_priced_session(database)
        client.send(session)
    (row,) = SpendLog(database).by("model")
    assert (len(server.requests), row.total.calls, count_reserved(database)) == (2, 2, 0)
    assert session.ledger.cost == row.total.cost > Decimal("0.01")


def test_a_capped_reply_cannot_be_longer_than_what_was_reserved(database: Database) -> None:
    with ScriptedServer("Good day.") as server, Client(server.url) as client:
        client.send(make_priced_session(database, "1"))
        client.send(make_priced_session(database))
    assert [request.body.get("max_tokens") for request in server.requests] == [100, None]


def test_two_sessions_cannot_share_the_rest_of_a_daily_cap(database: Database) -> None:
    spending = SpendLog(database)
    with ScriptedServer("Good day to you.") as server, Client(server.url) as client:
        sessions = [make_priced_session(database), make_priced_session(database, name="two")]
        for session in sessions:
            session.ledger.daily_cap = DailyCap(Decimal("0.15"), lambda: spending.today().cost)
        with closing(client.stream(sessions[0])), pytest.raises(SpendingCapError):
            client.send(sessions[1])
        client.send(sessions[1])
    assert len(server.requests) == 2


def test_the_call_of_a_killed_process_is_presumed(database: Database, tmp_path: Path) -> None:
    log = ConversationStore(database)
    name = log.create(tmp_path, "scripted")
    with ScriptedServer("Good day to you.") as server, Client(server.url) as client:
        client.stream(
            make_priced_session(database, name=name)
        )  # the process ends before it is read
        with closing(Database(tmp_path)) as other:
            presume_abandoned(SpendLog(other), ConversationStore(other))
            assert count_reserved(database) == 1, "it still runs"
            log.unlock(name)
            presume_abandoned(SpendLog(other), ConversationStore(other))
    (row,) = SpendLog(database).by("model")
    assert (row.presumed, count_reserved(database)) == (1, 0)
    assert row.cost.endswith(", 1 presumed")
    session = make_priced_session(database, name=name)
    assert isinstance(session.ledger.store, SpendAccount)
    session.ledger.store.restore(session.ledger, 0)
    assert session.ledger.cost == row.total.cost


def test_a_summary_counts_for_the_session_and_its_cap(database: Database) -> None:
    turns = [{"role": "user", "content": "It is raining."}]
    with ScriptedServer("Rain.", window=2_000) as server, Client(server.url) as client:
        session = make_priced_session(database, "0.2")
        summarize = client.summarizer(session, max_tokens=5)
        assert summarize(None, turns) == "Rain."
        spent = session.ledger.totals["scripted", "summary"].cost
        assert SpendLog(database).today().cost == spent == session.cost > 0
        with pytest.raises(SpendingCapError):
            all(summarize(None, turns) for _ in range(100))
        assert session.cost <= Decimal("0.2")
        assert count_reserved(database) == 0
