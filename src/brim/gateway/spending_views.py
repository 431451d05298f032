"""Spending by day, key, end user, model and project, the use of caps, and each model's facts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from brim.gateway.accounts.caps import (
    Cap,
    Unit,
    current_periods,
    each_user_scope,
    first_day,
    key_scope,
    reset_time,
    scope_parts,
    to_dollars,
    to_micro_dollars,
)
from brim.gateway.accounts.keys import ApiKey, unique_names
from brim.gateway.accounts.reservations import GroupBy
from brim.gateway.accounts.store import AccountStore, CapUsage, read_cap_usage
from brim.gateway.gateway import Gateway
from brim.gateway.model_route import ModelRoute
from brim.gateway.responses import json_response, parse_number
from brim.models.pricing import SpendingRow, SpendingTotal

MAX_DAYS: Final = 366
MAX_ROWS: Final = 500
"""Keys, caps, models and so on that are listed; the rest is only counted."""
MAX_CACHED: Final = 64
PAUSE_FACTOR: Final = 9.0
"""After a query, the ledger rests for this many times the duration of the query."""
GROUPINGS: Final[tuple[GroupBy, ...]] = ("day", "key", "model", "project")
_Totals = Mapping[GroupBy, Sequence[SpendingRow]]
_Query = tuple[tuple[GroupBy, ...], date | None]
_NO_SPENDING: Final[Mapping[str, Any]] = {
    "has_accounts": False,
    "keys": [],
    "caps": [],
    **{f"by_{by}": [] for by in GROUPINGS},
    "omitted": 0,
}


class SpendingViews:
    """Spending and caps, and what is known about each model, for the dashboard and programs."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._accounts = gateway.services.accounts
        self._cache = SpendingCache(self._accounts.store)

    async def spending(self, request: Request) -> Response:
        """Return the spending of the last days by day, key, model and project, and all caps."""
        days = parse_number(request, "days", default=30, most=MAX_DAYS)
        since = datetime.now(UTC).date() - timedelta(days=days - 1)
        found = {}
        if self._accounts.requires_keys:
            found = await _read_spending(self._accounts.store, self._cache, since)
        return json_response(
            {"object": "brim.spending", "since": since.isoformat(), **_NO_SPENDING, **found}
        )

    async def routes(self, _: Request) -> Response:
        """Return what is known about each model at each upstream, the last used first."""
        latest = list(self._gateway.services.routes)[::-1]
        known = [_route_to_dict(route) for route in latest[:MAX_ROWS]]
        return json_response({"object": "list", "data": known, "omitted": len(latest) - len(known)})


class SpendingCache:
    """Sums of the ledger, cached for a time that grows with the duration of the query.

    However long the ledger is, and however many dashboards are open, at most a tenth of the time is
    spent on reading it.
    """

    def __init__(self, store: AccountStore) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._cached: dict[_Query, tuple[float, Sequence[SpendingRow]]] = {}

    async def since(self, day: date) -> _Totals:
        return {by: await self.totals((by,), day) for by in GROUPINGS}

    async def totals(self, by: Sequence[GroupBy], since: date | None) -> Sequence[SpendingRow]:
        query = tuple(by), since
        async with self._lock:
            started = time.monotonic()
            expires, totals = self._cached.get(query, (0.0, ()))
            if started < expires:
                return totals
            totals = await self._store.totals(by, since)
            if len(self._cached) >= MAX_CACHED:
                self._cached.clear()
            now = time.monotonic()
            self._cached[query] = now + PAUSE_FACTOR * (now - started), totals
            return totals


