"""The account store as one gateway uses it.

Every request makes a reservation in the store. Settlements are recorded in batches and kept in
memory until the store has them. While the store is unavailable no request is sent, unless the
settings say otherwise; the gateway never keeps a budget of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from brim.config import GatewayConfig, state_folder
from brim.errors import AccountStoreError, AccountStoreUnavailableError
from brim.gateway import errors
from brim.gateway.accounts import create_store, file_path
from brim.gateway.accounts.keys import Access
from brim.gateway.accounts.rates import Admission, RateReached
from brim.gateway.accounts.reservations import (
    CapReached,
    Rejection,
    Reservation,
    ReservationInvalid,
    Settlement,
)
from brim.gateway.accounts.store import AccountStore, check_retention, find_access
from brim.gateway.alert_sender import AlertSender
from brim.gateway.errors import (
    INVALID_KEY_MESSAGE,
    RESERVATION_EXPIRED_MESSAGE,
    GatewayError,
    StoreOutcomeUnknownError,
)

RETRY_SECONDS: Final = 1.0
"""Seconds between attempts to open a store that is unavailable."""
MAX_SETTLEMENTS: Final = 500
"""Settlements that are recorded in one call."""
PRUNE_SECONDS: Final = 3_600.0
MARKER_FILE: Final = "accounts.required"
UNLIMITED: Final = Admission(())
"""The answer to a reservation without rate limits."""
UNCONFIRMED: Final = Admission(())
"""The answer to a reservation that the store may have or not."""

log = logging.getLogger("brim.gateway")


class AccountService:
    """The account store, the reservations in flight, and the settlements not recorded yet."""

    def __init__(self, settings: GatewayConfig, environment: Mapping[str, str]) -> None:
        folder = state_folder(environment)
        file = file_path(settings.store, folder)
        self.store = create_store(settings.store, folder)
        self._marker = None if file is None else KeyMarker(folder, file)
        """Of a file: it is used only if it exists, and must not be lost unnoticed."""
        has_had_keys = self._marker is None or self._marker.is_set()
        has_sign_in = settings.oidc.issuer is not None
        self.requires_keys = settings.require_keys or has_sign_in or has_had_keys
        """Whether clients need a key; true as soon as the store contains one."""
        self.is_unavailable = False
        self.apply(settings)
        self.alerts = AlertSender(settings, environment)
        self._keep_days = check_retention(settings.keep_ledger_days)
        self._prune_at = 0.0
        """When old rows of the ledger are deleted next."""
        self.collect_settlements: Callable[[], None] = lambda: None
        """Settles finished requests whose settlement is still to be computed."""
        self._lease = settings.lease_seconds
        self._is_open = False
        self._renew_at: dict[str, float] = {}
        """When to renew the lease of each reservation in flight."""
        self._unsettled: list[Settlement] = []
        self._settle_lock = asyncio.Lock()
        self._settling: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._alerting: asyncio.Task[None] | None = None

    def apply(self, settings: GatewayConfig) -> None:
        """Use the settings that may change while the gateway runs."""
        self.allowed_fields = settings.allowed_fields
        """Fields and tools that keys with caps may send though their cost has no known bound."""
        self.user_header = settings.user_header
        """The header that names the end user of a request; empty if only the body does."""
        self.rejects_when_unavailable = settings.store_unavailable == "reject"
        """Whether requests are rejected while the store is unavailable."""

    @property
    def unsettled(self) -> int:
        """Number of finished requests that the store does not have yet."""
        return len(self._unsettled)

    # Lifetime

    async def start(self) -> None:
        """Open the store, or keep trying in the background if it is unavailable.

        Raise `AccountStoreError` if retrying cannot help.
        """
        try:
            await self.find_keys()
        except AccountStoreUnavailableError as error:
            self._set_unavailable(error)

    async def stop(self) -> None:
        for task in (self._opening, self._alerting):
            if task is not None:
                task.cancel()
        if not self._is_open:
            return
        try:
            await self._settle_all()
        except AccountStoreError as error:  # their leases expire, so they are charged in full
            fields = {"requests": len(self._unsettled), "reason": str(error)}
            log.exception("settlement failed", extra={"fields": fields})
        await self.store.close()

    async def sweep(self) -> None:
        """Renew leases, record settlements, and end the expired leases of other gateways."""
        try:
            if not self._is_open:
                await self.find_keys()
            if self._is_open:
                await self._renew_leases()
                await self._settle_all()
                await self.store.sweep()
                self._start_alerts()
                await self._prune()
                self._set_available()
        except AccountStoreError as error:
            self._set_unavailable(error)

    def _start_alerts(self) -> None:
        """Send alerts in the background: a slow receiver must not delay the renewal of leases."""
        if self.alerts.is_enabled and (self._alerting is None or self._alerting.done()):
            self._alerting = asyncio.create_task(self._send_alerts())

    async def _send_alerts(self) -> None:
        try:
            await self.alerts.run(self.store)
        except AccountStoreError as error:
            self._set_unavailable(error)
        except Exception:
            log.exception("alerts failed")

    async def _prune(self) -> None:
        """Delete old rows of the ledger, once an hour."""
        now = time.monotonic()
        if not self._keep_days or now < self._prune_at:
            return
        self._prune_at = now + PRUNE_SECONDS
        today = datetime.now(UTC).date()
        if pruned := await self.store.prune(today - timedelta(days=self._keep_days)):
            log.info("ledger pruned", extra={"fields": {"rows": pruned}})

    async def _renew_leases(self) -> None:
        now = time.monotonic()
        due = [id for id, when in self._renew_at.items() if when <= now]
        if due:
            await self.store.renew(due, self._lease)
            running = [id for id in due if id in self._renew_at]  # the others have ended meanwhile
            self._renew_at.update(dict.fromkeys(running, now + self._lease / 3))

    async def find_keys(self) -> None:
        """Open the store if it exists, and require keys as soon as it has one."""
        if not self.requires_keys and self._marker is not None and not self._marker.store.exists():
            return
        try:
            await self._open()
            if self._marker is not None and not self.requires_keys and await self.store.keys():
                self.requires_keys = True
                self._marker.set()
        except AccountStoreError:  # it may have keys, so require them
            self.requires_keys = True
            raise
        if not self.requires_keys:
            await self.store.close()
            self._is_open = False

    async def _open(self) -> None:
        await self.store.open()
        self._is_open = True
        self._set_available()

    def _set_available(self) -> None:
        if self.is_unavailable:
            log.warning("account store available again")
        self.is_unavailable = False

    def _set_unavailable(self, error: AccountStoreError) -> None:
        if not self.is_unavailable:
            log.error("account store unavailable", extra={"fields": {"reason": str(error)}})
        self.is_unavailable = True
        if not self._is_open and (self._opening is None or self._opening.done()):
            self._opening = asyncio.create_task(self._keep_opening())

    async def _keep_opening(self) -> None:
        while not self._is_open:
            await asyncio.sleep(RETRY_SECONDS)
            with suppress(AccountStoreError):
                await self._open()

    # Keys

    async def access(self, secret_hash: str) -> Access | None:
        """Return the key with this hash and its caps; None if no active key has it.

        Raise `AccountStoreUnavailableError` while the store is unavailable.
        """
        return await self._read_access(lambda store: store.access(secret_hash))

    async def access_by_name(self, name: str) -> Access | None:
        """Return the active key with this name and its caps, in the same way."""
        return await self._read_access(lambda store: find_access(store, name))

    async def _read_access(
        self, read: Callable[[AccountStore], Awaitable[Access | None]]
    ) -> Access | None:
        try:
            return await read(self.open_store())
        except AccountStoreError as error:
            self._set_unavailable(error)
            raise AccountStoreUnavailableError(str(error)) from None

    def open_store(self) -> AccountStore:
        """Return the store. Raise `AccountStoreUnavailableError` if it is not open yet."""
        if not self._is_open:
            raise AccountStoreUnavailableError("The account store is not open yet.")
        return self.store

    # Reservations

    async def reserve(self, reservation: Reservation) -> Admission | None:
        """Reserve the maximum cost of a request. Raise `GatewayError` if a cap has no room.

        Return None if the store is unavailable and the request is sent unrecorded, or `UNCONFIRMED`
        in the moment when it becomes unavailable: the request is settled, and counts if the store
        has its reservation.
        """
        was_unavailable = self.is_unavailable
        try:
            found = await self.open_store().reserve(reservation, self._lease)
            if isinstance(found, Rejection):
                found = await self._retry_reserve(reservation, found)
        except AccountStoreError as error:
            self._check_may_send(error, reservation.id, is_maybe_stored=not was_unavailable)
            return None if was_unavailable else UNCONFIRMED
        if self.is_unavailable:
            self._set_available()
        self._renew_at[reservation.id] = time.monotonic() + self._lease / 3
        return found or UNLIMITED

    async def mark_sent(self, id: str) -> None:
        """Record that a request is about to be sent, so that it counts from now on.

        Raise `GatewayError` if it must not be sent.
        """
        try:
            if not await self.store.mark_sent(id, self._lease):
                raise errors.store_unavailable_error(RESERVATION_EXPIRED_MESSAGE)
        except AccountStoreError as error:
            self._check_may_send(error, id, is_maybe_stored=True)

    def _check_may_send(self, error: AccountStoreError, id: str, *, is_maybe_stored: bool) -> None:
        """Raise `GatewayError` unless requests may be sent while the store is unavailable."""
        self._set_unavailable(error)
        if self.rejects_when_unavailable or not isinstance(error, AccountStoreUnavailableError):
            error_type = StoreOutcomeUnknownError if is_maybe_stored else GatewayError
            raise errors.store_unavailable_error(error=error_type) from None
        log.warning("request sent unrecorded", extra={"fields": {"id": id}})

    async def _retry_reserve(
        self, reservation: Reservation, rejection: Rejection
    ) -> Admission | None:
        """Try again if that may help. Raise `GatewayError` if it does not."""
        found: Rejection | Admission | None = rejection
        if not isinstance(rejection, ReservationInvalid):
            # Finished requests that are not settled yet still hold their maximum cost.
            self.collect_settlements()
            if self._unsettled or self._settle_lock.locked():
                await self._settle_all()
                found = await self.store.reserve(reservation, self._lease)
        if isinstance(found, CapReached):
            amount = reservation.max_charge.amount(found.cap.unit)
            if found.spent + amount > found.cap.limit >= amount:
                self.alerts.note_rejection(found.scope, found.cap)
            raise errors.cap_error(found, amount, reservation.key_name)
        if isinstance(found, RateReached):
            raise errors.rate_error(found, reservation)
        if isinstance(found, ReservationInvalid):
            keys = await self.store.keys()
            is_active = any(key.id == reservation.key and key.revoked is None for key in keys)
            raise (
                errors.store_unavailable_error(RESERVATION_EXPIRED_MESSAGE)
                if is_active
                else errors.invalid_key_error(INVALID_KEY_MESSAGE)
            )
        return found

    # Settlements

    def settle(self, settlements: Iterable[Settlement]) -> None:
        """Record the actual cost of requests, in the background."""
        for settlement in settlements:
            self._renew_at.pop(settlement.id, None)
            self._unsettled.append(settlement)
        if self._settling is None:
            self._settling = asyncio.create_task(self._settle_in_background())

    def abandon(self, id: str) -> None:
        """Let the lease of a reservation expire, because its actual cost is unknown."""
        self._renew_at.pop(id, None)

    async def _settle_in_background(self) -> None:
        try:
            await self._settle_all()
        except AccountStoreError as error:
            self._set_unavailable(error)
        except Exception:
            log.exception("settlement failed")
        finally:
            self._settling = None

    async def _settle_all(self) -> None:
        """Record every settlement that is known now."""
        async with self._settle_lock:
            while self._unsettled:
                await self._settle_batch(MAX_SETTLEMENTS)

    async def _settle_batch(self, size: int) -> None:
        batch, self._unsettled = self._unsettled[:size], self._unsettled[size:]
        try:
            await self.open_store().settle(batch)
        except (AccountStoreError, asyncio.CancelledError):
            self._unsettled[:0] = batch  # settling twice is safe: each counts once
            raise
        except Exception:
            if len(batch) == 1:  # its lease expires, so it is charged in full
                log.exception("settlement failed", extra={"fields": {"id": batch[0].id}})
                return
            self._unsettled[:0] = batch
            for _ in batch:  # one by one, so that the invalid one does not block the others
                await self._settle_batch(1)


@dataclass(frozen=True, slots=True)
class KeyMarker:
    """A note outside of the store's file that it contained keys.

    A missing file looks like one that never existed, and without keys everyone is admitted. To go
    back to a gateway without keys, delete the marker.
    """

    folder: Path
    store: Path

    @property
    def path(self) -> Path:
        return self.folder / MARKER_FILE

    def is_set(self) -> bool:
        try:
            lines = self.path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        except FileNotFoundError:
            return False
        except OSError:  # the marker exists but cannot be read: assume the safe answer
            return True
        return self._line in lines

    def set(self) -> None:
        """Write the marker. If that fails, log it and continue."""
        if self.is_set():
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self.path.open("a", encoding="utf-8", errors="surrogateescape") as file:
                file.write(f"{self._line}\n")
        except OSError as error:
            fields = {"file": str(self.path), "reason": error.strerror or str(error)}
            log.warning("marker of existing keys not written", extra={"fields": fields})

    @property
    def _line(self) -> str:
        """The path of the store, on one line."""
        return os.fspath(self.store.absolute()).replace("\n", "\\n")


async def requires_keys(settings: GatewayConfig, environment: Mapping[str, str]) -> bool:
    """Return whether a gateway with these settings admits only clients with a key.

    Raise `AccountStoreError` if the store cannot be used and retrying cannot help.
    """
    accounts = AccountService(settings, environment)
    with suppress(AccountStoreUnavailableError):
        await accounts.find_keys()
    await accounts.stop()
    return accounts.requires_keys
