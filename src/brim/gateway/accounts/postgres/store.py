"""The account store in PostgreSQL, for several gateways.

The operations are functions in the schema `brim` (`schema_1.sql`), called in one round trip each.
The clock is the server's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import date
from typing import Final

from brim.gateway.accounts.audit import AuditEntry
from brim.gateway.accounts.caps import ALL, Cap, dump_caps, key_scope, load_caps, reset_time
from brim.gateway.accounts.keys import (
    Access,
    ApiKey,
    KeyRules,
    duplicate_name_error,
    no_active_key_error,
)
from brim.gateway.accounts.postgres.pool import REPORT_SECONDS, PostgresPool
from brim.gateway.accounts.postgres.upkeep import PostgresUpkeep
from brim.gateway.accounts.rates import (
    Admission,
    RateCounts,
    RateReached,
    RateUse,
    seconds_until_room,
)
from brim.gateway.accounts.reservations import (
    OVER_ANY_CAP,
    CapCounter,
    CapReached,
    GroupBy,
    LedgerRow,
    Rejection,
    Reservation,
    ReservationInvalid,
    Settlement,
    clean_reservation,
    clean_settlements,
    clean_text,
    to_spending_row,
)
from brim.models.pricing import SpendingRow

_BATCH: Final = 1_000
"""Leases that one sweep ends, and rows of the ledger that are read in one query."""

_KEY: Final = "id, name, project, is_operator, created, revoked, rules"
_ADD_KEY: Final = (
    f"WITH added AS (INSERT INTO brim.keys ({_KEY}) SELECT $1, $2, $3, $4, $5, $6, $7 "
    "WHERE NOT EXISTS (SELECT FROM brim.secrets WHERE hashed = $8) "
    "ON CONFLICT DO NOTHING RETURNING id), "
    "secret AS (INSERT INTO brim.secrets SELECT $8, id FROM added), capped AS "
    "(INSERT INTO brim.caps SELECT $9, $10::json FROM added WHERE $10::json IS NOT NULL) "
    "SELECT id FROM added"
)
_ACCESS: Final = (
    f"SELECT {_KEY}, (SELECT list FROM brim.caps WHERE scope = 'key:' || id), "
    "(SELECT list FROM brim.caps WHERE project <> '' AND scope = 'project:' || project), "
    f"(SELECT list FROM brim.caps WHERE scope = '{ALL}'), "
    "(SELECT list FROM brim.caps WHERE scope = 'users:' || id) "
    "FROM brim.secrets JOIN brim.keys ON id = key "
    "WHERE hashed = $1 AND expires > brim.clock() AND revoked IS NULL"
)
# The new secret may be there already, if this is a retry.
_ROTATE: Final = (
    f"WITH k AS (SELECT {_KEY} FROM brim.keys "
    "WHERE revoked IS NULL AND (name = $1 OR id = $1) ORDER BY name = $1 DESC LIMIT 1), "
    "ended AS (UPDATE brim.secrets s SET expires = least(s.expires, brim.clock() + "
    "brim.seconds($3)) FROM k WHERE s.key = k.id AND s.hashed <> $2), "
    "added AS (INSERT INTO brim.secrets SELECT $2, id FROM k ON CONFLICT DO NOTHING) "
    "SELECT * FROM k"
)
_UPDATE_KEY: Final = (
    "UPDATE brim.keys SET {change} "
    "WHERE revoked IS NULL AND id = (SELECT id FROM brim.keys "
    "WHERE revoked IS NULL AND (name = $1 OR id = $1) ORDER BY name = $1 DESC LIMIT 1) "
    f"RETURNING {_KEY}"
)
_SET_CAPS: Final = (
    "INSERT INTO brim.caps VALUES ($1, $2::json) ON CONFLICT (scope) DO UPDATE SET list = $2::json"
)
_AUDIT: Final = "id, time, actor, action, subject, details"
_ADD_AUDIT_ENTRY: Final = (
    f"INSERT INTO brim.audit ({_AUDIT}) VALUES ($1, $2, $3, $4, $5, $6::json) "
    "ON CONFLICT DO NOTHING"
)
_RESERVATION: Final = "($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)::brim.reservation"
_CAPS: Final = "$14, $15, $16, $17, $18, $19, $20"
_RESERVE: Final = f"SELECT * FROM brim.reserve({_RESERVATION}, {_CAPS}, $21, $22)"
_COUNTERS: Final = (
    "SELECT c.scope, c.unit, c.period, c.spent, c.reserved "
    "FROM brim.counters c, (SELECT brim.clock() - brim.seconds($1) AS now) AS t "
    "WHERE c.period = ANY (brim.periods(t.now)) "
    "AND (c.scope NOT LIKE 'user:%' OR c.spent >= $2) "
    "ORDER BY c.scope || '/' || c.period || '/' || c.unit"
)
_RATE_COUNTS: Final = (
    "SELECT brim.rate_used($1, unit, null, brim.clock()) "
    "FROM unnest(ARRAY['requests', 'tokens', 'concurrent']) AS unit"
)
_SECONDS: Final = (
    "SELECT second, {unit} FROM brim.rates "
    "WHERE scope = $1 AND second > floor($2::double precision) - brim.window_seconds()"
)
_SUMS: Final = (
    "count(*), sum(input)::bigint, sum(cached)::bigint, sum(output)::bigint, "
    "sum(written)::bigint, sum(micro_dollars)::bigint, bool_or(is_unpriced), "
    "count(*) FILTER (WHERE state = 'presumed')"
)
_WITHIN: Final = "day BETWEEN coalesce($1, '-infinity'::date) AND coalesce($2, 'infinity'::date)"
_ROWS: Final = (
    "SELECT day, reserved_at, id, extract(epoch FROM reserved_at)::double precision, "
    "to_char(day, 'YYYY-MM-DD'), key, key_name, project, model, upstream, end_user, "
    "input, cached, output, written, micro_dollars, is_unpriced, state, is_estimated "
    f"FROM brim.ledger WHERE {_WITHIN} "
    "AND ($3::date IS NULL OR (day, reserved_at, id) > ($3, $4, $5)) "
    f"ORDER BY day, reserved_at, id LIMIT {_BATCH}"
)


class PostgresAccountStore(PostgresUpkeep):
    """An account store in the schema `brim` of a PostgreSQL database, version 14 or newer."""

    def __init__(self, url: str) -> None:
        self._pool = PostgresPool(url)

    def __repr__(self) -> str:
        return f"PostgresAccountStore({self._pool.location})"

    async def open(self) -> None:
        await self._pool.open()

    async def close(self) -> None:
        await self._pool.close()

    # Keys and caps

    async def add_key(self, key: ApiKey, hashed: str, caps: Sequence[Cap] = ()) -> None:
        columns = (*key.columns, hashed, key_scope(key.id), dump_caps(caps) if caps else None)
        if await self._pool.fetch_value(_ADD_KEY, *columns) is None:
            raise duplicate_name_error(key.name)

    async def keys(self) -> list[ApiKey]:
        rows = await self._pool.fetch_rows(f"SELECT {_KEY} FROM brim.keys ORDER BY created, id")
        return [ApiKey.of(row) for row in rows]

    async def access(self, hashed: str) -> Access | None:
        row = await self._pool.fetch_row(_ACCESS, hashed)
        return None if row is None else Access.of(row)

    async def revoke(self, name: str) -> ApiKey:
        return await self._update_key("revoked = extract(epoch FROM brim.clock())", name)

    async def rotate(self, name: str, hashed: str, overlap: float) -> ApiKey:
        return _to_key(name, await self._pool.fetch_row(_ROTATE, name, hashed, overlap))

    async def set_rules(self, name: str, rules: KeyRules) -> ApiKey:
        return await self._update_key("rules = $2", name, rules.dump())

    async def _update_key(self, change: str, name: str, *values: object) -> ApiKey:
        statement = _UPDATE_KEY.replace("{change}", change)
        return _to_key(name, await self._pool.fetch_row(statement, name, *values))

    async def set_caps(self, scope: str, caps: Sequence[Cap]) -> None:
        if caps:
            await self._pool.fetch_value(_SET_CAPS, scope, dump_caps(caps))
        else:
            await self._pool.fetch_value("DELETE FROM brim.caps WHERE scope = $1", scope)

    async def caps(self) -> dict[str, tuple[Cap, ...]]:
        rows = await self._pool.fetch_rows("SELECT scope, list FROM brim.caps ORDER BY scope")
        return {scope: load_caps(text) for scope, text in rows}

    # The audit log

    async def add_audit_entry(self, entry: AuditEntry) -> None:
        await self._pool.fetch_value(_ADD_AUDIT_ENTRY, *entry.columns)

    async def audit_entries(self, last: int) -> list[AuditEntry]:
        statement = f"SELECT {_AUDIT} FROM brim.audit ORDER BY time DESC, id DESC LIMIT $1"
        return [AuditEntry.of(row) for row in await self._pool.fetch_rows(statement, last)]

    # Reservations

    async def reserve(self, reservation: Reservation, lease: float) -> Rejection | Admission | None:
        kept = clean_reservation(reservation)
        caps, rates = _split_caps(kept)
        values = (kept.id, *kept.names, *kept.max_charge.figures, *_cap_columns(caps))
        while True:
            limits = _rate_columns(rates)
            row = await self._pool.fetch_row(_RESERVE, *values, *limits, lease, kept.is_sent)
            assert row is not None
            # Each in its own transaction, because it waits for counters that others have locked.
            if row["rejection"] == "missing_counters":
                names = _cap_columns(caps)[:3]
                await self._pool.fetch_value("SELECT brim.create_counters($1, $2, $3)", *names)
            elif row["has_expired"]:
                await self._sweep(waits=True)
            elif row["rejection"] is None:
                return _to_admission(kept, rates, row["used"])
            elif row["rejection"] == "invalid":
                return ReservationInvalid()
            elif row["rejection"] == "rate_reached":
                index = row["cap_number"] - 1
                scope, cap = rates[index]
                use = RateUse(scope, cap, row["used"][index])
                return await self._to_rate_reached(kept, use, row["at"])
            else:
                scope, cap = caps[row["cap_number"] - 1]
                counted = row["spent"], row["reserved"]
                return CapReached(scope, cap, *counted, reset_time(cap.period, row["at"]))

    async def _to_rate_reached(
        self, reservation: Reservation, use: RateUse, now: float
    ) -> RateReached:
        scope, cap, used = use
        if cap.period == "now":
            return RateReached(scope, cap, used, 0.0)
        counted = await self._pool.fetch_rows(_SECONDS.replace("{unit}", cap.unit), scope, now)
        amount = reservation.max_charge.amount(cap.unit)
        pairs = [(int(second), int(each)) for second, each in counted]
        return RateReached(scope, cap, used, seconds_until_room(pairs, amount, cap.limit, now))

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
            rows = [(id, *s.charge.figures, s.is_estimated) for id, s in once.items()]
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

    async def counters(self, ago: float = 0.0, users_from: int = OVER_ANY_CAP) -> list[CapCounter]:
        rows = await self._pool.fetch_rows(_COUNTERS, ago, users_from)
        return [CapCounter(*row) for row in rows]

    async def rate_counts(self, scope: str) -> RateCounts:
        return RateCounts(*[row[0] for row in await self._pool.fetch_rows(_RATE_COUNTS, scope)])

    async def totals(
        self, by: Sequence[GroupBy], since: date | None = None, until: date | None = None
    ) -> list[SpendingRow]:
        names = ["end_user" if name == "user" else name for name in by]
        columns = [f"{name}::text" if name == "day" else name for name in names]
        rows = await self._pool.fetch_rows(
            f"SELECT {', '.join([*columns, _SUMS])} FROM brim.ledger WHERE {_WITHIN} "
            f"GROUP BY {', '.join(names) or '()'} HAVING count(*) > 0 "
            + (f"ORDER BY {', '.join(names)}" if by else ""),
            *(since, until),
            timeout=REPORT_SECONDS,
        )
        width = len(by)
        return [to_spending_row(row[:width], row[width:]) for row in rows]

    async def rows(
        self, since: date | None = None, until: date | None = None
    ) -> AsyncIterator[LedgerRow]:
        last: Sequence[object] = (None, None, None)
        while True:
            page = await self._pool.fetch_rows(_ROWS, since, until, *last)
            for row in page:
                yield LedgerRow.of(row[2:])
            if len(page) < _BATCH:
                return
            last = page[-1][:3]


def _to_key(name: str, row: Sequence[object] | None) -> ApiKey:
    if row is None:
        raise no_active_key_error(name)
    return ApiKey.of(row)


_ScopedCaps = Sequence[tuple[str, Cap]]


def _split_caps(reservation: Reservation) -> tuple[_ScopedCaps, _ScopedCaps]:
    """Return the caps on spending and the rate limits."""
    caps = [(scope, cap) for scope, cap in reservation.caps if not cap.is_rate]
    return caps, [(scope, cap) for scope, cap in reservation.caps if cap.is_rate]


def _cap_columns(caps: _ScopedCaps) -> tuple[list[str], list[str], list[str], list[int]]:
    """Return the scopes, units, periods and limits of caps."""
    return (
        [scope for scope, _ in caps],
        [cap.unit for _, cap in caps],
        [cap.period for _, cap in caps],
        [cap.limit for _, cap in caps],
    )


def _rate_columns(rates: _ScopedCaps) -> tuple[list[str], list[str], list[int]]:
    """Return the scopes, units and limits of rate limits."""
    units = ["concurrent" if cap.period == "now" else cap.unit for _, cap in rates]
    return [scope for scope, _ in rates], units, [cap.limit for _, cap in rates]


def _to_admission(
    reservation: Reservation, rates: _ScopedCaps, used: Sequence[int]
) -> Admission | None:
    charge = reservation.max_charge
    uses = [
        RateUse(scope, cap, before + charge.amount(cap.unit))
        for (scope, cap), before in zip(rates, used, strict=True)
    ]
    return Admission(tuple(uses)) if uses else None
