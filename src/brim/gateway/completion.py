"""Exchange: one request on its way through the gateway, from its first byte to what it came to.

    body ─▶ form ─▶ lane ─▶ fitted ─▶ upstream ─▶ (refused: shrunk, once more) ─▶ bytes back

The client's bytes go on as they are where nothing had to be cut, and the upstream's bytes come
back as they are. Whatever goes wrong is said in the shape that the client's library reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from brim.errors import ProviderError
from brim.fitting import feedback
from brim.gateway import bodies, errors, headers
from brim.gateway.billing import RequestBilling
from brim.gateway.fit_request import ClientRequest
from brim.gateway.formats import check_conversation, detect_format
from brim.gateway.forward import FIRST_ERROR_STATUS, Forwarder
from brim.gateway.handler import JSON, RequestHandler, printable_name
from brim.gateway.headers import parse_options
from brim.gateway.limits import LARGE_BODY_BYTES
from brim.gateway.stream_monitor import StreamMonitor, extract_text, parse_usage_fields, secret_of
from brim.models.pricing import Usage, cost
from brim.wire.reply_parser import find_error_object
from brim.wire.usage import parse_reported_cost

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from brim.gateway.accounts.reservations import Settlement
    from brim.gateway.billing import ChargeStatus
    from brim.gateway.formats import BodyFormat
    from brim.gateway.forward import UpstreamReply
    from brim.gateway.routes import ModelRoute
    from brim.gateway.services import Services
    from brim.providers.http_connection import Header

UNFINISHED_STATUSES: Final = ("queued", "in_progress")
"""What a response says of itself that is made in the background."""


class CompletionHandler(RequestHandler):
    """A request for an answer, fitted on its way."""

    def __init__(
        self, services: Services, asked: BodyFormat, scope: Scope, receive: Receive, send: Send
    ) -> None:
        super().__init__(services, asked, scope, receive, send)
        self._delivery: Forwarder | None = None
        self._arrived: UpstreamReply | None = None
        self._watch: StreamMonitor | None = None
        self._charge: RequestBilling | None = None

    def close(self) -> None:
        super().close()
        watch = self._watch
        if self.record.end == "client_disconnected" and watch is not None and watch.is_ended:
            self.record.end = (
                "completed"  # it had all of it, and did not wait for the line to close
            )
        if self._arrived is not None:
            self._arrived.response.close()

    def settle(self) -> Settlement | None:
        taken: ChargeStatus = "nothing"
        if self._arrived is not None:
            taken = self._settle(self._arrived)
        elif self._delivery is not None and self._delivery.under_way is not None:
            # Nobody waited for the answer, but the upstream has the prompt.
            lane, out = self._delivery.under_way
            self.record.is_usage_estimated = True
            self._book(lane, Usage(out.plan.size), {})
        return None if self._charge is None else self._charge.settlement(taken)

    @property
    def is_urgent(self) -> bool:
        """What the first answers report corrects the estimates."""
        if self._arrived is None or not self._arrived.lane.is_learning:
            return False
        out = self._arrived.out
        return feedback.is_informative(out.plan, out.parsed.planner.counter)

    async def answer(self) -> None:
        delivery = self._delivery = await self._read()
        self._listen_soon()
        if delivery.is_dry_run:
            await self._show(delivery)
        else:
            self._arrived = await delivery.answer(self._query)
            await self._pass_on(self._arrived)

    async def _read(self) -> Forwarder:
        """What the client wants."""
        services, record, given = self.services, self.record, self.client_headers
        access = await self._authenticate()
        if access is not None:
            self._charge = RequestBilling(services.accounts, access, record)
        raw = await self._read_body()
        wishes = parse_options(given.options)
        is_large = len(raw) >= LARGE_BODY_BYTES
        body = (
            await services.workers.run(bodies.parse_body, raw)
            if is_large
            else bodies.parse_body(raw)
        )
        self.format = detect_format(self.format, body)
        record.format, record.streamed = self.format.name, bodies.is_stream(body)
        record.model = printable_name(body.get("model"))
        check_conversation(self.format, body)
        asked = ClientRequest(body, raw, self.format)
        return Forwarder(services, record, asked, wishes, given, self._charge)

    # Back to the client

    async def _pass_on(self, arrived: UpstreamReply) -> None:
        response, record = arrived.response, self.record
        given = headers.filter_response_headers(response.raw_headers) + headers.build_brim_headers(
            record
        )
        if arrived.is_stream:
            await self._stream(arrived, given)
        else:
            record.end = "completed" if response.status < FIRST_ERROR_STATUS else "rejected"
            await self._send_whole(response.status, given, arrived.raw)

    async def _stream(self, arrived: UpstreamReply, given: list[Header]) -> None:
        """Pass the events on as they come; one that says what went wrong, if they break off."""
        connection = arrived.lane.upstream.connection(self.format)
        secret = secret_of(connection.endpoint)
        watch = self._watch = StreamMonitor(hides_usage=arrived.out.hides_usage, secret=secret)
        await self._send_start(arrived.response.status, given)
        piece = arrived.raw
        try:
            while True:
                if passed := watch.feed(piece):
                    await self._send_piece(passed)
                piece = await connection.read_chunk(arrived.response)
                if not piece:
                    break
        except ProviderError as error:
            await self._break_off(error)
            return
        rest = watch.finish()
        if watch.error is None and not watch.is_ended:
            host = connection.endpoint.host
            await self._break_off(ProviderError(f"{host} ended before the answer was whole."))
            return
        self.record.end = "completed" if watch.error is None else "upstream_failed"
        await self._send_piece(rest, more=False)

    async def _break_off(self, error: ProviderError) -> None:
        fault = errors.to_gateway_error(self.format, error)
        self.record.end, self.record.code = "upstream_failed", fault.code
        await self._send_piece(fault.event(self.format), more=False)

    async def _show(self, delivery: Forwarder) -> None:
        """What would be sent, and why; nothing is."""
        record = self.record
        record.is_dry_run = True
        out = await delivery.fitted(delivery.lane(), delivery.asked)
        record.end = "completed"
        shown = {"object": "brim.plan", **record.to_dict(), **record.decisions(), "body": out.body}
        await self._send_whole(
            200, [JSON, *headers.build_brim_headers(record)], bodies.serialize(shown)
        )

    # What it came to

    def _settle(self, arrived: UpstreamReply) -> ChargeStatus:
        """Take down what the answer took, by the upstream's report or else by brim's own count."""
        if not arrived.is_answer:
            return "nothing"
        told, lane, out = self._told(arrived), arrived.lane, arrived.out
        usage = parse_usage_fields(told)
        if (
            usage is None
            and arrived.answer is not None
            and find_error_object(arrived.answer) is not None
        ):
            return "nothing"  # a refusal, though its status is of success
        if usage is not None and out.is_whole:
            lane.report(out, usage.input)
        taken: ChargeStatus = "unknown" if self._goes_on(arrived) else "known"
        if usage is None or not usage.output or self._is_part:
            counted = self._counted(usage, arrived)
            taken = "unknown" if counted is None else taken
            usage = counted or usage or Usage(out.plan.size)
        self._book(lane, usage, told)
        return taken

    def _book(self, lane: ModelRoute, usage: Usage, told: Mapping[str, Any]) -> None:
        record = self.record
        record.usage, record.cost = usage, parse_reported_cost({"usage": told})
        if record.cost is None:
            record.cost = cost(usage, lane.target.price_for(usage.input))

    @property
    def _is_part(self) -> bool:
        """Whether a stream did not come to its end: what it told by then is not of all."""
        return self._watch is not None and self.record.end != "completed"

    def _goes_on(self, arrived: UpstreamReply) -> bool:
        """Whether the upstream still works on the answer, whoever waits for it."""
        if self._is_part:
            return bool(arrived.out.body.get("background"))
        return arrived.answer is not None and arrived.answer.get("status") in UNFINISHED_STATUSES

    def _counted(self, told: Usage | None, arrived: UpstreamReply) -> Usage | None:
        """A usage with at least what was said, as far as it came.

        None where nobody knows what was taken: the answer cannot be read, or nothing was said and
        nothing reported, and a model may think long before its first word.
        """
        said = extract_text(arrived.answer) if self._watch is None else self._watch.said()
        out, is_told = arrived.out, told is not None and not self._is_part
        self.record.is_usage_estimated = said is None or bool(said.words) or not is_told
        if said is None or not (said.words or is_told):
            return None
        known = told or Usage(out.plan.size)
        output = round(out.parsed.planner.counter.text(said.words) * said.times)
        return replace(known, output=max(known.output, output))

    def _told(self, arrived: UpstreamReply) -> Mapping[str, Any]:
        """The usage as the upstream has put it."""
        if self._watch is not None:
            return self._watch.usage
        usage = (arrived.answer or {}).get("usage")
        return usage if isinstance(usage, Mapping) else {}
