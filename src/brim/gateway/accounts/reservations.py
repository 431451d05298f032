"""Reservations: the maximum cost of a request before it is sent, and its actual cost afterwards.

    reserve ─▶ mark_sent ─▶ (renew …) ─▶ settle          one row in the ledger in every case
       │           │
       │           └─ lease expires: charged in full, the row is *presumed*
       └─ lease expires: released, the row is *refunded*

A request is marked as sent immediately before it is written to the connection, so one that is not
written, because its gateway was killed or the store's answer was lost, costs nothing. If a
connection is open already, one operation reserves and marks. Every step may be repeated, and a late
settlement counts once. A request that was sent may have been charged, so a second reservation with
its id, for a fallback, counts as sent from the beginning.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from brim.errors import InputError
from brim.gateway.accounts.caps import (
    ALL,
    MAX_AMOUNT,
    Cap,
    Unit,
    key_scope,
    project_scope,
    reset_time,
    to_dollars,
    user_scope,
)
from brim.gateway.accounts.rates import RateReached
from brim.models.pricing import SpendingRow, SpendingTotal, Usage

LedgerState = Literal["settled", "presumed", "refunded"]
GroupBy = Literal["day", "key", "project", "user", "model", "upstream", "state"]

MAX_NAME_LENGTH: Final = 256
"""Characters of a name that are stored."""
OVER_ANY_CAP: Final = MAX_AMOUNT + 1
"""The highest stored number; every cap is lower."""

_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")
_NO_USAGE: Final = Usage()


class Charge(NamedTuple):
    """Tokens and cost of a request: its maximum, or its actual amount. Charges add with `+`."""

    usage: Usage = _NO_USAGE
    micro_dollars: int = 0
    is_unpriced: bool = False
    """Whether the price is unknown; then micro_dollars is 0, and dollar caps do not apply."""

    @classmethod
    def of(cls, figures: Sequence[Any]) -> Charge:
        """Return the charge with these `figures`."""
        *tokens, cost, is_unpriced = figures
        return cls(Usage(*tokens), cost, bool(is_unpriced))

    @property
    def figures(self) -> tuple[int, int, int, int, int, bool]:
        """The columns of a charge, in the order in which every store keeps them."""
        used, cost, is_unpriced = self
        return used.input, used.cached, used.output, used.written, cost, is_unpriced

    def __add__(self, other: Charge) -> Charge:  # type: ignore[override]  # not as tuples do
        return Charge(
            self.usage + other.usage,
            self.micro_dollars + other.micro_dollars,
            self.is_unpriced or other.is_unpriced,
        )

    @property
    def tokens(self) -> int:
        return self.usage.input + self.usage.output

    def amount(self, unit: Unit) -> int:
        if unit == "requests":
            return 1
        return self.micro_dollars if unit == "dollars" else self.tokens


class Reservation(NamedTuple):
    """The maximum charge of a request that is about to be sent."""

    id: str
    """The id of the request. A second reservation with the same id replaces the first, for a
    fallback."""
    key: str
    """The id of the key that pays; it must be active when the reservation is made."""
    key_name: str
    project: str
    model: str
    upstream: str
    max_charge: Charge
    caps: tuple[tuple[str, Cap], ...] = ()
    """The caps to check, each with its scope: of the key, its end user or its project, or of all
    keys. Either all of them have room, or nothing is reserved."""
    user: str = ""
    """The end user on whose behalf the client sends the request; empty if it names none."""
    is_sent: bool = False
    """Whether the request is sent immediately afterwards, so that it is marked as sent too."""

    @property
    def names(self) -> tuple[str, str, str, str, str, str]:
        """Key, name of the key, project, model, upstream and user, as every store keeps them."""
        return (*self[1:6], self.user)

    @property
    def scopes(self) -> tuple[str, str, str, str]:
        """The scopes that it counts in."""
        own = key_scope(self.key), project_scope(self.project), user_scope(self.key, self.user)
        return (*own, ALL)

    @property
    def rate_scopes(self) -> list[str]:
        """The scopes with a limit per minute, each once, in order."""
        return sorted({scope for scope, cap in self.caps if cap.period == "minute"})

    def cap_reached(self, index: int, spent: int, reserved: int, now: float) -> CapReached:
        """Return the rejection by one of the caps; `now` is the time of the store."""
        scope, cap = self.caps[index]
        return CapReached(scope, cap, spent, reserved, reset_time(cap.period, now))


@dataclass(frozen=True, slots=True)
class CapReached:
    """A reservation was rejected because this cap has no room for it."""

    scope: str
    cap: Cap
    spent: int
    reserved: int
    """The sum of the reservations in flight."""
    resets_at: float | None
    """When the cap resets, in seconds since 1970; None if it never does."""


@dataclass(frozen=True, slots=True)
class ReservationInvalid:
    """A reservation was rejected because its key is unknown or revoked, or its id was used."""


Rejection = CapReached | RateReached | ReservationInvalid


class Settlement(NamedTuple):
    """The actual charge of a request."""

    id: str
    charge: Charge
    is_estimated: bool = False
    """Whether brim counted the usage, because the upstream did not report it."""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A row of the ledger. There is one for every reservation that has ended."""

    id: str
    time: float
    """When the reservation was made, on the clock of the store."""
    day: str
    """The day of `time`, whose counters it belongs to."""
    key: str
    key_name: str
    project: str
    model: str
    upstream: str
    user: str
    """The end user of the key; empty if the client named none."""
    charge: Charge
    state: LedgerState
    is_estimated: bool

    @classmethod
    def of(cls, columns: Sequence[Any]) -> LedgerRow:
        """Return the row with these columns, in the order of the fields."""
        id, time, day, *rest, state, estimated = columns
        key, key_name, project, model, upstream, user, *figures = rest
        names = (key, key_name, project, model, upstream, user)
        return cls(id, time, day, *names, Charge.of(figures), state, bool(estimated))


