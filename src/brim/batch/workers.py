"""Worker processes of one machine: chunks are spread over them, and results return in order.

Only a few chunks per process are in flight, so memory does not depend on the size of the input.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, islice
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection, wait
from pickle import dumps, loads
from typing import Final, cast

from brim.batch.chunks import Chunk, ChunkResult, Job, process_chunk, try_chunk
from brim.errors import BrimError

Worker = Connection
"""The connection to a worker process. Values are pickled here, because `Connection.send` leaves a
view of a buffer in the error of a dead process, which crashes some versions of Python."""

CHUNKS_AHEAD: Final = 3
"""Chunks in flight per process."""


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def process_chunks(source: Iterable[Chunk], job: Job, processes: int) -> Generator[ChunkResult]:
    """Process chunks on several cores; a single chunk needs no process."""
    left = iter(source)
    first = list(islice(left, 2))
    if processes == 1 or len(first) < 2:
        with collect_between() as collect:
            for chunk in chain(first, left):
                yield process_chunk(chunk, job)
                collect()
        return
    with _start_workers(processes, job) as workers:
        yield from _spread(chain(first, left), workers)


def _spread(source: Iterator[Chunk], workers: list[Worker]) -> Generator[ChunkResult]:
    """Keep every worker busy with one chunk; results wait until the earlier ones are yielded."""
    idle, busy, early = list(workers), dict[Worker, int](), dict[int, ChunkResult]()
    sent = given = 0
    chunk = next(source, None)
    while chunk is not None or busy:
        while chunk is not None and idle and sent < given + len(workers) * CHUNKS_AHEAD:
            worker = idle.pop()
            with _detect_dead_worker():
                worker.send_bytes(dumps(chunk))
            busy[worker], sent = sent, sent + 1
            chunk = next(source, None)
        for worker in cast("list[Worker]", wait(busy)):
            with _detect_dead_worker():
                answer: ChunkResult | BrimError = loads(worker.recv_bytes())
            if isinstance(answer, BrimError):
                raise answer
            early[busy.pop(worker)] = answer
            idle.append(worker)
        while given in early:
            yield early.pop(given)
            given += 1


@contextmanager
def _detect_dead_worker() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError):
        raise BrimError(
            "A worker process was killed. Continue with --resume; if memory is short, use -j 1."
        ) from None


@contextmanager
def _start_workers(number: int, job: Job) -> Iterator[list[Worker]]:
    """Start worker processes, and kill them at the end.

    They share nothing: no queue, which a killed process could leave locked, and no memory of this
    process, whose threads could hold a lock when it is forked.
    """
    forks = "forkserver" in get_all_start_methods()
    context = get_context("forkserver") if forks else get_context("spawn")
    with ExitStack() as stack:
        workers = []
        for _ in range(number):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, job), daemon=True)
            with block_interrupts():
                process.start()
                stack.callback(process.join)
                stack.callback(process.kill)
                stack.callback(ours.close)
            theirs.close()
            workers.append(ours)
        yield workers


def _work(parent: Worker, job: Job) -> None:
    """Run a worker: process chunks until the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError), collect_between() as collect:
        while True:
            parent.send_bytes(dumps(try_chunk(loads(parent.recv_bytes()), job)))
            collect()


@contextmanager
def collect_between() -> Iterator[Callable[[], object]]:
    """Collect garbage only between chunks; yield the function that does.

    The rows of a chunk live as long as the chunk, and vocabularies for ever, so collecting in
    between finds nothing (a sixth of the time in `benchmarks.scale`). Older objects are not
    examined again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield lambda: gc.collect(1)
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def block_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block, on systems that can."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
