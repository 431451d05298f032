"""Every request has exactly one row in the ledger, and nothing stays reserved."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal
from typing import Any

import httpx
import pytest
from aiohttp import web

from brim.errors import AccountStoreUnavailableError
from brim.gateway import gateway as gateway_module
from brim.gateway.account_service import AccountService
from brim.gateway.accounts.rates import Admission
from brim.gateway.accounts.reservations import (
    Rejection,
    Reservation,
    Settlement,
)
from brim.gateway.accounts.sqlite.store import SqliteAccountStore
from brim.models.pricing import Price
from brim.providers import http_connection
from brim.providers.connection_pool import ConnectionPool
from brim.testing import ErrorReply, ScriptedReply, ScriptedServer, TextReply
from tests.support.gateway.accounts import (
    COST,
    MAX_COST,
    MODEL,
    PROMPT_TOKENS,
    WORDS,
    bearer_headers,
    create_secret,
    dollars,
    fallback_config,
    gateway_with_upstream,
    ledger,
    make_priced_config,
    only_row,
    open_request,
    read_cap_usage,
    revoke,
    say_hi,
    settled_cost,
    store_file,
    with_gateway,
)
from tests.support.gateway.process import Running, run_gateway
from tests.support.gateway.requests import (
    CHAT,
    LONG,
    PATHS,
    body_of,
    wait_until,
)
from tests.support.providers.scripted import run_scripted

ROOMY = "1000/day"


@pytest.fixture
def anna() -> str:
    """The secret of a key with a high cap."""
    return create_secret("anna", ROOMY, project="blue")


@pytest.fixture
def goes_on() -> Iterator[threading.Event]:
    """An event that an upstream waits for; it is set after the test."""
    event = threading.Event()
    yield event
    event.set()


# Complete responses


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_reported_usage_is_recorded_to_the_micro_dollar(
    anna: str, path: str, is_streamed: bool
) -> None:
    with gateway_with_upstream() as (gateway, provider):
        answer = say_hi(gateway, anna, path, stream=is_streamed)
        (request,) = provider.requests
    row = only_row()
    assert row.id == answer.headers["brim-request-id"]
    assert (row.key_name, row.project) == ("anna", "blue")
    assert (row.model, row.upstream) == (MODEL, "upstream-1")
    assert (row.charge.usage.input, row.charge.usage.output) == (request.tokens, 2)
    assert settled_cost(row) == 2 * request.tokens + 10 * 2
    assert not row.is_estimated


def test_cached_input_is_charged_at_its_rate(anna: str) -> None:
    price = Price(input=Decimal(2), cached=Decimal("0.25"), output=Decimal(10))
    with gateway_with_upstream(TextReply("Hello.", cached=5), price=price) as (gateway, _):
        assert say_hi(gateway, anna).status_code == 200
    row = only_row()
    assert row.charge.usage.cached == 5
    assert settled_cost(row) == 28  # 3 x 2 + 5 x 0.25 + 2 x 10, rounded up


def reply_with_usage(**usage: Any) -> ErrorReply:
    """A response with this usage."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hello."}}
    return ErrorReply(200, raw=json.dumps({"choices": [choice], "usage": usage}).encode())


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        ({"prompt_tokens": 10**18, "completion_tokens": 10**18}, MAX_COST),
        ({"prompt_tokens": 10**30, "completion_tokens": 2}, MAX_COST),
        ({"prompt_tokens": PROMPT_TOKENS, "completion_tokens": 2, "cost": 1e300}, MAX_COST),
        ({"prompt_tokens": PROMPT_TOKENS, "completion_tokens": -2}, COST),
        ({"prompt_tokens": PROMPT_TOKENS, "completion_tokens": 2, "cost": -5}, COST),
        ({"prompt_tokens": PROMPT_TOKENS, "completion_tokens": 2, "cost": 0.0000071}, 8),
    ],
)
def test_an_implausible_report_is_replaced_by_the_maximum(
    anna: str, usage: dict[str, Any], cost: int
) -> None:
    with gateway_with_upstream(reply_with_usage(**usage)) as (gateway, _):
        assert say_hi(gateway, anna).status_code == 200
    assert settled_cost(only_row()) == cost


