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

from brim.errors import BooksError
from brim.gateway.accounts.bounds import bounded, bounded_settlements, plain
from brim.gateway.accounts.caps import Cap, caps_of, caps_text, counter_name, opens_at
from brim.gateway.accounts.keys import Access, Key, named_already, no_living_key
from brim.gateway.accounts.redis.scripts import RedisCalls
from brim.gateway.accounts.reservations import (
    Bill,
    By,
    Claim,
    Counter,
    Full,
    Row,
    Settlement,
    Spent,
    Unknown,
)
from brim.models.pricing import Usage

_PAGE: Final = 500
"""Rows of the ledger, or days of it, that are read at once."""


class RedisBooks:
    """Books at a URL: `redis://user:password@host:6379/0`, also rediss, valkey, valkeys, unix."""

    def __init__(self, url: str) -> None:
        self._calls = RedisCalls(url)
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

    async def add_key(self, key: Key, hashed: str, caps: Sequence[Cap] = ()) -> None:
        # The last word tells a call that is made twice from a second one.
        facts = [key.name, key.project, key.is_operator, key.created, secrets.token_hex(8)]
        held = caps_text(caps) if caps else ""
        if not await self._run("add_key", key.id, key.name, hashed, json.dumps(facts), held):
            raise named_already(key.name)

    async def keys(self) -> list[Key]:
        found = [_key(*one) for one in await self._run("keys")]
        return sorted(found, key=lambda key: (key.created, key.id))

    async def access(self, hashed: str) -> Access | None:
        found = await self._run("access", hashed)
        if found is None:
            return None
        id, facts, *scopes = found
        held = ((scope, cap) for scope, text in scopes for cap in caps_of(text))
        return Access(_key(id, facts), tuple(held))

    async def revoke(self, name: str) -> Key:
        id = await self._ask("HGET", "names", name) or name
        found = await self._run("revoke", id, secrets.token_hex(8))
        if found is None:
            raise no_living_key(name)
        return _key(*found)

    async def set_caps(self, scope: str, caps: Sequence[Cap]) -> None:
        if caps:
            await self._ask("HSET", "caps", scope, caps_text(caps))
        else:
            await self._ask("HDEL", "caps", scope)

    async def caps(self) -> dict[str, tuple[Cap, ...]]:
        found = _pairs(await self._ask("HGETALL", "caps"))
        return {scope: caps_of(text) for scope, text in sorted(found)}

    # Claims

    async def reserve(self, claim: Claim, lease: float) -> Full | Unknown | None:
        words = tuple(_claim_words(bounded(claim), lease))
        verdict, *numbers = await self._run("reserve", *words)
        while verdict == "again":
            verdict, *numbers = await self._run("reserve", *words)
        if verdict == "full":
            return _full(claim, *numbers)
        return Unknown() if verdict == "unknown" else None

    async def forward(self, id: str, lease: float) -> bool:
        return bool(await self._run("forward", plain(id), str(lease)))

    async def renew(self, ids: Sequence[str], lease: float) -> None:
        if ids:
            await self._run("renew", str(lease), *map(plain, ids))

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        words = [
            word
            for one in bounded_settlements(settlements)
            for word in (one.id, _bill_text(one.bill), json.dumps(one.is_counted))
        ]
        if words:
            await self._run("settle", *words)

    async def sweep(self) -> int:
        over = 0
        while some := int(await self._run("sweep")):
            over += some
        return over

    # Reading

    async def counters(self) -> list[Counter]:
        found = [
            _counter(period, field, text)
            for period, fields in await self._run("counters")
            for field, text in _pairs(fields)
        ]
        return sorted(found, key=lambda one: counter_name(one.scope, one.unit, one.period))

    async def spent(
        self, by: Sequence[By], since: date | None = None, until: date | None = None
    ) -> list[Spent]:
        sums: dict[tuple[str, ...], Spent] = {}
        for days in _pages(await self._days(since, until)):
            for day, groups in await self._run("totals", *days):
                for group, text in _pairs(groups):
                    _add(sums, _spent(by, day, group, text))
        return [sums[on] for on in sorted(sums)]

    async def rows(
        self, since: date | None = None, until: date | None = None
    ) -> AsyncIterator[Row]:
        for day in await self._days(since, until):
            # The time stands first in a row, and has the same length in all of them.
            for text, id in sorted(await self._rows_of(day)):
                yield _row(id, day, text)

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
            raise BooksError(
                f"Redis at {self._calls.place} drops entries when its memory is full: its setting "
                f"maxmemory-policy is {policy}, and books need noeviction"
            )

    async def _bring_up_to_date(self) -> None:
        layout, known = await self._calls.run("layout")
        if layout > known:
            raise BooksError(
                f"the books in Redis at {self._calls.place} were written by a newer brim (layout "
                f"{layout}, this one knows {known}); upgrade this brim"
            )


