"""Lines: the connections to a server, requests over them, and answers as they come.

aiohttp connects, keeps what is idle, and parses. What stands between that and its users there costs
more than a gateway has to spend on a request, and does not tell what money hangs on: whether a
request was sent. What was not costs nothing, and what was is not sent a second time.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import aiohttp.connector
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from multidict import CIMultiDict
from yarl import URL

if TYPE_CHECKING:
    from brim.providers.network import Proxy

Header = tuple[bytes, bytes]
format_header: Final[Callable[[Header], bytes]] = b"%b: %b".__mod__
"""A header as a line of a head."""

STALE_SECONDS = 0.25
"""Seconds in which a connection that was kept from before may break for no more than its age.

A server that closes an idle connection does so at once, and has not read what came over it, which
is then sent again over another. One that broke later, or after the first byte of its answer, may
have worked on the request and be paid for it: that is raised, and only `retries` ask once more.
"""
READ_AHEAD_BYTES: Final = 64 * 1024
"""Bytes of an answer that are taken from a server before somebody wants them."""
SWITCHING: Final = 101
_BROKEN: Final = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)


class SendState:
    """A request on its way: what it waits for once its server is reached, and whether it went."""

    __slots__ = ("_ready", "is_sent", "objection")

    def __init__(self, ready: Callable[[], Awaitable[None]] | None = None) -> None:
        self._ready = ready
        self.is_sent = False
        """Whether the server may have it."""
        self.objection: BaseException | None = None
        """What was raised in place of being ready; then nothing is sent."""

    async def ready(self) -> None:
        if self._ready is not None:
            try:
                await self._ready()
            except BaseException as error:
                self.objection = error
                raise


class Response:
    """An answer, of which the head is there; who gets it closes it."""

    __slots__ = ("_held", "content", "headers", "raw_headers", "status")

    def __init__(
        self,
        message: RawResponseMessage,
        content: aiohttp.StreamReader,
        held: aiohttp.connector.Connection,
    ) -> None:
        self.status = message.code
        self.headers = message.headers
        self.raw_headers = message.raw_headers
        self.content = content
        self._held: aiohttp.connector.Connection | None = held
        content.on_eof(self._let_go)

    @property
    def content_type(self) -> str:
        """What it says that it is, without parameters."""
        said = self.headers.get("content-type", "application/octet-stream")
        return said.partition(";")[0].strip().lower()

    def close(self) -> None:
        """Hang up, unless all of it came."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def _let_go(self) -> None:
        """All of it came: the line is free for another request, if this one is through."""
        held, self._held = self._held, None
        if held is None:
            return
        transport = held.transport
        if transport is not None and transport.get_write_buffer_size():
            held.close()
        else:
            held.release()


class HttpConnection(ResponseHandler):
    """A connection that knows what a request over it met with until now."""

    _requests = 0
    _sent_at = 0.0
    _heard_at = 0.0
    """When something came last, or the server's time began."""
    _is_heard = False
    _unsent = 0
    """Bytes that waited for the server when its time was last over."""
    _told = -1
    """Bytes of the answer that were there then."""

    def send(self, head: bytes, body: bytes | None, sending: SendState) -> None:
        self._requests += 1
        self._unsent, self._told = 0, -1
        self._sent_at = time.monotonic()
        self._is_heard = False
        transport = self.transport
        # What a server said unasked would be taken for the answer to this request.
        if transport is None or transport.is_closing() or self._buffer:
            raise aiohttp.ServerDisconnectedError
        sending.is_sent = True
        transport.writelines((head, body) if body else (head,))
        self.start_timeout()
        self._is_heard = False

    async def answer(self, held: aiohttp.connector.Connection) -> Response:
        while True:
            message, content = await self.read()
            if message.code >= 200 or message.code == SWITCHING:
                return Response(message, content, held)
            if not self._buffer:
                self.start_timeout()  # what came was no answer, but has stopped the clock

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._read_timeout_handle is not None:
            is_heard = self._is_heard
            self.start_timeout()  # a server's time begins when it has the request
            self._sent_at, self._is_heard = self._heard_at, is_heard

    def _reschedule_timeout(self) -> None:
        # The library sets a timer for everything that comes. One is enough, if it looks back.
        self._heard_at = time.monotonic()
        self._is_heard = True
        if self._read_timeout_handle is None:
            super()._reschedule_timeout()

    def _on_read_timeout(self) -> None:
        self._read_timeout_handle = None
        wait = self._heard_at + (self._read_timeout or 0.0) - time.monotonic()
        if self._takes_on():
            self.start_timeout()
        elif wait > 0 and self._tells_on():
            self._read_timeout_handle = self._loop.call_later(wait, self._on_read_timeout)
        else:
            super()._on_read_timeout()

    def _takes_on(self) -> bool:
        """Whether the server has taken more of the request since this was last asked."""
        before = self._unsent
        self._unsent = 0 if self.transport is None else self.transport.get_write_buffer_size()
        return bool(self._unsent) and self._unsent != before

    def _tells_on(self) -> bool:
        """The same for the answer: what comes may be chunks that never end."""
        if self._payload is None:
            return True
        before, self._told = self._told, self._payload.total_bytes
        return self._told != before

    def eof_received(self) -> None:
        super().eof_received()
        if self.transport is not None:
            self.transport.abort()  # else it stays open until all of the request is taken

    def close(self) -> None:
        """Hang up at once, whatever is not sent yet; who reads an answer is told."""
        content = self._payload
        if self.transport is not None:
            self.transport.abort()
        super().close()
        _break_off(content, aiohttp.ClientConnectionError("it was closed here"))

    def set_exception(self, exc: BaseException, *args: Any, **kwargs: Any) -> None:
        """End it with an error; who reads an answer is told of that too."""
        super().set_exception(exc, *args, **kwargs)
        known = exc if isinstance(exc, aiohttp.ClientError) else aiohttp.ClientPayloadError()
        _break_off(self._payload, known)

    def was_stale(self) -> bool:
        """Whether the server had closed it before it read the request that breaks now."""
        is_quick = time.monotonic() - self._sent_at < STALE_SECONDS
        return self._requests > 1 and not self._is_heard and is_quick


