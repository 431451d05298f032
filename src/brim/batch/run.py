"""Run: a job over files, from its first row or from a checkpoint."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from brim.batch.checkpoint import Checkpoint, extend_digest, load_checkpoint
from brim.batch.chunks import Chunk, ChunkResult, Job, read_rows
from brim.batch.input_files import FileKind, Format, Source, find_files, find_kind, is_remote
from brim.batch.outputs import Output, open_output
from brim.batch.shapes import MESSAGES, Row, Shape, detect_shape
from brim.batch.tally import Tally
from brim.batch.workers import block_interrupts
from brim.errors import InputError

Engine = Callable[[Iterator[Chunk], Job], Generator[ChunkResult]]
"""Processes chunks anywhere, and yields the results in order."""
STDOUT: Final = "-"
_LINES: Final = FileKind("jsonl")


class Shard(NamedTuple):
    """A part of the work: every n-th row, or every n-th file if a folder is written."""

    number: int = 1
    total: int = 1

    def has(self, ordinal: int) -> bool:
        return ordinal % self.total == self.number - 1


WHOLE: Final = Shard()


@dataclass(frozen=True, slots=True)
class Task:
    """A source and the output that receives its rows."""

    name: str
    target: str | None
    """The output; None in a dry run."""
    kind: FileKind | None
    """What the output contains; None: the same as the source."""


def find_tasks(
    inputs: Sequence[str], output: str | None, format: Format | None, shard: Shard
) -> tuple[list[Task], str | None]:
    """Return the tasks, and the folder in which the outputs are if there are several.

    Several files are written to one file if its extension is known, and otherwise to a folder,
    under their own names.
    """
    found = [(name, path) for name in inputs for path in find_files(name)]
    kind = None if output is None else find_kind(output)
    if format is not None:
        kind = FileKind(format, "" if kind is None else kind.compression)
    is_folder = len(found) > 1 or found[0][0] != found[0][1] or Path(output or "").is_dir()
    if output in (None, STDOUT) or not is_folder or find_kind(output or "") is not None:
        return [Task(path, output, kind) for _, path in found], None
    tasks = [
        Task(path, _name_target(str(output), name, path, format), format and FileKind(format))
        for name, path in found
    ]
    targets = [task.target for task in tasks]
    if len(set(targets)) < len(targets):
        raise InputError("Two input files have the same name. Write them to different folders.")
    return [task for place, task in enumerate(tasks) if shard.has(place)], output


def _name_target(output: str, name: str, path: str, format: Format | None) -> str:
    relative = Path(path).name if name == path else path.rstrip("/")[len(name.rstrip("/")) + 1 :]
    if format is not None:
        kind = find_kind(relative)
        stem = Path(relative).with_suffix("") if kind and kind.compression else Path(relative)
        relative = str(stem.with_suffix(f".{format}"))
    return f"{output.rstrip('/')}/{relative}"


class RunProgress(NamedTuple):
    """How far a run has come."""

    tally: Tally
    """The rows of this run."""
    share: float | None
    """The share of the input that was read; None if its size is unknown."""


class _Sent(NamedTuple):
    """What is known about a chunk before it is processed."""

    target: int
    kind: FileKind
    digest: str
    share: float | None


class Run:
    """Reads tasks, has their chunks processed by an engine, and writes the results in order."""

    def __init__(
        self,
        job: Job,
        tasks: Sequence[Task],
        open_source: Callable[[str], Source],
        *,
        shard: Shard = WHOLE,
        plans: str | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        """`shard` chooses rows; `sizes` are the bytes of all sources, for the share."""
        self.job = job
        self.shapes: dict[str, None] = {}
        """The shapes that were found, in order."""
        self.tally = Tally()
        self._tasks = tasks
        self._open_source = open_source
        self._shard = shard
        self._plans_name = plans
        self._sizes = sizes or {}
        self._targets = list(dict.fromkeys(task.target for task in tasks))
        self._sent: deque[_Sent] = deque()
        self._checkpoint = Checkpoint({})
        self._path: Path | None = None
        self._output: Output | None = None
        self._plans: Output | None = None

    def keep_checkpoint(self, path: Path, options: Mapping[str, Any], *, resume: bool) -> Tally:
        """Record the state in a file, or continue from it; return the tally of earlier runs.

        Raise `InputError` if another run wrote the output, or with other options.
        """
        self._path = path
        self._checkpoint = Checkpoint(options)
        if resume:
            output = Path(self._targets[0] or "")
            found = load_checkpoint(path, output, options)
            self._checkpoint = found or self._checkpoint
        return replace(self._checkpoint.tally)

    # Reading

    def _read_chunks(self) -> Iterator[Chunk]:
        """Yield the chunks that have not been processed yet."""
        pieces, digest, seen = 0, "", -1
        done = self._checkpoint.pieces
        read, total = 0, sum(self._sizes.values())
        for task in self._tasks:
            target = self._targets.index(task.target)
            source = self._open_source(task.name)
            for chunk in self._read_source(source, task):
                if self._path is not None:
                    digest = extend_digest(digest, chunk.piece)
                pieces += 1
                is_first, seen = target != seen, target if chunk.piece.numbers else seen
                if pieces == done and digest != self._checkpoint.digest:
                    break
                if pieces > done:
                    size, share = self._sizes.get(task.name, 0), chunk.piece.share
                    share = None if share is None or not total else (read + share * size) / total
                    self._sent.append(_Sent(target, chunk.kind, digest, share))
                    yield replace(chunk, is_first=is_first)
            read += self._sizes.get(task.name, 0)
        if pieces < done or (pieces == done and digest != self._checkpoint.digest):
            raise InputError(
                "The input has changed since the output was written. Run without --resume."
            )

    def _read_source(self, source: Source, task: Task) -> Iterator[Chunk]:
        place = f"{source.name}: {source.unit}"
        kind = task.kind or FileKind(source.format, _find_compression(task.target))
        shape: Shape | None = self.job.stage.shape
        rows = self._shard.has if self._shard.total > 1 else None
        for piece in source.pieces(rows):
            if not piece.numbers:  # it only creates the output
                yield Chunk(piece, place, MESSAGES, kind, False)
                continue
            if shape is None:
                shape = self._detect_shape(read_rows(piece, place), source.name)
            self.shapes[str(shape)] = None
            yield Chunk(piece, place, shape, kind, False)

    def _detect_shape(self, rows: Sequence[Row], name: str) -> Shape:
        try:
            return detect_shape(rows, self.job.stage.column)
        except InputError as error:
            raise InputError(f"{name}: {error}") from None

    # Writing

    def results(self, engine: Engine) -> Generator[RunProgress]:
        """Process everything; yield the progress after each chunk.

        Invalid options raise before an output is touched.
        """
        results = engine(self._read_chunks(), self.job)
        with closing(results):
            first = list(filter(None, [next(results, None)]))
            if self._checkpoint.is_complete:
                if first:
                    raise InputError("The input has grown since the output was completed.")
                return
            try:
                self._open_plans()
                for result in chain(first, results):
                    yield self._write(result)
                self._finish()
            finally:
                for output in (self._output, self._plans):
                    if output is not None:
                        output.close()

    def _open_plans(self) -> None:
        if self._plans_name is not None:
            position = self._checkpoint.positions.get("plans")
            self._plans = open_output(self._plans_name, _LINES, position)

    def _write(self, result: ChunkResult) -> RunProgress:
        sent = self._sent.popleft()
        with block_interrupts():
            self._open_target(sent.target, sent.kind)
            if self._plans is not None:
                self._plans.write(result.plans)
            is_durable = self._output is None or self._output.write(result.data)
            self.tally.add(result.tally)
            state = self._checkpoint
            state.pieces, state.digest = state.pieces + 1, sent.digest
            state.tally.add(result.tally)
            if is_durable:
                self._save()
        return RunProgress(self.tally, sent.share)

    def _open_target(self, target: int, kind: FileKind) -> None:
        """Open the output with an index, if it is not open; finish those before it."""
        state = self._checkpoint
        while state.target < target:
            self._finish_target()
            self._next_target()
        name = self._targets[target]
        if self._output is None and name is not None:
            if len(self._targets) > 1 and not is_remote(name):
                Path(name).parent.mkdir(parents=True, exist_ok=True)
            self._output = open_output(name, kind, state.positions.get("output"))

    def _next_target(self) -> None:
        self._checkpoint.target += 1
        self._checkpoint.positions.pop("output", None)
        self._save()

    def _finish_target(self) -> None:
        """Complete the current output; create it if its source had no rows."""
        target = self._checkpoint.target
        if self._output is None:
            task = next(task for task in self._tasks if task.target == self._targets[target])
            self._open_target(target, task.kind or find_kind(task.name) or _LINES)
        if self._output is not None:
            self._output.finish()
            self._save()
            self._output.close()
            self._output = None

    def _finish(self) -> None:
        while self._targets:
            self._finish_target()
            if self._checkpoint.target == len(self._targets) - 1:
                break
            self._next_target()
        if self._plans is not None:
            self._plans.finish()
        self._checkpoint.is_complete = True
        self._save()

    def _save(self) -> None:
        if self._path is None:
            return
        state = self._checkpoint
        if self._output is not None:
            state.positions["output"] = self._output.position
        if self._plans is not None:
            state.positions["plans"] = self._plans.position
        state.save(self._path)


def _find_compression(target: str | None) -> Any:
    kind = None if target is None else find_kind(target)
    return "" if kind is None else kind.compression


def locate_checkpoint(output: str, shard: Shard, *, is_folder: bool) -> Path:
    """Return the path of the checkpoint of an output."""
    path = Path(output)
    if not is_folder:
        return path.with_name(f".{path.name}.checkpoint")
    return path / (f".{shard.number}-of-{shard.total}.checkpoint")