def test_a_settlement_that_fails_does_not_block_others(
    anna: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = SqliteAccountStore.settle
    wrong: list[str] = []

    async def settling(store: SqliteAccountStore, settlements: Sequence[Settlement]) -> None:
        wrong.extend([settlements[0].id] if not wrong else [])
        if wrong[0] in [each.id for each in settlements]:
            raise OverflowError
        await settle(store, settlements)

    monkeypatch.setattr(SqliteAccountStore, "settle", settling)
    with gateway_with_upstream() as (gateway, _), ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(say_hi, gateway, anna) for _ in range(8)]:
            assert done.result().status_code == 200
    assert [row.charge.micro_dollars for row in ledger()] == [COST] * 7
    assert read_cap_usage() == {"key dollars": (7 * COST, MAX_COST)}  # until its lease expires


def test_a_key_without_caps_is_recorded() -> None:
    secret = create_secret("bob")
    with gateway_with_upstream() as (gateway, _):
        assert say_hi(gateway, secret).status_code == 200
    assert only_row().charge.micro_dollars == COST
    assert read_cap_usage() == {}


# Interrupted responses


@pytest.mark.parametrize("path", PATHS)
def test_a_disconnect_during_a_stream_is_charged_for_the_output_so_far(
    anna: str, path: str, goes_on: threading.Event
) -> None:
    with gateway_with_upstream(TextReply(WORDS, hold=goes_on)) as (gateway, provider):
        with open_request(gateway, anna, path, stream=True, reply=100) as client:
            while b'"one' not in client.recv(65_536):
                pass
        wait_until(lambda: provider.abandoned)
        tokens = provider.requests[0].tokens
    row = only_row()
    assert row.is_estimated
    assert row.charge.usage.input == tokens
    assert 1 <= row.charge.usage.output < 10
    assert settled_cost(row) == 2 * tokens + 10 * row.charge.usage.output


@pytest.mark.parametrize("path", PATHS)
def test_an_upstream_failure_during_a_stream_is_charged_for_the_output_so_far(
    anna: str, path: str
) -> None:
    with gateway_with_upstream(TextReply(WORDS, cut_after=6)) as (gateway, provider):
        answer = say_hi(gateway, anna, path, stream=True, reply=100)
        assert answer.status_code == 200
        assert b"error" in answer.content
        tokens = provider.requests[0].tokens
    row = only_row()
    assert row.is_estimated
    assert row.charge.usage.input == tokens
    assert 1 <= row.charge.usage.output < 10
    assert settled_cost(row) == 2 * tokens + 10 * row.charge.usage.output


def stay_silent(goes_on: threading.Event) -> Any:
    """An upstream that accepts the request and stays silent."""

    def answer(_: object) -> ScriptedReply:
        goes_on.wait(LONG)
        return "Hello."

    return answer


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_disconnect_before_the_response_is_charged_in_full(
    anna: str, is_streamed: bool, goes_on: threading.Event
) -> None:
    with gateway_with_upstream(stay_silent(goes_on)) as (gateway, provider):
        with open_request(gateway, anna, stream=is_streamed):
            wait_until(lambda: provider.requests)
        wait_until(lambda: not gateway.gateway.running)
        goes_on.set()
    row = only_row()
    assert row.is_estimated
    assert settled_cost(row) == MAX_COST


def test_a_timeout_is_charged_in_full(anna: str, goes_on: threading.Event) -> None:
    with gateway_with_upstream(stay_silent(goes_on), timeout=0.2) as (gateway, _):
        assert say_hi(gateway, anna).status_code == 504
        goes_on.set()
    row = only_row()
    assert row.is_estimated
    assert settled_cost(row) == MAX_COST


def test_a_broken_response_is_charged_in_full(anna: str) -> None:
    with gateway_with_upstream(TextReply("Hello.", cut_after=0)) as (gateway, _):
        assert say_hi(gateway, anna).status_code == 502
    assert settled_cost(only_row()) == MAX_COST


