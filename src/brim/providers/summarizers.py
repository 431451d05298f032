"""Calls to summarizers with a time limit.

A summarizer is the user's function and may block forever. It runs in a daemon thread, so that
neither the conversation nor the end of the program waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from inspect import isawaitable
from threading import Thread
from typing import Final

from brim.fitting.flow import SummaryJob
from brim.fitting.summarizer import Summarizer
from brim.providers.sync import Portal

Turns = Sequence[Mapping[str, object]] | None
AsyncSummarizer = Callable[[str | None, Turns], Coroutine[object, object, str]]

SUMMARY_TIMEOUT: Final = 120.0


class BlockingSummarizer:
    """Calls a coroutine function from synchronous code; the portal's own code awaits it."""

    def __init__(self, function: AsyncSummarizer, portal: Portal) -> None:
        self.function = function
        self.portal = portal

    def __call__(self, previous: str | None, turns: Turns) -> str:
        return self.portal.run(self.function(previous, turns))


def with_timeout(summarize: Summarizer, seconds: float = SUMMARY_TIMEOUT) -> Summarizer:
    """Return a summarizer that returns None if it takes too long."""

    def limited(previous: str | None, turns: Turns) -> object:
        try:
            return _start(summarize, previous, turns).result(seconds)
        except Exception:
            return None

    return limited


async def call_summarizer_async(
    summarize: Summarizer, job: SummaryJob, seconds: float = SUMMARY_TIMEOUT
) -> object:
    """Return the result of a summarizer, which may be a coroutine function.

    Return None if it raises or takes too long.
    """
    if isinstance(summarize, BlockingSummarizer) and summarize.portal.is_inside:
        summarize = summarize.function
    try:
        async with asyncio.timeout(seconds):
            result = await asyncio.wrap_future(_start(summarize, job.previous, job.evicted))
            return await result if isawaitable(result) else result
    except Exception:
        return None


def _start(summarize: Summarizer, previous: str | None, turns: Turns) -> Future[object]:
    # Not in an executor: the interpreter waits for its threads before it exits.
    outcome: Future[object] = Future()
    outcome.set_running_or_notify_cancel()  # now it cannot be cancelled

    def run() -> None:
        try:
            outcome.set_result(summarize(previous, turns))
        except Exception as error:
            outcome.set_exception(error)

    Thread(target=run, daemon=True, name="brim-summary").start()
    return outcome
