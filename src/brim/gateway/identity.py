"""An OpenID Connect provider: its metadata and keys, and the tokens that it signs.

Tokens are verified by PyJWT, with public keys of the provider only and with algorithms from a fixed
list, so that a token cannot choose how it is checked.
"""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import jwt

from brim.config import OidcConfig
from brim.gateway.errors import ProviderUnavailableError, TokenRejectedError
from brim.gateway.web_calls import call_json

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"),
)
"""Algorithms with public keys. Never `none`, and none with a shared secret."""
LEEWAY_SECONDS: Final = 30.0
"""How far the clocks of provider and gateway may differ."""
METADATA_SECONDS: Final = 3_600.0
"""How long metadata and keys are cached."""
REFRESH_SECONDS: Final = 30.0
"""The least time between two requests for keys, however many tokens name unknown ones."""
RETRY_SECONDS: Final = 5.0
"""The same after a failure."""
REQUIRED_CLAIMS: Final = ("iss", "sub", "aud", "exp", "iat")


@dataclass(frozen=True, slots=True)
class ProviderMetadata:
    """What the provider says about itself."""

    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str

    @classmethod
    def of(cls, found: Mapping[str, Any], issuer: str) -> ProviderMetadata:
        """Raise `ProviderUnavailableError` for another issuer, or an unsafe address."""
        if found.get("issuer") != issuer:
            raise ProviderUnavailableError(f"Its issuer is not {issuer}.")
        scheme = urlsplit(issuer).scheme
        addresses = [str(found.get(name)) for name in cls.__slots__]
        for name, address in zip(cls.__slots__, addresses, strict=True):
            if urlsplit(address).scheme not in ("https", scheme):
                raise ProviderUnavailableError(f"Its {name} is missing or not confidential.")
        return cls(*addresses)


class IdentityProvider:
    """The provider of the configuration."""

    def __init__(self, config: OidcConfig, client_secret: str = "") -> None:
        assert config.issuer is not None
        self.config = config
        self._issuer = config.issuer
        self._secret = client_secret
        self._lock = asyncio.Lock()
        self._metadata: ProviderMetadata | None = None
        self._keys: Sequence[Mapping[str, Any]] = ()
        self._expires = 0.0
        self._next_read = 0.0

    async def metadata(self) -> ProviderMetadata:
        """Raise `ProviderUnavailableError` if it cannot be read."""
        if time.monotonic() > self._expires:
            await self._read()
        if self._metadata is None or time.monotonic() > self._expires:
            raise ProviderUnavailableError(f"{self._issuer} could not be reached.")
        return self._metadata

    async def _read(self) -> None:
        """Read the metadata and the keys, unless that was tried a moment ago."""
        async with self._lock:
            if time.monotonic() < self._next_read:
                return
            self._next_read = time.monotonic() + RETRY_SECONDS
            address = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
            try:
                metadata = ProviderMetadata.of(await call_json(address), self._issuer)
                found = (await call_json(metadata.jwks_uri)).get("keys")
            except (OSError, ValueError) as error:
                raise ProviderUnavailableError(f"{self._issuer}: {error}") from None
            self._metadata = metadata
            self._keys = [key for key in found or () if isinstance(key, dict)]
            self._next_read = time.monotonic() + REFRESH_SECONDS
            self._expires = time.monotonic() + METADATA_SECONDS

    async def verify(self, token: str, audience: str) -> Mapping[str, Any]:
        """Return the claims of a token for this audience. Raise `TokenRejectedError` if invalid."""
        if not audience:
            raise TokenRejectedError("No token has this purpose in gateway.oidc.")
        try:
            key = await self._find_key(jwt.get_unverified_header(token))
            claims = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=audience,
                issuer=self._issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": list(REQUIRED_CLAIMS)},
            )
        except jwt.PyJWTError as error:
            raise TokenRejectedError(f"{type(error).__name__}: {error}") from None
        if not claims["sub"]:
            raise TokenRejectedError("Its subject is empty.")
        return claims

    async def _find_key(self, header: Mapping[str, Any]) -> jwt.PyJWK:
        algorithm, id = header.get("alg"), header.get("kid")
        if algorithm not in ALGORITHMS:
            raise TokenRejectedError(f"Algorithm not accepted: {str(algorithm)[:20]!r}.")
        await self.metadata()
        found = self._candidates(algorithm, id)
        if len(found) != 1:  # perhaps the provider has new keys
            await self._read()
            found = self._candidates(algorithm, id)
        if len(found) != 1:
            raise TokenRejectedError(f"{len(found)} keys of the provider match the token.")
        return jwt.PyJWK(dict(found[0]), algorithm)

    def _candidates(self, algorithm: str, id: object) -> list[Mapping[str, Any]]:
        """Return the keys that may have signed a token, by its id if it names one."""
        kind = {"E": "EC", "R": "RSA", "P": "RSA"}[algorithm[0]] if algorithm != "EdDSA" else "OKP"
        return [
            key
            for key in self._keys
            if key.get("kty") == kind
            and key.get("use", "sig") == "sig"
            and key.get("alg", algorithm) == algorithm
            and (id is None or key.get("kid") == id)
        ]

    # Sign-in

    async def authorization_url(self, fields: Mapping[str, str]) -> str:
        """Return the address at the provider where a person signs in."""
        address = (await self.metadata()).authorization_endpoint
        given = {"response_type": "code", "client_id": self.config.client_id, **fields}
        scope = " ".join(dict.fromkeys(("openid", *self.config.scopes)))
        return f"{address}{'&' if '?' in address else '?'}{urlencode({**given, 'scope': scope})}"

    async def redeem(self, code: str, redirect_uri: str, verifier: str) -> str:
        """Return the ID token for a code. Raise `TokenRejectedError` if there is none."""
        client_id = self.config.client_id
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        headers = {"accept": "application/json"}
        if self._secret:
            pair = f"{quote(client_id, safe='')}:{quote(self._secret, safe='')}".encode()
            headers["authorization"] = f"Basic {b64encode(pair).decode()}"
        else:
            fields["client_id"] = client_id
        address = (await self.metadata()).token_endpoint
        try:
            found = await call_json(address, urlencode(fields).encode(), headers)
        except OSError as error:
            raise TokenRejectedError(f"The provider rejected the code: {error}") from None
        token = found.get("id_token")
        if not isinstance(token, str):
            raise TokenRejectedError("The provider returned no ID token.")
        return token