def test_a_failure_on_a_reused_connection_is_not_retried(
    anna: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "STALE_SECONDS", 0.05)

    async def work() -> int:
        together, is_warm = asyncio.Barrier(3), asyncio.Event()

        async def answer(request: web.Request) -> web.StreamResponse:
            if request.path != CHAT:
                return web.Response(status=404)
            if not is_warm.is_set():
                await together.wait()
                raw = reply_with_usage(prompt_tokens=PROMPT_TOKENS, completion_tokens=2).raw
                return web.Response(body=raw, content_type="application/json")
            await asyncio.sleep(2 * http_connection.STALE_SECONDS)
            assert request.transport is not None
            request.transport.abort()
            return web.Response()

        async with run_scripted(answer) as upstream:
            with run_gateway(make_priced_config(upstream.url)) as gateway:
                asks = [asyncio.to_thread(say_hi, gateway, anna) for _ in range(4)]
                warm = await asyncio.gather(*asks[:3])
                assert [each.status_code for each in warm] == [200] * 3
                is_warm.set()
                assert (await asks[3]).status_code == 502
            return upstream.paths.count(CHAT)

    assert asyncio.run(work()) == 3 + 1
    assert [row.charge.micro_dollars for row in ledger()] == [COST] * 3 + [MAX_COST]
    assert read_cap_usage() == {"key dollars": (3 * COST + MAX_COST, 0)}


def test_a_retry_after_a_closed_connection_counts_once(
    anna: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve, claimed = SqliteAccountStore.reserve, []

    async def reserving(
        store: SqliteAccountStore, claim: Reservation, lease: float
    ) -> Rejection | Admission | None:
        claimed.append(claim.id)
        return await reserve(store, claim, lease)

    monkeypatch.setattr(SqliteAccountStore, "reserve", reserving)

    async def work() -> None:
        async def answer(request: web.Request) -> web.StreamResponse:
            if request.path == CHAT and upstream.paths.count(CHAT) == 2:
                assert request.transport is not None
                request.transport.abort()
            raw = reply_with_usage(prompt_tokens=PROMPT_TOKENS, completion_tokens=2).raw
            return web.Response(body=raw, content_type="application/json")

        async with run_scripted(answer) as upstream:
            with run_gateway(make_priced_config(upstream.url)) as gateway:
                for _ in range(2):
                    answered = await asyncio.to_thread(say_hi, gateway, anna)
                    assert answered.status_code == 200
            assert upstream.paths.count(CHAT) == 3

    asyncio.run(work())
    rows = ledger()
    assert [row.charge.micro_dollars for row in rows] == [COST, COST]
    assert claimed == [rows[0].id, rows[1].id]
    assert read_cap_usage() == {"key dollars": (2 * COST, 0)}


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    "fault",
    [
        *(
            ErrorReply(400),
            ErrorReply(401),
            ErrorReply(429, retry_after=9),
            ErrorReply(500),
            ErrorReply(503),
        ),
        ErrorReply(
            529, error={"type": "overloaded_error", "message": "Overloaded"}, in_stream=True
        ),
    ],
    ids=lambda fault: str(fault.status),
)
def test_an_error_response_costs_nothing(anna: str, fault: ErrorReply, is_streamed: bool) -> None:
    with gateway_with_upstream(fault) as (gateway, provider):
        say_hi(gateway, anna, stream=is_streamed)
        assert len(provider.requests) == 1
    assert settled_cost(only_row()) == 0


def test_an_unreachable_upstream_costs_nothing(anna: str) -> None:
    with run_gateway(make_priced_config("http://127.0.0.1:9/v1")) as gateway:
        assert say_hi(gateway, anna).status_code == 502
    assert settled_cost(only_row()) == 0


def test_a_reached_cap_is_reported_before_any_connection() -> None:
    secret = create_secret("anna", dollars(MAX_COST - 1))
    with run_gateway(make_priced_config("http://127.0.0.1:9/v1")) as gateway:
        assert say_hi(gateway, secret).status_code == 429


