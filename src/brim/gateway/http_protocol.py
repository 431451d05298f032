"""HTTP/1.1 for an ASGI application, with limits on the size and duration of request headers.

httptools parses the requests. Pipelined requests are answered one after the other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import unquote

import httptools
from starlette.types import ASGIApp, Message, Scope

from brim.gateway.limits import ABORT_EXTENSION
from brim.providers.http_connection import Header, format_header, join_header_lines

MAX_HEADER_BYTES: Final = 64 * 1024
"""Bytes of a request's target and headers."""
HEADER_SECONDS: Final = 30.0
"""How long they may take to arrive."""
KEEP_ALIVE_SECONDS: Final = 75.0
"""Longer than clients and proxies keep an idle connection, so that they close it first."""
READ_AHEAD_BYTES: Final = 64 * 1024
"""Bytes of a body that are buffered before the application reads them."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_FRAMING_HEADERS: Final = (b"content-length", b"transfer-encoding")
_BODILESS_STATUSES: Final = frozenset((204, 304))
_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}".encode() for status in HTTPStatus
}
_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}

log = logging.getLogger("brim.gateway")


@dataclass(slots=True)
class ServerContext:
    """What the connections of a server share."""

    app: ASGIApp
    connections: set[HttpProtocol] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _date: tuple[int, bytes] = (0, b"")

    def date_line(self) -> bytes:
        now = int(time.time())
        if self._date[0] != now:
            self._date = now, f"date: {formatdate(now, usegmt=True)}".encode()
        return self._date[1]


class _Exchange:
    """One request and its response: the `receive` and `send` of an ASGI call."""

    def __init__(self, protocol: HttpProtocol, scope: Scope, *, keep_alive: bool) -> None:
        self.scope = scope
        self.keep_alive = keep_alive
        self.is_received = False
        """Whether the whole request has arrived."""
        self.has_started = False
        self.is_complete = False
        """Whether the whole response has been written."""
        self.is_disconnected = False
        self._protocol = protocol
        self._body: list[bytes] = []
        self._body_size = 0
        self._is_delivered = False
        """Whether the application has received the whole body."""
        self._head = b""
        """The encoded headers of the response, until they are written with its first bytes."""
        self._is_bodiless = scope["method"] == "HEAD"
        self._is_chunked = False
        self._remaining: int | None = None
        """Bytes of the response's body that are still to be written, if its length is known."""
        self._needs_continue = (b"expect", b"100-continue") in scope["headers"]
        self.changed = asyncio.Event()
        """Set when `receive` has to look again."""

    async def run(self, app: ASGIApp) -> None:
        """Call the application."""
        try:
            await app(self.scope, self.receive, self.send)
        except asyncio.CancelledError:
            self._protocol.close()
            raise
        except Exception:
            log.exception("The application failed")
        if self.is_complete or self.is_disconnected:
            return
        if self.has_started:
            self._flush_head()
            self._protocol.close()
        else:
            self._protocol.send_error(500, "Internal Server Error")

    # The request

    @property
    def is_buffer_full(self) -> bool:
        return self._body_size > READ_AHEAD_BYTES

    def add_body(self, data: bytes) -> None:
        if not self.is_complete:
            self._body.append(data)
            self._body_size += len(data)
            self.changed.set()

    def disconnect(self) -> None:
        self.is_disconnected = True
        self.changed.set()

    async def receive(self) -> Message:
        if self._needs_continue and not self.has_started and not self.is_disconnected:
            self._protocol.write(_CONTINUE)
        self._needs_continue = False
        while True:
            if self.is_disconnected or self.is_complete:
                return {"type": "http.disconnect"}
            if self._body or (self.is_received and not self._is_delivered):
                return self._take_body()
            self.changed.clear()
            await self.changed.wait()

    def _take_body(self) -> Message:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body, self._body_size = [], 0
        self._is_delivered = self.is_received
        self._protocol.resume_reading()
        return {"type": "http.request", "body": body, "more_body": not self.is_received}

    # The response

    async def send(self, message: Message) -> None:
        await self._protocol.drain()
        if self.is_disconnected:
            return
        if message["type"] == "http.response.start":
            self._start(message["status"], message.get("headers", ()))
        else:
            self._write_body(message.get("body", b""), is_last=not message.get("more_body"))

    def _start(self, status: int, headers: list[Header]) -> None:
        line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d " % status
        lines = [line, self._protocol.context.date_line(), *map(format_header, headers)]
        named = dict(headers)
        self._is_bodiless |= status in _BODILESS_STATUSES
        if b"content-length" in named:
            self._remaining = int(named[b"content-length"])
        elif not self._is_bodiless and self.scope["http_version"] == "1.1":
            self._is_chunked = True
            lines.append(b"transfer-encoding: chunked")
        if named.get(b"connection", b"").lower() == b"close":
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close")
        self._head = join_header_lines(lines) + b"\r\n"
        self.has_started = True
        # With a body of a known length, that follows: one packet instead of two. A stream may take
        # a while to begin.
        if self._remaining is None:
            asyncio.get_running_loop().call_soon(self._flush_head)

    def _flush_head(self) -> None:
        head, self._head = self._head, b""
        if head:
            self._protocol.write(head)

    def _write_body(self, body: bytes, *, is_last: bool) -> None:
        if self._is_bodiless:
            body = b""
        elif self._is_chunked:
            body = _encode_chunk(body, is_last=is_last)
        elif self._remaining is not None:
            self._remaining -= len(body)
            if self._remaining < 0 or (is_last and self._remaining):
                raise RuntimeError("The response's body does not have its Content-Length")
        head, self._head = self._head, b""
        self._protocol.write(head, body)
        if is_last:
            self.is_complete = True
            self._protocol.finish(self)


