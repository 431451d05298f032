"""The gateway: everything that lives as long as the server, and its background work."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Final

from brim.config import Config, OidcConfig, state_folder
from brim.errors import BrimError, InputError
from brim.gateway import logs
from brim.gateway.account_service import AccountService
from brim.gateway.accounts.reservations import Settlement
from brim.gateway.auth import Authenticator
from brim.gateway.dropped_messages import DroppedMessages
from brim.gateway.export import RequestExport
from brim.gateway.handler import RequestHandler, Services, WorkerPool
from brim.gateway.limits import RequestLimits
from brim.gateway.metrics import Metrics
from brim.gateway.records import RecentRequests
from brim.gateway.request_history import RequestHistory
from brim.gateway.routes import ModelRoutes
from brim.gateway.usage_lookup import LostReply

if TYPE_CHECKING:
    from brim.gateway.telemetry import Telemetry


log = logging.getLogger("brim.gateway")

SWEEP_SECONDS: Final = 5.0
"""The most seconds between two rounds of background work."""
RECORD_DELAY: Final = 0.1
"""Seconds that a finished request may wait to be recorded together with others."""
STOP_SECONDS: Final = 2.0
"""Seconds that cancelled requests have to end at shutdown."""
RETIRE_SECONDS: Final = 0.5
"""Seconds between checks whether a request still uses an old configuration."""
MAX_UNRECORDED: Final = 64
"""Finished requests that are recorded together at most."""


class Gateway:
    """The state of a running gateway: requests in flight, records, metrics and services."""

    def __init__(self, config: Config, environment: Mapping[str, str]) -> None:
        settings = config.gateway
        self.config = config
        self.records = RecentRequests(settings.keep_requests)
        self.history = RequestHistory(state_folder(environment), settings.history_days)
        self._export = RequestExport(settings.export) if settings.export.folder else None
        self.running: set[RequestHandler] = set()
        self.is_stopping = False
        accounts = AccountService(settings, environment)
        accounts.collect_settlements = self.record_finished
        self.services = Services(
            RequestLimits(settings),
            accounts,
            _create_authenticator(accounts, settings.oidc, environment),
            ModelRoutes(config, environment),
            WorkerPool(),
            self.running,
            DroppedMessages() if settings.retrieve else None,
            traces=bool(settings.otlp_endpoint),
        )
        self._telemetry = _create_telemetry(config, environment)
        self._environment = environment
        self.load_config: Callable[[], Config] = _reject_reload
        """Reads the configuration again."""
        self._reloading = asyncio.Lock()
        self.configured: Callable[[], None] = lambda: None
        """Called when another configuration applies."""
        self._retiring: set[asyncio.Task[None]] = set()
        named = _configured_models(config)
        self.metrics = Metrics(named, self.services.routes, self.running, accounts)
        self._lookups: dict[RequestHandler, asyncio.Task[None]] = {}
        """Ended requests whose usage is looked up; their reservations stand until then."""
        self._unrecorded: list[RequestHandler] = []
        """Finished requests that are not recorded yet."""
        self._send_seconds = settings.send_seconds
        self._sweep_seconds = min(SWEEP_SECONDS, settings.lease_seconds / 3)
        """Seconds between two sweeps, short enough to renew leases in time."""
        self._sweeping: asyncio.Task[None] | None = None

    async def reload(self) -> ConfigChange:
        """Read the configuration again, and use it for new requests.

        Raise `BrimError` if it is invalid, or cannot be read again; then the old one stays.
        """
        async with self._reloading:
            try:
                change = await self._use(await asyncio.to_thread(self.load_config))
            except BrimError as error:
                fields = {"reason": str(error)}
                log.warning("configuration not reloaded", extra={"fields": fields})
                raise
        log.info("configuration reloaded", extra={"fields": asdict(change)})
        return change

    async def _use(self, config: Config) -> ConfigChange:
        """Use another configuration for new requests; running ones keep the old one."""
        change = ConfigChange.of(self.config, config)
        old = self.services
        for route in old.routes:
            await route.save()  # the new routes read their calibration
        routes = ModelRoutes(config, self._environment)
        self.services = replace(old, limits=RequestLimits(config.gateway), routes=routes)
        self.services.accounts.apply(config.gateway)
        self.metrics.follow(_configured_models(config), routes)
        self.config = config
        self.configured()
        self._retiring.add(task := asyncio.create_task(self._retire(old)))
        task.add_done_callback(self._retiring.discard)
        return change

    async def _retire(self, old: Services) -> None:
        """Close the connections of old routes when the last request that uses them has ended."""
        while any(handler.services is old for handler in (*self.running, *self._lookups)):
            await asyncio.sleep(RETIRE_SECONDS)
        await old.routes.close()

    async def run(self, handler: RequestHandler) -> None:
        """Handle a request, and record it when it has ended."""
        self.records.add(handler.record)
        self.running.add(handler)
        try:
            await handler.run()
        finally:
            self.running.discard(handler)
            lost = handler.find_lost_reply()
            if lost is None or self.is_stopping:
                self._record_soon(handler)
            else:
                self._lookups[handler] = asyncio.create_task(self._look_up(handler, lost))

    def _record_soon(self, handler: RequestHandler) -> None:
        self._unrecorded.append(handler)
        if handler.is_urgent or len(self._unrecorded) >= MAX_UNRECORDED:
            self.record_finished()
        elif len(self._unrecorded) == 1:
            asyncio.get_running_loop().call_later(RECORD_DELAY, self.record_finished)

    async def _look_up(self, handler: RequestHandler, lost: LostReply) -> None:
        """Record a request when its provider has reported its usage, or does not."""
        try:
            await handler.look_up_usage(lost)
        finally:
            del self._lookups[handler]
            self._record_soon(handler)

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
            self.history.add(handler.record)
            if self._export is not None:
                self._export.add(handler.record)
            if self._telemetry is not None:
                self._telemetry.add(handler.record)
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
        for lookup in self._lookups.values():
            lookup.cancel()
        if tasks := [*tasks, *self._lookups.values()]:
            await asyncio.wait(tasks, timeout=STOP_SECONDS)
        self.record_finished()
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._retiring:
            await asyncio.wait(self._retiring, timeout=STOP_SECONDS)
        await self.services.accounts.stop()
        await self.history.close()
        if self._export is not None:
            await self._export.flush(is_last=True)
        for route in self.services.routes:
            await route.save()
        await self.services.routes.close()
        self.services.workers.shutdown()
        if self._telemetry is not None:
            await self._telemetry.close()
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
        if self._telemetry is not None:
            await self._telemetry.export()
        await self.services.accounts.sweep()
        await self.history.flush()
        if self._export is not None:
            await self._export.flush()
        for route in self.services.routes:
            await route.save()


def _configured_models(config: Config) -> set[str]:
    """Return the names and patterns of models in a configuration."""
    return {name for upstream in config.upstreams.values() for name in upstream.models}


def _reject_reload() -> Config:
    raise InputError("This gateway was started with settings that cannot be read again.")


def _create_authenticator(
    accounts: AccountService, oidc: OidcConfig, environment: Mapping[str, str]
) -> Authenticator:
    """Return what identifies clients and operators, by keys and by the configured provider."""
    if oidc.issuer is None:
        return Authenticator(accounts)
    try:
        from brim.gateway.identity import IdentityProvider
        from brim.gateway.operator_sessions import OperatorSessions
    except ImportError as error:
        message = "gateway.oidc needs PyJWT. Install it: pip install 'brim[oidc]'"
        raise InputError(message) from error
    provider = IdentityProvider(oidc, _read_variable(oidc.client_secret_env, environment))
    sessions = None
    if oidc.client_id:
        sessions = OperatorSessions(oidc, _read_variable(oidc.session_secret_env, environment))
    return Authenticator(accounts, provider, sessions)


def _read_variable(name: str | None, environment: Mapping[str, str]) -> str:
    """Return a secret of the environment; empty without a name. Raise `InputError` if not set."""
    if name and not environment.get(name):
        raise InputError(f"{name} is not set. gateway.oidc needs it.")
    return environment.get(name or "", "")


def _create_telemetry(config: Config, environment: Mapping[str, str]) -> Telemetry | None:
    """Return what sends traces and metrics to the configured endpoint."""
    if not config.gateway.otlp_endpoint:
        return None
    try:
        from brim.gateway.telemetry import Telemetry
    except ImportError as error:
        raise InputError(
            "gateway.otlp_endpoint needs OpenTelemetry. Install it: pip install 'brim[otel]'"
        ) from error
    addresses = {name: upstream.endpoint for name, upstream in config.upstreams.items()}
    return Telemetry(config.gateway.otlp_endpoint, addresses, environment)


# A changed configuration: which settings apply, and which need a restart

NEED_RESTART: Final = frozenset(
    (
        *("host", "port", "store", "require_keys", "lease_seconds", "keep_requests"),
        *("history_days", "retrieve", "export", "oidc"),
        *("alert_url", "alert_secret_env", "keep_ledger_days", "otlp_endpoint"),
        *("stop_seconds", "drain_seconds", "send_seconds"),
    )
)
"""Settings of the gateway that are read only when it starts."""


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """The names of the settings that differ between two configurations."""

    changed: tuple[str, ...]
    """Settings that apply to new requests."""
    needs_restart: tuple[str, ...]

    @classmethod
    def of(cls, before: Config, after: Config) -> ConfigChange:
        names = [*_compare_gateways(before, after), *_compare_upstreams(before, after)]
        held = [name for name in names if name.removeprefix("gateway.") in NEED_RESTART]
        return cls(tuple(name for name in names if name not in held), tuple(held))


def _compare_gateways(before: Config, after: Config) -> Iterator[str]:
    for field in fields(before.gateway):
        if getattr(before.gateway, field.name) != getattr(after.gateway, field.name):
            yield f"gateway.{field.name}"


def _compare_upstreams(before: Config, after: Config) -> Iterator[str]:
    for name in sorted(before.upstreams.keys() | after.upstreams.keys()):
        if before.upstreams.get(name) != after.upstreams.get(name):
            yield f"upstreams.{name}"
    if before.models != after.models:
        yield "models"