async def _read_spending(store: AccountStore, ledger: SpendingCache, since: date) -> dict[str, Any]:
    totals = await ledger.since(since)
    keys, caps = await store.keys(), await store.caps()
    names = unique_names(keys)
    usages = await read_cap_usage(store, ledger.totals)
    # Caps of each end user have no single use; they are listed with the end users of their key.
    listed_caps = [cap_to_dict(each, names) for each in usages if not is_each_user(each.scope)]
    found: dict[str, list[dict[str, Any]]] = {
        "keys": [_key_to_dict(key, names[key.id], caps) for key in reversed(keys)],
        "caps": sorted(listed_caps, key=_fullness, reverse=True),
    }
    for by, rows in totals.items():
        found[f"by_{by}"] = [_row_to_dict(row, names if by == "key" else {}) for row in rows]
        if by != "day":
            found[f"by_{by}"].sort(key=_spending_size, reverse=True)
    omitted = sum(max(0, len(listed) - MAX_ROWS) for listed in found.values())
    limited = {name: listed[:MAX_ROWS] for name, listed in found.items()}
    return {"has_accounts": True, **limited, "omitted": omitted}


def is_each_user(scope: str) -> bool:
    return scope_parts(scope)[0] == "users"


def _key_to_dict(key: ApiKey, name: str, caps: Mapping[str, Iterable[Cap]]) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": name,
        "project": key.project,
        "operator": key.is_operator,
        "created": key.created,
        "revoked": key.revoked,
        "caps": [str(cap) for cap in caps.get(key_scope(key.id), ())],
    }


def cap_to_dict(usage: CapUsage, names: Mapping[str, str]) -> dict[str, Any]:
    """Return a cap with what counts against it in the current period."""
    cap, (kind, id) = usage.cap, scope_parts(usage.scope)
    return {
        "scope": usage.scope,
        "kind": kind,
        "name": names.get(id, id) if kind in ("key", "users") else id,
        "cap": str(cap),
        "unit": cap.unit,
        "period": cap.period,
        "limit": _amount(cap.limit, cap.unit),
        "spent": _amount(usage.spent, cap.unit),
        "reserved": _amount(usage.reserved, cap.unit),
        "resets": reset_time(cap.period, time.time()),
    }


def _amount(counted: int, unit: Unit) -> int | float:
    """Return dollars or tokens."""
    return float(to_dollars(counted)) if unit == "dollars" else counted


def _fullness(cap: Mapping[str, Any]) -> float:
    used = cap["spent"] + cap["reserved"]
    return float(used / cap["limit"]) if cap["limit"] else 1.0


def _row_to_dict(row: SpendingRow, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the spending of one group, with a name to show."""
    (group,) = row.keys
    usage = row.total.usage
    return {
        "group": group,
        "name": names.get(group, group),
        "requests": row.total.calls,
        "input": usage.input,
        "cached": usage.cached,
        "output": usage.output,
        "cost": float(row.total.cost),
        "unpriced": row.total.unknown,
        "presumed": row.presumed,
    }


def _spending_size(row: Mapping[str, Any]) -> tuple[float, int]:
    return row["cost"], row["input"] + row["output"]


# Models


def _route_to_dict(route: ModelRoute) -> dict[str, Any]:
    """Return what requests for a model are fitted to now, and where that is known from."""
    profile, fitter = route.profile, route.fitter(route.policy)
    budget = fitter.budget
    calibration = profile.calibration
    is_known = not route.is_guessed
    return {
        "upstream": route.upstream.name,
        "model": route.model,
        "weight": route.upstream.config.weight,
        "available": route.health.is_available(time.monotonic()),
        "server": route.kind,
        "policy": route.policy,
        "window": budget.window if is_known else None,
        "reply": budget.reply,
        "margin": budget.margin if is_known else None,
        "limit": budget.limit if is_known else None,
        "source": profile.window_source,
        "exact": not fitter.counter.uncertainty,
        "rejected_above": calibration.window_at(profile.server_window),
        "guessed_limit": profile.largest_prompt,
        "ratio": calibration.ratio if calibration.ratios else None,
        "ratios": list(calibration.ratios),
        "density": calibration.density if calibration.densities else None,
        "offset": calibration.offset,
        "accepted": profile.accepted or None,
    }


# End users

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
