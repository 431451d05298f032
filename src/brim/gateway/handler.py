"""The client's side of a request: its body, its response, errors and disconnects.

`Services` are the parts of a gateway that all requests share.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar, TypeVarTuple

from starlette.types import Receive, Scope, Send

from brim.errors import BrimError
from brim.gateway import errors, headers
from brim.gateway.account_service import AccountService
from brim.gateway.accounts.keys import Access
from brim.gateway.accounts.reservations import Settlement
from brim.gateway.auth import Authenticator
from brim.gateway.dropped_messages import DroppedMessages
from brim.gateway.errors import GatewayError
from brim.gateway.limits import ABORT_EXTENSION, ClientDisconnectedError, RequestLimits
from brim.gateway.records import RequestRecord
from brim.gateway.routes import ModelRoutes
from brim.gateway.usage_lookup import LostReply
from brim.providers.http_connection import Header
from brim.wire.formats import BodyFormat

T = TypeVar("T")
Args = TypeVarTuple("Args")

THREADS: Final = 2
JSON: Final = (b"content-type", b"application/json")
STATUSES_WITHOUT_BODY: Final = frozenset((204, 304))
SEND_BUFFER_BYTES: Final = 64 * 1024
"""Bytes that a server buffers before `send` waits for the client."""
DISCONNECT_CHECK_DELAY: Final = 0.05
"""Seconds before a request begins to watch for a disconnect; most have ended by then."""
MAX_SHOWN_NAME: Final = 200
"""Characters of a model's name that are shown."""

log = logging.getLogger("brim.gateway")


class WorkerPool:
    """Threads that parse and count large bodies, so that the event loop stays responsive."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "brim-count")

    async def run(self, work: Callable[[*Args], T], *args: *Args) -> T:
        """Run a function in a thread and return its result.

        If the caller is cancelled, wait until the function has returned: its arguments must not be
        used by two threads.
        """
        running = asyncio.get_running_loop().run_in_executor(self._threads, work, *args)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise

    def shutdown(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a gateway that request handlers use."""

    limits: RequestLimits
    accounts: AccountService
    authenticator: Authenticator
    routes: ModelRoutes
    workers: WorkerPool
    running: Sized
    """The requests in flight."""
    dropped: DroppedMessages | None = None
    """What recent requests dropped; None if it is not kept."""
    traces: bool = False
    """Whether requests are traced."""


