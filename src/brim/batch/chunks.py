"""One chunk of a job: rows of a source, processed by a worker into a part of an output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from brim.batch.byte_streams import decode_text, dump_json, parse_json, require
from brim.batch.input_files import FileKind, Piece, pack_table, unpack_table
from brim.batch.outputs import encode_lines
from brim.batch.shapes import Row, Shape, to_plain
from brim.batch.stages import ERROR, Fitter, RowResult
from brim.batch.tally import Tally
from brim.errors import BrimError, InputError

if TYPE_CHECKING:
    import pyarrow

try:
    import orjson
except ImportError:
    orjson = None  # type: ignore[assignment]

_MAX_EXACT = 2**63
"""Larger integers become floats in orjson."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is done with all rows."""

    stage: Fitter
    wants_plans: bool = False
    has_columns: bool = True
    """Whether rows get the columns of the stage; without them, only `brim_error` after errors."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that are processed together, and how their results are written."""

    piece: Piece
    place: str
    """The name of the source and the unit of its numbers, for errors: `rows.jsonl: line`."""
    shape: Shape
    kind: FileKind
    is_first: bool
    """Whether it is the first one of its output."""


@dataclass(slots=True)
class ChunkResult:
    """The output of a chunk."""

    data: bytes = b""
    plans: bytes = b""
    tally: Tally = field(default_factory=Tally)


def try_chunk(chunk: Chunk, job: Job) -> ChunkResult | BrimError:
    """Return the output for a chunk, or the error that ends the run."""
    try:
        return process_chunk(chunk, job)
    except BrimError as error:
        return error


def process_chunk(chunk: Chunk, job: Job) -> ChunkResult:
    """Return the output for the rows of a chunk."""
    done, numbers, plans = ChunkResult(), iter(chunk.piece.numbers), list[bytes]()

    def record(result: RowResult) -> None:
        done.tally.add_result(result, chunk.place, next(numbers))
        if job.wants_plans:
            plans.append(_dump_plan(result))

    process = _process_lines if isinstance(chunk.piece.data, list) else _process_table
    data = process(chunk, job, record)
    is_table, is_first = chunk.kind.is_table, chunk.is_first
    done.data = data if is_table else encode_lines(data, chunk.kind, is_first=is_first)
    done.plans = b"".join(plans)
    return done


def _process_lines(chunk: Chunk, job: Job, record: Callable[[RowResult], None]) -> bytes:
    """Return the output for rows of JSON. Each is finished before the next one is parsed."""
    stage, rows, lines = job.stage, list[Mapping[str, Any]](), list[bytes]()
    for row in parse_rows(chunk.piece, chunk.place):
        is_error = isinstance(row, InputError)
        result = stage.reject(row) if is_error else stage.process_row(row, chunk.shape)
        record(result)
        finished = _finish_row(result, job)
        if chunk.kind.is_table:
            rows.append(_to_mapping(finished))
        else:
            lines.append(_dump_row(finished))
    return pack_table(_build_table(rows, chunk, job)) if chunk.kind.is_table else b"".join(lines)


def _finish_row(result: RowResult, job: Job) -> Row:
    """Return the row of a file that is not a table."""
    if job.has_columns:
        return job.stage.add_columns(result)
    if result.error is None:
        return result.row
    return {**_to_mapping(result.row), ERROR: result.message}


def _process_table(chunk: Chunk, job: Job, record: Callable[[RowResult], None]) -> bytes:
    """Return the output for a table; text has none of the nulls inside of its columns."""
    table = job.stage.process_table(
        unpack_table(cast("bytes", chunk.piece.data)), chunk.shape, record
    )
    if not chunk.kind.is_table:
        names = chunk.shape.columns(table.schema.names)
        rows = table.to_pylist()
        return b"".join(
            _dump_row({**row, **{name: to_plain(row[name]) for name in names}}) for row in rows
        )
    if not job.has_columns:
        table = table.drop_columns(list(job.stage.columns))
    return pack_table(table)


def _to_mapping(row: Row) -> Mapping[str, Any]:
    return row if isinstance(row, Mapping) else {"messages": row}


# JSON


def parse_rows(piece: Piece, place: str) -> Iterator[Row | InputError]:
    """Yield the rows of a piece; an error in place of one that is not JSON."""
    name = place.rpartition(": ")[0]
    for number, raw in zip(piece.numbers, cast("list[bytes]", piece.data), strict=True):
        try:
            row = _parse_row(raw, name, number)
        except InputError as error:
            row = error
        yield row


def _parse_row(raw: bytes, name: str, number: int) -> Row:
    """Parse JSON with orjson, or with Python's parser what only that can read without a loss."""
    if orjson is not None:
        try:
            row = orjson.loads(raw)
        except orjson.JSONDecodeError:
            pass
        else:
            values = row.values() if isinstance(row, dict) else ()
            if not any(value.__class__ is float and abs(value) >= _MAX_EXACT for value in values):
                return row
    return parse_json(decode_text(raw, name, number), name, number)


def _dump_row(row: Row) -> bytes:
    if orjson is not None:
        try:
            return orjson.dumps(row, default=str, option=orjson.OPT_APPEND_NEWLINE)
        except TypeError:  # integers of more than 64 bits, half a surrogate pair
            pass
    return dump_json(row)


def _dump_plan(result: RowResult) -> bytes:
    return dump_json({ERROR: result.message} if result.plan is None else result.plan.to_dict())


# Tables from JSON rows


def _build_table(rows: Sequence[Mapping[str, Any]], chunk: Chunk, job: Job) -> pyarrow.Table:
    """Return a table with all fields of the rows, those of the stage last."""
    pyarrow = require("pyarrow", "arrow")
    own = dict.fromkeys(job.stage.columns if job.has_columns else (), pyarrow.int64())
    own[ERROR] = pyarrow.string()
    names = dict.fromkeys(chain.from_iterable(rows))
    arrays = {}
    for name in (*(name for name in names if name not in own), *own):
        values = [row.get(name) for row in rows]
        try:
            arrays[name] = pyarrow.array(values, own.get(name))
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
            raise InputError(
                f"{chunk.place} {chunk.piece.numbers[0]} and the following: {name}: {error}. "
                f"A {chunk.kind.format} file cannot store such rows; write JSONL."
            ) from None
    return pyarrow.table(arrays)


def read_rows(piece: Piece, place: str) -> list[Row]:
    """Return the rows of a piece that can be parsed; raise `InputError` if none of them can."""
    if isinstance(piece.data, bytes):
        found: list[Row] = unpack_table(piece.data).to_pylist()
        return found
    parsed = list(parse_rows(piece, place))
    rows = [row for row in parsed if not isinstance(row, InputError)]
    if parsed and not rows:
        raise next(row for row in parsed if isinstance(row, InputError))
    return rows
