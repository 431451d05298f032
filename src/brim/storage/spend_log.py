"""The cost of every call across runs: one row per call, never changed or removed.

The most that a call can cost is reserved immediately before it is sent. If its process is killed,
the reservation becomes a row that is *presumed*: the call may have been charged.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import groupby
from sqlite3 import Connection, Row
from typing import Final, Literal

from brim.errors import StoreError
from brim.models.pricing import SpendingRow, SpendingTotal, Usage
from brim.session.ledger import DailyCap, Ledger
from brim.session.session import Session
from brim.storage.conversations import SINGLE, ConversationStore
from brim.storage.database import Database

SpendKey = Literal["day", "model", "project", "category", "session"]


_CALL: Final = (
    "time, day, session, project, model, category, input, cached, written, output, counted, cost, "
    "unknown, estimated"
)


@dataclass(frozen=True, slots=True)
class SpendLog:
    """The calls of all runs."""

    database: Database
    clock: Callable[[], float] = time.time

    def add(
        self, call: SpendingTotal, *, session: str, project: str, model: str, category: str
    ) -> None:
        """Record one call."""
        with self.database.transaction() as base:
            self._insert(base, "spending", call, (session, project, model, category))

    def _insert(
        self, base: Connection, table: str, call: SpendingTotal, names: tuple[str, str, str, str]
    ) -> int:
        now, usage = self.clock(), call.usage
        tokens = usage.input, usage.cached, usage.written, usage.output, call.counted
        values = (now, _format_day(now), *names, *tokens, str(call.cost))
        row = base.execute(
            f"INSERT INTO {table} ({_CALL}) VALUES ({'?, ' * 13}?)",
            (*values, call.unknown, call.estimated),
        ).lastrowid
        assert row is not None
        return row

    def follow(
        self, session: Session, project: str, cap: Decimal | None, name: str
    ) -> SpendAccount:
        """Record the calls of a session from now on, and apply a cap to the spending of a day."""
        account = SpendAccount(self, project, name, session.warnings.append)
        session.ledger.store = account
        if cap is not None:
            session.ledger.daily_cap = DailyCap(cap, lambda: self.today().cost)
        return account

    def today(self) -> SpendingTotal:
        """Return the spending of today, over all runs, with what is reserved."""
        day = _format_day(self.clock())
        rows = self.database.rows(
            f"SELECT {_CALL} FROM spending WHERE day = ?1 "
            f"UNION ALL SELECT {_CALL} FROM reservations WHERE day = ?1",
            day,
        )
        return sum(map(_parse_row, rows), SpendingTotal())

    def reserve(self, most: SpendingTotal, names: tuple[str, str, str, str]) -> int:
        """Reserve the most that a call can cost; return the number of the reservation."""
        with self.database.transaction() as base:
            return self._insert(base, "reservations", most, names)

    def settle(
        self, reservation: int | None, call: SpendingTotal | None, names: tuple[str, str, str, str]
    ) -> int | None:
        """Replace a reservation by the call, and return its number; without a call, release it."""
        with self.database.transaction() as base:
            base.execute("DELETE FROM reservations WHERE rowid = ?", (reservation,))
            return None if call is None else self._insert(base, "spending", call, names)

    def presume(self, session: str) -> None:
        """Charge the reservations of a session whose process has ended, in full."""
        with self.database.transaction() as base:
            found = "FROM reservations WHERE session = ? ORDER BY rowid"
            insert = f"INSERT INTO spending ({_CALL}, presumed) SELECT {_CALL}, 1 {found}"
            base.execute(insert, (session,))
            base.execute("DELETE FROM reservations WHERE session = ?", (session,))

    def reserved_sessions(self) -> list[str]:
        """Return the sessions with a reservation."""
        rows = self.database.rows("SELECT DISTINCT session FROM reservations")
        return [row["session"] for row in rows]

    def calls_after(self, session: str, last: int) -> list[tuple[int, str, str, SpendingTotal]]:
        """Return number, model, category and call of a session's calls after one number."""
        rows = self.database.rows(
            "SELECT * FROM spending WHERE session = ? AND id > ? ORDER BY id", session, last
        )
        return [(row["id"], row["model"], row["category"], _parse_row(row)) for row in rows]

    def by(
        self, *keys: SpendKey, since: date | None = None, until: date | None = None
    ) -> Sequence[SpendingRow]:
        """Return the spending grouped by these keys, sorted by their values."""

        def group_key(row: Row) -> tuple[str, ...]:
            return tuple(row[key] for key in keys)

        rows = sorted(self.calls(since, until), key=group_key)
        groups = ((found, list(group)) for found, group in groupby(rows, key=group_key))
        return [
            SpendingRow(
                found,
                sum(map(_parse_row, group), SpendingTotal()),
                sum(row["presumed"] for row in group),
            )
            for found, group in groups
        ]

    def calls(self, since: date | None = None, until: date | None = None) -> list[Row]:
        """Return the rows of the calls, oldest first."""
        first, last = since or date.min, until or date.max
        return self.database.rows(
            "SELECT * FROM spending WHERE day BETWEEN ? AND ? ORDER BY id",
            *(first.isoformat(), last.isoformat()),
        )


@dataclass(slots=True)
class SpendAccount:
    """The store of a ledger: reserves and records the calls of a session."""

    log: SpendLog
    project: str
    session: str
    warn: Callable[[str], None]
    """Gets the error if a call cannot be recorded: its reply must not be lost."""
    last: int = 0
    """The number of the last call that was recorded."""

    def reserve(self, model: str, category: str, most: SpendingTotal) -> int:
        return self.log.reserve(most, (self.session, self.project, model, category))

    def record(
        self, model: str, category: str, call: SpendingTotal | None, reservation: int | None
    ) -> None:
        names = self.session, self.project, model, category
        try:
            self.last = self.log.settle(reservation, call, names) or self.last
        except StoreError as error:
            self.warn(str(error))

    def restore(self, ledger: Ledger, last: int) -> None:
        """Add the calls after `last`, which a killed process did not save with its session."""
        self.log.presume(self.session)
        self.last = last
        for number, model, category, call in self.log.calls_after(self.session, last):
            ledger.add(model, category, call)
            self.last = number


def presume_abandoned(spending: SpendLog, sessions: ConversationStore) -> None:
    """Charge the reservations of processes that were killed, in full."""
    for session in spending.reserved_sessions():
        with suppress(StoreError):  # its process still runs
            sessions.lock(session)
            spending.presume(session)
            sessions.unlock(session)


@contextmanager
def lock_single(database: Database) -> Iterator[str]:
    """Yield a name for a session that is not saved; its calls belong to this process."""
    sessions, name = ConversationStore(database), SINGLE + secrets.token_hex(6)
    presume_abandoned(SpendLog(database), sessions)
    sessions.lock(name)
    try:
        yield name
    finally:
        sessions.unlock(name)


def _parse_row(row: Row) -> SpendingTotal:
    usage = Usage(
        input=row["input"], cached=row["cached"], written=row["written"], output=row["output"]
    )
    known = bool(row["unknown"]), bool(row["estimated"])
    return SpendingTotal(1, usage, Decimal(row["cost"]), row["counted"], *known)


def _format_day(now: float) -> str:
    """Return the date in the local time zone."""
    return datetime.fromtimestamp(now).astimezone().date().isoformat()
