"""A completion request on its way through the gateway, from its first byte to its actual cost.

    body ─▶ format ─▶ route ─▶ fit ─▶ upstream ─▶ (too long: trim, send again) ─▶ relay the reply

The client's bytes are forwarded unchanged if nothing has to be trimmed, and the upstream's bytes
are relayed unchanged. Errors have the shape that the client's library expects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from brim.errors import ProviderError
from brim.fitting import feedback
from brim.gateway import bodies, errors, headers
from brim.gateway.accounts.keys import Access
from brim.gateway.accounts.reservations import Settlement
from brim.gateway.auth import check_model, find_end_user
from brim.gateway.billing import ChargeStatus, RequestBilling
from brim.gateway.bodies import check_conversation, detect_format, match_model_path
from brim.gateway.errors import GatewayError
from brim.gateway.exchange import FIRST_ERROR_STATUS, Exchange, UpstreamReply
from brim.gateway.fit_request import ClientRequest
from brim.gateway.forward import Forwarder
from brim.gateway.handler import JSON, RequestHandler, printable_name
from brim.gateway.headers import parse_options
from brim.gateway.limits import LARGE_BODY_BYTES
from brim.gateway.model_route import ModelRoute
from brim.gateway.rate_headers import replace_rate_headers
from brim.gateway.records import TRACEPARENT, TraceContext
from brim.gateway.stream_monitor import StreamMonitor, extract_text
from brim.gateway.usage_lookup import LostReply
from brim.models.pricing import Usage, cost
from brim.providers.http_connection import Header
from brim.wire.formats import EMBEDDINGS, GEMINI
from brim.wire.reply import parse_reported_cost, parse_usage
from brim.wire.reply_parser import find_error_object

UNFINISHED_STATUSES: Final = ("queued", "in_progress")
"""Statuses of a response that is made in the background."""


class CompletionHandler(RequestHandler):
    """Handles one request for a model's reply."""

    _forwarder: Forwarder | None = None
    _reply: UpstreamReply | None = None
    _monitor: StreamMonitor | None = None
    _billing: RequestBilling | None = None
    _looked_up: tuple[ModelRoute, Mapping[str, Any]] | None = None
    """The usage that the provider has recorded for a reply that did not arrive."""
    recall_hint = ""
    """What notes say about reading what was trimmed."""

    def close(self) -> None:
        super().close()
        monitor = self._monitor
        if self.record.end == "client_disconnected" and monitor is not None and monitor.is_ended:
            self.record.end = "completed"  # the client got everything and disconnected first
        if self._reply is not None:
            self._reply.response.close()

    def settle(self) -> Settlement | None:
        status: ChargeStatus = "nothing"
        if self._looked_up is not None:
            status = self._record_looked_up(*self._looked_up)
        elif self._reply is not None:
            status = self._record_usage(self._reply)
        elif self._forwarder is not None and self._forwarder.exchange.in_flight is not None:
            # The client did not wait for the reply, but the upstream has the prompt.
            route, out = self._forwarder.exchange.in_flight
            self.record.is_usage_estimated = True
            self._record_cost(route, Usage(out.plan.size), {})
            if self._forwarder.exchange.lost is not None:
                status = "unknown"
        return None if self._billing is None else self._billing.settlement(status)

    def find_lost_reply(self) -> LostReply | None:
        """Return the reply whose usage did not arrive and can be looked up; None if none is."""
        reply, monitor = self._reply, self._monitor
        if reply is None:
            return None if self._forwarder is None else self._forwarder.exchange.lost
        if monitor is None or not self._is_partial:
            return None
        return LostReply.of(reply.route, reply.request, monitor.beginning)

    async def look_up_usage(self, lost: LostReply) -> None:
        """Ask the provider for the usage of a reply that did not arrive."""
        assert self._forwarder is not None
        headers = self._forwarder.exchange.query_headers(lost.route)
        usage = await lost.look_up(headers)
        if usage is not None and parse_usage({"usage": usage}) is not None:
            self._looked_up = lost.route, usage

    @property
    def is_urgent(self) -> bool:
        """Whether to settle immediately: the first reports calibrate the estimates."""
        if self._reply is None or not self._reply.route.is_calibrating:
            return False
        out = self._reply.request
        return feedback.is_informative(out.plan, out.parsed.planner.counter)

    async def answer(self) -> None:
        forwarder = self._forwarder = await self._read_request()
        self._listen_soon()
        if forwarder.exchange.is_dry_run:
            await self._show_plan(forwarder)
        else:
            self._reply = await forwarder.send()
            await self._relay(self._reply)

    async def _read_request(self) -> Forwarder:
        services, record, client_headers = self.services, self.record, self.client_headers
        if services.traces:
            record.trace = TraceContext.of(client_headers.by_name.get(TRACEPARENT))
        access = await self._authenticate()
        if access is not None:
            self._billing = RequestBilling(services.accounts, access, record)
        raw = await self._read_body()
        options = parse_options(client_headers.options)
        is_large = len(raw) >= LARGE_BODY_BYTES
        run = services.workers.run
        body = await run(bodies.parse_body, raw) if is_large else bodies.parse_body(raw)
        self.format = detect_format(self.format, body)
        path = match_model_path(self.record.path) if self.format is GEMINI else None
        request = ClientRequest(body, raw, self.format, path)
        record.format, record.streamed = self.format.name, request.is_stream
        self._record_model(request.model, access)
        check_conversation(self.format, body)
        if self._billing is not None and access is not None:
            header = services.accounts.user_header
            named = access.user or find_end_user(body, client_headers.by_name, header)
            self._billing.user = named
        if path is not None and path.is_stream and "alt=sse" not in self._query:
            message = "Streams are sent as events only. Add `?alt=sse` to the path."
            raise GatewayError(400, "invalid_request", message, param="alt")
        exchange = Exchange(
            services,
            record,
            options,
            client_headers,
            self._billing,
            self._query,
            self.format,
            request.is_stream,
            self.recall_hint,
        )
        return Forwarder(services.routes, record, client_headers, request, exchange)

    def _record_model(self, given: object, access: Access | None) -> None:
        """Record the model, by its own name. Raise `GatewayError` if the key must not use it."""
        name = given if isinstance(given, str) else ""
        model = self.services.routes.resolve(name)
        self.record.model = printable_name(model)
        self.record.alias = printable_name(name) if model != name else None
        if access is not None:
            check_model(access, name, model)

    # Back to the client

    async def _relay(self, reply: UpstreamReply) -> None:
        response, record = reply.response, self.record
        own = headers.build_brim_headers(record)
        passed = headers.filter_response_headers(response.raw_headers)
        if self._billing is not None and self._billing.rate_uses:
            passed = replace_rate_headers(passed, self.format, self._billing.rate_uses)
        sent = passed + own
        if reply.is_stream:
            await self._relay_stream(reply, sent)
        else:
            record.end = "completed" if response.status < FIRST_ERROR_STATUS else "rejected"
            await self._send_whole(response.status, sent, reply.raw)

    async def _relay_stream(self, reply: UpstreamReply, sent: list[Header]) -> None:
        """Relay events as they come, and add an error event if the stream breaks off."""
        connection = reply.route.upstream.api(self.format).connection
        monitor = self._monitor = StreamMonitor(
            connection.endpoint, hides_usage=reply.request.hides_usage
        )
        await self._send_start(reply.response.status, sent)
        piece = reply.raw
        try:
            while True:
                if passed := monitor.feed(piece):
                    await self._send_piece(passed)
                piece = await connection.read_chunk(reply.response)
                if not piece:
                    break
        except ProviderError as error:
            await self._break_off(error)
            return
        rest = monitor.finish()
        if monitor.error is None and not monitor.is_ended:
            host = connection.endpoint.host
            await self._break_off(
                ProviderError(f"{host} closed the stream before it was complete.")
            )
            return
        self.record.end = "completed" if monitor.error is None else "upstream_failed"
        await self._send_piece(rest, more=False)

    async def _break_off(self, error: ProviderError) -> None:
        shown = errors.to_gateway_error(self.format, error)
        self.record.end, self.record.code = "upstream_failed", shown.code
        await self._send_piece(shown.event(self.format), more=False)

    async def _show_plan(self, forwarder: Forwarder) -> None:
        """Answer a dry run: what would be sent, and why."""
        record = self.record
        record.dry_run = True
        out = await forwarder.fit()
        record.end = "completed"
        shown = {"object": "brim.plan", **record.to_dict(), **record.decisions(), "body": out.body}
        await self._send_whole(
            200, [JSON, *headers.build_brim_headers(record)], bodies.serialize(shown)
        )

    # Usage and cost

    def _record_usage(self, reply: UpstreamReply) -> ChargeStatus:
        """Record the usage of a reply: as the upstream reports it, or by brim's own count."""
        if not reply.is_answer:
            return "nothing"
        fields, route, out = self._usage_fields(reply), reply.route, reply.request
        usage = parse_usage({"usage": fields}) if fields else None
        if usage is None and reply.body is not None and find_error_object(reply.body) is not None:
            return "nothing"  # an error with a success status
        is_embedding = self.format is EMBEDDINGS
        if usage is not None and out.is_whole and not is_embedding:
            route.record_report(out, usage.input)
        status: ChargeStatus = "unknown" if self._continues(reply) else "known"
        if usage is None or not (usage.output or is_embedding) or self._is_partial:
            counted = self._count_usage(usage, reply)
            status = "unknown" if counted is None else status
            usage = counted or usage or Usage(out.plan.size)
        self._record_cost(route, usage, fields)
        return status

    def _record_looked_up(self, route: ModelRoute, fields: Mapping[str, Any]) -> ChargeStatus:
        usage = parse_usage({"usage": fields})
        assert usage is not None
        self._record_cost(route, usage, fields)
        return "known"

    def _record_cost(self, route: ModelRoute, usage: Usage, fields: Mapping[str, Any]) -> None:
        record = self.record
        record.usage, record.cost = usage, parse_reported_cost({"usage": fields})
        if record.cost is None:
            record.cost = cost(usage, route.profile.price_for(usage.input))

    @property
    def _is_partial(self) -> bool:
        """Whether a stream is incomplete, so that its usage is too."""
        return self._monitor is not None and self.record.end != "completed"

    def _continues(self, reply: UpstreamReply) -> bool:
        """Return whether the upstream still works on the response, without a client."""
        if self._is_partial:
            return bool(reply.request.body.get("background"))
        return reply.body is not None and reply.body.get("status") in UNFINISHED_STATUSES

    def _count_usage(self, reported: Usage | None, reply: UpstreamReply) -> Usage | None:
        """Return a usage with at least the tokens of the text that came.

        None if the usage is unknown: the reply cannot be parsed, or there is neither text nor a
        report, and a model may think for long before its first word.
        """
        monitor, out = self._monitor, reply.request
        text = extract_text(reply.body) if monitor is None else monitor.extract_text()
        is_reported = reported is not None and not self._is_partial
        self.record.is_usage_estimated = text is None or bool(text.text) or not is_reported
        if text is None or not (text.text or is_reported):
            return None
        known = reported or Usage(out.plan.size)
        output = round(out.parsed.planner.counter.text(text.text) * text.scale)
        return replace(known, output=max(known.output, output))

    def _usage_fields(self, reply: UpstreamReply) -> Mapping[str, Any]:
        """Return the usage as the upstream reports it."""
        if self._monitor is not None:
            return self._monitor.usage
        body = reply.body or {}
        usage = body.get("usage", body.get("usageMetadata"))
        return usage if isinstance(usage, Mapping) else {}
