"""Behaviour of the SQLite store only."""

from __future__ import annotations

import asyncio
import itertools
import resource
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from brim.errors import AccountStoreError, AccountStoreUnavailableError, InputError, StoreError
from brim.gateway.accounts.caps import ALL, Cap
from brim.gateway.accounts.sqlite import write_queue
from brim.gateway.accounts.sqlite.store import SqliteAccountStore
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

CAP = (OWN, Cap(1_000))
CAPS = [
    *((OWN, Cap(15)), (OWN, Cap(70, "tokens", "day")), (ALL, Cap(20, "dollars", "week"))),
    *((OWN, Cap(5, "requests", "minute")), (ALL, Cap(80, "tokens", "minute"))),
    (OWN, Cap(4, "requests", "now")),
]
CAP_NUMBERS = some.integers(0, len(CAPS) - 1)
TABLES = ("counters", "rates", "leases", "ledger")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "accounts.sqlite3"


@pytest.fixture
async def store(path: Path) -> SqliteAccountStore:
    store = SqliteAccountStore(path)
    await store.add_key(KEY, SECRET)
    return store


@contextmanager
def written_by_another(path: Path) -> Iterator[sqlite3.Connection]:
    """Another program that holds a write lock."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


async def test_the_file_is_readable_by_its_owner_only(
    store: SqliteAccountStore, path: Path
) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    await store.close()


async def test_writes_wait_for_another_program_without_blocking_the_loop(
    store: SqliteAccountStore, path: Path
) -> None:
    with written_by_another(path) as other:
        waiting = [
            asyncio.ensure_future(store.reserve(make_reservation(id, 1, CAP), LONG)) for id in "abc"
        ]
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not any(one.done() for one in waiting)
        assert await store.access(SECRET) is not None
        other.execute("ROLLBACK")
    assert await asyncio.gather(*waiting) == [None] * 3
    assert await read_counter(store) == (0, 3)
    await store.close()


async def test_a_locked_file_is_unavailable_until_it_is_unlocked(
    store: SqliteAccountStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_queue, "BUSY_SECONDS", 0.05)
    with (
        written_by_another(path),
        pytest.raises(AccountStoreUnavailableError, match=r"accounts\.sqlite3 is locked"),
    ):
        await store.reserve(make_reservation("r", 1, CAP), LONG)
    assert await store.reserve(make_reservation("r", 1, CAP), LONG) is None
    await store.close()


async def test_writes_of_one_loop_iteration_share_a_transaction(
    store: SqliteAccountStore, path: Path
) -> None:
    log = path.with_name(f"{path.name}-wal")

    async def grown(number: int) -> int:
        """Return how much the write-ahead log grows by this many reservations."""
        await store.sweep()
        before = log.stat().st_size
        names = [f"{number}-{index}" for index in range(number)]
        await asyncio.gather(
            *(store.reserve(make_reservation(name, 1, CAP), LONG) for name in names)
        )
        return log.stat().st_size - before

    await store.reserve(make_reservation("first", 1, CAP), LONG)
    one = await grown(1)
    assert await grown(8) <= 2 * one
    await store.close()


async def test_a_failing_write_does_not_affect_others(store: SqliteAccountStore) -> None:
    leases = {"a": LONG, "never": float("nan"), "b": LONG}
    steps = [store.reserve(make_reservation(id, 1, CAP), lease) for id, lease in leases.items()]
    found = await asyncio.gather(*steps, return_exceptions=True)
    assert [type(one) for one in found] == [type(None), AccountStoreError, type(None)]
    assert await read_counter(store) == (0, 2)
    assert await store.mark_sent("a", LONG)
    assert await store.mark_sent("b", LONG)
    await store.close()


async def test_a_failing_item_does_not_affect_the_others_of_its_group(path: Path) -> None:
    def work(_: sqlite3.Connection, items: Sequence[int]) -> list[int]:
        return [60 // item for item in items]

    with closing(sqlite3.connect(path.parent.parent / "any", isolation_level=None)) as base:
        queue = write_queue.WriteQueue(base, AccountStoreError)
        waiting = [queue.submit_to_group("a", work, item) for item in (1, 0, 2)]
        waiting += [queue.submit(lambda _: 7), queue.submit_to_group("a", work, 3)]
        found = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(found[1], ZeroDivisionError)
    assert [found[0], *found[2:]] == [60, 30, 7, 20]


@given(
    some.lists(
        some.tuples(some.sampled_from("abcdef"), some.integers(0, 9), some.sets(CAP_NUMBERS)),
        max_size=9,
    ),
    some.sampled_from("abcdef"),
)
@settings(deadline=None, max_examples=60)
def test_reservations_that_share_a_transaction_are_made_in_order(
    requests: list[tuple[str, int, set[int]]], early: str
) -> None:
    """Their results and all tables are those of one transaction for each of them."""
    reservations = [
        make_reservation(id, cost, *(CAPS[index] for index in sorted(which)), tokens=cost * 3)
        for id, cost, which in requests
    ]

    async def run(path: Path, *, together: bool) -> object:
        store = SqliteAccountStore(path, lambda: 1_800_000_000.5)
        await store.add_key(KEY, SECRET)
        await store.reserve(make_reservation(early, 2, *CAPS, is_sent=True), OVER)
        if together:
            found = await asyncio.gather(*(store.reserve(each, LONG) for each in reservations))
        else:
            found = [await store.reserve(each, LONG) for each in reservations]
        await store.close()
        with closing(sqlite3.connect(path)) as base:
            tables = [
                base.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall() for name in TABLES
            ]
        return found, tables

    with TemporaryDirectory() as folder:
        alone = asyncio.run(run(Path(folder, "alone"), together=False))
        assert asyncio.run(run(Path(folder, "together"), together=True)) == alone


async def test_a_settlement_is_recorded_even_if_its_caller_is_cancelled(
    store: SqliteAccountStore,
) -> None:
    await store.reserve(make_reservation("r", 5, CAP), LONG)
    waiting = asyncio.ensure_future(store.settle([make_settlement("r", 3)]))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await store.close()
    assert list(await read_rows(store)) == ["r"]
    await store.close()


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """Limit the file size, as if the disk were full."""
    log = path.with_name(f"{path.name}-wal")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_full_disk_means_unavailable_and_writes_are_atomic(
    store: SqliteAccountStore, path: Path
) -> None:
    await store.reserve(make_reservation("before", 1, CAP), LONG)
    with full_disk(path), pytest.raises(AccountStoreUnavailableError, match="disk is full"):
        await store.reserve(make_reservation("r", 1, CAP), LONG)
    assert await read_counter(store) == (0, 1)
    assert await store.reserve(make_reservation("r", 1, CAP), LONG) is None
    assert await read_counter(store) == (0, 2)
    await store.close()


async def test_a_damaged_file_is_reported_with_advice(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"no store at all" * 100)
    with pytest.raises(StoreError, match=r"Cannot use .*accounts\.sqlite3.*backup") as error:
        await SqliteAccountStore(path).open()
    assert not isinstance(error.value, AccountStoreUnavailableError)


async def test_an_invalid_path_is_reported(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where a folder should be")
    with pytest.raises(StoreError, match=r"Cannot create .*accounts\.sqlite3.*gateway\.store"):
        await SqliteAccountStore(tmp_path / "state" / "accounts.sqlite3").keys()


async def test_a_newer_schema_is_rejected_and_not_changed(
    store: SqliteAccountStore, path: Path
) -> None:
    await store.close()
    with closing(sqlite3.connect(path)) as base:
        base.execute("PRAGMA user_version = 99")
    with pytest.raises(AccountStoreError, match=r"version 99.*Upgrade brim"):
        await store.keys()


async def test_the_write_ahead_log_is_restarted_during_writes(
    store: SqliteAccountStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brim.gateway.accounts.sqlite.store._LONG_WAL_PAGES", 100)
    written = itertools.count()

    async def write() -> None:
        while True:
            await store.reserve(make_reservation(f"r{next(written)}"), LONG)

    def is_restarted() -> bool:
        """Return whether the log is shorter than many reservations: each takes at least a page."""
        count, size = next(written), path.with_name(f"{path.name}-wal").stat().st_size
        return count > 200 and size < count * 4_096

    writing = asyncio.ensure_future(write())
    for _ in range(500):
        await store.sweep()
        if is_restarted():
            break
    writing.cancel()
    await asyncio.wait([writing])
    assert is_restarted()
    await store.close()


async def test_the_file_contains_no_secret(store: SqliteAccountStore, path: Path) -> None:
    await store.close()
    assert SECRET.encode() in path.read_bytes()
    assert b"brim-secret" not in path.read_bytes()


async def test_a_duplicate_name_is_reported_with_advice(store: SqliteAccountStore) -> None:
    with pytest.raises(InputError, match="already in use: anna"):
        await store.add_key(KEY, SECRET)
    await store.close()