def test_a_gateway_that_stops_between_reserving_and_sending_is_refunded(
    anna: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_reserved = threading.Event()

    async def for_ever(_: SqliteAccountStore, _id: str, _lease: float) -> None:
        is_reserved.set()
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(ConnectionPool, "has_idle", False)  # so that it connects in between
    monkeypatch.setattr(SqliteAccountStore, "mark_sent", for_ever)
    with gateway_with_upstream() as (gateway, provider), open_request(gateway, anna):
        assert is_reserved.wait(LONG)
        asyncio.run(sweep_later())
        assert only_row().state == "refunded"
        assert not provider.requests


def test_a_request_on_an_open_connection_is_reserved_when_it_is_sent(
    anna: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One operation of the store does both, so there is nothing to refund in between."""
    steps: list[tuple[str, bool, int]] = []
    reserve, mark_sent = SqliteAccountStore.reserve, SqliteAccountStore.mark_sent

    async def reserving(
        store: SqliteAccountStore, claim: Reservation, lease: float
    ) -> Rejection | Admission | None:
        steps.append(("reserve", claim.is_sent, len(provider.requests)))
        return await reserve(store, claim, lease)

    async def marking(store: SqliteAccountStore, id: str, lease: float) -> bool:
        steps.append(("mark_sent", True, len(provider.requests)))
        return await mark_sent(store, id, lease)

    monkeypatch.setattr(SqliteAccountStore, "reserve", reserving)
    monkeypatch.setattr(SqliteAccountStore, "mark_sent", marking)
    with gateway_with_upstream() as (gateway, provider):
        with monkeypatch.context() as patched:
            patched.setattr(ConnectionPool, "has_idle", False)
            assert say_hi(gateway, anna).status_code == 200
        assert say_hi(gateway, anna).status_code == 200
    assert steps == [("reserve", False, 0), ("mark_sent", True, 0), ("reserve", True, 1)]
    assert [(row.state, row.charge.micro_dollars) for row in ledger()] == [("settled", COST)] * 2


def test_a_cap_reached_on_an_open_connection_sends_nothing() -> None:
    secret, other = create_secret("anna", dollars(MAX_COST)), create_secret("bob", "1000/day")
    with gateway_with_upstream() as (gateway, provider):
        assert [say_hi(gateway, secret).status_code for _ in range(3)] == [200, 429, 429]
        assert len(provider.requests) == 1
        assert say_hi(gateway, other).status_code == 200
    assert [row.charge.micro_dollars for row in ledger()] == [COST, COST]


def test_a_disconnect_before_sending_costs_nothing(
    anna: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve, is_claimed = SqliteAccountStore.reserve, threading.Event()

    async def for_ever(store: SqliteAccountStore, claim: Reservation, lease: float) -> None:
        await reserve(store, claim, lease)
        is_claimed.set()
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(SqliteAccountStore, "reserve", for_ever)
    with gateway_with_upstream() as (gateway, provider):
        with open_request(gateway, anna):
            assert is_claimed.wait(LONG)
            assert read_cap_usage() == {"key dollars": (0, MAX_COST)}
        wait_until(lambda: not gateway.gateway.running)
        assert not provider.requests
    assert settled_cost(only_row()) == 0


@pytest.fixture
def _unheard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that reserves, and fails before it can reply."""
    reserve = SqliteAccountStore.reserve

    async def unheard(store: SqliteAccountStore, claim: Reservation, lease: float) -> None:
        await reserve(store, claim, lease)
        raise AccountStoreUnavailableError("the line broke")

    monkeypatch.setattr(SqliteAccountStore, "reserve", unheard)


@pytest.mark.usefixtures("_unheard")
def test_a_request_rejected_after_a_lost_store_reply_costs_nothing(anna: str) -> None:
    with gateway_with_upstream() as (gateway, provider):
        assert say_hi(gateway, anna).status_code == 503
        assert not provider.requests
    assert settled_cost(only_row()) == 0


@pytest.mark.usefixtures("_unheard")
def test_a_request_allowed_after_a_lost_store_reply_is_charged(anna: str) -> None:
    with (
        ScriptedServer("Hello.") as provider,
        run_gateway(
            with_gateway(make_priced_config(provider.url), store_unavailable="allow")
        ) as gateway,
    ):
        assert say_hi(gateway, anna).status_code == 200
    assert settled_cost(only_row()) == COST


async def sweep_later() -> None:
    """Expire all leases."""
    store = SqliteAccountStore(store_file(), lambda: time.time() + 3_600)
    await store.open()
    await store.sweep()
    await store.close()


@pytest.mark.usefixtures("_unheard")
def test_a_request_allowed_without_the_store_is_not_charged(
    anna: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "SWEEP_SECONDS", LONG)
    with (
        ScriptedServer("Hello.") as provider,
        run_gateway(
            with_gateway(make_priced_config(provider.url), store_unavailable="allow")
        ) as gateway,
    ):
        assert [say_hi(gateway, anna).status_code for _ in range(3)] == [200] * 3
    asyncio.run(sweep_later())
    found = sorted((row.state, row.charge.micro_dollars) for row in ledger())
    assert found == [("refunded", 0), ("refunded", 0), ("settled", COST)]
    assert read_cap_usage() == {"key dollars": (COST, 0)}


@pytest.mark.usefixtures("_unheard")
@pytest.mark.parametrize("away", ["reject", "allow"])
def test_a_lost_mark_sent_reply_leaves_nothing_presumed(
    anna: str, away: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "SWEEP_SECONDS", LONG)
    unheard, forward = SqliteAccountStore.reserve, SqliteAccountStore.mark_sent

    async def reserving(store: SqliteAccountStore, claim: Reservation, lease: float) -> None:
        with suppress(AccountStoreUnavailableError):
            await unheard(store, claim, lease)

    async def forwarding(store: SqliteAccountStore, id: str, lease: float) -> bool:
        await forward(store, id, lease)
        raise AccountStoreUnavailableError("the line broke")

    monkeypatch.setattr(SqliteAccountStore, "reserve", reserving)
    monkeypatch.setattr(SqliteAccountStore, "mark_sent", forwarding)
    with (
        ScriptedServer("Hello.") as provider,
        run_gateway(
            with_gateway(make_priced_config(provider.url), store_unavailable=away)
        ) as gateway,
    ):
        for _ in range(2):
            say_hi(gateway, anna)
    asyncio.run(sweep_later())
    assert "presumed" not in [row.state for row in ledger()]


@pytest.mark.parametrize("away", ["reject", "allow"])
def test_the_first_request_after_an_outage_is_counted(
    anna: str, away: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve, claimed = SqliteAccountStore.reserve, []

    async def reserving(
        store: SqliteAccountStore, claim: Reservation, lease: float
    ) -> Rejection | Admission | None:
        claimed.append(claim.id)
        if len(claimed) == 1:
            raise AccountStoreUnavailableError("the line broke")
        return await reserve(store, claim, lease)

    monkeypatch.setattr(SqliteAccountStore, "reserve", reserving)
    with (
        ScriptedServer("Hello.") as provider,
        run_gateway(
            with_gateway(make_priced_config(provider.url), store_unavailable=away)
        ) as gateway,
    ):
        first = 503 if away == "reject" else 200
        assert [say_hi(gateway, anna).status_code for _ in range(2)] == [first, 200]
        assert not gateway.gateway.services.accounts.is_unavailable
    assert settled_cost(only_row()) == COST


def test_a_request_rejected_during_an_outage_is_not_settled(
    anna: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise AccountStoreUnavailableError("the disk is full")

    monkeypatch.setattr(SqliteAccountStore, "reserve", away)
    monkeypatch.setattr(SqliteAccountStore, "settle", away)
    with gateway_with_upstream() as (gateway, provider):
        assert {say_hi(gateway, anna).status_code for _ in range(50)} == {503}
        assert not provider.requests
    assert gateway.gateway.services.accounts.unsettled <= 1  # the request during which it failed


def test_a_request_rejected_by_a_cap_is_not_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret, settled = create_secret("anna", dollars(MAX_COST - 1)), []
    monkeypatch.setattr(
        AccountService, "settle", lambda _, settlements: settled.extend(settlements)
    )
    with gateway_with_upstream() as (gateway, provider):
        assert say_hi(gateway, secret).status_code == 429
        assert not provider.requests
    assert settled == []
    assert ledger() == []


def test_a_resent_request_has_one_row(anna: str) -> None:
    long = ["word " * 400, "so"] * 4
    with ScriptedServer("Hello.", window=1_500, reports_window=False) as provider:
        with run_gateway(make_priced_config(provider.url)) as gateway:
            body = body_of(CHAT, *long, "hi", model=MODEL)
            answer = httpx.post(gateway.url + CHAT, json=body, headers=bearer_headers(anna))
            assert answer.headers["brim-resent"] == "1"
        assert len(provider.requests) == 2
        tokens = provider.requests[-1].tokens
    assert settled_cost(only_row()) == 2 * tokens + 10 * 2


def test_a_rejected_retry_is_not_counted_as_resent(anna: str) -> None:
    error = {"message": "prompt is too long: 2000 tokens > 1500 maximum"}

    def refuse(_: object) -> ErrorReply:
        revoke("anna")
        return ErrorReply(400, error=error)

    with gateway_with_upstream(refuse) as (gateway, provider):
        body = body_of(CHAT, *["word " * 400, "so"] * 4, "hi", model=MODEL)
        answer = httpx.post(gateway.url + CHAT, json=body, headers=bearer_headers(anna))
        assert len(provider.requests) == 1
    assert answer.status_code == 401
    assert "brim-resent" not in answer.headers
    assert settled_cost(only_row()) == 0


def test_a_timeout_and_its_fallback_are_charged_in_one_row(
    anna: str, goes_on: threading.Event
) -> None:
    with ScriptedServer(stay_silent(goes_on)) as first, ScriptedServer("Hello.") as second:
        with run_gateway(fallback_config(first.url, second.url, timeout=0.2)) as gateway:
            assert say_hi(gateway, anna).headers["brim-fallback"] == "gpt-4o-mini"
        goes_on.set()
    row = only_row()
    assert row.model == "gpt-4o-mini"
    assert row.charge.usage.input == 2 * PROMPT_TOKENS
    assert row.charge.usage.output == 100 + 2
    assert row.is_estimated
    assert settled_cost(row) == MAX_COST + 2 * COST


def test_an_outage_before_a_fallback_keeps_the_first_reservation(
    anna: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, claimed = AccountService.reserve, []

    async def claiming(accounts: AccountService, one: Reservation) -> Admission | None:
        claimed.append(one.model)
        return await claim(accounts, one) if len(claimed) == 1 else None

    monkeypatch.setattr(AccountService, "reserve", claiming)
    with (
        ScriptedServer(ErrorReply(503)) as first,
        ScriptedServer("Hello.") as second,
        run_gateway(fallback_config(first.url, second.url)) as gateway,
    ):
        assert say_hi(gateway, anna).headers["brim-fallback"] == "gpt-4o-mini"
    assert claimed == [MODEL, "gpt-4o-mini"]
    assert settled_cost(only_row()) == 2 * COST


# Everything together


def test_two_hundred_failing_requests_have_one_row_each(anna: str) -> None:
    chance = random.Random(6)
    faults: list[ScriptedReply] = [
        *("Hello.", TextReply(WORDS), TextReply(WORDS, pause=0.003), TextReply(WORDS, cut_after=5)),
        *(
            TextReply(WORDS, cut_after=0),
            ErrorReply(500),
            ErrorReply(429),
            ErrorReply(400, in_stream=True),
        ),
    ]
    waits = [None, None, None, 0.0, 0.005, 0.02, 0.06, 0.1]
    jobs = [(chance.choice(PATHS), chance.random() < 0.7, chance.choice(waits)) for _ in range(200)]
    answered: list[str] = []

    def asks(gateway: Running, path: str, is_streamed: bool, wait: float | None) -> None:
        if wait is None:
            answer = say_hi(gateway, anna, path, stream=is_streamed)
            answered.append(answer.headers["brim-request-id"])
            return
        with open_request(gateway, anna, path, stream=is_streamed):
            threading.Event().wait(wait)  # and disconnects at any point

    with gateway_with_upstream(lambda _: chance.choice(faults), timeout=1.0) as (gateway, provider):
        with ThreadPoolExecutor(12) as pool:
            for done in [pool.submit(asks, gateway, *job) for job in jobs]:
                done.result()
        wait_until(lambda: not gateway.gateway.running)
    rows = ledger()
    ids = [row.id for row in rows]
    assert len(set(ids)) == len(ids) >= len(provider.requests)
    assert set(answered) <= set(ids)
    assert {row.state for row in rows} == {"settled"}
    assert read_cap_usage() == {"key dollars": (sum(row.charge.micro_dollars for row in rows), 0)}
