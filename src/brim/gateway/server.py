"""The gateway's own server: where it listens, what it bounds, and how it ends.

uvicorn does the work. What it does otherwise: it listens on this machine only unless keys are asked
for, a signal to stop lets running answers end and then leaves with code 0, and a taken port is an
error of ours. Whoever wants another server takes `brim.gateway.asgi`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address
from types import FrameType
from typing import Final, TypeAlias

import uvicorn
from starlette.types import ASGIApp

from brim.errors import InputError
from brim.gateway.http_protocol import BoundedConnection

BACKLOG: Final = 2048
KEEP_ALIVE_SECONDS: Final = 75
"""Longer than clients and proxies keep an idle connection, so that it is they who close it."""
ACCEPT_GRACE_SECONDS: Final = 0.2
"""In which those who have connected when it closes can still say what they came for."""
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

Address: TypeAlias = IPv4Address | IPv6Address


def serve(
    app: ASGIApp,
    listener: socket.socket,
    *,
    stop_seconds: float,
    announce: Callable[[str], None],
    stopping: Callable[[], None],
    drain_seconds: float = 0.0,
) -> None:
    """Answer the requests that come to a socket, until SIGTERM or Ctrl-C.

    `announce` is told the address once requests can come, `stopping` is called when it is to end.
    After SIGTERM requests are taken for `drain_seconds` more, in which a balancer finds out that
    there should be none. Running answers then have `stop_seconds` to end; a second Ctrl-C ends them
    at once.
    """
    settings = _settings(app, stop_seconds)
    server = _GatewayServer(settings, _url(listener), announce, stopping, drain_seconds)
    _ignore_cancellations(logging.getLogger("uvicorn.error"))
    tune_garbage_collector()
    server.run(sockets=[listener])
    if server.force_exit:
        raise KeyboardInterrupt


def tune_garbage_collector() -> None:
    """Let Python look for cycles less often, and not in what was there before the first request.

    A gateway holds many small objects for long: what was said lately, and running requests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def open_listener(host: str, port: int, *, has_keys: bool = False) -> socket.socket:
    """A socket that is bound to an address; port 0 takes a free one.

    One that other machines can reach is only for a gateway that asks for keys.
    """
    address = _address(host)
    if not address.is_loopback and not has_keys:
        raise InputError(
            f"{host} can be reached from other machines, and whoever reaches it could spend your "
            "money: make a key first with `brim keys add NAME`, or stay on 127.0.0.1"
        )
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name != "nt":  # where it would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((str(address), port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise InputError(
            f"port {port} of {host}: {error.strerror or error}; "
            "--port takes another one, and 0 whichever is free"
        ) from error
    return listener


def _address(host: str) -> Address:
    try:
        return ip_address(host)
    except ValueError:
        pass
    try:
        return ip_address(socket.gethostbyname(host))
    except (OSError, UnicodeError):
        raise InputError(f"{host} is no address; 127.0.0.1 is the one to take") from None


def _settings(app: ASGIApp, stop_seconds: float) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=BoundedConnection,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level=logging.ERROR,  # the gateway itself says what there is to say of a request
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(stop_seconds),
    )


class _GatewayServer(uvicorn.Server):
    """Says when it is ready and when it stops, and does not die of the signal that stopped it."""

    def __init__(
        self,
        config: uvicorn.Config,
        address: str,
        announce: Callable[[str], None],
        stopping: Callable[[], None],
        drain_seconds: float,
    ) -> None:
        super().__init__(config)
        self._drain_seconds = drain_seconds
        self._closes_at: float | None = None
        """When it takes no more requests, once it is told to stop."""
        self._address = address
        self._announce = announce
        self._stopping = stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._announce(self._address)

    async def on_tick(self, counter: int) -> bool:
        if self._closes_at is not None and time.monotonic() >= self._closes_at:
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        # uvicorn hangs up on those who were let in and were not heard yet: their request may be
        # on its way, and a balancer could not send it to anybody else.
        await asyncio.sleep(ACCEPT_GRACE_SECONDS)
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn would leave at once, and nobody would book what was cut off
            await self.lifespan.shutdown()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {each: signal.signal(each, self.handle_exit) for each in STOP_SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        is_first = self._closes_at is None
        if is_first:
            self._stopping()
            self._closes_at = time.monotonic() + self._drain_seconds
        if sig == signal.SIGINT or not (is_first and self._drain_seconds):
            super().handle_exit(sig, frame)


def _url(listener: socket.socket) -> str:
    host, port, *_ = listener.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _ignore_cancellations(logger: logging.Logger) -> None:
    """An answer that is cut because the time to stop is over is no error of the application."""

    def is_news(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, asyncio.CancelledError)

    logger.addFilter(is_news)
