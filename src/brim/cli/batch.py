"""Fit conversations in files: a JSON document, or JSONL with one per row, on all cores.

Rows are sent to processes in chunks and returned in order. Only a few chunks per process are in
flight, so memory does not depend on the size of the file. A row that cannot be fitted or read is
replaced by an error, so the output has as many rows as the input, and its number of complete lines
tells where to continue after an interruption.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields
from itertools import chain, islice
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from pickle import dumps, loads
from typing import TYPE_CHECKING, Any, Final, cast

from brim.cli.files import InputFile, decode_text, dump_json, is_blank, parse_json
from brim.errors import BrimError, BudgetError, ContextOverflowError, InputError
from brim.fitting.api import fit
from brim.fitting.plan import get_overflow_plan

if TYPE_CHECKING:
    from brim.fitting.plan import Plan

Options = Mapping[str, Any]
"""Keyword arguments of `brim.fit`."""
Worker = Connection
"""The connection to a worker process. Values are pickled here, because `Connection.send` leaves a
view of a buffer in the error of a dead process, which crashes some versions of Python."""

CHUNK_ROWS: Final = 200
CHUNK_BYTES: Final = 1_000_000
CHUNKS_AHEAD: Final = 3
"""Chunks in flight per process."""
ENVELOPES: Final = ("body", "params")
"""Keys of the request in a row of the batch APIs of OpenAI and Anthropic."""
_ERROR: Final = b'{"error": {"type": "'
_OVERFLOW: Final = _ERROR + b'ContextOverflowError"'


# Fitting


def fit_value(value: Any, options: Options) -> tuple[Any, Plan]:
    """Fit a conversation; return it in its original format, and the plan."""
    try:
        return _fit_value(value, options)
    except RecursionError:
        raise InputError("The JSON is nested too deeply.") from None


def _fit_value(value: Any, options: Options) -> tuple[Any, Plan]:
    if not isinstance(value, Mapping):
        request = fit(value, **options)
        return request.messages, request.plan
    envelope = envelope_of(value)
    if envelope is not None:
        inner, plan = _fit_value(value[envelope], options)
        return {**value, envelope: inner}, plan
    request = fit(value, **options)
    return {key: request[key] for key in value}, request.plan


def envelope_of(value: Mapping[str, Any]) -> str | None:
    """Return the key of the request in a row of a batch API; None for a plain body."""
    if "messages" in value or "input" in value:
        return None
    return next((key for key in ENVELOPES if isinstance(value.get(key), Mapping)), None)


@dataclass(slots=True)
class Tally:
    """Counts of rows by outcome."""

    rows: int = 0
    fitted: int = 0
    cut: int = 0
    """Fitted rows that were changed."""
    overflowed: int = 0
    unreadable: int = 0
    before: int = 0
    """Tokens of the fitted rows before fitting."""
    after: int = 0
    estimated: int = 0
    """Rows whose token counts are estimates."""

    def add(self, other: Tally) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def add_plan(self, plan: Plan) -> None:
        self.fitted += 1
        self.cut += plan.is_trimmed
        self.before += plan.before
        self.after += plan.tokens
        self.estimated += not plan.exact

    def __str__(self) -> str:
        about = "about " if self.estimated else ""
        return (
            f"{self.rows:,} rows: {self.fitted:,} fitted ({self.cut:,} trimmed), "
            f"{self.overflowed:,} do not fit, {self.unreadable:,} unreadable; "
            f"{about}{self.before:,} → {self.after:,} tokens"
        )


@dataclass(slots=True)
class ChunkResult:
    """The output of a chunk of rows."""

    lines: bytearray = field(default_factory=bytearray)
    plans: bytearray = field(default_factory=bytearray)
    tally: Tally = field(default_factory=Tally)
    problems: list[str] = field(default_factory=list)
    """Problems with their lines."""
    position: int = 0
    """Bytes of the source that had been read."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that are fitted together, each with its line number."""

    rows: list[tuple[int, bytes]]
    position: int


@dataclass(frozen=True, slots=True)
class Job:
    """Options for all rows."""

    name: str
    """The name of the source, for error messages."""
    options: Options
    wants_plans: bool = False


def fit_chunk(chunk: Chunk, job: Job) -> ChunkResult:
    done = ChunkResult(position=chunk.position)
    for number, raw in chunk.rows:
        done.tally.rows += 1
        _fit_row(number, raw, job, done)
    return done


