"""A pool of HTTP connections to one server, directly or through a proxy."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from brim.errors import InputError
from brim.providers.http_connection import (
    BrokenConnectionError,
    HttpConnection,
    Response,
    SendState,
    encode_headers,
    encode_request_head,
)
from brim.providers.network import Proxy

IDLE_SECONDS: Final = 15.0
"""How long an unused connection is kept."""
HAPPY_EYEBALLS_SECONDS: Final = 0.25
"""Delay before the next address of a host is tried concurrently."""
CLOSE_SECONDS: Final = 2.0
"""How long the interpreter waits for connections to close when it exits."""
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class ConnectError(Exception):
    """The server could not be reached; `__cause__` says why."""


class Origin(NamedTuple):
    """Scheme, host and port of a server."""

    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> Origin:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if not host.isascii():
            host = host.encode("idna").decode()
        return cls(parts.scheme, host, parts.port or _DEFAULT_PORTS[parts.scheme])

    @property
    def host_and_port(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def authority(self) -> str:
        """Host and port as the `Host` header names them: without a default port."""
        return self.host_and_port.removesuffix(f":{_DEFAULT_PORTS[self.scheme]}")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


class ConnectionPool:
    """The connections to one server; they belong to the event loop that creates the pool."""

    def __init__(
        self,
        origin: Origin,
        proxy: Proxy | None,
        *,
        connect_seconds: float,
        read_seconds: float,
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        self._origin = origin
        self._proxy = proxy
        self._connect_seconds = connect_seconds
        self._read_seconds = read_seconds
        self._ssl_context = ssl_context
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._open: set[HttpConnection] = set()
        self._idle: dict[HttpConnection, asyncio.TimerHandle] = {}
        """Unused connections and the timers that close them, oldest first."""
        self.is_closed = False

    @property
    def belongs_to_running_loop(self) -> bool:
        return self._loop is asyncio.get_running_loop()

    @property
    def has_idle(self) -> bool:
        """Whether a connection is open and unused."""
        return bool(self._idle)

    async def request(
        self, head: bytes, body: bytes | None, state: SendState, *, is_bodiless: bool = False
    ) -> Response:
        """Send an encoded request and return the response once its headers have arrived.

        `is_bodiless` says that no response to this method has a body.
        """
        while True:
            state.is_sent = False
            connection = self._take_idle() or await self._connect()
            try:
                await state.run_hook()
                response = connection.send(
                    head, body, state, timeout=self._read_seconds, is_bodiless=is_bodiless
                )
                await response.wait_for_headers()
            except BaseException as error:
                if error is state.hook_error:
                    self._keep(connection)
                    raise
                connection.abort()
                is_broken = isinstance(error, OSError) and not isinstance(error, TimeoutError)
                if not is_broken or self.is_closed or not connection.was_stale():
                    raise
            else:
                return response

    async def close(self) -> None:
        """Close all connections immediately, unless they are those of the parent process."""
        if self._process != os.getpid():
            return
        self.is_closed = True
        connections = list(self._open)
        for connection in connections:
            connection.abort()
        if connections:
            await asyncio.wait([connection.closed for connection in connections])

    def close_from_any_thread(self) -> None:
        """Close a pool that its owner has not closed, while its loop still runs."""
        is_inherited = self._process != os.getpid()
        if self.is_closed or is_inherited or not self._loop.is_running():
            return
        closing = asyncio.run_coroutine_threadsafe(self.close(), self._loop)
        try:
            is_inside = self.belongs_to_running_loop
        except RuntimeError:
            is_inside = False
        if not is_inside:
            with suppress(TimeoutError):
                closing.result(CLOSE_SECONDS)

    def abandon(self) -> None:
        """Give up connections without closing them. Raise InputError if their loop still runs."""
        if self._process != os.getpid():
            _INHERITED.append(self)
        elif self._loop.is_running():
            raise InputError(
                "This connection belongs to another event loop, which is still running. "
                "Create one connection per event loop."
            )

    def _keep(self, connection: HttpConnection) -> None:
        """Keep a connection for the next request."""
        if self.is_closed:
            connection.abort()
        if not connection.is_open:
            return
        self._idle[connection] = self._loop.call_later(IDLE_SECONDS, connection.abort)

    def _forget(self, connection: HttpConnection) -> None:
        self._open.discard(connection)
        if (timer := self._idle.pop(connection, None)) is not None:
            timer.cancel()

    def _take_idle(self) -> HttpConnection | None:
        while self._idle:
            connection, timer = self._idle.popitem()
            timer.cancel()
            if connection.is_open:
                return connection
        return None

    async def _connect(self) -> HttpConnection:
        try:
            async with asyncio.timeout(self._connect_seconds):
                connection = await self._open_connection()
        except (OSError, UnicodeError) as error:  # TimeoutError is an OSError
            raise ConnectError from error
        if self.is_closed:
            connection.abort()
            raise BrokenConnectionError("it was closed by this client")
        return connection

    async def _open_connection(self) -> HttpConnection:
        import aiohappyeyeballs  # here: without the extra, `http_connection` says what to install

        loop = self._loop
        first = self._origin if self._proxy is None else Origin.parse(self._proxy.url)
        addresses = await loop.getaddrinfo(first.host, first.port, type=socket.SOCK_STREAM)
        opened = await aiohappyeyeballs.start_connection(
            addresses, happy_eyeballs_delay=HAPPY_EYEBALLS_SECONDS, interleave=1
        )
        is_secure = first.scheme == "https"
        try:
            _, connection = await loop.create_connection(
                partial(HttpConnection, self._keep, self._forget),
                sock=opened,
                ssl=self._ssl_context if is_secure else None,
                server_hostname=first.host if is_secure else None,
            )
        except BaseException:
            opened.close()
            raise
        self._open.add(connection)
        if self._proxy is not None and self._origin.scheme == "https":
            await self._open_tunnel(connection, self._proxy)
        return connection

    async def _open_tunnel(self, connection: HttpConnection, proxy: Proxy) -> None:
        """Ask the proxy for a connection to the server, and start TLS over it."""
        target = self._origin.host_and_port
        headers = encode_headers({"Host": self._origin.authority} | dict(proxy.headers))
        head = encode_request_head("CONNECT", target, headers, None)
        connection.is_tunnel_pending = True
        try:
            response = connection.send(
                head, None, SendState(), timeout=self._connect_seconds, is_bodiless=True
            )
            await response.wait_for_headers()
            await self._start_tls(connection, response.status)
        except BaseException:
            connection.abort()
            raise
        connection.is_tunnel_pending = False

    async def _start_tls(self, connection: HttpConnection, status: int) -> None:
        if status != 200:
            raise OSError(f"the proxy answered {status}")
        transport = connection.transport
        if transport is None or self._ssl_context is None:
            raise BrokenConnectionError
        secure = await self._loop.start_tls(
            transport, connection, self._ssl_context, server_hostname=self._origin.host
        )
        if secure is None:
            raise BrokenConnectionError
        connection.connection_made(secure)


_INHERITED: Final[list[ConnectionPool]] = []
"""Pools of the parent process: closing them after a fork would close the parent's connections."""
