"""Authentication of clients and operators by their key.

Keys are cached for a few seconds. A completion costs money, so its reservation checks in the store
that the key is still active. Requests without a reservation look the key up again if it matters.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from brim.errors import AccountStoreUnavailableError
from brim.gateway import errors
from brim.gateway.account_service import AccountService
from brim.gateway.accounts.keys import KEY_PREFIX, Access, hash_secret
from brim.gateway.errors import (
    INVALID_KEY_MESSAGE,
    GatewayError,
    ProviderUnavailableError,
    TokenRejectedError,
)
from brim.gateway.headers import ClientHeaders

if TYPE_CHECKING:
    from brim.gateway.identity import IdentityProvider
    from brim.gateway.operator_sessions import OperatorSessions

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
_TOKEN_START: Final = "eyJ"
"""How every JSON Web Token begins: the base64 of `{"`."""

log = logging.getLogger("brim.gateway")


class Authenticator:
    """Finds the key of a request in the account store."""

    def __init__(
        self,
        accounts: AccountService,
        provider: IdentityProvider | None = None,
        sessions: OperatorSessions | None = None,
    ) -> None:
        self._accounts = accounts
        self.provider = provider
        """The provider whose tokens are accepted, if there is one."""
        self.sessions = sessions
        """The sessions of operators who have signed in at the provider."""
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

    async def authenticate_operator(self, headers: ClientHeaders) -> str:
        """Return the operator's name for the audit log. Raise `GatewayError` for other clients."""
        secret = find_secret(headers)
        if self.sessions is not None and secret is None:
            if (name := self.sessions.find_operator(headers)) is not None:
                return f"oidc:{name}"
        elif self.provider is not None and secret is not None and is_token(secret):
            name = name_operator(self.provider, await self._verify(secret))
            if name is None:
                raise _operator_required_error()
            return f"oidc:{name}"
        access = await self._authenticate(headers, refresh=True)
        if not access.key.is_operator:
            raise _operator_required_error()
        return f"key:{access.key.name}"

    async def _authenticate(self, headers: ClientHeaders, *, refresh: bool) -> Access:
        secret = find_secret(headers)
        if secret is None:
            raise errors.invalid_key_error(
                "API key missing. Send a key of this gateway: `Authorization: Bearer brim-…`"
            )
        hashed = hash_secret(secret)
        expires, access = self._cache.get(hashed, _NOT_CACHED)
        if time.monotonic() >= expires or (refresh and access is not None):
            access = await self._look_up(secret, hashed, access)
        if access is None:
            raise errors.invalid_key_error(INVALID_KEY_MESSAGE)
        end = access.key.rules.expires
        if end is not None and end <= time.time():
            raise errors.expired_key_error(end)
        return access

    async def _look_up(self, secret: str, hashed: str, cached: Access | None) -> Access | None:
        seconds = KNOWN_KEY_SECONDS
        try:
            if self.provider is not None and is_token(secret):
                claims = await self._verify(secret)
                seconds = min(seconds, claims["exp"] - time.time())
                access: Access | None = await self._find_token_key(self.provider, claims)
            else:
                access = await self._accounts.access(hashed)
        except AccountStoreUnavailableError:
            if cached is None or self._accounts.rejects_when_unavailable:
                raise errors.store_unavailable_error() from None
            return cached
        self._keep(hashed, access, seconds)
        return access

    def _keep(self, place: str, access: Access | None, seconds: float) -> None:
        seconds = seconds if access else UNKNOWN_KEY_SECONDS
        self._cache[place] = (time.monotonic() + seconds, access)
        self._cache.move_to_end(place)
        if len(self._cache) > MAX_CACHED_KEYS:
            self._cache.popitem(last=False)

    async def _verify(self, token: str) -> Mapping[str, Any]:
        """Return the claims of a token that is sent as a key. Raise `GatewayError` if invalid."""
        assert self.provider is not None
        try:
            return await self.provider.verify(token, self.provider.config.audience)
        except TokenRejectedError as error:
            log.info("token rejected", extra={"fields": {"reason": str(error)}})
            raise errors.invalid_key_error("This token is not valid for this gateway.") from None
        except ProviderUnavailableError as error:
            log.warning("sign-in provider unavailable", extra={"fields": {"reason": str(error)}})
            raise errors.provider_unavailable_error() from None

    async def _find_token_key(
        self, provider: IdentityProvider, claims: Mapping[str, Any]
    ) -> Access:
        """Return the key that a token stands for, and the end user that it names."""
        config = provider.config
        name = read_claim(claims, config.key_claim) or config.key
        place = f"name {name}"  # unlike any hash
        expires, access = self._cache.get(place, _NOT_CACHED)
        if time.monotonic() >= expires:
            access = await self._accounts.access_by_name(name)
            self._keep(place, access, KNOWN_KEY_SECONDS)
        if access is None:
            message = "No active key of this gateway belongs to this token. Ask its operator."
            raise GatewayError(403, "no_key_for_token", message)
        user = read_claim(claims, config.user_claim) or claims["sub"]
        return replace(access, user=limit_user(user))


def is_token(secret: str) -> bool:
    """Return whether a secret looks like a signed JSON Web Token."""
    return secret.startswith(_TOKEN_START) and secret.count(".") == 2


def read_claim(claims: Mapping[str, Any], name: str) -> str:
    """Return a claim that is text, else an empty text.

    An email address counts only if the provider has verified it: with some providers, users can
    enter any address.
    """
    if name == "email" and claims.get("email_verified") is not True:
        return ""
    value = claims.get(name)
    return value if isinstance(value, str) else ""


def name_operator(provider: IdentityProvider, claims: Mapping[str, Any]) -> str | None:
    """Return a name for the audit log if claims are those of an operator, else None."""
    for condition in provider.config.operators:
        name, _, wanted = condition.partition("=")
        listed = claims.get(name)
        if wanted in (listed if isinstance(listed, list) else [read_claim(claims, name)]):
            return limit_user(ascii(read_claim(claims, "email") or claims["sub"])[1:-1])
    return None


def _operator_required_error() -> GatewayError:
    message = "This path needs an operator key. Create one: `brim keys add NAME --operator`"
    return GatewayError(403, "operator_key_required", message)


def check_model(access: Access, *names: object) -> None:
    """Raise `GatewayError` if a key is limited to other models; an alias is a second name."""
    given = [name if isinstance(name, str) else "" for name in names]
    if not may_use(access, *given):
        raise errors.model_not_allowed_error(given[0], access.key.rules.models)


def may_use(access: Access, *names: str) -> bool:
    """Return whether a key may use a model with one of these names."""
    allowed = access.key.rules.models
    return not allowed or any(fnmatchcase(name, each) for name in names for each in allowed)


def find_end_user(body: Mapping[str, Any], headers: Mapping[bytes, bytes], header: str) -> str:
    """Return the end user of a request, as the configured header or the body names them.

    Return an empty text if neither does. A name that is long or not printable is replaced by a
    hash, so that it stays different from others and every store can keep it.
    """
    metadata = body.get("metadata")
    found: object = headers.get(header.lower().encode(), b"").decode("utf-8", "replace")
    if not found:
        nested = metadata.get("user_id") if isinstance(metadata, Mapping) else None
        found = body.get("user") or body.get("safety_identifier") or nested
    if not isinstance(found, str):
        return ""
    return limit_user(found)


def limit_user(name: str) -> str:
    """Return the name of an end user; its hash if it is long or not printable."""
    is_plain = len(name) <= MAX_USER_LENGTH and name.isprintable()
    return name if is_plain else f"sha256:{hash_secret(name)}"


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
