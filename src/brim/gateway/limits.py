"""Limits: how large a request may be, how long it may take to come, and how many at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from brim.gateway.errors import GatewayError

if TYPE_CHECKING:
    from starlette.types import Receive

    from brim.gateway.headers import ClientHeaders


LARGE_BODY_BYTES: Final = 64 * 1024
"""Bodies from so many bytes on are read and counted off the event loop."""
BODY_TIME_FACTOR: Final = 10
"""A body may take so many times as long as it may be silent."""
_HERE: Final = frozenset(("localhost", "127.0.0.1", "::1"))
_ELSEWHERE: Final = (b"cross-site", b"same-site")


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


ABORT_EXTENSION: Final = "brim.hang_up"
"""What a server may offer as an extension of ASGI: to end a connection at once. Where it does not,
what was written for a client that does not read stays until the client goes."""


class ClientDisconnectedError(Exception):
    """The client hung up before its request was whole."""


class _Patience:
    """Cancels the task that waits, if it has to for too long: a timer and no more.

    `asyncio.timeout` would do, but takes a tenth of the time of a small request.
    """

    __slots__ = ("_end", "_loop", "_seconds", "_task", "_timer", "is_over")

    def __init__(self, seconds: float) -> None:
        self.is_over = False
        self._loop = loop = asyncio.get_running_loop()
        self._task = asyncio.current_task(loop)
        self._seconds = seconds
        self._end = loop.time() + BODY_TIME_FACTOR * seconds
        self._timer = loop.call_later(seconds, self._lose)

    def renew(self) -> None:
        self._timer.cancel()
        when = min(self._end, self._loop.time() + self._seconds)
        self._timer = self._loop.call_at(when, self._lose)

    def end(self) -> None:
        self._timer.cancel()

    def _lose(self) -> None:
        self.is_over = True
        if self._task is not None:
            self._task.cancel()


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What a client may ask of the gateway itself."""

    body_bytes: int
    body_seconds: float
    requests: int
    origins: tuple[str, ...] = ()
    """Web pages that may send requests."""

    async def body(self, given: ClientHeaders, receive: Receive) -> bytes:
        """The whole body of a request."""
        length = given.by_name.get(b"content-length", b"")
        if length.isdigit() and int(length) > self.body_bytes:
            raise self._too_large()
        patience = _Patience(self.body_seconds)
        try:
            return await self._gathered(receive, patience)
        except asyncio.CancelledError:
            if not patience.is_over:
                raise
            raise GatewayError(
                408,
                "body_timeout",
                f"nothing of the body came for {self.body_seconds:g} s (gateway.body_seconds), or "
                f"not all of it in {BODY_TIME_FACTOR} times that; send it again",
                headers={"connection": "close"},
            ) from None
        finally:
            patience.end()

    async def _gathered(self, receive: Receive, patience: _Patience) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnectedError
            piece = message.get("body", b"")
            size += len(piece)
            if size > self.body_bytes:
                raise self._too_large()
            pieces.append(piece)
            if not message.get("more_body"):
                return b"".join(pieces)  # of one piece, that very piece
            patience.renew()

    def _too_large(self) -> GatewayError:
        return GatewayError(
            413,
            "request_too_large",
            f"the body has more than {self.body_bytes:,} bytes (gateway.max_body_bytes)",
            headers={"connection": "close"},
        )

    def check_origin(self, given: ClientHeaders) -> None:
        """Refuse what a web page sends: any page that somebody looks at could spend their money."""
        if (origin := given.origin) is not None and not self._is_welcome(origin):
            raise GatewayError(
                403,
                "origin_refused",
                "requests from web pages are refused, but for those of this machine and of "
                "gateway.origins",
            )

    def check_site(self, given: ClientHeaders) -> None:
        """Refuse what a page of another site asks: it is not to know what was done here."""
        self.check_origin(given)
        if given.by_name.get(b"sec-fetch-site") in _ELSEWHERE:
            raise GatewayError(403, "origin_refused", "a page of another site asks for this")

    def check_host(self, given: ClientHeaders) -> None:
        """Refuse to answer to a name that is not this gateway's.

        A page whose name was made to mean this machine would pass for a page of this gateway; a
        bare address nobody can make to mean another.
        """
        host = given.by_name.get(b"host", b"").decode("latin-1")
        called = urlsplit(f"//{host}").hostname or ""
        known = {urlsplit(origin).hostname for origin in self.origins}
        if not called or called in _HERE or called in known or _is_address(called):
            return
        raise GatewayError(
            403,
            "host_refused",
            f"this gateway is not called {called[:100]!r}; ask by its address, make a key with "
            "`brim keys`, or list its name in gateway.origins",
        )

    def _is_welcome(self, origin: str) -> bool:
        if origin in self.origins:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        if parts.scheme not in ("http", "https"):
            return origin != "null"  # a program's own window, such as an editor's
        return parts.hostname in _HERE

    def check_room(self, running: int) -> None:
        """Refuse where as many requests run as may."""
        if running >= self.requests:
            raise GatewayError(
                503,
                "too_many_requests_at_once",
                f"{running:,} requests run already (gateway.max_requests); try again in a second",
                headers={"retry-after": "1"},
            )
