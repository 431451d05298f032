"""Cookies of the dashboard: a sign-in that has begun, and the session of an operator.

A cookie is encrypted and signed (Fernet), so gateways with the same secret accept each other's and
keep nothing themselves. It is not sent by pages of other sites (`SameSite`) and cannot be read by
scripts (`HttpOnly`). A session opens only the paths of operators, never those of models.
"""

from __future__ import annotations

import json
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from brim.config import OidcConfig
from brim.gateway.errors import GatewayError
from brim.gateway.headers import ClientHeaders

SESSION_SECONDS: Final = 8 * 3_600
SIGN_IN_SECONDS: Final = 600
"""How long a person may take at the provider."""


class SealedCookie:
    """A cookie whose content only gateways with the same secret can read and create."""

    def __init__(self, name: str, key: Fernet, seconds: int, attributes: str) -> None:
        self.name = name
        self._key = key
        self._seconds = seconds
        self._attributes = attributes

    def set(self, content: Mapping[str, str]) -> str:
        """Return a `Set-Cookie` header."""
        value = self._key.encrypt(json.dumps(content).encode()).decode()
        return f"{self.name}={value}; Max-Age={self._seconds}; {self._attributes}"

    def clear(self) -> str:
        return f"{self.name}=; Max-Age=0; {self._attributes}"

    def read(self, headers: ClientHeaders) -> dict[str, Any] | None:
        """Return the content; None if there is no such cookie, or it is expired or not valid."""
        for part in headers.by_name.get(b"cookie", b"").split(b";"):
            name, _, value = part.strip().partition(b"=")
            if name == self.name.encode():
                try:
                    content: dict[str, Any] = json.loads(self._key.decrypt(value, self._seconds))
                except InvalidToken:
                    return None
                return content
        return None


class OperatorSessions:
    """The sessions of operators who have signed in at the provider."""

    def __init__(self, config: OidcConfig, secret: str) -> None:
        """Without a secret, sessions end with this process, and no other gateway knows them."""
        address = config.public_url or ""
        parts = urlsplit(address)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        is_secure = parts.scheme == "https"
        prefix, flag = ("__Host-", "; Secure") if is_secure else ("", "")
        seed = secret.encode() or secrets.token_bytes(32)
        # If the conditions for operators change, all sessions end.
        scope = repr((config.issuer, config.client_id, config.operators)).encode()
        self.cookie = SealedCookie(
            f"{prefix}brim-session",
            _derive_key(seed, b"session" + scope),
            SESSION_SECONDS,
            f"Path=/; HttpOnly; SameSite=Strict{flag}",
        )
        # `Lax`, because the provider redirects to the gateway from another site.
        self.sign_in = SealedCookie(
            f"{prefix}brim-sign-in",
            _derive_key(seed, b"sign-in" + scope),
            SIGN_IN_SECONDS,
            f"Path=/; HttpOnly; SameSite=Lax{flag}",
        )

    def find_operator(self, headers: ClientHeaders) -> str | None:
        """Return the name of the operator whose session a request has, or None.

        Raise `GatewayError` if another page sent it: cookies of one host go to all its ports.
        """
        session = self.cookie.read(headers)
        if session is None:
            return None
        self.check_own_page(headers)
        return str(session["name"])

    def check_own_page(self, headers: ClientHeaders) -> None:
        """Raise `GatewayError` unless the dashboard itself, or the address bar, sent a request."""
        site, origin = headers.by_name.get(b"sec-fetch-site"), headers.origin
        is_own = site in (b"same-origin", b"none") if site is not None else origin is not None
        if not is_own or origin not in (None, self._origin):
            message = "A session works only on the dashboard's own pages. Programs need a key."
            raise GatewayError(403, "origin_not_allowed", message)


def _derive_key(seed: bytes, purpose: bytes) -> Fernet:
    derived = HKDF(SHA256(), 32, salt=None, info=b"brim " + purpose).derive(seed)
    return Fernet(urlsafe_b64encode(derived))
