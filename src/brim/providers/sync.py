"""Portal: runs coroutines for synchronous code, in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, Self, TypeVar

T = TypeVar("T")

GRACE = 5.0
"""Seconds for a cancelled task to clean up."""
TICK = 0.5
"""How often a waiting thread wakes up: on Windows, Ctrl-C is noticed only then."""
_END: Final = object()


class Portal:
    """A thread with an event loop; it starts at the first use and ends with the interpreter.

    Ctrl-C while waiting cancels the task, which closes its connection, and is then raised.
    anyio's blocking portal does not wait for the clean-up of a cancelled task, and interrupts
    every `await` in it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0
        self._stop: weakref.finalize[..., Portal] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel running tasks and end the thread; a later use starts a new one."""
        with self._lock:
            stop, self._stop, self._loop = self._stop, None, None
        if stop is not None:
            stop()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the coroutine returns, or raise what it raises."""
        outcome: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []
        try:
            loop = self._get_loop()
        except BaseException:
            work.close()
            raise

        def start() -> None:
            task = loop.create_task(work)
            tasks.append(task)
            task.add_done_callback(lambda task: _set_outcome(outcome, task))

        def stop() -> None:
            # Runs in the loop after `start`, or instead of it: Ctrl-C can come at any time.
            for task in tasks:
                task.cancel()
            if not tasks:
                work.close()
                outcome.cancel()

        try:
            loop.call_soon_threadsafe(start)
            _wait(outcome, loop)
        except BaseException:
            try:
                loop.call_soon_threadsafe(stop)
                wait([outcome], timeout=GRACE)
            except RuntimeError:  # the loop has ended, and its tasks with it
                work.close()
            raise
        if not outcome.done():
            work.close()
            raise RuntimeError("The portal was closed before the task could start.")
        return outcome.result()

    def iterate(self, events: AsyncIterator[T]) -> Iterator[T]:
        """Yield the items of an async iterator; leaving the loop early closes it."""

        async def get_next() -> T | object:
            return await anext(events, _END)

        async def close() -> None:
            if (aclose := getattr(events, "aclose", None)) is not None:
                await aclose()

        try:
            while (item := self.run(get_next())) is not _END:
                yield item  # type: ignore[misc]
        finally:
            # Closing the portal has already closed the iterator.
            if self._loop is not None and not self._loop.is_closed():
                self.run(close())

    @property
    def is_inside(self) -> bool:
        """Whether the caller runs in the portal's own thread."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def _get_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            # A forked child has the object but not the thread.
            if self._loop is None or self._process != os.getpid():
                self._start()
            loop = self._loop
        assert loop is not None
        if self.is_inside:
            raise RuntimeError(
                "A coroutine in the portal cannot call the portal. Use await instead."
            )
        return loop

    def _start(self) -> None:
        if self._stop is not None:
            self._stop.detach()
        self._loop = loop = asyncio.new_event_loop()
        self._process = os.getpid()
        thread = threading.Thread(target=_run_loop, args=(loop,), name="brim-portal", daemon=True)
        thread.start()
        self._stop = weakref.finalize(self, _end_thread, loop, thread, self._process)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=GRACE))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _end_thread(loop: asyncio.AbstractEventLoop, thread: threading.Thread, process: int) -> None:
    if process != os.getpid() or loop.is_closed():
        return
    loop.call_soon_threadsafe(loop.stop)
    if thread is not threading.current_thread():
        thread.join(2 * GRACE)


def _wait(outcome: Future[T], loop: asyncio.AbstractEventLoop) -> None:
    # Ctrl-C can interrupt a lock of `concurrent.futures` halfway, but not this queue.
    finished: SimpleQueue[Future[T]] = SimpleQueue()
    outcome.add_done_callback(finished.put)
    while not outcome.done() and not loop.is_closed():
        with suppress(Empty):
            finished.get(timeout=TICK)


def _set_outcome(outcome: Future[T], task: asyncio.Task[T]) -> None:
    if task.cancelled():
        outcome.cancel()
        outcome.set_running_or_notify_cancel()
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())