class RequestHandler(ABC):
    """One request and its response. Subclasses implement `answer`."""

    def __init__(
        self, services: Services, format: BodyFormat, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.services = services
        self.format = format
        """The format in which the client expects errors."""
        self.record = RequestRecord(scope["path"], format.name)
        self.waiting_since: float | None = None
        """Since when the client has not read what was sent; None if nothing waits."""
        pairs, self._query = headers.take_query_key(scope["headers"], scope["query_string"])
        self.client_headers = headers.read_headers(pairs)
        self._scope = scope
        self._receive = receive
        self._send = send
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._listener: asyncio.Future[None] | None = None
        self._is_disconnected = False

    @abstractmethod
    async def answer(self) -> None: ...

    def close(self) -> None:
        """Release what the request holds, however it ended."""
        self.record.seconds = time.perf_counter() - self.record.started

    def settle(self) -> Settlement | None:
        """Compute the actual cost of a finished request; None if nothing was reserved."""
        return None

    def find_lost_reply(self) -> LostReply | None:
        """Return the reply whose usage did not arrive and can be looked up; None if none is."""
        return None

    async def look_up_usage(self, lost: LostReply) -> None:
        """Ask the provider for the usage of a reply that did not arrive."""
        raise NotImplementedError

    @property
    def is_urgent(self) -> bool:
        """Whether the next request depends on the settlement of this one."""
        return False

    async def run(self) -> None:
        """Answer the request; turn every exception into an error response."""
        self._task = asyncio.current_task()
        try:
            try:
                await self.answer()
            finally:
                self._stop_listening()
        except (GatewayError, BrimError, RecursionError) as error:
            await self._send_error(errors.to_gateway_error(self.format, error))
        except ClientDisconnectedError:
            self.record.end = "client_disconnected"
        except asyncio.CancelledError:
            if not self._is_disconnected:
                self.record.end = "stopped"
                raise
            self.record.end = "client_disconnected"
        except Exception as error:
            log.exception("request failed", extra={"fields": {"id": self.record.id}})
            await self._send_error(errors.to_gateway_error(self.format, error))
        finally:
            self.close()

    # From the client

    async def _authenticate(self, *, refresh: bool = False) -> Access | None:
        """Return the client's key; None if no keys are required."""
        if not self.services.accounts.requires_keys:
            return None
        authenticator = self.services.authenticator
        access = await authenticator.authenticate_client(self.client_headers, refresh=refresh)
        self.record.key, self.record.project = access.key.name, access.key.project or None
        return access

    async def _read_body(self) -> bytes:
        """Return the whole request body. Raise `GatewayError` if a limit is exceeded."""
        limits = self.services.limits
        limits.check_room(len(self.services.running) - 1)
        limits.check_origin(self.client_headers)
        return await limits.read_body(self.client_headers, self._receive)

    def _listen_soon(self) -> None:
        """Watch for a disconnect, unless the response arrives first."""
        self._timer = asyncio.get_running_loop().call_later(
            DISCONNECT_CHECK_DELAY, self._listen_now
        )

    def _listen_now(self) -> None:
        self._listener = asyncio.ensure_future(self._listen())

    def _stop_listening(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._listener is not None:
            self._listener.cancel()
        # The exception of a cancelled listener refers to this request: without these references it
        # is freed at its end, and its body with it, not by a later garbage collection.
        self._timer = self._listener = None

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self.record.end == "open":
            self.abandon()

    def abandon(self) -> None:
        """Cancel the request, because its client is gone or does not read."""
        self._is_disconnected = True
        extensions = self._scope.get("extensions", {})
        if ABORT_EXTENSION in extensions:
            extensions[ABORT_EXTENSION]["call"]()
        self.cancel()

    def cancel(self) -> asyncio.Task[Any] | None:
        """Cancel the request. Return the task to wait for."""
        if self._task is not None:
            self._task.cancel()
        return self._task

    # To the client

    async def _send_whole(
        self, status: int, passed: list[Header], raw: bytes, framing: Sequence[Header] = ()
    ) -> None:
        if status in STATUSES_WITHOUT_BODY:
            raw = b""
        else:
            framing = [*framing, (b"content-length", b"%d" % len(raw))]
        await self._send_start(status, passed, framing)
        if len(raw) > SEND_BUFFER_BYTES:
            await self._send_piece(raw)
            raw = b""  # the last piece waits until the client has read the others
        await self._send_piece(raw, more=False)

    async def _send_start(
        self, status: int, passed: list[Header], framing: Sequence[Header] = ()
    ) -> None:
        """Send status and headers; `framing` are about the connection and the body's length."""
        record = self.record
        record.status = status
        record.first_byte = time.perf_counter() - record.started
        sent = [*passed, *framing]
        await self._send({"type": "http.response.start", "status": status, "headers": sent})

    async def _send_piece(self, raw: bytes, *, more: bool = True) -> None:
        self.waiting_since = time.monotonic()
        await self._send({"type": "http.response.body", "body": raw, "more_body": more})
        self.waiting_since = None

    async def _send_error(self, error: GatewayError) -> None:
        """Send an error response, unless a response has already begun."""
        record = self.record
        record.code = error.code
        if record.end == "open":
            record.end = "failed" if error.status >= 500 else "rejected"
        if record.status:
            return
        raw = error.body(self.format, record.id)
        framing = [(name.encode(), value.encode()) for name, value in error.headers.items()]
        brim = headers.build_brim_headers(record)
        await self._send_whole(error.status, [JSON, *brim], raw, framing)


def printable_name(model: object) -> str:
    """Return a model's name in a form that is safe to log: short and printable."""
    name = model[:MAX_SHOWN_NAME] if isinstance(model, str) else ""
    return name if name.isprintable() else ascii(name)[1:-1][:MAX_SHOWN_NAME]
