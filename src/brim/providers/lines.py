"""Lines: the connections to servers, and what is to be known of the one that a request goes over.

Money hangs on whether a request was sent: what was not costs nothing, and what was is not sent a
second time. The library tells neither, but for tracing, which takes ten times as long.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import aiohttp
import aiohttp.connector
from aiohttp.client_proto import ResponseHandler

Ready = Callable[[], Awaitable[None]]

QUICK = 0.25
"""Seconds in which a connection that was kept from before may break for no more than its age.

A server that closes an idle connection does so at once, and has not read what came over it, which
is then sent again over another. One that broke later, or after the first byte of its answer, may
have worked on the request and be paid for it: that is raised, and only `retries` ask once more.
"""


class Line(ResponseHandler):
    """A connection that knows what a request over it met with until now."""

    _requests = 0
    _sent_at = 0.0
    _is_heard = False

    def begin(self) -> None:
        """A request is sent over it now."""
        self._requests += 1
        self._sent_at = time.monotonic()
        self._is_heard = False

    def data_received(self, data: bytes) -> None:
        self._is_heard = True
        super().data_received(data)

    def was_stale(self) -> bool:
        """Whether the server had closed it before it read the request that breaks now."""
        is_quick = time.monotonic() - self._sent_at < QUICK
        return self._requests > 1 and not self._is_heard and is_quick


line_used: ContextVar[Line | None] = ContextVar("line_used", default=None)
"""What the last request of this task went over; nothing where its server was not reached."""
before_sending: ContextVar[Ready | None] = ContextVar("before_sending", default=None)
"""What is waited for between reaching a server and sending it the next request of this task."""


def was_reached() -> bool:
    """Whether a server may have been sent the last request of this task."""
    return line_used.get() is not None


class Connector(aiohttp.TCPConnector):
    """Tells which connection a request goes over; tracing would, at ten times the cost."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        made_of: type[ResponseHandler] = Line
        self._factory = partial(made_of, loop=self._loop)

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.connector.Connection:
        line_used.set(None)
        connection = await super().connect(req, traces, timeout)
        if (ready := before_sending.get()) is not None:
            try:
                await ready()
            except BaseException:
                connection.release()
                raise
        line = connection.protocol
        assert isinstance(line, Line)
        line.begin()
        line_used.set(line)
        return connection
