"""Reservations in the SQLite store, inside a transaction of the caller."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from brim.gateway.accounts.caps import Unit, current_periods
from brim.gateway.accounts.rates import Admission, RateCounts, RateReached, RateUse
from brim.gateway.accounts.reservations import (
    CapReached,
    Rejection,
    Reservation,
    ReservationInvalid,
)
from brim.gateway.accounts.sqlite import rates
from brim.gateway.accounts.sqlite.transactions import (
    LEASE_COLUMNS,
    ReservedAmount,
    Scopes,
    create_counter,
    sweep,
    update_counters,
)

_KNOWN: Final = (
    "SELECT EXISTS (SELECT 1 FROM keys WHERE id = ?1 AND revoked IS NULL), "
    "EXISTS (SELECT 1 FROM ledger WHERE id = ?2), (SELECT expires FROM leases WHERE id = ?2)"
)
_COUNTER: Final = "SELECT spent, reserved FROM counters WHERE scope = ? AND period = ? AND unit = ?"
_INSERT_LEASE: Final = (
    "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_LEASE: Final = f"SELECT {LEASE_COLUMNS} FROM leases WHERE id = ?"


def reserve(
    base: sqlite3.Connection, now: float, reservations: Sequence[Reservation], lease: float
) -> list[Rejection | Admission | None]:
    """Reserve for requests with the same scopes, as if one after the other."""
    batch = ReservationBatch(base, now, now + lease)
    found = [batch.add(reservation) for reservation in reservations]
    batch.write()
    return found


class ReservationBatch:
    """Reservations with the same scopes in one transaction.

    Counters and rates are read once, and the counters are updated once.
    """

    def __init__(self, base: sqlite3.Connection, now: float, expires: float) -> None:
        self._base, self._now, self._expires = base, now, expires
        self._periods = current_periods(now)
        self._counters: dict[tuple[str, str, Unit], tuple[int, int]] = {}
        """What was spent and reserved when it was read, by scope, period and unit."""
        self._sums: dict[str, tuple[int, int]] = {}
        """Requests and tokens of each scope with limits per minute."""
        self._added: dict[Unit, int] = {"dollars": 0, "tokens": 0}
        """What was reserved and is not in the counters yet."""
        self._scopes: Scopes | None = None
        """The scopes of these reservations, if there are any."""

    def add(self, reservation: Reservation) -> Rejection | Admission | None:
        known = self._base.execute(_KNOWN, (reservation.key, reservation.id)).fetchone()
        is_active, is_recorded, expires = known
        if not is_active or is_recorded:
            return ReservationInvalid()
        if expires is not None and expires <= self._now:
            self._refresh()
            return ReservationInvalid()
        before = None
        if expires is not None:
            found = self._base.execute(_LEASE, (reservation.id,)).fetchone()
            before = ReservedAmount(*found)
        uses = self._check_caps(reservation, before)
        if not isinstance(uses, list) and self._refresh():
            uses = self._check_caps(reservation, before)
        if not isinstance(uses, list):
            return uses
        self._insert_lease(reservation, before)
        return Admission(tuple(uses)) if uses else None

    def write(self) -> bool:
        """Update the counters; return whether anything was added."""
        if self._scopes is None:
            return False
        amounts = self._added["dollars"], self._added["tokens"]
        update_counters(self._base, self._scopes, self._periods["day"], 0, 0, *amounts)
        self._added, self._scopes = {"dollars": 0, "tokens": 0}, None
        self._counters.clear()
        return True

    def _refresh(self) -> bool:
        """Update the counters and end expired leases; return whether anything has changed."""
        has_added = self.write()
        has_expired = sweep(self._base, self._now) > 0
        self._counters.clear()
        self._sums.clear()
        return has_added or has_expired

    def _check_caps(
        self, reservation: Reservation, before: ReservedAmount | None
    ) -> CapReached | RateReached | list[RateUse]:
        """Return the first cap without room, if the previous reservation were released.

        If all have room, return the use of the rate limits.
        """
        base, now, max_charge = self._base, self._now, reservation.max_charge
        uses: list[RateUse] = []
        for index, (scope, cap) in enumerate(reservation.caps):
            if cap.is_rate:
                former = RateCounts() if before is None else before.counted_in(scope, now)
                amount = max_charge.amount(cap.unit)
                use = rates.check(base, scope, cap, amount, former, now, self._sums)
                if isinstance(use, RateReached):
                    return use
                uses.append(use)
                continue
            where = scope, self._periods[cap.period], cap.unit
            spent, reserved = self._read_counter(*where)
            if before is not None:
                reserved -= before.within(*where)
            if spent + reserved + max_charge.amount(cap.unit) > cap.limit:
                return reservation.cap_reached(index, spent, reserved, now)
        return uses

    def _read_counter(self, scope: str, period: str, unit: Unit) -> tuple[int, int]:
        where = scope, period, unit
        found = self._counters.get(where) or self._base.execute(_COUNTER, where).fetchone()
        if found is None:
            self.write()  # to the counters that exist: a new one counts all leases
            found = create_counter(self._base, *where)
        self._counters[where] = spent, reserved = found
        return spent, reserved + self._added[unit]

    def _insert_lease(self, reservation: Reservation, before: ReservedAmount | None) -> None:
        base, now, charge, sent = self._base, self._now, reservation.max_charge, reservation.is_sent
        if before is not None:
            update_counters(base, before.scopes, before.day, 0, 0, -before.cost, -before.tokens)
            rates.change(base, before.scopes, int(before.time), -1, -before.tokens)
            self.write()
            self._sums.clear()
            # The first upstream got the request and may charge, even if a second one answers.
            sent = sent or bool(before.sent)
        columns = self._expires, sent, now, self._periods["day"], *reservation.names
        base.execute(_INSERT_LEASE, (reservation.id, *columns, *charge.figures))
        self._scopes = reservation.scopes
        self._added["dollars"] += charge.micro_dollars
        self._added["tokens"] += charge.tokens
        if scopes := reservation.rate_scopes:
            rates.count_request(base, scopes, charge.tokens, now, self._sums)
