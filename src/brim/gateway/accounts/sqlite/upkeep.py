"""Pruning, copying and alerts in the SQLite store, inside a transaction of the caller."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from brim.gateway.accounts.alerts import (
    FIRST_RETRY_SECONDS,
    MAX_RETRY_SECONDS,
    Alert,
    ClaimedAlert,
)
from brim.gateway.accounts.keys import ApiKey, SecretRecord, duplicate_name_error
from brim.gateway.accounts.reservations import LedgerRow, PrunedSum

PRUNE_BATCH: Final = 1_000
"""Rows that are deleted in one transaction; more would block the event loop."""
_PRUNE: Final = (
    "DELETE FROM ledger WHERE (time, id) IN "
    f"(SELECT time, id FROM ledger WHERE time < ? ORDER BY time, id LIMIT {PRUNE_BATCH}) "
    "RETURNING key, project, user, cost, input + output"
)
_ADD_PRUNED: Final = (
    "INSERT INTO pruned VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE "
    "SET cost = cost + excluded.cost, tokens = tokens + excluded.tokens"
)
_LOAD_KEY: Final = "INSERT OR IGNORE INTO keys VALUES (?, ?, ?, ?, ?, ?, ?)"
_LOAD_ROW: Final = (
    "INSERT OR IGNORE INTO ledger VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_ADD_ALERT: Final = "INSERT OR IGNORE INTO alerts VALUES (?, ?, ?, ?, 0, 0)"
_CLAIM_ALERTS: Final = (
    "UPDATE alerts SET attempts = attempts + 1, "
    f"due = ?1 + min({MAX_RETRY_SECONDS}, {FIRST_RETRY_SECONDS} << min(attempts, 10)) "
    "WHERE id IN (SELECT id FROM alerts WHERE NOT delivered AND due <= ?1 ORDER BY due LIMIT ?2) "
    "RETURNING id, body, attempts"
)


def prune(base: sqlite3.Connection, _: float, before: float) -> int:
    """Delete some rows before a time; return how many."""
    rows = base.execute(_PRUNE, (before,)).fetchall()
    sums: defaultdict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for *place, cost, tokens in rows:
        found = sums[place[0], place[1], place[2]]
        found[0] += cost
        found[1] += tokens
    base.executemany(_ADD_PRUNED, [(*place, *found) for place, found in sums.items()])
    return len(rows)


def load_keys(
    base: sqlite3.Connection, _: float, keys: Sequence[ApiKey], secrets: Sequence[SecretRecord]
) -> None:
    known = {id for (id,) in base.execute("SELECT id FROM keys")}
    for key in keys:
        added = base.execute(_LOAD_KEY, key.columns).rowcount
        if not added and key.id not in known:
            raise duplicate_name_error(key.name)
    base.executemany("INSERT OR IGNORE INTO secrets VALUES (?, ?, ?)", secrets)


def load_rows(base: sqlite3.Connection, _: float, rows: Sequence[LedgerRow]) -> None:
    base.executemany(_LOAD_ROW, [_to_columns(row) for row in rows])
    base.execute("DELETE FROM counters")  # summed again when they are needed


def load_pruned(base: sqlite3.Connection, _: float, sums: Sequence[PrunedSum]) -> None:
    base.execute("DELETE FROM pruned")
    base.executemany("INSERT INTO pruned VALUES (?, ?, ?, ?, ?)", sums)
    base.execute("DELETE FROM counters")


def add_alerts(base: sqlite3.Connection, now: float, alerts: Sequence[Alert]) -> None:
    base.execute("DELETE FROM alerts WHERE delivered AND expires <= ?", (now,))
    base.executemany(_ADD_ALERT, [(*alert, now) for alert in alerts])


def claim_alerts(base: sqlite3.Connection, now: float, limit: int) -> list[ClaimedAlert]:
    return [ClaimedAlert(*row) for row in base.execute(_CLAIM_ALERTS, (now, limit)).fetchall()]


def finish_alert(base: sqlite3.Connection, _: float, id: str) -> None:
    base.execute("UPDATE alerts SET delivered = 1 WHERE id = ?", (id,))


def _to_columns(row: LedgerRow) -> tuple[object, ...]:
    names = (row.key, row.key_name, row.project, row.model, row.upstream, row.user)
    return (row.time, row.id, row.day, *names, *row.charge.figures, row.state, row.is_estimated)
