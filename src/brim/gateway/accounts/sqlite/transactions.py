"""The operations of the SQLite store, inside a transaction of the caller.

Every operation checks first and writes only if it succeeds, so operations of several requests can
share a transaction without affecting each other. The details of a reservation move from its lease
into the ledger inside the database.

A reservation counts in every existing counter of its key, its project and all keys, for its own day
and month, whether or not it names a cap there. So counters stay correct while caps change, and a
missing counter can be created at any time from the ledger and the leases.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple, get_args

from brim.gateway.accounts.caps import (
    ALL,
    Period,
    Unit,
    key_scope,
    period_name,
    project_scope,
    reset_time,
    scope_parts,
)
from brim.gateway.accounts.reservations import (
    CapReached,
    Charge,
    Reservation,
    ReservationInvalid,
    Settlement,
)
from brim.storage.database import Migration

DAY: Final = 86_400

_TABLES: Final = (
    "CREATE TABLE keys (id TEXT PRIMARY KEY, name TEXT NOT NULL, project TEXT NOT NULL, "
    "operator INTEGER NOT NULL, hash TEXT NOT NULL UNIQUE, created REAL NOT NULL, revoked REAL) "
    "STRICT, WITHOUT ROWID",
    "CREATE UNIQUE INDEX active_keys ON keys (name) WHERE revoked IS NULL",
    "CREATE TABLE caps (scope TEXT PRIMARY KEY, list TEXT NOT NULL) STRICT, WITHOUT ROWID",
    "CREATE TABLE counters (scope TEXT NOT NULL, period TEXT NOT NULL, unit TEXT NOT NULL, "
    "spent INTEGER NOT NULL, reserved INTEGER NOT NULL, PRIMARY KEY (scope, period, unit)) "
    "STRICT, WITHOUT ROWID",
    # Only reservations in flight, so the table is small: an index on `expires` would cost more at
    # every write than a scan costs now and then.
    "CREATE TABLE leases (id TEXT PRIMARY KEY, expires REAL NOT NULL, sent INTEGER NOT NULL, "
    "time REAL NOT NULL, day TEXT NOT NULL, key TEXT NOT NULL, key_name TEXT NOT NULL, "
    "project TEXT NOT NULL, model TEXT NOT NULL, upstream TEXT NOT NULL, input INTEGER NOT NULL, "
    "cached INTEGER NOT NULL, output INTEGER NOT NULL, written INTEGER NOT NULL, "
    "cost INTEGER NOT NULL, unpriced INTEGER NOT NULL) "
    "STRICT, WITHOUT ROWID",
    # Ordered by time: new rows share a few pages, and a day is one range.
    "CREATE TABLE ledger (time REAL NOT NULL, id TEXT NOT NULL UNIQUE, day TEXT NOT NULL, "
    "key TEXT NOT NULL, key_name TEXT NOT NULL, project TEXT NOT NULL, model TEXT NOT NULL, "
    "upstream TEXT NOT NULL, input INTEGER NOT NULL, cached INTEGER NOT NULL, "
    "output INTEGER NOT NULL, written INTEGER NOT NULL, cost INTEGER NOT NULL, "
    "unpriced INTEGER NOT NULL, state TEXT NOT NULL, estimated INTEGER NOT NULL, "
    "PRIMARY KEY (time, id)) STRICT, WITHOUT ROWID",
    # A new cap counts what was spent before it was set.
    "CREATE INDEX ledger_by_key ON ledger (key, time)",
    "CREATE INDEX ledger_by_project ON ledger (project, time)",
)


def _create_tables(base: sqlite3.Connection) -> None:
    for table in _TABLES:
        base.execute(table)


MIGRATIONS: Final[tuple[Migration, ...]] = (_create_tables,)

_KNOWN: Final = (
    "SELECT EXISTS (SELECT 1 FROM keys WHERE id = ?1 AND revoked IS NULL), "
    "EXISTS (SELECT 1 FROM ledger WHERE id = ?2), (SELECT expires FROM leases WHERE id = ?2)"
)
_COUNTER: Final = "SELECT spent, reserved FROM counters WHERE scope = ? AND period = ? AND unit = ?"
_INSERT_COUNTER: Final = "INSERT INTO counters VALUES (?, ?, ?, ?, ?)"
_UPDATE_COUNTERS: Final = (
    "UPDATE counters SET spent = spent + iif(unit = 'dollars', ?4, ?5), "
    "reserved = reserved + iif(unit = 'dollars', ?6, ?7) "
    "WHERE scope IN ('key:' || ?1, 'project:' || ?2, 'all') "
    "AND period IN (?3, substr(?3, 1, 7), 'total')"
)
_INSERT_LEASE: Final = (
    "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_LEASE_COLUMNS: Final = "key, project, day, cost, input + output, sent"
_LEASE: Final = f"SELECT {_LEASE_COLUMNS} FROM leases WHERE id = ?"
_MARK_SENT: Final = "UPDATE leases SET sent = 1, expires = ? WHERE id = ? AND expires > ?"
_RENEW: Final = "UPDATE leases SET expires = ? WHERE id = ? AND expires > ?"

_LEDGER_COLUMNS: Final = "time, id, day, key, key_name, project, model, upstream"
_RECORD_LEASE: Final = (
    f"INSERT INTO ledger SELECT {_LEDGER_COLUMNS}, ?, ?, ?, ?, ?, ?, 'settled', ? FROM leases "
    "WHERE id = ? AND (sent OR expires > ?)"
)
_DELETE_LEASE: Final = f"DELETE FROM leases WHERE id = ? RETURNING {_LEASE_COLUMNS}"
_RECORD_EXPIRED: Final = (
    f"INSERT INTO ledger SELECT {_LEDGER_COLUMNS}, input * sent, cached * sent, "
    "output * sent, written * sent, cost * sent, unpriced * sent, "
    "CASE WHEN sent THEN 'presumed' ELSE 'refunded' END, 0 FROM leases WHERE expires <= ?"
)
_DELETE_EXPIRED: Final = f"DELETE FROM leases WHERE expires <= ? RETURNING {_LEASE_COLUMNS}"
_PRESUMED: Final = (
    "SELECT time, key, project, day, cost, input + output, 1 FROM ledger "
    "WHERE id = ? AND state = 'presumed'"
)
_CORRECT_ROW: Final = (
    "UPDATE ledger SET input = ?, cached = ?, output = ?, written = ?, cost = ?, unpriced = ?, "
    "state = 'settled', estimated = ? WHERE time = ? AND id = ?"
)


class ReservedAmount(NamedTuple):
    """The amount of a reservation, and the counters that it belongs to."""

    key: str
    project: str
    day: str
    cost: int
    tokens: int
    sent: int

    def within(self, scope: str, period: str, unit: Unit) -> int:
        """Return the part of a counter that belongs to this reservation."""
        if scope not in (key_scope(self.key), project_scope(self.project), ALL):
            return 0
        if period not in (self.day, self.day[:7], "total"):
            return 0
        return self.cost if unit == "dollars" else self.tokens


class CounterChanges:
    """Pending changes of counters; changes of the same counters are written once."""

    def __init__(self) -> None:
        self._amounts: defaultdict[tuple[str, str, str], list[tuple[int, int, int, int]]]
        self._amounts = defaultdict(list)

    def settle(self, held: ReservedAmount, cost: int, tokens: int) -> None:
        """Add the actual cost, and release the reserved amount."""
        self._amounts[held[:3]].append((cost, tokens, -held.cost, -held.tokens))

    def correct(self, held: ReservedAmount, cost: int, tokens: int) -> None:
        """Replace the presumed cost by the actual cost."""
        self._amounts[held[:3]].append((cost - held.cost, tokens - held.tokens, 0, 0))

    def write(self, base: sqlite3.Connection) -> None:
        changes = self._amounts.items()
        sums = [(*where, *map(sum, zip(*amounts, strict=True))) for where, amounts in changes]
        base.executemany(_UPDATE_COUNTERS, sums)


def reserve(
    base: sqlite3.Connection, reservation: Reservation, lease: float, now: float
) -> CapReached | ReservationInvalid | None:
    is_active, is_recorded, expires = base.execute(
        _KNOWN, (reservation.key, reservation.id)
    ).fetchone()
    if not is_active or is_recorded:
        return ReservationInvalid()
    if expires is not None and expires <= now:
        sweep(base, now)
        return ReservationInvalid()
    before = (
        None
        if expires is None
        else ReservedAmount(*base.execute(_LEASE, (reservation.id,)).fetchone())
    )
    full = _find_cap_reached(base, reservation, before, now)
    if full is not None and sweep(base, now):
        full = _find_cap_reached(base, reservation, before, now)
    if full is None:
        _insert_lease(base, reservation, before, now + lease, now)
    return full


def mark_sent(base: sqlite3.Connection, id: str, lease: float, now: float) -> bool:
    return base.execute(_MARK_SENT, (now + lease, id, now)).rowcount == 1


def renew(base: sqlite3.Connection, ids: Sequence[str], lease: float, now: float) -> None:
    base.executemany(_RENEW, [(now + lease, id, now) for id in ids])


def settle(base: sqlite3.Connection, settlements: Sequence[Settlement], now: float) -> None:
    changes = CounterChanges()
    for settlement in settlements:
        id, charge, is_estimated = settlement
        if base.execute(_RECORD_LEASE, (*_charge_values(charge), is_estimated, id, now)).rowcount:
            [ended] = base.execute(_DELETE_LEASE, (id,)).fetchall()
            changes.settle(ReservedAmount(*ended), charge.micro_dollars, charge.tokens)
        else:
            _correct_presumed(base, settlement, changes)
    changes.write(base)


def sweep(base: sqlite3.Connection, now: float) -> int:
    """Release what was not sent, and charge the rest in full; return how many had expired."""
    expired: int = base.execute(_RECORD_EXPIRED, (now,)).rowcount
    if expired:
        changes = CounterChanges()
        for ended in base.execute(_DELETE_EXPIRED, (now,)).fetchall():
            held = ReservedAmount(*ended)
            changes.settle(held, held.sent * held.cost, held.sent * held.tokens)
        changes.write(base)
    return expired


def _find_cap_reached(
    base: sqlite3.Connection, reservation: Reservation, before: ReservedAmount | None, now: float
) -> CapReached | None:
    """Return the first cap without room, if the previous reservation were released."""
    periods, max_charge = _periods(int(now // DAY)), reservation.max_charge
    for scope, cap in reservation.caps:
        where = scope, periods[cap.period], cap.unit
        spent, reserved = base.execute(_COUNTER, where).fetchone() or _create_counter(base, *where)
        if before is not None:
            reserved -= before.within(*where)
        if spent + reserved + max_charge.amount(cap.unit) > cap.limit:
            return CapReached(scope, cap, spent, reserved, reset_time(cap.period, now))
    return None


def _create_counter(
    base: sqlite3.Connection, scope: str, period: str, unit: Unit
) -> tuple[int, int]:
    """Create a counter with everything that it would have counted."""
    found = _sum(base, "ledger", scope, period, unit), _sum(base, "leases", scope, period, unit)
    base.execute(_INSERT_COUNTER, (scope, period, unit, *found))
    return found


def _sum(base: sqlite3.Connection, table: str, scope: str, period: str, unit: Unit) -> int:
    column, name = scope_parts(scope)
    whose = "? = 'all'" if scope == ALL else f"{column} = ?"
    amount = "cost" if unit == "dollars" else "input + output"
    found = base.execute(
        f"SELECT coalesce(sum({amount}), 0) FROM {table} WHERE {whose} AND time >= ? AND time < ?",
        (ALL if scope == ALL else name, *_span(period)),
    )
    total: int = found.fetchone()[0]
    return total


def _insert_lease(
    base: sqlite3.Connection,
    reservation: Reservation,
    before: ReservedAmount | None,
    expires: float,
    now: float,
) -> None:
    id, key, key_name, project, model, upstream, max_charge, _, sent = reservation
    day = _periods(int(now // DAY))["day"]
    if before is not None:
        base.execute(_UPDATE_COUNTERS, (*before[:3], 0, 0, -before.cost, -before.tokens))
        # The first upstream got the request and may charge for it, even if a second one answers.
        sent = sent or bool(before.sent)
    base.execute(
        _UPDATE_COUNTERS, (key, project, day, 0, 0, max_charge.micro_dollars, max_charge.tokens)
    )
    who = (key, key_name, project, model, upstream)
    base.execute(_INSERT_LEASE, (id, expires, sent, now, day, *who, *_charge_values(max_charge)))


def _correct_presumed(
    base: sqlite3.Connection, settlement: Settlement, changes: CounterChanges
) -> None:
    found = base.execute(_PRESUMED, (settlement.id,)).fetchone()
    if found is None:
        return
    time, *charged = found
    id, charge, is_estimated = settlement
    base.execute(_CORRECT_ROW, (*_charge_values(charge), is_estimated, time, id))
    changes.correct(ReservedAmount(*charged), charge.micro_dollars, charge.tokens)


def _charge_values(charge: Charge) -> tuple[int, int, int, int, int, bool]:
    used, cost, is_unpriced = charge
    return used.input, used.cached, used.output, used.written, cost, is_unpriced


@lru_cache(maxsize=4)
def _periods(day: int) -> dict[Period, str]:
    """Return the names of the periods that contain a day, counted from 1970."""
    return {period: period_name(period, day * DAY) for period in get_args(Period)}


def _span(period: str) -> tuple[float, float]:
    """Return the start and end of a day or month, in seconds since 1970."""
    if period == "total":
        return 0.0, float("inf")
    kind: Period = "month" if len(period) == len("2026-11") else "day"
    begin = datetime.fromisoformat(period if kind == "day" else f"{period}-01")
    first = begin.replace(tzinfo=UTC).timestamp()
    return first, reset_time(kind, first) or float("inf")


def current_periods(now: float) -> tuple[str, ...]:
    return tuple(_periods(int(now // DAY)).values())