class HttpProtocol(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, context: ServerContext) -> None:
        self.context = context
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._parser = httptools.HttpRequestParser(self)
        self._base_scope: dict[str, Any] = {}
        self._url = b""
        self._headers: list[Header] = []
        self._is_in_headers = True
        self._header_bytes = 0
        """Bytes since the headers began, and those that arrived with them."""
        self._timer: asyncio.TimerHandle | None = None
        self._has_header_timer = False
        self._exchanges: deque[_Exchange] = deque()
        """The one that runs, and those that wait for it."""
        self._reading: _Exchange | None = None
        """The exchange whose body is being read."""
        self._is_stopping = False
        self._writable = asyncio.Event()
        self._writable.set()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._base_scope = {
            "type": "http",
            "asgi": _ASGI,
            "scheme": "http",
            "root_path": "",
            "server": _address(transport, "sockname"),
            "client": _address(transport, "peername"),
            "extensions": {ABORT_EXTENSION: {"call": self._transport.abort}},
        }
        self.context.connections.add(self)
        self._start_header_timer()

    def connection_lost(self, _: Exception | None) -> None:
        self.context.connections.discard(self)
        self._set_timer(None)
        self._writable.set()
        for exchange in self._exchanges:
            exchange.disconnect()

    def data_received(self, data: bytes) -> None:
        self._header_bytes = self._header_bytes + len(data) if self._is_in_headers else len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._reject("Invalid HTTP request.")
            return
        if self._is_in_headers:
            if self._header_bytes > MAX_HEADER_BYTES:
                self._reject("The request headers are too large.")
            elif not self._has_header_timer:
                self._start_header_timer()

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade()
            self._feed(data[upgrade.args[0] :])

    def _ignore_upgrade(self) -> None:
        """Read on with a new parser: after an offer of another protocol, this one reads no body.

        The connection closes after the response.
        """
        assert self._reading is not None
        headers = self._reading.scope["headers"]
        framing = [format_header(pair) for pair in headers if pair[0] in _FRAMING_HEADERS]
        self._parser = httptools.HttpRequestParser(_BodyCallbacks(self))
        self._parser.feed_data(join_header_lines([b"POST / HTTP/1.1", *framing]) + b"\r\n")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        self._url, self._headers = b"", []
        self._is_in_headers, self._has_header_timer = True, False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_headers:  # trailers of a body are ignored
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._header_bytes > MAX_HEADER_BYTES:
            size = len(self._url) + sum(len(name) + len(value) for name, value in self._headers)
            if size > MAX_HEADER_BYTES:
                raise ValueError("the headers are too large")  # the parser reports an error
        self._is_in_headers = False
        self._set_timer(None)
        version = self._parser.get_http_version()
        keep_alive = (
            version == "1.1"
            and self._parser.should_keep_alive()
            and not self._parser.should_upgrade()
        )
        self._reading = _Exchange(self, self._create_scope(version), keep_alive=keep_alive)
        self._exchanges.append(self._reading)
        if len(self._exchanges) == 1:
            self._run(self._reading)
        else:
            self.pause_reading()

    def on_body(self, data: bytes) -> None:
        if self._reading is not None:
            self._reading.add_body(data)
            if self._reading.is_buffer_full:
                self.pause_reading()

    def on_message_complete(self) -> None:
        if self._reading is not None and not self._parser.should_upgrade():
            self._reading.is_received = True
            self._reading.changed.set()
            self._reading = None

    def _create_scope(self, version: str) -> Scope:
        url = httptools.parse_url(self._url)
        path = url.path.decode("ascii")
        return {
            **self._base_scope,
            "http_version": version,
            "method": self._parser.get_method().decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": url.path,
            "query_string": url.query or b"",
            "headers": self._headers,
        }

    # For exchanges and the server

    def write(self, *data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.writelines(data)

    async def drain(self) -> None:
        """Wait until the client has read enough of what was written."""
        if not self._writable.is_set():
            await self._writable.wait()

    def pause_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        is_full = self._reading is not None and self._reading.is_buffer_full
        if not (is_full or len(self._exchanges) > 1 or self._transport.is_closing()):
            self._transport.resume_reading()

    def finish(self, exchange: _Exchange) -> None:
        """Continue after a complete response: close, run the next request, or wait for one."""
        if not exchange.keep_alive or (self._is_stopping and len(self._exchanges) == 1):
            self.close()
            return
        self._exchanges.popleft()
        self.resume_reading()
        if self._exchanges:
            self._run(self._exchanges[0])
        elif not self._is_in_headers:
            self._set_timer(KEEP_ALIVE_SECONDS)

    def shut_down(self) -> None:
        """Close after the running requests; immediately if there are none."""
        self._is_stopping = True
        if not self._exchanges:
            self.close()

    def close(self) -> None:
        """Close when everything written has been sent."""
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def send_error(self, status: int, text: str) -> None:
        """Respond with plain text and close."""
        body = text.encode()
        lines = (
            _STATUS_LINES[status],
            self.context.date_line(),
            b"content-type: text/plain; charset=utf-8",
            b"content-length: %d" % len(body),
            b"connection: close",
        )
        self.write(join_header_lines(lines), b"\r\n", body)
        self.close()

    def _reject(self, text: str) -> None:
        """Respond 400 to what is not a request, after the responses to earlier requests."""
        self.pause_reading()
        rejected, self._reading, self._is_in_headers = self._reading, None, False
        self._set_timer(None)
        if rejected is not None:
            self._exchanges.remove(rejected)
            rejected.disconnect()
        if self._exchanges:
            self._exchanges[-1].keep_alive = False
        elif rejected is not None and rejected.has_started:
            self.close()
        else:
            self.send_error(400, text)

    def _run(self, exchange: _Exchange) -> None:
        task = self._loop.create_task(exchange.run(self.context.app))
        self.context.tasks.add(task)
        task.add_done_callback(self.context.tasks.discard)

    def _start_header_timer(self) -> None:
        self._set_timer(HEADER_SECONDS)
        self._has_header_timer = True

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        later = self._loop.call_later
        self._timer = None if seconds is None else later(seconds, self._close_idle)

    def _close_idle(self) -> None:
        self._timer = None
        if self._exchanges:
            self._exchanges[-1].keep_alive = False
        else:
            self.close()


class _BodyCallbacks:
    """What a parser reports of a request whose headers were read by another parser."""

    def __init__(self, protocol: HttpProtocol) -> None:
        self.on_body = protocol.on_body
        self.on_message_complete = protocol.on_message_complete


def _encode_chunk(body: bytes, *, is_last: bool) -> bytes:
    chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
    return chunk + b"0\r\n\r\n" if is_last else chunk


def _address(transport: asyncio.BaseTransport, name: str) -> tuple[str, int] | None:
    found = transport.get_extra_info(name)
    return (str(found[0]), int(found[1])) if isinstance(found, tuple) else None
