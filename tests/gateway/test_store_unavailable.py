"""Several gateways share a store, and nothing is sent while it is unavailable."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import anthropic
import httpx
import openai
import pytest

from brim.gateway import account_service as gateway_accounts
from brim.testing import ScriptedServer, TextReply
from tests.support.accounts import postgres, valkey
from tests.support.accounts.postgres import Postgres
from tests.support.accounts.valkey import Valkey
from tests.support.gateway.accounts import (
    COST,
    MAX_COST,
    MODEL,
    anthropic_with,
    create_secret,
    dollars,
    ledger,
    make_priced_config,
    only_row,
    openai_with,
    read_cap_usage,
    revoke,
    run_in_store,
    say_hi,
    store_file,
    with_gateway,
)
from tests.support.gateway.process import Running, run_gateway
from tests.support.gateway.requests import RESPONSES, wait_until

Service = Postgres | Valkey
HELLO: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module", params=["postgres", "valkey"])
def server(request: pytest.FixtureRequest) -> Iterator[Service]:
    with (postgres if request.param == "postgres" else valkey).start_server() as server:
        yield server


@pytest.fixture
def service(server: Service) -> Service:
    """A real server without accounts that the test can stop and start."""
    server.start()
    server.clear()
    return server


@pytest.fixture
def provider() -> Iterator[ScriptedServer]:
    with ScriptedServer("Hello.") as provider:
        yield provider


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry an unavailable store quickly."""
    monkeypatch.setattr(gateway_accounts, "RETRY_SECONDS", 0.05)


@contextmanager
def before(provider: ScriptedServer, service: Service, **settings: Any) -> Iterator[Running]:
    """A gateway with a shared store and frequent sweeps."""
    given = {"store": service.url, "lease_seconds": 2.0, **settings}
    with run_gateway(with_gateway(make_priced_config(provider.url), **given)) as gateway:
        yield gateway


def is_ready(gateway: Running) -> bool:
    return httpx.get(f"{gateway.url}/readyz").status_code == 200


# Several gateways


def test_two_gateways_share_a_cap_and_the_ledger(
    provider: ScriptedServer, service: Service
) -> None:
    at = service.url
    secret = create_secret("anna", dollars(MAX_COST + 5 * COST), at=at)

    def asks(gateway: Running) -> int:
        status = say_hi(gateway, secret).status_code
        # A request that ended at one gateway may hold its reservation for a moment at the other.
        wait_until(lambda: read_cap_usage(at)["key dollars"][1] == 0)
        return status

    with before(provider, service) as one, before(provider, service) as other:
        assert [asks(gateway) for gateway in (one, other) * 4] == [200] * 6 + [429] * 2
    assert read_cap_usage(at) == {"key dollars": (6 * COST, 0)}
    assert [row.charge.micro_dollars for row in ledger(at)] == [COST] * 6
    assert len(provider.requests) == 6
    assert not store_file().exists()


def test_a_revoked_key_is_rejected_by_all_gateways(
    provider: ScriptedServer, service: Service
) -> None:
    at = service.url
    secret = create_secret("anna", at=at)
    with before(provider, service) as one, before(provider, service) as other:
        assert [say_hi(each, secret).status_code for each in (one, other)] == [200, 200]
        revoke("anna", at)
        assert [say_hi(each, secret).status_code for each in (one, other)] == [401, 401]


# Outages


def test_nothing_is_sent_while_the_store_is_unavailable(
    provider: ScriptedServer, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    secret = create_secret("anna", "5/day", at=service.url)
    with before(provider, service) as gateway:
        assert say_hi(gateway, secret).status_code == 200
        assert is_ready(gateway)
        service.stop()
        for shown in (secret, "brim-unknown"):
            rejected = say_hi(gateway, shown, RESPONSES)
            assert (rejected.status_code, rejected.headers["retry-after"]) == (503, "2")
            assert rejected.json()["error"]["code"] == "account_store_unavailable"
        with openai_with(gateway, secret) as client, pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model=MODEL, messages=HELLO)
        with anthropic_with(gateway, secret) as other, pytest.raises(anthropic.APIStatusError):
            other.messages.create(model=MODEL, messages=HELLO, max_tokens=9)
        assert not is_ready(gateway)
        assert len(provider.requests) == 1
        service.start()
        wait_until(lambda: is_ready(gateway))
        assert say_hi(gateway, secret).status_code == 200
    messages = [record.message for record in caplog.records if record.name == "brim.gateway"]
    assert (
        messages.count("account store unavailable"),
        messages.count("account store available again"),
    ) == (1, 1)
    assert read_cap_usage(service.url) == {"key dollars": (2 * COST, 0)}


