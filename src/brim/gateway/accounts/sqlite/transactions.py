"""The operations of the SQLite store, inside a transaction of the caller.

Every operation checks first and writes only if it succeeds, so operations of several requests can
share a transaction without affecting each other. The details of a reservation move from its lease
into the ledger inside the database. `schema_1.sql` has the tables.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from brim.gateway.accounts.audit import AuditEntry
from brim.gateway.accounts.caps import (
    ALL,
    PERIODS,
    Cap,
    Unit,
    dump_caps,
    first_day,
    key_scope,
    name_periods,
    period_kind,
    project_scope,
    reset_time,
    start_of_day,
    user_scope,
)
from brim.gateway.accounts.keys import ApiKey, KeyRules, duplicate_name_error, no_active_key_error
from brim.gateway.accounts.rates import (
    WINDOW_SECONDS,
    RateCounts,
)
from brim.gateway.accounts.reservations import (
    Settlement,
)
from brim.gateway.accounts.sqlite import rates
from brim.storage.database import Migration, run_script

MIGRATIONS: Final[tuple[Migration, ...]] = (
    partial(run_script, package="brim.gateway.accounts.sqlite", file="schema_1.sql"),
)

KEY_COLUMNS: Final = "id, name, project, operator, created, revoked, rules"
_INSERT_KEY: Final = (
    f"INSERT OR IGNORE INTO keys ({KEY_COLUMNS}) SELECT ?, ?, ?, ?, ?, ?, ? "
    "WHERE NOT EXISTS (SELECT 1 FROM secrets WHERE hash = ?)"
)
_INSERT_SECRET: Final = "INSERT INTO secrets (hash, key) VALUES (?, ?)"
_END_SECRETS: Final = (
    "UPDATE secrets SET expires = min(coalesce(expires, 9e999), ?) WHERE key = ? RETURNING 1"
)
_UPDATE_KEY: Final = (
    "UPDATE keys SET {column} = ?2 WHERE id = (SELECT id FROM keys "
    "WHERE (name = ?1 OR id = ?1) AND revoked IS NULL ORDER BY name <> ?1 LIMIT 1) "
    f"RETURNING {KEY_COLUMNS}"
)
_INSERT_COUNTER: Final = "INSERT INTO counters VALUES (?, ?, ?, ?, ?)"
_UPDATE_COUNTERS: Final = (
    "UPDATE counters SET spent = spent + iif(unit = 'dollars', ?5, ?6), "
    "reserved = reserved + iif(unit = 'dollars', ?7, ?8) WHERE scope IN (?1, ?2, ?3, ?4) "
    f"AND period IN ({', '.join('?' * len(PERIODS))})"
)
LEASE_COLUMNS: Final = "key, project, user, day, cost, input + output, sent, time"
_MARK_SENT: Final = "UPDATE leases SET sent = 1, expires = ? WHERE id = ? AND expires > ?"
_RENEW: Final = "UPDATE leases SET expires = ? WHERE id = ? AND expires > ?"

_LEDGER_COLUMNS: Final = "time, id, day, key, key_name, project, model, upstream, user"
_RECORD_LEASE: Final = (
    f"INSERT INTO ledger SELECT {_LEDGER_COLUMNS}, ?, ?, ?, ?, ?, ?, 'settled', ? FROM leases "
    "WHERE id = ? AND (sent OR expires > ?)"
)
_DELETE_LEASE: Final = f"DELETE FROM leases WHERE id = ? RETURNING {LEASE_COLUMNS}"
_RECORD_EXPIRED: Final = (
    f"INSERT INTO ledger SELECT {_LEDGER_COLUMNS}, input * sent, cached * sent, "
    "output * sent, written * sent, cost * sent, unpriced * sent, "
    "CASE WHEN sent THEN 'presumed' ELSE 'refunded' END, 0 FROM leases WHERE expires <= ?"
)
_DELETE_EXPIRED: Final = f"DELETE FROM leases WHERE expires <= ? RETURNING {LEASE_COLUMNS}"
_PRESUMED: Final = (
    "SELECT key, project, user, day, cost, input + output, 1, time FROM ledger "
    "WHERE id = ? AND state = 'presumed'"
)
_CORRECT_ROW: Final = (
    "UPDATE ledger SET input = ?, cached = ?, output = ?, written = ?, cost = ?, unpriced = ?, "
    "state = 'settled', estimated = ? WHERE time = ? AND id = ?"
)


Scopes = tuple[str, str, str, str]
_Place = tuple[Scopes, str]
"""The scopes of a reservation, and its day."""


class ReservedAmount(NamedTuple):
    """The amount of a reservation, and the counters that it belongs to."""

    key: str
    project: str
    user: str
    day: str
    cost: int
    tokens: int
    sent: int
    time: float

    @property
    def scopes(self) -> tuple[str, str, str, str]:
        own = key_scope(self.key), project_scope(self.project), user_scope(self.key, self.user)
        return (*own, ALL)

    def within(self, scope: str, period: str, unit: Unit) -> int:
        """Return the part of a counter that belongs to this reservation."""
        if scope not in self.scopes:
            return 0
        if period not in name_periods(self.day).values():
            return 0
        return self.cost if unit == "dollars" else self.tokens

    def counted_in(self, scope: str, now: float) -> RateCounts:
        """Return what of a scope's rates belongs to this reservation."""
        if scope not in self.scopes:
            return RateCounts()
        is_recent = int(self.time) > int(now) - WINDOW_SECONDS
        return RateCounts(int(is_recent), self.tokens * is_recent, 1)


