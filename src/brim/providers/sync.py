"""Portal: the way from ordinary code to coroutines, which run in a thread beside it."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future, wait
from typing import Any, Final, Self, TypeVar

T = TypeVar("T")

GRACE = 5.0
"""Seconds for a cancelled task to hang up."""
TICK = 0.5
"""How often a waiting thread looks up: on Windows, Ctrl-C is noticed only then."""
_END: Final = object()


class Portal:
    """One thread with an event loop; it starts at the first use and ends with the interpreter.

    Ctrl-C while waiting cancels the task, which closes its connection, and is then raised.
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
        """Cancel what runs and end the thread; a later use starts a new one."""
        with self._lock:
            stop, self._stop, self._loop = self._stop, None, None
        if stop is not None:
            stop()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns or raises."""
        outcome: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []
        try:
            loop = self._running()
        except BaseException:
            work.close()
            raise

        def start() -> None:
            task = loop.create_task(work)
            tasks.append(task)
            task.add_done_callback(lambda task: _settle(outcome, task))

        def stop() -> None:
            # In the loop, where it comes after `start`, or instead of it: Ctrl-C comes any time.
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
            except RuntimeError:  # the loop has ended, and with it what ran in it
                work.close()
            raise
        if not outcome.done():
            work.close()
            raise RuntimeError("the portal was closed before its task could start")
        return outcome.result()

    def iterate(self, events: AsyncIterator[T]) -> Iterator[T]:
        """The items of an async iterator; leaving the loop early closes it."""

        async def following() -> T | object:
            return await anext(events, _END)

        async def ended() -> None:
            if (close := getattr(events, "aclose", None)) is not None:
                await close()

        try:
            while (item := self.run(following())) is not _END:
                yield item  # type: ignore[misc]
        finally:
            # Closing the portal has closed what it followed.
            if self._loop is not None and not self._loop.is_closed():
                self.run(ended())

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            # A forked child has the object but not the thread.
            if self._loop is None or self._process != os.getpid():
                self._start()
            loop = self._loop
        assert loop is not None
        try:
            inside = asyncio.get_running_loop() is loop
        except RuntimeError:
            inside = False
        if inside:
            raise RuntimeError("a coroutine of the portal cannot wait for the portal: await it")
        return loop

    def _start(self) -> None:
        if self._stop is not None:
            self._stop.detach()
        self._loop = loop = asyncio.new_event_loop()
        self._process = os.getpid()
        thread = threading.Thread(target=_serve, args=(loop,), name="brim-portal", daemon=True)
        thread.start()
        self._stop = weakref.finalize(self, _end, loop, thread, self._process)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=GRACE))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread, process: int) -> None:
    if process != os.getpid() or loop.is_closed():
        return
    loop.call_soon_threadsafe(loop.stop)
    if thread is not threading.current_thread():
        thread.join(2 * GRACE)


def _wait(outcome: Future[T], loop: asyncio.AbstractEventLoop) -> None:
    while not outcome.done() and not loop.is_closed():
        wait([outcome], timeout=TICK)


def _settle(outcome: Future[T], task: asyncio.Task[T]) -> None:
    if task.cancelled():
        outcome.cancel()
        outcome.set_running_or_notify_cancel()
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())