# Words that scripts are given


def _bill_text(bill: Bill) -> str:
    used = bill.usage
    unpriced = "true" if bill.is_unpriced else "false"
    return (
        f"[{used.input},{used.cached},{used.output},{used.written},{bill.micro_dollars},{unpriced}]"
    )


def _claim_words(claim: Claim, lease: float) -> Iterator[str]:
    who = (claim.key, claim.key_name, claim.project, claim.model, claim.upstream)
    state = "forwarded" if claim.is_forwarded else "reserved"
    yield from (claim.id, str(lease), state, claim.key, _bill_text(claim.worst), _list_text(who))
    for scope, cap in claim.caps:
        yield from (f"{cap.period}/{cap.unit}/{scope}", str(cap.most))


def _list_text(names: Iterable[str]) -> str:
    """Names as JSON whose only brackets are the first and the last: scripts look for these."""
    inner = json.dumps(tuple(names), ensure_ascii=False, separators=(",", ":"))[1:-1]
    return "[" + inner.replace("[", "\\u005b").replace("]", "\\u005d") + "]"


# Answers that they give


def _full(claim: Claim, index: int, spent: str, reserved: str, now: str) -> Full:
    scope, cap = claim.caps[index]
    return Full(scope, cap, int(spent), int(reserved), opens_at(cap.period, float(now)))


def _key(id: str, facts: str, revoked: str | None = None) -> Key:
    name, project, is_operator, created, _ = json.loads(facts)
    ended = None if revoked is None else float(revoked.split()[0])
    return Key(id, name, project, is_operator, created, ended)


def _counter(period: str, field: str, text: str) -> Counter:
    unit, _, scope = field.partition("/")
    spent, reserved = text.split()
    return Counter(
        scope, "tokens" if unit == "tokens" else "dollars", period, int(spent), int(reserved)
    )


def _row(id: str, day: str, text: str) -> Row:
    time, state, is_counted, bill, (key, key_name, project, model, upstream) = json.loads(text)
    who = (key, key_name, project, model, upstream)
    return Row(id, time, day, *who, _bill(*bill), state, is_counted)


def _bill(*figures: Any) -> Bill:
    *tokens, cost, is_unpriced = figures
    return Bill(Usage(*tokens), cost, bool(is_unpriced))


def _spent(by: Sequence[By], day: str, group: str, text: str) -> Spent:
    """A part of a day's totals: what is the same in all of its rows is in the name of the group."""
    state = group[: group.index("[")]
    key, _, project, model, upstream = json.loads(group[len(state) :])
    facts: dict[By, str] = {"day": day, "key": key, "project": project, "model": model}
    facts |= {"upstream": upstream, "state": state}
    requests, *figures = json.loads(text)
    presumed = requests if state == "presumed" else 0
    return Spent(tuple(facts[one] for one in by), requests, _bill(*figures), presumed)


def _add(sums: dict[tuple[str, ...], Spent], part: Spent) -> None:
    whole = sums.get(part.on)
    if whole is None:
        sums[part.on] = part
        return
    sums[part.on] = Spent(
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
