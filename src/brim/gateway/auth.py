"""Admission: who may ask for what, by the key that they show.

Who a key belongs to is looked up once in a while and remembered in between. An answer costs money,
so its claim looks in the books itself whether the key still lives; where no claim is made and it
matters, the key is looked up anew.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from brim.errors import AccountStoreUnavailableError
from brim.gateway import denials
from brim.gateway.accounts.keys import KEY_PREFIX, hash_secret
from brim.gateway.denials import INVALID_KEY_MESSAGE
from brim.gateway.errors import GatewayError

if TYPE_CHECKING:
    from brim.gateway.accounts.keys import Access
    from brim.gateway.headers import ClientHeaders
    from brim.gateway.reservations import AccountService

KNOWN_KEY_SECONDS: Final = 5.0
"""Seconds for which a key and its caps are taken as they were found."""
UNKNOWN_KEY_SECONDS: Final = 1.0
"""The same for one that nobody knows."""
MAX_CACHED_KEYS: Final = 10_000
KEY_HEADERS: Final = frozenset((b"x-api-key", b"authorization", b"api-key"))
"""Where clients put their key."""
_NOT_CACHED: Final = (0.0, None)


class Authenticator:
    """Lets those in who show a key that lives."""

    def __init__(self, accounts: AccountService) -> None:
        self._accounts = accounts
        self._known: OrderedDict[str, tuple[float, Access | None]] = OrderedDict()

    async def client(self, given: ClientHeaders, *, anew: bool = False) -> Access:
        """Who asks; a fault says why nobody does. `anew` looks the key up in any case."""
        access = await self._access(given, anew)
        if access.key.is_operator:
            said = "this is the operator's key, which answers no requests"
            raise GatewayError(403, "operator_key", said)
        return access

    async def operator(self, given: ClientHeaders) -> None:
        """Let nobody but the operator pass."""
        if not (await self._access(given, anew=True)).key.is_operator:
            said = "this is for the operator's key; `brim keys add NAME --operator` makes one"
            raise GatewayError(403, "not_the_operator", said)

    async def _access(self, given: ClientHeaders, anew: bool) -> Access:
        secret = find_secret(given)
        if secret is None:
            raise denials.invalid_key_error(
                "show a key of this gateway, as `Authorization: Bearer brim-…`"
            )
        name = hash_secret(secret)
        until, access = self._known.get(name, _NOT_CACHED)
        if time.monotonic() >= until or (anew and access is not None):
            access = await self._looked_up(name, access)
        if access is None:
            raise denials.invalid_key_error(INVALID_KEY_MESSAGE)
        return access

    async def _looked_up(self, name: str, before: Access | None) -> Access | None:
        try:
            access = await self._accounts.access(name)
        except AccountStoreUnavailableError:
            if before is None or self._accounts.refuses:
                raise denials.store_unavailable_error() from None
            return before
        self._known[name] = (
            time.monotonic() + (KNOWN_KEY_SECONDS if access else UNKNOWN_KEY_SECONDS),
            access,
        )
        self._known.move_to_end(name)
        if len(self._known) > MAX_CACHED_KEYS:
            self._known.popitem(last=False)
        return access


def find_secret(given: ClientHeaders) -> str | None:
    """The key that a client shows; one of this gateway, where it shows several."""
    found: str | None = None
    for name, value in given.heads:
        if name in KEY_HEADERS and value:
            shown = value.decode("latin-1").strip()
            scheme, _, rest = shown.partition(" ")
            secret = rest.strip() if scheme.lower() == "bearer" else shown
            if secret.startswith(KEY_PREFIX):
                return secret
            found = found or secret
    return found
