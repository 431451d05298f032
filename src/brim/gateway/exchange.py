"""A client's request at one upstream: fit it, send it, and wait for the reply to begin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeVar, TypeVarTuple

from brim.errors import ContextOverflowError, Overflow, ProviderError
from brim.fitting.flow import CountJob
from brim.fitting.plan import get_overflow_plan
from brim.fitting.policies import OFF
from brim.gateway import bodies, headers
from brim.gateway.billing import RequestBilling
from brim.gateway.dropped_messages import RETRIEVE_HINT
from brim.gateway.fit_request import BodyAdditions, ClientRequest, FittedRequest, RequestFit
from brim.gateway.handler import Services
from brim.gateway.headers import ClientHeaders, RequestOptions
from brim.gateway.limits import LARGE_BODY_BYTES
from brim.gateway.model_route import ModelRoute, RejectedRequest
from brim.gateway.records import TRACEPARENT, RequestRecord
from brim.gateway.stream_monitor import StreamOpening, classify_error
from brim.gateway.usage_lookup import LostReply
from brim.providers.errors import is_template_rejection, redact_key
from brim.providers.http_connection import Response, SendState
from brim.providers.transport import MAX_ERROR_BYTES, Transport
from brim.wire.formats import EMBEDDINGS, BodyFormat, find_reply_limit, min_reply_tokens
from brim.wire.overflow import parse_overflow
from brim.wire.reply_parser import find_error_object

T = TypeVar("T")
Args = TypeVarTuple("Args")

FIRST_ERROR_STATUS: Final = 300
"""A response with this status or a higher one is not a model's reply."""
MAX_HOLD_SECONDS: Final = 5.0
"""The longest time for which a stream is held back to rule out a context-length error."""

Fitted = tuple[ModelRoute, FittedRequest]
ExchangeState = tuple[int, Fitted | None, Fitted | None]
"""How often a request was sent again, what is in flight, and what was fitted last."""


class UpstreamReply(NamedTuple):
    """An upstream's response, as far as it has to be read before it is relayed."""

    route: ModelRoute
    request: FittedRequest
    response: Response
    raw: bytes
    """The whole body, or the beginning of a stream."""
    body: Mapping[str, Any] | None = None
    """The content of a whole body, if it is JSON."""
    is_stream: bool = False
    overflow: Overflow | None = None
    """The context-length error in the response."""
    is_overloaded: bool = False
    """Whether a response with a success status says that the upstream cannot answer now."""

    @contextmanager
    def closing_on_error(self) -> Iterator[None]:
        """Close the response if the block raises."""
        try:
            yield
        except BaseException:
            self.response.close()
            raise

    @property
    def is_template_rejection(self) -> bool:
        """Whether the chat template rejects the conversation, and its shape can change."""
        if self.overflow is not None or not self.request.can_adapt:
            return False
        return is_template_rejection(self.response.status, self.raw.decode("utf-8", "replace"))

    @property
    def is_answer(self) -> bool:
        """Whether the model has answered."""
        if self.response.status >= FIRST_ERROR_STATUS:
            return False
        return self.overflow is None and not self.is_overloaded


