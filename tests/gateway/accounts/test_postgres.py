"""Behaviour of the PostgreSQL store only: schema, outages, roles and locks."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from itertools import count, permutations
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg  # type: ignore[import-untyped]
import pytest

from brim.errors import AccountStoreUnavailableError, InputError, StoreError
from brim.gateway.accounts import create_store
from brim.gateway.accounts.caps import ALL, PERIODS, Cap, name_periods, project_scope
from brim.gateway.accounts.postgres.store import PostgresAccountStore
from brim.gateway.accounts.reservations import CapReached
from tests.support.accounts.postgres import GUEST, Postgres, fresh, start_server, tell
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

pytestmark = pytest.mark.anyio

TOTAL = (OWN, Cap(1_000))
At = Callable[[str], PostgresAccountStore]
_guests = count()


@pytest.fixture
def url(postgres_url: str) -> str:
    return fresh(postgres_url)


@pytest.fixture
async def store_at() -> AsyncIterator[At]:
    """Creates stores at a URL, and closes them afterwards."""
    async with AsyncExitStack() as stack:

        def made(url: str) -> PostgresAccountStore:
            store = PostgresAccountStore(url)
            stack.push_async_callback(store.close)
            return store

        yield made


@pytest.fixture
async def store(store_at: At, url: str) -> PostgresAccountStore:
    store = store_at(url)
    await store.add_key(KEY, SECRET)
    return store


@pytest.fixture(scope="module")
def _server() -> Iterator[Postgres]:
    with start_server() as server:
        yield server


@pytest.fixture
def server(_server: Postgres) -> Postgres:
    """An empty server that a test can stop."""
    _server.start()
    _server.clear()
    return _server


@pytest.fixture
def guest(url: str) -> str:
    """A URL with a role that has the password `s3cret` and owns the database."""
    name = f"{GUEST}{next(_guests)}"
    parts = urlsplit(url)
    tell(url, f"CREATE ROLE {name} LOGIN PASSWORD 's3cret'")
    tell(url, f"ALTER DATABASE {parts.path[1:]} OWNER TO {name}")
    return url.replace("//brim@", f"//{name}:s3cret@")


@asynccontextmanager
async def lock_counter(url: str, counter: str) -> AsyncIterator[Any]:
    """Lock a counter in another transaction."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute(
                "INSERT INTO brim.counters VALUES ($1, $2, $3, 0, 0) "
                "ON CONFLICT (scope, period, unit) DO UPDATE SET spent = counters.spent",
                *counter.rsplit("/", 2),
            )
            yield connection
    finally:
        await connection.close()


async def wait_for_locks(connection: Any, requests: int) -> list[int]:
    """Wait until this many server processes wait for a lock; return their ids."""
    while True:
        found = await connection.fetch("SELECT DISTINCT pid FROM pg_locks WHERE NOT granted")
        if len(found) >= requests:
            return [line["pid"] for line in found]
        await asyncio.sleep(0.01)


def set_clock(url: str, at: str) -> None:
    tell(
        url,
        "CREATE OR REPLACE FUNCTION brim.clock() RETURNS timestamptz LANGUAGE sql VOLATILE "
        f"AS $$ SELECT timestamptz '{at}' $$",
    )


# The schema


async def test_replicas_that_start_concurrently_create_one_schema(store_at: At, url: str) -> None:
    await asyncio.gather(*(store_at(url).open() for _ in range(6)))
    assert tell(url, "SELECT version FROM brim.migrations") == "1"


async def test_a_newer_schema_is_rejected_and_not_changed(store_at: At, url: str) -> None:
    await store_at(url).open()
    tell(url, "INSERT INTO brim.migrations VALUES (99)")
    with pytest.raises(StoreError, match=r"version 99.*Upgrade brim") as refusal:
        await store_at(url).open()
    assert not isinstance(refusal.value, AccountStoreUnavailableError)


