"""Pruning, copying and alerts in the Redis store."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from datetime import date
from typing import Any

from brim.gateway.accounts.alerts import (
    FIRST_RETRY_SECONDS,
    MAX_RETRY_SECONDS,
    Alert,
    ClaimedAlert,
)
from brim.gateway.accounts.keys import ApiKey, SecretRecord, duplicate_name_error
from brim.gateway.accounts.redis.script_runner import dump_charge, dump_list, pairs
from brim.gateway.accounts.reservations import LedgerRow, PrunedSum


class RedisUpkeep(ABC):
    """The rarer operations of the store."""

    @abstractmethod
    async def _run(self, script: str, *arguments: str) -> Any: ...

    @abstractmethod
    async def _ask(self, command: str, name: str, *arguments: str) -> Any: ...

    async def prune(self, before: date) -> int:
        days = sorted(day for day in await self._ask("SMEMBERS", "days") if day < str(before))
        return sum([int(await self._run("prune", day)) for day in days])

    async def running(self) -> int:
        return int(await self._ask("HLEN", "leases"))

    async def dump_secrets(self) -> list[SecretRecord]:
        found = []
        for hashed, text in sorted(pairs(await self._ask("HGETALL", "secrets"))):
            ends, _, key = text.partition(" ")
            found.append(SecretRecord(hashed, key, None if ends == "inf" else float(ends)))
        return found

    async def dump_pruned(self) -> list[PrunedSum]:
        sums: defaultdict[tuple[str, ...], dict[str, int]] = defaultdict(dict)
        for name, number in pairs(await self._ask("HGETALL", "pruned")):
            if not name.startswith("@"):
                unit = name[: name.index("[")]
                sums[tuple(json.loads(name[len(unit) :]))][unit] = int(number)
        return [
            PrunedSum(key, project, user, found["dollars"], found["tokens"])
            for (key, project, user), found in sorted(sums.items())
        ]

    async def load_keys(self, keys: Sequence[ApiKey], secrets: Sequence[SecretRecord]) -> None:
        arguments = [str(len(keys))]
        for key in keys:
            facts = [key.name, key.project, key.is_operator, key.created, "loaded"]
            revoked = "" if key.revoked is None else f"{key.revoked:.6f} loaded"
            arguments += [key.id, key.name, json.dumps(facts), key.rules.dump(), revoked]
        for hashed, id, expires in secrets:
            arguments += [hashed, f"{'inf' if expires is None else format(expires, '.6f')} {id}"]
        name = await self._run("load_keys", *arguments)
        if name is not None:
            raise duplicate_name_error(name)

    async def load_rows(self, rows: Sequence[LedgerRow]) -> None:
        arguments = [text for row in rows for text in (row.id, row.day, _dump_row(row))]
        if arguments:
            await self._run("load_rows", *arguments)

    async def load_pruned(self, sums: Sequence[PrunedSum]) -> None:
        arguments = []
        for key, project, user, micro_dollars, tokens in sums:
            arguments += [dump_list((key, project, user)), str(micro_dollars), str(tokens)]
        await self._run("load_pruned", *arguments)

    async def add_alerts(self, alerts: Sequence[Alert]) -> None:
        arguments = []
        for id, body, expires in alerts:
            arguments += [id, body, "" if expires is None else str(expires)]
        if arguments:
            await self._run("add_alerts", *arguments)

    async def claim_alerts(self, limit: int) -> list[ClaimedAlert]:
        times = str(FIRST_RETRY_SECONDS), str(MAX_RETRY_SECONDS)
        return [ClaimedAlert(*one) for one in await self._run("claim_alerts", str(limit), *times)]

    async def finish_alert(self, id: str) -> None:
        await self._run("finish_alert", id)


def _dump_row(row: LedgerRow) -> str:
    names = (row.key, row.key_name, row.project, row.model, row.upstream, row.user)
    charge, estimated = dump_charge(row.charge), json.dumps(row.is_estimated)
    return f'[{row.time:.6f},"{row.state}",{estimated},{charge},{dump_list(names)}]'
