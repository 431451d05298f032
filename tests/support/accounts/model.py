"""A reference model of the account store, without a store, a clock or concurrency."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from brim.gateway.accounts.caps import ALL, Unit, counter_name, key_scope, project_scope
from brim.gateway.accounts.reservations import (
    CapReached,
    Charge,
    LedgerState,
    Reservation,
    ReservationInvalid,
    Settlement,
)

Outcome = tuple[LedgerState, Charge]


@dataclass(frozen=True)
class Lease:
    claim: Reservation
    is_sent: bool = False


@dataclass
class Model:
    """Total caps only; leases never expire or expire immediately."""

    keys: set[str] = field(default_factory=set)
    leases: dict[str, Lease] = field(default_factory=dict)
    ledger: dict[str, Outcome] = field(default_factory=dict)
    claims: dict[str, Reservation] = field(default_factory=dict)
    """The reservation of each row of the ledger."""
    named: set[str] = field(default_factory=set)
    """The counters of caps that were used by a reservation."""

    def copy(self) -> Model:
        parts = (self.leases.copy(), self.ledger.copy(), self.claims.copy(), self.named.copy())
        return Model(self.keys.copy(), *parts)

    def reserve(
        self, claim: Reservation, *, is_over: bool = False
    ) -> CapReached | ReservationInvalid | None:
        if claim.key not in self.keys or claim.id in self.ledger:
            return ReservationInvalid()
        for scope, cap in claim.caps:
            spent = self.spent(scope, cap.unit)
            reserved = self.reserved(scope, cap.unit, except_for=claim)
            if spent + reserved + claim.max_charge.amount(cap.unit) > cap.limit:
                return CapReached(scope, cap, spent, reserved, None)
        former = self.leases.get(claim.id)
        is_sent = claim.is_sent or (former is not None and former.is_sent)
        self.leases[claim.id] = Lease(claim, is_sent)
        self.named |= {counter_name(scope, cap.unit, "total") for scope, cap in claim.caps}
        if is_over:
            self._end(claim.id)
        return None

    def spent(self, scope: str, unit: Unit) -> int:
        return sum(
            bill.amount(unit)
            for id, (_, bill) in self.ledger.items()
            if scope in _scopes(self.claims[id])
        )

    def reserved(self, scope: str, unit: Unit, except_for: Reservation | None = None) -> int:
        """Return the reserved amount, without one reservation."""
        return sum(
            lease.claim.max_charge.amount(unit)
            for id, lease in self.leases.items()
            if (except_for is None or id != except_for.id) and scope in _scopes(lease.claim)
        )

    def mark_sent(self, id: str, *, is_over: bool = False) -> bool:
        if id not in self.leases:
            return False
        self.leases[id] = replace(self.leases[id], is_sent=True)
        if is_over:
            self._end(id)
        return True

    def settle(self, settlement: Settlement) -> None:
        lease = self.leases.pop(settlement.id, None)
        if lease is not None:
            self._book(lease.claim, "settled", settlement.charge)
        elif self.ledger.get(settlement.id, ("", None))[0] == "presumed":
            self._book(self.claims[settlement.id], "settled", settlement.charge)

    def _end(self, id: str) -> None:
        lease = self.leases.pop(id)
        if lease.is_sent:
            self._book(lease.claim, "presumed", lease.claim.max_charge)
        else:
            self._book(lease.claim, "refunded", Charge())

    def _book(self, claim: Reservation, state: LedgerState, bill: Charge) -> None:
        self.ledger[claim.id] = state, bill
        self.claims[claim.id] = claim


def _scopes(claim: Reservation) -> tuple[str, ...]:
    return key_scope(claim.key), project_scope(claim.project), ALL
