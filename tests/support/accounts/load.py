"""Concurrent processes that spend from one key: `python -m tests.support.accounts.load '{…}'`.

One process forks into as many as requested, so that imports happen once. Each logs every operation
to its own file before it takes effect.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO, TypeVar

from brim.errors import AccountStoreUnavailableError
from brim.gateway.accounts import create_store
from brim.gateway.accounts.caps import Cap
from brim.gateway.accounts.reservations import CapReached
from brim.gateway.accounts.store import AccountStore
from tests.support.accounts.reservations import SECRET, make_reservation, make_settlement

T = TypeVar("T")


@dataclass(frozen=True)
class LoadSettings:
    """The settings of a run."""

    address: str
    folder: str
    """Folder of the log files."""
    processes: int
    requests: int
    """Requests of each process."""
    at_once: int = 1
    lease: float = 60.0
    lives: float | None = None
    """Each process is killed after at most this many seconds."""
    waits: bool = False
    """Whether to retry while the store is unavailable."""
    seed: int = 0


@dataclass(frozen=True)
class LoggedOperation:
    """A logged operation of a process."""

    step: str
    """reserved, sent, settled or full."""
    id: str
    amount: int


def run_load(orders: LoadSettings) -> list[LoggedOperation]:
    """Run the processes, and read their logs."""
    begun = subprocess.run(
        [sys.executable, "-m", __name__, json.dumps(asdict(orders))],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert begun.returncode == 0, begun.stderr
    return [*read_log(Path(orders.folder))]


def read_log(folder: Path) -> Iterator[LoggedOperation]:
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            yield LoggedOperation(**json.loads(line))


def main() -> None:
    orders = LoadSettings(**json.loads(sys.argv[1]))
    create_store(orders.address, Path(orders.folder))  # import before the fork
    children = [_start(orders, number) for number in range(orders.processes)]
    outcomes = [os.waitpid(child, 0)[1] for child in children]
    wanted = {0} if orders.lives is None else {0, signal.SIGKILL}
    sys.exit(0 if set(outcomes) <= wanted else f"they ended with {outcomes}")


def _start(orders: LoadSettings, number: int) -> int:
    child = os.fork()
    if child == 0:
        chance = random.Random(orders.seed * 1_000 + number)
        with (Path(orders.folder) / f"{number}.jsonl").open("w", buffering=1) as notes:
            asyncio.run(_spend(orders, number, chance, notes))
        os._exit(0)
    return child


def _kill_after(seconds: float) -> None:
    def kill() -> None:
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()


async def _spend(orders: LoadSettings, number: int, chance: random.Random, notes: TextIO) -> None:
    store = create_store(orders.address, Path(orders.folder))
    spender = _Spender(store, orders, chance, notes)
    caps = await spender.caps()
    if orders.lives is not None:
        _kill_after(orders.lives * chance.random())
    names = iter([f"p{number}-{request}" for request in range(orders.requests)])

    async def one_after_the_other() -> None:
        for id in names:
            await spender.spend(id, caps)

    await asyncio.gather(*(one_after_the_other() for _ in range(orders.at_once)))
    await store.close()


class _Spender:
    """One client: reserve, mark as sent, send, settle."""

    def __init__(
        self, store: AccountStore, orders: LoadSettings, chance: random.Random, notes: TextIO
    ) -> None:
        self._store = store
        self._orders = orders
        self._chance = chance
        self._notes = notes

    async def caps(self) -> tuple[tuple[str, Cap], ...]:
        access = await self._patiently(lambda: self._store.access(SECRET))
        assert access is not None
        return access.caps

    async def spend(self, id: str, caps: tuple[tuple[str, Cap], ...]) -> None:
        worst = self._chance.randint(50, 100)
        lease = self._orders.lease
        reservation = make_reservation(id, worst, *caps)
        rejected = await self._patiently(lambda: self._store.reserve(reservation, lease))
        if rejected is not None:
            self._note("full" if isinstance(rejected, CapReached) else "unknown", id, worst)
            return
        self._note("reserved", id, worst)
        if not await self._patiently(lambda: self._store.mark_sent(id, lease)):
            return
        came_to = self._chance.randint(worst * 6 // 10, worst)
        self._note("sent", id, came_to)
        await self._patiently(lambda: self._store.settle([make_settlement(id, came_to)]))
        self._note("settled", id, came_to)

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await ask()
            except AccountStoreUnavailableError:
                if not self._orders.waits:
                    raise
                await asyncio.sleep(0.02)

    def _note(self, step: str, id: str, amount: int) -> None:
        # Unbuffered, so that the log survives a kill.
        self._notes.write(json.dumps(asdict(LoggedOperation(step, id, amount))) + "\n")


if __name__ == "__main__":
    main()
