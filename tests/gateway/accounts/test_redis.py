"""Behaviour of the Redis store only: lost data, eviction, lost scripts, shared servers."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from brim.errors import AccountStoreError, AccountStoreUnavailableError, InputError, StoreError
from brim.gateway.accounts import create_store
from brim.gateway.accounts.caps import ALL, PERIODS, Cap, name_periods
from brim.gateway.accounts.redis.store import RedisAccountStore
from brim.gateway.accounts.reservations import CapReached, ReservationInvalid
from tests.support.accounts import valkey
from tests.support.accounts.reservations import (
    KEY,
    LONG,
    OVER,
    OWN,
    SECRET,
    make_reservation,
    make_settlement,
    read_counter,
    read_rows,
)
from tests.support.accounts.valkey import Valkey

pytestmark = pytest.mark.anyio

TEN = (OWN, Cap(10))
DAILY = (ALL, Cap(1_000, "tokens", "day"))


@pytest.fixture(scope="module")
def _server() -> Iterator[Valkey]:
    with valkey.start_server() as server:
        yield server


@pytest.fixture
def server(_server: Valkey) -> Valkey:
    """An empty server for this module."""
    _server.clear()
    return _server


@asynccontextmanager
async def open_store(url: str) -> AsyncIterator[RedisAccountStore]:
    store = RedisAccountStore(url)
    try:
        await store.open()
        yield store
    finally:
        await store.close()


async def _open_once(url: str) -> None:
    async with open_store(url):
        pass


@pytest.fixture
async def store(server: Valkey) -> AsyncIterator[RedisAccountStore]:
    async with open_store(server.url) as store:
        await store.add_key(KEY, SECRET)
        yield store


def forget(server: Valkey, *patterns: str) -> None:
    """Delete keys of the server."""
    for pattern in patterns:
        with redis.Redis.from_url(server.url) as client:
            names = list(client.scan_iter(pattern.replace("{", "\\{"), count=1_000))
            assert names, pattern
            client.delete(*names)


# Lost data


async def test_a_flushed_server_has_no_keys(server: Valkey, store: RedisAccountStore) -> None:
    await store.reserve(make_reservation("r", 6, TEN), LONG)
    await store.mark_sent("r", LONG)
    server.clear()
    assert await store.reserve(make_reservation("s", 1, TEN), LONG) == ReservationInvalid()
    assert await store.mark_sent("r", LONG) is False
    await store.settle([make_settlement("r", 5)])
    assert await read_rows(store) == {}
    assert await store.counters() == []
    await store.add_key(KEY, SECRET)
    assert await store.reserve(make_reservation("s", 10, TEN), LONG) is None


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_data_survives_a_server_restart(
    server: Valkey, store: RedisAccountStore, how: signal.Signals
) -> None:
    await store.reserve(make_reservation("settled", 3, TEN), LONG)
    await store.settle([make_settlement("settled", 2)])
    await store.reserve(make_reservation("under way", 6, TEN), LONG)
    server.stop(how)
    try:
        with pytest.raises(AccountStoreUnavailableError, match="is unavailable"):
            await store.reserve(make_reservation("r", 1, TEN), LONG)
        with pytest.raises(AccountStoreUnavailableError, match="is unavailable"):
            await store.settle([make_settlement("under way", 5)])
    finally:
        server.start()
    assert await store.reserve(make_reservation("r", 3, TEN), LONG) == CapReached(
        OWN, Cap(10), 2, 6, None
    )
    await store.settle([make_settlement("under way", 5)])
    assert await read_counter(store) == (7, 0)
    assert set(await read_rows(store)) == {"settled", "under way"}


async def test_a_store_works_once_its_server_starts(server: Valkey) -> None:
    server.stop()
    late = RedisAccountStore(server.url)
    try:
        with pytest.raises(AccountStoreUnavailableError):
            await late.open()
        with pytest.raises(AccountStoreUnavailableError):
            await late.access(SECRET)
    finally:
        server.start()
    await late.add_key(KEY, SECRET)
    assert await late.keys() == [KEY]
    await late.close()


async def test_a_missing_counter_is_summed_once(server: Valkey, store: RedisAccountStore) -> None:
    for id, cost in (("settled", 4), ("sent", 3), ("runs", 2), ("given back", 1)):
        await store.reserve(make_reservation(id, cost, TEN, DAILY, tokens=100), LONG)
    await store.settle([make_settlement("settled", 1, 40)])
    await store.mark_sent("sent", OVER)
    await store.reserve(make_reservation("given back", 1, TEN, DAILY, tokens=100), OVER)
    await store.sweep()
    assert await read_counter(store) == (4, 2)
    forget(server, "{brim}:counters:*", "{brim}:totals:*")
    async with open_store(server.url) as other:
        both = (store, other) * 8
        claims = [
            make_reservation(f"r{number}", 1, TEN, DAILY, tokens=1) for number in range(len(both))
        ]
        found = await asyncio.gather(
            *(one.reserve(reservation, LONG) for one, reservation in zip(both, claims, strict=True))
        )
    assert [one for one in found if one is not None] == [CapReached(OWN, Cap(10), 4, 6, None)] * 12
    assert await read_counter(store) == (4, 6)
    assert await read_counter(store, ALL, "tokens") == (140, 104)


async def test_a_rejected_reservation_also_restores_a_counter(
    server: Valkey, store: RedisAccountStore
) -> None:
    await store.reserve(make_reservation("r", 9, TEN), LONG)
    await store.settle([make_settlement("r", 9)])
    forget(server, "{brim}:counters:*")
    for _ in range(2):
        assert await store.reserve(make_reservation("s", 2, TEN), LONG) == CapReached(
            OWN, Cap(10), 9, 0, None
        )


async def test_a_new_cap_counts_the_days_of_its_period(
    server: Valkey, store: RedisAccountStore
) -> None:
    today = datetime.now(UTC).date()
    monday = today - timedelta(days=today.weekday())
    other = today.replace(day=2 if today.day == 1 else 1)
    for day in (today, other, today - timedelta(days=40)):
        row = f'[1.5,"settled",false,[0,0,0,0,3,false],["{KEY.id}","anna","blue","gpt","main",""]]'
        server.tell("HSET", f"{{brim}}:rows:{day}", f"on {day}", row)
        server.tell("SADD", "{brim}:days", str(day))
    await store.reserve(make_reservation("runs", 5), LONG)
    caps = [(OWN, Cap(1_000, period=period)) for period in PERIODS]
    assert await store.reserve(make_reservation("r", 1, *caps), LONG) is None
    found = [(one.period, one.spent, one.reserved) for one in await store.counters()]
    this_week = 3 * sum(monday <= day <= monday + timedelta(days=6) for day in (today, other))
    assert found == [
        (f"{today}", 3, 6),
        (f"{today:%Y-%m}", 6, 6),
        (f"W{monday}", this_week, 6),
        ("total", 9, 6),
    ]


async def test_a_row_is_corrected_without_its_counter(
    server: Valkey, store: RedisAccountStore
) -> None:
    await store.reserve(make_reservation("r", 9, TEN), LONG)
    await store.mark_sent("r", OVER)
    await store.sweep()
    forget(server, "{brim}:counters:*", "{brim}:totals:*")
    await store.settle([make_settlement("r", 2)])
    assert await store.reserve(make_reservation("s", 8, TEN), LONG) is None
    assert await read_counter(store) == (2, 8)


async def test_missing_totals_are_summed_again(server: Valkey, store: RedisAccountStore) -> None:
    for number in range(5):
        await store.reserve(make_reservation(f"r{number}", 5, model=f"m{number % 2}"), LONG)
        await store.settle([make_settlement(f"r{number}", number, 10)])
    before = await store.totals(["model", "state"])
    forget(server, "{brim}:totals:*")
    assert await store.totals(["model", "state"]) == before
    forget(server, "{brim}:totals:*")
    await store.reserve(make_reservation("more", 5, model="m0"), LONG)
    await store.settle([make_settlement("more", 1)])
    assert [row.total.calls for row in await store.totals(["model"])] == [4, 2]


async def test_missing_scripts_are_loaded_again(server: Valkey, store: RedisAccountStore) -> None:
    server.tell("SCRIPT", "FLUSH")
    pending = [store.reserve(make_reservation(f"r{number}", 1, TEN), LONG) for number in range(12)]
    taken = [one is None for one in await asyncio.gather(*pending)]
    assert taken == [True] * 10 + [False] * 2


# Unsuitable servers


async def test_a_server_that_evicts_keys_is_rejected(server: Valkey) -> None:
    try:
        server.tell("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        with pytest.raises(StoreError, match=r"maxmemory-policy is allkeys-lru.*noeviction"):
            await _open_once(server.url)
        server.tell("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
        await _open_once(server.url)
    finally:
        server.tell("CONFIG", "SET", "maxmemory-policy", "noeviction")


async def test_only_counters_expire(server: Valkey, store: RedisAccountStore) -> None:
    await store.reserve(make_reservation("settled", 1, TEN, DAILY), LONG)
    await store.settle([make_settlement("settled", 1)])
    await store.reserve(make_reservation("presumed", 1, TEN, DAILY), LONG)
    await store.mark_sent("presumed", OVER)
    await store.sweep()
    await store.reserve(make_reservation("runs", 1, TEN, DAILY), LONG)
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        ending = {name for name in client.scan_iter() if client.ttl(name) != -1}
    assert {name.rsplit(":", 1)[0] for name in ending} == {"{brim}:counters"}


async def test_a_server_with_hidden_settings_is_accepted() -> None:
    with valkey.start_server("--rename-command", "CONFIG", "") as server:
        async with open_store(server.url) as store:
            await store.add_key(KEY, SECRET)
            assert await store.keys() == [KEY]


async def test_a_newer_schema_is_rejected_and_not_changed(server: Valkey) -> None:
    server.tell("SET", "{brim}:layout", "99")
    with pytest.raises(StoreError, match=r"layout 99.*Upgrade brim"):
        await _open_once(server.url)


async def test_settlements_succeed_when_memory_is_full(
    server: Valkey, store: RedisAccountStore
) -> None:
    await store.reserve(make_reservation("r", 6, TEN), LONG)
    server.tell("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(AccountStoreUnavailableError, match="is not ready"):
            await store.reserve(make_reservation("s", 1, TEN), LONG)
        await store.settle([make_settlement("r", 5)])
    finally:
        server.tell("CONFIG", "SET", "maxmemory", "0")
    assert await read_counter(store) == (5, 0)
    assert await store.reserve(make_reservation("s", 1, TEN), LONG) is None


async def test_a_replica_is_unavailable(server: Valkey, store: RedisAccountStore) -> None:
    server.tell("CONFIG", "SET", "replica-serve-stale-data", "yes")
    server.tell("REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises(AccountStoreUnavailableError, match="is not ready"):
            await store.reserve(make_reservation("r", 1, TEN), LONG)
    finally:
        server.tell("REPLICAOF", "NO", "ONE")
    assert await store.reserve(make_reservation("r", 1, TEN), LONG) is None


# Broken connections


class Cutting:
    """A proxy that loses replies: commands run, but their replies are dropped."""

    def __init__(self, server: Valkey) -> None:
        self._port = urlsplit(server.url).port
        self.losing = 0

    async def carry(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        answers, ahead = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            while chunk := await client.read(65_536):
                ahead.write(chunk)
                answer = await answers.read(65_536)
                if self.losing:
                    self.losing -= 1
                    return
                back.write(answer)
        finally:
            ahead.close()
            back.close()


@asynccontextmanager
async def open_cuttable(server: Valkey) -> AsyncIterator[tuple[Cutting, RedisAccountStore]]:
    way = Cutting(server)
    listener = await asyncio.start_server(way.carry, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with listener, open_store(f"redis://127.0.0.1:{port}/0") as store:
        yield way, store


async def test_an_operation_with_a_lost_reply_runs_once(server: Valkey) -> None:
    async with open_cuttable(server) as (way, store):
        way.losing = 1
        await store.add_key(KEY, SECRET)
        way.losing = 1
        assert await store.reserve(make_reservation("r", 6, TEN), LONG) is None
        assert await read_counter(store) == (0, 6)
        way.losing = 1
        assert await store.mark_sent("r", LONG)
        way.losing = 1
        await store.settle([make_settlement("r", 5)])
        assert await read_counter(store) == (5, 0)
        assert len(await read_rows(store)) == 1
        way.losing = 1
        assert (await store.revoke(KEY.name)).id == KEY.id


async def test_repeatedly_lost_replies_mean_unavailable(server: Valkey) -> None:
    async with open_cuttable(server) as (way, store):
        await store.add_key(KEY, SECRET)
        way.losing = 2
        with pytest.raises(AccountStoreUnavailableError):
            await store.reserve(make_reservation("r", 6, TEN), LONG)
        assert await store.reserve(make_reservation("r", 6, TEN), LONG) is None
        assert await read_counter(store) == (0, 6)


@pytest.mark.usefixtures("store")
async def test_a_silent_server_is_unavailable(server: Valkey) -> None:
    impatient = RedisAccountStore(f"{server.url}?socket_timeout=0.2")
    assert await impatient.keys() == [KEY]
    server.signal(signal.SIGSTOP)
    try:
        with pytest.raises(AccountStoreUnavailableError, match=r"no reply within 0\.2 s"):
            await impatient.keys()
    finally:
        server.signal(signal.SIGCONT)
    assert await impatient.keys() == [KEY]
    await impatient.close()


async def test_a_cancelled_caller_does_not_affect_others(store: RedisAccountStore) -> None:
    pending = [
        asyncio.create_task(store.reserve(make_reservation(f"r{number}", 1, TEN), LONG))
        for number in range(4)
    ]
    await asyncio.sleep(0)
    pending[1].cancel()
    found = await asyncio.gather(*pending, return_exceptions=True)
    assert [type(one) for one in found].count(asyncio.CancelledError) == 1
    assert found.count(None) == 3
    assert await store.mark_sent("r3", LONG)


# Addresses


async def test_a_prefix_separates_stores_on_one_server(
    server: Valkey, store: RedisAccountStore
) -> None:
    async with open_store(f"{server.url}?prefix=staging") as staging:
        assert await staging.keys() == []
        await staging.add_key(KEY, SECRET)
        await staging.reserve(make_reservation("r", 6, TEN), LONG)
        assert await store.counters() == []
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        assert {name.split(":")[0] for name in client.scan_iter()} == {"{brim}", "{staging}"}


async def test_a_password_is_never_shown(server: Valkey) -> None:
    where = urlsplit(server.url)
    for address, kind in (
        ("127.0.0.1:1", AccountStoreUnavailableError),
        (f"{where.hostname}:{where.port}", AccountStoreError),  # retrying cannot help
    ):
        store = RedisAccountStore(f"redis://ops:hunter2@{address}/0")
        with pytest.raises(AccountStoreError) as raised:
            await store.open()
        assert type(raised.value) is kind
        assert "hunter2" not in f"{raised.value!r}{store!r}"
        await store.close()


@pytest.mark.parametrize("url", ["redis://ops:hun#ter2@host:6379", "redis://ops:hun/ter2@host"])
def test_an_invalid_url_is_explained_without_its_password(url: str) -> None:
    with pytest.raises(InputError, match="%2F") as raised:
        RedisAccountStore(url)
    assert "hun" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("option", ["colour=red", "socket_timeout=soon"])
def test_an_unknown_url_option_is_rejected(option: str) -> None:
    with pytest.raises(InputError, match="Invalid Redis URL"):
        RedisAccountStore(f"redis://localhost/0?{option}")


@pytest.mark.usefixtures("store")
async def test_valkey_urls_are_accepted(server: Valkey) -> None:
    async with open_store(server.url.replace("redis:", "valkey:")) as same:
        assert await same.keys() == [KEY]


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    for name in ("brim.gateway.accounts.redis.store", "brim.gateway.accounts.redis.script_runner"):
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(InputError, match=r"pip install 'brim\[redis\]'"):
        create_store("redis://localhost/0", tmp_path)


# Functions of the scripts


async def test_days_and_weeks_match_the_calendar(server: Valkey) -> None:
    text = (
        resources.files("brim.gateway.accounts.redis")
        .joinpath("lua/common.lua")
        .read_text(encoding="utf-8")
    )
    step = """
        local found = {} for i, time in ipairs(ARGV) do
        local day = day_of(tonumber(time)) found[i] = day .. ' ' .. period_name('week', day) end"""
    times = [*range(0, 80 * 365 * 86_400, 86_400 - 1), *range(86_399, 2**32, 40 * 86_400)]
    found: list[str] = []
    for start in range(0, len(times), 5_000):
        part = [str(time) for time in times[start : start + 5_000]]
        answer = server.tell("EVAL", f"{text}{step} return found", "1", "{any}", *part)
        assert isinstance(answer, list)
        found += answer
    days = [datetime.fromtimestamp(time, UTC).date().isoformat() for time in times]
    assert found == [f"{day} {name_periods(day)['week']}" for day in days]
