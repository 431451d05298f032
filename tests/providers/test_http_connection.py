"""HTTP connections to a server: requests, responses, timeouts and reuse."""

from __future__ import annotations

import asyncio
import gc
import gzip
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
import trustme
import uvloop

from brim.errors import ConnectionFailedError, ProviderTimeoutError, UnreachableError
from brim.providers.connection_pool import Origin
from brim.providers.endpoint import Endpoint
from brim.providers.http_connection import Header, SendState, encode_headers, encode_request_head
from brim.providers.transport import Transport

T = TypeVar("T")

LARGE = b"x" * 20_000_000
"""More than the buffers between two sockets hold."""
SMALL = 65_536
"""Size of the receive buffer of a server's socket."""
PROMPT_SECONDS = 5.0
"""Upper bound in seconds for anything that must happen immediately."""
COMPLETE = b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"id":1}'


@dataclass
class ServerConnection:
    """One connection on the server's side."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int
    """The number of earlier connections."""

    async def read_head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def read_request(self) -> bytes:
        """Return a complete request."""
        head = await self.read_head()
        sizes = [line for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")]
        return head + await self.reader.readexactly(int(sizes[0].split()[1]) if sizes else 0)

    async def write(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0.002)

    async def until_closed(self) -> None:
        """Wait until the client disconnects."""
        with suppress(ConnectionError):
            while await self.reader.read(SMALL):
                pass


Handler = Callable[[ServerConnection], Awaitable[None]]


def respond_with(*pieces: bytes, received: list[bytes] | None = None) -> Handler:
    """Answer every request over a connection with the same response."""

    async def handle(connection: ServerConnection) -> None:
        while True:
            request = await connection.read_request()
            if received is not None:
                received.append(request)
            await connection.write(*pieces)

    return handle


@dataclass
class Server:
    url: str = ""
    connections: int = 0
    gone: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    """Numbers of the connections whose handler has finished."""


@asynccontextmanager
async def run_server(
    handle: Handler, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Server]:
    """Run a server on a free port with this handler for each connection."""
    found, busy = Server(), set[asyncio.Task[Any] | None]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        busy.add(asyncio.current_task())
        found.connections += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await handle(ServerConnection(reader, writer, found.connections - 1))
            found.gone.put_nowait(found.connections - 1)
        writer.transport.abort()

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    listener.bind((host, 0))
    server = await asyncio.start_server(serve, sock=listener, ssl=tls, backlog=512)
    shown = "localhost" if tls else f"[{host}]" if ":" in host else host
    found.url = f"{'https' if tls else 'http'}://{shown}:{listener.getsockname()[1]}"
    try:
        yield found
    finally:
        server.close()
        tasks = [task for task in busy if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


class Loop:
    """Runs a test and collects the errors of its event loop."""

    def __init__(self, make: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._make = make
        self.errors: list[dict[str, Any]] = []

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=self._make) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: self.errors.append(context))
            return runner.run(asyncio.wait_for(work, 30))


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Loop]:
    loop = Loop(request.param)
    gc.freeze()  # only objects of this test are collected
    yield loop
    gc.collect()  # unclosed resources warn now
    assert loop.errors == []


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, Path]:
    """A server's TLS context, and the file of the authority that signed it."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "model.example").configure_cert(context)
    trusted = tmp_path_factory.mktemp("tls") / "authority.pem"
    authority.cert_pem.write_to_path(trusted)
    return context, trusted


