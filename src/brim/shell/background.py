"""Work that goes on while the user still thinks; what it found is taken in where it is needed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from brim.errors import BrimError

T = TypeVar("T")

GRACE: Final = 1.0
"""Seconds that work has to come to its end when the shell ends."""


class _BackgroundJob(NamedTuple):
    thread: threading.Thread
    take: Callable[[], None]
    is_done: Callable[[], bool]
    needed: bool


class Background:
    """Jobs in threads of their own; their results are taken in by the thread that asks for them."""

    def __init__(self) -> None:
        self._jobs: list[_BackgroundJob] = []
        self.on_done: Callable[[], None] = lambda: None
        """Called by a job's own thread when it is done."""
        self.on_fault: Callable[[Exception], None] = lambda _error: None
        """Told what was wrong when a result was taken in."""

    def start(
        self,
        work: Callable[[], T],
        then: Callable[[T], None],
        failed: Callable[[Exception], None] = lambda _error: None,
        *,
        needed: bool = True,
    ) -> None:
        """Begin some work; `then` gets its result, or `failed` what was wrong.

        What is `needed` is waited for before a request is made.
        """
        results: list[T] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                results.append(work())
            except Exception as error:  # told where it is taken in
                errors.append(error)
            self.on_done()

        def take() -> None:
            try:
                for result in results:
                    then(result)
                for error in errors:
                    failed(error)
            except (BrimError, OSError) as error:
                self.on_fault(error)

        thread = threading.Thread(target=run, daemon=True, name="brim-background")
        thread.start()
        self._jobs.append(_BackgroundJob(thread, take, lambda: bool(results or errors), needed))

    def poll(self) -> None:
        """Take in what is done."""
        done = [job for job in self._jobs if job.is_done()]
        self._jobs = [job for job in self._jobs if job not in done]
        for job in done:
            job.take()

    def settle(self) -> None:
        """Wait for what is needed, and take in what is done."""
        for job in self._jobs:
            if job.needed:
                job.thread.join()
        self.poll()

    def close(self) -> None:
        """Give the work a moment to come to its end; who takes longer is not waited for."""
        until = time.monotonic() + GRACE
        for job in self._jobs:
            job.thread.join(max(0.0, until - time.monotonic()))
