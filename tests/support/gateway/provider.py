"""A small OpenID Connect provider: it signs in everyone as its `user`, and can misbehave."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

CLIENT: Final = "brim"
CLIENT_SECRET: Final = "the-client-secret"
AUDIENCE: Final = "https://gateway.example.com"

Claims = dict[str, Any]


@cache
def _make_private_key(owner: str) -> rsa.RSAPrivateKey:  # noqa: ARG001 - each has their own
    return rsa.generate_private_key(65_537, 2_048)


class SigningKey:
    """A key pair of the provider."""

    def __init__(self, id: str, owner: str = "provider") -> None:
        self.id = id
        self.private = _make_private_key(owner)

    @property
    def public(self) -> dict[str, Any]:
        raw = jwt.algorithms.RSAAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        return {**raw, "kid": self.id, "use": "sig", "alg": "RS256"}

    def sign(self, claims: Mapping[str, Any], **header: Any) -> str:
        named = {"kid": self.id, **header}
        return jwt.encode(dict(claims), self.private, algorithm="RS256", headers=named)


class IdentityServer:
    """The provider. Authorization codes are single-use, and bound to PKCE and the redirect."""

    def __init__(self) -> None:
        self.key = SigningKey("first")
        self.published = [self.key.public]
        self.user: Claims = {"sub": "u-1", "email": "ann@example.com", "email_verified": True}
        self.change: Callable[[Claims], Claims] = lambda claims: claims
        """Changes the claims of the next ID tokens."""
        self.metadata: dict[str, Any] = {}
        """Replaces fields of the metadata."""
        self.requests: list[str] = []
        self._codes: dict[str, dict[str, str]] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.requests.append(urlsplit(self.path).path)
                provider.answer_get(self)

            def do_POST(self) -> None:
                provider.requests.append(self.path)
                raw = self.rfile.read(int(self.headers["content-length"])).decode()
                fields = {name: values[0] for name, values in parse_qs(raw).items()}
                answer = provider.redeem(fields, self.headers.get("authorization", ""))
                is_rejected = answer is None
                body = {"error": "invalid_grant"} if is_rejected else answer
                provider.send(self, body, 400 if is_rejected else 200)

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self.server.server_port}"

    def claims(self, **more: Any) -> Claims:
        """Return valid claims for tokens that are sent as keys."""
        now = int(time.time())
        times = {"iat": now, "exp": now + 60}
        return {"iss": self.issuer, "aud": AUDIENCE, **times, **self.user, **more}

    def token(self, **more: Any) -> str:
        return self.key.sign(self.claims(**more))

    def send(self, request: BaseHTTPRequestHandler, body: Any, status: int = 200) -> None:
        raw = json.dumps(body).encode()
        request.send_response(status)
        request.send_header("content-length", str(len(raw)))
        request.end_headers()
        request.wfile.write(raw)

    def answer_get(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        if parts.path == "/.well-known/openid-configuration":
            endpoints = {
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
            }
            self.send(request, {"issuer": self.issuer, **endpoints, **self.metadata})
        elif parts.path == "/keys":
            self.send(request, {"keys": self.published})
        else:
            fields = {name: values[0] for name, values in parse_qs(parts.query).items()}
            code = secrets.token_urlsafe()
            self._codes[code] = fields
            query = urlencode({"code": code, "state": fields["state"], "iss": self.issuer})
            request.send_response(302)
            request.send_header("location", f"{fields['redirect_uri']}?{query}")
            request.end_headers()

    def redeem(self, fields: Mapping[str, str], authorization: str) -> Claims | None:
        grant = self._codes.pop(fields.get("code", ""), None)
        basic = base64.b64encode(f"{CLIENT}:{CLIENT_SECRET}".encode()).decode()
        digest = hashlib.sha256(fields.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if (
            grant is None
            or authorization != f"Basic {basic}"
            or grant["code_challenge_method"] != "S256"
            or challenge != grant["code_challenge"]
            or fields["redirect_uri"] != grant["redirect_uri"]
        ):
            return None
        claims = self.claims(aud=CLIENT, nonce=grant["nonce"])
        return {"id_token": self.key.sign(self.change(claims)), "token_type": "Bearer"}


@contextmanager
def run_provider() -> Iterator[IdentityServer]:
    provider = IdentityServer()
    threading.Thread(target=provider.server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield provider
    finally:
        provider.server.shutdown()
        provider.server.server_close()
