"""What the books do on SQLite, step by step, inside of a transaction that the caller holds.

Every step looks first and writes only where it goes through, so that steps of several requests can
share a transaction and none of them can spoil another. The facts of a claim stay in the file: they
go from its lease into the ledger without being read.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, get_args

from brim.accounts.caps import Cap, Period, Unit, counter_name, opens_at, period_name
from brim.accounts.claims import Bill, Claim, Full, Settlement, Unknown
from brim.sqlite import Migration

DAY: Final = 86_400

_TABLES: Final = (
    "CREATE TABLE keys (id TEXT PRIMARY KEY, name TEXT NOT NULL, project TEXT NOT NULL, "
    "operator INTEGER NOT NULL, hash TEXT NOT NULL UNIQUE, created REAL NOT NULL, revoked REAL) "
    "STRICT, WITHOUT ROWID",
    "CREATE UNIQUE INDEX living_keys ON keys (name) WHERE revoked IS NULL",
    "CREATE TABLE caps (scope TEXT PRIMARY KEY, list TEXT NOT NULL) STRICT, WITHOUT ROWID",
    "CREATE TABLE counters (name TEXT PRIMARY KEY, scope TEXT NOT NULL, unit TEXT NOT NULL, "
    "period TEXT NOT NULL, spent INTEGER NOT NULL, reserved INTEGER NOT NULL) "
    "STRICT, WITHOUT ROWID",
    # Only what is under way stands here, so it is small, and an index by `expires` would cost more
    # at every step than looking through it costs now and then.
    "CREATE TABLE leases (id TEXT PRIMARY KEY, expires REAL NOT NULL, forwarded INTEGER NOT NULL, "
    "time REAL NOT NULL, day TEXT NOT NULL, key TEXT NOT NULL, key_name TEXT NOT NULL, "
    "project TEXT NOT NULL, model TEXT NOT NULL, upstream TEXT NOT NULL, input INTEGER NOT NULL, "
    "cached INTEGER NOT NULL, output INTEGER NOT NULL, written INTEGER NOT NULL, "
    "cost INTEGER NOT NULL, unpriced INTEGER NOT NULL, counters TEXT NOT NULL) "
    "STRICT, WITHOUT ROWID",
    # In the order of time: new rows meet in the same few pages, and a day is read in one go.
    "CREATE TABLE ledger (time REAL NOT NULL, id TEXT NOT NULL UNIQUE, day TEXT NOT NULL, "
    "key TEXT NOT NULL, key_name TEXT NOT NULL, project TEXT NOT NULL, model TEXT NOT NULL, "
    "upstream TEXT NOT NULL, input INTEGER NOT NULL, cached INTEGER NOT NULL, "
    "output INTEGER NOT NULL, written INTEGER NOT NULL, cost INTEGER NOT NULL, "
    "unpriced INTEGER NOT NULL, state TEXT NOT NULL, counted INTEGER NOT NULL, counters TEXT, "
    "PRIMARY KEY (time, id)) STRICT, WITHOUT ROWID",
)


def _first(base: sqlite3.Connection) -> None:
    for table in _TABLES:
        base.execute(table)


MIGRATIONS: Final[tuple[Migration, ...]] = (_first,)

_KNOWN: Final = (
    "SELECT EXISTS (SELECT 1 FROM keys WHERE id = ?1 AND revoked IS NULL), "
    "EXISTS (SELECT 1 FROM ledger WHERE id = ?2), (SELECT expires FROM leases WHERE id = ?2)"
)
_STANDING: Final = "SELECT spent, reserved FROM counters WHERE name = ?"
_SET_ASIDE: Final = (
    "INSERT INTO counters VALUES (?, ?, ?, ?, 0, ?) "
    "ON CONFLICT (name) DO UPDATE SET reserved = reserved + excluded.reserved"
)
_MOVE: Final = "UPDATE counters SET spent = spent + ?, reserved = reserved - ? WHERE name = ?"
_LEASE: Final = (
    "INSERT OR REPLACE INTO leases VALUES (?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_HELD: Final = "SELECT cost, input + output, counters FROM leases WHERE id = ?"
_FORWARD: Final = "UPDATE leases SET forwarded = 1, expires = ? WHERE id = ? AND expires > ?"
_RENEW: Final = "UPDATE leases SET expires = ? WHERE id = ? AND expires > ?"

_FACTS: Final = "time, id, day, key, key_name, project, model, upstream"
_BOOK: Final = (
    f"INSERT INTO ledger SELECT {_FACTS}, ?, ?, ?, ?, ?, ?, 'settled', ?, NULL FROM leases "
    "WHERE id = ? AND (forwarded OR expires > ?)"
)
_END: Final = "DELETE FROM leases WHERE id = ? RETURNING cost, input + output, counters"
_BOOK_OVER: Final = (
    f"INSERT INTO ledger SELECT {_FACTS}, input * forwarded, cached * forwarded, "
    "output * forwarded, written * forwarded, cost * forwarded, unpriced * forwarded, "
    "CASE WHEN forwarded THEN 'presumed' ELSE 'refunded' END, 0, "
    "CASE WHEN forwarded THEN counters END FROM leases WHERE expires <= ?"
)
_END_OVER: Final = (
    "DELETE FROM leases WHERE expires <= ? RETURNING forwarded, cost, input + output, counters"
)
_PRESUMED: Final = (
    "SELECT time, cost, input + output, counters FROM ledger WHERE id = ? AND state = 'presumed'"
)
_PUT_RIGHT: Final = (
    "UPDATE ledger SET input = ?, cached = ?, output = ?, written = ?, cost = ?, unpriced = ?, "
    "state = 'settled', counted = ?, counters = NULL WHERE time = ? AND id = ?"
)

Amounts = Mapping[str, int]
"""How much stands against each counter, by its name."""


def reserve(
    base: sqlite3.Connection, claim: Claim, lease: float, now: float
) -> Full | Unknown | None:
    lives, is_booked, expires = base.execute(_KNOWN, (claim.key, claim.id)).fetchone()
    if not lives or is_booked:
        return Unknown()
    if expires is not None and expires <= now:
        sweep(base, now)
        return Unknown()
    before = {} if expires is None else _held(base, claim.id)
    full = _full(base, claim, before, now)
    if full is not None and sweep(base, now):
        full = _full(base, claim, before, now)
    if full is None:
        _move(base, ((name, 0, amount) for name, amount in before.items()))
        _take(base, claim, now + lease, now)
    return full


def forward(base: sqlite3.Connection, id: str, lease: float, now: float) -> bool:
    return base.execute(_FORWARD, (now + lease, id, now)).rowcount == 1


def renew(base: sqlite3.Connection, ids: Sequence[str], lease: float, now: float) -> None:
    base.executemany(_RENEW, [(now + lease, id, now) for id in ids])


def settle(base: sqlite3.Connection, settlements: Sequence[Settlement], now: float) -> None:
    for settlement in settlements:
        bill = settlement.bill
        values = (*_figures(bill), settlement.is_counted, settlement.id, now)
        if base.execute(_BOOK, values).rowcount:
            [(cost, tokens, counters)] = base.execute(_END, (settlement.id,)).fetchall()
            held = _amounts(cost, tokens, counters)
            _move(base, ((name, _of(name, bill), amount) for name, amount in held.items()))
        else:
            _put_right(base, settlement)


def sweep(base: sqlite3.Connection, now: float) -> int:
    """Give back what was never sent, and charge in full what was; says how many were over."""
    over: int = base.execute(_BOOK_OVER, (now,)).rowcount
    if over:
        for forwarded, cost, tokens, counters in base.execute(_END_OVER, (now,)).fetchall():
            held = _amounts(cost, tokens, counters)
            _move(base, ((name, forwarded * amount, amount) for name, amount in held.items()))
    return over


def _full(base: sqlite3.Connection, claim: Claim, before: Amounts, now: float) -> Full | None:
    """The first cap without room for a claim, if what it held before were given back."""
    for name, scope, cap in _counted(claim, now):
        spent, reserved = base.execute(_STANDING, (name,)).fetchone() or (0, 0)
        reserved -= before.get(name, 0)
        if spent + reserved + claim.worst.amount(cap.unit) > cap.most:
            return Full(scope, cap, spent, reserved, opens_at(cap.period, now))
    return None


def _take(base: sqlite3.Connection, claim: Claim, expires: float, now: float) -> None:
    # Two caps of one scope can count the same thing in the same time; it is counted once.
    counted = {name: (scope, cap) for name, scope, cap in _counted(claim, now)}
    periods = _periods(int(now // DAY))
    for name, (scope, cap) in counted.items():
        amount = claim.worst.amount(cap.unit)
        base.execute(_SET_ASIDE, (name, scope, cap.unit, periods[cap.period], amount))
    who = (claim.key, claim.key_name, claim.project, claim.model, claim.upstream)
    names = json.dumps(list(counted))
    values = (claim.id, expires, now, periods["day"], *who, *_figures(claim.worst), names)
    base.execute(_LEASE, values)


def _put_right(base: sqlite3.Connection, settlement: Settlement) -> None:
    found = base.execute(_PRESUMED, (settlement.id,)).fetchone()
    if found is None:
        return
    time, cost, tokens, counters = found
    bill = settlement.bill
    base.execute(_PUT_RIGHT, (*_figures(bill), settlement.is_counted, time, settlement.id))
    charged = _amounts(cost, tokens, counters)
    _move(base, ((name, _of(name, bill) - amount, 0) for name, amount in charged.items()))


def _move(base: sqlite3.Connection, moves: Iterable[tuple[str, int, int]]) -> None:
    """Spend the one amount and free the other, counter by counter."""
    for name, spent, freed in moves:
        base.execute(_MOVE, (spent, freed, name))


def _held(base: sqlite3.Connection, id: str) -> Amounts:
    return _amounts(*base.execute(_HELD, (id,)).fetchone())


def _amounts(cost: int, tokens: int, counters: str) -> Amounts:
    return {name: cost if _unit(name) == "dollars" else tokens for name in json.loads(counters)}


def _of(name: str, bill: Bill) -> int:
    return bill.amount(_unit(name))


def _unit(name: str) -> Unit:
    """What a counter counts; its name ends with it."""
    return "dollars" if name.endswith("/dollars") else "tokens"


def _counted(claim: Claim, now: float) -> Iterator[tuple[str, str, Cap]]:
    """What a claim counts against: the counter's name, its scope and the cap."""
    periods = _periods(int(now // DAY))
    for scope, cap in claim.caps:
        yield counter_name(scope, cap.unit, periods[cap.period]), scope, cap


def _figures(bill: Bill) -> tuple[int, int, int, int, int, bool]:
    used = bill.usage
    tokens = (used.input, used.cached, used.output, used.written)
    return (*tokens, bill.micro_dollars, bill.is_unpriced)


@lru_cache(maxsize=4)
def _periods(day: int) -> dict[Period, str]:
    """The periods that run on a day, counted from 1970."""
    return {period: period_name(period, day * DAY) for period in get_args(Period)}


def running_periods(now: float) -> tuple[str, ...]:
    return tuple(_periods(int(now // DAY)).values())