async def test_a_role_without_schema_rights_can_use_an_existing_schema(
    store: PostgresAccountStore, store_at: At, url: str, guest: str
) -> None:
    role = urlsplit(guest).username
    tell(url, f"ALTER DATABASE {urlsplit(url).path[1:]} OWNER TO brim")
    tell(url, f"GRANT USAGE ON SCHEMA brim TO {role}")
    tell(url, f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA brim TO {role}")
    theirs = store_at(guest)
    assert await theirs.reserve(make_reservation("r1", 10, TOTAL), LONG) is None
    await theirs.settle([make_settlement("r1", 7)])
    assert await read_counter(store) == (7, 0)


def test_a_missing_driver_is_reported_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    for module in ("postgres.store", "postgres.pool"):
        monkeypatch.delitem(sys.modules, f"brim.gateway.accounts.{module}")
    with pytest.raises(InputError, match=r"pip install 'brim\[postgres\]'"):
        create_store("postgresql://localhost/brim", tmp_path)


# The server


async def test_a_server_that_starts_later_is_found(store_at: At, server: Postgres) -> None:
    server.stop()
    store = store_at(server.url)
    with pytest.raises(AccountStoreUnavailableError, match="is unavailable"):
        await store.open()
    with pytest.raises(AccountStoreUnavailableError):
        await store.keys()
    server.start()
    assert await store.keys() == []


async def test_a_server_restart_loses_nothing(store_at: At, server: Postgres) -> None:
    store = store_at(server.url)
    await store.add_key(KEY, SECRET)
    assert await store.reserve(make_reservation("r1", 10, TOTAL), LONG) is None
    assert await store.mark_sent("r1", LONG)
    server.stop()
    for step in (
        store.access(SECRET),
        store.reserve(make_reservation("r2", 10, TOTAL), LONG),
        store.settle([make_settlement("r1", 7)]),
        store.sweep(),
    ):
        with pytest.raises(AccountStoreUnavailableError):
            await step
    server.start()
    assert await store.reserve(make_reservation("r2", 10, TOTAL), LONG) is None
    await store.settle([make_settlement("r1", 7), make_settlement("r2", 8)])
    assert await read_counter(store) == (15, 0)
    assert sorted(await read_rows(store)) == ["r1", "r2"]


async def test_a_reservation_can_be_repeated_after_a_lost_connection(
    store: PostgresAccountStore, url: str
) -> None:
    async with lock_counter(url, f"{OWN}/total/dollars") as operator:
        broken = asyncio.create_task(store.reserve(make_reservation("r1", 10, TOTAL), LONG))
        [process] = await wait_for_locks(operator, 1)
        await operator.execute("SELECT pg_terminate_backend($1)", process)
        with pytest.raises(AccountStoreUnavailableError):
            await broken
    assert await store.reserve(make_reservation("r1", 10, TOTAL), LONG) is None
    assert await read_counter(store) == (0, 10)


async def test_a_concurrent_retry_counts_once(
    store: PostgresAccountStore, store_at: At, url: str
) -> None:
    other = store_at(url)
    async with lock_counter(url, f"{OWN}/total/dollars") as operator:
        both = [
            asyncio.create_task(one.reserve(make_reservation("r1", 10, TOTAL), LONG))
            for one in (store, other)
        ]
        await wait_for_locks(operator, 2)
    assert await asyncio.gather(*both) == [None, None]
    assert await read_counter(store) == (0, 10)


async def test_a_read_only_server_is_unavailable(
    store: PostgresAccountStore, store_at: At, url: str, postgres_url: str
) -> None:
    database = urlsplit(url).path[1:]
    assert await store.reserve(make_reservation("r1", 10, TOTAL), LONG) is None
    tell(url, f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    replica = store_at(url)
    with pytest.raises(AccountStoreUnavailableError, match="read-only"):
        await replica.reserve(make_reservation("r2", 10, TOTAL), LONG)
    tell(postgres_url, f"ALTER DATABASE {database} RESET ALL")
    assert await replica.reserve(make_reservation("r2", 10, TOTAL), LONG) is None
    assert await read_counter(store) == (0, 20)


async def test_a_server_without_free_connections_is_unavailable(
    store_at: At, url: str, guest: str
) -> None:
    role = urlsplit(guest).username
    tell(url, f"ALTER ROLE {role} CONNECTION LIMIT 0")
    store = store_at(guest)
    with pytest.raises(AccountStoreUnavailableError, match="too many connections"):
        await store.keys()
    tell(url, f"ALTER ROLE {role} CONNECTION LIMIT 5")
    assert await store.keys() == []


# Passwords


async def test_a_wrong_password_is_reported_and_not_shown(store_at: At, guest: str) -> None:
    store = store_at(guest.replace("s3cret", "t0psecret"))
    with pytest.raises(StoreError, match="password authentication failed") as refusal:
        await store.open()
    assert not isinstance(refusal.value, AccountStoreUnavailableError)
    for text in (str(refusal.value), repr(store), repr(vars(store))):
        assert "t0psecret" not in text
    assert refusal.value.__cause__ is None


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://anna:t0p/secret@localhost/brim",
        "postgresql://anna:t0p#secret@localhost/brim",
        "postgresql://anna:t0p@secret@localhost/brim",
        "postgresql://anna:t0p?in=secret@localhost/brim",
        "postgresql://anna:t0psecret/brim",
        "postgresql://anna:t0psecret@localhost:port/brim",
        "postgresql://anna:t0psecret@[localhost/brim",
        "postgresql://anna:t0psecret@localhost/brim?sslmode=t0psecret",
        "postgresql://anna:t0psecret@localhost/brim?statement_cache_size=t0psecret",
    ],
)
async def test_an_invalid_url_is_not_shown(url: str) -> None:
    with pytest.raises(InputError) as refusal:
        await PostgresAccountStore(url).open()
    assert "t0p" not in str(refusal.value)
    assert "secret" not in str(refusal.value)


