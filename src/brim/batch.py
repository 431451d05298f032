"""Conversations in files: one in a JSON document, or one a row of JSONL, on all cores.

Rows go out to processes in chunks and come back in order. Only a few chunks for each process are
under way at a time, so a file of any size takes the same memory. A row that cannot be fitted or
read has an error in its place, so the output has as many rows as the input, and the number of its
whole lines says where to go on after an interruption.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import stat
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields
from io import BufferedReader
from itertools import chain, islice
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from pickle import dumps, loads
from typing import IO, TYPE_CHECKING, Any, Final, cast

from brim.api import fit
from brim.errors import BrimError, BudgetError, ContextOverflowError, InputError

if TYPE_CHECKING:
    from brim.plan import Plan

Options = Mapping[str, Any]
"""What `brim.fit` is called with, beside the conversation."""
Worker = Connection
"""A process, as this one sees it. Values are pickled here, as `send` leaves a view of a buffer in
the error of a process that has gone, which some versions of Python crash on."""

CHUNK_ROWS: Final = 200
CHUNK_BYTES: Final = 1_000_000
CHUNKS_AHEAD: Final = 3
"""Chunks that are fitted or wait for an earlier one, for each process."""
ENVELOPES: Final = ("body", "params")
"""Where the batch interfaces of OpenAI and Anthropic keep the request of a row."""
_GZIP: Final = b"\x1f\x8b"
_BOM: Final = b"\xef\xbb\xbf"
_ERROR: Final = b'{"error": {"type": "'
_OVERFLOW: Final = _ERROR + b'ContextOverflowError"'


# Reading


class Source:
    """An open file, or standard input, unpacked where it is compressed."""

    def __init__(self, raw: IO[bytes]) -> None:
        name = getattr(raw, "name", None)
        self.name = name if isinstance(name, str) and name != "<stdin>" else "standard input"
        self._raw = raw
        self._stream = _unpacked(raw)
        self._read: list[bytes] = []

    @property
    def size(self) -> int | None:
        """Bytes of the file as it lies on disk; None for a pipe."""
        try:
            status = os.fstat(self._raw.fileno())
        except OSError:
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    @property
    def position(self) -> int:
        """How many of these bytes have been read; 0 for a pipe."""
        return self._raw.tell() if self._raw.seekable() else 0

    def is_same(self, path: Path) -> bool:
        """Whether this is the file at a path."""
        try:
            return os.path.samestat(os.fstat(self._raw.fileno()), path.stat())
        except OSError:
            return False

    def lines(self) -> Iterator[bytes]:
        yield from self._read
        self._read = []
        yield from self._more()

    def holds_rows(self) -> bool:
        """Whether it is JSONL: by its name, or because a value ends with its first line."""
        if self.name.removesuffix(".gz").endswith((".jsonl", ".ndjson")):
            return True
        filled = 0
        for line in self._more():
            self._read.append(line)
            if line.strip(_BOM).strip():
                filled += 1
                if filled == 2:
                    return True
                if not _is_whole(line):
                    return False
        return False

    def text(self) -> str:
        """All of it."""
        return decoded(b"".join(self.lines()), self.name)

    def _more(self) -> Iterator[bytes]:
        try:
            yield from iter(self._stream.readline, b"")
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{self.name}: {error}") from None


def _unpacked(raw: IO[bytes]) -> IO[bytes]:
    stream = raw if hasattr(raw, "peek") else BufferedReader(cast("Any", raw))
    if cast("BufferedReader", stream).peek(2)[:2] == _GZIP:
        return cast("IO[bytes]", gzip.GzipFile(fileobj=stream))
    return stream


def _is_whole(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line.removeprefix(_BOM)), list | dict)
    except (ValueError, RecursionError):
        return False


def decoded(data: bytes, name: str, line: int = 1) -> str:
    """Text from UTF-8, with or without a byte order mark; `line` is where the data begins."""
    try:
        return data.removeprefix(_BOM).decode()
    except UnicodeDecodeError as error:
        line += error.object.count(b"\n", 0, error.start)
        byte = error.object[error.start]
        raise InputError(f"{name}: line {line}: not UTF-8 text (byte 0x{byte:02x})") from None


def parsed(text: str, name: str, line: int = 1) -> Any:
    """A value from JSON; an error says where it stands."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {line + error.lineno - 1}, column {error.colno}"
        raise InputError(f"{name}: {where}: not JSON: {error.msg}") from None
    except RecursionError:
        raise InputError(f"{name}: line {line}: nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{name}: line {line}: {error}") from None


