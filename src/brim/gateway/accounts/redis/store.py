"""The account store in Redis or Valkey, for several gateways.

Every operation is one script (`lua/`), which the server runs atomically on its own clock. The top
of `lua/common.lua` describes the stored data.

Redis replies before a disk or a replica has the data. A server that loses its memory, or fails over
to a replica that lags behind, has lost the last moments of the ledger; with `appendonly yes` that
is at most one second. A server that lost everything has lost the keys too, so nothing is spent.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import date
from operator import add
from typing import Any, Final, cast

from brim.errors import AccountStoreError
from brim.gateway.accounts.audit import AuditEntry
from brim.gateway.accounts.caps import Cap, Unit, counter_name, dump_caps, load_caps
from brim.gateway.accounts.keys import (
    Access,
    ApiKey,
    KeyRules,
    duplicate_name_error,
    no_active_key_error,
)
from brim.gateway.accounts.rates import (
    Admission,
    RateCounts,
    RateReached,
    RateUse,
    seconds_until_room,
)
from brim.gateway.accounts.redis.script_runner import ScriptRunner, dump_charge, dump_list, pairs
from brim.gateway.accounts.redis.upkeep import RedisUpkeep
from brim.gateway.accounts.reservations import (
    OVER_ANY_CAP,
    CapCounter,
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

_PAGE: Final = 500
"""Rows or days of the ledger that are read in one call."""
_NO_SUMS: Final = (0,) * 8
"""Requests, the figures of a charge, and presumed requests."""


class RedisAccountStore(RedisUpkeep):
    """An account store at a URL: `redis://user:password@host:6379/0`, rediss, valkey(s), unix."""

    def __init__(self, url: str) -> None:
        self._runner = ScriptRunner(url)
        self._is_ready = False
        self._opening = asyncio.Lock()

    def __repr__(self) -> str:
        return f"RedisAccountStore({self._runner.location})"

    async def open(self) -> None:
        async with self._opening:
            if not self._is_ready:
                await self._check_eviction()
                await self._migrate()
                self._is_ready = True

    async def close(self) -> None:
        self._is_ready = False
        await self._runner.close()

    # Keys and caps

    async def add_key(self, key: ApiKey, hashed: str, caps: Sequence[Cap] = ()) -> None:
        # The last value distinguishes a retry from a second call.
        facts = [key.name, key.project, key.is_operator, key.created, secrets.token_hex(8)]
        texts = (dump_caps(caps) if caps else "", key.rules.dump())
        if not await self._run("add_key", key.id, key.name, hashed, json.dumps(facts), *texts):
            raise duplicate_name_error(key.name)

    async def keys(self) -> list[ApiKey]:
        found = [_to_key(*one) for one in await self._run("keys")]
        return sorted(found, key=lambda key: (key.created, key.id))

    async def access(self, hashed: str) -> Access | None:
        found = await self._run("access", hashed)
        if found is None:
            return None
        id, facts, rules, *caps = found
        return Access.of((*_to_key(id, facts, rules).columns, *caps))

    async def revoke(self, name: str) -> ApiKey:
        return await self._update_key("revoke", name, secrets.token_hex(8))

    async def set_rules(self, name: str, rules: KeyRules) -> ApiKey:
        return await self._update_key("set_rules", name, rules.dump())

    async def rotate(self, name: str, hashed: str, overlap: float) -> ApiKey:
        return await self._update_key("rotate", name, hashed, str(overlap))

    async def _update_key(self, script: str, name: str, *values: str) -> ApiKey:
        id = await self._ask("HGET", "names", name) or name
        found = await self._run(script, id, *values)
        if found is None:
            raise no_active_key_error(name)
        return _to_key(*found)

    async def set_caps(self, scope: str, caps: Sequence[Cap]) -> None:
        if caps:
            await self._ask("HSET", "caps", scope, dump_caps(caps))
        else:
            await self._ask("HDEL", "caps", scope)

    async def caps(self) -> dict[str, tuple[Cap, ...]]:
        found = pairs(await self._ask("HGETALL", "caps"))
        return {scope: load_caps(text) for scope, text in sorted(found)}

    # The audit log

    async def add_audit_entry(self, entry: AuditEntry) -> None:
        # A member is unique by its id, so a retry changes nothing.
        await self._ask("ZADD", "audit", "NX", repr(entry.time), json.dumps(entry.columns))

    async def audit_entries(self, last: int) -> list[AuditEntry]:
        found = await self._ask("ZREVRANGE", "audit", "0", str(last - 1))
        return [AuditEntry.of(json.loads(text)) for text in found]

    # Reservations

    async def reserve(self, reservation: Reservation, lease: float) -> Rejection | Admission | None:
        arguments = tuple(_reservation_arguments(clean_reservation(reservation), lease))
        outcome, *numbers = await self._run("reserve", *arguments)
        while outcome == "again":
            outcome, *numbers = await self._run("reserve", *arguments)
        if outcome == "cap_reached":
            index, spent, reserved, now = numbers
            return reservation.cap_reached(index, int(spent), int(reserved), float(now))
        if outcome == "rate_reached":
            return _to_rate_reached(reservation, *numbers)
        if outcome == "invalid":
            return ReservationInvalid()
        return _to_admission(reservation, numbers)

    async def mark_sent(self, id: str, lease: float) -> bool:
        return bool(await self._run("mark_sent", clean_text(id), str(lease)))

    async def renew(self, ids: Sequence[str], lease: float) -> None:
        if ids:
            await self._run("renew", str(lease), *map(clean_text, ids))

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        arguments = [
            value
            for one in clean_settlements(settlements)
            for value in (one.id, dump_charge(one.charge), json.dumps(one.is_estimated))
        ]
        if arguments:
            await self._run("settle", *arguments)

    async def sweep(self) -> int:
        expired = 0
        while some := int(await self._run("sweep")):
            expired += some
        return expired

    # Reading

    async def counters(self, ago: float = 0.0, users_from: int = OVER_ANY_CAP) -> list[CapCounter]:
        found = [
            _to_counter(period, field, text)
            for period, fields in await self._run("counters", str(ago))
            for field, text in pairs(fields)
            if "/user:" not in field or int(text.partition(" ")[0]) >= users_from
        ]
        return sorted(found, key=lambda one: counter_name(one.scope, one.unit, one.period))

    async def rate_counts(self, scope: str) -> RateCounts:
        return RateCounts(*map(int, await self._run("rates", scope)))

    async def totals(
        self, by: Sequence[GroupBy], since: date | None = None, until: date | None = None
    ) -> list[SpendingRow]:
        sums: defaultdict[tuple[str, ...], tuple[int, ...]] = defaultdict(lambda: _NO_SUMS)
        for days in _pages(await self._days(since, until)):
            for day, groups in await self._run("totals", *days):
                for name, text in pairs(groups):
                    if name.startswith("@"):
                        continue
                    group, numbers = _parse_total(by, day, name, text)
                    sums[group] = tuple(map(add, sums[group], numbers))
        return [to_spending_row(group, sums[group]) for group in sorted(sums)]

    async def rows(
        self, since: date | None = None, until: date | None = None
    ) -> AsyncIterator[LedgerRow]:
        for day in await self._days(since, until):
            # A row begins with its time, which has the same length in all rows.
            for text, id in sorted(await self._rows_of(day)):
                time, state, is_estimated, figures, names = json.loads(text)
                yield LedgerRow.of((id, time, day, *names, *figures, state, is_estimated))

    async def _days(self, since: date | None, until: date | None) -> list[str]:
        first = since.isoformat() if since else ""
        last = until.isoformat() if until else "9999-12-31"
        return sorted(day for day in await self._ask("SMEMBERS", "days") if first <= day <= last)

    async def _rows_of(self, day: str) -> list[tuple[str, str]]:
        """Return the rows of a day with their ids, in pages so as not to block other clients."""
        found: list[tuple[str, str]] = []
        for ids in _pages(await self._ask("HKEYS", f"rows:{day}")):
            texts = await self._ask("HMGET", f"rows:{day}", *ids)
            found += [(text, id) for text, id in zip(texts, ids, strict=True) if text]
        return found

    # The server

    async def _run(self, script: str, *arguments: str) -> Any:
        if not self._is_ready:
            await self.open()
        return await self._runner.run(script, *arguments)

    async def _ask(self, command: str, name: str, *arguments: str) -> Any:
        if not self._is_ready:
            await self.open()
        return await self._runner.run_command(command, name, *arguments)

    async def _check_eviction(self) -> None:
        """Raise `AccountStoreError` if the server evicts keys when its memory is full.

        Policies that evict only keys with an expiry are safe: of brim's keys only counters have
        one, and these are summed again.
        """
        policy = await self._runner.setting("maxmemory-policy") or ""
        if policy.startswith("allkeys"):
            raise AccountStoreError(
                f"Redis at {self._runner.location} evicts keys when its memory is full: "
                f"maxmemory-policy is {policy}. Set it to noeviction."
            )

    async def _migrate(self) -> None:
        layout, known = await self._runner.run("layout")
        if layout > known:
            raise AccountStoreError(
                f"The data in Redis at {self._runner.location} is newer than this brim: layout "
                f"{layout}, supported {known}. Upgrade brim."
            )


# Arguments of scripts


def _reservation_arguments(reservation: Reservation, lease: float) -> Iterator[str]:
    yield reservation.id
    yield str(lease)
    yield reservation.key
    yield dump_charge(reservation.max_charge)
    yield dump_list(reservation.names)
    yield "sent" if reservation.is_sent else "reserved"
    for scope, cap in reservation.caps:
        yield from (f"{cap.period}/{cap.unit}/{scope}", str(cap.limit))


# Results of scripts


def _to_key(id: str, facts: str, rules: str | None, revoked: str | None = None) -> ApiKey:
    name, project, is_operator, created, _ = json.loads(facts)
    ended = None if revoked is None else float(revoked.split()[0])
    return ApiKey(id, name, project, is_operator, created, ended, KeyRules.load(rules))


def _to_counter(period: str, field: str, text: str) -> CapCounter:
    unit, _, scope = field.partition("/")
    spent, reserved = text.split()
    return CapCounter(scope, cast("Unit", unit), period, int(spent), int(reserved))


def _to_rate_reached(
    reservation: Reservation, index: int, used: str, now: str, *fields: str
) -> RateReached:
    scope, cap = reservation.caps[index]
    if cap.period == "now":
        return RateReached(scope, cap, int(used), 0.0)
    counted = [
        (int(name.partition("/")[2]), int(number))
        for name, number in pairs(fields)
        if name.startswith(cap.unit)
    ]
    amount = reservation.max_charge.amount(cap.unit)
    wait = seconds_until_room(counted, amount, cap.limit, float(now))
    return RateReached(scope, cap, int(used), wait)


def _to_admission(reservation: Reservation, used: Sequence[str]) -> Admission | None:
    rates = [(scope, cap) for scope, cap in reservation.caps if cap.is_rate]
    pairs = zip(rates, used, strict=True)
    uses = tuple(RateUse(scope, cap, int(number)) for (scope, cap), number in pairs)
    return Admission(uses) if uses else None


def _parse_total(
    by: Sequence[GroupBy], day: str, name: str, text: str
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the group and the sums of one total of a day; its name has the common values."""
    state = name[: name.index("[")]
    key, _, project, model, upstream, user = json.loads(name[len(state) :])
    facts: dict[GroupBy, str] = {"day": day, "key": key, "project": project, "model": model}
    facts |= {"upstream": upstream, "user": user, "state": state}
    requests, *figures = json.loads(text)
    presumed = requests if state == "presumed" else 0
    return tuple(facts[one] for one in by), (requests, *figures, presumed)


def _pages(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), _PAGE):
        yield names[start : start + _PAGE]
