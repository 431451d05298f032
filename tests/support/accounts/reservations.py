"""Short constructors of reservations, charges and settlements."""

from __future__ import annotations

from typing import Final

from brim.gateway.accounts.caps import ALL, Cap, Unit, key_scope, name_periods, project_scope
from brim.gateway.accounts.keys import ApiKey, hash_secret
from brim.gateway.accounts.reservations import (
    Charge,
    LedgerRow,
    PrunedSum,
    Reservation,
    Settlement,
)
from brim.gateway.accounts.store import AccountStore
from brim.models.pricing import Usage

KEY: Final = ApiKey("k_1", "anna", "blue", created=1_700_000_000.0)
SECRET: Final = hash_secret("brim-secret")
OWN: Final = key_scope(KEY.id)
TEN: Final = (OWN, Cap(10))
"""A total cap of ten micro-dollars."""
LONG: Final = 600.0
"""A lease in seconds that outlives the test."""
OVER: Final = -1.0
"""A lease in seconds that has expired immediately, on any clock."""


def make_charge(cost: int, tokens: int = 0) -> Charge:
    """A charge of this many micro-dollars and tokens, most of them input."""
    return Charge(Usage(input=tokens - tokens // 4, output=tokens // 4), cost)


def make_reservation(
    id: str,
    cost: int = 0,
    *caps: tuple[str, Cap],
    tokens: int = 0,
    key: ApiKey = KEY,
    model: str = "gpt",
    upstream: str = "main",
    user: str = "",
    is_sent: bool = False,
) -> Reservation:
    worst = make_charge(cost, tokens)
    names = (key.id, key.name, key.project, model, upstream)
    return Reservation(id, *names, worst, caps, user, is_sent)


def make_settlement(id: str, cost: int, tokens: int = 0) -> Settlement:
    return Settlement(id, make_charge(cost, tokens))


async def read_counter(
    store: AccountStore, scope: str = OWN, unit: Unit = "dollars"
) -> tuple[int, int]:
    """Return the spent and reserved amounts of a scope with one cap."""
    found = [one for one in await store.counters() if (one.scope, one.unit) == (scope, unit)]
    assert len(found) <= 1, found
    return (found[0].spent, found[0].reserved) if found else (0, 0)


async def check_counters(store: AccountStore) -> None:
    """Check that every counter is the sum of its ledger rows, pruned ones included."""
    rows = (await read_rows(store)).values()
    for one in await store.counters():
        counted = [row for row in rows if one.scope in _scopes(row) and _is_in(one.period, row)]
        pruned = 0
        if one.period == "total":
            sums = [each for each in await store.dump_pruned() if one.scope in _scopes(each)]
            pruned = sum(
                each.micro_dollars if one.unit == "dollars" else each.tokens for each in sums
            )
        assert one.spent == pruned + sum(row.charge.amount(one.unit) for row in counted), one
        assert one.reserved >= 0, one


def _scopes(row: LedgerRow | PrunedSum) -> tuple[str, ...]:
    return key_scope(row.key), project_scope(row.project), ALL


def _is_in(period: str, row: LedgerRow) -> bool:
    return period in name_periods(row.day).values()


async def read_rows(store: AccountStore) -> dict[str, LedgerRow]:
    """Return the ledger by id."""
    rows = [row async for row in store.rows()]
    by_id = {row.id: row for row in rows}
    assert len(by_id) == len(rows), "a request has two rows"
    return by_id
