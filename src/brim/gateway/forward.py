"""Delivery: a client's request, fitted and brought to its upstream, until an answer begins."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from brim import wire
from brim.errors import BrimError, ContextOverflowError, ProviderError
from brim.fitting.flow import CountJob
from brim.fitting.plan import get_overflow_plan
from brim.fitting.policies import OFF
from brim.gateway import bodies, headers
from brim.gateway.errors import GatewayError
from brim.gateway.fit_request import BodyAdditions, RequestFit
from brim.gateway.limits import LARGE_BODY_BYTES
from brim.gateway.stream_monitor import StreamOpening, classify_error, mask_secret, secret_of
from brim.providers.errors import RETRYABLE_STATUSES
from brim.providers.http_connection import SendState
from brim.providers.transport import MAX_ERROR_BYTES
from brim.wire.overflow import parse_overflow
from brim.wire.reply_parser import find_error_object

if TYPE_CHECKING:
    from brim.errors import Overflow
    from brim.gateway.billing import RequestBilling
    from brim.gateway.fit_request import ClientRequest, FittedRequest
    from brim.gateway.headers import ClientHeaders, RequestOptions
    from brim.gateway.records import RequestRecord
    from brim.gateway.routes import ModelRoute, RejectedRequest
    from brim.gateway.services import Services
    from brim.providers.http_connection import Response
    from brim.providers.transport import Transport

FIRST_ERROR_STATUS: Final = 300
"""From this status on, whatever comes is no answer of a model."""
MAX_HOLD_SECONDS: Final = 5.0
"""A stream that has begun is held back no longer than this for a refusal that may still come."""

log = logging.getLogger("brim.gateway")


class UpstreamReply(NamedTuple):
    """An upstream's answer, as far as it had to be read before it is passed on."""

    lane: ModelRoute
    out: FittedRequest
    response: Response
    raw: bytes
    """All of it, or the beginning of a stream."""
    answer: Mapping[str, Any] | None = None
    """What a whole answer holds, if that could be read."""
    is_stream: bool = False
    overflow: Overflow | None = None
    """It says that the request is too long."""
    says_not_now: bool = False
    """It says so with a status of success."""

    @property
    def failed(self) -> bool:
        """Whether another upstream may do better."""
        return self.says_not_now or (
            self.response.status in RETRYABLE_STATUSES and self.overflow is None
        )

    @property
    def is_answer(self) -> bool:
        """Whether the model was asked, and answered."""
        if self.response.status >= FIRST_ERROR_STATUS:
            return False
        return self.overflow is None and not self.says_not_now