def test_a_store_that_denies_access_stops_the_gateway_at_startup(service: Service) -> None:
    run_in_store(lambda store: store.keys(), service.url)
    scheme, _, place = service.url.partition("://")
    if isinstance(service, Valkey):
        service.tell("SET", "{brim}:layout", "99")
    else:
        postgres.tell(service.url, "INSERT INTO brim.migrations VALUES (99)")
    for store, message in (
        (service.url, "Upgrade brim"),
        (f"{scheme}://guest:hush@{place.rpartition('@')[2]}", "denied access"),
    ):
        command = [sys.executable, "-m", "brim.cli", "serve", "--upstream", "http://127.0.0.1:9"]
        ended = subprocess.run(
            [*command, "--port", "0"],
            env={**os.environ, "BRIM_GATEWAY__STORE": store},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (ended.returncode, ended.stdout) == (4, "")
        assert len(ended.stderr.splitlines()) == 1
        assert message in ended.stderr
        assert "hush" not in ended.stderr


def test_a_store_that_starts_after_the_gateway_is_used(
    provider: ScriptedServer, service: Service
) -> None:
    secret = create_secret("anna", "5/day", at=service.url)
    service.stop()
    with before(provider, service) as gateway:
        assert not is_ready(gateway)
        assert say_hi(gateway, secret).status_code == 503
        assert httpx.get(f"{gateway.url}/healthz").status_code == 200
        service.start()
        wait_until(lambda: is_ready(gateway))
        assert say_hi(gateway, secret).status_code == 200
    assert len(provider.requests) == len(ledger(service.url)) == 1


def test_requests_finished_during_an_outage_are_recorded_afterwards(service: Service) -> None:
    secret, goes_on = create_secret("anna", "5/day", at=service.url), threading.Event()
    with (
        ScriptedServer(TextReply("Hello.", hold=goes_on)) as provider,
        before(provider, service, lease_seconds=30.0) as gateway,
        ThreadPoolExecutor(1) as pool,
    ):
        pending = pool.submit(say_hi, gateway, secret, stream=True)
        wait_until(lambda: provider.requests)
        service.stop()
        goes_on.set()
        assert pending.result().status_code == 200  # a running stream continues
        wait_until(lambda: not is_ready(gateway))
        service.start()
        wait_until(lambda: ledger(service.url))
    row = only_row(service.url)
    assert (row.state, row.charge.micro_dollars, row.is_estimated) == ("settled", COST, False)
    assert read_cap_usage(service.url) == {"key dollars": (COST, 0)}


def test_a_gateway_stops_cleanly_during_an_outage(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    secret, goes_on = create_secret("anna", "5/day", at=service.url), threading.Event()
    with ScriptedServer(TextReply("Hello.", hold=goes_on)) as provider:
        with before(provider, service) as gateway, ThreadPoolExecutor(1) as pool:
            pending = pool.submit(say_hi, gateway, secret, stream=True)
            wait_until(lambda: provider.requests)
            service.stop()
            goes_on.set()
            assert pending.result().status_code == 200
        assert "settlement failed" in caplog.text
        service.start()
        with before(provider, service):
            wait_until(lambda: ledger(service.url))
    row = only_row(service.url)
    assert (row.state, row.charge.micro_dollars) == ("presumed", MAX_COST)


def test_known_keys_can_be_allowed_unrecorded(
    provider: ScriptedServer, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    secret = create_secret("anna", "5/day", at=service.url)
    with before(provider, service, store_unavailable="allow") as gateway:
        assert say_hi(gateway, secret).status_code == 200
        wait_until(lambda: ledger(service.url))
        service.stop()
        assert say_hi(gateway, secret).status_code == 200
        assert "request sent unrecorded" in [record.message for record in caplog.records]
        assert say_hi(gateway, "brim-unknown").status_code == 503
        assert len(provider.requests) == 2
        service.start()
        wait_until(lambda: is_ready(gateway))
        assert say_hi(gateway, secret).status_code == 200
    assert len(ledger(service.url)) == 2
    assert read_cap_usage(service.url) == {"key dollars": (2 * COST, 0)}
