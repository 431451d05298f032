"""The gateway as an ASGI application: what runs while it serves, and which path leads where."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar, TypeVarTuple

from starlette.routing import Route

from brim.errors import AccountStoreUnavailableError
from brim.fitting.prefix_cache import PrefixCache
from brim.gateway import logs
from brim.gateway.accounts import DEFAULT_FILE, create_store
from brim.gateway.accounts.key_marker import KeyMarker
from brim.gateway.admin import AdminRoutes
from brim.gateway.auth import Authenticator
from brim.gateway.completion import CompletionHandler
from brim.gateway.formats import CHAT, PATHS
from brim.gateway.limits import RequestLimits
from brim.gateway.metrics import Metrics
from brim.gateway.passthrough import PassthroughHandler, PassthroughPaths
from brim.gateway.records import RecentRequests
from brim.gateway.reservations import AccountService
from brim.gateway.routes import ModelRoutes, RouteDefaults, Upstream
from brim.storage.calibration_store import CalibrationStore
from brim.storage.database import state_folder

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from brim.config import Config, GatewayConfig
    from brim.gateway.accounts.reservations import Settlement
    from brim.gateway.handler import RequestHandler

log = logging.getLogger("brim.gateway")

T = TypeVar("T")
Args = TypeVarTuple("Args")

SWEEP_SECONDS: Final = 5.0
"""The most seconds between looks at what waits and what was learned."""
RECORD_DELAY: Final = 0.1
"""Seconds in which what is over is taken down."""
STOP_SECONDS: Final = 2.0
"""Seconds that what is cut off at the end has to leave."""
MAX_UNRECORDED: Final = 64
PREFIX_CACHE_BYTES: Final = 96_000_000
"""Bytes of conversations that are remembered for speed."""


class Gateway:
    """Everything that lives as long as the server does."""

    def __init__(self, config: Config, environment: Mapping[str, str]) -> None:
        settings = config.gateway
        learned = CalibrationStore()
        self.config = config
        self.limits = RequestLimits(
            settings.max_body_bytes, settings.body_seconds, settings.max_requests, settings.origins
        )
        self.records = RecentRequests(settings.keep_requests)
        self.running: set[RequestHandler] = set()
        self._over: list[RequestHandler] = []
        """Those that are over and not taken down yet."""
        self.is_stopping = False
        self._send_seconds = settings.send_seconds
        self._threads = ThreadPoolExecutor(2, "brim-count")
        self._sweeping: asyncio.Task[None] | None = None
        memory = PrefixCache(settings.conversations, PREFIX_CACHE_BYTES)
        self.lanes = ModelRoutes(
            [
                Upstream(name, upstream, _read_key(upstream.key_env, environment), learned)
                for name, upstream in config.upstreams.items()
            ],
            RouteDefaults(settings.policy, config.count.server),
            memory,
        )
        named = {name for upstream in config.upstreams.values() for name in upstream.models}
        self.accounts = create_account_service(settings, environment)
        self.admission = Authenticator(self.accounts)
        self.metrics = Metrics(named, self.lanes, self.running)
        self.accounts.take_down = self.book
        self._pause = min(SWEEP_SECONDS, settings.lease_seconds / 3)
        """Seconds between two sweeps: the leases of what runs are renewed in time."""

    async def apart(self, work: Callable[[*Args], T], *given: *Args) -> T:
        """Do some work on a large body off the event loop."""
        running = asyncio.get_running_loop().run_in_executor(self._threads, work, *given)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            # Until it ends, nobody else may touch what it works on.
            await asyncio.wait([running])
            raise

    async def run(self, answering: RequestHandler) -> None:
        """Answer a request, and take down what came of it."""
        self.records.add(answering.record)
        self.running.add(answering)
        try:
            await answering.run()
        finally:
            self.running.discard(answering)
            self._over.append(answering)
            if answering.is_urgent or len(self._over) >= MAX_UNRECORDED:
                self.book()
            elif len(self._over) == 1:
                asyncio.get_running_loop().call_later(RECORD_DELAY, self.book)

    def book(self) -> None:
        """Take down all requests that are over: many at once take a third of the time of each."""
        over, self._over = self._over, []
        settlements: list[Settlement] = []
        for answering in over:
            try:
                if (settlement := answering.settle()) is not None:
                    settlements.append(settlement)
            except Exception:
                # The others are not to be lost with it.
                self.accounts.leave(answering.record.id)
                log.exception("not settled", extra={"told": {"id": answering.record.id}})
            self.records.sketched(answering.record)
            self.metrics.add(answering.record)
            logs.log_request(answering.record)
        if settlements:
            self.accounts.settle(settlements)

    # While it serves

    async def start(self) -> None:
        await self.accounts.start()
        self._sweeping = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        self.is_stopping = True
        await self._cut_off()
        self.book()
        if self._sweeping is not None:
            self._sweeping.cancel()
        await self.accounts.stop()
        for lane in self.lanes:
            await lane.keep()
        await self.lanes.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        logs.flush()

    async def _cut_off(self) -> None:
        """End what still runs, so that it is booked as far as it came."""
        if tasks := [task for each in list(self.running) if (task := each.cut()) is not None]:
            await asyncio.wait(tasks, timeout=STOP_SECONDS)

    async def _sweep(self) -> None:
        """Let go of clients that do not read, and keep what was learned."""
        while True:
            await asyncio.sleep(self._pause)
            try:
                await self._swept()
            except Exception:  # a fault now must not leave clients hanging for ever after
                log.exception("sweep failed")

    async def _swept(self) -> None:
        late = time.monotonic() - self._send_seconds
        for each in list(self.running):
            if each.waiting_since is not None and each.waiting_since < late:
                each.abandon()
        await self.accounts.sweep()
        for lane in self.lanes:
            await lane.keep()


def create_account_service(
    settings: GatewayConfig, environment: Mapping[str, str]
) -> AccountService:
    """The books that the settings name; those in a file count once there is one."""
    folder, is_shared = state_folder(environment), "://" in settings.store
    books = create_store(settings.store, folder)
    path = Path(settings.store).expanduser() if settings.store else folder / DEFAULT_FILE
    reminder = KeyMarker(folder, path)
    return AccountService(
        books,
        lease=settings.lease_seconds,
        is_required=settings.require_keys or is_shared or reminder.is_set(),
        refuses=settings.store_away == "refuse",
        may_look=path.exists,
        remember=reminder.set,
    )


async def requires_keys(settings: GatewayConfig, environment: Mapping[str, str]) -> bool:
    """Whether a gateway with these settings would let in only those who show a key.

    Raises where its books cannot be used, and waiting does not mend that.
    """
    accounts = create_account_service(settings, environment)
    with suppress(AccountStoreUnavailableError):
        await accounts.find_keys()
    await accounts.stop()
    return accounts.is_required


def _read_key(name: str | None, environment: Mapping[str, str]) -> str | None:
    return None if name is None else environment.get(name)


class App:
    """The ASGI application: what is asked all the time first, everything else behind it."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._beside = AdminRoutes(gateway).app()
        quiet = [each.path_regex for each in self._beside.routes if isinstance(each, Route)]
        own = [*map(re.escape, PATHS), *(regex.pattern for regex in quiet)]
        self._passed = PassthroughPaths(gateway.config.gateway.passed_paths, own)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path, gateway = scope["path"], self.gateway
            form = PATHS.get(path) if scope["method"] == "POST" else None
            if form is not None:
                await gateway.run(CompletionHandler(gateway, form, scope, receive, send))
                return
            if path in self._passed:
                await gateway.run(PassthroughHandler(gateway, CHAT, scope, receive, send))
                return
        await self._beside(scope, receive, send)


def create_app(config: Config, environment: Mapping[str, str]) -> App:
    """A gateway with these settings; keys are read from this environment."""
    return App(Gateway(config, environment))
