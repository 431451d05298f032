"""HTTP/1.1 connections to one server: a pool, requests over it, and responses as they arrive.

httptools parses the responses; asyncio does the rest. A general HTTP client does not report what
billing depends on: whether a request was sent. A request that was not sent costs nothing, and one
that was sent must not be sent a second time.
"""

from __future__ import annotations

import asyncio
import socket
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

try:
    import aiohappyeyeballs
    import httptools
except ImportError as missing:
    raise ImportError(
        "Connecting to servers needs httptools. Run: pip install 'brim[client]'"
    ) from missing

if TYPE_CHECKING:
    import ssl

    from brim.providers.network import Proxy

Header = tuple[bytes, bytes]

STALE_SECONDS = 0.25
"""Seconds in which a reused connection may break merely because the server had closed it.

A server that closed an idle connection rejects a new request immediately and has not read it, so
the request is sent again over another connection. If the connection breaks later, or after the
first byte of a response, the server may have processed the request and charged for it: the error
is raised, and only the endpoint's `retries` send the request again.
"""
IDLE_SECONDS: Final = 15.0
"""How long an unused connection is kept."""
READ_AHEAD_BYTES: Final = 64 * 1024
"""Bytes of a response that are buffered before the caller reads them."""
MAX_HEADER_BYTES: Final = 64 * 1024
"""Bytes of a response's status line and headers, informational responses included."""
HAPPY_EYEBALLS_SECONDS: Final = 0.25
"""Delay before the next address of a host is tried concurrently."""
SWITCHING_PROTOCOLS: Final = 101
_BODILESS_STATUSES: Final = frozenset((SWITCHING_PROTOCOLS, 204, 304))
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class ConnectError(Exception):
    """The server could not be reached; `__cause__` says why."""


class BrokenConnectionError(ConnectionError):
    """The connection ended before the response was complete."""


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


class _Decoder(Protocol):
    """A decompressor of zlib."""

    @property
    def eof(self) -> bool: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = 0, /) -> bytes: ...
    def flush(self) -> bytes: ...


class SendState:
    """Whether a request was sent, and what runs immediately before it is sent."""

    __slots__ = ("_before_send", "hook_error", "is_sent")

    def __init__(self, before_send: Callable[[], Awaitable[None]] | None = None) -> None:
        self._before_send = before_send
        self.is_sent = False
        """Whether the server may have received the request."""
        self.hook_error: BaseException | None = None
        """What `before_send` raised; then nothing is sent."""

    async def run_hook(self) -> None:
        if self._before_send is not None:
            try:
                await self._before_send()
            except BaseException as error:
                self.hook_error = error
                raise


