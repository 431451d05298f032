"""A scripted server for failures that a real one does not produce on demand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any, TypeVar

from aiohttp import web

from brim.providers.endpoint import Endpoint
from brim.providers.transport import Transport

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class RecordedRequest:
    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


@dataclass
class Scripted:
    url: str
    requests: list[RecordedRequest] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.requests]


@asynccontextmanager
async def run_scripted(answer: Handler, ssl: SSLContext | None = None) -> AsyncIterator[Scripted]:
    """A server on a free loopback port; every request is recorded and passed to `answer`."""
    server = Scripted("")

    async def noted(request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        server.requests.append(
            RecordedRequest(request.method, request.path, dict(request.headers), raw)
        )
        return await answer(request)

    app = web.Application(client_max_size=2**30)
    app.router.add_route("*", "/{path:.*}", noted)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=ssl)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.url = f"https://localhost:{port}" if ssl else f"http://{host}:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()


@dataclass
class Speaking:
    url: str
    heads: list[bytes] = field(default_factory=list)


@asynccontextmanager
async def run_raw(*conversations: Iterable[bytes], pause: float = 0.002) -> AsyncIterator[Speaking]:
    """A server that writes the given bytes, piece by piece, and disconnects: one list per
    connection.

    It waits after each piece, and stops when the test ends.
    """
    waiting = list(conversations)
    raw_server = Speaking("")
    busy: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        busy.add(asyncio.current_task())
        with suppress(asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
            await speak(reader, writer)
        writer.transport.abort()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        raw_server.heads.append(head)
        sizes = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
        if sizes:
            await reader.readexactly(int(sizes[0].split(b":")[1]))
        for piece in waiting.pop(0) if len(waiting) > 1 else waiting[0]:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    raw_server.url = f"http://{host}:{port}"
    try:
        yield raw_server
    finally:
        server.close()
        tasks = [task for task in busy if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)
        await server.wait_closed()


def in_turn(*answers: web.Response | Callable[[], web.StreamResponse]) -> Handler:
    """Return one response after the other; the last one repeats."""
    waiting = list(answers)

    async def answer(_: web.Request) -> web.StreamResponse:
        following = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if isinstance(following, web.Response):
            return web.Response(
                status=following.status, body=following.body, headers=following.headers
            )
        return following()

    return answer


def by_path(paths: Mapping[str, web.Response | Any]) -> Handler:
    """Return the response of each path, JSON unless it is a response object; 404 elsewhere."""

    async def answer(request: web.Request) -> web.StreamResponse:
        found = paths.get(request.path)
        if found is None:
            return web.json_response({"error": {"message": "not found"}}, status=404)
        if isinstance(found, web.Response):
            return web.Response(status=found.status, body=found.body, headers=found.headers)
        return web.json_response(found)

    return answer


class Naps:
    """A sleep that takes no time and records its durations."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


def connection(url: str, **settings: Any) -> Transport:
    return Transport(Endpoint(url, **settings), sleep=Naps())


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 30))
