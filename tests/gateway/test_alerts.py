"""Alerts when a cap is half used, nearly used and used: signed, and delivered at least once."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from brim.config import GatewayConfig
from brim.errors import InputError
from brim.gateway.accounts.caps import ALL, Cap, each_user_scope, project_scope, user_scope
from brim.gateway.accounts.sqlite.store import SqliteAccountStore
from brim.gateway.alert_sender import AlertSender, read_secret
from brim.testing import ScriptedServer
from tests.support.accounts.reservations import (
    KEY,
    LONG,
    OWN,
    SECRET,
    make_reservation,
    make_settlement,
)
from tests.support.gateway.accounts import (
    MAX_COST,
    create_secret,
    dollars,
    make_priced_config,
    say_hi,
    with_gateway,
)
from tests.support.gateway.process import run_gateway
from tests.support.gateway.requests import wait_until

pytestmark = pytest.mark.anyio

SIGNING_KEY = "whsec_" + base64.b64encode(b"a shared secret").decode()


class Receiver:
    """A server that records webhooks and answers with a status."""

    def __init__(self) -> None:
        self.status = 204
        self.got: list[tuple[dict[str, str], bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                names = {name.lower(): value for name, value in self.headers.items()}
                receiver.got.append((names, body))
                self.send_response(receiver.status)
                if receiver.status == 302:
                    self.send_header("location", receiver.url)
                self.end_headers()

            do_GET = do_POST  # noqa: N815 - as the class requires

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"

    @property
    def events(self) -> list[tuple[int, str, str]]:
        """The level, cap and spent amount of each webhook."""
        found = [json.loads(body)["data"] for _, body in self.got]
        return [(data["level"], data["cap"], data["spent"]) for data in found]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    threading.Thread(target=made.server.serve_forever, args=(0.02,), daemon=True).start()
    yield made
    made.server.shutdown()
    made.server.server_close()


class Clock:
    now = time.time()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(tmp_path: Path, clock: Clock) -> AsyncIterator[SqliteAccountStore]:
    store = SqliteAccountStore(tmp_path / "accounts.sqlite3", clock)
    await store.open()
    await store.add_key(KEY, SECRET, [Cap(100), Cap(1_000, "tokens", "day")])
    yield store
    await store.close()


def make_sender(receiver: Receiver, secret: str = SIGNING_KEY) -> AlertSender:
    settings = GatewayConfig(alert_url=receiver.url, alert_secret_env="HOOK")
    return AlertSender(settings, {"HOOK": secret})


async def spend(store: SqliteAccountStore, id: str, cost: int, tokens: int = 0) -> None:
    caps = (OWN, Cap(100)), (OWN, Cap(1_000, "tokens", "day"))
    await store.reserve(make_reservation(id, cost, *caps, tokens=tokens), LONG)
    await store.settle([make_settlement(id, cost, tokens)])


async def test_every_level_is_sent_once(store: SqliteAccountStore, receiver: Receiver) -> None:
    senders = make_sender(receiver), make_sender(receiver)
    await spend(store, "a", 49)
    for sender in senders:
        await sender.run(store)
    assert receiver.events == []
    await spend(store, "b", 1)
    for sender in (*senders, *senders):
        await sender.run(store)
    assert receiver.events == [(50, "$0.0001", "0.00005")]
    await spend(store, "c", 50, 800)
    for sender in senders:
        await sender.run(store)
    assert sorted(receiver.events[1:]) == [
        (50, "1,000 tokens/day", 800),
        (80, "$0.0001", "0.0001"),
        (80, "1,000 tokens/day", 800),
        (100, "$0.0001", "0.0001"),
    ]


async def test_an_alert_is_signed_and_names_the_key(
    store: SqliteAccountStore, receiver: Receiver
) -> None:
    await spend(store, "a", 50)
    await make_sender(receiver).run(store)
    [(headers, body)] = receiver.got
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(b"a shared secret", content, hashlib.sha256).digest())
    assert headers["webhook-signature"] == f"v1,{expected.decode()}"
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60
    event: dict[str, Any] = json.loads(body)
    assert (event["type"], event["id"]) == ("cap.reached", headers["webhook-id"])
    assert event["data"]["key"] == "anna"
    assert SECRET.encode() not in body


async def test_a_failed_delivery_is_repeated_with_the_same_id(
    store: SqliteAccountStore, receiver: Receiver, clock: Clock
) -> None:
    await spend(store, "a", 50)
    receiver.status = 500
    await make_sender(receiver).run(store)
    await make_sender(receiver).run(store)
    assert len(receiver.got) == 1, "the next attempt is due later"
    clock.now += 15
    await make_sender(receiver).run(store)
    receiver.status = 200
    clock.now += 29
    await make_sender(receiver).run(store)
    assert len(receiver.got) == 2
    clock.now += 1
    for _ in range(2):
        await make_sender(receiver).run(store)
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1
    assert len(receiver.got) == 3


async def test_a_level_reached_just_before_midnight_is_reported(
    store: SqliteAccountStore, receiver: Receiver, clock: Clock
) -> None:
    clock.now = 1_900_022_399.5  # half a second before a day begins in UTC
    await store.set_caps(OWN, [Cap(100, "dollars", "day")])
    await store.reserve(make_reservation("a", 90, (OWN, Cap(100, "dollars", "day"))), LONG)
    await store.settle([make_settlement("a", 90)])
    clock.now += 5
    await make_sender(receiver).run(store)
    assert sorted(level for level, _, _ in receiver.events) == [50, 80]


async def test_a_cap_that_rejects_requests_counts_as_used(
    store: SqliteAccountStore, receiver: Receiver
) -> None:
    await store.set_caps(project_scope("blue"), [Cap(100)])
    await store.reserve(make_reservation("a", 95, (project_scope("blue"), Cap(100))), LONG)
    await store.settle([make_settlement("a", 95)])
    sender = make_sender(receiver)
    sender.note_rejection(project_scope("blue"), Cap(100))
    await sender.run(store)
    assert sorted(level for level, _, _ in receiver.events) == [50, 80, 100]
    assert json.loads(receiver.got[0][1])["data"]["project"] == "blue"
    await store.set_caps(ALL, [])


async def test_an_alert_about_an_end_user_names_the_user(
    store: SqliteAccountStore, receiver: Receiver
) -> None:
    await store.set_caps(each_user_scope(KEY.id), [Cap(100, "dollars", "day")])
    for user, cost in (("u/1", 80), ("u/2", 49)):
        cap = user_scope(KEY.id, user), Cap(100, "dollars", "day")
        await store.reserve(make_reservation(user, cost, cap, user=user), LONG)
        await store.settle([make_settlement(user, cost)])
    sender = make_sender(receiver)
    await sender.run(store)
    assert sorted(level for level, _, _ in receiver.events) == [50, 80]
    data = json.loads(receiver.got[0][1])["data"]
    assert (data["scope"], data["key"], data["user"]) == ("user", "anna", "u/1")
    sender.note_rejection(user_scope(KEY.id, "u/2"), Cap(100, "dollars", "day"))
    await sender.run(store)
    assert receiver.events[2:] == [(100, "$0.0001/day", "0.000049")]


def test_a_gateway_sends_alerts(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", "plain")
    secret = create_secret("anna", dollars(MAX_COST))
    with ScriptedServer("Hello.") as provider:
        config = with_gateway(
            make_priced_config(provider.url),
            lease_seconds=1,
            alert_url=receiver.url,
            alert_secret_env="HOOK",
        )
        with run_gateway(config, {"HOOK": "plain"}) as gateway:
            assert say_hi(gateway, secret).status_code == 200
            assert say_hi(gateway, secret).status_code == 429
            wait_until(lambda: receiver.got)
    assert receiver.events[0][0] == 100
    assert "plain" not in repr(receiver.got)


@pytest.mark.parametrize("text", ["", "whsec_no base64!"])
def test_an_unusable_secret_is_reported(text: str) -> None:
    with pytest.raises(InputError, match="alert_secret_env"):
        read_secret(text)


async def test_a_redirect_is_not_followed(store: SqliteAccountStore, receiver: Receiver) -> None:
    receiver.status = 302
    await spend(store, "a", 60)
    await make_sender(receiver).run(store)
    assert len(receiver.got) == 1
