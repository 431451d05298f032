"""Outputs: files that receive the rows of a job, and that a later run can continue.

Text is appended, compressed piece by piece, and cut back to the last complete piece after an
interruption. Parquet and Arrow files cannot be continued, so their rows are collected in segments
next to the file, which are joined at the end.
"""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import NamedTemporaryFile, mkdtemp
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, cast

from brim.batch.byte_streams import require, write_file
from brim.batch.input_files import (
    FileKind,
    is_remote,
    name_errors,
    open_storage,
    pack_table,
    unpack_table,
)
from brim.errors import InputError

if TYPE_CHECKING:
    import pyarrow

SEGMENT_BYTES: Final = 16_000_000
"""Bytes of the Arrow data of a segment, which becomes a row group."""
_START: Final = b"[\n"
_BETWEEN: Final = b",\n"


class Output(Protocol):
    """Receives encoded rows in order."""

    def write(self, data: bytes) -> bool:
        """Write a piece; return whether all pieces so far would survive a crash."""
        ...

    @property
    def position(self) -> int:
        """What a later run passes as `position` to continue here."""
        ...

    def finish(self) -> None:
        """Complete the file."""
        ...

    def close(self) -> None: ...


def encode_lines(lines: bytes, kind: FileKind, *, is_first: bool) -> bytes:
    """Return rows, one per line, as a part of a text file."""
    if kind.format == "json" and lines:
        start = _START if is_first else _BETWEEN
        lines = start + lines.rstrip(b"\n").replace(b"\n", _BETWEEN)
    return compress(lines, kind)


def compress(data: bytes, kind: FileKind) -> bytes:
    if not data or not kind.compression:
        return bytes(data)
    if kind.compression == "gzip":
        return gzip.compress(data, 6, mtime=0)
    packed: bytes = require("zstandard", "arrow").ZstdCompressor().compress(bytes(data))
    return packed


class TextOutput:
    """Appends to a file, to standard output (`-`) or to an address."""

    def __init__(self, name: str, kind: FileKind, position: int | None = None) -> None:
        """Continue the file at a position; None starts it from scratch."""
        self._name = name
        self._kind = kind
        self.position = position or 0
        self._transaction: Any = None
        """Of an address: the file appears there once it is complete. None once it has ended."""
        if position is not None:
            self._cut_back(Path(name), position)
        self._file = self._open(name, "wb" if position is None else "ab")

    def _open(self, name: str, mode: str) -> IO[bytes]:
        if name == "-":
            return sys.stdout.buffer
        if not is_remote(name):
            return cast("IO[bytes]", Path(name).open(mode))
        with open_storage(name, skip_instance_cache=True) as (system, path):
            self._transaction = system.transaction  # of this file alone
            self._transaction.start()
            return cast("IO[bytes]", system.open(path, mode))

    def _cut_back(self, path: Path, position: int) -> None:
        size = path.stat().st_size if path.exists() else 0
        if size < position:
            raise InputError(
                f"{path} is smaller than when it was written: {size:,} bytes. Run without --resume."
            )
        if size > position:
            os.truncate(path, position)

    def write(self, data: bytes) -> bool:
        with name_errors(self._name):
            self._file.write(data)
            self._file.flush()
        self.position += len(data)
        return True

    def finish(self) -> None:
        if self._kind.format == "json":
            end = b"\n]\n" if self.position else b"[]\n"
            self.write(compress(end, self._kind))
        if self._transaction is not None:
            with name_errors(self._name):
                self._file.close()
                self._transaction.complete()
            self._transaction = None

    def close(self) -> None:
        if self._transaction is not None:
            for end in (self._file.close, partial(self._transaction.complete, commit=False)):
                with suppress(Exception):  # the error that ended the run matters
                    end()
        elif self._file is not sys.stdout.buffer:
            self._file.close()


