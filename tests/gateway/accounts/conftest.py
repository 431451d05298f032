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
    """Where books are kept that nobody else knows: a file, or a place on a real server."""
    return empty_store(request.param)


@pytest.fixture
async def replica(address: str, tmp_path: Path) -> AsyncIterator[Replica]:
    """Makes one more view of the same books, as another gateway has it."""
    async with AsyncExitStack() as stack:

        def made() -> AccountStore:
            books = create_store(address, tmp_path)
            stack.push_async_callback(books.close)
            return books

        yield made


@pytest.fixture
async def blank(replica: Replica) -> AsyncIterator[AccountStore]:
    """Books in which nothing is written yet; whatever a test does, they are right after it."""
    books = replica()
    await books.open()
    yield books
    await check_counters(books)


@pytest.fixture
async def books(blank: AccountStore) -> AccountStore:
    """Books that know one key."""
    await blank.add_key(KEY, SECRET)
    return blank


@pytest.fixture(params=["postgres", "redis"])
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    """A server of the test's own, which it may stop and start."""
    with (postgres if request.param == "postgres" else valkey).serving() as server:
        yield server