# Locks and the clock


async def test_overlapping_caps_do_not_deadlock(
    store: PostgresAccountStore, store_at: At, url: str
) -> None:
    project = project_scope(KEY.project)
    scopes = [(ALL, Cap(10**9)), (OWN, Cap(10**9)), (project, Cap(10**9, "tokens"))]
    orders = list(permutations(scopes))
    replicas = [store, store_at(url), store_at(url)]

    async def spend(number: int) -> None:
        replica, caps = replicas[number % 3], orders[number % 6]
        ids = [f"{number}-{turn}" for turn in range(8)]
        for turn, id in enumerate(ids):
            lease = OVER if turn % 4 == 3 else LONG
            assert await replica.reserve(make_reservation(id, 10, *caps, tokens=8), lease) is None
        await asyncio.gather(
            replica.settle([make_settlement(id, 4, 8) for id in reversed(ids)]), replica.sweep()
        )

    await asyncio.gather(*(spend(number) for number in range(18)))
    await store.sweep()
    assert await read_counter(store) == (18 * 6 * 4, 0)
    assert await read_counter(store, project, "tokens") == (18 * 6 * 8, 0)
    assert len(await read_rows(store)) == 18 * 8
    assert (
        tell(url, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        == "0"
    )


async def test_days_are_utc_days_on_the_server_clock(store: PostgresAccountStore, url: str) -> None:
    daily = (OWN, Cap(10, period="day"))
    set_clock(url, "2026-12-31 23:59:59+00")
    assert await store.reserve(make_reservation("old", 10, daily), LONG) is None
    full = await store.reserve(make_reservation("next", 10, daily), LONG)
    midnight = datetime(2027, 1, 1, tzinfo=UTC).timestamp()
    assert full == CapReached(*daily, spent=0, reserved=10, resets_at=midnight)
    set_clock(url, "2027-01-01 00:00:01+00")
    assert await store.reserve(make_reservation("next", 10, daily), LONG) is None
    await store.settle([make_settlement("old", 9), make_settlement("next", 8)])
    rows = await read_rows(store)
    assert [rows[id].day for id in ("old", "next")] == ["2026-12-31", "2027-01-01"]
    assert await read_counter(store) == (8, 0)


async def test_a_new_cap_uses_the_server_clock(store: PostgresAccountStore, url: str) -> None:
    for day, cost in (("2026-11-30", 1), ("2026-12-01", 2), ("2026-12-02", 4)):
        set_clock(url, f"{day} 00:00:00+00")
        await store.reserve(make_reservation(day, cost), LONG)
        await store.settle([make_settlement(day, cost)])
    await store.reserve(make_reservation("runs", 8), LONG)
    caps = [(OWN, Cap(1_000, period=period)) for period in PERIODS]
    assert await store.reserve(make_reservation("r", 1, *caps), LONG) is None
    found = [(one.period, one.spent, one.reserved) for one in await store.counters()]
    assert found == [
        ("2026-12-02", 4, 9),
        ("2026-12", 6, 9),
        ("W2026-11-30", 7, 9),
        ("total", 7, 9),
    ]


async def test_weeks_begin_on_monday(store: PostgresAccountStore, url: str) -> None:
    await store.open()
    days = [date(2026, 1, 1) + timedelta(days=number) for number in range(800)]
    listed = ", ".join(f"timestamptz '{day} 23:59:59+00'" for day in days)
    names = "string_agg(brim.period_name('week', t), ' ' ORDER BY t)"
    query = f"SELECT {names} FROM unnest(ARRAY[{listed}]) t"
    expected = [name_periods(day.isoformat())["week"] for day in days]
    assert tell(url, query).split() == expected


@pytest.mark.parametrize("model", ["gpt\0", "half \ud83d of one", "größer"])
async def test_a_model_may_have_any_name(store: PostgresAccountStore, model: str) -> None:
    assert await store.reserve(make_reservation("r1", 10, TOTAL, model=model), LONG) is None
    await store.settle([make_settlement("r1", 7)])
    assert list(await read_rows(store)) == ["r1"]
