"""Response streams: chunks pass through unchanged, and the reply is recorded at the end.

If a stream is closed early (Ctrl-C, an error, a `break`), the reply so far is recorded.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

from brim.errors import InvalidResponseError
from brim.fitting.plan import Plan
from brim.wire.reply import Reply
from brim.wire.reply_parser import is_json, parse_reply
from brim.wire.streams import StreamAccumulator

Chunk = TypeVar("Chunk")
Chunks = TypeVar("Chunks")
RecordReply = Callable[[Reply, bool], None]
"""Records a reply; the second argument says whether it is complete."""
ShowReply = Callable[[Reply], Reply]
"""Returns a reply as the caller sees it."""


def receive_response(response: Any, record: RecordReply, plan: Plan | None, show: ShowReply) -> Any:
    """Record a response and return its reply, or return a stream that records it at the end."""
    if not isinstance(response, Iterable | AsyncIterable):
        if hasattr(response, "__aenter__"):
            response = _read_async_manager(response)
        elif hasattr(response, "__enter__"):
            response = _read_manager(response)
    if isinstance(response, AsyncIterable):
        return AsyncReplyStream(response, record, plan, show)
    # JSON and response objects are iterable too.
    is_whole = isinstance(response, Mapping | str | bytes) or hasattr(response, "model_dump")
    if isinstance(response, Iterable) and not is_whole:
        return ReplyStream(response, record, plan, show)
    reply = response if isinstance(response, Reply) else parse_reply(response)
    record(reply, True)
    return show(reply)


def _read_manager(manager: Any) -> Iterator[Any]:
    """Yield the events of a streaming helper, e.g. `client.chat.completions.stream(...)`."""
    with manager as stream:
        yield from stream


async def _read_async_manager(manager: Any) -> AsyncIterator[Any]:
    async with manager as stream:
        async for event in stream:
            yield event


class ResponseModel(Protocol):
    """A response object of a client library, such as pydantic models."""

    def model_dump(self) -> Mapping[str, object]: ...


class _ReplyStream(Generic[Chunks]):
    def __init__(
        self, stream: Chunks, record: RecordReply, plan: Plan | None, show: ShowReply
    ) -> None:
        self._stream = stream
        self._record = record
        self._show = show
        self.plan = plan
        """The plan of the request; None if it is unknown."""
        self._accumulator = StreamAccumulator()
        self._is_recorded = False
        self.added = ""
        """The text of the last chunk."""

    @property
    def thought(self) -> str:
        """The thinking of the last chunk."""
        return self._accumulator.thought

    @property
    def reply(self) -> Reply:
        """The reply so far."""
        return self._show(self._accumulator.reply())

    def _finish(self, *, has_ended: bool) -> None:
        """Record the reply once.

        It is complete if the provider said so, or if the stream ended without an error.
        """
        if self._is_recorded:
            return
        self._is_recorded = True
        stream, reply = self._accumulator, self._accumulator.reply()
        if has_ended and not stream.is_answer:
            raise InvalidResponseError("The stream ended without a reply.", stream.error)
        has_valid_calls = all(is_json(call.arguments) for call in reply.calls)
        is_complete = has_ended and stream.error is None and has_valid_calls
        self._record(reply, stream.is_whole or is_complete)


class ReplyStream(_ReplyStream[Iterable[Chunk]], Generic[Chunk]):
    """A stream for a `for` loop."""

    def __iter__(self) -> Iterator[Chunk]:
        return self._chunks

    def __next__(self) -> Chunk:
        return next(self._chunks)

    @cached_property
    def _chunks(self) -> Generator[Chunk, None, None]:
        has_ended = False
        try:
            for chunk in self._stream:
                self.added = self._accumulator.add(chunk)
                yield chunk
            has_ended = True
        finally:
            self._finish(has_ended=has_ended)

    def texts(self) -> Iterator[str]:
        """Yield only the text, piece by piece."""
        for _ in self._chunks:
            if self.added:
                yield self.added

    def close(self) -> None:
        """Stop reading, and record the reply so far."""
        self._chunks.close()
        self._finish(has_ended=False)
        if callable(close := getattr(self._stream, "close", None)):
            close()


class AsyncReplyStream(_ReplyStream[AsyncIterable[Chunk]], Generic[Chunk]):
    """A stream for an `async for` loop."""

    follow: Callable[[], Awaitable[AsyncReplyStream[Chunk] | None]] | None = None
    """Called when a reply is recorded; returns the stream of the next one, if there is one."""

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self._chunks

    async def __anext__(self) -> Chunk:
        return await anext(self._chunks)

    @cached_property
    async def _chunks(self) -> AsyncGenerator[Chunk, None]:
        following: AsyncReplyStream[Chunk] | None = self
        while following is not None:
            self._continue_with(following)
            has_ended = False
            try:
                async for chunk in self._stream:
                    self.added = self._accumulator.add(chunk)
                    yield chunk
                has_ended = True
            finally:
                self._finish(has_ended=has_ended)
            following = None if self.follow is None else await self.follow()

    def _continue_with(self, other: AsyncReplyStream[Chunk]) -> None:
        """Become a stream that has not begun."""
        self._stream, self._record, self.plan = other._stream, other._record, other.plan
        self._accumulator, self._is_recorded = other._accumulator, other._is_recorded

    async def texts(self) -> AsyncIterator[str]:
        """Yield only the text, piece by piece."""
        async for _ in self._chunks:
            if self.added:
                yield self.added

    async def aclose(self) -> None:
        """Stop reading, and record the reply so far."""
        await self._chunks.aclose()
        self._finish(has_ended=False)
        for name in ("aclose", "close"):
            if callable(close := getattr(self._stream, name, None)):
                await close()
                return
