"""Pruning, copying and alerts in the PostgreSQL store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Final

from brim.gateway.accounts.alerts import (
    FIRST_RETRY_SECONDS,
    MAX_RETRY_SECONDS,
    Alert,
    ClaimedAlert,
)
from brim.gateway.accounts.keys import ApiKey, SecretRecord, duplicate_name_error
from brim.gateway.accounts.postgres.pool import PostgresPool
from brim.gateway.accounts.reservations import LedgerRow, PrunedSum

_PRUNE_BATCH: Final = 5_000
"""Rows that are deleted in one transaction."""
_LOAD_KEYS: Final = (
    "WITH given AS (SELECT * FROM json_to_recordset($1::json) AS g (id text, name text, "
    "project text, is_operator boolean, created double precision, revoked double precision, "
    "rules text)), added AS (INSERT INTO brim.keys (id, name, project, is_operator, created, "
    "revoked, rules) SELECT id, name, project, is_operator, created, revoked, rules FROM given "
    "ON CONFLICT DO NOTHING RETURNING id) SELECT min(g.name) FROM given g "
    "WHERE g.id NOT IN (SELECT id FROM added) AND g.id NOT IN (SELECT id FROM brim.keys)"
)
_LOAD_SECRETS: Final = (
    "INSERT INTO brim.secrets SELECT h, k, coalesce(to_timestamp(e), 'infinity') "
    "FROM unnest($1::text[], $2::text[], $3::double precision[]) AS s (h, k, e) "
    "ON CONFLICT DO NOTHING"
)
_SECRETS: Final = (
    "SELECT hashed, key, CASE WHEN isfinite(expires) "
    "THEN extract(epoch FROM expires)::double precision END FROM brim.secrets ORDER BY hashed"
)
_ADD_ALERTS: Final = (
    "WITH old AS (DELETE FROM brim.alerts WHERE is_delivered "
    "AND expires <= extract(epoch FROM brim.clock())) "
    "INSERT INTO brim.alerts (id, body, expires, due) SELECT i, b, e, brim.clock() "
    "FROM unnest($1::text[], $2::text[], $3::double precision[]) AS a (i, b, e) "
    "ON CONFLICT DO NOTHING"
)
_CLAIM_ALERTS: Final = (
    "UPDATE brim.alerts a SET attempts = attempts + 1, due = brim.clock() + brim.seconds("
    f"least({MAX_RETRY_SECONDS}, {FIRST_RETRY_SECONDS} << least(attempts, 10))) "
    "WHERE id IN (SELECT id FROM brim.alerts WHERE NOT is_delivered AND due <= brim.clock() "
    "ORDER BY due LIMIT $1 FOR UPDATE SKIP LOCKED) RETURNING id, body, attempts"
)
_ROW_NAMES: Final = ("key", "key_name", "project", "model", "upstream", "end_user")
_ROW_FIGURES: Final = ("input", "cached", "output", "written", "micro_dollars", "is_unpriced")


class PostgresUpkeep:
    """The rarer operations of the store."""

    _pool: PostgresPool

    async def prune(self, before: date) -> int:
        pruned = 0
        while some := await self._pool.fetch_value(
            "SELECT brim.prune($1, $2)", before, _PRUNE_BATCH
        ):
            pruned += int(some)
        return pruned

    async def running(self) -> int:
        return int(await self._pool.fetch_value("SELECT count(*) FROM brim.leases"))

    async def dump_secrets(self) -> list[SecretRecord]:
        return [SecretRecord(*row) for row in await self._pool.fetch_rows(_SECRETS)]

    async def dump_pruned(self) -> list[PrunedSum]:
        rows = await self._pool.fetch_rows(
            "SELECT * FROM brim.pruned ORDER BY key, project, end_user"
        )
        return [PrunedSum(*row) for row in rows]

    async def load_keys(self, keys: Sequence[ApiKey], secrets: Sequence[SecretRecord]) -> None:
        fields = ("id", "name", "project", "is_operator", "created", "revoked", "rules")
        given = [dict(zip(fields, key.columns, strict=True)) for key in keys]
        name = await self._pool.fetch_value(_LOAD_KEYS, json.dumps(given))
        if name is not None:
            raise duplicate_name_error(str(name))
        if secrets:
            columns = map(list, zip(*secrets, strict=True))
            await self._pool.fetch_value(_LOAD_SECRETS, *columns)

    async def load_rows(self, rows: Sequence[LedgerRow]) -> None:
        given = json.dumps([_row_to_dict(row) for row in rows])
        await self._pool.fetch_value("SELECT brim.load_rows($1::json)", given)

    async def load_pruned(self, sums: Sequence[PrunedSum]) -> None:
        fields = ("key", "project", "end_user", "micro_dollars", "tokens")
        given = json.dumps([dict(zip(fields, one, strict=True)) for one in sums])
        await self._pool.fetch_value("SELECT brim.load_pruned($1::json)", given)

    async def add_alerts(self, alerts: Sequence[Alert]) -> None:
        if alerts:
            await self._pool.fetch_value(_ADD_ALERTS, *map(list, zip(*alerts, strict=True)))

    async def claim_alerts(self, limit: int) -> list[ClaimedAlert]:
        return [ClaimedAlert(*row) for row in await self._pool.fetch_rows(_CLAIM_ALERTS, limit)]

    async def finish_alert(self, id: str) -> None:
        change = "UPDATE brim.alerts SET is_delivered = true WHERE id = $1"
        await self._pool.fetch_value(change, id)


def _row_to_dict(row: LedgerRow) -> dict[str, object]:
    names = (row.key, row.key_name, row.project, row.model, row.upstream, row.user)
    facts: dict[str, object] = {"id": row.id, "day": row.day, "state": row.state}
    facts |= dict(zip(_ROW_NAMES, names, strict=True))
    facts |= dict(zip(_ROW_FIGURES, row.charge.figures, strict=True))
    reserved_at = datetime.fromtimestamp(row.time, UTC).isoformat()
    return facts | {"reserved_at": reserved_at, "is_estimated": row.is_estimated}