class CounterChanges:
    """Pending changes of counters; changes of the same counters are written once."""

    def __init__(self) -> None:
        self._amounts: defaultdict[_Place, list[tuple[int, int, int, int]]] = defaultdict(list)
        self._tokens: defaultdict[tuple[Scopes, int], int] = defaultdict(int)

    def settle(self, held: ReservedAmount, cost: int, tokens: int) -> None:
        """Add the actual cost, and release the reserved amount."""
        self._amounts[held.scopes, held.day].append((cost, tokens, -held.cost, -held.tokens))
        self._tokens[held.scopes, int(held.time)] += tokens - held.tokens

    def correct(self, held: ReservedAmount, cost: int, tokens: int) -> None:
        """Replace the presumed cost by the actual cost."""
        change = (cost - held.cost, tokens - held.tokens, 0, 0)
        self._amounts[held.scopes, held.day].append(change)

    def write(self, base: sqlite3.Connection) -> None:
        for where, amounts in self._amounts.items():
            update_counters(base, *where, *map(sum, zip(*amounts, strict=True)))
        for (scopes, second), tokens in self._tokens.items():
            rates.change(base, scopes, second, 0, tokens)


# Keys and caps


def add_key(
    base: sqlite3.Connection, now: float, key: ApiKey, hashed: str, caps: Sequence[Cap]
) -> None:
    if not base.execute(_INSERT_KEY, (*key.columns, hashed)).rowcount:
        raise duplicate_name_error(key.name)
    base.execute(_INSERT_SECRET, (hashed, key.id))
    if caps:
        set_caps(base, now, key_scope(key.id), caps)


def revoke(base: sqlite3.Connection, now: float, name: str) -> ApiKey:
    return _update_key(base, name, "revoked", now)


def rotate(base: sqlite3.Connection, now: float, name: str, hashed: str, overlap: float) -> ApiKey:
    key = _update_key(base, name, "revoked", None)
    base.execute(_END_SECRETS, (now + overlap, key.id)).fetchall()
    base.execute("DELETE FROM secrets WHERE expires <= ?", (now,))
    base.execute(_INSERT_SECRET, (hashed, key.id))
    return key


