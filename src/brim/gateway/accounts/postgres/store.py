"""The account store in PostgreSQL, for several gateways.

The operations are functions in the schema `brim` (`schema_1.sql`), called in one round trip each.
The clock is the server's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import date
from typing import Final

from brim.gateway.accounts.caps import (
    ALL,
    Cap,
    dump_caps,
    key_scope,
    load_caps,
    project_scope,
    reset_time,
)
from brim.gateway.accounts.keys import Access, ApiKey, duplicate_name_error, no_active_key_error
from brim.gateway.accounts.postgres.pool import REPORT_SECONDS, PostgresPool, ResultRow
from brim.gateway.accounts.reservations import (
    CapCounter,
    CapReached,
    Charge,
    GroupBy,
    LedgerRow,
    LedgerTotal,
    Reservation,
    ReservationInvalid,
    Settlement,
    clean_reservation,
    clean_settlements,
    clean_text,
)
from brim.models.pricing import Usage

_BATCH: Final = 1_000
"""Leases that one sweep ends, and rows of the ledger that are read in one query."""

_KEY: Final = "id, name, project, is_operator, created, revoked"
_ADD_KEY: Final = (
    f"WITH added AS (INSERT INTO brim.keys ({_KEY}, hashed) "
    "VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING RETURNING id), capped AS "
    "(INSERT INTO brim.caps SELECT $8, $9::json FROM added WHERE $9::json IS NOT NULL) "
    "SELECT id FROM added"
)
_ACCESS: Final = (
    f"SELECT {_KEY}, (SELECT list FROM brim.caps WHERE scope = 'key:' || id) AS key_caps, "
    "(SELECT list FROM brim.caps WHERE project <> '' AND scope = 'project:' || project) "
    "AS project_caps, "
    f"(SELECT list FROM brim.caps WHERE scope = '{ALL}') AS all_caps "
    "FROM brim.keys WHERE hashed = $1 AND revoked IS NULL"
)
_REVOKE: Final = (
    "UPDATE brim.keys SET revoked = extract(epoch FROM brim.clock()) "
    "WHERE revoked IS NULL AND id = (SELECT id FROM brim.keys "
    "WHERE revoked IS NULL AND (name = $1 OR id = $1) ORDER BY name = $1 DESC LIMIT 1) "
    f"RETURNING {_KEY}"
)
_SET_CAPS: Final = (
    "INSERT INTO brim.caps VALUES ($1, $2::json) ON CONFLICT (scope) DO UPDATE SET list = $2::json"
)
_RESERVATION: Final = "($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)::brim.reservation"
_RESERVE: Final = f"SELECT * FROM brim.reserve({_RESERVATION}, $13, $14, $15, $16, $17)"
# In one transaction; the second call sets the lease.
_RESERVE_AS_SENT: Final = (
    "SELECT r.*, r.rejection IS NULL AND brim.mark_sent($1, $17) AS is_sent "
    f"FROM brim.reserve({_RESERVATION}, $13, $14, $15, $16, 60) AS r"
)
_COUNTERS: Final = (
    "SELECT c.* FROM brim.counters c, (SELECT brim.clock() AS now) AS t "
    "WHERE c.period = ANY (brim.periods(t.now)) "
    "ORDER BY c.scope || '/' || c.period || '/' || c.unit"
)
_SUMS: Final = (
    "count(*) AS requests, sum(input)::bigint AS input, sum(cached)::bigint AS cached, "
    "sum(output)::bigint AS output, sum(written)::bigint AS written, "
    "sum(micro_dollars)::bigint AS micro_dollars, bool_or(is_unpriced) AS is_unpriced, "
    "count(*) FILTER (WHERE state = 'presumed') AS presumed"
)
_WITHIN: Final = "day BETWEEN coalesce($1, '-infinity'::date) AND coalesce($2, 'infinity'::date)"
_ROWS: Final = (
    "SELECT *, extract(epoch FROM reserved_at)::double precision AS time FROM brim.ledger "
    f"WHERE {_WITHIN} AND ($3::text IS NULL OR (day, reserved_at, id) > ($4, $5, $3)) "
    f"ORDER BY day, reserved_at, id LIMIT {_BATCH}"
)


class PostgresAccountStore:
    """An account store in the schema `brim` of a PostgreSQL database, version 14 or newer."""

    def __init__(self, url: str) -> None:
        self._pool = PostgresPool(url)

    def __repr__(self) -> str:
        return f"PostgresBooks({self._pool.location!r})"

    async def open(self) -> None:
        await self._pool.open()

    async def close(self) -> None:
        await self._pool.close()

    # Keys and caps

    async def add_key(self, key: ApiKey, hashed: str, caps: Sequence[Cap] = ()) -> None:
        facts = (key.id, key.name, key.project, key.is_operator, key.created, key.revoked)
        written = dump_caps(caps) if caps else None
        if (
            await self._pool.fetch_value(_ADD_KEY, *facts, hashed, key_scope(key.id), written)
            is None
        ):
            raise duplicate_name_error(key.name)

    async def keys(self) -> list[ApiKey]:
        rows = await self._pool.fetch_rows(f"SELECT {_KEY} FROM brim.keys ORDER BY created, id")
        return [_to_key(row) for row in rows]

    async def access(self, hashed: str) -> Access | None:
        row = await self._pool.fetch_row(_ACCESS, hashed)
        return None if row is None else _to_access(row)

    async def revoke(self, name: str) -> ApiKey:
        row = await self._pool.fetch_row(_REVOKE, name)
        if row is None:
            raise no_active_key_error(name)
        return _to_key(row)

    async def set_caps(self, scope: str, caps: Sequence[Cap]) -> None:
        if caps:
            await self._pool.fetch_value(_SET_CAPS, scope, dump_caps(caps))
        else:
            await self._pool.fetch_value("DELETE FROM brim.caps WHERE scope = $1", scope)

    async def caps(self) -> dict[str, tuple[Cap, ...]]:
        rows = await self._pool.fetch_rows("SELECT scope, list FROM brim.caps ORDER BY scope")
        return {row["scope"]: load_caps(row["list"]) for row in rows}

    # Reservations

    async def reserve(
        self, reservation: Reservation, lease: float
    ) -> CapReached | ReservationInvalid | None:
        values, caps = (
            _reservation_values(clean_reservation(reservation)),
            _cap_columns(reservation),
        )
        step = _RESERVE_AS_SENT if reservation.is_sent else _RESERVE
        while True:
            row = await self._pool.fetch_row(step, *values, *caps, lease)
            assert row is not None
            # Each in its own transaction, because it waits for counters that others have locked.
            if row["rejection"] == "missing_counters":
                await self._pool.fetch_value("SELECT brim.create_counters($1, $2, $3)", *caps[:3])
            elif row["has_expired"]:
                await self._sweep(waits=True)
            else:
                return _to_rejection(reservation, row)

    async def mark_sent(self, id: str, lease: float) -> bool:
        return bool(
            await self._pool.fetch_value("SELECT brim.mark_sent($1, $2)", clean_text(id), lease)
        )

    async def renew(self, ids: Sequence[str], lease: float) -> None:
        if ids:
            names = [clean_text(id) for id in ids]
            await self._pool.fetch_value("SELECT brim.renew($1, $2)", names, lease)

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        # If an id comes twice the first counts, as if they came one after the other.
        kept = clean_settlements(settlements)
        once = {settlement.id: settlement for settlement in reversed(kept)}
        if once:
            rows = [(id, *_charge_values(s.charge), s.is_estimated) for id, s in once.items()]
            await self._pool.fetch_value(
                "SELECT brim.settle($1, $2, $3, $4, $5, $6, $7, $8)", *zip(*rows, strict=True)
            )

    async def sweep(self) -> int:
        return await self._sweep(waits=False)

    async def _sweep(self, *, waits: bool) -> int:
        expired = 0
        while True:
            some: int = await self._pool.fetch_value("SELECT brim.sweep($1, $2)", waits, _BATCH)
            expired += some
            if some < _BATCH:
                return expired

    # Reading

    async def counters(self) -> list[CapCounter]:
        return [_to_counter(row) for row in await self._pool.fetch_rows(_COUNTERS)]

    async def totals(
        self, by: Sequence[GroupBy], since: date | None = None, until: date | None = None
    ) -> list[LedgerTotal]:
        columns = [f"{name}::text" if name == "day" else name for name in by]
        rows = await self._pool.fetch_rows(
            f"SELECT {', '.join([*columns, _SUMS])} FROM brim.ledger WHERE {_WITHIN} "
            f"GROUP BY {', '.join(by) or '()'} HAVING count(*) > 0 "
            + (f"ORDER BY {', '.join(by)}" if by else ""),
            *(since, until),
            timeout=REPORT_SECONDS,
        )
        return [_to_total(row, by) for row in rows]

    async def rows(
        self, since: date | None = None, until: date | None = None
    ) -> AsyncIterator[LedgerRow]:
        last: tuple[object, ...] = (None, None, None)
        while True:
            page = await self._pool.fetch_rows(_ROWS, since, until, *last)
            for row in page:
                yield _to_row(row)
            if len(page) < _BATCH:
                return
            last = tuple(page[-1][name] for name in ("id", "day", "reserved_at"))


def _reservation_values(reservation: Reservation) -> tuple[object, ...]:
    names = (
        reservation.id,
        reservation.key,
        reservation.key_name,
        reservation.project,
        reservation.model,
        reservation.upstream,
    )
    return (*names, *_charge_values(reservation.max_charge))


def _cap_columns(reservation: Reservation) -> tuple[list[str], list[str], list[str], list[int]]:
    """Return the scopes, units, periods and limits of a reservation's caps."""
    return (
        [clean_text(scope) for scope, _ in reservation.caps],
        [cap.unit for _, cap in reservation.caps],
        [cap.period for _, cap in reservation.caps],
        [cap.limit for _, cap in reservation.caps],
    )


