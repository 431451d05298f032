"""Claims: what a request may cost at most, set aside before it is sent, and what it came to.

    reserve ─▶ forward ─▶ (renew …) ─▶ settle          one row in the ledger, whatever happens
       │           │
       │           └─ lease over: charged in full, the row is marked *presumed*
       └─ lease over: given back, the row is marked *refunded*

Who can send at once does both in one step, with a claim that says so. Two it takes where a server
has to be called first, or the books were away: what they took without telling is then given back.
Every step may come twice, and a settlement may come late: it counts once. A request that was sent
may have been charged, so a second claim by its name, for a fallback, is as good as sent from its
beginning: when its lease is over it is charged in full.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from brim.gateway.accounts.caps import Cap, Unit
from brim.models.pricing import Usage

LedgerState = Literal["settled", "presumed", "refunded"]
GroupBy = Literal["day", "key", "project", "model", "upstream", "state"]


_NOTHING: Final = Usage()


class Charge(NamedTuple):
    """What a request takes: at most, or in the end. Bills add with `+`."""

    usage: Usage = _NOTHING
    micro_dollars: int = 0
    is_unpriced: bool = False
    """Nobody knows what it costs; then the micro-dollars are 0, and no cap in dollars holds."""

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
        return self.micro_dollars if unit == "dollars" else self.tokens


class Reservation(NamedTuple):
    """A request that wants to be sent, and what it may come to."""

    id: str
    """Its name; a second claim by this name takes the place of the first, for a fallback."""
    key: str
    """The id of the key that pays. It has to live when the claim is made."""
    key_name: str
    project: str
    model: str
    upstream: str
    worst: Charge
    caps: tuple[tuple[str, Cap], ...] = ()
    """What has to have room for it, each with its scope: its key's, its project's or that of all.
    All of them have room, or nothing is taken."""
    is_forwarded: bool = False
    """It is sent as soon as it is taken: nobody has to come back and say so."""


@dataclass(frozen=True, slots=True)
class CapReached:
    """Why a claim was not taken: this cap has no room for it."""

    scope: str
    cap: Cap
    spent: int
    reserved: int
    """What requests that are under way may still come to."""
    opens: float | None
    """When it begins anew, in seconds since 1970; never is None."""


@dataclass(frozen=True, slots=True)
class ReservationInvalid:
    """Why a claim was not taken: its key was revoked, or the books do not know it."""


class Settlement(NamedTuple):
    """What a request came to in the end."""

    id: str
    bill: Charge
    is_counted: bool = False
    """By brim's own count, because the upstream's report did not come."""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A line of the ledger. There is one for every claim that was taken and is over."""

    id: str
    time: float
    """When the claim was taken, on the books' own clock."""
    day: str
    """The day of that, which is also the day of its counters."""
    key: str
    key_name: str
    project: str
    model: str
    upstream: str
    bill: Charge
    state: LedgerState
    is_counted: bool


@dataclass(frozen=True, slots=True)
class CapCounter:
    """What stands against a cap, in one period.

    There is one from the first claim on that names such a cap. It is always the sum of the ledger's
    rows of its scope in its period, those before it as well, and of what runs there.
    """

    scope: str
    unit: Unit
    period: str
    """The very day or month."""
    spent: int
    reserved: int


@dataclass(frozen=True, slots=True)
class LedgerTotal:
    """Rows of the ledger, summed up."""

    on: tuple[str, ...]
    """The day, key and so on that it was spent on, in the order that was asked for."""
    requests: int
    bill: Charge
    """Its mark says that some of it has no price."""
    presumed: int = 0
    """How many of them were charged in full because nobody came back to settle them."""
