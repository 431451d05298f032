"""What goes over a connection, and what becomes of it, whatever a server does."""

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
from brim.providers import Endpoint, Transport
from brim.providers.http_connection import (
    Header,
    Origin,
    SendState,
    encode_headers,
    encode_request_head,
)

T = TypeVar("T")

LARGE = b"x" * 20_000_000
"""More than lies between two sockets."""
SMALL = 65_536
"""Bytes that a server's socket takes before somebody reads them, if it is told so."""
SOON = 5.0
"""Seconds in which anything happens that is meant to happen at once."""
WHOLE = b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"id":1}'


@dataclass
class Call:
    """One connection, as the server sees it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int
    """How many there were before it."""

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def asked(self) -> bytes:
        """A whole request."""
        head = await self.head()
        sizes = [line for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")]
        return head + await self.reader.readexactly(int(sizes[0].split()[1]) if sizes else 0)

    async def say(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0.002)

    async def until_gone(self) -> None:
        """Until the other side hangs up."""
        with suppress(ConnectionError):
            while await self.reader.read(SMALL):
                pass


Talk = Callable[[Call], Awaitable[None]]


def answering(*pieces: bytes, heard: list[bytes] | None = None) -> Talk:
    """Every request over a connection gets the same answer."""

    async def talk(call: Call) -> None:
        while True:
            asked = await call.asked()
            if heard is not None:
                heard.append(asked)
            await call.say(*pieces)

    return talk


@dataclass
class Server:
    url: str = ""
    calls: int = 0
    gone: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    """Connections that were talked over to the end."""


@asynccontextmanager
async def listening(
    talk: Talk, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Server]:
    """A server on a free port that holds this talk over each connection."""
    found, busy = Server(), set[asyncio.Task[Any] | None]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        busy.add(asyncio.current_task())
        found.calls += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await talk(Call(reader, writer, found.calls - 1))
            found.gone.put_nowait(found.calls - 1)
        writer.transport.abort()

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    door = socket.socket(family)
    door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    door.bind((host, 0))
    server = await asyncio.start_server(serve, sock=door, ssl=tls, backlog=512)
    shown = "localhost" if tls else f"[{host}]" if ":" in host else host
    found.url = f"{'https' if tls else 'http'}://{shown}:{door.getsockname()[1]}"
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
    """Runs a test; nothing may be left over of it."""

    def __init__(self, make: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._make = make
        self.complaints: list[dict[str, Any]] = []

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=self._make) as runner:
            runner.get_loop().set_exception_handler(lambda _, said: self.complaints.append(said))
            return runner.run(asyncio.wait_for(work, 30))


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Loop]:
    loop = Loop(request.param)
    gc.freeze()  # only what this test leaves is looked through
    yield loop
    gc.collect()  # what was not closed complains now
    gc.unfreeze()
    assert loop.complaints == []


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, Path]:
    """What a server needs for https, and the authority that vouches for it."""
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
    """The same once without encryption and once with it."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tls[1]))
    return tls[0] if request.param == "https" else None


async def asked(
    asking: Transport, body: bytes | None = b"{}", method: str = "POST"
) -> tuple[int, bytes]:
    response = await asking.open(method, "/x", body, [])
    try:
        return response.status, await asking.read_all(response)
    finally:
        response.close()


def to(server: Server, **settings: Any) -> Transport:
    return Transport(Endpoint(server.url, retries=0, **settings))


# Which connections are used again


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))


