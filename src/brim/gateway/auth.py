"""Admission: who may ask for what, by the key that they show.

Who a key belongs to is looked up once in a while and remembered in between. An answer costs money,
so its claim looks in the books itself whether the key still lives; where no claim is made and it
matters, the key is looked up anew.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from brim.errors import BooksAwayError
from brim.gateway import denials
from brim.gateway.accounts.keys import PREFIX, hashed
from brim.gateway.denials import REVOKED
from brim.gateway.errors import FaultError

if TYPE_CHECKING:
    from brim.gateway.accounts.keys import Access
    from brim.gateway.headers import Given
    from brim.gateway.reservations import Accounts

FRESH: Final = 5.0
"""Seconds for which a key and its caps are taken as they were found."""
UNKNOWN: Final = 1.0
"""The same for one that nobody knows."""
MOST_KNOWN: Final = 10_000
SHOWN: Final = frozenset((b"x-api-key", b"authorization", b"api-key"))
"""Where clients put their key."""
_UNSEEN: Final = (0.0, None)


class Admission:
    """Lets those in who show a key that lives."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._known: OrderedDict[str, tuple[float, Access | None]] = OrderedDict()

    async def client(self, given: Given, *, anew: bool = False) -> Access:
        """Who asks; a fault says why nobody does. `anew` looks the key up in any case."""
        access = await self._access(given, anew)
        if access.key.is_operator:
            said = "this is the operator's key, which answers no requests"
            raise FaultError(403, "operator_key", said)
        return access

    async def operator(self, given: Given) -> None:
        """Let nobody but the operator pass."""
        if not (await self._access(given, anew=True)).key.is_operator:
            said = "this is for the operator's key; `brim keys add NAME --operator` makes one"
            raise FaultError(403, "not_the_operator", said)

    async def _access(self, given: Given, anew: bool) -> Access:
        secret = secret_in(given)
        if secret is None:
            raise denials.stranger("show a key of this gateway, as `Authorization: Bearer brim-…`")
        name = hashed(secret)
        until, access = self._known.get(name, _UNSEEN)
        if time.monotonic() >= until or (anew and access is not None):
            access = await self._looked_up(name, access)
        if access is None:
            raise denials.stranger(REVOKED)
        return access

    async def _looked_up(self, name: str, before: Access | None) -> Access | None:
        try:
            access = await self._accounts.access(name)
        except BooksAwayError:
            if before is None or self._accounts.refuses:
                raise denials.away() from None
            return before
        self._known[name] = (time.monotonic() + (FRESH if access else UNKNOWN), access)
        self._known.move_to_end(name)
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return access


def secret_in(given: Given) -> str | None:
    """The key that a client shows; one of this gateway, where it shows several."""
    found: str | None = None
    for name, value in given.heads:
        if name in SHOWN and value:
            shown = value.decode("latin-1").strip()
            scheme, _, rest = shown.partition(" ")
            secret = rest.strip() if scheme.lower() == "bearer" else shown
            if secret.startswith(PREFIX):
                return secret
            found = found or secret
    return found
