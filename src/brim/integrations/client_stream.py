"""The beginning of a stream: it is read until a context-length error is ruled out.

Some servers check the length of a prompt only after they have begun to stream. Until the first
content, the request can still be sent again, smaller. The events read here come first when the
stream is read.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Iterator
from functools import cache
from typing import Any

from brim.errors import Overflow
from brim.wire.objects import to_plain
from brim.wire.overflow import parse_overflow
from brim.wire.reply_parser import find_error_object, is_opening


def parse_rejection(error: Any) -> Overflow | None:
    """Return the context-length error in an exception of an SDK; None if it is another one."""
    status = getattr(error, "status_code", 400)
    body = getattr(error, "body", None) or getattr(getattr(error, "response", None), "text", None)
    return parse_overflow(max(status, 400), body)  # an error in a stream has the stream's status


class _Opening:
    """The first events of a stream, up to its first content or its end."""

    def __init__(self, stream: Any) -> None:
        self.rest = copy.copy(stream)  # not `stream`, which will refer to it
        self._events: list[Any] = []
        self._error: Exception | None = None
        self.overflow: Overflow | None = None

    def add(self, event: Any) -> bool:
        """Add an event; return whether more have to be read."""
        self._events.append(event)
        plain = to_plain(event)
        if (error := find_error_object(plain)) is not None:
            self.overflow = parse_overflow(400, {"error": error})
        return self.overflow is not None or is_opening(plain)

    def fail(self, error: Exception) -> None:
        """Note the exception that ended the stream; its reader gets it."""
        self._error, self.overflow = error, parse_rejection(error)

    def replay(self) -> Iterator[Any]:
        yield from self._events
        if self._error is not None:
            raise self._error
        yield from self.rest

    async def replay_async(self) -> AsyncIterator[Any]:
        for event in self._events:
            yield event
        if self._error is not None:
            raise self._error
        async for event in self.rest:
            yield event


def read_opening(response: Any) -> Overflow | None:
    """Read the first events of a stream; return their context-length error, if there is one."""
    if not is_stream(response):
        return None
    opening = _Opening(response)
    try:
        for event in opening.rest:
            if not opening.add(event):
                break
    except Exception as error:
        opening.fail(error)
    except BaseException:
        response.close()
        raise
    set_events(response, opening.replay())
    return opening.overflow


async def read_opening_async(response: Any) -> Overflow | None:
    """Do what `read_opening` does, for the streams of async clients."""
    if not is_stream(response):
        return None
    opening = _Opening(response)
    try:
        async for event in opening.rest:
            if not opening.add(event):
                break
    except Exception as error:
        opening.fail(error)
    except BaseException:
        await response.close()
        raise
    set_events(response, opening.replay_async())
    return opening.overflow


def is_stream(response: object) -> bool:
    return any(kind.__name__ in ("Stream", "AsyncStream") for kind in type(response).__mro__)


def set_events(stream: Any, events: object) -> None:
    """Have a stream yield other events."""
    kind: Any = type(stream)
    stream.__class__, stream.replayed = _create_class(kind), events


@cache
def _create_class(kind: Any) -> type:
    """Return a subclass of a class of streams that reads `replayed`."""
    members: dict[str, Any] = {"__module__": kind.__module__}
    if hasattr(kind, "__aiter__"):
        members["__aiter__"] = lambda stream: stream.replayed
        members["__anext__"] = lambda stream: anext(stream.replayed)
    else:
        members["__iter__"] = lambda stream: stream.replayed
        members["__next__"] = lambda stream: next(stream.replayed)
    return type(kind.__name__, (kind,), members)
