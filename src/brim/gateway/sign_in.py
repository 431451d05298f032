"""Sign-in for the dashboard: OpenID Connect's authorization code flow, with PKCE.

    /brim/sign-in ─▶ the provider ─▶ /brim/sign-in/callback ─▶ a session cookie, and the dashboard

Both addresses come from the configuration: nothing in a request chooses where to redirect.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from brim.gateway import headers
from brim.gateway.auth import Authenticator, name_operator
from brim.gateway.errors import GatewayError, ProviderUnavailableError, TokenRejectedError
from brim.gateway.handler import printable_name
from brim.gateway.responses import json_response

if TYPE_CHECKING:
    from brim.gateway.identity import IdentityProvider
    from brim.gateway.operator_sessions import OperatorSessions

CALLBACK: Final = "/brim/sign-in/callback"
SIGN_IN_PATHS: Final = ("/brim/session", "/brim/sign-in", CALLBACK, "/brim/sign-out")
"""Paths without a key: they lead to a session, or reveal only whose session the request has."""

log = logging.getLogger("brim.gateway")


class SignInFailedError(Exception):
    """A sign-in that did not lead to a session."""

    def __init__(self, problem: str, reason: str) -> None:
        super().__init__(reason)
        self.problem = problem
        """What the dashboard shows: `denied`, `expired`, `unavailable` or `failed`."""


class SignInViews:
    """The views of the sign-in."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    @property
    def views(self) -> list[tuple[str, str, Callable[[Request], Awaitable[Response]]]]:
        session, sign_in, callback, sign_out = SIGN_IN_PATHS
        return [
            ("GET", session, self.session),
            ("GET", sign_in, self.begin),
            ("GET", callback, self.finish),
            ("POST", sign_out, self.end),
        ]

    @property
    def _parts(self) -> tuple[IdentityProvider, OperatorSessions, str]:
        """The provider, the sessions and the public address. Raise `GatewayError` without them."""
        provider, sessions = self._authenticator.provider, self._authenticator.sessions
        if provider is None or sessions is None or provider.config.public_url is None:
            message = "This gateway has no sign-in provider (gateway.oidc). Use an operator key."
            raise GatewayError(404, "not_found", message)
        return provider, sessions, provider.config.public_url.rstrip("/")

    async def session(self, request: Request) -> Response:
        """Return whether there is a sign-in, and whose session the request has."""
        sessions = self._authenticator.sessions
        client = headers.read_headers(request.headers.raw)
        operator = sessions.find_operator(client) if sessions is not None else None
        shown = {"object": "brim.session", "sign_in": sessions is not None, "operator": operator}
        return json_response(shown)

    async def begin(self, _: Request) -> Response:
        """Redirect to the provider, with a cookie that ties its response to this browser."""
        provider, sessions, address = self._parts
        kept = {name: secrets.token_urlsafe(32) for name in ("state", "nonce", "verifier")}
        digest = hashlib.sha256(kept["verifier"].encode()).digest()
        fields = {
            "redirect_uri": address + CALLBACK,
            "state": kept["state"],
            "nonce": kept["nonce"],
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        try:
            target = await provider.authorization_url(fields)
        except ProviderUnavailableError as error:
            return _show_failure(address, SignInFailedError("unavailable", str(error)))
        return _redirect(target, sessions.sign_in.set(kept))

    async def finish(self, request: Request) -> Response:
        """Check what the provider sent, and begin a session."""
        _, sessions, address = self._parts
        try:
            name = await self._identify(request)
        except SignInFailedError as error:
            return _show_failure(address, error, sessions.sign_in.clear())
        log.info("operator signed in", extra={"fields": {"operator": name}})
        cookies = sessions.cookie.set({"name": name}), sessions.sign_in.clear()
        return _redirect(f"{address}/", *cookies)

    async def end(self, request: Request) -> Response:
        _, sessions, _ = self._parts
        sessions.check_own_page(headers.read_headers(request.headers.raw))
        cleared = {"set-cookie": sessions.cookie.clear()}
        return json_response({"object": "brim.session", "operator": None}, headers=cleared)

    async def _identify(self, request: Request) -> str:
        """Return the name of the operator whom the provider has identified."""
        provider, sessions, address = self._parts
        query = request.query_params
        kept = sessions.sign_in.read(headers.read_headers(request.headers.raw))
        if kept is None or not _equal(query.get("state", ""), kept["state"]):
            raise SignInFailedError("expired", "state missing or not of this browser")
        if query.get("iss", provider.config.issuer) != provider.config.issuer:
            raise SignInFailedError("failed", "response of another issuer")
        if "code" not in query:
            raise SignInFailedError("denied", printable_name(query.get("error", "no code")))
        try:
            redirect = address + CALLBACK
            token = await provider.redeem(query["code"], redirect, kept["verifier"])
            claims = await provider.verify(token, provider.config.client_id)
            _check_id_token(claims, provider.config.client_id, kept["nonce"])
        except TokenRejectedError as error:
            raise SignInFailedError("failed", str(error)) from None
        except ProviderUnavailableError as error:
            raise SignInFailedError("unavailable", str(error)) from None
        name = name_operator(provider, claims)
        if name is None:
            raise SignInFailedError("denied", "not one of gateway.oidc.operators")
        return name


def _check_id_token(claims: Mapping[str, Any], client_id: str, nonce: str) -> None:
    """Raise `TokenRejectedError` unless a token was made for this sign-in."""
    if not _equal(str(claims.get("nonce", "")), nonce):
        raise TokenRejectedError("The nonce is not of this sign-in.")
    has_others = claims["aud"] not in (client_id, [client_id])
    if claims.get("azp", None if has_others else client_id) != client_id:
        raise TokenRejectedError("The token was issued to another client.")


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def _show_failure(address: str, error: SignInFailedError, *cookies: str) -> Response:
    fields = {"problem": error.problem, "reason": str(error)}
    log.warning("sign-in failed", extra={"fields": fields})
    return _redirect(f"{address}/#sign-in/{error.problem}", *cookies)


def _redirect(target: str, *cookies: str) -> Response:
    response = RedirectResponse(target, 303)
    response.headers["cache-control"] = "no-store"
    response.headers["referrer-policy"] = "no-referrer"
    for cookie in cookies:
        response.headers.append("set-cookie", cookie)
    return response
