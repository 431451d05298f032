"""One HTTP/1.1 connection to a server, a request over it, and the response as it arrives.

httptools parses the responses; asyncio does the rest. A general HTTP client does not report what
billing depends on: whether a request was sent. A request that was not sent costs nothing, and one
that was sent must not be sent a second time.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

try:
    import httptools
except ImportError as missing:
    raise ImportError(
        "Connecting to servers needs httptools. Run: pip install 'brim[client]'"
    ) from missing

Header = tuple[bytes, bytes]

STALE_SECONDS = 0.25
"""Seconds in which a reused connection may break merely because the server had closed it.

A server that closed an idle connection rejects a new request immediately and has not read it, so
the request is sent again over another connection. If the connection breaks later, or after the
first byte of a response, the server may have processed the request and charged for it: the error
is raised, and only the endpoint's `retries` send the request again.
"""
READ_AHEAD_BYTES: Final = 64 * 1024
"""Bytes of a response that are buffered before the caller reads them."""
MAX_HEADER_BYTES: Final = 64 * 1024
"""Bytes of a response's status line and headers, informational responses included."""
SWITCHING_PROTOCOLS: Final = 101
_BODILESS_STATUSES: Final = frozenset((SWITCHING_PROTOCOLS, 204, 304))


class BrokenConnectionError(ConnectionError):
    """The connection ended before the response was complete."""


class SendState:
    """Whether a request was sent, and what runs immediately before it is sent."""

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


