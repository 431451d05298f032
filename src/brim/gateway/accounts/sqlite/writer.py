"""Turns: what is asked for in one turn of the event loop is written in one transaction.

A transaction takes less time than handing it to a thread, so it is done on the loop itself, and
never waits there: where another process writes, it is tried again a little later.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], T]

BUSY_SECONDS: Final = 10.0
"""Seconds that a step waits for other processes that write."""
_MAX_BATCH: Final = 64
"""Steps in one transaction; more would hold up everything else on the loop."""
_MIN_PAUSE: Final = 0.0005
_MAX_PAUSE: Final = 0.02
"""Seconds between two tries; from the first to the last they grow."""


class _QueuedWrite(NamedTuple):
    work: Operation[Any]
    done: asyncio.Future[Any]
    until: float


class WriteQueue:
    """The one place from which a connection is written. `said` makes brim's errors of SQLite's."""

    def __init__(
        self, base: sqlite3.Connection, said: Callable[[sqlite3.Error], Exception]
    ) -> None:
        self._base = base
        self._said = said
        self._jobs: list[_QueuedWrite] = []
        self._is_due = False
        self._singly = 0
        """How many of the next jobs are done one by one, because one of them failed."""
        self._pause = _MIN_PAUSE

    def ask(self, work: Operation[T]) -> asyncio.Future[T]:
        """Do this in the next transaction, even if nobody waits for it any more by then."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._jobs.append(_QueuedWrite(work, done, loop.time() + BUSY_SECONDS))
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._turn, loop)
        return done

    def finish(self) -> None:
        """Do what is left, now or never."""
        while self._jobs:
            if (busy := self._some()) is not None:
                self._give_up(float("inf"), busy)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_due = False
        pause = 0.0
        if (busy := self._some()) is None:
            self._pause = _MIN_PAUSE
        else:
            self._give_up(loop.time(), busy)
            # Not all at once: whoever waits, waits for a time of its own.
            pause = self._pause * random.uniform(0.5, 1.5)
            self._pause = min(self._pause * 1.5, _MAX_PAUSE)
        if self._jobs:
            self._is_due = True
            loop.call_later(pause, self._turn, loop)

    def _some(self) -> sqlite3.Error | None:
        """Do the first jobs in one transaction; gives the error where another process writes."""
        jobs = self._jobs[: 1 if self._singly else _MAX_BATCH]
        if not jobs:
            return None
        try:
            found = self._together(jobs)
        except Exception as error:  # what a job raises is for the one who asked for it
            if isinstance(error, sqlite3.Error) and is_busy(error):
                return error
            self._part(jobs, error)
            return None
        self._leave(jobs)
        for job, result in zip(jobs, found, strict=True):
            if not job.done.done():
                job.done.set_result(result)
        return None

    def _together(self, jobs: Sequence[_QueuedWrite]) -> list[Any]:
        base = self._base
        base.execute("BEGIN IMMEDIATE")
        try:
            found = [job.work(base) for job in jobs]
            base.execute("COMMIT")
        except BaseException:
            if base.in_transaction:
                base.execute("ROLLBACK")
            raise
        return found

    def _part(self, jobs: Sequence[_QueuedWrite], error: Exception) -> None:
        """One job failed and nothing is written: it fails alone, and the others are done again."""
        if len(jobs) > 1:
            self._singly = len(jobs)
            return
        self._leave(jobs)
        self._fail(jobs[0], error)

    def _leave(self, jobs: Sequence[_QueuedWrite]) -> None:
        del self._jobs[: len(jobs)]
        self._singly = max(0, self._singly - len(jobs))

    def _give_up(self, now: float, busy: sqlite3.Error) -> None:
        """Nobody waits for longer than their patience."""
        for job in self._jobs:
            if job.until <= now:
                self._fail(job, busy)
        self._jobs = [job for job in self._jobs if job.until > now]

    def _fail(self, job: _QueuedWrite, error: Exception) -> None:
        if not job.done.done():
            job.done.set_exception(self._said(error) if isinstance(error, sqlite3.Error) else error)


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another process writes just now."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
