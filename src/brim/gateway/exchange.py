"""Exchange: one request on its way through the gateway, from its first byte to what it came to.

    body ─▶ form ─▶ lane ─▶ fitted ─▶ upstream ─▶ (refused: shrunk, once more) ─▶ bytes back

The client's bytes go on as they are where nothing had to be cut, and the upstream's bytes come
back as they are. Whatever goes wrong is said in the shape that the client's library reads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final

from brim.errors import BrimError, ProviderError
from brim.gateway import bodies, faults, heads
from brim.gateway.delivery import Delivery
from brim.gateway.faults import FaultError
from brim.gateway.fitting import Asked
from brim.gateway.forms import Form, form_of
from brim.gateway.limits import GoneError
from brim.gateway.records import Record
from brim.gateway.watching import StreamWatch, used
from brim.gateway.wishes import wishes_in
from brim.usage import Usage, cost, reported_cost

if TYPE_CHECKING:
    from brim.gateway.app import Gateway
    from brim.gateway.delivery import Arrived
    from brim.gateway.heads import Head

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON: Final = (b"content-type", b"application/json")
BODILESS: Final = frozenset((204, 304))
LONGEST_NAME: Final = 200
"""Characters of a model's name that are repeated."""

log = logging.getLogger("brim.gateway")


class Exchange:
    """One request and its answer."""

    def __init__(
        self, gateway: Gateway, asked: Form, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.gateway = gateway
        self.form = asked
        self.record = Record.begin(scope["path"])
        self.waiting_since: float | None = None
        """Since when the client does not take what is sent to it."""
        self._scope = scope
        self._receive = receive
        self._send = send
        self._task: asyncio.Task[Any] | None = None
        self._arrived: Arrived | None = None
        self._watch: StreamWatch | None = None
        self._is_gone = False

    async def run(self) -> None:
        """Answer, whatever happens."""
        self._task = asyncio.current_task()
        try:
            await self._run()
        except FaultError as fault:
            await self._say(fault)
        except BrimError as error:
            await self._say(faults.of_error(self.form, error))
        except GoneError:
            self.record.end = "client gone"
        except asyncio.CancelledError:
            if not self._is_gone:
                raise
            self.record.end = "client gone"
        except Exception:
            log.exception("request failed", extra={"id": self.record.id})
            await self._say(FaultError(500, "internal_error", "brim failed; its log says why"))
        finally:
            if self._arrived is not None:
                self._arrived.response.close()
                self._settle(self._arrived)
            self.record.seconds = time.perf_counter() - self.record.begun

    async def _run(self) -> None:
        delivery = await self._delivery()
        listener = asyncio.create_task(self._listen())
        try:
            if delivery.is_dry_run:
                await self._show(delivery)
            else:
                query = self._scope["query_string"].decode("latin-1")
                self._arrived = await delivery.answer(query)
                await self._pass_on(self._arrived)
        finally:
            listener.cancel()

    async def _delivery(self) -> Delivery:
        """What the client wants, read."""
        gateway, record, given = self.gateway, self.record, self._scope["headers"]
        gateway.limits.check_room(len(gateway.running) - 1)
        raw = await gateway.limits.body(given, self._receive)
        wishes = wishes_in(heads.wished(given))
        body = await gateway.apart(len(raw), bodies.parsed, raw)
        self.form = form_of(self.form, body)
        record.form, record.streamed = self.form.name, bodies.streams(body)
        record.model = str(body.get("model") or "")[:LONGEST_NAME]
        return Delivery(gateway, record, Asked(body, raw, self.form), wishes, given)

    async def _listen(self) -> None:
        """Stop everything when the client hangs up."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self.record.end == "open":
            self.abandon()

    def abandon(self) -> None:
        """Nobody takes the answer any more."""
        self._is_gone = True
        if self._task is not None:
            self._task.cancel()

    # Back to the client

    async def _pass_on(self, arrived: Arrived) -> None:
        response, record = arrived.response, self.record
        given = heads.back(response.headers) + heads.added(record)
        if arrived.is_stream:
            await self._stream(arrived, given)
        else:
            record.end = "whole" if response.status < 400 else "refused"
            await self._whole(response.status, given, arrived.raw)

    async def _whole(self, status: int, given: list[Head], raw: bytes) -> None:
        if status not in BODILESS:
            given = [*given, (b"content-length", str(len(raw)).encode())]
        await self._start(status, given)
        await self._put(b"" if status in BODILESS else raw, more=False)

    async def _stream(self, arrived: Arrived, given: list[Head]) -> None:
        """Pass the events on as they come; one that says what went wrong, if they break off."""
        connection = arrived.lane.upstream.connection(self.form)
        watch = self._watch = StreamWatch(hides_usage=arrived.out.hides_usage)
        await self._start(arrived.response.status, given)
        piece = arrived.raw
        try:
            while True:
                if passed := watch.feed(piece):
                    await self._put(passed)
                piece = await connection.piece(arrived.response)
                if not piece:
                    break
        except ProviderError as error:
            self.record.end = "upstream broke"
            await self._put(faults.of_error(self.form, error).event(self.form), more=False)
            return
        self.record.end = "whole"
        await self._put(watch.finish(), more=False)

    async def _say(self, fault: FaultError) -> None:
        """An error in place of an answer; nothing, where that has begun."""
        record = self.record
        record.code = fault.code
        if record.status:
            return
        record.end = "failed" if fault.status >= 500 else "refused"
        raw = fault.body(self.form, record.id)
        said = [(name.encode(), value.encode()) for name, value in fault.headers.items()]
        await self._whole(fault.status, [JSON, *said, *heads.added(record)], raw)

    async def _show(self, delivery: Delivery) -> None:
        """What would be sent, and why; nothing is."""
        out = await delivery.fitted(delivery.lane(), delivery.asked)
        record = self.record
        record.end = "whole"
        shown = {"object": "brim.plan", **record.to_dict(), **record.decisions(), "body": out.body}
        await self._whole(200, [JSON, *heads.added(record)], bodies.written(shown))

    async def _start(self, status: int, given: list[Head]) -> None:
        record = self.record
        record.status = status
        record.first_byte = time.perf_counter() - record.begun
        await self._send({"type": "http.response.start", "status": status, "headers": given})

    async def _put(self, raw: bytes, *, more: bool = True) -> None:
        self.waiting_since = time.monotonic()
        await self._send({"type": "http.response.body", "body": raw, "more_body": more})
        self.waiting_since = None

    # What it came to

    def _settle(self, arrived: Arrived) -> None:
        """Take down what the answer took, by the upstream's report or else by brim's own count."""
        record = self.record
        if arrived.response.status >= 400:
            return
        told = self._told(arrived)
        record.usage = used(told)
        lane, out = arrived.lane, arrived.out
        if record.usage is not None and out.is_whole:
            lane.report(out.plan, out.reading.planner, record.usage.input)
        if record.usage is None:
            said = self._watch.said() if self._watch else ""
            output = out.reading.planner.counter.text(said) if said else 0
            record.usage, record.is_usage_counted = Usage(out.plan.size, output=output), True
        record.cost = reported_cost({"usage": told})
        if record.cost is None:
            record.cost = cost(record.usage, lane.target.price_for(record.usage.input))

    def _told(self, arrived: Arrived) -> Mapping[str, Any]:
        """The usage as the upstream has put it."""
        if self._watch is not None:
            return self._watch.usage
        usage = (arrived.answer or {}).get("usage")
        return usage if isinstance(usage, Mapping) else {}
