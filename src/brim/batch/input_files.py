"""Sources: the files of a data set, read in pieces, so that memory does not depend on their size.

A source is a file, a folder of files, standard input, or an address of fsspec (`s3://…`). Its
format follows from its extension, or from its first bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from io import BufferedReader, BytesIO, RawIOBase
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal, cast, get_args

from brim.batch.byte_streams import InputFile, is_blank, require
from brim.errors import InputError

if TYPE_CHECKING:
    import pyarrow

Format = Literal["jsonl", "json", "parquet", "arrow"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)
Compression = Literal["", "gzip", "zstd"]
_EXTENSIONS: Final[dict[str, Format]] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
_COMPRESSIONS: Final[dict[str, Compression]] = {".gz": "gzip", ".zst": "zstd"}

PIECE_ROWS: Final = 200
PIECE_BYTES: Final = 1_000_000
_BUFFER: Final = 1 << 20
"""Bytes that are read at a time from a Parquet file, whose row groups can be huge."""

IsTaken = Callable[[int], bool] | None
"""Returns whether a row belongs to this shard, by its place; None: every row does."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """The format and the compression of a file."""

    format: Format
    compression: Compression = ""

    @property
    def is_table(self) -> bool:
        return self.format in ("parquet", "arrow")


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of a source."""

    numbers: Sequence[int]
    """Their line numbers in a text file; otherwise their numbers in the table or array."""
    data: list[bytes] | bytes
    """Each row as JSON, or all of them as an Arrow stream."""
    share: float | None
    """The share of the source that has been read; None if its size is unknown."""


def find_kind(name: str) -> FileKind | None:
    """Return the kind of a file by its extension; None if it is unknown."""
    path = Path(name)
    compression = _COMPRESSIONS.get(path.suffix, "")
    format = _EXTENSIONS.get((path.with_suffix("") if compression else path).suffix)
    return None if format is None else FileKind(format, compression)


def is_remote(name: str) -> bool:
    return "://" in name


def open_file(name: str) -> IO[bytes]:
    """Open a path or an address for reading."""
    if not is_remote(name):
        return Path(name).open("rb")
    with open_storage(name) as (system, path):
        return BufferedReader(RemoteFile(name, system.open(path, "rb")), _BUFFER)


@contextmanager
def name_errors(address: str) -> Iterator[None]:
    """Raise `InputError` with the address for any error: each storage service has its own classes.

    Errors of local files have the name of the file, and stay as they are.
    """
    try:
        yield
    except Exception as error:
        if not is_remote(address):
            raise
        raise InputError(f"{address}: {type(error).__name__}: {error}") from None


@contextmanager
def open_storage(address: str, **options: object) -> Iterator[tuple[Any, str]]:
    """Yield fsspec's file system of an address, and the path there; errors name the address."""
    core = require("fsspec", "arrow").core
    with name_errors(address):
        yield core.url_to_fs(address, **options)


class RemoteFile(RawIOBase):
    """A file at an address, open for reading; its errors name the address."""

    def __init__(self, address: str, file: Any) -> None:
        self._address = address
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def readinto(self, buffer: Any) -> int:
        with name_errors(self._address):
            return int(self._file.readinto(buffer))

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        self._file.close()
        super().close()


def measure_file(name: str) -> int | None:
    """Return the bytes of a file; None for standard input and for unknown sizes."""
    if is_remote(name):
        with open_storage(name) as (system, path):
            return cast("int | None", system.size(path))
    file = Path(name)
    return file.stat().st_size if file.is_file() else None


def find_files(name: str) -> list[str]:
    """Return the files of a folder with known extensions, in order of their names; or the file."""
    if is_remote(name):
        with open_storage(name) as (system, path):
            if not system.isdir(path):
                return [name]
            found = map(system.unstrip_protocol, system.find(path))
    elif Path(name).is_dir():
        found = map(str, (path for path in Path(name).rglob("*") if path.is_file()))
    else:
        return [name]
    hidden = (".", "_")
    rest = len(name.rstrip("/")) + 1
    files = sorted(path for path in found if find_kind(path) is not None)
    files = [
        path
        for path in files
        if not any(part.startswith(hidden) for part in path[rest:].split("/"))
    ]
    if not files:
        raise InputError(f"{name} has no files with a known extension: {', '.join(_EXTENSIONS)}.")
    return files