def dumped(value: object, indent: int | None = None) -> bytes:
    """A value as JSON and a newline; half a character, which UTF-8 has no bytes for, is escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        return f"{text}\n".encode()
    except UnicodeEncodeError:
        return f"{json.dumps(value, indent=indent)}\n".encode()


# Fitting


def fitted(value: Any, options: Options) -> tuple[Any, Plan]:
    """Fit a conversation, and give it back in the shape it came in, with the plan beside it."""
    try:
        return _fitted(value, options)
    except RecursionError:
        raise InputError("nested too deeply") from None


def _fitted(value: Any, options: Options) -> tuple[Any, Plan]:
    if not isinstance(value, Mapping):
        request = fit(value, **options)
        return request.messages, request.plan
    envelope = envelope_of(value)
    if envelope is not None:
        inner, plan = _fitted(value[envelope], options)
        return {**value, envelope: inner}, plan
    request = fit(value, **options)
    return {key: request[key] for key in value}, request.plan


def envelope_of(value: Mapping[str, Any]) -> str | None:
    """The key under which a row of a batch interface keeps its request; None for a plain body."""
    if "messages" in value or "input" in value:
        return None
    return next((key for key in ENVELOPES if isinstance(value.get(key), Mapping)), None)


@dataclass(slots=True)
class Tally:
    """What became of rows."""

    rows: int = 0
    fitted: int = 0
    cut: int = 0
    """Those of the fitted rows that had to be changed."""
    overflowed: int = 0
    unreadable: int = 0
    before: int = 0
    """Tokens of the fitted rows, as they came in."""
    after: int = 0
    estimated: int = 0
    """Rows whose tokens are an estimate."""

    def add(self, other: Tally) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def add_plan(self, plan: Plan) -> None:
        self.fitted += 1
        self.cut += plan.cut
        self.before += plan.before
        self.after += plan.tokens
        self.estimated += not plan.exact

    def __str__(self) -> str:
        about = "about " if self.estimated else ""
        return (
            f"{self.rows:,} rows: {self.fitted:,} fitted ({self.cut:,} of them cut), "
            f"{self.overflowed:,} could not fit, {self.unreadable:,} unreadable; "
            f"{about}{self.before:,} → {self.after:,} tokens"
        )


@dataclass(slots=True)
class Done:
    """What a chunk of rows became."""

    lines: bytearray = field(default_factory=bytearray)
    plans: bytearray = field(default_factory=bytearray)
    tally: Tally = field(default_factory=Tally)
    complaints: list[str] = field(default_factory=list)
    """What is wrong with which line."""
    position: int = 0
    """How far the source had been read."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that are fitted together, each with the number of its line."""

    rows: list[tuple[int, bytes]]
    position: int


@dataclass(frozen=True, slots=True)
class Job:
    """How rows are fitted."""

    name: str
    """Where they come from, for messages."""
    options: Options
    wants_plans: bool = False


def fit_chunk(chunk: Chunk, job: Job) -> Done:
    done = Done(position=chunk.position)
    for number, raw in chunk.rows:
        done.tally.rows += 1
        _fit_row(number, raw, job, done)
    return done


def _fit_row(number: int, raw: bytes, job: Job, done: Done) -> None:
    value = None
    plan: Plan | None = None
    try:
        value = parsed(decoded(raw, job.name, number), job.name, number)
        out, plan = fitted(value, job.options)
        done.tally.add_plan(plan)
    except (InputError, ContextOverflowError) as error:
        if isinstance(error, BudgetError) and not _names_model(value):
            raise  # what is missing is missing in the call, not in the row
        if isinstance(error, ContextOverflowError):
            plan = error.plan
        done.tally.overflowed += plan is not None
        done.tally.unreadable += plan is None
        done.complaints.append(located(error, f"{job.name}: line {number}"))
        out = error_row(error, number)
    done.lines += dumped(out)
    if job.wants_plans:
        done.plans += dumped(out if plan is None else plan.to_dict())


def error_row(error: BrimError, line: int) -> dict[str, Any]:
    """What stands in the place of a row that has no fitted form."""
    facts: dict[str, Any] = {"type": type(error).__name__, "message": str(error), "line": line}
    if isinstance(error, ContextOverflowError):
        facts |= {"tokens": error.tokens, "limit": error.limit}
    return {"error": facts}