PACKED = gzip.compress(b"packed" * 50_000)
KEPT = {
    "an answer with its length": ("POST", [WHOLE], 200, b'{"id":1}'),
    "one in many pieces": ("POST", [WHOLE[i : i + 1] for i in range(len(WHOLE))], 200, b'{"id":1}'),
    "chunks": (
        "POST",
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunked(b"ab", b"c")],
        200,
        b"abc",
    ),
    "what is packed": (
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
    "an empty answer": ("POST", [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"], 200, b""),
    "not modified": ("GET", [b"HTTP/1.1 304 Old\r\nContent-Length: 8\r\n\r\n"], 304, b""),
    "a head alone": ("HEAD", [b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n"], 200, b""),
    "a head of chunks": (
        "HEAD", [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"], 200, b""
    ),
    "what goes on at once": ("POST", [b"HTTP/1.1 100 Go on\r\n\r\n" + WHOLE], 200, b'{"id":1}'),
    "early hints": (
        "POST",
        [b"HTTP/1.1 103 Hint\r\nLink: <x>\r\n\r\n", b"HTTP/1.1 102 Wait\r\n\r\n", WHOLE],
        200,
        b'{"id":1}',
    ),
    "an old server that keeps it": (
        "POST",
        [b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}"],
        200,
        b"{}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", KEPT)
def test_a_connection_is_used_again_after(case: str, run: Loop) -> None:
    method, pieces, status, body = KEPT[case]

    talk = answering(*pieces)

    async def work() -> int:
        async with listening(talk) as server, to(server) as asking:
            for _ in range(3):
                assert await asked(asking, None, method) == (status, body)
            return server.calls

    assert run(work()) == 1


LEFT = {
    "that the server wants to close": (
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    ),
    "of an old server": b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "with a second answer behind the first": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"
    ),
    "that speaks something else from now on": (
        b"HTTP/1.1 101 Other\r\nConnection: upgrade\r\nUpgrade: other\r\n\r\n"
    ),
}


@pytest.mark.parametrize("case", LEFT)
def test_a_connection_is_left_at_once(case: str, run: Loop) -> None:
    async def talk(call: Call) -> None:
        await call.asked()
        await call.say(LEFT[case])
        await call.until_gone()

    async def work() -> None:
        async with listening(talk) as server, to(server) as asking:
            for number in range(2):
                status, body = await asked(asking)
                assert (status, body) == (101, b"") if b" 101 " in LEFT[case] else (200, b"{}")
                await asyncio.wait_for(server.gone.get(), SOON)
                assert server.calls == number + 1

    run(work())


@pytest.mark.parametrize("ending", ["close", "reset"])
def test_an_answer_without_a_length_ends_with_its_connection(ending: str, run: Loop) -> None:
    async def talk(call: Call) -> None:
        await call.asked()
        await call.say(b"HTTP/1.1 200 OK\r\n\r\n", b"{", b"}")
        call.writer.close() if ending == "close" else reset(call)

    def reset(call: Call) -> None:
        line = call.writer.get_extra_info("socket")
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        call.writer.transport.abort()

    async def work() -> list[tuple[int, bytes]]:
        async with listening(talk) as server, to(server) as asking:
            return [await asked(asking) for _ in range(2)]

    assert run(work()) == [(200, b"{}")] * 2


def test_a_server_that_closes_after_its_answer_without_a_word_breaks_nothing(run: Loop) -> None:
    async def talk(call: Call) -> None:
        await call.asked()
        await call.say(WHOLE)

    async def work() -> int:
        async with listening(talk) as server, to(server) as asking:
            for _ in range(3):
                assert (await asked(asking))[0] == 200
                await asyncio.wait_for(server.gone.get(), SOON)
            return server.calls

    assert run(work()) == 3


@pytest.mark.parametrize("is_first", [True, False], ids=["a new", "a kept"])
def test_what_a_server_says_unasked_is_no_answer(is_first: bool, run: Loop) -> None:
    late = b"HTTP/1.1 408 Too late\r\nContent-Length: 0\r\n\r\n"

    async def talk(call: Call) -> None:
        if call.number:
            await call.asked()
            await call.say(WHOLE)
        elif is_first:
            await call.say(late)
        else:
            await call.asked()
            await call.say(WHOLE, late)
        await call.until_gone()

    async def once_said() -> None:
        await asyncio.sleep(0.1)

    async def work() -> None:
        async with listening(talk) as server, to(server) as asking:
            sending = SendState(once_said)
            if is_first:
                with pytest.raises(ConnectionFailedError):
                    await asking.open("POST", "/x", b"{}", [], sending)
                assert not sending.is_sent
            else:
                assert (await asked(asking))[0] == 200
                await once_said()
            assert (await asked(asking))[0] == 200

    run(work())


def test_many_requests_go_at_the_same_time(run: Loop) -> None:
    async def work() -> int:
        together = asyncio.Barrier(150)

        async def talk(call: Call) -> None:
            await call.asked()
            await together.wait()
            await call.say(WHOLE)

        async with listening(talk) as server, to(server) as asking:
            await asyncio.gather(*(asked(asking) for _ in range(150)))
            return server.calls

    assert run(work()) == 150


# Bodies that a server does not take


def test_an_answer_may_come_before_its_server_has_read_the_request(run: Loop) -> None:
    async def talk(call: Call) -> None:
        await call.head()
        await call.say(b"HTTP/1.1 413 Too large\r\nContent-Length: 2\r\n\r\n{}")
        await call.until_gone()

    async def work() -> None:
        async with listening(talk) as server, to(server) as asking:
            for number in range(2):
                assert await asked(asking, LARGE) == (413, b"{}")
                await asyncio.wait_for(server.gone.get(), SOON)
                assert server.calls == number + 1

    run(work())


def test_a_large_request_and_a_large_answer_come_over_whole(
    secured: ssl.SSLContext | None, run: Loop
) -> None:
    async def talk(call: Call) -> None:
        while True:
            got = await call.asked()
            await call.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(LARGE))
            await call.say(got[-len(LARGE) :])

    async def work() -> int:
        async with listening(talk, tls=secured) as server, to(server) as asking:
            for _ in range(2):
                status, body = await asked(asking, LARGE)
                assert status == 200
                assert body == LARGE
            return server.calls

    assert run(work()) == 1


def test_hanging_up_does_not_wait_for_a_server_that_reads_nothing(
    secured: ssl.SSLContext | None, run: Loop
) -> None:
    heard = 0

    async def talk(call: Call) -> None:
        nonlocal heard
        await call.head()
        await asyncio.sleep(0.3)
        with suppress(ConnectionError):
            while piece := await call.reader.read(SMALL):
                heard += len(piece)

    async def work() -> None:
        async with listening(talk, tls=secured) as server, to(server) as asking:
            task = asyncio.create_task(asked(asking, LARGE))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(server.gone.get(), SOON)

    run(work())
    assert heard < len(LARGE)


def test_closing_does_not_wait_for_a_server_that_reads_nothing(
    secured: ssl.SSLContext | None, run: Loop
) -> None:
    async def talk(call: Call) -> None:
        await call.head()
        await asyncio.sleep(30)

    async def work() -> None:
        async with listening(talk, tls=secured) as server, to(server) as asking:
            task = asyncio.create_task(asked(asking, LARGE))
            await asyncio.sleep(0.1)
            await asyncio.wait_for(asking.close(), SOON)
            with pytest.raises(ConnectionFailedError):
                await asyncio.wait_for(task, SOON)

    run(work())


def test_a_server_that_has_nothing_to_say_and_reads_nothing_is_left(run: Loop) -> None:
    async def talk(call: Call) -> None:
        await call.head()
        call.writer.write_eof()
        await asyncio.sleep(30)

    async def work() -> None:
        async with listening(talk) as server, to(server, timeout=30) as asking:
            with pytest.raises(ConnectionFailedError, match="broke before the response"):
                await asyncio.wait_for(asked(asking, LARGE), SOON)

    run(work())


# Silence


@pytest.mark.parametrize(
    ("timeout", "reading", "thinking"),
    [(0.8, 1.8, 0.0), (1.2, 0.9, 0.6)],
    ids=["while it reads", "from when it has read"],
)
def test_a_server_that_takes_a_request_slowly_is_not_silent(
    timeout: float, reading: float, thinking: float, run: Loop
) -> None:
    async def talk(call: Call) -> None:
        await call.head()
        for _ in range(20):
            await asyncio.sleep(reading / 20)
            await call.reader.readexactly(len(LARGE) // 20)
        await asyncio.sleep(thinking)
        await call.say(WHOLE)

    async def work() -> tuple[int, bytes]:
        async with listening(talk) as server, to(server, timeout=timeout) as asking:
            return await asked(asking, LARGE)

    assert run(work()) == (200, b'{"id":1}')


def test_a_server_that_takes_no_more_of_a_request_is_silent(
    secured: ssl.SSLContext | None, run: Loop
) -> None:
    async def talk(call: Call) -> None:
        await call.head()
        await asyncio.sleep(30)

    async def work() -> None:
        async with listening(talk, tls=secured) as server, to(server, timeout=0.3) as asking:
            with pytest.raises(ProviderTimeoutError):
                await asyncio.wait_for(asked(asking, LARGE), SOON)

    run(work())


def test_a_server_that_says_only_that_it_goes_on_is_silent(run: Loop) -> None:
    async def talk(call: Call) -> None:
        await call.asked()
        await call.say(b"HTTP/1.1 100 Go on\r\n\r\n")
        await asyncio.sleep(30)

    async def work() -> None:
        async with listening(talk) as server, to(server, timeout=0.1) as asking:
            with pytest.raises(ProviderTimeoutError):
                await asyncio.wait_for(asked(asking), SOON)

    run(work())


@pytest.mark.parametrize("pause", ["before the body", "in the body"])
def test_a_server_may_take_its_time_again_after_each_word(pause: str, run: Loop) -> None:
    async def talk(call: Call) -> None:
        await call.asked()
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        words = [head, *[b"1\r\na\r\n"] * 4, b"0\r\n\r\n"]
        if pause == "in the body":
            words[:2] = [head + words[1]]
        for word in words:
            await asyncio.sleep(0.3)
            await call.say(word)

    async def work() -> None:
        async with listening(talk) as server, to(server, timeout=0.5) as asking:
            assert await asked(asking) == (200, b"aaaa")

    run(work())


def test_what_comes_without_telling_anything_is_silence(run: Loop) -> None:
    """Bytes of a chunk's size, for ever."""

    async def talk(call: Call) -> None:
        await call.asked()
        await call.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1;")
        while True:
            await call.say(b"x")
            await asyncio.sleep(0.05)

    async def work() -> None:
        async with listening(talk) as server, to(server, timeout=0.3) as asking:
            with pytest.raises(ProviderTimeoutError):
                await asyncio.wait_for(asked(asking), 5)

    run(work())


@pytest.mark.parametrize("case", ["what goes on at once", "a head alone", "chunks"])
def test_a_connection_may_be_idle_for_longer_than_a_server_may_be_silent(
    case: str, run: Loop
) -> None:
    method, pieces, status, body = KEPT[case]

    talk = answering(*pieces)

    async def work() -> int:
        async with listening(talk) as server, to(server, timeout=0.5) as asking:
            assert await asked(asking, None, method) == (status, body)
            await asyncio.sleep(0.6)
            assert await asked(asking, None, method) == (status, body)
            return server.calls

    assert run(work()) == 1


def test_a_server_that_does_not_shake_hands_is_not_reached(
    tls: tuple[ssl.SSLContext, Path], run: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tls[1]))

    async def work() -> None:
        async with listening(Call.until_gone) as server:
            secure = server.url.replace("http:", "https:")
            async with Transport(Endpoint(secure, timeout=0.2, retries=0)) as asking:
                with pytest.raises(UnreachableError, match="timed out"):
                    await asyncio.wait_for(asked(asking), SOON)
            await asyncio.wait_for(server.gone.get(), SOON)

    run(work())


# What is sent, and what is known of it


@pytest.mark.parametrize("way", ["hang up", "close"])
def test_what_was_not_sent_because_the_line_broke_before_is_known(way: str, run: Loop) -> None:
    async def talk(call: Call) -> None:
        if way == "close":
            await call.until_gone()

    async def work() -> bool:
        async with listening(talk) as server, to(server) as asking:

            async def ready() -> None:
                if way == "close":
                    await asking.close()
                else:
                    await server.gone.get()
                    await asyncio.sleep(0.05)

            sending = SendState(ready)
            with pytest.raises(ConnectionFailedError):
                await asking.open("POST", "/x", b"{}", [], sending)
            return sending.is_sent

    assert run(work()) is False


def test_a_kept_connection_that_breaks_before_anything_is_sent_costs_nothing(run: Loop) -> None:
    async def talk(call: Call) -> None:
        await call.asked()
        await call.say(WHOLE)
        if call.number:
            await call.until_gone()
        else:
            await going.wait()

    async def ready() -> None:
        going.set()
        await asyncio.sleep(0.05)

    async def work() -> int:
        async with listening(talk) as server, to(server) as asking:
            assert (await asked(asking))[0] == 200
            response = await asking.open("POST", "/x", b"{}", [], SendState(ready))
            response.close()
            return server.calls

    going = asyncio.Event()
    assert run(work()) == 2


@pytest.mark.parametrize("taken", [1, len(LARGE) - 1], ids=["none of it", "most of it"])
def test_a_large_request_over_a_connection_that_is_closed_goes_over_another(
    taken: int, run: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brim.providers.http_connection.STALE_SECONDS", 60.0)

    async def talk(call: Call) -> None:
        await call.asked()
        await call.say(WHOLE)
        if not call.number:
            await call.reader.readexactly(taken)

    async def work() -> int:
        async with listening(talk) as server, to(server) as asking:
            assert (await asked(asking))[0] == 200
            assert (await asked(asking, LARGE))[0] == 200
            return server.calls

    assert run(work()) == 2


def test_who_reads_an_older_answer_does_not_make_a_stale_connection_seem_alive(
    run: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brim.providers.http_connection.STALE_SECONDS", 60.0)

    async def work() -> int:
        reading = asyncio.Event()

        async def talk(call: Call) -> None:
            await call.asked()
            await call.say(WHOLE)
            if not call.number:
                await call.asked()
                await reading.wait()

        async with listening(talk) as server, to(server) as asking:
            older = await asking.open("POST", "/x", b"{}", [])
            await asyncio.sleep(0.05)
            newer = asyncio.create_task(asked(asking))
            await asyncio.sleep(0.05)
            assert await asking.read_all(older) == b'{"id":1}'
            reading.set()
            assert (await newer)[0] == 200
            return server.calls

    assert run(work()) == 2


@pytest.mark.parametrize("moment", ["ready", "head", "body"])
def test_a_request_that_is_cancelled_leaves_no_connection_behind(
    moment: str, secured: ssl.SSLContext | None, run: Loop
) -> None:
    async def talk(call: Call) -> None:
        await call.asked()
        here.set()
        if moment == "body":
            await call.say(WHOLE[:-3])
        if moment != "ready":
            await call.until_gone()
        else:
            await call.say(WHOLE)

    async def ready() -> None:
        here.set()
        await asyncio.sleep(30)

    async def work() -> None:
        async with listening(talk, tls=secured) as server, to(server) as asking:
            sending = SendState(ready if moment == "ready" else None)
            task = asyncio.create_task(read(asking, sending))
            await here.wait()
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert sending.is_sent == (moment != "ready")
            if moment == "ready":  # nothing went over it, so it serves the next
                assert (await asked(asking))[0] == 200
            await asyncio.wait_for(server.gone.get(), SOON)
            assert server.calls == 1

    async def read(asking: Transport, sending: SendState) -> None:
        response = await asking.open("POST", "/x", b"{}", [], sending)
        try:
            await asking.read_all(response)
        finally:
            response.close()

    here = asyncio.Event()
    run(work())


def test_cancelling_while_a_server_is_reached_leaves_no_connection_behind(
    tls: tuple[ssl.SSLContext, Path], run: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tls[1]))

    async def work() -> None:
        async with listening(Call.until_gone) as server:
            endpoint = Endpoint(server.url.replace("http:", "https:"))
            async with Transport(endpoint) as asking:
                task = asyncio.create_task(asked(asking))
                await asyncio.sleep(0.1)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await asyncio.wait_for(server.gone.get(), SOON)

    run(work())


@pytest.mark.parametrize("whose", ["connection", "response"])
def test_who_reads_an_answer_learns_that_it_was_closed(whose: str, run: Loop) -> None:
    async def talk(call: Call) -> None:
        await call.asked()
        await call.say(WHOLE[:-3])
        await call.until_gone()

    async def work() -> None:
        async with listening(talk) as server, to(server) as asking:
            response = await asking.open("POST", "/x", b"{}", [])
            reading = asyncio.create_task(asking.read_all(response))
            await asyncio.sleep(0.05)
            if whose == "connection":
                await asking.close()
            else:
                response.close()
            with pytest.raises(ConnectionFailedError):
                await asyncio.wait_for(reading, SOON)
            with pytest.raises(ConnectionFailedError):
                await asking.read_chunk(response)
            response.close()

    run(work())


def test_closing_ends_requests_that_wait_for_their_answer(run: Loop) -> None:
    async def talk(call: Call) -> None:
        await call.asked()
        await call.until_gone()

    async def work() -> None:
        async with listening(talk) as server, to(server) as asking:
            tasks = [asyncio.create_task(asked(asking)) for _ in range(3)]
            await asyncio.sleep(0.1)
            await asyncio.wait_for(asking.close(), SOON)
            for task in tasks:
                with pytest.raises(ConnectionFailedError):
                    await asyncio.wait_for(task, SOON)
            assert server.calls == 3

    run(work())


@pytest.mark.parametrize(
    "said",
    [
        b"220 mail.example ESMTP\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"b" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        WHOLE[:20],
    ],
)
def test_what_is_no_answer_leaves_no_connection_behind(said: bytes, run: Loop) -> None:
    async def talk(call: Call) -> None:
        await call.asked()
        await call.say(said)
        if said != WHOLE[:20]:
            await call.until_gone()

    async def work() -> None:
        async with listening(talk) as server, to(server, timeout=1) as asking:
            for number in range(2):
                with pytest.raises(ConnectionFailedError, match="broke before the response"):
                    await asked(asking)
                await asyncio.wait_for(server.gone.get(), SOON)
                assert server.calls == number + 1

    run(work())


# How a request is written


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
def test_a_server_is_called_by_its_name(address: str, host: str) -> None:
    assert Origin.parse(Endpoint(address).url).authority == host


def written(path: str = "/x", method: str = "POST", **settings: Any) -> list[str]:
    """The lines that reach a server."""
    heads: list[bytes] = []

    async def talk(call: Call) -> None:
        heads.append(await call.asked())
        await call.say(b"HTTP/1.1 204 No\r\n\r\n")

    async def work() -> None:
        async with listening(talk, host=settings.pop("host", "127.0.0.1")) as server:
            address = server.url + settings.pop("under", "")
            body, sent = settings.pop("body", b"{}"), encode_headers(settings.pop("sent", {}))
            async with Transport(Endpoint(address, **settings)) as asking:
                (await asking.open(method, path, body, sent)).close()

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
def test_a_path_is_sent_as_it_was_given(path: str, target: str) -> None:
    assert written(path)[0] == f"POST {target} HTTP/1.1"


def test_an_address_with_a_path_stands_before_each_path() -> None:
    assert written("/v1/x", under="/here/v1")[0] == "POST /here/v1/x HTTP/1.1"


@pytest.mark.parametrize(
    ("method", "body", "size"),
    [
        ("POST", None, "0"), ("POST", b"", "0"), ("PUT", None, "0"), ("PATCH", b"{}", "2"),
        ("GET", None, None), ("DELETE", None, None), ("DELETE", b"{}", "2"), ("HEAD", None, None),
    ],
)  # fmt: skip
def test_a_request_says_how_long_it_is(method: str, body: bytes | None, size: str | None) -> None:
    said = [line for line in written(method=method, body=body) if "ength" in line]
    assert said == ([] if size is None else [f"Content-Length: {size}"])


def test_a_server_is_named_once_and_as_it_is_set() -> None:
    def names(**settings: Any) -> list[str]:
        return [line for line in written(**settings) if line.lower().startswith("host:")]

    (host,) = names(host="::1")
    assert host.startswith("Host: [::1]:")
    other = {"hOsT": "other.example"}
    assert names(headers=other, sent=other) == ["hOsT: other.example"]


def test_headers_are_sent_in_utf_8() -> None:
    assert "x-name: Zoë" in written(sent={"x-name": "Zoë"})


@pytest.mark.parametrize("sign", ["\r", "\n", "\r\n", "\0"])
@pytest.mark.parametrize("place", ["method", "path", "name", "value"])
def test_nothing_can_be_slipped_into_a_head(place: str, sign: str) -> None:
    odd = f"a{sign}b: c"
    values = {"method": "GET", "path": "/", "name": "n", "value": "v", place: odd}
    heads = encode_headers({values["name"]: values["value"]})
    with pytest.raises(ValueError, match="not one line"):
        encode_request_head(values["method"], values["path"], heads, 0)


@pytest.mark.parametrize("head", [(b"x", b"a\r\nb: c"), (b"x\r\nb", b"c")])
def test_a_head_that_cannot_be_written_is_not_sent(head: Header, run: Loop) -> None:
    async def work() -> int:
        sending = SendState()
        async with listening(Call.until_gone) as server, to(server) as asking:
            with pytest.raises(ConnectionFailedError):
                await asking.open("POST", "/x", b"{}", [head], sending)
            assert not sending.is_sent
            return server.calls

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
def test_a_proxy_is_told_the_whole_address_and_its_connection_is_used_again(
    address: str, target: str, host: str, run: Loop, proxied: Proxied
) -> None:
    heads: list[bytes] = []
    talk = answering(WHOLE, heard=heads)

    async def work() -> int:
        async with listening(talk) as proxy:
            proxied(proxy.url)
            async with Transport(Endpoint(address, retries=0)) as asking:
                for _ in range(2):
                    (await asking.open("POST", "/x?a=b#c", b"{}", [])).close()
                    await asyncio.sleep(0.02)
            return proxy.calls

    run(work())
    for head in heads:
        assert lines_of(head)[0] == f"POST {target} HTTP/1.1"
        assert f"Host: {host}" in lines_of(head)
        assert "Proxy-Authorization: Basic bWU6d29yZA==" in lines_of(head)


def test_a_connection_that_opens_again_without_its_proxy_does_not_speak_to_one(
    run: Loop, proxied: Proxied, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Endpoint, "is_loopback", False)  # no proxy leads back to this machine
    heads: list[bytes] = []

    async def talk(call: Call) -> None:
        heads.append(await call.asked())
        await call.say(WHOLE)

    async def work() -> None:
        async with listening(talk) as server, to(server) as asking:
            proxied(server.url)
            await asked(asking)
            await asking.close()
            monkeypatch.delenv("http_proxy")
            await asked(asking)

    run(work())
    before, after = map(lines_of, heads)
    assert before[0].startswith("POST http://")
    assert after[0] == "POST /x HTTP/1.1"
    assert not any(line.startswith("Proxy-") for line in after)


def test_a_tunnel_through_a_proxy_is_used_again(
    tls: tuple[ssl.SSLContext, Path], run: Loop, proxied: Proxied
) -> None:
    heads: list[bytes] = []
    talk = answering(WHOLE, heard=heads)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(SMALL):
            writer.write(piece)
            await writer.drain()
        writer.close()

    async def work() -> tuple[int, int]:
        async def tunnel(call: Call) -> None:
            heads.append(await call.head())
            there = await asyncio.open_connection("127.0.0.1", urlsplit(server.url).port)
            await call.say(b"HTTP/1.1 200 OK\r\n\r\n")
            try:
                await asyncio.gather(pump(call.reader, there[1]), pump(there[0], call.writer))
            finally:
                there[1].transport.abort()

        async with listening(talk, tls=tls[0]) as server, listening(tunnel) as proxy:
            proxied(proxy.url)
            async with Transport(Endpoint("https://model.example", retries=0)) as asking:
                for _ in range(3):
                    assert (await asked(asking))[0] == 200
            return proxy.calls, server.calls

    assert run(work()) == (1, 1)
    assert [lines_of(head)[0] for head in heads] == [
        "CONNECT model.example:443 HTTP/1.1",
        *["POST /x HTTP/1.1"] * 3,
    ]
    assert "Proxy-Authorization: Basic bWU6d29yZA==" in lines_of(heads[0])
    assert b"Proxy-Authorization" not in heads[1]


def test_a_proxy_that_says_nothing_is_not_waited_for_without_end(
    run: Loop, proxied: Proxied
) -> None:
    async def work() -> None:
        async with listening(Call.until_gone) as proxy:
            proxied(proxy.url)
            endpoint = Endpoint("https://model.example", timeout=0.2, retries=0)
            sending = SendState()
            async with Transport(endpoint) as asking:
                with pytest.raises(UnreachableError, match="timed out"):
                    await asyncio.wait_for(asking.open("POST", "/x", b"{}", [], sending), SOON)
            assert not sending.is_sent
            await asyncio.wait_for(proxy.gone.get(), SOON)

    run(work())
