from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from brim.gateway.accounts import create_store
from brim.gateway.accounts.store import AccountStore
from tests.support.accounts import postgres, valkey
from tests.support.accounts.postgres import Postgres
from tests.support.accounts.reservations import KEY, SECRET, check_counters
from tests.support.accounts.valkey import Valkey
from tests.support.fixtures import EmptyStore

Replica = Callable[[], AccountStore]
Service = Postgres | Valkey


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def address(request: pytest.FixtureRequest, empty_store: EmptyStore) -> str:
    """The address of an empty store: a file, or a database or prefix on a real server."""
    return empty_store(request.param)


@pytest.fixture
async def replica(address: str, tmp_path: Path) -> AsyncIterator[Replica]:
    """Opens the same store again, like another gateway."""
    async with AsyncExitStack() as stack:

        def made() -> AccountStore:
            store = create_store(address, tmp_path)
            stack.push_async_callback(store.close)
            return store

        yield made


@pytest.fixture
async def blank(replica: Replica) -> AsyncIterator[AccountStore]:
    """An empty store; after the test its counters must match its ledger."""
    store = replica()
    await store.open()
    yield store
    await check_counters(store)


@pytest.fixture
async def store(blank: AccountStore) -> AccountStore:
    """A store with one key."""
    await blank.add_key(KEY, SECRET)
    return blank


@pytest.fixture(scope="module", params=["postgres", "redis"])
def private_server(request: pytest.FixtureRequest) -> Iterator[Service]:
    with (postgres if request.param == "postgres" else valkey).start_server() as server:
        yield server


@pytest.fixture
def service(private_server: Service) -> Service:
    """A server without accounts that the test can stop and start."""
    private_server.start()
    private_server.clear()
    return private_server
