"""The interface of every account store, and the use of caps as a store has it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final, Protocol
from urllib.parse import SplitResult

from brim.errors import InputError
from brim.gateway.accounts.alerts import Alert, ClaimedAlert
from brim.gateway.accounts.audit import AuditEntry
from brim.gateway.accounts.caps import (
    ALL,
    Cap,
    Period,
    current_periods,
    each_user_scope,
    first_day,
    key_scope,
    period_kind,
    project_scope,
    scope_parts,
    to_micro_dollars,
)
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
)
from brim.models.pricing import SpendingRow, SpendingTotal

ReadTotals = Callable[[Sequence[GroupBy], date | None], Awaitable[Sequence[SpendingRow]]]


class AccountStore(Protocol):
    """Keys, caps, counters, leases and the ledger.

    Every method is atomic for all processes that use the store. Every method raises
    `AccountStoreUnavailableError` if the store cannot be reached; the next call tries again.
    Values are cleaned as `clean_reservation` says.
    """

    async def open(self) -> None:
        """Connect, and apply pending migrations of the schema."""

    async def close(self) -> None: ...

    # Keys and caps

    async def add_key(self, key: ApiKey, hashed: str, caps: Sequence[Cap] = ()) -> None:
        """Add a key. Raise `InputError` if an active key has its name."""

    async def keys(self) -> list[ApiKey]:
        """Return all keys, revoked ones included, the oldest first."""

    async def access(self, hashed: str) -> Access | None:
        """Return the active key with a secret of this hash, and its caps; None if there is none."""

    async def revoke(self, name: str) -> ApiKey:
        """Revoke a key by name or id. Raise `InputError` if no active key has it."""

    async def rotate(self, name: str, hashed: str, overlap: float) -> ApiKey:
        """Give a key a new secret, by name or id; the others end after `overlap` seconds.

        Raise `InputError` if no active key has it.
        """

    async def set_rules(self, name: str, rules: KeyRules) -> ApiKey:
        """Replace the rules of a key, by name or id. Raise `InputError` if no active key has it."""

    async def set_caps(self, scope: str, caps: Sequence[Cap]) -> None:
        """Replace the caps of a scope; an empty list removes them."""

    async def caps(self) -> dict[str, tuple[Cap, ...]]:
        """Return the caps of all scopes that have any."""

    # The audit log

    async def add_audit_entry(self, entry: AuditEntry) -> None:
        """Add an entry. One with the same id stays as it is."""

    async def audit_entries(self, last: int) -> list[AuditEntry]:
        """Return the last entries, the newest first."""

    # Reservations

    async def reserve(self, reservation: Reservation, lease: float) -> Rejection | Admission | None:
        """Reserve the maximum charge of a request for `lease` seconds.

        Return None on success, or the use of the rate limits if it names any.

        A cap counts everything that its scope spent in its period, also before the cap was set.
        Expired leases are ended before a reservation is rejected. A reservation with the id of one
        whose lease runs replaces it, or changes nothing if it is rejected; if the first was sent,
        so is the second. An id that is already in the ledger gives `ReservationInvalid`.
        """

    async def mark_sent(self, id: str, lease: float) -> bool:
        """Record that a request is about to be sent; False if its lease expired: do not send."""

    async def renew(self, ids: Sequence[str], lease: float) -> None:
        """Extend the leases of running requests; expired ones stay expired."""

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        """Record actual charges, and release the rest of the reservations.

        A row that is *presumed* is corrected; any other row of the ledger stays as it is.
        """

    async def sweep(self) -> int:
        """End expired leases; return how many there were."""

    # Upkeep

    async def prune(self, before: date) -> int:
        """Delete the rows of the ledger of earlier days; return how many there were.

        Their sums are kept for total caps. Caps of shorter periods must not need these days.
        """

    async def running(self) -> int:
        """Return how many reservations are in flight."""

    async def dump_secrets(self) -> list[SecretRecord]:
        """Return the secrets of all keys, as hashes."""

    async def dump_pruned(self) -> list[PrunedSum]:
        """Return the sums of the rows that were pruned."""

    async def load_keys(self, keys: Sequence[ApiKey], secrets: Sequence[SecretRecord]) -> None:
        """Add the keys of another store. Those that are here stay as they are.

        Raise `InputError` if another active key has the name of one.
        """

    async def load_rows(self, rows: Sequence[LedgerRow]) -> None:
        """Add rows of another store's ledger, except those that are here."""

    async def load_pruned(self, sums: Sequence[PrunedSum]) -> None:
        """Replace the sums of pruned rows by those of another store."""

    # Alerts

    async def add_alerts(self, alerts: Sequence[Alert]) -> None:
        """Add alerts to the outbox, except those that are or were in it."""

    async def claim_alerts(self, limit: int) -> list[ClaimedAlert]:
        """Return alerts to send now; no other call returns them until their next attempt is due."""

    async def finish_alert(self, id: str) -> None:
        """Record that an alert was delivered."""

    # Reading

    async def counters(self, ago: float = 0.0, users_from: int = OVER_ANY_CAP) -> list[CapCounter]:
        """Return the counters of the current periods, ordered by name.

        With `ago`, return those of the periods this many seconds before. Of end users, who may be
        many, return only those who have spent `users_from`.
        """

    async def rate_counts(self, scope: str) -> RateCounts:
        """Return what counts against the rate limits of a scope."""

    async def totals(
        self, by: Sequence[GroupBy], since: date | None = None, until: date | None = None
    ) -> list[SpendingRow]:
        """Return the sums of the ledger by group, ordered by group; both days are included."""

    def rows(
        self, since: date | None = None, until: date | None = None
    ) -> AsyncIterator[LedgerRow]:
        """Iterate over the ledger, the oldest day first."""