class PrunedSum(NamedTuple):
    """What the deleted rows of an end user of a key sum up to."""

    key: str
    project: str
    user: str
    micro_dollars: int
    tokens: int


@dataclass(frozen=True, slots=True)
class CapCounter:
    """What counts against a cap in one period.

    A counter exists from the first reservation that names such a cap. It is always the sum of the
    ledger's rows of its scope in its period, earlier ones included, and of the reservations in
    flight there.
    """

    scope: str
    unit: Unit
    period: str
    """The name of the period, such as `2026-11-15`, `W2026-11-09` or `2026-11`; or `total`."""
    spent: int
    reserved: int


def to_spending_row(group: Sequence[str], columns: Sequence[Any]) -> SpendingRow:
    """Return the sum of a group of rows: requests, figures, and how many were presumed."""
    requests, *figures, presumed = columns
    usage, micro_dollars, is_unpriced = Charge.of(figures)
    total = SpendingTotal(requests, usage, to_dollars(micro_dollars), unknown=is_unpriced)
    return SpendingRow(tuple(group), total, presumed)


# Values that every store can keep. Clients and upstreams may send anything: unstorable characters
# are replaced, long names truncated, and numbers clamped, so that all stores behave the same.


def clean_reservation(reservation: Reservation) -> Reservation:
    """Return a reservation with storable values, the same object if it already has them.

    Raise `InputError` if a cap does not belong to its key, project or to all.
    """
    id, key, key_name, project, model, upstream, max_charge, caps, user, is_sent = reservation
    own = reservation.scopes
    for scope, _ in caps:
        if scope not in own:
            raise InputError(f"A reservation of {key} cannot count against {scope}.")
    charge = clamp_charge(max_charge)
    names = f"{id}{key}{key_name}{project}{model}{upstream}{user}"
    if charge is max_charge and len(names) <= MAX_NAME_LENGTH and _is_storable(names):
        return reservation
    # Ids, projects and users identify rows, so they are not truncated; brim keeps them short.
    return Reservation(
        clean_text(id),
        clean_text(key),
        clean_text(key_name)[:MAX_NAME_LENGTH],
        clean_text(project),
        clean_text(model)[:MAX_NAME_LENGTH],
        clean_text(upstream)[:MAX_NAME_LENGTH],
        charge,
        tuple((clean_text(scope), cap) for scope, cap in caps),
        clean_text(user),
        is_sent,
    )


def clean_settlements(settlements: Sequence[Settlement]) -> list[Settlement]:
    """Return settlements with storable values."""
    return [
        one._replace(id=clean_text(one.id), charge=charge)
        if (charge := clamp_charge(one.charge)) is not one.charge or not _is_storable(one.id)
        else one
        for one in settlements
    ]


def clamp_charge(charge: Charge) -> Charge:
    """Return a charge with numbers from 0 to `OVER_ANY_CAP`, the same object if they are."""
    usage, cost, is_unpriced = charge
    numbers = (usage.input, usage.cached, usage.output, usage.written, cost)
    if min(numbers) >= 0 and max(numbers) <= OVER_ANY_CAP:
        return charge
    *tokens, cost = (min(max(number, 0), OVER_ANY_CAP) for number in numbers)
    return Charge(Usage(*tokens), cost, is_unpriced)


def clean_text(text: str) -> str:
    """Replace the characters that a store cannot keep."""
    return text if _is_storable(text) else _UNSTORABLE.sub("\ufffd", text)


def _is_storable(text: str) -> bool:
    return text.isascii() and "\0" not in text