def set_rules(base: sqlite3.Connection, _: float, name: str, rules: KeyRules) -> ApiKey:
    return _update_key(base, name, "rules", rules.dump())


def _update_key(base: sqlite3.Connection, name: str, column: str, value: object) -> ApiKey:
    found = base.execute(_UPDATE_KEY.replace("{column}", column), (name, value)).fetchall()
    if not found:
        raise no_active_key_error(name)
    return ApiKey.of(found[0])


def set_caps(base: sqlite3.Connection, _: float, scope: str, caps: Sequence[Cap]) -> None:
    if caps:
        base.execute("INSERT OR REPLACE INTO caps VALUES (?, ?)", (scope, dump_caps(caps)))
    else:
        base.execute("DELETE FROM caps WHERE scope = ?", (scope,))


def add_audit_entry(base: sqlite3.Connection, _: float, entry: AuditEntry) -> None:
    base.execute("INSERT OR IGNORE INTO audit VALUES (?, ?, ?, ?, ?, ?)", entry.columns)


# Reservations


def mark_sent(base: sqlite3.Connection, now: float, id: str, lease: float) -> bool:
    return base.execute(_MARK_SENT, (now + lease, id, now)).rowcount == 1


def renew(base: sqlite3.Connection, now: float, ids: Sequence[str], lease: float) -> None:
    base.executemany(_RENEW, [(now + lease, id, now) for id in ids])


def settle(base: sqlite3.Connection, now: float, settlements: Sequence[Settlement]) -> None:
    changes = CounterChanges()
    for settlement in settlements:
        id, charge, is_estimated = settlement
        if base.execute(_RECORD_LEASE, (*charge.figures, is_estimated, id, now)).rowcount:
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
    rates.delete_old(base, now)
    return expired


def create_counter(
    base: sqlite3.Connection, scope: str, period: str, unit: Unit
) -> tuple[int, int]:
    """Create a counter with everything that it would have counted."""
    found = _sum(base, "ledger", scope, period, unit), _sum(base, "leases", scope, period, unit)
    base.execute(_INSERT_COUNTER, (scope, period, unit, *found))
    return found


def _sum(base: sqlite3.Connection, table: str, scope: str, period: str, unit: Unit) -> int:
    amount = "cost" if unit == "dollars" else "input + output"
    whose, values = rates.match_scope(scope)
    found = base.execute(
        f"SELECT coalesce(sum({amount}), 0) FROM {table} WHERE {whose} AND time >= ? AND time < ?",
        (*values, *_span(period)),
    )
    total: int = found.fetchone()[0]
    if table == "ledger" and period == "total":
        amount = "cost" if unit == "dollars" else "tokens"
        pruned = f"SELECT coalesce(sum({amount}), 0) FROM pruned WHERE {whose}"
        total += base.execute(pruned, values).fetchone()[0]
    return total


def update_counters(base: sqlite3.Connection, scopes: Scopes, day: str, *amounts: int) -> None:
    """Add to what is spent and reserved, each in dollars and tokens, in all periods of a day."""
    base.execute(_UPDATE_COUNTERS, (*scopes, *amounts, *name_periods(day).values()))


def _correct_presumed(
    base: sqlite3.Connection, settlement: Settlement, changes: CounterChanges
) -> None:
    found = base.execute(_PRESUMED, (settlement.id,)).fetchone()
    if found is None:
        return
    charged = ReservedAmount(*found)
    id, charge, is_estimated = settlement
    base.execute(_CORRECT_ROW, (*charge.figures, is_estimated, charged.time, id))
    changes.correct(charged, charge.micro_dollars, charge.tokens)


def _span(period: str) -> tuple[float, float]:
    """Return the start and end of a period, in seconds since 1970."""
    if (first := first_day(period)) is None:
        return 0.0, float("inf")
    start = start_of_day(first)
    return start, reset_time(period_kind(period), start) or float("inf")