class ConnectionPool(aiohttp.TCPConnector):
    """The connections to one server."""

    def __init__(
        self, address: URL, proxy: Proxy | None, timeout: aiohttp.ClientTimeout, **settings: Any
    ) -> None:
        super().__init__(limit=0, **settings)
        made_of: type[ResponseHandler] = HttpConnection
        self._factory = partial(made_of, loop=self._loop)
        self._timeout = timeout
        through: dict[str, Any] = {}
        if proxy is not None:
            through["proxy"] = URL(proxy.url)
            if address.scheme == "https":
                through["proxy_headers"] = CIMultiDict(proxy.headers, Host=format_host(address))
        self._way: Final = aiohttp.ClientRequest("GET", address, loop=self._loop, **through)
        """Only tells the library whom to reach, and how."""

    @property
    def has_idle(self) -> bool:
        """Whether the next request finds a connection that was kept, as it seems."""
        return self._way.connection_key in self._conns

    async def ask(
        self, head: bytes, body: bytes | None, sending: SendState, *, is_bodiless: bool = False
    ) -> Response:
        """The answer to a request that is written already; `is_bodiless` where none has a body."""
        while True:
            sending.is_sent = False
            held = await self._reached()
            line = held.protocol
            assert isinstance(line, HttpConnection)
            try:
                await sending.ready()
                line.set_response_params(
                    skip_payload=is_bodiless,
                    read_until_eof=True,
                    read_timeout=self._timeout.sock_read,
                    read_bufsize=READ_AHEAD_BYTES,
                )
                line.send(head, body, sending)
                return await line.answer(held)
            except _BROKEN:
                held.close()
                if self.closed or not line.was_stale():
                    raise
            except BaseException:
                if sending.is_sent:
                    held.close()
                else:
                    held.release()
                raise

    async def _reached(self) -> aiohttp.connector.Connection:
        try:
            return await self.connect(self._way, [], self._timeout)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError("nobody answers") from error


def _break_off(content: aiohttp.StreamReader | None, error: Exception) -> None:
    if content is not None and not content.is_eof() and content.exception() is None:
        content.set_exception(error)


def encode_headers(headers: Mapping[str, str]) -> list[Header]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def encode_request_head(
    method: str, target: str, heads: Iterable[Header], size: int | None
) -> bytes:
    """A request as it is written, up to its body."""
    lines = [f"{method} {target} HTTP/1.1".encode(), *map(format_header, heads)]
    if size is not None:
        lines.append(b"Content-Length: %d" % size)
    return join_header_lines(lines) + b"\r\n"


def join_header_lines(lines: Sequence[bytes]) -> bytes:
    """Lines of a head with their ends, if each of them is one."""
    text, number = b"\r\n".join((*lines, b"")), len(lines)
    if text.count(b"\n") != number or text.count(b"\r") != number or b"\0" in text:
        raise ValueError("a header does not stand in one line")
    return text


def format_host(address: URL) -> str:
    """Host and port, as a server is to be told them."""
    return address.host_port_subcomponent or ""
