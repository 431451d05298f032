"""`brim.wrap(client, recall=True)`: the client offers the tool `recall` and answers its calls.

A reply that consists of such calls alone is followed by another request, with the results. The
caller gets one response, without the calls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

from brim.fitting.plan import Plan
from brim.integrations.client_stream import is_stream, set_events
from brim.session.recall import (
    MAX_RECALLS,
    RECALL,
    RECALL_TOOL,
    RecallAnswerer,
    check_tool_names,
    is_recall_forced,
)
from brim.tokens import counter_for
from brim.wire.formats import BodyFormat
from brim.wire.hidden_calls import add_tool, continue_body, create_hider
from brim.wire.objects import to_plain
from brim.wire.reply_parser import parse_reply
from brim.wire.streams import StreamAccumulator

_SOURCE: Final = "_event"
"""Field of an event with the object that it was."""


class ClientRecall:
    """One request of the caller, and those that follow because the model recalled something."""

    def __init__(self, body: Mapping[str, Any], format: BodyFormat) -> None:
        check_tool_names(tool for tool in body.get("tools") or () if isinstance(tool, Mapping))
        self.body: dict[str, Any] = add_tool(body, format, RECALL_TOOL)
        self._format = format
        self._hider = create_hider(format, RECALL)
        self._accumulator = StreamAccumulator()
        self._left = MAX_RECALLS
        """How many requests may be sent, the current one included."""

    def run(self, send: Callable[[Any], Any]) -> Any:
        """Return the response that the caller gets."""
        while True:
            response = send(self.body)
            if is_stream(response):
                set_events(response, self._follow(response, response.replayed, send))
                return response
            if (shown := self._receive(response)) is not None:
                return shown

    async def run_async(self, send: Callable[[Any], Awaitable[Any]]) -> Any:
        """Do what `run` does, for async clients."""
        while True:
            response = await send(self.body)
            if is_stream(response):
                set_events(response, self._follow_async(response, response.replayed, send))
                return response
            if (shown := self._receive(response)) is not None:
                return shown

    def _receive(self, response: Any) -> Any:
        """Return a whole response as the caller gets it; None if it is continued."""
        given = to_plain(response)
        if not isinstance(given, Mapping):
            return response
        shown = self._hider.hide(given)
        if self._hider.is_continued:
            self._continue(given, response.brim.plan)
            return None
        if shown is given:
            return response
        changed = type(response).construct(**shown)
        object.__setattr__(changed, "brim", response.brim)
        return changed

    # Streams

    def _follow(self, response: Any, events: Any, send: Callable[[Any], Any]) -> Iterator[Any]:
        """Yield the events of a stream and of those that continue it."""
        while True:
            for event in events:
                yield from self._hide(event)
            if not self._hider.is_continued:
                return
            self._continue(self._accumulator.whole, response.brim.plan)
            response = send(self.body)
            events = response.replayed

    async def _follow_async(
        self, response: Any, events: Any, send: Callable[[Any], Awaitable[Any]]
    ) -> AsyncIterator[Any]:
        while True:
            async for event in events:
                for shown in self._hide(event):
                    yield shown
            if not self._hider.is_continued:
                return
            self._continue(self._accumulator.whole, response.brim.plan)
            response = await send(self.body)
            events = response.replayed

    def _hide(self, event: Any) -> Iterator[Any]:
        """Yield the events that the caller gets in place of one."""
        given = to_plain(event)
        self._accumulator.add(given)
        for shown in self._hider.hide_event({**given, _SOURCE: event}):
            fields = dict(shown)
            source = fields.pop(_SOURCE)
            is_same = fields == to_plain(source)
            yield source if is_same else type(source).construct(**fields)

    def _continue(self, reply: Mapping[str, Any], plan: Plan) -> None:
        """Prepare the next request: with a reply, and the results of its calls."""
        answerer = RecallAnswerer(plan, counter_for(self.body.get("model")).text)
        results = [(call, answerer.answer(call)) for call in parse_reply(reply).calls]
        self.body = continue_body(self.body, self._format, reply, results)
        if is_recall_forced(self.body.get("tool_choice")):
            del self.body["tool_choice"]  # the model may answer now
        self._left -= 1
        self._accumulator = StreamAccumulator()
        self._hider.start_reply()
        self._hider.may_continue = self._left > 1
