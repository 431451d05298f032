"""Claims and bills as short as tests want them."""

from __future__ import annotations

from typing import Final

from brim.gateway.accounts.caps import ALL, Cap, Unit, key_scope, project_scope
from brim.gateway.accounts.keys import ApiKey, hash_secret
from brim.gateway.accounts.reservations import Charge, LedgerRow, Reservation, Settlement
from brim.gateway.accounts.store import AccountStore
from brim.models.pricing import Usage

KEY: Final = ApiKey("k_1", "anna", "blue", created=1_700_000_000.0)
SECRET: Final = hash_secret("brim-secret")
OWN: Final = key_scope(KEY.id)
TEN: Final = (OWN, Cap(10))
"""A cap of ten micro-dollars, for good."""
LONG: Final = 600.0
"""Seconds of a lease that outlives the test."""
OVER: Final = -1.0
"""Seconds of a lease that is over as soon as it is taken, on whichever clock."""


def bill(cost: int, tokens: int = 0) -> Charge:
    """So many micro-dollars, and so many tokens, most of them read."""
    return Charge(Usage(input=tokens - tokens // 4, output=tokens // 4), cost)


def claim(
    id: str,
    cost: int = 0,
    *caps: tuple[str, Cap],
    tokens: int = 0,
    key: ApiKey = KEY,
    model: str = "gpt",
    upstream: str = "main",
    is_sent: bool = False,
) -> Reservation:
    worst = bill(cost, tokens)
    return Reservation(id, key.id, key.name, key.project, model, upstream, worst, caps, is_sent)


def settled(id: str, cost: int, tokens: int = 0) -> Settlement:
    return Settlement(id, bill(cost, tokens))


async def standing(
    books: AccountStore, scope: str = OWN, unit: Unit = "dollars"
) -> tuple[int, int]:
    """What is spent and what is set aside, over all running periods of a scope that has one cap."""
    found = [one for one in await books.counters() if (one.scope, one.unit) == (scope, unit)]
    assert len(found) <= 1, found
    return (found[0].spent, found[0].reserved) if found else (0, 0)


async def check_counters(books: AccountStore) -> None:
    """Every counter is what the ledger has of its scope, in its period."""
    rows = (await booked(books)).values()
    for one in await books.counters():
        counted = [row for row in rows if one.scope in _scopes(row) and _is_in(one.period, row)]
        assert one.spent == sum(row.charge.amount(one.unit) for row in counted), one
        assert one.reserved >= 0, one


def _scopes(row: LedgerRow) -> tuple[str, ...]:
    return key_scope(row.key), project_scope(row.project), ALL


def _is_in(period: str, row: LedgerRow) -> bool:
    return period == "total" or row.day.startswith(period)


async def booked(books: AccountStore) -> dict[str, LedgerRow]:
    """The ledger, by the names of its rows."""
    rows = [row async for row in books.rows()]
    by_id = {row.id: row for row in rows}
    assert len(by_id) == len(rows), "a request has two rows"
    return by_id
