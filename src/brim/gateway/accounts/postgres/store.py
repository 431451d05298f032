"""PostgresBooks: keys, caps and spending in PostgreSQL, for the replicas of a gateway.

What a step does stands in `postgres_1.sql`, as functions in the schema `brim`; here they are
called, one round trip each. The clock is the server's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import date
from typing import Final

from brim.gateway.accounts.bounds import clean_reservation, clean_settlements, clean_text
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
from brim.gateway.accounts.postgres.server import REPORT_SECONDS, PostgresPool, ResultRow
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
)
from brim.models.pricing import Usage

_BATCH: Final = 1_000
"""Leases that one sweep deals with, and rows of the ledger that are read at once."""

_KEY: Final = "id, name, project, is_operator, created, revoked"
_ADD_KEY: Final = (
    f"WITH added AS (INSERT INTO brim.keys ({_KEY}, hashed) "
    "VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING RETURNING id), capped AS "
    "(INSERT INTO brim.caps SELECT $8, $9::json FROM added WHERE $9::json IS NOT NULL) "
    "SELECT id FROM added"
)
_ACCESS: Final = (
    f"SELECT {_KEY}, (SELECT list FROM brim.caps WHERE scope = 'key:' || id) AS own, "
    "(SELECT list FROM brim.caps WHERE project <> '' AND scope = 'project:' || project) AS shared, "
    f"(SELECT list FROM brim.caps WHERE scope = '{ALL}') AS everyones "
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
_RESERVATION: Final = "($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)::brim.claim"
_RESERVE: Final = f"SELECT * FROM brim.reserve({_RESERVATION}, $13, $14, $15, $16, $17)"
# Both in one transaction: how long the lease is, the second one says.
_RESERVE_AS_SENT: Final = (
    "SELECT r.*, r.refusal IS NULL AND brim.forward($1, $17) AS is_forwarded "
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
    "SELECT *, extract(epoch FROM taken)::double precision AS time FROM brim.ledger "
    f"WHERE {_WITHIN} AND ($3::text IS NULL OR (day, taken, id) > ($4, $5, $3)) "
    f"ORDER BY day, taken, id LIMIT {_BATCH}"
)


class PostgresAccountStore:
    """Books in the schema `brim` of a PostgreSQL database, 14 or newer."""

    def __init__(self, url: str) -> None:
        self._server = PostgresPool(url)

    def __repr__(self) -> str:
        return f"PostgresBooks({self._server.place!r})"

    async def open(self) -> None:
        await self._server.open()

    async def close(self) -> None:
        await self._server.close()

    # Keys and caps

    async def add_key(self, key: ApiKey, hashed: str, caps: Sequence[Cap] = ()) -> None:
        facts = (key.id, key.name, key.project, key.is_operator, key.created, key.revoked)
        written = dump_caps(caps) if caps else None
        if await self._server.value(_ADD_KEY, *facts, hashed, key_scope(key.id), written) is None:
            raise duplicate_name_error(key.name)

    async def keys(self) -> list[ApiKey]:
        lines = await self._server.lines(f"SELECT {_KEY} FROM brim.keys ORDER BY created, id")
        return [_to_key(line) for line in lines]

    async def access(self, hashed: str) -> Access | None:
        line = await self._server.line(_ACCESS, hashed)
        return None if line is None else _to_access(line)

    async def revoke(self, name: str) -> ApiKey:
        line = await self._server.line(_REVOKE, name)
        if line is None:
            raise no_active_key_error(name)
        return _to_key(line)

    async def set_caps(self, scope: str, caps: Sequence[Cap]) -> None:
        if caps:
            await self._server.value(_SET_CAPS, scope, dump_caps(caps))
        else:
            await self._server.value("DELETE FROM brim.caps WHERE scope = $1", scope)

    async def caps(self) -> dict[str, tuple[Cap, ...]]:
        lines = await self._server.lines("SELECT scope, list FROM brim.caps ORDER BY scope")
        return {line["scope"]: load_caps(line["list"]) for line in lines}

    # Claims

    async def reserve(
        self, claim: Reservation, lease: float
    ) -> CapReached | ReservationInvalid | None:
        who, caps = _reservation_values(clean_reservation(claim)), _cap_columns(claim)
        step = _RESERVE_AS_SENT if claim.is_forwarded else _RESERVE
        while True:
            line = await self._server.line(step, *who, *caps, lease)
            assert line is not None
            # Each in a transaction of its own, because it waits for counters that others hold.
            if line["refusal"] == "early":
                await self._server.value("SELECT brim.begin_counters($1, $2, $3)", *caps[:3])
            elif line["is_overdue"]:
                await self._sweep(waits=True)
            else:
                return _to_rejection(claim, line)

    async def forward(self, id: str, lease: float) -> bool:
        return bool(await self._server.value("SELECT brim.forward($1, $2)", clean_text(id), lease))

    async def renew(self, ids: Sequence[str], lease: float) -> None:
        if ids:
            names = [clean_text(id) for id in ids]
            await self._server.value("SELECT brim.renew($1, $2)", names, lease)

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        # The first of two by one name counts, as if they had come one after the other.
        kept = clean_settlements(settlements)
        once = {settlement.id: settlement for settlement in reversed(kept)}
        if once:
            lines = [(id, *_charge_values(s.bill), s.is_counted) for id, s in once.items()]
            await self._server.value(
                "SELECT brim.settle($1, $2, $3, $4, $5, $6, $7, $8)", *zip(*lines, strict=True)
            )

    async def sweep(self) -> int:
        return await self._sweep(waits=False)

    async def _sweep(self, *, waits: bool) -> int:
        over = 0
        while True:
            some: int = await self._server.value("SELECT brim.sweep($1, $2)", waits, _BATCH)
            over += some
            if some < _BATCH:
                return over

    # Reading

    async def counters(self) -> list[CapCounter]:
        return [_to_counter(line) for line in await self._server.lines(_COUNTERS)]

    async def spent(
        self, by: Sequence[GroupBy], since: date | None = None, until: date | None = None
    ) -> list[LedgerTotal]:
        columns = [f"{name}::text" if name == "day" else name for name in by]
        lines = await self._server.lines(
            f"SELECT {', '.join([*columns, _SUMS])} FROM brim.ledger WHERE {_WITHIN} "
            f"GROUP BY {', '.join(by) or '()'} HAVING count(*) > 0 "
            + (f"ORDER BY {', '.join(by)}" if by else ""),
            *(since, until),
            timeout=REPORT_SECONDS,
        )
        return [_to_total(line, by) for line in lines]

    async def rows(
        self, since: date | None = None, until: date | None = None
    ) -> AsyncIterator[LedgerRow]:
        last: tuple[object, ...] = (None, None, None)
        while True:
            page = await self._server.lines(_ROWS, since, until, *last)
            for line in page:
                yield _to_row(line)
            if len(page) < _BATCH:
                return
            last = tuple(page[-1][name] for name in ("id", "day", "taken"))


def _reservation_values(claim: Reservation) -> tuple[object, ...]:
    names = (claim.id, claim.key, claim.key_name, claim.project, claim.model, claim.upstream)
    return (*names, *_charge_values(claim.worst))


def _cap_columns(claim: Reservation) -> tuple[list[str], list[str], list[str], list[int]]:
    """The caps of a claim: their scopes, units, periods, and how much each of them is."""
    return (
        [clean_text(scope) for scope, _ in claim.caps],
        [cap.unit for _, cap in claim.caps],
        [cap.period for _, cap in claim.caps],
        [cap.most for _, cap in claim.caps],
    )


def _charge_values(bill: Charge) -> tuple[int, int, int, int, int, bool]:
    used = bill.usage
    tokens = (used.input, used.cached, used.output, used.written)
    return (*tokens, bill.micro_dollars, bill.is_unpriced)


def _to_rejection(claim: Reservation, line: ResultRow) -> CapReached | ReservationInvalid | None:
    if line["refusal"] is None:
        return None
    if line["refusal"] == "unknown":
        return ReservationInvalid()
    scope, cap = claim.caps[line["place"] - 1]
    opens = reset_time(cap.period, line["at"])
    return CapReached(scope, cap, line["spent"], line["reserved"], opens)


def _to_key(line: ResultRow) -> ApiKey:
    return ApiKey(*(line[name] for name in _KEY.split(", ")))


def _to_access(line: ResultRow) -> Access:
    key = _to_key(line)
    held = (
        (key_scope(key.id), line["own"]),
        (project_scope(key.project), line["shared"]),
        (ALL, line["everyones"]),
    )
    return Access(key, tuple((scope, cap) for scope, text in held for cap in load_caps(text)))


def _to_counter(line: ResultRow) -> CapCounter:
    return CapCounter(*(line[name] for name in ("scope", "unit", "period", "spent", "reserved")))


def _to_charge(line: ResultRow) -> Charge:
    usage = Usage(line["input"], line["cached"], line["output"], line["written"])
    return Charge(usage, line["micro_dollars"], line["is_unpriced"])


def _to_total(line: ResultRow, by: Sequence[GroupBy]) -> LedgerTotal:
    on = tuple(line[name] for name in by)
    return LedgerTotal(on, line["requests"], _to_charge(line), line["presumed"])


def _to_row(line: ResultRow) -> LedgerRow:
    return LedgerRow(
        id=line["id"],
        time=line["time"],
        day=line["day"].isoformat(),
        key=line["key"],
        key_name=line["key_name"],
        project=line["project"],
        model=line["model"],
        upstream=line["upstream"],
        bill=_to_charge(line),
        state=line["state"],
        is_counted=line["is_counted"],
    )
