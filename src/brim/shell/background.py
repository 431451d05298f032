"""Work in threads while the user types; the results are applied by the main thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, NamedTuple, TypeVar

from brim.errors import BrimError

T = TypeVar("T")

GRACE: Final = 1.0
"""Seconds to wait for running jobs when the shell ends."""


class _BackgroundJob(NamedTuple):
    thread: threading.Thread
    apply: Callable[[], None]
    is_done: Callable[[], bool]
    needed: bool


class Background:
    """Jobs in threads; `poll` and `settle` apply their results in the caller's thread."""

    def __init__(self) -> None:
        self._jobs: list[_BackgroundJob] = []
        self.on_done: Callable[[], None] = lambda: None
        """Called in a job's thread when it is done."""
        self.on_error: Callable[[Exception], None] = lambda _error: None
        """Called when applying a result failed."""

    def start(
        self,
        work: Callable[[], T],
        then: Callable[[T], None],
        failed: Callable[[Exception], None] = lambda _error: None,
        *,
        needed: bool = True,
    ) -> None:
        """Start `work` in a thread; `then` gets its result, or `failed` its exception.

        `settle` waits for jobs that are `needed`.
        """
        outcome: Future[T] = Future()

        def run() -> None:
            try:
                outcome.set_result(work())
            except Exception as error:  # passed to `failed` in the main thread
                outcome.set_exception(error)
            self.on_done()

        def apply() -> None:
            try:
                error = outcome.exception()
                if isinstance(error, Exception):
                    failed(error)
                else:
                    then(outcome.result())
            except (BrimError, OSError) as problem:
                self.on_error(problem)

        thread = threading.Thread(target=run, daemon=True, name="brim-background")
        thread.start()
        self._jobs.append(_BackgroundJob(thread, apply, outcome.done, needed))

    def poll(self) -> None:
        """Apply the results of jobs that are done."""
        done = [job for job in self._jobs if job.is_done()]
        self._jobs = [job for job in self._jobs if job not in done]
        for job in done:
            job.apply()

    def settle(self) -> None:
        """Wait for jobs that are needed, and apply the results of all that are done."""
        for job in self._jobs:
            if job.needed:
                job.thread.join()
        self.poll()

    def close(self) -> None:
        """Give running jobs a moment to finish; do not wait for slower ones."""
        until = time.monotonic() + GRACE
        for job in self._jobs:
            job.thread.join(max(0.0, until - time.monotonic()))
