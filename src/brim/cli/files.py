"""Input files (plain, compressed, with a byte order mark, or piped) and atomic output.

Errors name the file, the line and the reason.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, Final, cast

from brim.errors import InputError

_GZIP: Final = b"\x1f\x8b"
_BOM: Final = b"\xef\xbb\xbf"


class InputFile:
    """An open file or standard input, decompressed if necessary."""

    def __init__(self, raw: IO[bytes]) -> None:
        name = getattr(raw, "name", None)
        self.name = name if isinstance(name, str) and name != "<stdin>" else "standard input"
        self._raw = raw
        self._stream = _decompress(raw)
        self._read: list[bytes] = []

    @property
    def size(self) -> int | None:
        """Size of the file on disk in bytes; None for a pipe."""
        try:
            status = os.fstat(self._raw.fileno())
        except OSError:
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    @property
    def position(self) -> int:
        """Number of these bytes that have been read; 0 for a pipe."""
        return self._raw.tell() if self._raw.seekable() else 0

    def is_same(self, path: Path) -> bool:
        """Return whether this is the file at a path."""
        try:
            return os.path.samestat(os.fstat(self._raw.fileno()), path.stat())
        except OSError:
            return False

    def lines(self) -> Iterator[bytes]:
        yield from self._read
        self._read = []
        yield from self._more()

    def holds_rows(self) -> bool:
        """Return whether it is JSONL, by its name or because its first line is a complete value."""
        if self.name.removesuffix(".gz").endswith((".jsonl", ".ndjson")):
            return True
        filled = 0
        for line in self._more():
            self._read.append(line)
            if not is_blank(line):
                filled += 1
                if filled == 2:
                    return True
                if not _is_whole(line):
                    return False
        return False

    def text(self) -> str:
        """Return the whole text."""
        return decode_text(b"".join(self.lines()), self.name)

    def _more(self) -> Iterator[bytes]:
        try:
            yield from iter(self._stream.readline, b"")
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{self.name}: {error}") from None


def _decompress(raw: IO[bytes]) -> IO[bytes]:
    stream = raw if hasattr(raw, "peek") else BufferedReader(cast("Any", raw))
    if cast("BufferedReader", stream).peek(2)[:2] == _GZIP:
        return cast("IO[bytes]", gzip.GzipFile(fileobj=stream))
    return stream


def _is_whole(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line.removeprefix(_BOM)), list | dict)
    except (ValueError, RecursionError):
        return False


def decode_text(data: bytes, name: str, line: int = 1) -> str:
    """Decode UTF-8 with or without a byte order mark; `line` is the line number of the start."""
    try:
        return data.removeprefix(_BOM).decode()
    except UnicodeDecodeError as error:
        line += error.object.count(b"\n", 0, error.start)
        byte = error.object[error.start]
        raise InputError(f"{name}: line {line}: not UTF-8 text (byte 0x{byte:02x})") from None


def parse_json(text: str, name: str, line: int = 1) -> Any:
    """Parse JSON; raise InputError with the line and column of an error."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {line + error.lineno - 1}, column {error.colno}"
        raise InputError(f"{name}: {where}: not JSON: {error.msg}") from None
    except RecursionError:
        raise InputError(f"{name}: line {line}: nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{name}: line {line}: {error}") from None


def dump_json(value: object, indent: int | None = None) -> bytes:
    """Return a value as JSON with a newline; lone surrogates are escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        return f"{text}\n".encode()
    except UnicodeEncodeError:
        return f"{json.dumps(value, indent=indent)}\n".encode()


def is_blank(line: bytes) -> bool:
    return not line.strip(_BOM).strip()


def write_file(path: Path, data: bytes) -> None:
    """Write a file atomically; `-` is standard output."""
    if str(path) == "-":
        sys.stdout.buffer.write(data)
    elif path.exists() and not path.is_file():  # a device or a pipe cannot be replaced
        path.write_bytes(data)
    else:
        part = path.resolve().with_name(f".{path.name}.{os.getpid()}.part")
        try:
            part.write_bytes(data)
            part.replace(path.resolve())
        except OSError as error:
            error.filename = path
            raise
        finally:
            part.unlink(missing_ok=True)
