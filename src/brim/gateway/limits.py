"""Limits: how large a request may be, how long it may take to come, and how many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from brim.gateway.faults import FaultError

if TYPE_CHECKING:
    from starlette.types import Receive

    from brim.gateway.heads import Head


TRICKLE: Final = 10
"""A body may take so many times as long as it may be silent."""
_HERE: Final = frozenset(("localhost", "127.0.0.1", "::1"))


HANG_UP: Final = "brim.hang_up"
"""What a server may offer as an extension of ASGI: to end a connection at once. Where it does not,
what was written for a client that does not read stays until the client goes."""


class GoneError(Exception):
    """The client hung up before its request was whole."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may ask of the gateway itself."""

    body_bytes: int
    body_seconds: float
    requests: int
    origins: tuple[str, ...] = ()
    """Web pages that may send requests."""

    async def body(self, heads: Iterable[Head], receive: Receive) -> bytes:
        """The whole body of a request."""
        self._check_announced(heads)
        try:
            return await self._gathered(receive)
        except TimeoutError:
            raise FaultError(
                408,
                "body_timeout",
                f"nothing of the body came for {self.body_seconds:g} s (gateway.body_seconds), or "
                f"not all of it in {TRICKLE} times that; send it again",
                headers={"connection": "close"},
            ) from None

    async def _gathered(self, receive: Receive) -> bytes:
        clock = asyncio.get_running_loop().time
        end = clock() + TRICKLE * self.body_seconds
        pieces: list[bytes] = []
        size = 0
        async with asyncio.timeout(self.body_seconds) as patience:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise GoneError
                piece = message.get("body", b"")
                size += len(piece)
                if size > self.body_bytes:
                    raise self._too_large()
                pieces.append(piece)
                if not message.get("more_body"):
                    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
                patience.reschedule(min(end, clock() + self.body_seconds))

    def _check_announced(self, heads: Iterable[Head]) -> None:
        for name, value in heads:
            if name == b"content-length" and value.isdigit() and int(value) > self.body_bytes:
                raise self._too_large()

    def _too_large(self) -> FaultError:
        return FaultError(
            413,
            "request_too_large",
            f"the body has more than {self.body_bytes:,} bytes (gateway.max_body_bytes)",
            headers={"connection": "close"},
        )

    def check_origin(self, heads: Iterable[Head]) -> None:
        """Refuse what a web page sends: any page that somebody looks at could spend their money."""
        for name, value in heads:
            if name == b"origin" and not self._is_welcome(value.decode("latin-1")):
                raise FaultError(
                    403,
                    "origin_refused",
                    "requests from web pages are refused, but for those of this machine and of "
                    "gateway.origins",
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
            raise FaultError(
                503,
                "too_many_requests_at_once",
                f"{running:,} requests run already (gateway.max_requests); try again in a second",
                headers={"retry-after": "1"},
            )
