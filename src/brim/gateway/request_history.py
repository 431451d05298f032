"""The history of requests: one row for each finished request, in a file of this machine.

Rows have names, sizes, durations and outcomes, never message content. They are written in batches
by a thread, and kept for some days. Gateways with the same state folder share the file.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from brim.gateway.failures import has_failed
from brim.gateway.records import RequestRecord
from brim.storage.database import Migration, open_database, run_script

GroupOfRequests = Literal["model", "key", "upstream", "reason"]

FILE: Final = "history.sqlite3"
MAX_ROWS: Final = 1_000_000
"""Rows that are kept at most, about 300 MB."""
MAX_BUFFERED: Final = 20_000
"""Rows that wait in memory while the file cannot be written; further ones are dropped."""
READERS: Final = 2
"""Threads that read."""
PRUNE_SECONDS: Final = 600.0
BUSY_SECONDS: Final = 5.0
DAY: Final = 86_400.0
MAX_INTEGER: Final = 2**63 - 1
"""The largest number in a column; an upstream may report any number of tokens."""
COLUMNS: Final = (
    *("id", "time", "path", "format", "model", "alias", "key", "project", "upstream", "streamed"),
    *("dry_run", "status", "code", "end", "tokens_before", "tokens", "token_limit", "trimmed"),
    *("resent", "fallback", "input", "cached", "output", "cost", "first_byte", "seconds", "failed"),
)
_MIGRATIONS: Final[tuple[Migration, ...]] = (
    partial(run_script, package="brim.gateway", file="request_history.sql"),
)
_INSERT: Final = (
    f"INSERT OR IGNORE INTO requests ({', '.join(COLUMNS)}) "
    f"VALUES ({', '.join('?' * len(COLUMNS))})"
)
_FLAGS: Final = ("streamed", "dry_run", "failed")
_GROUPS: Final[Mapping[GroupOfRequests, str]] = {
    "model": "coalesce(fallback, model)",
    "key": "coalesce(key, '')",
    "upstream": "coalesce(upstream, '')",
    "reason": "coalesce(code, CASE WHEN status >= 400 THEN status ELSE end END)",
}
_SUMS: Final = (
    "count(*), sum(failed), total(input), total(cached), total(output), total(cost), "
    "sum(input IS NOT NULL AND cost IS NULL)"
)
_SEARCHED: Final = ("id", "model", "alias", "fallback", "key", "project", "upstream", "code", "end")

log = logging.getLogger("brim.gateway")


@dataclass(frozen=True, slots=True)
class HistoryFilter:
    """Which requests to read."""

    since: float
    until: float
    text: str = ""
    """Words that must all be in a name, the id, the code or the status."""
    model: str = ""
    key: str = ""
    is_failed: bool = False
    is_trimmed: bool = False

    @property
    def condition(self) -> tuple[str, list[object]]:
        """The condition in SQL, and its values."""
        parts, values = ["time >= ?", "time < ?"], [self.since, self.until]
        found: list[object] = [*values]
        for name, value in (("model", self.model), ("key", self.key)):
            if value:
                parts.append(f"{_GROUPS[name]} = ?")  # type: ignore[index]
                found.append(value)
        if self.is_failed:
            parts.append("failed")
        if self.is_trimmed:
            parts.append("trimmed <> ''")
        searched = " || ' ' || ".join(f"coalesce({name}, '')" for name in (*_SEARCHED, "status"))
        for word in self.text.split():
            parts.append(f"instr(lower({searched}), ?)")
            found.append(word.lower())
        return " AND ".join(parts), found


@dataclass(frozen=True, slots=True)
class RequestSums:
    """Sums of some requests."""

    requests: int = 0
    failed: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0
    cost: float = 0.0
    unpriced: int = 0

    @classmethod
    def of(cls, columns: Sequence[Any]) -> RequestSums:
        requests, failed, input, cached, output, cost, unpriced = columns
        numbers = (requests, failed or 0, int(input), int(cached), int(output))
        return cls(*numbers, round(cost, 6), unpriced or 0)


class RequestHistory:
    """The rows of finished requests, buffered and then in a file."""

    def __init__(self, folder: Path, days: int) -> None:
        self.path = folder / FILE
        self.days = days
        """Days for which rows are kept; 0 keeps none."""
        self._buffer: list[tuple[object, ...]] = []
        self._lock = threading.Lock()
        # Each thread keeps the memory of the largest query it ran, so only few of them read.
        self._readers = ThreadPoolExecutor(READERS, "brim-history")
        self._is_unavailable = False
        self._prune_at = 0.0

    def add(self, record: RequestRecord) -> None:
        """Buffer the row of a finished request."""
        if self.days and len(self._buffer) < MAX_BUFFERED:
            self._buffer.append(_to_row(record))

    async def flush(self) -> None:
        """Write the buffered rows, and remove old ones now and then."""
        if self._buffer:
            await asyncio.to_thread(self._write)

    async def close(self) -> None:
        """Write what is buffered; nothing can be read afterwards."""
        await self.flush()
        self._readers.shutdown(wait=False, cancel_futures=True)

    def _write(self) -> None:
        with self._lock:
            rows, self._buffer = self._buffer, []
            try:
                with closing(self._connect()) as base, base:
                    base.execute("BEGIN IMMEDIATE")
                    base.executemany(_INSERT, rows)
                    self._prune(base)
            except (sqlite3.Error, OSError) as error:
                self._buffer = (rows + self._buffer)[:MAX_BUFFERED]
                if not self._is_unavailable:
                    fields = {"file": str(self.path), "reason": str(error)}
                    log.warning("request history not written", extra={"fields": fields})
                self._is_unavailable = True
            else:
                self._is_unavailable = False

    def _prune(self, base: sqlite3.Connection) -> None:
        if time.monotonic() < self._prune_at:
            return
        self._prune_at = time.monotonic() + PRUNE_SECONDS
        base.execute("DELETE FROM requests WHERE time < ?", (time.time() - self.days * DAY,))
        query = "SELECT time FROM requests ORDER BY time DESC LIMIT 1 OFFSET ?"
        if (oldest := base.execute(query, (MAX_ROWS,)).fetchone()) is not None:
            base.execute("DELETE FROM requests WHERE time <= ?", oldest)

    def _connect(self) -> sqlite3.Connection:
        return open_database(self.path, _MIGRATIONS, timeout=BUSY_SECONDS)

    # Reading

    async def search(
        self, wanted: HistoryFilter, before: tuple[float, str] | None, number: int
    ) -> list[dict[str, Any]]:
        """Return matching requests, the newest first, that are older than `before`."""
        condition, values = wanted.condition
        if before is not None:
            condition, values = f"{condition} AND (time, id) < (?, ?)", [*values, *before]
        rows = await self._read(
            f"SELECT {', '.join(COLUMNS)} FROM requests WHERE {condition} "
            "ORDER BY time DESC, id DESC LIMIT ?",
            *values,
            number,
        )
        return [_to_dict(row) for row in rows]

    async def find(self, id: str) -> dict[str, Any] | None:
        query = f"SELECT {', '.join(COLUMNS)} FROM requests WHERE id = ?"
        rows = await self._read(query, id)
        return _to_dict(rows[0]) if rows else None

    async def sums(
        self, wanted: HistoryFilter, by: GroupOfRequests, number: int
    ) -> list[tuple[str, RequestSums]]:
        """Return the sums of the groups with the most requests."""
        condition, values = wanted.condition
        rows = await self._read(
            f"SELECT {_GROUPS[by]} AS name, {_SUMS} FROM requests WHERE {condition} "
            "GROUP BY name ORDER BY count(*) DESC, name LIMIT ?",
            *values,
            number,
        )
        return [(str(name), RequestSums.of(columns)) for name, *columns in rows]

    async def series(self, wanted: HistoryFilter, step: float) -> dict[int, RequestSums]:
        """Return sums by the number of the step since `since`."""
        condition, values = wanted.condition
        rows = await self._read(
            f"SELECT cast((time - ?) / ? AS INTEGER) AS step, {_SUMS} FROM requests "
            f"WHERE {condition} GROUP BY step",
            *(wanted.since, step, *values),
        )
        return {number: RequestSums.of(columns) for number, *columns in rows}

    async def percentiles(
        self, wanted: HistoryFilter, step: float, column: Literal["first_byte", "seconds"]
    ) -> dict[int, tuple[float, float]]:
        """Return the median and the 95th percentile of a duration, by step.

        Requests that no upstream answered have no duration; of others, the time to the first byte
        counts only in streams.
        """
        condition, values = wanted.condition
        counted = "input IS NOT NULL" + (" AND streamed" if column == "first_byte" else "")
        rows = await self._read(
            "SELECT step, min(iif(rank >= 0.5 * size, value, NULL)), "
            "min(iif(rank >= 0.95 * size, value, NULL)) FROM ("
            f"SELECT cast((time - ?) / ? AS INTEGER) AS step, {column} AS value, "
            "row_number() OVER ranked AS rank, "
            "count(*) OVER (PARTITION BY cast((time - ?) / ? AS INTEGER)) AS size "
            f"FROM requests WHERE {condition} AND {counted} AND {column} IS NOT NULL "
            f"WINDOW ranked AS (PARTITION BY cast((time - ?) / ? AS INTEGER) ORDER BY {column})"
            ") GROUP BY step",
            *(wanted.since, step, wanted.since, step, *values, wanted.since, step),
        )
        return {number: (median, late) for number, median, late in rows}

    async def _read(self, statement: str, *values: object) -> list[Any]:
        """Return rows, with those that are still buffered; none if the file cannot be read."""
        await self.flush()
        opened: list[sqlite3.Connection] = []
        try:
            work = partial(self._read_now, statement, values, opened)
            return await asyncio.get_running_loop().run_in_executor(self._readers, work)
        except asyncio.CancelledError:
            for base in opened:
                with suppress(sqlite3.ProgrammingError):  # it has just been closed
                    base.interrupt()
            raise

    def _read_now(
        self, statement: str, values: Sequence[object], opened: list[sqlite3.Connection]
    ) -> list[Any]:
        if not self.path.exists():
            return []
        try:
            with closing(self._connect()) as base:
                opened.append(base)
                return base.execute(statement, values).fetchall()
        except (sqlite3.Error, OSError) as error:
            fields = {"file": str(self.path), "reason": str(error)}
            log.warning("request history not read", extra={"fields": fields})
            return []


def _to_row(record: RequestRecord) -> tuple[object, ...]:
    usage = record.usage
    used: Sequence[int | None] = (None, None, None)
    if usage is not None:
        used = [min(each, MAX_INTEGER) for each in (usage.input, usage.cached, usage.output)]
    return (
        *(record.id, record.time, record.path, record.format, record.model, record.alias),
        *(record.key, record.project, record.upstream, record.streamed, record.dry_run),
        *(record.status, record.code, record.end, record.tokens_before, record.tokens),
        *(record.limit, json.dumps(record.trimmed) if record.trimmed else "", record.resent),
        *(record.fallback, *used, None if record.cost is None else float(record.cost)),
        *(record.first_byte, record.seconds, has_failed(record.status, record.end)),
    )


def _to_dict(row: Sequence[Any]) -> dict[str, Any]:
    """Return a row like a recent request; the decisions for its messages are not kept."""
    found = dict(zip(COLUMNS, row, strict=True))
    used = {name: found.pop(name) for name in ("input", "cached", "output")}
    found["usage"] = None if used["input"] is None else used
    found["limit"] = found.pop("token_limit")
    found["trimmed"] = json.loads(found["trimmed"] or "{}")
    return {**found, **{name: bool(found[name]) for name in _FLAGS}}
