"""Accounts: the team's books as one gateway uses them.

Who shows a key is looked up once in a while and remembered in between; a claim is made in the books
for every request, and checks there that the key still lives. What requests came to is booked in
batches, and kept until it is booked. While the books are away nothing is sent, unless the settings
say otherwise, and there is never a budget of the gateway's own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from brim.accounts.caps import Cap, dollars
from brim.accounts.claims import Full, Unknown
from brim.accounts.keys import PREFIX, hashed
from brim.errors import BooksAwayError, StoreError
from brim.gateway.faults import FaultError

if TYPE_CHECKING:
    from brim.accounts.books import Books
    from brim.accounts.claims import Claim, Settlement
    from brim.accounts.keys import Access
    from brim.gateway.heads import Given

FRESH: Final = 5.0
"""Seconds for which a key and its caps are taken as they were found."""
MOST_KNOWN: Final = 10_000
RETRY: Final = 1.0
"""Seconds between tries to reach books that are away."""
MOST_SETTLED: Final = 500
"""Settlements that are booked together."""
SHOWN: Final = frozenset(("x-api-key", "authorization", "api-key"))
"""Where clients put their key."""

log = logging.getLogger("brim.gateway")


class Accounts:
    """Keys, caps and the ledger, with what is remembered of them here."""

    def __init__(
        self,
        books: Books,
        *,
        lease: float,
        is_required: bool,
        refuses: bool = True,
        may_look: Callable[[], bool] = lambda: True,
    ) -> None:
        self.books = books
        self.is_required = is_required
        """Whether clients have to show a key. Once the books have one, they have to."""
        self.is_away = False
        self._lease = lease
        self._refuses = refuses
        """Whether requests are refused while the books are away."""
        self._may_look = may_look
        """Whether there are books at all; a gateway without keys does not make any."""
        self._is_open = False
        self._known: OrderedDict[str, tuple[float, Access | None]] = OrderedDict()
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
        """Open the books, or go on trying while requests are refused."""
        if self.is_required:
            try:
                await self._open()
            except BooksAwayError as error:
                self._note_away(error)
        else:
            await self._look()

    async def stop(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if not self._is_open:
            return
        try:
            await self._settle_all()
        except StoreError as error:  # their leases run out, and they count in full
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
                self._claims.update(dict.fromkeys(due, now + self._lease / 3))
            await self._settle_all()
            await self.books.sweep()
            self.is_away = False
        except BooksAwayError as error:
            self._note_away(error)

    async def _look(self) -> None:
        """Ask for keys from the first one on that was made."""
        if self._is_open or not self._may_look():
            return
        try:
            await self._open()
            self.is_required = self.is_required or bool(await self.books.keys())
        except StoreError as error:  # whether there are keys cannot be known
            self.is_required = True
            self._note_away(error)
        if not self.is_required:
            await self.books.close()
            self._is_open = False

    async def _open(self) -> None:
        await self.books.open()
        self._is_open, self.is_away = True, False

    def _note_away(self, error: StoreError) -> None:
        if not self.is_away:
            log.error("books away", extra={"told": {"why": str(error)}})
        self.is_away = True
        if not self._is_open and (self._opening is None or self._opening.done()):
            self._opening = asyncio.create_task(self._keep_opening())

    async def _keep_opening(self) -> None:
        while not self._is_open:
            await asyncio.sleep(RETRY)
            try:
                await self._open()
            except StoreError:
                continue
            log.warning("books are back")

    # Who asks

    async def admit(self, given: Given) -> Access:
        """Who shows a key that lives; a fault says why nobody does."""
        access = await self._access(given)
        if access.key.is_operator:
            raise FaultError(
                403, "operator_key", "this is the operator's key, which answers no requests"
            )
        return access

    async def admit_operator(self, given: Given) -> None:
        if not (await self._access(given)).key.is_operator:
            said = "this is for the operator's key; `brim keys add NAME --operator` makes one"
            raise FaultError(403, "not_the_operator", said)

    async def _access(self, given: Given) -> Access:
        secret = secret_in(given)
        if secret is None:
            raise _stranger("show a key of this gateway, as `Authorization: Bearer brim-…`")
        name, now = hashed(secret), time.monotonic()
        until, access = self._known.get(name, (0.0, None))
        if now >= until:
            access = await self._looked_up(name, access)
        if access is None:
            raise _stranger("this key is not known here, or was revoked")
        return access

    async def _looked_up(self, name: str, before: Access | None) -> Access | None:
        try:
            access = await self._opened().access(name)
        except BooksAwayError as error:
            self._note_away(error)
            if before is None or self._refuses:
                raise _away() from None
            return before
        self.is_away = False
        self._known[name] = (time.monotonic() + (FRESH if access else 1.0), access)
        self._known.move_to_end(name)
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return access

    def _opened(self) -> Books:
        if not self._is_open:
            raise BooksAwayError("the books have not been opened yet")
        return self.books

    # What is claimed and settled

    async def claim(self, claim: Claim) -> bool:
        """Set aside what a request may cost. A fault where a cap has no room.

        False where the books are away and it goes out uncounted.
        """
        try:
            await self._reserve(claim)
        except BooksAwayError as error:
            self._let_pass(error, claim.id)
            return False
        self._claims[claim.id] = time.monotonic() + self._lease / 3
        return True

    async def forward(self, id: str) -> None:
        """Note that a request goes out now: from here on it counts. A fault where it must not."""
        try:
            if not await self.books.forward(id, self._lease):
                raise _away("the claim of this request ran out before it could be sent")
        except BooksAwayError as error:
            self._let_pass(error, id)

    def _let_pass(self, error: BooksAwayError, id: str) -> None:
        """Let a request go out uncounted while the books are away, if the settings say so."""
        self._note_away(error)
        if self._refuses:
            raise _away() from None
        log.warning("uncounted", extra={"told": {"id": id}})

    async def _reserve(self, claim: Claim) -> None:
        books = self._opened()
        refused = await books.reserve(claim, self._lease)
        if isinstance(refused, Full):
            # What is over but not booked yet still holds what it claimed.
            self.take_down()
            if self._waiting or self._booking.locked():
                await self._settle_all()
                refused = await books.reserve(claim, self._lease)
        if isinstance(refused, Full):
            raise cap_fault(refused, claim.worst.amount(refused.cap.unit), claim.key_name)
        if isinstance(refused, Unknown):
            self._known.clear()
            raise _stranger("this key is not known here, or was revoked")

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
        except BooksAwayError as error:
            self._note_away(error)
        except Exception:
            log.exception("settling failed")
        finally:
            self._settling = None

    async def _settle_all(self) -> None:
        """All that was over when this was called is booked."""
        async with self._booking:
            while self._waiting:
                await self._settle_some(MOST_SETTLED)

    async def _settle_some(self, most: int) -> None:
        batch, self._waiting = self._waiting[:most], self._waiting[most:]
        try:
            await self._opened().settle(batch)
        except (StoreError, asyncio.CancelledError):
            self._waiting[:0] = batch  # it may have been booked after all: that counts once
            raise
        except Exception:
            if len(batch) == 1:  # its lease runs out, and it counts in full
                log.exception("not settled", extra={"told": {"id": batch[0].id}})
                return
            self._waiting[:0] = batch
            for _ in batch:  # one of them cannot be booked, and the others are not to wait for it
                await self._settle_some(1)


def secret_in(given: Given) -> str | None:
    """The key that a client shows; one of this gateway, where it shows several."""
    found: str | None = None
    for name, value in given.passed:
        if name in SHOWN and value:
            scheme, _, rest = value.strip().partition(" ")
            secret = rest.strip() if scheme.lower() == "bearer" else value.strip()
            if secret.startswith(PREFIX):
                return secret
            found = found or secret
    return found


def _stranger(said: str) -> FaultError:
    return FaultError(401, "invalid_api_key", said, headers={"www-authenticate": "Bearer"})


def _away(said: str = "the books of keys and caps cannot be reached; try again soon") -> FaultError:
    return FaultError(503, "books_away", said, headers={"retry-after": "2"})


def cap_fault(full: Full, amount: int, key: str) -> FaultError:
    """A cap without room for a request, with the numbers, and when it opens again."""
    cap, whose = full.cap, _whose(full.scope, key)
    numbers = (
        f"{_shown(cap, full.spent)} spent, {_shown(cap, full.reserved)} under way, and this "
        f"request may take {_shown(cap, amount)} (less, if it asks for a shorter answer)"
    )
    if full.spent + amount <= cap.most:  # only what runs now is in the way
        said = f"{whose} cap of {cap} has no room just now: {numbers}. Try again in a moment."
        return FaultError(429, "insufficient_quota", said, headers={"retry-after": "1"})
    headers = {"x-should-retry": "false"}  # which the clients' libraries look at
    if amount > cap.most:
        said = f"{whose} cap of {cap} is smaller than what this request may take: {numbers}."
        return FaultError(429, "insufficient_quota", said, headers=headers)
    when = "It does not open again by itself."
    if full.opens is not None:
        when = f"It opens again at {datetime.fromtimestamp(full.opens, UTC):%Y-%m-%d %H:%M} UTC."
        headers["retry-after"] = str(max(1, round(full.opens - time.time())))
    said = f"{whose} cap of {cap} is reached: {numbers}. {when}"
    return FaultError(429, "insufficient_quota", said, headers=headers)


def _whose(scope: str, key: str) -> str:
    kind, _, name = scope.partition(":")
    if kind == "key":
        return f"the key {key}'s"
    return f"the project {name}'s" if kind == "project" else "the gateway's"


def _shown(cap: Cap, amount: int) -> str:
    return f"{amount:,}" if cap.unit == "tokens" else f"${dollars(amount).normalize():f}"
