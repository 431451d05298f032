"""The HTTP server of `brim serve`: where it listens, and how it starts and stops.

It listens only on this machine unless keys are required, and a signal lets running responses
finish before it exits with code 0. `brim.gateway.asgi` is for other servers.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, TypeAlias

from starlette.types import ASGIApp, Message

from brim.errors import BrimError, InputError
from brim.gateway.http_protocol import HttpProtocol, ServerContext

BACKLOG: Final = 2048
ACCEPT_GRACE_SECONDS: Final = 0.2
"""How long a client that connected before the server closed may still send its request."""
POLL_SECONDS: Final = 0.01
CANCEL_SECONDS: Final = 5.0
"""How long a cancelled request may take to clean up."""
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
RELOAD_SIGNALS: Final = () if os.name == "nt" else (signal.SIGHUP,)

IPAddress: TypeAlias = IPv4Address | IPv6Address


class HttpServer:
    """Runs an ASGI application on a socket, from its startup to its shutdown.

    `stopping` is called on the first signal to stop, and `reload` on SIGHUP. After SIGTERM the
    server accepts requests for `drain_seconds`, in which a load balancer notices that it is
    stopping. Running responses then have `stop_seconds` to finish; a second Ctrl-C ends them
    immediately.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        stop_seconds: float,
        drain_seconds: float = 0.0,
        accept_grace_seconds: float = ACCEPT_GRACE_SECONDS,
        stopping: Callable[[], None] = lambda: None,
        reload: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._context = ServerContext(app)
        self._stop_seconds = stop_seconds
        self._drain_seconds = drain_seconds
        self._accept_grace_seconds = accept_grace_seconds
        self._stopping = stopping
        self._reload = reload
        self._reloading: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._closing = asyncio.Event()
        """Set when no more requests are accepted."""
        self._forced = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def serve(self, listener: socket.socket, announce: Callable[[str], None]) -> None:
        """Serve until SIGTERM or Ctrl-C; raise KeyboardInterrupt after a second Ctrl-C.

        `announce` gets the address when the server accepts requests.
        """
        tune_garbage_collector()
        with asyncio.Runner(loop_factory=_find_loop_factory()) as runner:
            runner.run(self.run(listener, lambda: announce(_url(listener))))
        if self._forced.is_set():
            raise KeyboardInterrupt

    async def run(self, listener: socket.socket, ready: Callable[[], None]) -> None:
        """Serve until a signal or `stop`; signals are handled in the main thread only."""
        self._loop = loop = asyncio.get_running_loop()
        with self._handle_signals(loop):
            async with _run_lifespan(self._context.app):
                server = await loop.create_server(
                    partial(HttpProtocol, self._context), sock=listener, backlog=BACKLOG
                )
                if not self._closing.is_set():
                    ready()
                await self._closing.wait()
                await self._shut_down(server)

    def stop(self) -> None:
        """Let `run` return when the running requests are done. May be called in any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._closing.set)

    async def _shut_down(self, server: asyncio.Server) -> None:
        server.close()
        # A request may be on its way over a connection that was already accepted, and a load
        # balancer could not send it to another server.
        await asyncio.sleep(self._accept_grace_seconds)
        connections, tasks = self._context.connections, self._context.tasks
        for connection in tuple(connections):
            connection.shut_down()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._stop_seconds):
                while (connections or tasks) and not self._forced.is_set():
                    await asyncio.sleep(POLL_SECONDS)
        for task in tuple(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tuple(tasks), timeout=CANCEL_SECONDS)
        for connection in tuple(connections):
            connection.abort()
        await server.wait_closed()

    @contextmanager
    def _handle_signals(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, _: object) -> None:
            loop.call_soon_threadsafe(self._handle_signal, number)

        handled = STOP_SIGNALS if self._reload is None else (*STOP_SIGNALS, *RELOAD_SIGNALS)
        before = {each: signal.signal(each, handle) for each in handled}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _handle_signal(self, number: int) -> None:
        if number in RELOAD_SIGNALS:
            self._reloading = asyncio.get_running_loop().create_task(self._run_reload())
            return
        is_first, self._is_stopping = not self._is_stopping, True
        if is_first:
            self._stopping()
        if number == signal.SIGINT and self._closing.is_set():
            self._forced.set()
        elif number == signal.SIGTERM and is_first and self._drain_seconds:
            asyncio.get_running_loop().call_later(self._drain_seconds, self._closing.set)
        else:
            self._closing.set()

    async def _run_reload(self) -> None:
        assert self._reload is not None
        with suppress(BrimError):  # logged, and the old configuration stays
            await self._reload()


@asynccontextmanager
async def _run_lifespan(app: ASGIApp) -> AsyncIterator[None]:
    """Start up an application and shut it down."""
    to_app: asyncio.Queue[Message] = asyncio.Queue()
    from_app: asyncio.Queue[Message] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}}

    async def call() -> None:
        await app(scope, to_app.get, from_app.put)

    task = asyncio.create_task(call())

    async def advance(event: str) -> None:
        to_app.put_nowait({"type": f"lifespan.{event}"})
        reply = asyncio.ensure_future(from_app.get())
        await asyncio.wait((task, reply), return_when=asyncio.FIRST_COMPLETED)
        if not reply.done() or reply.result()["type"].endswith(".failed"):
            reply.cancel()
            await task  # raises the application's error
            raise RuntimeError(f"The application did not complete its {event}")

    await advance("startup")
    try:
        yield
    finally:
        await advance("shutdown")
        await task


def tune_garbage_collector() -> None:
    """Collect less often, and ignore the objects that exist before the first request.

    A gateway keeps many small objects for long: recent conversations and running requests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def open_listener(host: str, port: int, *, has_keys: bool = False) -> socket.socket:
    """Return a socket that listens on an address; port 0 is any free port.

    Raise InputError if other machines could reach it while no keys are required.
    """
    address = _resolve(host)
    if not address.is_loopback and not has_keys:
        raise InputError(
            f"{host} is reachable from other machines, and anyone who can connect could spend your "
            "money. Create a key first with `brim keys add NAME`, or use 127.0.0.1."
        )
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name != "nt":  # on Windows, two servers could share the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((str(address), port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise InputError(
            f"Cannot listen on port {port} of {host}: {error.strerror or error}. "
            "Choose another with --port (0 = any free port)."
        ) from error
    return listener


def _resolve(host: str) -> IPAddress:
    try:
        return ip_address(host)
    except ValueError:
        pass
    try:
        return ip_address(socket.gethostbyname(host))
    except (OSError, UnicodeError):
        raise InputError(f"Unknown host: {host}. Use an address such as 127.0.0.1.") from None


def _find_loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return uvloop's event loop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def _url(listener: socket.socket) -> str:
    host, port, *_ = listener.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