@pytest.fixture(params=["http", "https"])
def secured(
    request: pytest.FixtureRequest,
    tls: tuple[ssl.SSLContext, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> ssl.SSLContext | None:
    """None for http, and a TLS context for https."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tls[1]))
    return tls[0] if request.param == "https" else None


async def send(
    transport: Transport, body: bytes | None = b"{}", method: str = "POST"
) -> tuple[int, bytes]:
    response = await transport.open(method, "/x", body, [])
    try:
        return response.status, await transport.read_all(response)
    finally:
        response.close()


def to(server: Server, **settings: Any) -> Transport:
    return Transport(Endpoint(server.url, retries=0, **settings))


# Reuse of connections


def encode_chunks(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))


PACKED = gzip.compress(b"packed" * 50_000)
KEPT = {
    "a content length": ("POST", [COMPLETE], 200, b'{"id":1}'),
    "many chunks": ("POST", [COMPLETE[i : i + 1] for i in range(len(COMPLETE))], 200, b'{"id":1}'),
    "chunked encoding": (
        "POST",
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", encode_chunks(b"ab", b"c")],
        200,
        b"abc",
    ),
    "gzip": (
        "POST",
        [
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
            % len(PACKED),
            PACKED,
        ],
        200,
        b"packed" * 50_000,
    ),
    "no content": ("POST", [b"HTTP/1.1 204 No\r\n\r\n"], 204, b""),
    "an empty body": ("POST", [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"], 200, b""),
    "not modified": ("GET", [b"HTTP/1.1 304 Old\r\nContent-Length: 8\r\n\r\n"], 304, b""),
    "HEAD": ("HEAD", [b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n"], 200, b""),
    "HEAD and chunked encoding": (
        "HEAD", [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"], 200, b""
    ),
    "100 Continue": ("POST", [b"HTTP/1.1 100 Go on\r\n\r\n" + COMPLETE], 200, b'{"id":1}'),
    "early hints": (
        "POST",
        [b"HTTP/1.1 103 Hint\r\nLink: <x>\r\n\r\n", b"HTTP/1.1 102 Wait\r\n\r\n", COMPLETE],
        200,
        b'{"id":1}',
    ),
    "HTTP/1.0 with keep-alive": (
        "POST",
        [b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}"],
        200,
        b"{}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", KEPT)
def test_a_connection_is_reused_after(case: str, run: Loop) -> None:
    method, pieces, status, body = KEPT[case]

    handle = respond_with(*pieces)

    async def work() -> int:
        async with run_server(handle) as server, to(server) as transport:
            for _ in range(3):
                assert await send(transport, None, method) == (status, body)
            return server.connections

    assert run(work()) == 1


LEFT = {
    "Connection: close": (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"),
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "two responses": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"
    ),
    "101 Switching Protocols": (
        b"HTTP/1.1 101 Other\r\nConnection: upgrade\r\nUpgrade: other\r\n\r\n"
    ),
}


@pytest.mark.parametrize("case", LEFT)
def test_a_connection_is_closed_immediately(case: str, run: Loop) -> None:
    async def handle(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.write(LEFT[case])
        await connection.until_closed()

    async def work() -> None:
        async with run_server(handle) as server, to(server) as transport:
            for number in range(2):
                status, body = await send(transport)
                assert (status, body) == (101, b"") if b" 101 " in LEFT[case] else (200, b"{}")
                await asyncio.wait_for(server.gone.get(), PROMPT_SECONDS)
                assert server.connections == number + 1

    run(work())


@pytest.mark.parametrize("ending", ["close", "reset"])
def test_a_response_without_a_length_ends_with_its_connection(ending: str, run: Loop) -> None:
    async def handle(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.write(b"HTTP/1.1 200 OK\r\n\r\n", b"{", b"}")
        connection.writer.close() if ending == "close" else reset(connection)

    def reset(connection: ServerConnection) -> None:
        line = connection.writer.get_extra_info("socket")
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.writer.transport.abort()

    async def work() -> list[tuple[int, bytes]]:
        async with run_server(handle) as server, to(server) as transport:
            return [await send(transport) for _ in range(2)]

    assert run(work()) == [(200, b"{}")] * 2


def test_a_server_may_close_after_its_response_without_notice(run: Loop) -> None:
    async def handle(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.write(COMPLETE)

    async def work() -> int:
        async with run_server(handle) as server, to(server) as transport:
            for _ in range(3):
                assert (await send(transport))[0] == 200
                await asyncio.wait_for(server.gone.get(), PROMPT_SECONDS)
            return server.connections

    assert run(work()) == 3


@pytest.mark.parametrize("is_first", [True, False], ids=["new", "reused"])
def test_unsolicited_data_is_not_taken_for_a_response(is_first: bool, run: Loop) -> None:
    late = b"HTTP/1.1 408 Too late\r\nContent-Length: 0\r\n\r\n"

    async def handle(connection: ServerConnection) -> None:
        if connection.number:
            await connection.read_request()
            await connection.write(COMPLETE)
        elif is_first:
            await connection.write(late)
        else:
            await connection.read_request()
            await connection.write(COMPLETE, late)
        await connection.until_closed()

    async def pause() -> None:
        await asyncio.sleep(0.1)

    async def work() -> None:
        async with run_server(handle) as server, to(server) as transport:
            state = SendState(pause)
            if is_first:
                with pytest.raises(ConnectionFailedError):
                    await transport.open("POST", "/x", b"{}", [], state)
                assert not state.is_sent
            else:
                assert (await send(transport))[0] == 200
                await pause()
            assert (await send(transport))[0] == 200

    run(work())


def test_many_requests_run_concurrently(run: Loop) -> None:
    async def work() -> int:
        together = asyncio.Barrier(150)

        async def handle(connection: ServerConnection) -> None:
            await connection.read_request()
            await together.wait()
            await connection.write(COMPLETE)

        async with run_server(handle) as server, to(server) as transport:
            await asyncio.gather(*(send(transport) for _ in range(150)))
            return server.connections

    assert run(work()) == 150


# Uploads


def test_a_response_may_arrive_before_the_server_has_read_the_request(run: Loop) -> None:
    async def handle(connection: ServerConnection) -> None:
        await connection.read_head()
        await connection.write(b"HTTP/1.1 413 Too large\r\nContent-Length: 2\r\n\r\n{}")
        await connection.until_closed()

    async def work() -> None:
        async with run_server(handle) as server, to(server) as transport:
            for number in range(2):
                assert await send(transport, LARGE) == (413, b"{}")
                await asyncio.wait_for(server.gone.get(), PROMPT_SECONDS)
                assert server.connections == number + 1

    run(work())


def test_large_requests_and_responses_arrive_complete(
    secured: ssl.SSLContext | None, run: Loop
) -> None:
    async def handle(connection: ServerConnection) -> None:
        while True:
            got = await connection.read_request()
            await connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(LARGE))
            await connection.write(got[-len(LARGE) :])

    async def work() -> int:
        async with run_server(handle, tls=secured) as server, to(server) as transport:
            for _ in range(2):
                status, body = await send(transport, LARGE)
                assert status == 200
                assert body == LARGE
            return server.connections

    assert run(work()) == 1


def test_cancelling_does_not_wait_for_a_server_that_reads_nothing(
    secured: ssl.SSLContext | None, run: Loop
) -> None:
    received_bytes = 0

    async def handle(connection: ServerConnection) -> None:
        nonlocal received_bytes
        await connection.read_head()
        await asyncio.sleep(0.3)
        with suppress(ConnectionError):
            while piece := await connection.reader.read(SMALL):
                received_bytes += len(piece)

    async def work() -> None:
        async with run_server(handle, tls=secured) as server, to(server) as transport:
            task = asyncio.create_task(send(transport, LARGE))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(server.gone.get(), PROMPT_SECONDS)

    run(work())
    assert received_bytes < len(LARGE)


def test_closing_does_not_wait_for_a_server_that_reads_nothing(
    secured: ssl.SSLContext | None, run: Loop
) -> None:
    async def handle(connection: ServerConnection) -> None:
        await connection.read_head()
        await asyncio.sleep(30)

    async def work() -> None:
        async with run_server(handle, tls=secured) as server, to(server) as transport:
            task = asyncio.create_task(send(transport, LARGE))
            await asyncio.sleep(0.1)
            await asyncio.wait_for(transport.close(), PROMPT_SECONDS)
            with pytest.raises(ConnectionFailedError):
                await asyncio.wait_for(task, PROMPT_SECONDS)

    run(work())


def test_a_server_that_half_closes_during_an_upload_is_disconnected(run: Loop) -> None:
    async def handle(connection: ServerConnection) -> None:
        await connection.read_head()
        connection.writer.write_eof()
        await asyncio.sleep(30)

    async def work() -> None:
        async with run_server(handle) as server, to(server, timeout=30) as transport:
            with pytest.raises(ConnectionFailedError, match="broke before the response"):
                await asyncio.wait_for(send(transport, LARGE), PROMPT_SECONDS)

    run(work())


# Timeouts


def test_a_slow_upload_does_not_time_out(run: Loop) -> None:
    """A busy machine may stop this process for most of the timeout."""
    timeout, reading, thinking = 2.5, 2.7, 0.4

    async def handle(connection: ServerConnection) -> None:
        await connection.read_head()
        for _ in range(20):
            await asyncio.sleep(reading / 20)
            await connection.reader.readexactly(len(LARGE) // 20)
        await asyncio.sleep(thinking)
        await connection.write(COMPLETE)

    async def work() -> tuple[int, bytes]:
        async with run_server(handle) as server, to(server, timeout=timeout) as transport:
            return await send(transport, LARGE)

    assert run(work()) == (200, b'{"id":1}')


def test_a_stalled_upload_times_out(secured: ssl.SSLContext | None, run: Loop) -> None:
    async def handle(connection: ServerConnection) -> None:
        await connection.read_head()
        await asyncio.sleep(30)

    async def work() -> None:
        async with run_server(handle, tls=secured) as server, to(server, timeout=0.3) as transport:
            with pytest.raises(ProviderTimeoutError):
                await asyncio.wait_for(send(transport, LARGE), PROMPT_SECONDS)

    run(work())


def test_an_informational_response_does_not_prevent_the_timeout(run: Loop) -> None:
    async def handle(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.write(b"HTTP/1.1 100 Go on\r\n\r\n")
        await asyncio.sleep(30)

    async def work() -> None:
        async with run_server(handle) as server, to(server, timeout=0.1) as transport:
            with pytest.raises(ProviderTimeoutError):
                await asyncio.wait_for(send(transport), PROMPT_SECONDS)

    run(work())


def test_the_timeout_starts_again_after_each_chunk(run: Loop) -> None:
    """A pause is before the body of one response, and within the body of the other."""

    async def handle(connection: ServerConnection) -> None:
        await connection.read_request()
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        words = [head, *[b"1\r\na\r\n"] * 4, b"0\r\n\r\n"]
        if connection.number:
            words[:2] = [head + words[1]]
        for word in words:
            await asyncio.sleep(0.6)
            await connection.write(word)

    async def work() -> None:
        async with run_server(handle) as server, to(server, timeout=2.8) as transport:
            responses = await asyncio.gather(send(transport), send(transport))
            assert list(responses) == [(200, b"aaaa")] * 2

    run(work())


def test_endless_chunk_framing_times_out(run: Loop) -> None:
    """The server sends an endless chunk extension."""

    async def handle(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1;")
        while True:
            await connection.write(b"x")
            await asyncio.sleep(0.05)

    async def work() -> None:
        async with run_server(handle) as server, to(server, timeout=0.3) as transport:
            with pytest.raises(ProviderTimeoutError):
                await asyncio.wait_for(send(transport), 5)

    run(work())


def test_an_idle_connection_outlasts_the_read_timeout(run: Loop) -> None:
    async def work(case: str) -> int:
        method, pieces, status, body = KEPT[case]
        handle = respond_with(*pieces)
        async with run_server(handle) as server, to(server, timeout=2.2) as transport:
            assert await send(transport, None, method) == (status, body)
            await asyncio.sleep(2.3)
            assert await send(transport, None, method) == (status, body)
            return server.connections

    async def work_with_all() -> list[int]:
        return await asyncio.gather(*map(work, ("100 Continue", "HEAD", "chunked encoding")))

    assert run(work_with_all()) == [1, 1, 1]


def test_a_tls_handshake_that_stalls_times_out(
    tls: tuple[ssl.SSLContext, Path], run: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tls[1]))

    async def work() -> None:
        async with run_server(ServerConnection.until_closed) as server:
            secure = server.url.replace("http:", "https:")
            async with Transport(Endpoint(secure, timeout=1, retries=0)) as transport:
                with pytest.raises(UnreachableError, match="timed out"):
                    await asyncio.wait_for(send(transport), PROMPT_SECONDS)
            await asyncio.wait_for(server.gone.get(), PROMPT_SECONDS)

    run(work())


# Sending and cancelling


@pytest.mark.parametrize("way", ["server", "client"])
def test_a_request_over_a_closed_connection_is_known_to_be_unsent(way: str, run: Loop) -> None:
    async def handle(connection: ServerConnection) -> None:
        if way == "client":
            await connection.until_closed()

    async def work() -> bool:
        async with run_server(handle) as server, to(server) as transport:

            async def ready() -> None:
                if way == "client":
                    await transport.close()
                else:
                    await server.gone.get()
                    await asyncio.sleep(0.05)

            state = SendState(ready)
            with pytest.raises(ConnectionFailedError):
                await transport.open("POST", "/x", b"{}", [], state)
            return state.is_sent

    assert run(work()) is False


def test_a_reused_connection_that_broke_before_sending_is_replaced(run: Loop) -> None:
    async def handle(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.write(COMPLETE)
        if connection.number:
            await connection.until_closed()
        else:
            await going.wait()

    async def ready() -> None:
        going.set()
        await asyncio.sleep(0.05)

    async def work() -> int:
        async with run_server(handle) as server, to(server) as transport:
            assert (await send(transport))[0] == 200
            response = await transport.open("POST", "/x", b"{}", [], SendState(ready))
            response.close()
            return server.connections

    going = asyncio.Event()
    assert run(work()) == 2


@pytest.mark.parametrize("taken", [1, len(LARGE) - 1], ids=["nothing read", "almost all read"])
def test_a_large_request_over_a_stale_connection_is_sent_over_another(
    taken: int, run: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brim.providers.http_connection.STALE_SECONDS", 60.0)

    async def handle(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.write(COMPLETE)
        if not connection.number:
            await connection.reader.readexactly(taken)

    async def work() -> int:
        async with run_server(handle) as server, to(server) as transport:
            assert (await send(transport))[0] == 200
            assert (await send(transport, LARGE))[0] == 200
            return server.connections

    assert run(work()) == 2


def test_reading_an_older_response_does_not_make_a_stale_connection_look_alive(
    run: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brim.providers.http_connection.STALE_SECONDS", 60.0)

    async def work() -> int:
        reading = asyncio.Event()

        async def handle(connection: ServerConnection) -> None:
            await connection.read_request()
            await connection.write(COMPLETE)
            if not connection.number:
                await connection.read_request()
                await reading.wait()

        async with run_server(handle) as server, to(server) as transport:
            older = await transport.open("POST", "/x", b"{}", [])
            await asyncio.sleep(0.05)
            newer = asyncio.create_task(send(transport))
            await asyncio.sleep(0.05)
            assert await transport.read_all(older) == b'{"id":1}'
            reading.set()
            assert (await newer)[0] == 200
            return server.connections

    assert run(work()) == 2


@pytest.mark.parametrize("moment", ["ready", "head", "body"])
def test_a_cancelled_request_leaves_no_connection_open(
    moment: str, secured: ssl.SSLContext | None, run: Loop
) -> None:
    async def handle(connection: ServerConnection) -> None:
        await connection.read_request()
        here.set()
        if moment == "body":
            await connection.write(COMPLETE[:-3])
        if moment != "ready":
            await connection.until_closed()
        else:
            await connection.write(COMPLETE)

    async def ready() -> None:
        here.set()
        await asyncio.sleep(30)

    async def work() -> None:
        async with run_server(handle, tls=secured) as server, to(server) as transport:
            state = SendState(ready if moment == "ready" else None)
            task = asyncio.create_task(read(transport, state))
            await here.wait()
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert state.is_sent == (moment != "ready")
            if moment == "ready":  # nothing was sent, so the connection is reused
                assert (await send(transport))[0] == 200
            await asyncio.wait_for(server.gone.get(), PROMPT_SECONDS)
            assert server.connections == 1

    async def read(transport: Transport, state: SendState) -> None:
        response = await transport.open("POST", "/x", b"{}", [], state)
        try:
            await transport.read_all(response)
        finally:
            response.close()

    here = asyncio.Event()
    run(work())


def test_cancelling_while_connecting_leaves_no_connection_open(
    tls: tuple[ssl.SSLContext, Path], run: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tls[1]))

    async def work() -> None:
        async with run_server(ServerConnection.until_closed) as server:
            endpoint = Endpoint(server.url.replace("http:", "https:"))
            async with Transport(endpoint) as transport:
                task = asyncio.create_task(send(transport))
                await asyncio.sleep(0.1)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await asyncio.wait_for(server.gone.get(), PROMPT_SECONDS)

    run(work())


@pytest.mark.parametrize("whose", ["connection", "response"])
def test_reading_a_closed_response_raises(whose: str, run: Loop) -> None:
    async def handle(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.write(COMPLETE[:-3])
        await connection.until_closed()

    async def work() -> None:
        async with run_server(handle) as server, to(server) as transport:
            response = await transport.open("POST", "/x", b"{}", [])
            reading = asyncio.create_task(transport.read_all(response))
            await asyncio.sleep(0.05)
            if whose == "connection":
                await transport.close()
            else:
                response.close()
            with pytest.raises(ConnectionFailedError):
                await asyncio.wait_for(reading, PROMPT_SECONDS)
            with pytest.raises(ConnectionFailedError):
                await transport.read_chunk(response)
            response.close()

    run(work())


def test_closing_ends_pending_requests(run: Loop) -> None:
    async def handle(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.until_closed()

    async def work() -> None:
        async with run_server(handle) as server, to(server) as transport:
            tasks = [asyncio.create_task(send(transport)) for _ in range(3)]
            await asyncio.sleep(0.1)
            await asyncio.wait_for(transport.close(), PROMPT_SECONDS)
            for task in tasks:
                with pytest.raises(ConnectionFailedError):
                    await asyncio.wait_for(task, PROMPT_SECONDS)
            assert server.connections == 3

    run(work())


@pytest.mark.parametrize(
    "answer",
    [
        b"220 mail.example ESMTP\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"b" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        COMPLETE[:20],
    ],
)
def test_an_invalid_response_closes_the_connection(answer: bytes, run: Loop) -> None:
    async def handle(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.write(answer)
        if answer != COMPLETE[:20]:
            await connection.until_closed()

    async def work() -> None:
        async with run_server(handle) as server, to(server) as transport:
            for number in range(2):
                with pytest.raises(ConnectionFailedError, match="broke before the response"):
                    await send(transport)
                await asyncio.wait_for(server.gone.get(), PROMPT_SECONDS)
                assert server.connections == number + 1

    run(work())


# Encoding of requests


def lines_of(head: bytes) -> list[str]:
    return head.decode().split("\r\n")


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("http://model.example", "model.example"),
        ("http://model.example:80", "model.example"),
        ("https://model.example:443", "model.example"),
        ("https://model.example:80", "model.example:80"),
        ("http://127.0.0.1:8080/v1", "127.0.0.1:8080"),
        ("http://[::1]:8080", "[::1]:8080"),
        ("http://[::1]", "[::1]"),
        ("http://bücher.example:81", "xn--bcher-kva.example:81"),
    ],
)
def test_the_host_header_names_the_server(address: str, host: str) -> None:
    assert Origin.parse(Endpoint(address).url).authority == host


def capture_lines(path: str = "/x", method: str = "POST", **settings: Any) -> list[str]:
    """Return the lines of the request that reaches a server."""
    heads: list[bytes] = []

    async def handle(connection: ServerConnection) -> None:
        heads.append(await connection.read_request())
        await connection.write(b"HTTP/1.1 204 No\r\n\r\n")

    async def work() -> None:
        async with run_server(handle, host=settings.pop("host", "127.0.0.1")) as server:
            address = server.url + settings.pop("under", "")
            body, sent = settings.pop("body", b"{}"), encode_headers(settings.pop("sent", {}))
            async with Transport(Endpoint(address, **settings)) as transport:
                (await transport.open(method, path, body, sent)).close()

    asyncio.run(asyncio.wait_for(work(), 30))
    return lines_of(heads[0])


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/x", "/x"),
        ("/x?a=b&c=%20+", "/x?a=b&c=%20+"),
        ("/x#behind", "/x"),
        ("/files/a%2Fb%252e", "/files/a%2Fb%252e"),
        ("//x/../y", "//x/../y"),
        ("/ü?ö=%C3%A4", "/%C3%BC?%C3%B6=%C3%A4"),
        ("/x?", "/x"),
    ],
)
def test_a_path_is_sent_unchanged(path: str, target: str) -> None:
    assert capture_lines(path)[0] == f"POST {target} HTTP/1.1"


def test_the_path_of_the_address_precedes_each_path() -> None:
    assert capture_lines("/v1/x", under="/here/v1")[0] == "POST /here/v1/x HTTP/1.1"


@pytest.mark.parametrize(
    ("method", "body", "size"),
    [
        ("POST", None, "0"), ("POST", b"", "0"), ("PUT", None, "0"), ("PATCH", b"{}", "2"),
        ("GET", None, None), ("DELETE", None, None), ("DELETE", b"{}", "2"), ("HEAD", None, None),
    ],
)  # fmt: skip
def test_a_request_has_a_content_length(method: str, body: bytes | None, size: str | None) -> None:
    lengths = [line for line in capture_lines(method=method, body=body) if "ength" in line]
    assert lengths == ([] if size is None else [f"Content-Length: {size}"])


def test_a_configured_host_header_replaces_the_default() -> None:
    def names(**settings: Any) -> list[str]:
        return [line for line in capture_lines(**settings) if line.lower().startswith("host:")]

    (host,) = names(host="::1")
    assert host.startswith("Host: [::1]:")
    other = {"hOsT": "other.example"}
    assert names(headers=other, sent=other) == ["hOsT: other.example"]


def test_headers_are_sent_in_utf_8() -> None:
    assert "x-name: Zoë" in capture_lines(sent={"x-name": "Zoë"})


@pytest.mark.parametrize("sign", ["\r", "\n", "\r\n", "\0"])
@pytest.mark.parametrize("place", ["method", "path", "name", "value"])
def test_line_breaks_in_headers_are_rejected(place: str, sign: str) -> None:
    odd = f"a{sign}b: c"
    values = {"method": "GET", "path": "/", "name": "n", "value": "v", place: odd}
    heads = encode_headers({values["name"]: values["value"]})
    with pytest.raises(ValueError, match="not one line"):
        encode_request_head(values["method"], values["path"], heads, 0)


@pytest.mark.parametrize("head", [(b"x", b"a\r\nb: c"), (b"x\r\nb", b"c")])
def test_a_request_with_invalid_headers_is_not_sent(head: Header, run: Loop) -> None:
    async def work() -> int:
        state = SendState()
        async with run_server(ServerConnection.until_closed) as server, to(server) as transport:
            with pytest.raises(ConnectionFailedError):
                await transport.open("POST", "/x", b"{}", [head], state)
            assert not state.is_sent
            return server.connections

    assert run(work()) == 0


# Proxies


Proxied = Callable[[str], None]


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch, tls: tuple[ssl.SSLContext, Path]) -> Proxied:
    def through(url: str) -> None:
        for scheme in ("http", "https"):
            monkeypatch.setenv(f"{scheme}_proxy", url.replace("://", "://me:word@"))
        monkeypatch.setenv("no_proxy", "")

    monkeypatch.setenv("SSL_CERT_FILE", str(tls[1]))
    return through


@pytest.mark.parametrize(
    ("address", "target", "host"),
    [
        ("http://model.example/v1", "http://model.example/x?a=b", "model.example"),
        ("http://model.example:81", "http://model.example:81/x?a=b", "model.example:81"),
        ("http://[fd00::1]:81", "http://[fd00::1]:81/x?a=b", "[fd00::1]:81"),
        ("http://bücher.example", "http://xn--bcher-kva.example/x?a=b", "xn--bcher-kva.example"),
    ],
)
def test_a_proxy_gets_the_full_address_and_its_connection_is_reused(
    address: str, target: str, host: str, run: Loop, proxied: Proxied
) -> None:
    heads: list[bytes] = []
    handle = respond_with(COMPLETE, received=heads)

    async def work() -> int:
        async with run_server(handle) as proxy:
            proxied(proxy.url)
            async with Transport(Endpoint(address, retries=0)) as transport:
                for _ in range(2):
                    (await transport.open("POST", "/x?a=b#c", b"{}", [])).close()
                    await asyncio.sleep(0.02)
            return proxy.connections

    run(work())
    for head in heads:
        assert lines_of(head)[0] == f"POST {target} HTTP/1.1"
        assert f"Host: {host}" in lines_of(head)
        assert "Proxy-Authorization: Basic bWU6d29yZA==" in lines_of(head)


def test_requests_after_a_proxy_is_removed_go_to_the_server(
    run: Loop, proxied: Proxied, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Endpoint, "is_loopback", False)  # loopback addresses never use a proxy
    heads: list[bytes] = []

    async def handle(connection: ServerConnection) -> None:
        heads.append(await connection.read_request())
        await connection.write(COMPLETE)

    async def work() -> None:
        async with run_server(handle) as server, to(server) as transport:
            proxied(server.url)
            await send(transport)
            await transport.close()
            monkeypatch.delenv("http_proxy")
            await send(transport)

    run(work())
    before, after = map(lines_of, heads)
    assert before[0].startswith("POST http://")
    assert after[0] == "POST /x HTTP/1.1"
    assert not any(line.startswith("Proxy-") for line in after)


def test_a_tunnel_through_a_proxy_is_reused(
    tls: tuple[ssl.SSLContext, Path], run: Loop, proxied: Proxied
) -> None:
    heads: list[bytes] = []
    handle = respond_with(COMPLETE, received=heads)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(SMALL):
            writer.write(piece)
            await writer.drain()
        writer.close()

    async def work() -> tuple[int, int]:
        async def tunnel(connection: ServerConnection) -> None:
            heads.append(await connection.read_head())
            there = await asyncio.open_connection("127.0.0.1", urlsplit(server.url).port)
            await connection.write(b"HTTP/1.1 200 OK\r\n\r\n")
            try:
                await asyncio.gather(
                    pump(connection.reader, there[1]), pump(there[0], connection.writer)
                )
            finally:
                there[1].transport.abort()

        async with run_server(handle, tls=tls[0]) as server, run_server(tunnel) as proxy:
            proxied(proxy.url)
            async with Transport(Endpoint("https://model.example", retries=0)) as transport:
                for _ in range(3):
                    assert (await send(transport))[0] == 200
            return proxy.connections, server.connections

    assert run(work()) == (1, 1)
    assert [lines_of(head)[0] for head in heads] == [
        "CONNECT model.example:443 HTTP/1.1",
        *["POST /x HTTP/1.1"] * 3,
    ]
    assert "Proxy-Authorization: Basic bWU6d29yZA==" in lines_of(heads[0])
    assert b"Proxy-Authorization" not in heads[1]


def test_a_proxy_that_does_not_respond_times_out(run: Loop, proxied: Proxied) -> None:
    async def work() -> None:
        async with run_server(ServerConnection.until_closed) as proxy:
            proxied(proxy.url)
            endpoint = Endpoint("https://model.example", timeout=0.2, retries=0)
            state = SendState()
            async with Transport(endpoint) as transport:
                with pytest.raises(UnreachableError, match="timed out"):
                    await asyncio.wait_for(
                        transport.open("POST", "/x", b"{}", [], state), PROMPT_SECONDS
                    )
            assert not state.is_sent
            await asyncio.wait_for(proxy.gone.get(), PROMPT_SECONDS)

    run(work())
