"""Runs commands in an isolated folder, and records spending of a gateway."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from click.testing import CliRunner, Result

from brim.cli import main
from brim.gateway.accounts import DEFAULT_FILE
from brim.gateway.accounts.caps import Cap
from brim.gateway.accounts.keys import ApiKey
from brim.gateway.accounts.reservations import Charge, Reservation, Settlement
from brim.gateway.accounts.sqlite.store import SqliteAccountStore
from tests.support.accounts.reservations import LONG
from tests.support.terminal import shown_on

Answer = TypeVar("Answer")

PROGRAM: Final = [sys.executable, "-m", "brim.cli"]
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Office:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / DEFAULT_FILE
        self.environment = {
            "BRIM_STATE": str(folder),
            "XDG_CONFIG_HOME": str(folder),
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "PATH": os.environ["PATH"],
        }
        self._requests = 0

    def brim(self, *arguments: object) -> Result:
        return CliRunner().invoke(main, list(map(str, arguments)), env=self.environment)

    def on_terminal(self, columns: int, *arguments: str, also: Mapping[str, str] = NOTHING) -> str:
        """Return the output of a command on a terminal, with its colors."""
        environment = {**self.environment, "TERM": "xterm", **also}
        return shown_on(columns, [*PROGRAM, *arguments], "stdout", env=environment)

    def ask(
        self,
        work: Callable[[SqliteAccountStore], Awaitable[Answer]],
        clock: Callable[[], float] | None = None,
    ) -> Answer:
        """Return the result of some work on the store, through a connection of its own."""

        async def run_work() -> Answer:
            store = SqliteAccountStore(self.file, clock) if clock else SqliteAccountStore(self.file)
            await store.open()
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(run_work())

    def key(self, name: str, *more: str) -> ApiKey:
        """Create a key."""
        assert self.brim("keys", "add", name, *more, "-q").exit_code == 0
        return self.ask(lambda store: store.keys())[-1]

    def spend(self, key: ApiKey, bill: Charge, day: str | None = None, **more: Any) -> None:
        """Record a finished request at noon of a day, or now."""
        self._request(key, bill, day, is_settled=True, **more)

    def die(self, key: ApiKey, bill: Charge, day: str | None = None, **more: Any) -> None:
        """Record a request whose gateway crashed and whose lease expired."""
        self._request(key, bill, day, is_settled=False, **more)

    def begin(self, key: ApiKey, bill: Charge, cap: tuple[str, Cap]) -> None:
        """Record a request in flight."""
        claim = Reservation(
            "begun", key.id, key.name, key.project, "gpt-5-mini", "main", bill, (cap,)
        )
        self.ask(lambda store: store.reserve(claim, LONG))

    def _request(
        self,
        key: ApiKey,
        bill: Charge,
        day: str | None,
        *,
        is_settled: bool,
        model: str = "gpt-5-mini",
        caps: tuple[tuple[str, Cap], ...] = (),
    ) -> None:
        noon = datetime.now(UTC) if day is None else datetime.fromisoformat(f"{day}T12:00:00Z")
        now = noon.timestamp()
        self._requests += 1
        name = f"request-{self._requests}"
        claim = Reservation(name, key.id, key.name, key.project, model, "main", bill, caps)

        async def done(store: SqliteAccountStore) -> None:
            nonlocal now
            assert await store.reserve(claim, LONG) is None
            assert await store.mark_sent(name, LONG)
            if is_settled:
                await store.settle([Settlement(name, bill)])
            else:
                now += 2 * LONG
                await store.sweep()

        self.ask(done, lambda: now)
