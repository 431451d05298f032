"""Writes of one iteration of the event loop, batched into one transaction.

A transaction takes less time than handing it to a thread, so it runs on the event loop. It never
blocks: if another process is writing, it is tried again a little later.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

T = TypeVar("T")
Item = TypeVar("Item")
Operation = Callable[[sqlite3.Connection], T]
GroupOperation = Callable[[sqlite3.Connection, Sequence[Item]], Sequence[T]]
"""An operation on several items, with a result for each."""

BUSY_SECONDS: Final = 10.0
"""Seconds that a write waits for other processes."""
_MAX_BATCH: Final = 64
"""Writes in one transaction; more would block the event loop."""
_MIN_PAUSE: Final = 0.0005
_MAX_PAUSE: Final = 0.02
"""Seconds between two attempts; the pause grows from the first to the second value."""


class _QueuedWrite(NamedTuple):
    group: Hashable
    """Writes of the same group that share a transaction are one call of their operation."""
    work: GroupOperation[Any, Any]
    item: Any
    done: asyncio.Future[Any]
    until: float


class WriteQueue:
    """All writes of a connection, in order. `translate_error` converts SQLite's exceptions."""

    def __init__(
        self, base: sqlite3.Connection, translate_error: Callable[[sqlite3.Error], Exception]
    ) -> None:
        self.base = base
        self._translate_error = translate_error
        self._jobs: list[_QueuedWrite] = []
        self._ungrouped = 0
        """How many writes had no group; the order of writes before and after one is kept."""
        self._is_scheduled = False
        self._single = 0
        """How many of the next writes run one by one, because one of them failed."""
        self._pause = _MIN_PAUSE

    def submit(self, work: Operation[T]) -> asyncio.Future[T]:
        """Run an operation in the next transaction, even if the caller is cancelled meanwhile."""
        self._ungrouped += 1
        return self._add(self._ungrouped, _run_single, work)

    def submit_to_group(
        self, group: Hashable, work: GroupOperation[Item, T], item: Item
    ) -> asyncio.Future[T]:
        """Run an operation in the next transaction, together with the waiting ones of its group."""
        return self._add((self._ungrouped, group), work, item)

    def _add(
        self, group: Hashable, work: GroupOperation[Any, Any], item: object
    ) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        self._jobs.append(_QueuedWrite(group, work, item, done, loop.time() + BUSY_SECONDS))
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._run_batch, loop)
        return done

    def finish(self) -> None:
        """Run the remaining writes now; those that find the file locked fail."""
        while self._jobs:
            if (busy := self._write_some()) is not None:
                self._give_up(float("inf"), busy)

    def _run_batch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_scheduled = False
        pause = 0.0
        if (busy := self._write_some()) is None:
            self._pause = _MIN_PAUSE
        else:
            self._give_up(loop.time(), busy)
            # A random pause, so that waiting processes do not collide again.
            pause = self._pause * random.uniform(0.5, 1.5)
            self._pause = min(self._pause * 1.5, _MAX_PAUSE)
        if self._jobs:
            self._is_scheduled = True
            loop.call_later(pause, self._run_batch, loop)

    def _write_some(self) -> sqlite3.Error | None:
        """Run the first writes in one transaction; return the error if the file is locked."""
        jobs = self._jobs[: 1 if self._single else _MAX_BATCH]
        if not jobs:
            return None
        try:
            found = self._run_transaction(jobs)
        except Exception as error:  # the exception belongs to the caller of that write
            if isinstance(error, sqlite3.Error) and is_busy(error):
                return error
            self._isolate_failure(jobs, error)
            return None
        self._remove(jobs)
        for job, result in found:
            if not job.done.done():
                job.done.set_result(result)
        return None

    def _run_transaction(self, jobs: Sequence[_QueuedWrite]) -> list[tuple[_QueuedWrite, Any]]:
        base = self.base
        base.execute("BEGIN IMMEDIATE")
        try:
            found = _run_groups(base, jobs)
            base.execute("COMMIT")
        except BaseException:
            if base.in_transaction:
                base.execute("ROLLBACK")
            raise
        return found

    def _isolate_failure(self, jobs: Sequence[_QueuedWrite], error: Exception) -> None:
        """Run a rolled-back batch again one by one, so that only the invalid write fails."""
        if len(jobs) > 1:
            self._single = len(jobs)
            return
        self._remove(jobs)
        self._fail(jobs[0], error)

    def _remove(self, jobs: Sequence[_QueuedWrite]) -> None:
        del self._jobs[: len(jobs)]
        self._single = max(0, self._single - len(jobs))

    def _give_up(self, now: float, busy: sqlite3.Error) -> None:
        """Fail the writes that have waited for too long."""
        for job in self._jobs:
            if job.until <= now:
                self._fail(job, busy)
        self._jobs = [job for job in self._jobs if job.until > now]

    def _fail(self, job: _QueuedWrite, error: Exception) -> None:
        if not job.done.done():
            job.done.set_exception(
                self._translate_error(error) if isinstance(error, sqlite3.Error) else error
            )


def _run_groups(
    base: sqlite3.Connection, jobs: Sequence[_QueuedWrite]
) -> list[tuple[_QueuedWrite, Any]]:
    groups: dict[Hashable, list[_QueuedWrite]] = {}
    for job in jobs:
        groups.setdefault(job.group, []).append(job)
    found: list[tuple[_QueuedWrite, Any]] = []
    for group in groups.values():
        results = group[0].work(base, [job.item for job in group])
        found += zip(group, results, strict=True)
    return found


def _run_single(base: sqlite3.Connection, works: Sequence[Operation[T]]) -> list[T]:
    return [work(base) for work in works]


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether another process is writing."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
