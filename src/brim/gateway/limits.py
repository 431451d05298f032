"""Limits on requests: size, duration, number, and the web pages that may send them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.types import Receive

from brim.config import GatewayConfig
from brim.gateway.bodies import decompress
from brim.gateway.errors import GatewayError
from brim.gateway.headers import ClientHeaders

LARGE_BODY_BYTES: Final = 64 * 1024
"""Bodies of this size and larger are parsed and counted outside the event loop."""
BODY_TIME_FACTOR: Final = 10
"""How many times `body_seconds` a whole body may take."""
_LOCAL_HOSTS: Final = frozenset(("localhost", "127.0.0.1", "::1"))
_OTHER_SITES: Final = (b"cross-site", b"same-site")


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


ABORT_EXTENSION: Final = "brim.abort"
"""An ASGI extension that closes a connection immediately. Without it, data for a client that does
not read stays in memory until the client disconnects."""


class ClientDisconnectedError(Exception):
    """The client disconnected before its request was complete."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What clients may request of the gateway itself."""

    config: GatewayConfig

    async def read_body(self, headers: ClientHeaders, receive: Receive) -> bytes:
        """Return the whole body of a request."""
        length = headers.by_name.get(b"content-length", b"")
        if length.isdigit() and int(length) > self.config.max_body_bytes:
            raise self._too_large()
        try:
            async with asyncio.timeout(self.config.body_seconds) as timeout:
                raw = await self._collect(receive, timeout)
        except TimeoutError:
            raise GatewayError(
                408,
                "body_timeout",
                f"No part of the body arrived for {self.config.body_seconds:g} s "
                f"(gateway.body_seconds), or the whole body took {BODY_TIME_FACTOR} times longer. "
                "Send the request again.",
                headers={"connection": "close"},
            ) from None
        encoding = headers.by_name.get(b"content-encoding", b"identity").decode("latin-1").lower()
        if encoding in ("identity", ""):
            return raw
        raw = decompress(raw, encoding, self.config.max_body_bytes)
        if len(raw) > self.config.max_body_bytes:
            raise self._too_large()
        return raw

    async def _collect(self, receive: Receive, timeout: asyncio.Timeout) -> bytes:
        clock = asyncio.get_running_loop().time
        deadline = clock() + BODY_TIME_FACTOR * self.config.body_seconds
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnectedError
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > self.config.max_body_bytes:
                raise self._too_large()
            chunks.append(chunk)
            if not message.get("more_body"):
                return b"".join(chunks)
            timeout.reschedule(min(deadline, clock() + self.config.body_seconds))

    def _too_large(self) -> GatewayError:
        return GatewayError(
            413,
            "request_too_large",
            f"The body is larger than {self.config.max_body_bytes:,} bytes "
            "(gateway.max_body_bytes).",
            headers={"connection": "close"},
        )

    def check_origin(self, headers: ClientHeaders) -> None:
        """Reject requests from web pages: any page that a user visits could spend their money."""
        if (origin := headers.origin) is not None and not self._is_allowed(origin):
            raise GatewayError(
                403,
                "origin_not_allowed",
                "Requests from web pages are rejected, except pages of this machine and of "
                "gateway.origins.",
            )

    def check_site(self, headers: ClientHeaders) -> None:
        """Reject requests from pages of other sites: they must not read past requests."""
        if not self._is_own_page(headers):
            self.check_origin(headers)
        if headers.by_name.get(b"sec-fetch-site") in _OTHER_SITES:
            raise GatewayError(
                403, "origin_not_allowed", "Requests from pages of other sites are rejected."
            )

    def check_host(self, headers: ClientHeaders) -> None:
        """Reject a `Host` that is not a name of this gateway.

        With DNS rebinding, a web page's own host name resolves to this machine. An IP address
        cannot be rebound.
        """
        host = headers.by_name.get(b"host", b"").decode("latin-1")
        name = urlsplit(f"//{host}").hostname or ""
        known = {urlsplit(origin).hostname for origin in self.config.origins}
        if not name or name in _LOCAL_HOSTS or name in known or _is_address(name):
            return
        raise GatewayError(
            403,
            "host_not_allowed",
            f"Unknown host name of this gateway: {name[:100]!r}. Use its IP address, create a key "
            "with `brim keys`, or add the name to gateway.origins.",
        )

    def _is_own_page(self, headers: ClientHeaders) -> bool:
        """Return whether a page of this gateway sent a request, as the browser says.

        A page whose name was rebound to this machine has neither a key nor a session here.
        """
        if headers.by_name.get(b"sec-fetch-site") == b"same-origin":
            return True
        host = headers.by_name.get(b"host", b"").decode("latin-1")
        return (headers.origin or "").partition("://")[2] == host != ""

    def _is_allowed(self, origin: str) -> bool:
        if origin in self.config.origins:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        if parts.scheme not in ("http", "https"):
            return origin != "null"  # an application window, such as an editor's
        return parts.hostname in _LOCAL_HOSTS

    def check_room(self, running: int) -> None:
        """Reject a request if the maximum number is running."""
        if running >= self.config.max_requests:
            raise GatewayError(
                503,
                "too_many_requests_at_once",
                f"{running:,} requests are running (gateway.max_requests). Try again in a second.",
                headers={"retry-after": "1"},
            )