def _fit_row(number: int, raw: bytes, job: Job, done: ChunkResult) -> None:
    value = None
    plan: Plan | None = None
    try:
        value = parse_json(decode_text(raw, job.name, number), job.name, number)
        out, plan = fit_value(value, job.options)
        done.tally.add_plan(plan)
    except (InputError, ContextOverflowError) as error:
        if isinstance(error, BudgetError) and not _names_model(value):
            raise  # the option is missing, not a field of the row
        if isinstance(error, ContextOverflowError):
            plan = get_overflow_plan(error)
        done.tally.overflowed += plan is not None
        done.tally.unreadable += plan is None
        done.problems.append(locate_error(error, f"{job.name}: line {number}"))
        out = error_row(error, number)
    done.lines += dump_json(out)
    if job.wants_plans:
        done.plans += dump_json(out if plan is None else plan.to_dict())


def error_row(error: BrimError, line: int) -> dict[str, Any]:
    """Return the row that replaces one that cannot be fitted."""
    facts: dict[str, Any] = {"type": type(error).__name__, "message": str(error), "line": line}
    if isinstance(error, ContextOverflowError):
        facts |= {"tokens": error.tokens, "limit": error.limit}
    return {"error": facts}


def locate_error(error: BaseException, where: str) -> str:
    """Return an error text with its location, unless it already begins with it."""
    text = str(error)
    return text if text.startswith(where) else f"{where}: {text}"


def _names_model(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    envelope = envelope_of(value)
    return "model" in (value if envelope is None else value[envelope])


# Many rows


def chunks(source: InputFile, skip: int = 0) -> Iterator[Chunk]:
    """Yield the rows of a source in chunks, without blank lines and the first `skip` rows."""
    rows: list[tuple[int, bytes]] = []
    size = seen = 0
    for number, line in enumerate(source.lines(), start=1):
        if is_blank(line):
            continue
        seen += 1
        if seen <= skip:
            continue
        rows.append((number, line))
        size += len(line)
        if len(rows) >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield Chunk(rows, source.position)
            rows, size = [], 0
    if seen < skip:
        raise InputError(f"{source.name} has {seen:,} rows, but the output already has {skip:,}.")
    if rows:
        yield Chunk(rows, source.position)


def fit_chunks(source: Iterable[Chunk], job: Job, processes: int) -> Generator[ChunkResult]:
    """Fit chunks on several cores and yield results in order; a single chunk needs no process."""
    left = iter(source)
    first = list(islice(left, 2))
    if processes == 1 or len(first) < 2:
        yield from (fit_chunk(chunk, job) for chunk in chain(first, left))
        return
    with _workers(processes) as workers:
        yield from _spread(chain(first, left), job, workers)


def _spread(source: Iterator[Chunk], job: Job, workers: list[Worker]) -> Generator[ChunkResult]:
    """Keep every worker busy with one chunk; results wait until the earlier ones are yielded."""
    idle, busy, early = list(workers), dict[Worker, int](), dict[int, ChunkResult]()
    sent = given = 0
    chunk = next(source, None)
    while chunk is not None or busy:
        while chunk is not None and idle and sent < given + len(workers) * CHUNKS_AHEAD:
            worker = idle.pop()
            with _detect_dead_worker():
                worker.send_bytes(dumps((chunk, job)))
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
        raise BrimError("A worker process was killed. If memory is short, use -j 1.") from None


@contextmanager
def _workers(number: int) -> Iterator[list[Worker]]:
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
            process = context.Process(target=_work, args=(theirs,), daemon=True)
            with block_interrupts():
                process.start()
                stack.callback(process.join)
                stack.callback(process.kill)
                stack.callback(ours.close)
            theirs.close()
            workers.append(ours)
        yield workers


def _work(parent: Worker) -> None:
    """Run a worker: fit chunks until the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError):
        while True:
            chunk, job = loads(parent.recv_bytes())
            try:
                answer: ChunkResult | BrimError = fit_chunk(chunk, job)
            except BrimError as error:
                answer = error
            parent.send_bytes(dumps(answer))


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


# Resuming


def truncate_output(output: Path, plans: Path | None) -> Tally:
    """Truncate the output and the plans to the complete rows that both have.

    The returned tally counts these rows and their errors; other outcomes are unknown.
    """
    paths = [output] if plans is None else [output, plans]
    rows = min(measure_whole_lines(path)[0] for path in paths)
    for path in paths:
        if path.exists():
            os.truncate(path, measure_whole_lines(path, rows)[1])
    tally = Tally(rows)
    if rows:
        with output.open("rb") as file:
            for line in file:
                overflowed = line.startswith(_OVERFLOW)
                tally.overflowed += overflowed
                tally.unreadable += line.startswith(_ERROR) and not overflowed
    return tally


def measure_whole_lines(path: Path, most: int | None = None) -> tuple[int, int]:
    """Return the number of complete lines of a file, and their bytes; 0 for a missing file."""
    lines = size = 0
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                if lines == most or not line.endswith(b"\n"):
                    break
                lines += 1
                size += len(line)
    return lines, size
