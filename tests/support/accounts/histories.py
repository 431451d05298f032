"""Histories of concurrent operations on one store, as each client saw them."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from brim.gateway.accounts import create_store
from brim.gateway.accounts.caps import Cap, project_scope
from brim.gateway.accounts.reservations import Reservation
from brim.gateway.accounts.store import AccountStore
from tests.support.accounts.linearizability import ObservedOperation
from tests.support.accounts.model import Model
from tests.support.accounts.reservations import KEY, LONG, make_reservation, make_settlement

CLIENTS: Final = 4


def record_histories(address: str, folder: Path, *, rounds: int) -> list[list[ObservedOperation]]:
    """Record one history per round: three requests that share a tight cap."""
    start = threading.Barrier(CLIENTS)
    clients = [_Client(address, folder, number, rounds, start) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join(60)
    together = zip(*(client.seen for client in clients), strict=True)
    histories = [[step for part in seen for step in part] for seen in together]
    assert len(histories) == rounds
    return histories


def overlap(steps: Sequence[ObservedOperation]) -> bool:
    """Return whether any two operations overlapped."""
    return any(one.started < other.started < one.answered for one in steps for other in steps)


@dataclass(frozen=True)
class _Operation:
    """An operation of a client."""

    kind: Literal["reserve", "mark_sent", "settle"]
    claim: Reservation
    cost: int

    async def on_store(self, store: AccountStore) -> object:
        match self.kind:
            case "reserve":
                return await store.reserve(self.claim, LONG)
            case "mark_sent":
                return await store.mark_sent(self.claim.id, LONG)
            case "settle":
                await store.settle([make_settlement(self.claim.id, self.cost)])
                return None

    def on_model(self, model: Model) -> object:
        match self.kind:
            case "reserve":
                return model.reserve(self.claim)
            case "mark_sent":
                return model.mark_sent(self.claim.id)
            case "settle":
                model.settle(make_settlement(self.claim.id, self.cost))
                return None

    def __str__(self) -> str:
        amount = {"reserve": self.claim.max_charge.micro_dollars, "settle": self.cost}.get(
            self.kind, ""
        )
        return f"{self.kind} {self.claim.id} {amount}".rstrip()


def _random_operations(number: int, client: int) -> list[_Operation]:
    chance = random.Random(number * CLIENTS + client)
    return [_random_operation(number, chance) for _ in range(2)]


def _random_operation(number: int, chance: random.Random) -> _Operation:
    kind: Literal["reserve", "mark_sent", "settle"]
    kind = chance.choice(("reserve", "reserve", "mark_sent", "settle"))
    most = chance.randint(3, 8)
    key = replace(KEY, project=f"round-{number}")
    cap = (project_scope(key.project), Cap(10))
    reservation = make_reservation(f"{number}-{chance.choice('abc')}", most, cap, key=key)
    return _Operation(kind, reservation, chance.randint(1, most))


class _Client(threading.Thread):
    """A client on its own thread and event loop that starts each round with the others."""

    def __init__(
        self, address: str, folder: Path, number: int, rounds: int, start: threading.Barrier
    ) -> None:
        super().__init__(daemon=True)
        self.seen: list[list[ObservedOperation]] = []
        self._store = create_store(address, folder)
        self._plans = [_random_operations(round, number) for round in range(rounds)]
        self._start_together: Callable[[float], int] = start.wait

    def run(self) -> None:
        asyncio.run(self._all())

    async def _all(self) -> None:
        await self._store.open()
        for plan in self._plans:
            self._start_together(30)  # nothing else runs on this loop
            self.seen.append([await self._step(operation) for operation in plan])
        await self._store.close()

    async def _step(self, operation: _Operation) -> ObservedOperation:
        started = time.perf_counter()
        answer = await operation.on_store(self._store)
        return ObservedOperation(
            str(operation), started, time.perf_counter(), answer, operation.on_model
        )
