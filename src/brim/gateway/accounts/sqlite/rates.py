"""Rate limits in the SQLite store, inside a transaction of the caller."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final

from brim.gateway.accounts.caps import ALL, Cap, scope_parts
from brim.gateway.accounts.rates import (
    WINDOW_SECONDS,
    RateCounts,
    RateReached,
    RateUse,
    seconds_until_room,
)

_SUMS: Final = (
    "SELECT coalesce(sum(requests), 0), coalesce(sum(tokens), 0) FROM rates "
    "WHERE scope = ? AND second > ?"
)
_ADD: Final = (
    "INSERT INTO rates VALUES (?, ?, 1, ?) ON CONFLICT DO UPDATE "
    "SET requests = requests + 1, tokens = tokens + excluded.tokens"
)
_CHANGE: Final = (
    "UPDATE rates SET requests = requests + ?, tokens = tokens + ? "
    "WHERE scope IN (?, ?, ?, ?) AND second = ?"
)
_DELETE_OLD: Final = "DELETE FROM rates WHERE second <= ?"


def read_counts(base: sqlite3.Connection, scope: str, now: float) -> RateCounts:
    requests, tokens = base.execute(_SUMS, (scope, int(now) - WINDOW_SECONDS)).fetchone()
    return RateCounts(requests, tokens, count_running(base, scope))


def count_running(base: sqlite3.Connection, scope: str) -> int:
    """Return how many reservations of a scope are in flight."""
    where, values = match_scope(scope)
    found: int = base.execute(f"SELECT count(*) FROM leases WHERE {where}", values).fetchone()[0]
    return found


def match_scope(scope: str) -> tuple[str, list[str]]:
    """Return the condition for the rows of a scope, and its values."""
    kind, name = scope_parts(scope)
    if kind == ALL:
        return "true", []
    if kind == "user":
        key, _, user = name.partition("/")
        # An index has only rows with a user.
        return f"key = ? AND user = ?{' AND user <> ' + repr('') if user else ''}", [key, user]
    return f"{kind} = ?", [name]


def check(
    base: sqlite3.Connection,
    scope: str,
    cap: Cap,
    amount: int,
    former: RateCounts,
    now: float,
    sums: dict[str, tuple[int, int]],
) -> RateUse | RateReached:
    """Return the use of a limit with another request; `former` is what it replaces.

    `sums` keeps the requests and tokens of each scope for its next limit.
    """
    start = int(now) - WINDOW_SECONDS
    if cap.period == "now":
        used = count_running(base, scope) - former.concurrent
    else:
        if scope not in sums:
            sums[scope] = base.execute(_SUMS, (scope, start)).fetchone()
        requests, tokens = sums[scope]
        used = RateCounts(requests - former.requests, tokens - former.tokens).used(cap)
    if used + amount <= cap.limit:
        return RateUse(scope, cap, used + amount)
    if cap.period == "now":
        return RateReached(scope, cap, used, 0.0)
    counted = base.execute(
        f"SELECT second, {cap.unit} FROM rates WHERE scope = ? AND second > ?", (scope, start)
    )
    return RateReached(scope, cap, used, seconds_until_room(counted, amount, cap.limit, now))


def count_request(
    base: sqlite3.Connection,
    scopes: Iterable[str],
    tokens: int,
    now: float,
    sums: dict[str, tuple[int, int]],
) -> None:
    """Count a request in the current second of these scopes, and in the `sums` of `check`."""
    base.executemany(_ADD, [(scope, int(now), tokens) for scope in scopes])
    for scope in scopes:
        if (sum := sums.get(scope)) is not None:
            sums[scope] = sum[0] + 1, sum[1] + tokens


def change(
    base: sqlite3.Connection, scopes: Sequence[str], time: float, requests: int, tokens: int
) -> None:
    """Correct what was counted in a second; scopes without a limit have no rows."""
    base.execute(_CHANGE, (requests, tokens, *scopes, int(time)))


def delete_old(base: sqlite3.Connection, now: float) -> None:
    base.execute(_DELETE_OLD, (int(now) - WINDOW_SECONDS,))
