"""Books in a Redis or Valkey server, for several gateways on several machines.

Every step is one script (`lua/`), which the server runs whole and alone, on its own clock. What is
stored, and how, is told at the top of `lua/books.lua`.

Redis answers before a disk or another server has what was written. One that loses its memory, or
hands over to a copy that lags behind, has lost the last moments of the ledger; `appendonly yes`
makes that a second at most. One that lost everything has lost the keys too, so nothing is spent.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from datetime import date
from typing import Any, Final

from brim.errors import AccountStoreError
from brim.gateway.accounts.bounds import clean_reservation, clean_settlements, clean_text
from brim.gateway.accounts.caps import Cap, counter_name, dump_caps, load_caps, reset_time
from brim.gateway.accounts.keys import Access, ApiKey, duplicate_name_error, no_active_key_error
from brim.gateway.accounts.redis.scripts import ScriptRunner
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

_PAGE: Final = 500
"""Rows of the ledger, or days of it, that are read at once."""


class RedisAccountStore:
    """Books at a URL: `redis://user:password@host:6379/0`, also rediss, valkey, valkeys, unix."""

    def __init__(self, url: str) -> None:
        self._calls = ScriptRunner(url)
        self._is_ready = False
        self._opening = asyncio.Lock()

    def __repr__(self) -> str:
        return f"RedisBooks({self._calls.place})"

    async def open(self) -> None:
        async with self._opening:
            if not self._is_ready:
                await self._check_eviction()
                await self._bring_up_to_date()
                self._is_ready = True

    async def close(self) -> None:
        self._is_ready = False
        await self._calls.close()

    # Keys and caps

    async def add_key(self, key: ApiKey, hashed: str, caps: Sequence[Cap] = ()) -> None:
        # The last word tells a call that is made twice from a second one.
        facts = [key.name, key.project, key.is_operator, key.created, secrets.token_hex(8)]
        held = dump_caps(caps) if caps else ""
        if not await self._run("add_key", key.id, key.name, hashed, json.dumps(facts), held):
            raise duplicate_name_error(key.name)

    async def keys(self) -> list[ApiKey]:
        found = [_to_key(*one) for one in await self._run("keys")]
        return sorted(found, key=lambda key: (key.created, key.id))

    async def access(self, hashed: str) -> Access | None:
        found = await self._run("access", hashed)
        if found is None:
            return None
        id, facts, *scopes = found
        held = ((scope, cap) for scope, text in scopes for cap in load_caps(text))
        return Access(_to_key(id, facts), tuple(held))

    async def revoke(self, name: str) -> ApiKey:
        id = await self._ask("HGET", "names", name) or name
        found = await self._run("revoke", id, secrets.token_hex(8))
        if found is None:
            raise no_active_key_error(name)
        return _to_key(*found)

    async def set_caps(self, scope: str, caps: Sequence[Cap]) -> None:
        if caps:
            await self._ask("HSET", "caps", scope, dump_caps(caps))
        else:
            await self._ask("HDEL", "caps", scope)

    async def caps(self) -> dict[str, tuple[Cap, ...]]:
        found = _pairs(await self._ask("HGETALL", "caps"))
        return {scope: load_caps(text) for scope, text in sorted(found)}

    # Claims

    async def reserve(
        self, claim: Reservation, lease: float
    ) -> CapReached | ReservationInvalid | None:
        words = tuple(_reservation_arguments(clean_reservation(claim), lease))
        verdict, *numbers = await self._run("reserve", *words)
        while verdict == "again":
            verdict, *numbers = await self._run("reserve", *words)
        if verdict == "full":
            return _to_cap_reached(claim, *numbers)
        return ReservationInvalid() if verdict == "unknown" else None

    async def forward(self, id: str, lease: float) -> bool:
        return bool(await self._run("forward", clean_text(id), str(lease)))

    async def renew(self, ids: Sequence[str], lease: float) -> None:
        if ids:
            await self._run("renew", str(lease), *map(clean_text, ids))

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        words = [
            word
            for one in clean_settlements(settlements)
            for word in (one.id, _dump_charge(one.bill), json.dumps(one.is_counted))
        ]
        if words:
            await self._run("settle", *words)

    async def sweep(self) -> int:
        over = 0
        while some := int(await self._run("sweep")):
            over += some
        return over

    # Reading

    async def counters(self) -> list[CapCounter]:
        found = [
            _to_counter(period, field, text)
            for period, fields in await self._run("counters")
            for field, text in _pairs(fields)
        ]
        return sorted(found, key=lambda one: counter_name(one.scope, one.unit, one.period))

    async def spent(
        self, by: Sequence[GroupBy], since: date | None = None, until: date | None = None
    ) -> list[LedgerTotal]:
        sums: dict[tuple[str, ...], LedgerTotal] = {}
        for days in _pages(await self._days(since, until)):
            for day, groups in await self._run("totals", *days):
                for group, text in _pairs(groups):
                    _add(sums, _to_total(by, day, group, text))
        return [sums[on] for on in sorted(sums)]

    async def rows(
        self, since: date | None = None, until: date | None = None
    ) -> AsyncIterator[LedgerRow]:
        for day in await self._days(since, until):
            # The time stands first in a row, and has the same length in all of them.
            for text, id in sorted(await self._rows_of(day)):
                yield _to_row(id, day, text)

    async def _days(self, since: date | None, until: date | None) -> list[str]:
        first = since.isoformat() if since else ""
        last = until.isoformat() if until else "9999-12-31"
        return sorted(day for day in await self._ask("SMEMBERS", "days") if first <= day <= last)

    async def _rows_of(self, day: str) -> list[tuple[str, str]]:
        """The rows of a day and their ids, read in parts: others have their turn between them."""
        found: list[tuple[str, str]] = []
        for ids in _pages(await self._ask("HKEYS", f"rows:{day}")):
            texts = await self._ask("HMGET", f"rows:{day}", *ids)
            found += [(text, id) for text, id in zip(texts, ids, strict=True) if text]
        return found

    # The server

    async def _run(self, script: str, *words: str) -> Any:
        if not self._is_ready:
            await self.open()
        return await self._calls.run(script, *words)

    async def _ask(self, command: str, name: str, *words: str) -> Any:
        if not self._is_ready:
            await self.open()
        return await self._calls.ask(command, name, *words)

    async def _check_eviction(self) -> None:
        """Refuse a server that forgets when its memory is full: it would forget what was spent.

        Policies that drop only what has an end are no danger: of brim's names only counters have
        one, and these can be summed up anew.
        """
        policy = await self._calls.setting("maxmemory-policy") or ""
        if policy.startswith("allkeys"):
            raise AccountStoreError(
                f"Redis at {self._calls.place} drops entries when its memory is full: its setting "
                f"maxmemory-policy is {policy}, and books need noeviction"
            )

    async def _bring_up_to_date(self) -> None:
        layout, known = await self._calls.run("layout")
        if layout > known:
            raise AccountStoreError(
                f"the books in Redis at {self._calls.place} were written by a newer brim (layout "
                f"{layout}, this one knows {known}); upgrade this brim"
            )


# Words that scripts are given


def _dump_charge(bill: Charge) -> str:
    used = bill.usage
    unpriced = "true" if bill.is_unpriced else "false"
    return (
        f"[{used.input},{used.cached},{used.output},{used.written},{bill.micro_dollars},{unpriced}]"
    )


def _reservation_arguments(claim: Reservation, lease: float) -> Iterator[str]:
    who = (claim.key, claim.key_name, claim.project, claim.model, claim.upstream)
    state = "forwarded" if claim.is_forwarded else "reserved"
    yield from (claim.id, str(lease), state, claim.key, _dump_charge(claim.worst), _dump_list(who))
    for scope, cap in claim.caps:
        yield from (f"{cap.period}/{cap.unit}/{scope}", str(cap.most))


def _dump_list(names: Iterable[str]) -> str:
    """Names as JSON whose only brackets are the first and the last: scripts look for these."""
    inner = json.dumps(tuple(names), ensure_ascii=False, separators=(",", ":"))[1:-1]
    return "[" + inner.replace("[", "\\u005b").replace("]", "\\u005d") + "]"


# Answers that they give


def _to_cap_reached(
    claim: Reservation, index: int, spent: str, reserved: str, now: str
) -> CapReached:
    scope, cap = claim.caps[index]
    return CapReached(scope, cap, int(spent), int(reserved), reset_time(cap.period, float(now)))


def _to_key(id: str, facts: str, revoked: str | None = None) -> ApiKey:
    name, project, is_operator, created, _ = json.loads(facts)
    ended = None if revoked is None else float(revoked.split()[0])
    return ApiKey(id, name, project, is_operator, created, ended)


def _to_counter(period: str, field: str, text: str) -> CapCounter:
    unit, _, scope = field.partition("/")
    spent, reserved = text.split()
    return CapCounter(
        scope, "tokens" if unit == "tokens" else "dollars", period, int(spent), int(reserved)
    )


def _to_row(id: str, day: str, text: str) -> LedgerRow:
    time, state, is_counted, bill, (key, key_name, project, model, upstream) = json.loads(text)
    who = (key, key_name, project, model, upstream)
    return LedgerRow(id, time, day, *who, _to_charge(*bill), state, is_counted)


def _to_charge(*figures: Any) -> Charge:
    *tokens, cost, is_unpriced = figures
    return Charge(Usage(*tokens), cost, bool(is_unpriced))


def _to_total(by: Sequence[GroupBy], day: str, group: str, text: str) -> LedgerTotal:
    """A part of a day's totals: what is the same in all of its rows is in the name of the group."""
    state = group[: group.index("[")]
    key, _, project, model, upstream = json.loads(group[len(state) :])
    facts: dict[GroupBy, str] = {"day": day, "key": key, "project": project, "model": model}
    facts |= {"upstream": upstream, "state": state}
    requests, *figures = json.loads(text)
    presumed = requests if state == "presumed" else 0
    return LedgerTotal(tuple(facts[one] for one in by), requests, _to_charge(*figures), presumed)


def _add(sums: dict[tuple[str, ...], LedgerTotal], part: LedgerTotal) -> None:
    whole = sums.get(part.on)
    if whole is None:
        sums[part.on] = part
        return
    sums[part.on] = LedgerTotal(
        part.on,
        whole.requests + part.requests,
        whole.bill + part.bill,
        whole.presumed + part.presumed,
    )


def _pairs(flat: Sequence[str]) -> Iterable[tuple[str, str]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _pages(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), _PAGE):
        yield names[start : start + _PAGE]
