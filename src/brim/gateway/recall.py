"""`brim-recall: on`: the gateway offers the tool `recall` and answers its calls itself.

Each reply that consists of such calls alone is followed by another request, with the results. Every
one of these requests is authenticated, counted, priced, capped and recorded like any other. The
client gets one reply, without the calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.types import Message, Receive, Scope, Send

from brim.fitting.plan import Plan
from brim.gateway import bodies
from brim.gateway.bodies import detect_format
from brim.gateway.completion import CompletionHandler
from brim.gateway.errors import GatewayError
from brim.gateway.exchange import FIRST_ERROR_STATUS
from brim.gateway.gateway import Gateway
from brim.gateway.handler import SEND_BUFFER_BYTES
from brim.gateway.limits import LARGE_BODY_BYTES
from brim.providers.sse import EventParser, ServerSentEvent
from brim.session.recall import (
    MAX_RECALLS,
    RECALL,
    RECALL_HINT,
    RECALL_TOOL,
    RecallAnswerer,
    check_tool_names,
    is_recall_forced,
)
from brim.wire.formats import FORMATS, BodyFormat, read_tools
from brim.wire.hidden_calls import CallHider, add_tool, continue_body, create_hider
from brim.wire.reply_parser import find_error_object, parse_reply
from brim.wire.streams import StreamAccumulator

BODY: Final = "http.response.body"
_ONCE: Final = (b"idempotency-key",)
"""Headers that are about the first request only."""


class RecallRound(CompletionHandler):
    """One of the requests that answer a client's request."""

    given: bytes | None = None
    """The body, if it is not the client's."""
    body: Mapping[str, Any] | None = None
    """The body with the tool; None if it is not offered."""

    async def _read_body(self) -> bytes:
        if self.given is not None:
            self.services.limits.check_room(len(self.services.running) - 1)
            self.body, self.recall_hint = bodies.parse_body(self.given), RECALL_HINT
            return self.given
        raw = await super()._read_body()
        run, is_large = self.services.workers.run, len(raw) >= LARGE_BODY_BYTES
        return await run(self._offer, raw) if is_large else self._offer(raw)

    def _offer(self, raw: bytes) -> bytes:
        """Return a body with the tool, if its calls can be answered."""
        body = bodies.parse_body(raw)
        format = detect_format(self.format, body)
        if not _can_offer(body, format):
            return raw
        check_tool_names(tool for tool in read_tools(body) if isinstance(tool, Mapping))
        self.body, self.recall_hint = add_tool(body, format, RECALL_TOOL), RECALL_HINT
        return bodies.serialize(self.body)


def _can_offer(body: Mapping[str, Any], format: BodyFormat) -> bool:
    """Return whether the calls in the replies to a body can be answered."""
    if format.name not in FORMATS or not format.is_fittable(body):
        return False
    messages, tools = body.get(format.messages_key), body.get("tools")
    is_readable = isinstance(messages, list | str) and isinstance(tools, list | None)
    return is_readable and body.get("n") in (None, 1)


