"""Standing: every cap, with what counts against it in the period that runs now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from brim.gateway.accounts.caps import ALL, scope_parts

if TYPE_CHECKING:
    from brim.gateway.accounts.caps import Cap, Period
    from brim.gateway.accounts.reservations import Charge, GroupBy, LedgerTotal
    from brim.gateway.accounts.store import AccountStore

    Read = Callable[[Sequence[GroupBy], date | None], Awaitable[Sequence[LedgerTotal]]]


@dataclass(frozen=True, slots=True)
class CapUsage:
    """A cap, and how much of it is gone."""

    scope: str
    cap: Cap
    spent: int = 0
    reserved: int = 0
    """What requests that are under way may still come to."""


async def read_cap_usage(books: AccountStore, spent: Read | None = None) -> list[CapUsage]:
    """All caps, in the order of their scopes.

    One that was set since its key was used last has no counter yet; of that, the ledger tells.
    `spent` reads it, where it is not to be read each time.
    """
    counters = {
        (each.scope, each.unit, period_kind(each.period)): each for each in await books.counters()
    }
    ledger = _LedgerTotals(spent or books.spent)
    found = []
    for scope, caps in (await books.caps()).items():
        for cap in caps:
            counter = counters.get((scope, cap.unit, cap.period))
            if counter is not None:
                found.append(CapUsage(scope, cap, counter.spent, counter.reserved))
            else:
                found.append(CapUsage(scope, cap, await ledger.spent(scope, cap)))
    return found


def period_kind(name: str) -> Period:
    """What kind of period a name is of; no clock is asked, that of the books may differ."""
    if name == "total":
        return "total"
    return "day" if name.count("-") == 2 else "month"


class _LedgerTotals:
    """The ledger's sums, each read once."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._sums: dict[tuple[str, Period], dict[tuple[str, ...], Charge]] = {}

    async def spent(self, scope: str, cap: Cap) -> int:
        kind, name = scope_parts(scope)
        sums = self._sums.get((kind, cap.period))
        if sums is None:
            by: tuple[GroupBy, ...] = (
                () if scope == ALL else ("key",) if kind == "key" else ("project",)
            )
            rows = await self._read(by, _first_day(cap.period))
            sums = self._sums[kind, cap.period] = {row.on: row.bill for row in rows}
        bill = sums.get(() if scope == ALL else (name,))
        return 0 if bill is None else bill.amount(cap.unit)


def _first_day(period: Period) -> date | None:
    today = datetime.now(UTC).date()
    if period == "day":
        return today
    return today.replace(day=1) if period == "month" else None
