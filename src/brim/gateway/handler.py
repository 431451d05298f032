"""Answering: the client's side of a request, from its first byte to its last.

Whatever goes wrong is said in the shape that the client's library reads, and a client that hangs
up stops everything that goes on for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from brim.errors import BrimError
from brim.gateway import bodies, errors, headers
from brim.gateway.errors import GatewayError
from brim.gateway.limits import ABORT_EXTENSION, ClientDisconnectedError
from brim.gateway.records import RequestRecord

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from brim.gateway.accounts.keys import Access
    from brim.gateway.accounts.reservations import Settlement
    from brim.gateway.app import Gateway
    from brim.gateway.formats import BodyFormat
    from brim.providers.http_connection import Header

JSON: Final = (b"content-type", b"application/json")
STATUSES_WITHOUT_BODY: Final = frozenset((204, 304))
SEND_BUFFER_BYTES: Final = 64 * 1024
"""Bytes that a server takes for a client that does not read; then it waits for it."""
DISCONNECT_CHECK_DELAY: Final = 0.05
"""Seconds in which nobody hangs up."""
MAX_SHOWN_NAME: Final = 200
"""Characters of a model's name that are repeated."""
_NOTHING: Final[Mapping[str, Any]] = {}

log = logging.getLogger("brim.gateway")


class RequestHandler(ABC):
    """One request and its answer; those that derive from it say what is answered."""

    def __init__(
        self, gateway: Gateway, form: BodyFormat, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.gateway = gateway
        self.form = form
        """Whose errors the client reads."""
        self.record = RequestRecord(scope["path"], form.name)
        self.waiting_since: float | None = None
        """Since when the client does not take what is sent to it."""
        self.given = headers.read_headers(scope["headers"])
        self._scope = scope
        self._receive = receive
        self._send = send
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._listener: asyncio.Future[None] | None = None
        self._is_gone = False

    @abstractmethod
    async def answer(self) -> None: ...

    def close(self) -> None:
        """Let go of what it held, however it ended."""
        self.record.seconds = time.perf_counter() - self.record.begun

    def settle(self) -> Settlement | None:
        """Take down what it came to, some time after it was over; gives what is booked of it."""
        return None

    @property
    def is_urgent(self) -> bool:
        """Whether what it came to matters for the next request."""
        return False

    async def run(self) -> None:
        """Answer, whatever happens."""
        self._task = asyncio.current_task()
        try:
            try:
                await self.answer()
            finally:
                self._stop_listening()
        except GatewayError as fault:
            await self._say(fault)
        except BrimError as error:
            await self._say(errors.to_gateway_error(self.form, error))
        except RecursionError:
            await self._say(bodies.nesting_error())
        except ClientDisconnectedError:
            self.record.end = "client gone"
        except asyncio.CancelledError:
            if not self._is_gone:
                self.record.end = "stopped"
                raise
            self.record.end = "client gone"
        except Exception:
            log.exception("request failed", extra={"told": {"id": self.record.id}})
            await self._say(GatewayError(500, "internal_error", "brim failed; its log says why"))
        finally:
            self.close()

    # From the client

    @property
    def _query(self) -> str:
        return self._scope["query_string"].decode("latin-1")  # type: ignore[no-any-return]

    async def _admitted(self, *, anew: bool = False) -> Access | None:
        """Who asks; None where no keys are asked for."""
        if not self.gateway.accounts.is_required:
            return None
        access = await self.gateway.admission.client(self.given, anew=anew)
        self.record.key, self.record.project = access.key.name, access.key.project or None
        return access

    async def _body(self) -> bytes:
        """The whole of what was sent, if there is room for it."""
        limits = self.gateway.limits
        limits.check_room(len(self.gateway.running) - 1)
        limits.check_origin(self.given)
        return await limits.body(self.given, self._receive)

    def _listen_soon(self) -> None:
        """Stop everything when the client hangs up, unless the answer is there at once."""
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

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self.record.end == "open":
            self.abandon()

    def abandon(self) -> None:
        """Nobody takes the answer any more."""
        self._is_gone = True
        if (hang_up := self._offered(ABORT_EXTENSION)) is not None:
            hang_up()
        if self._task is not None:
            self._task.cancel()

    def _offered(self, extension: str) -> Callable[..., None] | None:
        """What the server can do beyond what every server can."""
        found = self._scope.get("extensions", _NOTHING).get(extension, _NOTHING)
        return found.get("call")  # type: ignore[no-any-return]

    def cut(self) -> asyncio.Task[Any] | None:
        """End it, because the gateway does; gives what is left to wait for."""
        if self._task is not None:
            self._task.cancel()
        return self._task

    # To the client

    async def _whole(
        self, status: int, given: list[Header], raw: bytes, framing: Sequence[Header] = ()
    ) -> None:
        if status in STATUSES_WITHOUT_BODY:
            raw = b""
        else:
            framing = [*framing, (b"content-length", b"%d" % len(raw))]
        await self._start(status, given, framing)
        if len(raw) > SEND_BUFFER_BYTES:
            await self._put(raw)
            raw = b""  # what follows waits until the client has taken what came before
        await self._put(raw, more=False)

    async def _start(
        self, status: int, given: list[Header], framing: Sequence[Header] = ()
    ) -> None:
        """Begin to answer; `framing` are headers about the connection and the body's length."""
        record = self.record
        record.status = status
        record.first_byte = time.perf_counter() - record.begun
        sent = [*given, *framing]
        await self._send({"type": "http.response.start", "status": status, "headers": sent})

    async def _put(self, raw: bytes, *, more: bool = True) -> None:
        self.waiting_since = time.monotonic()
        await self._send({"type": "http.response.body", "body": raw, "more_body": more})
        self.waiting_since = None

    async def _say(self, fault: GatewayError) -> None:
        """An error in place of an answer; nothing, where that has begun."""
        record = self.record
        record.code = fault.code
        if record.end == "open":
            record.end = "failed" if fault.status >= 500 else "refused"
        if record.status:
            return
        raw = fault.body(self.form, record.id)
        said = [(name.encode(), value.encode()) for name, value in fault.headers.items()]
        await self._whole(fault.status, [JSON, *headers.build_brim_headers(record)], raw, said)


def printable_name(model: object) -> str:
    """A model's name as it can stand in any line: short, and in signs that are seen."""
    name = model[:MAX_SHOWN_NAME] if isinstance(model, str) else ""
    return name if name.isprintable() else ascii(name)[1:-1][:MAX_SHOWN_NAME]