@dataclass(slots=True)
class Exchange:
    """Sends one request to upstreams, one after the other."""

    _services: Services
    _record: RequestRecord
    _options: RequestOptions
    _headers: ClientHeaders
    _billing: RequestBilling | None
    _query: str
    _format: BodyFormat
    _is_stream: bool = False
    _recall_hint: str = ""
    primary: ModelRoute | None = None
    """The first route of the requested model: the client's own key is meant for it."""
    in_flight: Fitted | None = None
    """A request that was sent and not answered yet; it costs even if the client is gone."""
    lost: LostReply | None = None
    """A response that had begun when the client disconnected, if its usage can be looked up."""
    _fitted: Fitted | None = None
    """The last request that was fitted."""
    _opening: StreamOpening | None = None
    """The stream that is held back."""

    @property
    def is_dry_run(self) -> bool:
        return self._options.fitting == "dry-run"

    def restore(self, before: ExchangeState) -> None:
        """Take back what later attempts have recorded, because none of them succeeded."""
        self._record.resent, self.in_flight, fitted = before
        if fitted is not None:
            self._record_plan(*fitted)

    @property
    def state(self) -> ExchangeState:
        return self._record.resent, self.in_flight, self._fitted

    async def send(self, route: ModelRoute, request: ClientRequest) -> UpstreamReply:
        """Send a request, and once more, trimmed further, after a context-length error.

        If its template rejects the conversation, it is adapted and sent again too.
        """
        request = rename_model(request, route)
        out = await self.fit(route, request)
        # A rejected request should not make the gateway connect.
        is_next = route.upstream.api(self._format).connection.has_idle_connection
        await self._reserve(route, out, is_next=is_next)
        reply = await self._send_fitted(route, out)
        if reply.is_template_rejection:
            reply = await self._adapt(route, request, reply)
            out = reply.request
        if reply.overflow is None or not out.can_shrink:
            return reply
        with reply.closing_on_error():
            smaller = await self._shrink(route, request, out, reply.overflow)
            if smaller is not None:
                await self._reserve(route, smaller)  # its answer may be longer
        if smaller is None:
            return reply
        reply.response.close()
        self._record.resent += 1
        again = await self._send_fitted(route, smaller)
        if again.overflow is not None:
            route.record_rejection(smaller, again.overflow)
        return again

    async def _adapt(
        self, route: ModelRoute, request: ClientRequest, rejected: UpstreamReply
    ) -> UpstreamReply:
        """Send a request in the shape that its template accepts; return the first reply if none."""
        with rejected.closing_on_error():
            adapted = await route.adapt_template(request.body, self.query_headers(route))
            if adapted is None:
                return rejected
            out = await self.fit(route, request, adapted)
            await self._reserve(route, out)
        rejected.response.close()
        self._record.resent += 1
        return await self._send_fitted(route, out)

    async def _shrink(
        self, route: ModelRoute, request: ClientRequest, out: FittedRequest, overflow: Overflow
    ) -> FittedRequest | None:
        """Return a smaller request after a context-length error; None if nothing can be dropped."""
        rejected = route.record_rejection(out, overflow)
        with suppress(ContextOverflowError):
            smaller = await self.fit(route, request, rejected)
            has_numbers = overflow.limit is not None or overflow.output is not None
            is_shorter = has_numbers or smaller.plan.tokens < out.plan.tokens
            if smaller.raw != out.raw and is_shorter:
                return smaller
        self._record_plan(route, out)
        return None

    async def fit(
        self, route: ModelRoute, request: ClientRequest, rejected: RejectedRequest | None = None
    ) -> FittedRequest:
        """Return what goes to the upstream; `rejected` is what it reported of a first try."""
        await route.prepare(self.query_headers)
        fit = self._start_fit(route, request, rejected)
        try:
            step = await self._run(fit.step, is_large=len(request.raw) >= LARGE_BODY_BYTES)
            while isinstance(step, CountJob):
                counter = route.upstream.api(request.format).counter
                named = {**step.body, "model": route.name} if request.path else step.body
                tokens = await counter.count(named, self.query_headers(route))
                step = await self._run(fit.step, tokens, is_large=True)
        except ContextOverflowError as error:
            plan = get_overflow_plan(error)
            self._record.set_plan(plan, is_window_known=not route.is_guessed, is_whole=True)
            raise
        finally:
            fit.close()
        self._record_plan(route, step)
        if (dropped := self._services.dropped) is not None and step.plan.is_trimmed:
            key, is_large = self._record.key, len(request.raw) >= LARGE_BODY_BYTES
            self._record.retrieve_id = await self._run(
                dropped.add, key, step.plan, is_large=is_large
            )
        return step

    def _start_fit(
        self, route: ModelRoute, request: ClientRequest, rejected: RejectedRequest | None
    ) -> RequestFit:
        additions, marks = route.additions, self._options.cache_marks
        if marks is not None:
            additions = additions._replace(cache_marks=marks)
        if self._billing is not None and self._billing.is_capped:
            self._billing.check(request)
            api = route.upstream.api(request.format)
            reply_key = api.reply_key if request.format.reply_keys else None
            additions = BodyAdditions(additions.cache_marks, additions.stream_usage, reply_key)
        policy = self._options.policy or route.policy
        if self._options.fitting == "off" or request.format is EMBEDDINGS:
            policy = OFF.name
        least = min_reply_tokens(request.body)
        limit = find_reply_limit(request.body, request.format)
        if rejected is None:
            fitter, measurement, plan = route.fitter(policy, least, limit), None, None
        else:
            fitter = route.fitter_for(rejected.profile, policy, least, limit)
            measurement, plan = rejected.measurement, rejected.plan
        if hint := self._find_hint():
            fitter = replace(fitter, recall_hint=hint)
        return RequestFit(fitter, request, additions, route.count, measurement, plan)

    def _find_hint(self) -> str:
        """Return what notes say about reading what was trimmed."""
        if self._services.dropped is None:
            return self._recall_hint
        return "; ".join(filter(None, (self._recall_hint, RETRIEVE_HINT)))

    async def _run(self, work: Callable[[*Args], T], *args: *Args, is_large: bool) -> T:
        return await self._services.workers.run(work, *args) if is_large else work(*args)

    def _record_plan(self, route: ModelRoute, out: FittedRequest) -> None:
        self._fitted = route, out
        self._record.upstream = route.upstream.name
        self._record.set_plan(out.plan, is_window_known=not route.is_guessed, is_whole=out.is_whole)

    def query_headers(self, route: ModelRoute) -> dict[str, str]:
        """Return the client's headers for a request that brim itself makes to an upstream."""
        own = route.upstream.api(self._format).headers
        return headers.build_query_headers(
            self._headers, own, drop_credentials=self.drops_key(route)
        )

    def drops_key(self, route: ModelRoute) -> bool:
        """Return whether the client's key is not for this upstream: another one, or with a key."""
        is_other = route.upstream.has_credentials or route is not self.primary
        return is_other or self._services.accounts.requires_keys

    async def _send_fitted(self, route: ModelRoute, out: FittedRequest) -> UpstreamReply:
        api = route.upstream.api(self._format)
        connection, drops_key = api.connection, self.drops_key(route)
        sent = headers.build_forwarded_headers(
            self._headers, api.headers, drop_credentials=drops_key
        )
        if (trace := self._record.trace) is not None:
            sent = headers.set_header(sent, TRACEPARENT, trace.header())
        path, raw = self._address(route, out)
        response: Response | None = None
        sending = SendState(None if self._billing is None else self._billing.mark_sent)
        self.in_flight, self._opening = (route, out), None
        try:
            response = await connection.open("POST", path, raw, sent, sending)
            reply = await self._read_beginning(route, out, response)
        except BaseException as error:
            if response is not None:
                response.close()
            if isinstance(error, asyncio.CancelledError) and self._opening is not None:
                self.lost = LostReply.of(route, out, self._opening.held)
            if self.lost is None:
                self._abandon(sending)
            raise
        self.in_flight = None
        return reply

    def _address(self, route: ModelRoute, out: FittedRequest) -> tuple[str, bytes]:
        """Return the path and the bytes of a request to a route."""
        hosted, raw = route.upstream.hosted[self._format.name], out.raw
        if hosted is None:
            endpoint = route.upstream.api(self._format).connection.endpoint
            path = endpoint.request_path(self._format, route.name, stream=self._is_stream)
        else:
            path = hosted.request_path(route.name, stream=self._is_stream)
            raw = hosted.convert(out.body, raw)
        if not self._query:
            return path, raw
        return f"{path}{'&' if '?' in path else '?'}{self._query}", raw

    async def _reserve(
        self, route: ModelRoute, out: FittedRequest, *, is_next: bool = False
    ) -> None:
        """Reserve the maximum cost of a request if its key is billed; if `is_next`, when sent."""
        if self._billing is not None:
            await self._billing.reserve(route, out, is_next=is_next)

    def _abandon(self, sending: SendState) -> None:
        """Give up on a request; an upstream that got it may charge for it all the same."""
        if not sending.is_sent:
            self.in_flight = None
        elif self.in_flight is not None and self._billing is not None:
            self._billing.mark_unknown()

    async def _read_beginning(
        self, route: ModelRoute, out: FittedRequest, response: Response
    ) -> UpstreamReply:
        connection = route.upstream.api(self._format).connection
        if response.status < 200:
            host, status = connection.endpoint.host, response.status
            raise ProviderError(f"{host} answered with the unexpected status {status}.")
        if response.status >= FIRST_ERROR_STATUS:
            self.in_flight = None
            reject_redirect(connection, response)
            raw = await connection.read_all(response, limit=MAX_ERROR_BYTES, truncate=True)
            overflow = parse_overflow(response.status, raw)
            raw = redact_key(connection.endpoint, raw)
            return UpstreamReply(route, out, response, raw, overflow=overflow)
        if response.content_type == "text/event-stream":
            opening = self._opening = StreamOpening(connection.endpoint)
            await _read_opening(connection, response, opening)
            raw, overflow, overloaded = opening.held, opening.overflow, opening.is_overloaded
            return UpstreamReply(route, out, response, raw, None, True, overflow, overloaded)
        raw = await connection.read_all(response)
        body = await self._run(bodies.parse_object, raw, is_large=len(raw) >= LARGE_BODY_BYTES)
        if body is not None and find_error_object(body) is None:
            return UpstreamReply(route, out, response, raw, body)
        overflow, overloaded = classify_error(connection.endpoint, body or {})
        raw = redact_key(connection.endpoint, raw)
        return UpstreamReply(route, out, response, raw, body, False, overflow, overloaded)