def _charge_values(charge: Charge) -> tuple[int, int, int, int, int, bool]:
    used = charge.usage
    tokens = (used.input, used.cached, used.output, used.written)
    return (*tokens, charge.micro_dollars, charge.is_unpriced)


def _to_rejection(
    reservation: Reservation, row: ResultRow
) -> CapReached | ReservationInvalid | None:
    if row["rejection"] is None:
        return None
    if row["rejection"] == "invalid":
        return ReservationInvalid()
    scope, cap = reservation.caps[row["cap_number"] - 1]
    opens = reset_time(cap.period, row["at"])
    return CapReached(scope, cap, row["spent"], row["reserved"], opens)


def _to_key(row: ResultRow) -> ApiKey:
    return ApiKey(*(row[name] for name in _KEY.split(", ")))


def _to_access(row: ResultRow) -> Access:
    key = _to_key(row)
    held = (
        (key_scope(key.id), row["key_caps"]),
        (project_scope(key.project), row["project_caps"]),
        (ALL, row["all_caps"]),
    )
    return Access(key, tuple((scope, cap) for scope, text in held for cap in load_caps(text)))


def _to_counter(row: ResultRow) -> CapCounter:
    return CapCounter(*(row[name] for name in ("scope", "unit", "period", "spent", "reserved")))


def _to_charge(row: ResultRow) -> Charge:
    usage = Usage(row["input"], row["cached"], row["output"], row["written"])
    return Charge(usage, row["micro_dollars"], row["is_unpriced"])


def _to_total(row: ResultRow, by: Sequence[GroupBy]) -> LedgerTotal:
    group = tuple(row[name] for name in by)
    return LedgerTotal(group, row["requests"], _to_charge(row), row["presumed"])


def _to_row(row: ResultRow) -> LedgerRow:
    return LedgerRow(
        id=row["id"],
        time=row["time"],
        day=row["day"].isoformat(),
        key=row["key"],
        key_name=row["key_name"],
        project=row["project"],
        model=row["model"],
        upstream=row["upstream"],
        charge=_to_charge(row),
        state=row["state"],
        is_estimated=row["is_estimated"],
    )
