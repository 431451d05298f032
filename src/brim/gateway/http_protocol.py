"""A client's connection, with bounds where uvicorn has none.

With httptools uvicorn takes the head of a request of any size, for as long as it takes to come, and
keeps a connection open on which nothing was ever said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from brim.gateway.limits import ABORT_EXTENSION, HEADERS_EXTENSION
from brim.providers.http_connection import Header, format_header, join_header_lines

MAX_HEADER_BYTES: Final = 64 * 1024
"""Bytes of a request's path and headers."""
HEADER_SECONDS: Final = 30.0
"""Seconds in which they have to come."""


class _Joining:
    """A transport that writes the head of an answer together with what follows it.

    To write both apart takes two packets, and a fifth of the work on a small answer. Headers that
    say nothing of the connection itself join it here: uvicorn looks at each of them for long.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""
        self._lines = b""

    def add(self, heads: Sequence[Header]) -> None:
        """Headers for the head that is written next."""
        self._lines = join_header_lines([*map(format_header, heads)])

    def write(self, data: bytes) -> None:
        if self._lines and data.startswith(b"HTTP/1.1 "):
            data = b"%b%b\r\n" % (data[:-2], self._lines)  # before the line that ends it
            self._lines = b""
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held + data)
        elif data.startswith(b"HTTP/1.1 "):
            self._held = data
            self._loop.call_soon(self._let_go)
        else:
            self._transport.write(data)

    def _let_go(self) -> None:
        if self._held:
            self.write(b"")

    def close(self) -> None:
        self._let_go()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class BoundedConnection(HttpToolsProtocol):
    """HTTP/1.1, whose heads are neither larger nor slower than they should be."""

    _clock: asyncio.TimerHandle | None = None
    """Runs while a head is awaited that did not come in one piece."""
    _is_in_head: bool = True
    _head: int = 0
    """The bytes that have come since it began, and what came with it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        joining = _Joining(transport, self.loop)
        super().connection_made(joining)  # type: ignore[arg-type]
        self._extensions: dict[str, dict[object, object]] = {
            ABORT_EXTENSION: {"call": transport.abort},
            HEADERS_EXTENSION: {"call": joining.add},
        }
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head = self._head + len(data) if self._is_in_head else len(data)
        super().data_received(data)
        if self._is_in_head:
            if self._head > MAX_HEADER_BYTES:
                self._end_head()
                self.send_400_response("The head of the request is too large.")
            elif self._clock is None:
                self._await_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = self._extensions
        self._is_in_head = True

    def on_headers_complete(self) -> None:
        if self._head > MAX_HEADER_BYTES:
            size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if size > MAX_HEADER_BYTES:
                raise ValueError("too large a head")  # the parser makes a 400 of it
        self._end_head()
        super().on_headers_complete()
        self.headers = []  # for the trailers of a body, which would pass for headers

    def _await_head(self) -> None:
        self._clock = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _end_head(self) -> None:
        self._is_in_head, self._head = False, 0
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