class TextSource:
    """A file with one JSON value per line, with an array of them, or with one document."""

    def __init__(self, file: InputFile, format: Format | None) -> None:
        self.name = file.name
        self.unit = "row" if format == "json" else "line"
        self.format: Format = format or "jsonl"  # a document is written as a single line
        self.size = file.size
        self._file = file
        self._is_document = format is None

    def _read(self) -> Iterator[bytes]:
        if self._is_document:
            return iter([self._file.text().encode()])
        return self._file.lines() if self.format == "jsonl" else self._file.items()

    def pieces(self, is_taken: IsTaken) -> Iterator[Piece]:
        """Yield the rows that are taken, without blank lines; close the file at the end.

        The first piece may be empty, so that the output exists and has columns.
        """
        with closing(self._file):
            yield from self._pieces(is_taken)

    def _pieces(self, is_taken: IsTaken) -> Iterator[Piece]:
        rows: list[bytes] = []
        numbers: list[int] = []
        size = ordinal = 0
        is_first = True
        for number, line in enumerate(self._read(), start=1):
            if is_blank(line):
                continue
            ordinal += 1
            if is_taken is not None and not is_taken(ordinal - 1):
                continue
            rows.append(line)
            numbers.append(number)
            size += len(line)
            if len(rows) >= PIECE_ROWS or size >= PIECE_BYTES:
                yield Piece(numbers, rows, self._share())
                rows, numbers, size, is_first = [], [], 0, False
        if rows or is_first:
            yield Piece(numbers, rows, self._share())

    def _share(self) -> float | None:
        return self._file.position / self.size if self.size else None


class TableSource:
    """A Parquet or Arrow file."""

    unit = "row"

    def __init__(self, name: str, format: Format) -> None:
        require("pyarrow", "arrow")
        self.name = name
        self.format = format
        with open_file(name) as file:
            self.size: int | None = file.seek(0, 2)

    def pieces(self, is_taken: IsTaken) -> Iterator[Piece]:
        """Yield the rows that are taken; the first piece may be empty."""
        from pyarrow import ArrowException, ArrowInvalid

        try:
            with open_file(self.name) as file:
                read = _read_parquet if self.format == "parquet" else _read_arrow
                yield from _slice(read(file), is_taken)
        except (ArrowInvalid, ArrowException) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"{self.name}: not a readable {self.format} file: {reason}") from None


def _read_parquet(file: IO[bytes]) -> Iterator[tuple[pyarrow.RecordBatch, float]]:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False) as parquet:
        total, seen = parquet.metadata.num_rows, 0
        for batch in parquet.iter_batches(PIECE_ROWS, use_threads=False):
            seen += batch.num_rows
            yield batch, seen / total
        if not total:
            yield _make_empty(parquet.schema_arrow), 1.0


def _read_arrow(file: IO[bytes]) -> Iterator[tuple[pyarrow.RecordBatch, float]]:
    from pyarrow import ArrowInvalid, ipc

    try:
        reader = ipc.open_file(file)
    except ArrowInvalid:
        file.seek(0)
        size = file.seek(0, 2)
        file.seek(0)
        stream = ipc.open_stream(file)
        for batch in stream:
            yield batch, file.tell() / size
        return
    for index in range(reader.num_record_batches):
        yield reader.get_batch(index), (index + 1) / reader.num_record_batches
    if not reader.num_record_batches:
        yield _make_empty(reader.schema), 1.0


def _make_empty(schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    import pyarrow

    return pyarrow.RecordBatch.from_pylist([], schema)


def _slice(
    batches: Iterator[tuple[pyarrow.RecordBatch, float]], is_taken: IsTaken
) -> Iterator[Piece]:
    """Yield pieces of limited size."""
    import pyarrow

    is_taken = is_taken or (lambda _: True)
    start, is_first = 0, True
    for batch, share in batches:
        step = min(PIECE_ROWS, max(1, int(PIECE_BYTES * batch.num_rows / max(1, batch.nbytes))))
        for offset in range(0, max(1, batch.num_rows), step):
            part = batch.slice(offset, step)
            first = start + offset
            places = [place for place in range(first, first + part.num_rows) if is_taken(place)]
            if len(places) < part.num_rows:
                offsets = [place - first for place in places]
                part = part.take(pyarrow.array(offsets, pyarrow.int64()))
            if part.num_rows or is_first:
                is_first = False
                yield Piece([place + 1 for place in places], pack_table(part), share)
        start += batch.num_rows


def pack_table(table: Any) -> bytes:
    """Return a pyarrow table or batch as an Arrow stream."""
    from pyarrow import ipc

    sink = BytesIO()
    with ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    return sink.getvalue()


def unpack_table(data: bytes) -> pyarrow.Table:
    from pyarrow import ipc

    return ipc.open_stream(data).read_all()


Source = TextSource | TableSource


def open_source(name: str, format: Format | None = None) -> Source:
    """Open a file; its format follows from its extension or its text, unless it is given."""
    kind = find_kind(name)
    if format is None and kind is not None and kind.format != "json":
        format = kind.format
    if format in ("parquet", "arrow"):
        return TableSource(name, format)
    file = InputFile(open_file(name), name)
    return TextSource(file, format or find_text_format(file))


def find_text_format(file: InputFile) -> Format | None:
    """Return the format of a data set in a text file; None for one document."""
    kind = find_kind(file.name)
    if kind is not None and kind.format == "jsonl":
        return "jsonl"
    if file.holds_array():
        return "json"
    return "jsonl" if file.holds_lines() else None