def located(error: BaseException, where: str) -> str:
    """What is wrong, and where, unless the error says that itself."""
    text = str(error)
    return text if text.startswith(where) else f"{where}: {text}"


def _names_model(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    envelope = envelope_of(value)
    return "model" in (value if envelope is None else value[envelope])


# Many rows


def chunks(source: Source, skip: int = 0) -> Iterator[Chunk]:
    """The rows of a source that are not blank, less the first `skip`, in chunks."""
    rows: list[tuple[int, bytes]] = []
    size = seen = 0
    for number, line in enumerate(source.lines(), start=1):
        if not line.strip(_BOM).strip():
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
        raise InputError(f"{source.name} has only {seen:,} rows, but the output has {skip:,}")
    if rows:
        yield Chunk(rows, source.position)


def fit_chunks(source: Iterable[Chunk], job: Job, processes: int) -> Generator[Done]:
    """Fit chunks, in order, on several cores; a single chunk is not worth starting processes."""
    left = iter(source)
    first = list(islice(left, 2))
    if processes == 1 or len(first) < 2:
        yield from (fit_chunk(chunk, job) for chunk in chain(first, left))
        return
    with _workers(processes) as workers:
        yield from _spread(chain(first, left), job, workers)


def _spread(source: Iterator[Chunk], job: Job, workers: list[Worker]) -> Generator[Done]:
    """Keep every worker busy with one chunk; what comes back too early waits for its turn."""
    idle, busy, early = list(workers), dict[Worker, int](), dict[int, Done]()
    sent = given = 0
    chunk = next(source, None)
    while chunk is not None or busy:
        while chunk is not None and idle and sent < given + len(workers) * CHUNKS_AHEAD:
            worker = idle.pop()
            with _reached():
                worker.send_bytes(dumps((chunk, job)))
            busy[worker], sent = sent, sent + 1
            chunk = next(source, None)
        for worker in cast("list[Worker]", wait(busy)):
            with _reached():
                answer: Done | BrimError = loads(worker.recv_bytes())
            if isinstance(answer, BrimError):
                raise answer
            early[busy.pop(worker)] = answer
            idle.append(worker)
        while given in early:
            yield early.pop(given)
            given += 1


@contextmanager
def _reached() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError):
        raise BrimError("a process was ended from outside; if memory is short, use -j 1") from None


@contextmanager
def _workers(number: int) -> Iterator[list[Worker]]:
    """Processes that wait for chunks, and are gone at once when this ends.

    They share nothing: not a queue, which a process that is ended could leave locked, nor the
    memory of this one, whose threads could hold a lock when it is forked.
    """
    forks = "forkserver" in get_all_start_methods()
    context = get_context("forkserver") if forks else get_context("spawn")
    with ExitStack() as stack:
        workers = []
        for _ in range(number):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs,), daemon=True)
            with uninterrupted():
                process.start()
                stack.callback(process.join)
                stack.callback(process.kill)
                stack.callback(ours.close)
            theirs.close()
            workers.append(ours)
        yield workers


def _work(asked: Worker) -> None:
    """A process: a chunk in, what became of it out, until there is nobody to ask."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError):
        while True:
            chunk, job = loads(asked.recv_bytes())
            try:
                answer: Done | BrimError = fit_chunk(chunk, job)
            except BrimError as error:
                answer = error
            asked.send_bytes(dumps(answer))


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait, on systems that can, until what is done here is done."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# Going on


def rewind(output: Path, plans: Path | None) -> Tally:
    """Cut an output, and the plans beside it, to the whole lines they have in common.

    Of the rows that were there before, only the errors can be told.
    """
    paths = [output] if plans is None else [output, plans]
    rows = min(whole_lines(path)[0] for path in paths)
    for path in paths:
        if path.exists():
            os.truncate(path, whole_lines(path, rows)[1])
    tally = Tally(rows)
    if rows:
        with output.open("rb") as file:
            for line in file:
                overflowed = line.startswith(_OVERFLOW)
                tally.overflowed += overflowed
                tally.unreadable += line.startswith(_ERROR) and not overflowed
    return tally


def whole_lines(path: Path, most: int | None = None) -> tuple[int, int]:
    """How many whole lines a file begins with, and their bytes; a file that is not there has 0."""
    lines = size = 0
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                if lines == most or not line.endswith(b"\n"):
                    break
                lines += 1
                size += len(line)
    return lines, size
