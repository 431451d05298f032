"""Books: what every store of keys, caps and spending does, whichever it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import date
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from brim.gateway.accounts.caps import Cap
    from brim.gateway.accounts.keys import Access, ApiKey
    from brim.gateway.accounts.reservations import (
        CapCounter,
        CapReached,
        GroupBy,
        LedgerRow,
        LedgerTotal,
        Reservation,
        ReservationInvalid,
        Settlement,
    )


class AccountStore(Protocol):
    """Keys, caps, counters, leases and the ledger.

    Whatever the store is, a step is done whole or not at all, for all processes that use it. All
    of it raises `BooksAwayError` where the store cannot be reached; the next call tries again.
    Text that no store can keep is replaced, and numbers are bounded, as `bounds` says.
    """

    async def open(self) -> None:
        """Make ready: connect, and bring the schema up to date in numbered steps."""

    async def close(self) -> None: ...

    # Keys and caps

    async def add_key(self, key: ApiKey, hashed: str, caps: Sequence[Cap] = ()) -> None:
        """Take in a new key. `InputError` where a living one has its name."""

    async def keys(self) -> list[ApiKey]:
        """All keys that ever were, the oldest first."""

    async def access(self, hashed: str) -> Access | None:
        """Who shows a secret with this hash, with all caps that apply; None for nobody."""

    async def revoke(self, name: str) -> ApiKey:
        """End a key, by its name or its id, for good. `InputError` where none lives."""

    async def set_caps(self, scope: str, caps: Sequence[Cap]) -> None:
        """Replace the caps of a scope; none lifts them."""

    async def caps(self) -> dict[str, tuple[Cap, ...]]:
        """All scopes that have caps."""

    # Claims

    async def reserve(
        self, claim: Reservation, lease: float
    ) -> CapReached | ReservationInvalid | None:
        """Set aside what a request may come to, for so many seconds; None where that is done.

        A cap counts all that its scope spent in its period, also before it was set. Leases that
        are over are dealt with before anything is refused. A claim whose name is known and whose
        lease runs takes the other's place, or leaves all as it is where it is refused; where the
        other was sent, this one counts as sent too. One that is in the ledger already is refused
        as `Unknown`.
        """

    async def forward(self, id: str, lease: float) -> bool:
        """Note that a request is about to be sent. False where its lease is over: do not send."""

    async def renew(self, ids: Sequence[str], lease: float) -> None:
        """Give running requests time; those that are over stay over."""

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        """Book what requests came to, and free the rest of what was set aside.

        One that is in the ledger as *presumed* is put right; any other is left as it is.
        """

    async def sweep(self) -> int:
        """Deal with leases that are over; says how many there were."""

    # Reading

    async def counters(self) -> list[CapCounter]:
        """The counters of the periods that run now, in the order of their names."""

    async def spent(
        self, by: Sequence[GroupBy], since: date | None = None, until: date | None = None
    ) -> list[LedgerTotal]:
        """The ledger, summed up, in the order of what it is summed up by; both days count."""

    def rows(
        self, since: date | None = None, until: date | None = None
    ) -> AsyncIterator[LedgerRow]:
        """The ledger itself, the oldest day first."""
