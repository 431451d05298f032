"""Streams on their way to the caller: each chunk passes through, the answer is kept at the end.

A stream that is left early (Ctrl-C, an error, a loop that breaks) is kept as far as it came.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from brim.errors import InvalidResponseError
from brim.wire.reply import Reply
from brim.wire.reply_parser import has_valid_arguments, parse_reply
from brim.wire.streams import StreamAccumulator

if TYPE_CHECKING:
    from brim.fitting.plan import Plan

RecordReply = Callable[[Reply, bool], None]
"""What takes the answer; the second says whether it came to its end."""


def receive_response(response: Any, keep: RecordReply, plan: Plan | None) -> Any:
    """The reply, kept at once; or a stream that is kept at its end."""
    if isinstance(response, AsyncIterable):
        return AsyncReplyStream(response, keep, plan)
    if isinstance(response, Iterable) and _is_stream(response):
        return ReplyStream(response, keep, plan)
    reply = response if isinstance(response, Reply) else parse_reply(response)
    keep(reply, True)
    return reply


def _is_stream(response: Any) -> bool:
    """Whether it comes in pieces: not JSON, nor an object of a client library that holds it all."""
    whole = isinstance(response, Mapping | str | bytes) or hasattr(response, "model_dump")
    return not whole


class _ReplyStream:
    def __init__(self, keep: RecordReply, plan: Plan | None) -> None:
        self._keep = keep
        self.plan = plan
        """What was sent, and why the rest was not; None where that is not known."""
        self._fold = StreamAccumulator()
        self._kept = False
        self.added = ""
        """The text that the last chunk added."""

    @property
    def thought(self) -> str:
        """The thinking that the last chunk added."""
        return self._fold.thought

    @property
    def reply(self) -> Reply:
        """The answer, as far as it came."""
        return self._fold.reply()

    def _end(self, *, whole: bool) -> None:
        """Keep it; it is whole if its provider said so, or if it ended of itself without error."""
        if self._kept:
            return
        self._kept = True
        fold, reply = self._fold, self._fold.reply()
        if whole and not fold.is_answer:
            raise InvalidResponseError("the stream ended without an answer", fold.error)
        ended = whole and fold.error is None and has_valid_arguments(reply)
        self._keep(reply, fold.is_whole or ended)


class ReplyStream(_ReplyStream):
    """A stream for a `for` loop."""

    def __init__(self, stream: Iterable[Any], keep: RecordReply, plan: Plan | None = None) -> None:
        super().__init__(keep, plan)
        self._stream = stream
        self._chunks = self._pass_through()

    def __iter__(self) -> Iterator[Any]:
        return self._chunks

    def __next__(self) -> Any:
        return next(self._chunks)

    def _pass_through(self) -> Iterator[Any]:
        whole = False
        try:
            for chunk in self._stream:
                self.added = self._fold.add(chunk)
                yield chunk
            whole = True
        finally:
            self._end(whole=whole)

    def texts(self) -> Iterator[str]:
        """Only the text, piece by piece."""
        for _ in self._chunks:
            if self.added:
                yield self.added

    def close(self) -> None:
        """Stop here, and keep what was said."""
        self._chunks.close()  # type: ignore[attr-defined]
        self._end(whole=False)
        if callable(close := getattr(self._stream, "close", None)):
            close()


class AsyncReplyStream(_ReplyStream):
    """A stream for an `async for` loop."""

    def __init__(
        self, stream: AsyncIterable[Any], keep: RecordReply, plan: Plan | None = None
    ) -> None:
        super().__init__(keep, plan)
        self._stream = stream
        self._chunks = self._pass_through()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._chunks

    async def __anext__(self) -> Any:
        return await anext(self._chunks)

    async def _pass_through(self) -> AsyncIterator[Any]:
        whole = False
        try:
            async for chunk in self._stream:
                self.added = self._fold.add(chunk)
                yield chunk
            whole = True
        finally:
            self._end(whole=whole)

    async def texts(self) -> AsyncIterator[str]:
        """Only the text, piece by piece."""
        async for _ in self._chunks:
            if self.added:
                yield self.added

    async def aclose(self) -> None:
        """Stop here, and keep what was said."""
        await self._chunks.aclose()  # type: ignore[attr-defined]
        self._end(whole=False)
        for name in ("aclose", "close"):
            if callable(close := getattr(self._stream, name, None)):
                await close()
                return
