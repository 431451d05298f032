"""Work that goes on while the user still thinks; what it found is taken in where it is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from brim.errors import BrimError

T = TypeVar("T")


class Background:
    """Jobs in threads of their own; their results are taken in by the thread that asks for them."""

    def __init__(self) -> None:
        self._jobs: list[tuple[threading.Thread, Callable[[], None]]] = []

    def start(
        self,
        work: Callable[[], T],
        then: Callable[[T], None],
        failed: Callable[[Exception], None] = lambda _error: None,
    ) -> None:
        """Begin some work; `then` gets its result, or `failed` what was wrong."""
        results: list[T] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                results.append(work())
            except (BrimError, OSError) as error:
                errors.append(error)

        def take() -> None:
            for result in results:
                then(result)
            for error in errors:
                failed(error)

        thread = threading.Thread(target=run, daemon=True, name="brim-background")
        thread.start()
        self._jobs.append((thread, take))

    def poll(self) -> None:
        """Take in what is done."""
        done = [job for job in self._jobs if not job[0].is_alive()]
        self._jobs = [job for job in self._jobs if job not in done]
        for _, take in done:
            take()

    def settle(self) -> None:
        """Wait for all of it, and take it in."""
        for thread, _ in list(self._jobs):
            thread.join()
        self.poll()