class Response:
    """A response whose headers have arrived; the caller must close it.

    The parser calls the `on_…` methods.
    """

    __slots__ = (
        *("_chunks", "_connection", "_decoder", "_error", "_header_bytes", "_is_bodiless"),
        *("_is_delimited", "_loop", "_parser", "_size", "_waiter", "has_headers", "is_complete"),
        *("is_extra", "is_paused", "is_reusable", "progress", "progress_at", "raw_headers"),
        "status",
    )

    def __init__(self, connection: HttpConnection, *, is_bodiless: bool) -> None:
        self.status = 0
        self.raw_headers: list[Header] = []
        self.has_headers = False
        self.is_complete = False
        self.is_reusable = False
        """Whether the server keeps the connection open after this response."""
        self.is_extra = False
        """Whether data followed the response: the connection cannot be reused."""
        self.is_paused = False
        """Whether the buffer is full and the connection is not read."""
        self.progress = 0
        """Bytes of headers and body so far; chunk framing does not count."""
        self._connection = connection
        self._is_bodiless = is_bodiless
        self._is_delimited = False
        """Whether the body has an end of its own, other than the end of the connection."""
        self._header_bytes = 0
        self._chunks: list[bytes] = []
        self._size = 0
        self._decoder: _Decoder | None = None
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self.progress_at = self._loop.time()
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    @property
    def headers(self) -> dict[str, str]:
        """The headers by lower-case name; repeated ones are joined with commas."""
        found: dict[str, str] = {}
        for raw_name, raw_value in self.raw_headers:
            name, value = raw_name.decode("latin-1").lower(), raw_value.decode("utf-8", "replace")
            found[name] = f"{found[name]}, {value}" if name in found else value
        return found

    @property
    def content_type(self) -> str:
        """The media type without parameters, in lower case."""
        value = self._header(b"content-type") or b"application/octet-stream"
        return value.partition(b";")[0].strip().lower().decode("latin-1")

    async def read(self) -> bytes:
        """Return the next bytes of the body; none at its end."""
        while True:
            if self._chunks and (data := self._take()):
                return data
            if not self._chunks:
                if self._error is not None:
                    raise self._error
                if self.is_complete:
                    return self._finish_decoding()
                await self._wait()

    async def wait_for_headers(self) -> None:
        while not self.has_headers:
            if self._error is not None:
                raise self._error
            await self._wait()

    def close(self) -> None:
        """Close the connection unless the response is complete."""
        if not self.is_complete:
            self._connection.abort()

    def feed(self, data: bytes) -> None:
        """Parse bytes from the server; fail on anything that is not a response."""
        if self._parser is None:
            self.is_extra = True
            return
        before = self.progress
        if not self.has_headers:
            self._header_bytes += len(data)
            self.progress += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._complete(is_reusable=False)
        except httptools.HttpParserError as error:
            broken = BrokenConnectionError()
            broken.__cause__ = error
            self.fail(broken)
        if not self.has_headers and self._header_bytes > MAX_HEADER_BYTES:
            self.fail(BrokenConnectionError("the headers are too large"))
        if self.is_complete:
            self._parser = None
        if self.progress != before:
            self.progress_at = self._loop.time()
        self._wake()

    def end(self, error: Exception | None) -> None:
        """Take note that the connection is closed."""
        if self.has_headers and not self._is_delimited:
            self._complete(is_reusable=False)
        self.fail(error or BrokenConnectionError())
        self._wake()

    def fail(self, error: BaseException) -> None:
        """End the response with an error, unless it is complete."""
        if self.is_complete or self._error is not None:
            return
        self._error, self._parser = error, None
        self._wake()

    @property
    def has_failed(self) -> bool:
        return self._error is not None

    def on_message_begin(self) -> None:
        if self.is_complete:
            self.is_extra = True
        self.raw_headers = self.raw_headers if self.has_headers else []

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.has_headers:  # trailers are ignored
            self.raw_headers.append((name, value))

    def on_headers_complete(self) -> None:
        parser = cast("httptools.HttpResponseParser", self._parser)
        if self.is_complete:
            return
        if self._header_bytes > MAX_HEADER_BYTES:  # some of which may belong to the body
            size = sum(len(name) + len(value) for name, value in self.raw_headers)
            if size > MAX_HEADER_BYTES:
                raise httptools.HttpParserError("the headers are too large")
        status = parser.get_status_code()
        if status < 200 and status != SWITCHING_PROTOCOLS:
            return
        self.status, self.has_headers = status, True
        coding = (self._header(b"transfer-encoding") or b"").lower()
        has_length = self._header(b"content-length") is not None
        self._is_delimited = has_length or coding.endswith(b"chunked")
        if self._is_bodiless or status in _BODILESS_STATUSES:
            self._complete(is_reusable=parser.should_keep_alive())
        else:
            self._decoder = _create_decoder(self._header(b"content-encoding"))

    def on_body(self, data: bytes) -> None:
        if self.is_complete:
            self.is_extra = True
            return
        self.progress += len(data)
        self._size += len(data)
        self._chunks.append(data)
        if self._size > READ_AHEAD_BYTES and not self.is_paused:
            self.is_paused = True
            self._connection.pause()

    def on_message_complete(self) -> None:
        if self.has_headers and not self.is_complete:
            parser = cast("httptools.HttpResponseParser", self._parser)
            self._complete(is_reusable=parser.should_keep_alive())

    def _complete(self, *, is_reusable: bool) -> None:
        if self._error is None and self.has_headers:
            self.is_complete = True
            self.is_reusable = is_reusable and self.status != SWITCHING_PROTOCOLS

    def _header(self, name: bytes) -> bytes | None:
        """The last value of a header."""
        for each, value in reversed(self.raw_headers):
            if each.lower() == name:
                return value
        return None

    def _take(self) -> bytes:
        """Return what is buffered, decompressed."""
        chunks, self._chunks, self._size = self._chunks, [], 0
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if self._decoder is not None:
            data = self._decompress(self._decoder, data)
        if self.is_paused and not self._chunks:
            self.is_paused = False
            self.progress_at = self._loop.time()
            self._connection.resume()
        return data

    def _decompress(self, decoder: _Decoder, data: bytes) -> bytes:
        try:
            decoded = decoder.decompress(data, READ_AHEAD_BYTES)
        except zlib.error as error:
            raise BrokenConnectionError("its body cannot be decompressed") from error
        if rest := decoder.unconsumed_tail:
            self._chunks, self._size = [rest], len(rest)
        return decoded

    def _finish_decoding(self) -> bytes:
        decoder, self._decoder = self._decoder, None
        if decoder is None:
            return b""
        rest = decoder.flush()
        if not decoder.eof and self.progress > self._header_bytes:
            raise BrokenConnectionError("its compressed body is truncated")
        return rest

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class HttpConnection(asyncio.Protocol):
    """One connection to a server, with at most one request in flight."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._response: Response | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timeout = 0.0
        self._requests = 0
        self._sent_at = 0.0
        self._is_heard = False
        """Whether anything arrived since the request was sent."""
        self._unsent = 0
        """Bytes that the server had not accepted when this was last checked."""
        self.idle_since = 0.0
        self.is_tunnel_pending = False
        """Whether TLS to the server is still to be started behind a proxy."""
        self.closed: asyncio.Future[None] = self._loop.create_future()

    @property
    def transport(self) -> asyncio.Transport | None:
        return self._transport

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(
        self,
        head: bytes,
        body: bytes | None,
        state: SendState,
        *,
        timeout: float,
        is_bodiless: bool = False,
    ) -> Response:
        """Send a request; the response is returned before any of it has arrived."""
        transport, self._requests = self._transport, self._requests + 1
        self._sent_at, self._is_heard = self._loop.time(), False
        if transport is None or transport.is_closing():
            raise BrokenConnectionError
        response = self._response = Response(self, is_bodiless=is_bodiless)
        state.is_sent = True
        transport.writelines((head, body) if body else (head,))
        self._timeout = timeout
        self._unsent = transport.get_write_buffer_size()
        self._timer = self._loop.call_later(timeout, self._check_progress)
        return response

    def abort(self, error: BaseException | None = None) -> None:
        """Close immediately and discard unsent data; a pending read raises."""
        if self._response is not None:
            self._response.fail(error or BrokenConnectionError("it was closed by this client"))
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        if self.is_open and self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self.is_open and self._transport is not None:
            self._transport.resume_reading()

    def was_stale(self) -> bool:
        """Whether the server had closed the connection before it read the request."""
        is_early = self._loop.time() - self._sent_at < STALE_SECONDS
        return self._requests > 1 and not self._is_heard and is_early

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:
            # Unsolicited data, such as a late 408, would pass for the next response.
            self.abort()
            return
        self._is_heard = True
        response.feed(data)
        if response.has_failed:
            self.abort()
        elif response.is_complete:
            self._finish(response)

    def eof_received(self) -> None:
        # Closing would first wait until the server has read the whole request.
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._transport = None
        if self._response is not None:
            self._response.end(exc)
        self._pool.forget(self)
        if not self.closed.done():
            self.closed.set_result(None)

    def resume_writing(self) -> None:
        if self._response is not None:  # the server's time begins when it has the request
            self._sent_at = self._response.progress_at = self._loop.time()

    def _finish(self, response: Response) -> None:
        """Return the connection to the pool if it can serve another request."""
        self._stop_timer()
        self._response = None
        if self.is_tunnel_pending:
            return
        transport = self._transport
        is_sent = transport is not None and not transport.get_write_buffer_size()
        if response.is_reusable and not response.is_extra and is_sent:
            if response.is_paused:
                self.resume()
            self._pool.release(self)
        else:
            self.abort()

    def _check_progress(self) -> None:
        """Fail if neither the request nor the response made progress within the timeout."""
        response, transport = self._response, self._transport
        if response is None or transport is None:
            return
        unsent, now = transport.get_write_buffer_size(), self._loop.time()
        if unsent != self._unsent or response.is_paused:
            self._unsent, response.progress_at = unsent, now
        wait = response.progress_at + self._timeout - now
        if wait > 0:
            self._timer = self._loop.call_later(wait, self._check_progress)
        else:
            self.abort(TimeoutError())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ConnectionPool:
    """The connections to one server, directly or through a proxy."""

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
        self._idle: list[HttpConnection] = []
        self._open: set[HttpConnection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self.is_closed = False

    @property
    def has_idle(self) -> bool:
        """Whether the next request will probably find an open connection."""
        return any(connection.is_open for connection in self._idle)

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
                    self.release(connection)
                    raise
                connection.abort()
                if not self._may_resend(connection, error):
                    raise
            else:
                return response

    def _may_resend(self, connection: HttpConnection, error: BaseException) -> bool:
        is_broken = isinstance(error, OSError) and not isinstance(error, TimeoutError)
        return is_broken and not self.is_closed and connection.was_stale()

    def release(self, connection: HttpConnection) -> None:
        """Keep a connection for the next request."""
        if self.is_closed:
            connection.abort()
        if not connection.is_open:
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(IDLE_SECONDS, self._sweep)

    def forget(self, connection: HttpConnection) -> None:
        """Take note that a connection is closed."""
        self._open.discard(connection)
        with suppress(ValueError):
            self._idle.remove(connection)

    async def close(self) -> None:
        """Close all connections immediately."""
        self.is_closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        connections = list(self._open)
        for connection in connections:
            connection.abort()
        if connections:
            await asyncio.wait([connection.closed for connection in connections])

    def _take_idle(self) -> HttpConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeper = None
        expired = loop.time() - IDLE_SECONDS
        for connection in [each for each in self._idle if each.idle_since <= expired]:
            self._idle.remove(connection)
            connection.abort()
        if self._idle:
            wait = self._idle[0].idle_since - expired
            self._sweeper = loop.call_later(wait, self._sweep)

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
        loop = asyncio.get_running_loop()
        first = self._origin if self._proxy is None else Origin.parse(self._proxy.url)
        addresses = await loop.getaddrinfo(first.host, first.port, type=socket.SOCK_STREAM)
        opened = await aiohappyeyeballs.start_connection(
            addresses, happy_eyeballs_delay=HAPPY_EYEBALLS_SECONDS, interleave=1
        )
        is_secure = first.scheme == "https"
        try:
            _, connection = await loop.create_connection(
                partial(HttpConnection, self),
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
        loop, transport = asyncio.get_running_loop(), connection.transport
        if transport is None or self._ssl_context is None:
            raise BrokenConnectionError
        secure = await loop.start_tls(
            transport, connection, self._ssl_context, server_hostname=self._origin.host
        )
        if secure is None:
            raise BrokenConnectionError
        connection.connection_made(secure)


def _create_decoder(encoding: bytes | None) -> _Decoder | None:
    """Return a decompressor for a `Content-Encoding`; None if there is nothing to decode."""
    name = (encoding or b"identity").strip().lower()
    if name in (b"gzip", b"x-gzip"):
        return zlib.decompressobj(16 + zlib.MAX_WBITS)
    if name == b"deflate":
        return zlib.decompressobj()
    if name == b"identity":
        return None
    raise httptools.HttpParserError(f"unsupported Content-Encoding: {name!r}")


def encode_headers(headers: Mapping[str, str]) -> list[Header]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def encode_request_head(
    method: str, target: str, headers: Iterable[Header], size: int | None
) -> bytes:
    """Encode the request line and headers; `size` is the length of the body, if it has one."""
    lines = [f"{method} {target} HTTP/1.1".encode(), *map(format_header, headers)]
    if size is not None:
        lines.append(b"Content-Length: %d" % size)
    return join_header_lines(lines) + b"\r\n"


format_header: Final[Callable[[Header], bytes]] = b"%b: %b".__mod__


def join_header_lines(lines: Sequence[bytes]) -> bytes:
    """Terminate and join lines; raise ValueError if one of them contains a line break or NUL."""
    text, number = b"\r\n".join((*lines, b"")), len(lines)
    if text.count(b"\n") != number or text.count(b"\r") != number or b"\0" in text:
        raise ValueError("a header is not one line")
    return text