class RecallRequest:
    """A client's request, as long as the model recalls something one request after another."""

    def __init__(
        self, gateway: Gateway, format: BodyFormat, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._gateway = gateway
        self._format, self._scope, self._receive, self._send = format, scope, receive, send
        self._hider: CallHider | None = None
        self._has_begun = False
        """Whether the client has got the beginning of a stream."""

    async def run(self) -> None:
        body: bytes | None = None
        for left in reversed(range(MAX_RECALLS)):
            answer = _Answer(self._send, self._hider, has_begun=self._has_begun)
            scope = self._scope if body is None else _without_first_headers(self._scope)
            services = self._gateway.services
            current = RecallRound(services, self._format, scope, self._receive, answer.receive)
            current.given, answer.round, answer.may_continue = body, current, left > 0
            await self._gateway.run(current)
            if not answer.is_continued:
                return
            self._hider, self._has_begun = answer.hider, answer.has_begun
            self._gateway.record_finished()  # settles its cost before the next reservation
            body = await self._build_next(current, answer)

    async def _build_next(self, current: RecallRound, answer: _Answer) -> bytes:
        """Return the next body: with the reply, and the results of its calls."""
        assert current.body is not None
        assert answer.plan is not None
        route = current.services.routes.find(current.record.model, current.format)
        answerer = RecallAnswerer(answer.plan, route.profile.counter().text)
        run = current.services.workers.run
        results = [
            (call, await run(answerer.answer, call)) for call in parse_reply(answer.whole).calls
        ]
        body = continue_body(current.body, current.format, answer.whole, results)
        if is_recall_forced(body.get("tool_choice")):
            del body["tool_choice"]  # the model may answer now
        return bodies.serialize(body)


class _Answer:
    """The response to one of the requests, and what of it goes to the client."""

    round: RecallRound
    may_continue = False
    is_continued = False
    """Whether nothing was sent to end the response, because another request follows."""
    plan: Plan | None = None
    _start: Message
    _events: EventParser | None = None
    """None: the response is not a stream."""

    def __init__(self, send: Send, hider: CallHider | None, *, has_begun: bool) -> None:
        self._send = send
        self.hider = hider
        self.has_begun = has_begun
        self.whole: Mapping[str, Any] = {}
        """The reply as the upstream sent it."""
        self._raw = bytearray()
        self._accumulator = StreamAccumulator()

    async def receive(self, message: Message) -> None:
        """Receive a message of the ASGI response."""
        if message["type"] == "http.response.start":
            await self._begin(message)
        elif self._events is not None:
            await self._pass_events(self._events, message["body"], more=message["more_body"])
        else:
            self._raw += message["body"]
            if not message["more_body"]:
                await self._end_whole(bytes(self._raw))

    async def _begin(self, start: Message) -> None:
        self._start, self.plan = start, self.round.record.plan
        if self.round.body is None or start["status"] >= FIRST_ERROR_STATUS:
            return
        if self.hider is None:
            self.hider = create_hider(self.round.format, RECALL)
        else:
            self.hider.start_reply()
        self.hider.may_continue = self.may_continue
        is_stream = any(
            name == b"content-type" and value.startswith(b"text/event-stream")
            for name, value in start["headers"]
        )
        if is_stream:
            self._events = EventParser()
            if not self.has_begun:
                self.has_begun = True
                await self._send(start)

    # Streams

    async def _pass_events(self, parser: EventParser, raw: bytes, *, more: bool) -> None:
        assert self.hider is not None
        events = parser.feed(raw) if more else [*parser.feed(raw), *parser.finish()]
        shown = b"".join(map(self._hide, events))
        if not more:
            self.is_continued = self.hider.is_continued
            self.whole = self._accumulator.whole
        if shown or not (more or self.is_continued):
            is_last = not (more or self.is_continued)
            await self._send({"type": BODY, "body": shown, "more_body": not is_last})

    def _hide(self, event: ServerSentEvent) -> bytes:
        """Return the bytes to send for an event."""
        assert self.hider is not None
        given = bodies.parse_object(event.data.encode())
        if given is None:  # `[DONE]`
            return b"" if self.hider.is_continued else _write_event(event.name, event.data.encode())
        self._accumulator.add(given)
        shown = self.hider.hide_event(given)
        return b"".join(_write_event(event.name, bodies.serialize(each)) for each in shown)

    # Whole replies

    async def _end_whole(self, raw: bytes) -> None:
        if self.has_begun:  # an error after the stream has begun
            await self._send_all(_to_error(raw, self._start["status"]).event(self.round.format))
            return
        reply = bodies.parse_object(raw) if self.hider is not None else None
        if reply is not None and self.hider is not None and find_error_object(reply) is None:
            shown = self.hider.hide(reply)
            self.whole, self.is_continued = reply, self.hider.is_continued
            raw = raw if shown is reply else bodies.serialize(shown)
        if not self.is_continued:
            fields = [pair for pair in self._start["headers"] if pair[0] != b"content-length"]
            fields.append((b"content-length", b"%d" % len(raw)))
            await self._send({**self._start, "headers": fields})
            await self._send_all(raw)

    async def _send_all(self, raw: bytes) -> None:
        """Send the rest of the response."""
        if len(raw) > SEND_BUFFER_BYTES:
            await self._send({"type": BODY, "body": raw, "more_body": True})
            raw = b""  # the last piece waits until the client has read the others
        await self._send({"type": BODY, "body": raw, "more_body": False})


def _without_first_headers(scope: Scope) -> Scope:
    return {**scope, "headers": [pair for pair in scope["headers"] if pair[0] not in _ONCE]}


def _write_event(name: str, data: bytes) -> bytes:
    named = b"" if name == "message" else b"event: %b\n" % name.encode()
    return b"%bdata: %b\n\n" % (named, data)


def _to_error(raw: bytes, status: int) -> GatewayError:
    """Return the error in a response, to send it as an event."""
    error = find_error_object(bodies.parse_object(raw) or {}) or {}
    message = str(error.get("message") or "The upstream did not continue the stream.")
    return GatewayError(status, str(error.get("code") or "upstream_error"), message)
