"""The end users of a key: what each spent, and how much of their caps that is."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from brim.gateway.accounts.caps import (
    Cap,
    current_periods,
    each_user_scope,
    first_day,
    to_dollars,
    to_micro_dollars,
)
from brim.gateway.accounts.store import AccountStore
from brim.models.pricing import SpendingTotal

Totals = Mapping[str, SpendingTotal]


async def read_end_users(store: AccountStore, key: str, since: date) -> list[dict[str, Any]]:
    """Return the end users of a key who sent requests since a day, the highest cost first."""
    caps = (await store.caps()).get(each_user_scope(key), ())
    used = [(cap, await _read_period(store, key, cap)) for cap in caps if not cap.is_rate]
    totals = await _read_totals(store, key, since)
    by_cost = sorted(totals.items(), key=lambda item: (-item[1].cost, -item[1].tokens, item[0]))
    return [_user_to_dict(user, total, used) for user, total in by_cost]


async def _read_period(store: AccountStore, key: str, cap: Cap) -> Totals:
    return await _read_totals(store, key, first_day(current_periods(time.time())[cap.period]))


async def _read_totals(store: AccountStore, key: str, since: date | None) -> Totals:
    rows = await store.totals(["key", "user"], since)
    return {row.keys[1]: row.total for row in rows if row.keys[0] == key}


def _user_to_dict(
    user: str, total: SpendingTotal, used: Sequence[tuple[Cap, Totals]]
) -> dict[str, Any]:
    return {
        "user": user,
        "requests": total.calls,
        "tokens": total.tokens,
        "cost": float(total.cost),
        "caps": [_cap_to_dict(cap, totals.get(user, SpendingTotal())) for cap, totals in used],
    }


def _cap_to_dict(cap: Cap, total: SpendingTotal) -> dict[str, Any]:
    """Return a cap with what the end user has spent of it; running requests do not count here."""
    limit: float = cap.limit
    spent: float = total.tokens
    if cap.unit == "dollars":
        limit, spent = float(to_dollars(cap.limit)), float(to_dollars(to_micro_dollars(total.cost)))
    return {"cap": str(cap), "unit": cap.unit, "limit": limit, "spent": spent}
