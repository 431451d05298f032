"""The log of finished requests as files for other programs: JSON lines or Parquet.

Rows have names, sizes, durations and outcomes, never message content. A process writes its own
files, so gateways can share a folder. A file whose name ends with `.part` is still being written.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from brim.config import ExportConfig, open_private
from brim.errors import InputError
from brim.gateway.records import RequestRecord
from brim.gateway.request_history import MAX_INTEGER

Row = Mapping[str, Any]

PARQUET_SECONDS: Final = 300.0
"""How long rows wait for their Parquet file, which cannot be extended."""
MAX_ROWS: Final = 50_000
"""Rows of a Parquet file; also rows that are kept while files cannot be written."""
PRUNE_SECONDS: Final = 3_600.0
DAY: Final = 86_400.0
MEGABYTE: Final = 1_000_000
_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("streamed", "dry_run", "usage_estimated"), "bool"),
    **dict.fromkeys(("time", "cost", "first_byte", "seconds"), "float64"),
    **dict.fromkeys(("status", "tokens_before", "tokens", "limit", "resent"), "int64"),
    **dict.fromkeys(("attempts", "input", "cached", "written", "output"), "int64"),
}
"""The types of the columns of Parquet files; the others are text."""

log = logging.getLogger("brim.gateway")


class RequestExport:
    """The rows of finished requests, buffered and then in files."""

    def __init__(self, config: ExportConfig) -> None:
        self._folder = Path(config.folder).expanduser()
        self._days = config.days
        self._most_bytes = config.megabytes * MEGABYTE
        self._write: Callable[[Sequence[Row]], None] = self._write_lines
        self._is_parquet = config.format == "parquet"
        if self._is_parquet:
            _import_arrow()
            self._write = self._write_table
        self._rows: list[Row] = []
        self._lock = asyncio.Lock()
        self._file: Path | None = None
        self._number = 0
        self._write_at = time.monotonic() + PARQUET_SECONDS
        self._prune_at = 0.0
        self._is_failing = False

    def add(self, record: RequestRecord) -> None:
        self._rows.append(_to_row(record))
        del self._rows[:-MAX_ROWS]

    async def flush(self, *, is_last: bool = False) -> None:
        """Write the rows that are due; all of them if these are the last."""
        async with self._lock:
            now = time.monotonic()
            is_due = now >= self._write_at or len(self._rows) >= MAX_ROWS // 2
            if self._rows and (is_due or is_last or not self._is_parquet):
                rows, self._rows = self._rows, []
                self._write_at = now + PARQUET_SECONDS
                await asyncio.to_thread(self._try_to_write, rows)
            if now >= self._prune_at:
                self._prune_at = now + PRUNE_SECONDS
                await asyncio.to_thread(self._prune)
        if is_last:
            self._close()

    def _try_to_write(self, rows: list[Row]) -> None:
        """Write rows. If that fails, log it once, and keep them."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._write(rows)
            self._is_failing = False
        except OSError as error:
            self._rows[:0] = rows
            if not self._is_failing:
                fields = {"folder": str(self._folder), "reason": str(error)}
                log.warning("requests not exported", extra={"fields": fields})
            self._is_failing = True

    def _name(self, ending: str) -> Path:
        """Return the path of a new file, with its time and its writer."""
        at, host = datetime.now(UTC), socket.gethostname().partition(".")[0]
        self._number += 1
        writer = f"{host}-{os.getpid()}-{self._number}"
        return self._folder / f"requests-{at:%Y%m%dT%H%M%S}-{writer}.{ending}"

    def _write_lines(self, rows: Sequence[Row]) -> None:
        if self._file is None:
            self._file = self._name("jsonl.part")
        lines = b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
        with open(self._file, "ab", opener=open_private) as file:
            file.write(lines)
        today = f"requests-{datetime.now(UTC):%Y%m%d}"
        is_old = not self._file.name.startswith(today)
        if is_old or self._file.stat().st_size >= self._most_bytes:
            self._close()

    def _close(self) -> None:
        """Give the current file its final name."""
        if self._file is not None:
            self._file.replace(self._file.with_suffix(""))
            self._file = None

    def _write_table(self, rows: Sequence[Row]) -> None:
        arrow, parquet = _import_arrow()
        columns = rows[0].keys()
        types = [(name, arrow.type_for_alias(_TYPES.get(name, "string"))) for name in columns]
        table = arrow.Table.from_pylist(list(rows), arrow.schema(types))
        self._file = self._name("parquet.part")
        with open(self._file, "xb", opener=open_private) as file:
            parquet.write_table(table, file, compression="zstd")
        self._close()

    def _prune(self) -> None:
        if not self._days:
            return
        oldest = time.time() - self._days * DAY
        for path in self._folder.glob("requests-*"):
            if path.suffix in (".jsonl", ".parquet") and path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)


def _to_row(record: RequestRecord) -> Row:
    """Return a request as a flat row, with the same columns for every request."""
    row = record.to_dict()
    usage = row.pop("usage") or {}
    numbers = {
        name: min(usage[name], MAX_INTEGER) if usage else None
        for name in ("input", "cached", "written", "output")
    }
    row["trimmed"] = orjson.dumps(row["trimmed"]).decode() if row["trimmed"] else None
    return {**row, **numbers, "usage_estimated": usage.get("estimated")}


def _import_arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        message = "gateway.export.format = \"parquet\" needs pyarrow: pip install 'brim[arrow]'"
        raise InputError(message) from None
    return pyarrow, pyarrow.parquet