class TableOutput:
    """Collects Arrow data in segments of a folder, and joins them in a Parquet or Arrow file.

    The file has all fields that any table has.
    """

    def __init__(self, name: str, kind: FileKind, position: int | None = None) -> None:
        """Continue after a number of segments; None starts from scratch."""
        self._name = name
        self._kind = kind
        self.position = position or 0
        self._folder = _locate_segments(name)
        if position is None:
            rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        if not all(path.exists() for path in self._segments(self.position)):
            raise InputError(f"Segments of {name} are missing. Run without --resume.")
        self._schema: pyarrow.Schema | None = None
        """The fields of all tables with rows."""
        for path in self._segments(self.position):
            self._add_fields(unpack_table(path.read_bytes()))
        self._tables: list[pyarrow.Table] = []
        self._bytes = 0

    def write(self, data: bytes) -> bool:
        table = unpack_table(data)
        self._add_fields(table)
        self._tables.append(table)
        self._bytes += table.nbytes
        if self._bytes < SEGMENT_BYTES:
            return False
        self._write_segment()
        return True

    def _add_fields(self, table: pyarrow.Table) -> None:
        """Add those of a table; raise `InputError` if they have other types."""
        if not table.num_rows or table.schema == self._schema:
            return
        with self._name_types():
            self._schema = _join_schemas(self._schema, table.schema)

    @contextmanager
    def _name_types(self) -> Iterator[None]:
        """Raise `InputError` in place of pyarrow's errors."""
        from pyarrow import ArrowException

        try:
            yield
        except ArrowException as error:
            text = str(error).rstrip(".")
            raise InputError(
                f"{self._name}: the rows cannot be stored together: {text}. Write JSONL."
            ) from None

    def _write_segment(self) -> None:
        path = self._segments(self.position + 1)[-1]
        part = path.with_suffix(".part")
        filled = [table for table in self._tables if table.num_rows]
        with self._name_types():
            part.write_bytes(pack_table(_concat_tables(filled or self._tables[:1])))
        part.replace(path)
        self.position += 1
        self._tables, self._bytes = [], 0

    def _segments(self, number: int) -> list[Path]:
        return [self._folder / f"{index:06}" for index in range(number)]

    def finish(self) -> None:
        """Join the segments; each becomes a row group."""
        if self._tables:
            self._write_segment()
        paths = self._segments(self.position)
        if not paths:
            return
        joined = self._folder / "joined"
        with joined.open("wb") as file, self._name_types():
            self._join(paths, file)
        if is_remote(self._name):
            with open_storage(self._name) as (system, place):
                system.put_file(str(joined), place)
        else:
            joined.replace(self._name)
        rmtree(self._folder, ignore_errors=True)

    def _join(self, paths: Sequence[Path], file: IO[bytes]) -> None:
        schema = _type_empty_columns(self._schema or unpack_table(paths[0].read_bytes()).schema)
        with self._create_writer(file, schema) as writer:
            for path in paths:
                table = unpack_table(path.read_bytes())
                if table.schema != schema:
                    table = _concat_tables([schema.empty_table(), table])
                writer.write_table(table, max(1, table.num_rows))
                del table  # before the next one is read

    def _create_writer(self, file: IO[bytes], schema: pyarrow.Schema) -> Any:
        from pyarrow import ipc
        from pyarrow.parquet import ParquetWriter

        if self._kind.format == "parquet":
            return ParquetWriter(file, schema, compression="zstd")
        return ipc.new_file(file, schema)

    def close(self) -> None:
        if is_remote(self._name):
            rmtree(self._folder, ignore_errors=True)


def _join_schemas(one: pyarrow.Schema | None, other: pyarrow.Schema) -> pyarrow.Schema:
    """Return a schema with the fields of two, of types that can store both."""
    from pyarrow import unify_schemas

    return other if one is None else unify_schemas([one, other], promote_options="permissive")


def _concat_tables(tables: Sequence[pyarrow.Table]) -> pyarrow.Table:
    from pyarrow import concat_tables

    return concat_tables(tables, promote_options="permissive")


def _type_empty_columns(schema: pyarrow.Schema) -> pyarrow.Schema:
    """Return a schema in which columns without any value are text: few readers know nulls."""
    from pyarrow import string, types

    for place, field in enumerate(schema):
        if types.is_null(field.type):
            schema = schema.set(place, field.with_type(string()))
    return schema


def _locate_segments(name: str) -> Path:
    if is_remote(name):
        return Path(mkdtemp(prefix="brim-"))
    path = Path(name)
    return path.with_name(f".{path.name}.segments")


def open_output(name: str, kind: FileKind, position: int | None = None) -> Output:
    """Open a file, standard output (`-`) or an address; continue at a position if it is given."""
    if not is_remote(name) and name != "-":
        Path(name).parent.mkdir(parents=True, exist_ok=True)
    if kind.is_table and name == "-":
        raise InputError(f"{kind.format} cannot be written to standard output. Use -o FILE.")
    return (TableOutput if kind.is_table else TextOutput)(name, kind, position)


def check_output(name: str) -> None:
    """Raise the error that `write_output` would raise after a long run; write nothing."""
    if is_remote(name):
        with open_storage(name, skip_instance_cache=True) as (system, place):
            system.transaction.start()
            try:
                system.open(place, "wb").close()
            finally:
                system.transaction.complete(commit=False)
        return
    path = Path(name).resolve()
    if path.is_dir():
        raise InputError(f"{name} is a folder. Name a file.")
    if name != "-" and (path.is_file() or not path.exists()):
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent):  # as `write_file` does
            pass


def write_output(name: str, data: bytes) -> None:
    """Write a whole file, standard output (`-`) or an address."""
    if is_remote(name):
        with open_storage(name) as (system, path):
            system.pipe_file(path, data)
    else:
        write_file(Path(name), data)
