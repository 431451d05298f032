"""What only books in a file do."""

from __future__ import annotations

import asyncio
import itertools
import resource
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from brim.errors import AccountStoreError, AccountStoreUnavailableError, InputError, StoreError
from brim.gateway.accounts.caps import Cap
from brim.gateway.accounts.sqlite import write_queue
from brim.gateway.accounts.sqlite.store import SqliteAccountStore
from tests.support.accounts.reservations import (
    KEY,
    LONG,
    OWN,
    SECRET,
    booked,
    claim,
    settled,
    standing,
)

pytestmark = pytest.mark.anyio

CAP = (OWN, Cap(1_000))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "accounts.sqlite3"


@pytest.fixture
async def books(path: Path) -> SqliteAccountStore:
    books = SqliteAccountStore(path)
    await books.add_key(KEY, SECRET)
    return books


@contextmanager
def written_by_another(path: Path) -> Iterator[sqlite3.Connection]:
    """Another program that writes and does not come to an end."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


async def test_the_file_is_readable_by_its_owner_only(
    books: SqliteAccountStore, path: Path
) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    await books.close()


async def test_writes_wait_for_another_program_without_blocking_the_loop(
    books: SqliteAccountStore, path: Path
) -> None:
    with written_by_another(path) as other:
        waiting = [asyncio.ensure_future(books.reserve(claim(id, 1, CAP), LONG)) for id in "abc"]
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not any(one.done() for one in waiting)
        assert await books.access(SECRET) is not None
        other.execute("ROLLBACK")
    assert await asyncio.gather(*waiting) == [None] * 3
    assert await standing(books) == (0, 3)
    await books.close()


async def test_a_locked_file_is_unavailable_until_it_is_unlocked(
    books: SqliteAccountStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_queue, "BUSY_SECONDS", 0.05)
    with (
        written_by_another(path),
        pytest.raises(AccountStoreUnavailableError, match=r"accounts\.sqlite3 is locked"),
    ):
        await books.reserve(claim("r", 1, CAP), LONG)
    assert await books.reserve(claim("r", 1, CAP), LONG) is None
    await books.close()


async def test_writes_of_one_loop_iteration_share_a_transaction(
    books: SqliteAccountStore, path: Path
) -> None:
    log = path.with_name(f"{path.name}-wal")

    async def grown(number: int) -> int:
        """How much the log grows by so many claims at once."""
        await books.sweep()
        before = log.stat().st_size
        names = [f"{number}-{index}" for index in range(number)]
        await asyncio.gather(*(books.reserve(claim(name, 1, CAP), LONG) for name in names))
        return log.stat().st_size - before

    await books.reserve(claim("first", 1, CAP), LONG)
    one = await grown(1)
    assert await grown(8) <= 2 * one
    await books.close()


async def test_a_failing_write_does_not_affect_others(books: SqliteAccountStore) -> None:
    leases = {"a": LONG, "never": float("nan"), "b": LONG}
    steps = [books.reserve(claim(id, 1, CAP), lease) for id, lease in leases.items()]
    found = await asyncio.gather(*steps, return_exceptions=True)
    assert [type(one) for one in found] == [type(None), AccountStoreError, type(None)]
    assert await standing(books) == (0, 2)
    assert await books.mark_sent("a", LONG)
    assert await books.mark_sent("b", LONG)
    await books.close()


async def test_a_settlement_is_recorded_even_if_its_caller_is_cancelled(
    books: SqliteAccountStore,
) -> None:
    await books.reserve(claim("r", 5, CAP), LONG)
    waiting = asyncio.ensure_future(books.settle([settled("r", 3)]))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await books.close()
    assert list(await booked(books)) == ["r"]
    await books.close()


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """No file can grow any more, as if the disk were full."""
    log = path.with_name(f"{path.name}-wal")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_full_disk_means_unavailable_and_writes_are_atomic(
    books: SqliteAccountStore, path: Path
) -> None:
    await books.reserve(claim("before", 1, CAP), LONG)
    with full_disk(path), pytest.raises(AccountStoreUnavailableError, match="disk is full"):
        await books.reserve(claim("r", 1, CAP), LONG)
    assert await standing(books) == (0, 1)
    assert await books.reserve(claim("r", 1, CAP), LONG) is None
    assert await standing(books) == (0, 2)
    await books.close()


async def test_a_damaged_file_is_reported_with_advice(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"no books at all" * 100)
    with pytest.raises(StoreError, match=r"Cannot use .*accounts\.sqlite3.*backup") as told:
        await SqliteAccountStore(path).open()
    assert not isinstance(told.value, AccountStoreUnavailableError)


async def test_an_invalid_path_is_reported(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where a folder should be")
    with pytest.raises(StoreError, match=r"Cannot create .*accounts\.sqlite3.*gateway\.store"):
        await SqliteAccountStore(tmp_path / "state" / "accounts.sqlite3").keys()


async def test_a_newer_schema_is_rejected_and_not_changed(
    books: SqliteAccountStore, path: Path
) -> None:
    await books.close()
    with closing(sqlite3.connect(path)) as base:
        base.execute("PRAGMA user_version = 99")
    with pytest.raises(AccountStoreError, match=r"version 99.*Upgrade brim"):
        await books.keys()


async def test_the_write_ahead_log_is_restarted_during_writes(
    books: SqliteAccountStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brim.gateway.accounts.sqlite.store._LONG_WAL_PAGES", 100)
    written = itertools.count()

    async def write() -> None:
        while True:
            await books.reserve(claim(f"r{next(written)}"), LONG)

    writing = asyncio.ensure_future(write())
    for _ in range(30):
        await books.sweep()
    writing.cancel()
    await asyncio.wait([writing])
    # Each of them takes a page at least.
    assert path.with_name(f"{path.name}-wal").stat().st_size < next(written) * 4_096
    await books.close()


async def test_the_file_contains_no_secret(books: SqliteAccountStore, path: Path) -> None:
    await books.close()
    assert SECRET.encode() in path.read_bytes()
    assert b"brim-secret" not in path.read_bytes()


async def test_a_duplicate_name_is_reported_with_advice(books: SqliteAccountStore) -> None:
    with pytest.raises(InputError, match="already in use: anna"):
        await books.add_key(KEY, SECRET)
    await books.close()
