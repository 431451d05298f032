"""Accounts: the team's books as one gateway uses them.

A claim is made in the books for every request. What requests came to is booked in batches, and kept
until it is booked. While the books are away nothing is sent, unless the settings say otherwise, and
there is never a budget of the gateway's own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from brim.errors import AccountStoreError, AccountStoreUnavailableError
from brim.gateway import denials
from brim.gateway.accounts.reservations import CapReached, ReservationInvalid
from brim.gateway.denials import INVALID_KEY_MESSAGE, RESERVATION_EXPIRED_MESSAGE

if TYPE_CHECKING:
    from brim.gateway.accounts.keys import Access
    from brim.gateway.accounts.reservations import Reservation, Settlement
    from brim.gateway.accounts.store import AccountStore

RETRY_SECONDS: Final = 1.0
"""Seconds between tries to reach books that are away."""
MAX_SETTLEMENTS: Final = 500
"""Settlements that are booked together."""

log = logging.getLogger("brim.gateway")


class AccountService:
    """The books, what runs against them, and what waits to be booked."""

    def __init__(
        self,
        books: AccountStore,
        *,
        lease: float,
        is_required: bool,
        refuses: bool = True,
        may_look: Callable[[], bool] = lambda: True,
        remember: Callable[[], None] = lambda: None,
    ) -> None:
        self.books = books
        self.is_required = is_required
        """Whether clients have to show a key. Once the books have one, they have to."""
        self.is_away = False
        self._lease = lease
        self.refuses = refuses
        """Whether requests are refused while the books are away."""
        self._may_look = may_look
        """Whether there are books at all; a gateway without keys does not make any."""
        self._remember = remember
        """Is called when keys are found, so that books that vanish do not let everybody in."""
        self._is_open = False
        self._claims: dict[str, float] = {}
        """Claims that run, and when their lease is to be renewed."""
        self._waiting: list[Settlement] = []
        self.take_down: Callable[[], None] = lambda: None
        """Brings in the settlements of requests that are over and were not taken down yet."""
        self._booking = asyncio.Lock()
        self._settling: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None

    @property
    def unsettled(self) -> int:
        """How many requests are over and not booked yet."""
        return len(self._waiting)

    # While it serves

    async def start(self) -> None:
        """Open the books, or go on trying while requests are refused.

        Raises what waiting does not mend.
        """
        try:
            await self.find_keys()
        except AccountStoreUnavailableError as error:
            self._note_away(error)

    async def stop(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if not self._is_open:
            return
        try:
            await self._settle_all()
        except AccountStoreError as error:  # their leases run out, and they count in full
            told = {"requests": len(self._waiting), "why": str(error)}
            log.exception("not settled", extra={"told": told})
        await self.books.close()

    async def sweep(self) -> None:
        """Renew what runs, book what waits, and deal with what others left behind."""
        await self._look()
        if not self._is_open:
            return
        try:
            now = time.monotonic()
            due = [id for id, when in self._claims.items() if when <= now]
            if due:
                await self.books.renew(due, self._lease)
                running = [id for id in due if id in self._claims]  # others ended meanwhile
                self._claims.update(dict.fromkeys(running, now + self._lease / 3))
            await self._settle_all()
            await self.books.sweep()
            self._note_back()
        except AccountStoreError as error:
            self._note_away(error)

    async def _look(self) -> None:
        """Ask for keys from the first one on that was made."""
        if not self._is_open:
            try:
                await self.find_keys()
            except AccountStoreError as error:
                self._note_away(error)

    async def find_keys(self) -> None:
        """Open the books where there are any, and ask for keys where they have one."""
        if not (self.is_required or self._may_look()):
            return
        try:
            await self._open()
            if not self.is_required and await self.books.keys():
                self.is_required = True
                self._remember()
        except AccountStoreError:  # whether there are keys cannot be known
            self.is_required = True
            raise
        if not self.is_required:
            await self.books.close()
            self._is_open = False

    async def _open(self) -> None:
        await self.books.open()
        self._is_open = True
        self._note_back()

    def _note_back(self) -> None:
        if self.is_away:
            log.warning("books are back")
        self.is_away = False

    def _note_away(self, error: AccountStoreError) -> None:
        if not self.is_away:
            log.error("books away", extra={"told": {"why": str(error)}})
        self.is_away = True
        if not self._is_open and (self._opening is None or self._opening.done()):
            self._opening = asyncio.create_task(self._keep_opening())

    async def _keep_opening(self) -> None:
        while not self._is_open:
            await asyncio.sleep(RETRY_SECONDS)
            with suppress(AccountStoreError):
                await self._open()

    # What is claimed and settled

    async def access(self, hashed: str) -> Access | None:
        """Who shows a secret with this hash; raises while the books are away."""
        try:
            return await self._opened().access(hashed)
        except AccountStoreError as error:
            self._note_away(error)
            raise AccountStoreUnavailableError(str(error)) from None

    def _opened(self) -> AccountStore:
        if not self._is_open:
            raise AccountStoreUnavailableError("the books have not been opened yet")
        return self.books

    async def claim(self, claim: Reservation) -> bool:
        """Set aside what a request may cost. A fault where a cap has no room.

        False where the books are away and it goes out uncounted. One that is forwarded with its
        claim they may have all the same: it is settled, and counts if they do.
        """
        try:
            refused = await self._opened().reserve(claim, self._lease)
            if refused is not None:
                await self._insist(claim, refused)
        except AccountStoreError as error:
            self._let_pass(error, claim.id, may_stand=claim.is_forwarded)
            return claim.is_forwarded
        if self.is_away:
            self._note_back()
        self._claims[claim.id] = time.monotonic() + self._lease / 3
        return True

    async def forward(self, id: str) -> None:
        """Note that a request goes out now: from here on it counts. A fault where it must not."""
        try:
            if not await self.books.forward(id, self._lease):
                raise denials.store_unavailable_error(RESERVATION_EXPIRED_MESSAGE)
        except AccountStoreError as error:
            self._let_pass(error, id, may_stand=True)

    def _let_pass(self, error: AccountStoreError, id: str, *, may_stand: bool) -> None:
        """Let a request go out uncounted while the books are away, if the settings say so."""
        self._note_away(error)
        if self.refuses or not isinstance(error, AccountStoreUnavailableError):
            raise (
                denials.store_outcome_unknown_error()
                if may_stand
                else denials.store_unavailable_error()
            ) from None
        log.warning("uncounted", extra={"told": {"id": id}})

    async def _insist(
        self, claim: Reservation, refused: CapReached | ReservationInvalid | None
    ) -> None:
        """Claim once more, where that may help. A fault where it does not."""
        if isinstance(refused, CapReached):
            # What is over but not booked yet still holds what it claimed.
            self.take_down()
            if self._waiting or self._booking.locked():
                await self._settle_all()
                refused = await self.books.reserve(claim, self._lease)
        if isinstance(refused, CapReached):
            amount = claim.worst.amount(refused.cap.unit)
            raise denials.cap_error(refused, amount, claim.key_name)
        if isinstance(refused, ReservationInvalid):
            keys = await self.books.keys()
            lives = any(key.id == claim.key and key.revoked is None for key in keys)
            raise (
                denials.store_unavailable_error(RESERVATION_EXPIRED_MESSAGE)
                if lives
                else denials.invalid_key_error(INVALID_KEY_MESSAGE)
            )

    def settle(self, settlements: Iterable[Settlement]) -> None:
        """Book what requests came to, soon."""
        for settlement in settlements:
            self._claims.pop(settlement.id, None)
            self._waiting.append(settlement)
        if self._settling is None:
            self._settling = asyncio.create_task(self._settle_quietly())

    def leave(self, id: str) -> None:
        """Let a claim's lease run out: nobody knows what it came to."""
        self._claims.pop(id, None)

    async def _settle_quietly(self) -> None:
        try:
            await self._settle_all()
        except AccountStoreError as error:
            self._note_away(error)
        except Exception:
            log.exception("settling failed")
        finally:
            self._settling = None

    async def _settle_all(self) -> None:
        """All that was over when this was called is booked."""
        async with self._booking:
            while self._waiting:
                await self._settle_some(MAX_SETTLEMENTS)

    async def _settle_some(self, most: int) -> None:
        batch, self._waiting = self._waiting[:most], self._waiting[most:]
        try:
            await self._opened().settle(batch)
        except (AccountStoreError, asyncio.CancelledError):
            self._waiting[:0] = batch  # it may have been booked after all: that counts once
            raise
        except Exception:
            if len(batch) == 1:  # its lease runs out, and it counts in full
                log.exception("not settled", extra={"told": {"id": batch[0].id}})
                return
            self._waiting[:0] = batch
            for _ in batch:  # one of them cannot be booked, and the others are not to wait for it
                await self._settle_some(1)
