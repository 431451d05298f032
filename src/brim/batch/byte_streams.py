"""Input files (plain, compressed, with a byte order mark, or piped) and atomic output.

Errors name the file, the line and the reason.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
import zlib
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from importlib import import_module
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final, cast

from brim.errors import InputError

_GZIP: Final = b"\x1f\x8b"
_ZSTANDARD: Final = b"\x28\xb5\x2f\xfd"
_BOM: Final = b"\xef\xbb\xbf"
_BLOCK: Final = 1 << 16
_ARRAY_OF_ROWS: Final = re.compile(
    rb'\s*\[\s*(?:\[|\{[^{}\[\]]*"(?:messages|conversations?|input|contents|body|params)"\s*:)'
)
"""The beginning of a JSON array of rows; an array of messages begins with other fields."""


class InputFile:
    """An open file or standard input, decompressed if necessary."""

    def __init__(self, raw: IO[bytes], name: str | None = None) -> None:
        given = name or getattr(raw, "name", None)
        is_named = isinstance(given, str) and given != "<stdin>"
        self.name: str = str(given) if is_named else "standard input"
        self._raw = raw
        self._stream = _decompress(raw)
        self._read: list[bytes] = []

    @property
    def size(self) -> int | None:
        """Size of the file on disk in bytes; None for a pipe."""
        if not self._raw.seekable():
            return None
        position = self._raw.tell()
        size = self._raw.seek(0, os.SEEK_END)
        self._raw.seek(position)
        return size

    @property
    def position(self) -> int:
        """Number of these bytes that have been read; 0 for a pipe."""
        return self._raw.tell() if self._raw.seekable() else 0

    def lines(self) -> Iterator[bytes]:
        yield from self._read
        self._read = []
        yield from self._more(self._stream.readline)

    def holds_lines(self) -> bool:
        """Return whether it is JSONL: its first line is a complete value, and others follow."""
        filled = 0
        for line in self._more(self._stream.readline):
            self._read.append(line)
            if not is_blank(line):
                filled += 1
                if filled == 2:
                    return True
                if not _is_whole(line):
                    return False
        return False

    def holds_array(self) -> bool:
        """Return whether it is a JSON array of rows; it is called before anything is read."""
        head = self._stream.peek(_BLOCK)  # type: ignore[attr-defined]
        return _ARRAY_OF_ROWS.match(head.removeprefix(_BOM)) is not None

    def items(self) -> Iterator[bytes]:
        """Yield the items of a JSON array, each as JSON; keep only one of them in memory."""
        blocks = map(getincrementaldecoder("utf-8-sig")().decode, self._more(self._read_block))
        decoder, buffer, least = json.JSONDecoder(), "", 0
        start, is_first = 0, True
        for block in chain(blocks, [""]):
            buffer, start = buffer[start:] + block, 0
            if block and len(buffer) < least:
                continue
            while (begin := _skip_separators(buffer, start, is_first)) < len(buffer):
                if buffer[begin] == "]":
                    return
                try:
                    _, end = decoder.raw_decode(buffer, begin)
                except json.JSONDecodeError as error:
                    if not block:
                        raise InputError(f"{self.name}: not a JSON array: {error.msg}") from None
                    break
                yield buffer[begin:end].encode("utf-8", "surrogatepass")
                start, is_first = end, False
            least = 2 * (len(buffer) - start)  # a long item is not parsed again at every block
        raise InputError(f"{self.name}: not a complete JSON array.")

    def text(self) -> str:
        """Return the whole text."""
        return decode_text(b"".join(self.lines()), self.name)

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if self._raw is not sys.stdin.buffer:
            self._raw.close()

    def _read_block(self) -> bytes:
        return self._stream.read(_BLOCK)

    def _more(self, read: Callable[[], bytes]) -> Iterator[bytes]:
        try:
            yield from iter(read, b"")
        except UnicodeDecodeError as error:
            raise InputError(f"{self.name}: not UTF-8 text: {error.reason}") from None
        except _find_errors() as error:
            raise InputError(f"{self.name}: {error}") from None


def _skip_separators(text: str, start: int, is_first: bool) -> int:
    """Return the start of the next item of an array."""
    found = re.compile(r"\s*\[?\s*" if is_first else r"\s*,?\s*").match(text, start)
    return found.end() if found else start


def _decompress(raw: IO[bytes]) -> IO[bytes]:
    stream = raw if hasattr(raw, "peek") else BufferedReader(cast("Any", raw), _BLOCK)
    head = cast("BufferedReader", stream).peek(4)[:4]
    if head[:2] == _GZIP:
        return cast("IO[bytes]", gzip.GzipFile(fileobj=stream))
    if head == _ZSTANDARD:
        reader = require("zstandard", "arrow").ZstdDecompressor()
        unpacked = reader.stream_reader(stream, read_across_frames=True)
        return cast("IO[bytes]", BufferedReader(unpacked, _BLOCK))
    return stream


def _find_errors() -> tuple[type[Exception], ...]:
    """Return the errors of damaged files; those of a package only if it is loaded."""
    known = OSError, EOFError, zlib.error
    package = sys.modules.get("zstandard")
    return known if package is None else (*known, package.ZstdError)


def require(package: str, extra: str) -> Any:
    """Return a package; raise `InputError` with the extra that installs it if it is missing."""
    try:
        return import_module(package)
    except ImportError:
        raise InputError(f"{package} is missing. Run: pip install 'brim[{extra}]'") from None


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
