"""Authentication of clients and operators by their key.

Keys are cached for a few seconds. A completion costs money, so its reservation checks in the store
that the key is still active. Requests without a reservation look the key up again if it matters.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from brim.errors import AccountStoreUnavailableError
from brim.gateway import errors
from brim.gateway.account_service import AccountService
from brim.gateway.accounts.keys import KEY_PREFIX, Access, hash_secret
from brim.gateway.errors import INVALID_KEY_MESSAGE, GatewayError
from brim.gateway.headers import ClientHeaders

KNOWN_KEY_SECONDS: Final = 5.0
"""Seconds for which a key and its caps are cached."""
UNKNOWN_KEY_SECONDS: Final = 1.0
"""Seconds for which an invalid key is cached."""
MAX_CACHED_KEYS: Final = 10_000
MAX_USER_LENGTH: Final = 128
"""Characters of the name of an end user that are stored."""
KEY_HEADERS: Final = frozenset((b"x-api-key", b"authorization", b"api-key", b"x-goog-api-key"))
"""Headers in which clients send their key."""
_NOT_CACHED: Final = (0.0, None)


class Authenticator:
    """Finds the key of a request in the account store."""

    def __init__(self, accounts: AccountService) -> None:
        self._accounts = accounts
        self._cache: OrderedDict[str, tuple[float, Access | None]] = OrderedDict()

    async def authenticate_client(self, headers: ClientHeaders, *, refresh: bool = False) -> Access:
        """Return the client's key and caps. Raise `GatewayError` if it has no valid key.

        `refresh` looks the key up even if it is cached.
        """
        access = await self._authenticate(headers, refresh=refresh)
        if access.key.is_operator:
            message = "An operator key cannot send model requests. Use a client key."
            raise GatewayError(403, "operator_key", message)
        return access

    async def authenticate_operator(self, headers: ClientHeaders) -> Access:
        """Return the operator's key. Raise `GatewayError` if the request does not have one."""
        access = await self._authenticate(headers, refresh=True)
        if not access.key.is_operator:
            message = "This path needs an operator key. Create one: `brim keys add NAME --operator`"
            raise GatewayError(403, "operator_key_required", message)
        return access

    async def _authenticate(self, headers: ClientHeaders, *, refresh: bool) -> Access:
        secret = find_secret(headers)
        if secret is None:
            raise errors.invalid_key_error(
                "API key missing. Send a key of this gateway: `Authorization: Bearer brim-…`"
            )
        hashed = hash_secret(secret)
        expires, access = self._cache.get(hashed, _NOT_CACHED)
        if time.monotonic() >= expires or (refresh and access is not None):
            access = await self._look_up(hashed, access)
        if access is None:
            raise errors.invalid_key_error(INVALID_KEY_MESSAGE)
        end = access.key.rules.expires
        if end is not None and end <= time.time():
            raise errors.expired_key_error(end)
        return access

    async def _look_up(self, hashed: str, cached: Access | None) -> Access | None:
        try:
            access = await self._accounts.access(hashed)
        except AccountStoreUnavailableError:
            if cached is None or self._accounts.rejects_when_unavailable:
                raise errors.store_unavailable_error() from None
            return cached
        seconds = KNOWN_KEY_SECONDS if access else UNKNOWN_KEY_SECONDS
        self._cache[hashed] = (time.monotonic() + seconds, access)
        self._cache.move_to_end(hashed)
        if len(self._cache) > MAX_CACHED_KEYS:
            self._cache.popitem(last=False)
        return access


def check_model(access: Access, *names: object) -> None:
    """Raise `GatewayError` if a key is limited to other models; an alias is a second name."""
    allowed = access.key.rules.models
    given = [name if isinstance(name, str) else "" for name in names]
    if allowed and not any(fnmatchcase(name, pattern) for name in given for pattern in allowed):
        raise errors.model_not_allowed_error(given[0], allowed)


def find_end_user(body: Mapping[str, Any], headers: Mapping[bytes, bytes], header: str) -> str:
    """Return the end user of a request, as the configured header or the body names them.

    Return an empty text if neither does. A long name is replaced by a hash, so that it stays
    different from others.
    """
    metadata = body.get("metadata")
    found: object = headers.get(header.lower().encode(), b"").decode("utf-8", "replace")
    if not found:
        nested = metadata.get("user_id") if isinstance(metadata, Mapping) else None
        found = body.get("user") or body.get("safety_identifier") or nested
    if not isinstance(found, str):
        return ""
    return found if len(found) <= MAX_USER_LENGTH else f"sha256:{hash_secret(found)}"


def find_secret(headers: ClientHeaders) -> str | None:
    """Return the key that a client sent; if there are several, prefer one of this gateway."""
    found: str | None = None
    for name, value in headers.pairs:
        if name in KEY_HEADERS and value:
            text = value.decode("latin-1").strip()
            scheme, _, rest = text.partition(" ")
            secret = rest.strip() if scheme.lower() == "bearer" else text
            if secret.startswith(KEY_PREFIX):
                return secret
            found = found or secret
    return found
