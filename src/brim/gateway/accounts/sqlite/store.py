"""The account store in an SQLite file, for the processes of one machine."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar, TypeVarTuple

from brim.errors import AccountStoreError, AccountStoreUnavailableError
from brim.gateway.accounts.alerts import Alert, ClaimedAlert
from brim.gateway.accounts.audit import AuditEntry
from brim.gateway.accounts.caps import ALL, Cap, current_periods, load_caps, start_of_day
from brim.gateway.accounts.keys import Access, ApiKey, KeyRules, SecretRecord
from brim.gateway.accounts.rates import Admission, RateCounts
from brim.gateway.accounts.reservations import (
    OVER_ANY_CAP,
    CapCounter,
    GroupBy,
    LedgerRow,
    PrunedSum,
    Rejection,
    Reservation,
    Settlement,
    clean_reservation,
    clean_settlements,
    clean_text,
    to_spending_row,
)
from brim.gateway.accounts.sqlite import rates, upkeep
from brim.gateway.accounts.sqlite import transactions as steps
from brim.gateway.accounts.sqlite.reservation_batch import reserve
from brim.gateway.accounts.sqlite.write_queue import BUSY_SECONDS, Operation, WriteQueue, is_busy
from brim.models.pricing import SpendingRow
from brim.storage.database import NewerSchemaError, open_database

T = TypeVar("T")
Args = TypeVarTuple("Args")

MIN_SQLITE: Final = (3, 37)
"""The first version with STRICT tables."""
FILE_CHECK_SECONDS: Final = 0.5
"""Seconds between checks that the file still exists."""
_PAGE: Final = 500
"""Rows of the ledger that are read in one query."""
_LONG_WAL_PAGES: Final = 4_000
"""Pages of the write-ahead log above which it is restarted, which blocks writers briefly."""
_UNAVAILABLE: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
_DISK_ERRORS: Final = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.ESTALE,
    errno.ENOTCONN,
    errno.EROFS,
)

_ACCESS: Final = (
    f"SELECT {steps.KEY_COLUMNS}, (SELECT list FROM caps WHERE scope = 'key:' || id), "
    "(SELECT list FROM caps WHERE project <> '' AND scope = 'project:' || project), "
    f"(SELECT list FROM caps WHERE scope = '{ALL}'), "
    "(SELECT list FROM caps WHERE scope = 'users:' || id) "
    "FROM secrets JOIN keys ON keys.id = secrets.key "
    "WHERE hash = ? AND (secrets.expires IS NULL OR secrets.expires > ?) AND revoked IS NULL"
)
_LEDGER_ROW: Final = (
    "id, time, day, key, key_name, project, model, upstream, user, "
    "input, cached, output, written, cost, unpriced, state, estimated"
)
_SUMS: Final = (
    "count(*), sum(input), sum(cached), sum(output), sum(written), sum(cost), max(unpriced), "
    "sum(state = 'presumed')"
)


class SqliteAccountStore:
    """A store in a file. Short operations run on the event loop, long ones in a thread."""

    def __init__(self, path: Path | str, clock: Callable[[], float] = time.time) -> None:
        self.path = Path(path)
        self._clock = clock
        self._queue: WriteQueue | None = None
        self._opening = asyncio.Lock()
        self._inode: tuple[int, int] | None = None
        """The file that was opened; another one may replace it."""
        self._checked_at = 0.0
        """When the file was last checked."""

    async def open(self) -> None:
        async with self._opening:
            if self._queue is None:
                base = await asyncio.to_thread(self._connect)
                self._queue = WriteQueue(base, self._translate_error)
                self._inode = self._find_inode()

    async def close(self) -> None:
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.finish()
            await asyncio.to_thread(queue.base.close)

    # Keys and caps

    async def add_key(self, key: ApiKey, hashed: str, caps: Sequence[Cap] = ()) -> None:
        await self._write(steps.add_key, key, hashed, caps)

    async def keys(self) -> list[ApiKey]:
        rows = await self._read(f"SELECT {steps.KEY_COLUMNS} FROM keys ORDER BY created, id")
        return [ApiKey.of(row) for row in rows]

    async def access(self, hashed: str) -> Access | None:
        queue, now = await self._ready(), self._clock()
        try:
            rows = queue.base.execute(_ACCESS, (hashed, now)).fetchall()
        except sqlite3.Error as error:
            if not is_busy(error):
                raise self._translate_error(error) from None
            rows = await self._read(_ACCESS, hashed, now)
        return Access.of(rows[0]) if rows else None

    async def revoke(self, name: str) -> ApiKey:
        return await self._write(steps.revoke, name)

    async def rotate(self, name: str, hashed: str, overlap: float) -> ApiKey:
        return await self._write(steps.rotate, name, hashed, overlap)

    async def set_rules(self, name: str, rules: KeyRules) -> ApiKey:
        return await self._write(steps.set_rules, name, rules)

    async def set_caps(self, scope: str, caps: Sequence[Cap]) -> None:
        await self._write(steps.set_caps, scope, caps)

    async def caps(self) -> dict[str, tuple[Cap, ...]]:
        rows = await self._read("SELECT scope, list FROM caps ORDER BY scope")
        return {scope: load_caps(text) for scope, text in rows}

    # The audit log

    async def add_audit_entry(self, entry: AuditEntry) -> None:
        await self._write(steps.add_audit_entry, entry)

    async def audit_entries(self, last: int) -> list[AuditEntry]:
        query = "SELECT id, time, actor, action, subject, details FROM audit"
        rows = await self._read(f"{query} ORDER BY time DESC, id DESC LIMIT ?", last)
        return [AuditEntry.of(row) for row in rows]

    # Reservations

    async def reserve(self, reservation: Reservation, lease: float) -> Rejection | Admission | None:
        queue, kept = await self._ready(), clean_reservation(reservation)
        # Reservations with the same scopes that wait for the same transaction share its queries.
        group = kept.key, kept.project, kept.user, lease
        return await queue.submit_to_group(
            group, lambda base, each: reserve(base, self._clock(), each, lease), kept
        )

    async def mark_sent(self, id: str, lease: float) -> bool:
        return await self._write(steps.mark_sent, clean_text(id), lease)

    async def renew(self, ids: Sequence[str], lease: float) -> None:
        await self._write(steps.renew, [clean_text(id) for id in ids], lease)

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        await self._write(steps.settle, clean_settlements(settlements))

    async def sweep(self) -> int:
        expired = await self._write(steps.sweep)
        await self._in_thread(_checkpoint)
        return expired

    # Upkeep

    async def prune(self, before: date) -> int:
        pruned = 0
        while some := await self._write(upkeep.prune, start_of_day(before)):
            pruned += some
        return pruned

    async def running(self) -> int:
        return int((await self._read("SELECT count(*) FROM leases"))[0][0])

    async def dump_secrets(self) -> list[SecretRecord]:
        rows = await self._read("SELECT hash, key, expires FROM secrets ORDER BY hash")
        return [SecretRecord(*row) for row in rows]

    async def dump_pruned(self) -> list[PrunedSum]:
        rows = await self._read("SELECT * FROM pruned ORDER BY key, project, user")
        return [PrunedSum(*row) for row in rows]

    async def load_keys(self, keys: Sequence[ApiKey], secrets: Sequence[SecretRecord]) -> None:
        await self._write(upkeep.load_keys, keys, secrets)

    async def load_rows(self, rows: Sequence[LedgerRow]) -> None:
        await self._write(upkeep.load_rows, rows)

    async def load_pruned(self, sums: Sequence[PrunedSum]) -> None:
        await self._write(upkeep.load_pruned, sums)

    # Alerts

    async def add_alerts(self, alerts: Sequence[Alert]) -> None:
        await self._write(upkeep.add_alerts, alerts)

    async def claim_alerts(self, limit: int) -> list[ClaimedAlert]:
        return await self._write(upkeep.claim_alerts, limit)

    async def finish_alert(self, id: str) -> None:
        await self._write(upkeep.finish_alert, id)

    # Reading

    async def counters(self, ago: float = 0.0, users_from: int = OVER_ANY_CAP) -> list[CapCounter]:
        periods = current_periods(self._clock() - ago).values()
        rows = await self._read(
            "SELECT scope, unit, period, spent, reserved FROM counters "
            f"WHERE period IN ({', '.join('?' * len(periods))}) "
            "AND (scope NOT LIKE 'user:%' OR spent >= ?) "
            "ORDER BY scope || '/' || period || '/' || unit",
            *(*periods, users_from),
        )
        return [CapCounter(*row) for row in rows]

    async def rate_counts(self, scope: str) -> RateCounts:
        return await self._in_thread(lambda base: rates.read_counts(base, scope, self._clock()))

    async def totals(
        self, by: Sequence[GroupBy], since: date | None = None, until: date | None = None
    ) -> list[SpendingRow]:
        grouped = f"GROUP BY {', '.join(by)} ORDER BY {', '.join(by)}" if by else ""
        rows = await self._read(
            f"SELECT {', '.join([*by, _SUMS])} FROM ledger WHERE time >= ? AND time < ? {grouped}",
            *_time_range(since, until),
        )
        width = len(by)
        return [to_spending_row(row[:width], row[width:]) for row in rows if row[width]]

    async def rows(
        self, since: date | None = None, until: date | None = None
    ) -> AsyncIterator[LedgerRow]:
        first, end = _time_range(since, until)
        last = ""
        while True:
            page = await self._read(
                f"SELECT {_LEDGER_ROW} FROM ledger WHERE (time, id) > (?, ?) AND time < ? "
                f"ORDER BY time, id LIMIT {_PAGE}",
                *(first, last, end),
            )
            for values in page:
                yield LedgerRow.of(values)
            if len(page) < _PAGE:
                return
            last, first = page[-1][:2]

    # The file

    async def _write(
        self, step: Callable[[sqlite3.Connection, float, *Args], T], *args: *Args
    ) -> T:
        """Run a step in the next transaction, with the time at which that begins."""
        queue = await self._ready()
        return await queue.submit(lambda base: step(base, self._clock(), *args))

    async def _read(self, statement: str, *values: object) -> list[Any]:
        return await self._in_thread(lambda base: base.execute(statement, values).fetchall())

    async def _in_thread(self, work: Operation[T]) -> T:
        """Run an operation in a thread, on its own connection."""
        await self._ready()
        return await asyncio.to_thread(self._run_in_thread, work)

    def _run_in_thread(self, work: Operation[T]) -> T:
        try:
            # Do not create a missing file.
            uri = f"{self.path.absolute().as_uri()}?mode=rw"
            connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
            with closing(connection):
                return work(connection)
        except sqlite3.Error as error:
            raise self._translate_error(error) from None

    async def _ready(self) -> WriteQueue:
        if self._queue is None:
            await self.open()
        self._check_file()
        assert self._queue is not None
        return self._queue

    def _check_file(self) -> None:
        """Raise `AccountStoreUnavailableError` if the file was removed or replaced."""
        now = time.monotonic()
        if now - self._checked_at <= FILE_CHECK_SECONDS:
            return
        if self._find_inode() != self._inode:
            raise AccountStoreUnavailableError(
                f"{self.path} was removed or replaced. Restore it, or restart the gateway to use "
                "the new file."
            )
        self._checked_at = now

    def _find_inode(self) -> tuple[int, int] | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _connect(self) -> sqlite3.Connection:
        if sqlite3.sqlite_version_info < MIN_SQLITE:
            raise AccountStoreError(
                f"The account store needs SQLite {'.'.join(map(str, MIN_SQLITE))} or newer, and "
                f"Python has {sqlite3.sqlite_version}. Use another Python, PostgreSQL or Redis."
            )
        try:
            base = open_database(self.path, steps.MIGRATIONS, timeout=BUSY_SECONDS, shared=True)
            base.execute("PRAGMA busy_timeout = 0")
            # Checkpoints take long, so `sweep` runs them in a thread.
            base.execute("PRAGMA wal_autocheckpoint = 0")
        except sqlite3.Error as error:
            raise self._translate_error(error) from None
        except OSError as error:
            is_transient = error.errno in _DISK_ERRORS
            error_type = AccountStoreUnavailableError if is_transient else AccountStoreError
            raise error_type(
                f"Cannot create {self.path}: {error.strerror or error}. Set another file in "
                "gateway.store."
            ) from None
        return base

    def _translate_error(self, error: sqlite3.Error) -> AccountStoreError:
        """Return the exception for an SQLite error, with the file and what to do."""
        if is_busy(error):
            return AccountStoreUnavailableError(f"{self.path} is locked by another program.")
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _UNAVAILABLE:
            return AccountStoreUnavailableError(
                f"Cannot access {self.path}: {error}. Check whether its disk is full or unmounted."
            )
        if isinstance(error, NewerSchemaError):
            return AccountStoreError(f"Cannot use {self.path}: {error}. Upgrade brim.")
        # Never suggest a new file: that would remove all caps.
        return AccountStoreError(
            f"Cannot use {self.path}: {error}. Stop all gateways that use it, and restore a backup."
        )


def _checkpoint(base: sqlite3.Connection) -> None:
    _, pages, _ = base.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    if pages > _LONG_WAL_PAGES:
        # With constant writes the log would never end. Nearly all of it is copied by now, so this
        # is short. Long readers are not waited for, because writers are blocked meanwhile.
        base.execute("PRAGMA busy_timeout = 100")
        base.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()


def _time_range(since: date | None, until: date | None) -> tuple[float, float]:
    """Return the start of the first day and the end of the last, in seconds since 1970."""
    begin = 0.0 if since is None else start_of_day(since)
    if until is None or until == date.max:
        return begin, float("inf")
    return begin, start_of_day(until + timedelta(days=1))