class HttpConnection(asyncio.Protocol):
    """One connection to a server, with at most one request in flight.

    `on_idle` is called when it can serve another request, `on_lost` when it is closed.
    """

    def __init__(
        self,
        on_idle: Callable[[HttpConnection], None],
        on_lost: Callable[[HttpConnection], None],
    ) -> None:
        self._on_idle = on_idle
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._is_busy = False
        self._is_paused = False
        self._is_heard = False
        """Whether anything arrived since the request was sent."""
        self._requests = 0
        self._sent_at = 0.0
        self._timeout = 0.0
        self.error: Exception | None = None
        """Why the connection ended, unless the server closed it."""
        self.is_aborted = False
        self.is_tunnel_pending = False
        """Whether TLS to the server is still to be started behind a proxy."""
        self.closed: asyncio.Future[None] = self._loop.create_future()

    @property
    def is_open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    @property
    def deadline(self) -> float:
        """When waiting that begins now times out."""
        return self._loop.time() + self._timeout

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
        transport, self._requests = self.transport, self._requests + 1
        self._sent_at, self._is_heard = self._loop.time(), False
        if transport is None or transport.is_closing():
            raise BrokenConnectionError
        self._is_busy, self._timeout = True, timeout
        state.is_sent = True
        transport.writelines((head, body) if body else (head,))
        return Response(self, is_bodiless=is_bodiless)

    async def receive(self, deadline: float) -> bytes:
        """Return the next bytes; none if the connection has ended.

        Raise TimeoutError if by the deadline nothing arrived and none of the request left.
        """
        while not self._chunks and self.transport is not None:
            unsent = self.transport.get_write_buffer_size()
            await self._wait(deadline)
            if self._chunks or not self.is_open or self._loop.time() < deadline:
                continue
            if self.transport.get_write_buffer_size() == unsent:
                self.abort()
                raise TimeoutError
            deadline = self.deadline
        return self._take()

    def finish(self, *, is_reusable: bool) -> None:
        """End a request whose response is complete."""
        self._is_busy = False
        if self.is_tunnel_pending:
            return
        transport = self.transport
        is_sent = transport is not None and not transport.get_write_buffer_size()
        if is_reusable and is_sent and not self._chunks:
            self._on_idle(self)
        else:
            self.abort()

    def abort(self) -> None:
        """Close immediately and discard unsent data; a pending read raises."""
        self.is_aborted = True
        self._take()
        if self.transport is not None:
            self.transport.abort()

    def was_stale(self) -> bool:
        """Whether the server had closed the connection before it read the request."""
        is_early = self._loop.time() - self._sent_at < STALE_SECONDS
        return self._requests > 1 and not self._is_heard and is_early

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if not self._is_busy:
            # Unsolicited data, such as a late 408, would pass for the next response.
            self.abort()
            return
        self._is_heard = True
        self._chunks.append(data)
        self._size += len(data)
        if self._size > READ_AHEAD_BYTES and not self._is_paused and self.transport is not None:
            self._is_paused = True
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        # Closing would first wait until the server has read the whole request.
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport, self.error = None, exc
        self._wake()
        self._on_lost(self)
        if not self.closed.done():
            self.closed.set_result(None)

    def resume_writing(self) -> None:
        self._sent_at = self._loop.time()  # the server's time begins when it has the request

    def _take(self) -> bytes:
        chunks, self._chunks, self._size = self._chunks, [], 0
        if self._is_paused and self.transport is not None and self.is_open:
            self._is_paused = False
            self.transport.resume_reading()
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def _wait(self, deadline: float) -> None:
        """Wait until something happens, or until the deadline."""
        self._waiter = self._loop.create_future()
        timer = self._loop.call_at(deadline, self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Response:
    """A response whose headers have arrived; the caller must close it.

    The parser calls the `on_…` methods.
    """

    def __init__(self, connection: HttpConnection, *, is_bodiless: bool) -> None:
        self.status = 0
        self.raw_headers: list[Header] = []
        self._connection = connection
        self._is_bodiless = is_bodiless
        self._is_delimited = False
        """Whether the body has an end of its own, other than the end of the connection."""
        self._has_headers = False
        self._has_body = False
        self._is_complete = False
        self._is_reusable = False
        """Whether the connection can serve another request after this response."""
        self._header_bytes = 0
        self._body: list[bytes] = []
        """What has arrived and was not read yet."""
        self._decoder: Any = None
        """A decompressor of zlib, whose type has no public name."""
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

    async def wait_for_headers(self) -> None:
        while not self._has_headers:
            await self._receive(self._connection.deadline)

    async def read(self) -> bytes:
        """Return the next bytes of the body; none at its end."""
        deadline = self._connection.deadline
        while True:
            if self._body:
                if data := self._take():
                    return data
            elif self._is_complete:
                return self._finish_decoding()
            else:
                await self._receive(deadline)

    def close(self) -> None:
        """Close the connection unless the response is complete."""
        if not self._is_complete:
            self._connection.abort()

    async def _receive(self, deadline: float) -> None:
        """Parse what arrives next; raise an error if it is not a response, or ends early."""
        connection, parser = self._connection, self._parser
        data = await connection.receive(deadline)
        if connection.is_aborted or parser is None:
            raise BrokenConnectionError("it was closed by this client")
        if not data:
            self._end()
            return
        if not self._has_headers:
            self._header_bytes += len(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._is_reusable = False
        except httptools.HttpParserError as error:
            self._parser = None
            connection.abort()
            raise BrokenConnectionError from error
        if not self._has_headers and self._header_bytes > MAX_HEADER_BYTES:
            connection.abort()
            raise BrokenConnectionError("the headers are too large")
        if self._is_complete:
            self._parser = None
            connection.finish(is_reusable=self._is_reusable)

    def _end(self) -> None:
        """Take note that the connection has ended."""
        if not self._has_headers or self._is_delimited:
            raise self._connection.error or BrokenConnectionError
        self._is_complete, self._parser = True, None

    def on_message_begin(self) -> None:
        if self._is_complete:
            self._is_reusable = False  # the server sent more than one response
        elif not self._has_headers:
            self.raw_headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_headers:  # trailers are ignored
            self.raw_headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._is_complete:
            return
        if self._header_bytes > MAX_HEADER_BYTES:  # some of which may belong to the body
            size = sum(len(name) + len(value) for name, value in self.raw_headers)
            if size > MAX_HEADER_BYTES:
                raise httptools.HttpParserError("the headers are too large")
        parser = cast("httptools.HttpResponseParser", self._parser)
        status = parser.get_status_code()
        if status < 200 and status != SWITCHING_PROTOCOLS:
            return
        self.status, self._has_headers = status, True
        coding = (self._header(b"transfer-encoding") or b"").lower()
        has_length = self._header(b"content-length") is not None
        self._is_delimited = has_length or coding.endswith(b"chunked")
        if self._is_bodiless or status in _BODILESS_STATUSES:
            self._is_complete, self._is_reusable = True, parser.should_keep_alive()
        else:
            self._decoder = _create_decoder(self._header(b"content-encoding"))

    def on_body(self, data: bytes) -> None:
        if self._is_complete:
            self._is_reusable = False
        else:
            self._has_body = True
            self._body.append(data)

    def on_message_complete(self) -> None:
        if self._has_headers and not self._is_complete:  # else it was an informational response
            parser = cast("httptools.HttpResponseParser", self._parser)
            self._is_complete, self._is_reusable = True, parser.should_keep_alive()

    def _header(self, name: bytes) -> bytes | None:
        """The last value of a header."""
        for each, value in reversed(self.raw_headers):
            if each.lower() == name:
                return value
        return None

    def _take(self) -> bytes:
        """Return what has arrived, decompressed."""
        chunks, self._body = self._body, []
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if self._decoder is None:
            return data
        try:
            decoded: bytes = self._decoder.decompress(data, READ_AHEAD_BYTES)
        except zlib.error as error:
            raise BrokenConnectionError("its body cannot be decompressed") from error
        if rest := self._decoder.unconsumed_tail:
            self._body = [rest]
        return decoded

    def _finish_decoding(self) -> bytes:
        decoder, self._decoder = self._decoder, None
        if decoder is None:
            return b""
        rest: bytes = decoder.flush()
        if not decoder.eof and self._has_body:
            raise BrokenConnectionError("its compressed body is truncated")
        return rest


def _create_decoder(encoding: bytes | None) -> Any:
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
