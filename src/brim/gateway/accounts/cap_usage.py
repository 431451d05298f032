"""Every cap with what counts against it in the current period."""

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

    ReadTotals = Callable[[Sequence[GroupBy], date | None], Awaitable[Sequence[LedgerTotal]]]


@dataclass(frozen=True, slots=True)
class CapUsage:
    """A cap and how much of it is used."""

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
        for cap in caps:
            counter = counters.get((scope, cap.unit, cap.period))
            if counter is not None:
                found.append(CapUsage(scope, cap, counter.spent, counter.reserved))
            else:
                found.append(CapUsage(scope, cap, await ledger.spent(scope, cap)))
    return found


def period_kind(name: str) -> Period:
    """Return the kind of a period from its name, without a clock: the store's may differ."""
    if name == "total":
        return "total"
    return "day" if name.count("-") == 2 else "month"


class _LedgerTotals:
    """Sums of the ledger, each read once."""

    def __init__(self, read: ReadTotals) -> None:
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
            sums = self._sums[kind, cap.period] = {row.group: row.charge for row in rows}
        charge = sums.get(() if scope == ALL else (name,))
        return 0 if charge is None else charge.amount(cap.unit)


def _first_day(period: Period) -> date | None:
    today = datetime.now(UTC).date()
    if period == "day":
        return today
    return today.replace(day=1) if period == "month" else None
