"""Calls to summarizers with a time limit.

A summarizer is the user's function and may block forever. It runs in a daemon thread, so that
neither the conversation nor the end of the program waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from inspect import isawaitable
from threading import Thread
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from brim.fitting.flow import SummaryJob
    from brim.session.summaries import Summarizer

SUMMARY_TIMEOUT: Final = 120.0


def with_timeout(summarize: Summarizer, seconds: float = SUMMARY_TIMEOUT) -> Summarizer:
    """Return a summarizer that returns None if it takes too long."""

    def limited(previous: str | None, turns: Sequence[Mapping[str, object]] | None) -> object:
        results: list[object] = []

        def run() -> None:
            with suppress(Exception):
                results.append(summarize(previous, turns))

        thread = Thread(target=run, daemon=True, name="brim-summary")
        thread.start()
        thread.join(seconds)
        return results[0] if results else None

    return limited


async def call_summarizer_async(
    summarize: Summarizer, job: SummaryJob, seconds: float = SUMMARY_TIMEOUT
) -> object:
    """Return the result of a summarizer, which may be a coroutine function.

    Return None if it raises or takes too long.
    """
    try:
        async with asyncio.timeout(seconds):
            result = await _run_in_thread(summarize, job)
            return await result if isawaitable(result) else result
    except Exception:
        return None


async def _run_in_thread(summarize: Summarizer, job: SummaryJob) -> object:
    # Not in the loop's executor: the interpreter waits for its threads before it exits.
    loop = asyncio.get_running_loop()
    done: asyncio.Future[object] = loop.create_future()

    def finish(result: object, error: Exception | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    def run() -> None:
        result, failure = None, None
        try:
            result = summarize(job.previous, job.evicted)
        except Exception as error:
            failure = error
        with suppress(RuntimeError):  # the loop was closed in the meantime
            loop.call_soon_threadsafe(finish, result, failure)

    Thread(target=run, daemon=True, name="brim-summary").start()
    return await done