def rename_model(request: ClientRequest, route: ModelRoute) -> ClientRequest:
    """Return a request for a route: an alias, a fallback or the upstream has another name."""
    is_named = request.path is not None or request.body.get("model") == route.name
    if not route.name or is_named:
        return request
    body = {**request.body, "model": route.name}
    return request._replace(body=body, raw=bodies.serialize(body))


def reject_redirect(connection: Transport, response: Response) -> None:
    """Raise `ProviderError` for a redirect: a client that follows it would bypass the gateway."""
    if 300 <= response.status < 400 and any(
        name.lower() == b"location" for name, _ in response.raw_headers
    ):
        raise ProviderError(
            f"{connection.endpoint.host} redirects to another address (status {response.status}), "
            "which brim does not follow. Set the endpoint of this upstream to the final address."
        )


async def _read_opening(connection: Transport, response: Response, opening: StreamOpening) -> None:
    """Read a stream until a context-length error is ruled out, or for `MAX_HOLD_SECONDS`."""
    clock = asyncio.get_running_loop().time
    try:
        async with asyncio.timeout(None) as bound:
            while not opening.is_over:
                piece = await connection.read_chunk(response)
                if not piece:
                    host = connection.endpoint.host
                    raise ProviderError(f"{host} closed the stream before its first event.")
                if bound.when() is None:
                    bound.reschedule(clock() + MAX_HOLD_SECONDS)
                opening.feed(piece)
    except TimeoutError:
        if not bound.expired():
            raise
