"""Delivery: a client's request, fitted and brought to its upstream, until an answer begins."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from brim import wire
from brim.errors import ProviderError
from brim.gateway import bodies, heads
from brim.gateway.faults import FaultError
from brim.gateway.fitting import Extras, Fitting
from brim.gateway.watching import Opening
from brim.overflow import overflow_of
from brim.planning import CountJob
from brim.policies import OFF
from brim.providers.faults import PASSING, refusal_in
from brim.providers.transport import LARGEST_ERROR

if TYPE_CHECKING:
    import aiohttp

    from brim.gateway.app import Gateway
    from brim.gateway.fitting import Asked, Outgoing
    from brim.gateway.heads import Head
    from brim.gateway.lanes import Lane
    from brim.gateway.records import Record
    from brim.gateway.wishes import Wishes
    from brim.overflow import Overflow
    from brim.planning import Reported
    from brim.providers.endpoint import Endpoint
    from brim.providers.transport import Connection

SHORTEST_KEY: Final = 5
"""What is not longer is no secret, and may be a word."""
HELD_SECONDS: Final = 5.0
"""A stream that has begun is held back no longer than this for a refusal that may still come."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """An upstream's answer, as far as it had to be read before it is passed on."""

    lane: Lane
    out: Outgoing
    response: aiohttp.ClientResponse
    raw: bytes
    """All of it, or the beginning of a stream."""
    answer: Mapping[str, Any] | None = None
    """What a whole answer holds, if that could be read."""
    is_stream: bool = False
    overflow: Overflow | None = None
    """It says that the request is too long."""

    @property
    def failed(self) -> bool:
        """Whether another upstream may do better."""
        return self.response.status in PASSING and self.overflow is None


class Delivery:
    """Brings one request to an upstream that answers it."""

    def __init__(
        self, gateway: Gateway, record: Record, asked: Asked, wishes: Wishes, given: list[Head]
    ) -> None:
        self._gateway = gateway
        self._record = record
        self.asked = asked
        self._wishes = wishes
        self._heads = given

    @property
    def is_dry_run(self) -> bool:
        return self._wishes.fitting == "dry-run"

    def lane(self) -> Lane:
        """The lane of the model that is asked for."""
        return self._gateway.lanes.find(self.asked.body.get("model"), self.asked.form)

    async def answer(self, query: str) -> Arrived:
        """What the model's upstream answers or, where that fails, the one that stands in for it."""
        lane = self.lane()
        try:
            arrived = await self._attempt(lane, self.asked, query)
        except ProviderError:
            other = self._stand_in(lane)
            if other is None:
                raise
        else:
            other = self._stand_in(lane) if arrived.failed else None
            if other is None:
                return arrived
            arrived.response.close()
        self._record.fallback = other.model
        body = {**self.asked.body, "model": other.model}
        asked = replace(self.asked, body=body, raw=bodies.written(body))
        return await self._attempt(other, asked, query)

    def _stand_in(self, lane: Lane) -> Lane | None:
        name = lane.upstream.config.fallback
        if name is None or name == lane.model:
            return None
        with suppress(FaultError):
            return self._gateway.lanes.find(name, self.asked.form)
        return None

    async def _attempt(self, lane: Lane, asked: Asked, query: str) -> Arrived:
        """Send a request, and once more, smaller, if the upstream says that it is too long."""
        out = await self.fitted(lane, asked)
        arrived = await self._sent(lane, out, query)
        if arrived.overflow is None or not out.may_shrink:
            return arrived
        arrived.response.close()
        reported = lane.refuse(out.plan, arrived.overflow)
        self._record.resent += 1
        out = await self.fitted(lane, asked, reported)
        again = await self._sent(lane, out, query)
        if again.overflow is not None:
            lane.refuse(out.plan, again.overflow)
        return again

    async def fitted(self, lane: Lane, asked: Asked, reported: Reported | None = None) -> Outgoing:
        """What goes to the upstream; `reported` is what it said of a first try."""
        await lane.prepare()
        self._record.upstream = lane.upstream.name
        config, marks = lane.upstream.config, self._wishes.cache_marks
        extras = Extras(config.cache_marks if marks is None else marks, config.stream_usage)
        fitter = lane.fitter(self._policy(lane), wire.least_reply(asked.body))
        fitting = Fitting(fitter, asked, extras, lane.ask, reported)
        apart, size = self._gateway.apart, len(asked.raw)
        try:
            step = await apart(size, fitting.step)
            while isinstance(step, CountJob):
                tokens = await lane.upstream.counter(asked.form).count(step.body)
                step = await apart(size, fitting.step, tokens)
        finally:
            fitting.close()
        self._record.planned(step.plan, is_known=not lane.is_guessed, is_whole=step.is_whole)
        return step

    def _policy(self, lane: Lane) -> str:
        if self._wishes.fitting == "off":
            return OFF.name
        return self._wishes.policy or lane.policy

    async def _sent(self, lane: Lane, out: Outgoing, query: str) -> Arrived:
        form = self.asked.form
        connection = lane.upstream.connection(form)
        endpoint = connection.endpoint
        # A client's own key is for the upstream that it asked for, not for one that stands in.
        keyless = endpoint.key is not None or self._record.fallback is not None
        sent = heads.onward(self._heads, lane.upstream.headers(form), keyless=keyless)
        path = f"{endpoint.chat_path}?{query}" if query else endpoint.chat_path
        response = await connection.opened("POST", path, out.raw, sent)
        try:
            return await self._begun(lane, out, response)
        except BaseException:
            response.close()
            raise

    async def _begun(self, lane: Lane, out: Outgoing, response: aiohttp.ClientResponse) -> Arrived:
        connection = lane.upstream.connection(self.asked.form)
        if response.status < 200:  # a switch to another protocol, for which nobody asked
            host, status = connection.endpoint.host, response.status
            raise ProviderError(f"{host} answered with status {status}, which is no answer.")
        if response.status >= 300:
            raw = await connection.whole(response, bound=LARGEST_ERROR, cut=True)
            overflow = overflow_of(response.status, raw)
            raw = _without_key(connection.endpoint, raw)
            return Arrived(lane, out, response, raw, overflow=overflow)
        if response.content_type == "text/event-stream":
            opening = await _opening(connection, response)
            raw, overflow = opening.held, opening.overflow
            return Arrived(lane, out, response, raw, is_stream=True, overflow=overflow)
        raw = await connection.whole(response)
        answer = await self._gateway.apart(len(raw), _answer, raw)
        overflow = _overflow(connection.endpoint, answer)
        return Arrived(lane, out, response, raw, answer, overflow=overflow)


async def _opening(connection: Connection, response: aiohttp.ClientResponse) -> Opening:
    """The beginning of a stream, up to where it is clear that the request was not refused."""
    opening = Opening(connection.endpoint)
    while not opening.is_over:
        try:
            async with asyncio.timeout(HELD_SECONDS if opening.held else None) as bound:
                piece = await connection.piece(response)
        except TimeoutError:
            if bound.expired():
                break
            raise
        if not piece:
            break
        opening.feed(piece)
    return opening


def _without_key(endpoint: Endpoint, raw: bytes) -> bytes:
    """An upstream's error without the key, which some repeat and which is not the client's."""
    key = (endpoint.key or "").encode()
    return raw.replace(key, b"[key]") if len(key) > SHORTEST_KEY else raw


def _answer(raw: bytes) -> Mapping[str, Any] | None:
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _overflow(endpoint: Endpoint, answer: Mapping[str, Any] | None) -> Overflow | None:
    refusal = None if answer is None else refusal_in(endpoint, answer)
    return None if refusal is None else refusal.overflow