class Forwarder:
    """Brings one request to an upstream that answers it."""

    def __init__(
        self,
        services: Services,
        record: RequestRecord,
        asked: ClientRequest,
        wishes: RequestOptions,
        given: ClientHeaders,
        charge: RequestBilling | None,
    ) -> None:
        self._services = services
        self._record = record
        self.asked = asked
        self._wishes = wishes
        self._given = given
        self._charge = charge
        self.under_way: tuple[ModelRoute, FittedRequest] | None = None
        """What an upstream has been sent and has not answered yet; it costs, whoever waits."""
        self._fitted: tuple[ModelRoute, FittedRequest] | None = None
        """What was made ready last."""

    @property
    def is_dry_run(self) -> bool:
        return self._wishes.fitting == "dry-run"

    def lane(self) -> ModelRoute:
        """The lane of the model that is asked for."""
        return self._services.routes.find(self.asked.body.get("model"), self.asked.form)

    async def answer(self, query: str) -> UpstreamReply:
        """What the model's upstream answers or, where that fails, the one that stands in for it."""
        lane = self.lane()
        try:
            first = await self._attempt(lane, self.asked, query)
        except ProviderError:
            stood_in = await self._stood_in(lane, query)
            if stood_in is None:
                raise
            return stood_in
        if not first.failed:
            return first
        try:
            stood_in = await self._stood_in(lane, query)
        except BaseException:
            first.response.close()
            raise
        if stood_in is None:
            return first
        first.response.close()
        return stood_in

    async def _stood_in(self, lane: ModelRoute, query: str) -> UpstreamReply | None:
        """What the one that stands in answers; None where it cannot, and the first word holds."""
        other = self._stand_in(lane)
        if other is None:
            return None
        record, fitted = self._record, self._fitted
        before = record.resent, self.under_way
        record.fallback = other.model
        body = {**self.asked.body, "model": other.model}
        asked = self.asked._replace(body=body, raw=bodies.serialize(body))
        with suppress(BrimError, GatewayError):
            arrived = await self._attempt(other, asked, query)
            if arrived.is_answer:
                return arrived
            arrived.response.close()
        log.warning("fallback failed", extra={"fields": {"id": record.id, "fallback": other.model}})
        record.fallback, (record.resent, self.under_way) = None, before
        if fitted is not None:
            self._take_down(*fitted)
        return None

    def _stand_in(self, lane: ModelRoute) -> ModelRoute | None:
        name = lane.upstream.config.fallback
        if name is None or name == lane.model:
            return None
        with suppress(GatewayError):
            return self._services.routes.find(name, self.asked.form)
        return None

    async def _attempt(self, lane: ModelRoute, asked: ClientRequest, query: str) -> UpstreamReply:
        """Send a request, and once more, smaller, if the upstream says that it is too long."""
        out = await self.fitted(lane, asked)
        await self._claim(lane, out)
        arrived = await self._sent(lane, out, query)
        if arrived.overflow is None or not out.can_shrink:
            return arrived
        try:
            smaller = await self._smaller(lane, asked, out, arrived.overflow)
            if smaller is not None:
                await self._claim(lane, smaller)  # its answer may be longer
        except BaseException:
            arrived.response.close()
            raise
        if smaller is None:
            return arrived
        arrived.response.close()
        self._record.resent += 1
        again = await self._sent(lane, smaller, query)
        if again.overflow is not None:
            lane.refuse(smaller, again.overflow)
        return again

    async def _smaller(
        self, lane: ModelRoute, asked: ClientRequest, out: FittedRequest, overflow: Overflow
    ) -> FittedRequest | None:
        """What is tried after a refusal; None where nothing can leave, and the refusal stands."""
        refusal = lane.refuse(out, overflow)
        with suppress(ContextOverflowError):
            smaller = await self.fitted(lane, asked, refusal)
            if smaller.raw != out.raw:
                return smaller
        self._take_down(lane, out)
        return None

    async def fitted(
        self, lane: ModelRoute, asked: ClientRequest, refusal: RejectedRequest | None = None
    ) -> FittedRequest:
        """What goes to the upstream; `refusal` is what it said of a first try."""
        await lane.prepare(self._asking)
        extras, marks = lane.extras, self._wishes.cache_marks
        if marks is not None:
            extras = extras._replace(cache_marks=marks)
        if self._charge is not None and self._charge.is_capped:
            self._charge.check(asked.body, asked.form.wire)
            reply_key = lane.upstream.reply_key(asked.form)
            extras = BodyAdditions(extras.cache_marks, extras.stream_usage, reply_key)
        policy, least, reported = self._policy(lane), wire.min_reply_tokens(asked.body), None
        fitter = lane.fitter(policy, least)
        if refusal is not None:
            fitter, reported = lane.fitter_for(refusal.target, policy, least), refusal.reported
        fitting = RequestFit(fitter, asked, extras, lane.ask, reported)
        apart, is_large = self._services.workers.run, len(asked.raw) >= LARGE_BODY_BYTES
        try:
            step = await apart(fitting.step) if is_large else fitting.step()
            while isinstance(step, CountJob):
                counter = lane.upstream.counter(asked.form)
                tokens = await counter.count(step.body, self._asking(lane))
                step = await apart(fitting.step, tokens)
        except ContextOverflowError as error:
            self._record.set_plan(
                get_overflow_plan(error), is_window_known=not lane.is_guessed, is_whole=True
            )
            raise
        finally:
            fitting.close()
        self._take_down(lane, step)
        return step

    def _take_down(self, lane: ModelRoute, out: FittedRequest) -> None:
        self._fitted = lane, out
        self._record.upstream = lane.upstream.name
        self._record.set_plan(out.plan, is_window_known=not lane.is_guessed, is_whole=out.is_whole)

    def _asking(self, lane: ModelRoute) -> dict[str, str]:
        """What a question of brim's own to an upstream carries of the client's headers."""
        own = lane.upstream.headers(self.asked.form)
        return headers.build_query_headers(
            self._given, own, drop_credentials=self._is_keyless(lane)
        )

    def _is_keyless(self, lane: ModelRoute) -> bool:
        """Whether the client's own key is not for this upstream: it has one, or only stands in."""
        is_other = lane.upstream.key is not None or self._record.fallback is not None
        return is_other or self._services.accounts.requires_keys

    def _policy(self, lane: ModelRoute) -> str:
        if self._wishes.fitting == "off":
            return OFF.name
        return self._wishes.policy or lane.policy

    async def _sent(self, lane: ModelRoute, out: FittedRequest, query: str) -> UpstreamReply:
        form = self.asked.form
        connection = lane.upstream.connection(form)
        own, keyless = lane.upstream.headers(form), self._is_keyless(lane)
        sent = headers.build_forwarded_headers(self._given, own, drop_credentials=keyless)
        path = connection.endpoint.chat_path
        response: Response | None = None
        sending = SendState(None if self._charge is None else self._charge.mark_sent)
        self.under_way = lane, out
        try:
            response = await connection.open(
                "POST", f"{path}?{query}" if query else path, out.raw, sent, sending
            )
            arrived = await self._begun(lane, out, response)
        except BaseException:
            if response is not None:
                response.close()
            self._give_up(sending)
            raise
        self.under_way = None
        return arrived

    async def _claim(self, lane: ModelRoute, out: FittedRequest) -> None:
        """Set aside what a request may come to, where somebody has to pay for it."""
        if self._charge is not None:
            at_once = lane.upstream.connection(self.asked.form).has_idle_connection
            await self._charge.reserve(lane, out, is_sent=at_once)

    def _give_up(self, sending: SendState) -> None:
        """An upstream that was sent it may have done its work, though nobody knows of it."""
        if not sending.is_sent:
            self.under_way = None
        elif self.under_way is not None and self._charge is not None:
            self._charge.mark_unknown()

    async def _begun(
        self, lane: ModelRoute, out: FittedRequest, response: Response
    ) -> UpstreamReply:
        connection = lane.upstream.connection(self.asked.form)
        if response.status < 200:  # a switch to another protocol, for which nobody asked
            host, status = connection.endpoint.host, response.status
            raise ProviderError(f"{host} answered with status {status}, which is no answer.")
        secret = secret_of(connection.endpoint)
        if response.status >= FIRST_ERROR_STATUS:
            self.under_way = None
            raw = await connection.read_all(response, limit=MAX_ERROR_BYTES, truncate=True)
            overflow = parse_overflow(response.status, raw)
            return UpstreamReply(lane, out, response, mask_secret(raw, secret), overflow=overflow)
        if response.content_type == "text/event-stream":
            opening = await _read_opening(connection, response)
            raw, overflow, failed = opening.held, opening.overflow, opening.failed
            return UpstreamReply(lane, out, response, raw, None, True, overflow, failed)
        raw = await connection.read_all(response)
        is_large = len(raw) >= LARGE_BODY_BYTES
        run = self._services.workers.run
        answer = await run(_parse_reply, raw) if is_large else _parse_reply(raw)
        if answer is not None and find_error_object(answer) is None:
            return UpstreamReply(lane, out, response, raw, answer)
        overflow, failed = classify_error(connection.endpoint, answer or {})
        raw = mask_secret(raw, secret)
        return UpstreamReply(lane, out, response, raw, answer, False, overflow, failed)


async def _read_opening(connection: Transport, response: Response) -> StreamOpening:
    """The beginning of a stream, up to where it is clear that the request was not refused.

    Whatever comes, its first byte is not held for longer than `HELD_SECONDS`.
    """
    opening = StreamOpening(connection.endpoint)
    clock = asyncio.get_running_loop().time
    try:
        async with asyncio.timeout(None) as bound:
            while not opening.is_over:
                piece = await connection.read_chunk(response)
                if not piece:
                    raise ProviderError(
                        f"{connection.endpoint.host} ended before it said anything."
                    )
                if bound.when() is None:
                    bound.reschedule(clock() + MAX_HOLD_SECONDS)
                opening.feed(piece)
    except TimeoutError:
        if not bound.expired():
            raise
    return opening


def _parse_reply(raw: bytes) -> Mapping[str, Any] | None:
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None
