"""The gateway: everything that lives as long as the server, and its background work."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Final

from brim.config import Config
from brim.gateway import logs
from brim.gateway.account_service import AccountService
from brim.gateway.accounts.reservations import Settlement
from brim.gateway.auth import Authenticator
from brim.gateway.handler import RequestHandler, Services, WorkerPool
from brim.gateway.limits import RequestLimits
from brim.gateway.metrics import Metrics
from brim.gateway.records import RecentRequests
from brim.gateway.routes import ModelRoutes

log = logging.getLogger("brim.gateway")

SWEEP_SECONDS: Final = 5.0
"""The most seconds between two rounds of background work."""
RECORD_DELAY: Final = 0.1
"""Seconds that a finished request may wait to be recorded together with others."""
STOP_SECONDS: Final = 2.0
"""Seconds that cancelled requests have to end at shutdown."""
MAX_UNRECORDED: Final = 64
"""Finished requests that are recorded together at most."""


class Gateway:
    """The state of a running gateway: requests in flight, records, metrics and services."""

    def __init__(self, config: Config, environment: Mapping[str, str]) -> None:
        settings = config.gateway
        self.config = config
        self.records = RecentRequests(settings.keep_requests)
        self.running: set[RequestHandler] = set()
        self.is_stopping = False
        accounts = AccountService(settings, environment)
        accounts.collect_settlements = self.record_finished
        self.services = Services(
            RequestLimits(settings),
            accounts,
            Authenticator(accounts),
            ModelRoutes(config, environment),
            WorkerPool(),
            self.running,
        )
        named = {name for upstream in config.upstreams.values() for name in upstream.models}
        self.metrics = Metrics(named, self.services.routes, self.running, accounts)
        self._unrecorded: list[RequestHandler] = []
        """Finished requests that are not recorded yet."""
        self._send_seconds = settings.send_seconds
        self._sweep_seconds = min(SWEEP_SECONDS, settings.lease_seconds / 3)
        """Seconds between two sweeps, short enough to renew leases in time."""
        self._sweeping: asyncio.Task[None] | None = None

    async def run(self, handler: RequestHandler) -> None:
        """Handle a request, and record it when it has ended."""
        self.records.add(handler.record)
        self.running.add(handler)
        try:
            await handler.run()
        finally:
            self.running.discard(handler)
            self._unrecorded.append(handler)
            if handler.is_urgent or len(self._unrecorded) >= MAX_UNRECORDED:
                self.record_finished()
            elif len(self._unrecorded) == 1:
                asyncio.get_running_loop().call_later(RECORD_DELAY, self.record_finished)

    def record_finished(self) -> None:
        """Record all finished requests. In batches, each takes a third of the time."""
        finished, self._unrecorded = self._unrecorded, []
        settlements: list[Settlement] = []
        for handler in finished:
            try:
                if (settlement := handler.settle()) is not None:
                    settlements.append(settlement)
            except Exception:
                # The other requests must be settled all the same.
                self.services.accounts.abandon(handler.record.id)
                log.exception("settlement failed", extra={"fields": {"id": handler.record.id}})
            self.records.summarize_plan(handler.record)
            self.metrics.add(handler.record)
            logs.log_request(handler.record)
        if settlements:
            self.services.accounts.settle(settlements)

    # Lifetime

    async def start(self) -> None:
        await self.services.accounts.start()
        self._sweeping = asyncio.create_task(self._sweep_forever())

    async def stop(self) -> None:
        """Cancel what still runs, settle it, and close all connections."""
        self.is_stopping = True
        tasks = [task for each in list(self.running) if (task := each.cancel()) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_SECONDS)
        self.record_finished()
        if self._sweeping is not None:
            self._sweeping.cancel()
        await self.services.accounts.stop()
        for route in self.services.routes:
            await route.save()
        await self.services.routes.close()
        self.services.workers.shutdown()
        logs.flush()

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_seconds)
            try:
                await self._sweep()
            except Exception:  # one failed round must not end the background work
                log.exception("sweep failed")

    async def _sweep(self) -> None:
        """Disconnect clients that do not read, renew leases, and save calibrations."""
        deadline = time.monotonic() - self._send_seconds
        for each in list(self.running):
            if each.waiting_since is not None and each.waiting_since < deadline:
                each.abandon()
        await self.services.accounts.sweep()
        for route in self.services.routes:
            await route.save()
