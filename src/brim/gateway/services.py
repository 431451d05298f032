"""What all request handlers share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from brim.gateway.account_service import AccountService
    from brim.gateway.auth import Authenticator
    from brim.gateway.limits import RequestLimits
    from brim.gateway.routes import ModelRoutes

T = TypeVar("T")
Args = TypeVarTuple("Args")

THREADS: Final = 2


class WorkerPool:
    """Threads that parse and count large bodies, so that the event loop stays responsive."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "brim-count")

    async def run(self, work: Callable[[*Args], T], *args: *Args) -> T:
        """Run a function in a thread and return its result.

        If the caller is cancelled, wait until the function has returned: its arguments must not be
        used by two threads.
        """
        running = asyncio.get_running_loop().run_in_executor(self._threads, work, *args)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise

    def shutdown(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a gateway that request handlers use."""

    limits: RequestLimits
    accounts: AccountService
    authenticator: Authenticator
    routes: ModelRoutes
    workers: WorkerPool
    running: Sized
    """The requests in flight."""