async def find_access(store: AccountStore, name: str) -> Access | None:
    """Return the active key with a name, and its caps; None if there is none."""
    key = next((k for k in await store.keys() if k.name == name and k.revoked is None), None)
    if key is None:
        return None
    caps = await store.caps()
    scopes = [key_scope(key.id), *([project_scope(key.project)] if key.project else []), ALL]
    pairs = tuple((scope, cap) for scope in scopes for cap in caps.get(scope, ()))
    return Access(key, pairs, caps.get(each_user_scope(key.id), ()))


MIN_RETENTION_DAYS: Final = 40
"""Rows of a whole month must be there, so that a new monthly cap counts them."""


def check_retention(days: int) -> int:
    """Return the days for which rows are kept. Raise `InputError` if they are too few."""
    if 0 < days < MIN_RETENTION_DAYS:
        raise InputError(
            f"Retention too short: {days} days. Keep the ledger for at least {MIN_RETENTION_DAYS} "
            "days, so that monthly caps stay exact."
        )
    return days


@dataclass(frozen=True, slots=True)
class CapUsage:
    """A cap and how much of it is used in the current period."""

    scope: str
    cap: Cap
    spent: int = 0
    reserved: int = 0
    """The sum of the reservations in flight."""


async def read_cap_usage(
    store: AccountStore, read_totals: ReadTotals | None = None
) -> list[CapUsage]:
    """Return all caps, ordered by scope.

    A cap without a counter, because no reservation has used it, is summed from the ledger.
    `read_totals` reads the ledger, for example from a cache; by default the store does.
    """
    counters = {
        (each.scope, each.unit, period_kind(each.period)): each for each in await store.counters()
    }
    ledger = _LedgerTotals(read_totals or store.totals)
    found = []
    for scope, caps in (await store.caps()).items():
        if scope_parts(scope)[0] == "users":
            found += [CapUsage(scope, cap) for cap in caps]
            continue
        for cap in caps:
            if cap.is_rate:
                found.append(CapUsage(scope, cap, (await store.rate_counts(scope)).used(cap)))
                continue
            counter = counters.get((scope, cap.unit, cap.period))
            if counter is not None:
                found.append(CapUsage(scope, cap, counter.spent, counter.reserved))
            else:
                found.append(CapUsage(scope, cap, await ledger.spent(scope, cap)))
    return found


class _LedgerTotals:
    """Sums of the ledger, each read once."""

    def __init__(self, read: ReadTotals) -> None:
        self._read = read
        self._sums: dict[tuple[str, Period], dict[tuple[str, ...], SpendingTotal]] = {}

    async def spent(self, scope: str, cap: Cap) -> int:
        kind, name = scope_parts(scope)
        sums = self._sums.get((kind, cap.period))
        if sums is None:
            by: Sequence[GroupBy] = () if kind == ALL else ("key" if kind == "key" else "project",)
            rows = await self._read(by, first_day(current_periods(time.time())[cap.period]))
            sums = self._sums[kind, cap.period] = {row.keys: row.total for row in rows}
        total = sums.get(() if kind == ALL else (name,), SpendingTotal())
        return to_micro_dollars(total.cost) if cap.unit == "dollars" else total.tokens


# URLs of stores: they contain passwords, which errors about an invalid URL must not quote

ESCAPING_HINT: Final = (
    "escape special characters in the password as %XX: / is %2F, @ is %40, [ is %5B"
)
MAX_PORT: Final = 65_535


def has_unescaped_delimiter(parts: SplitResult) -> bool:
    """Return whether an unescaped / ? or # in the password ended the host: the @ comes later."""
    return "@" in parts.path + parts.query + parts.fragment or parts.netloc.count("@") > 1


def check_port(digits: str) -> None:
    """Raise `InputError` if a port is out of range. Text may be a password, so it is not shown."""
    if digits.isdecimal() and not 0 < int(digits[:9]) <= MAX_PORT:
        raise InputError(
            f"Invalid port in the store's URL: {digits[:9]}. Ports range from 1 to {MAX_PORT}."
        )
