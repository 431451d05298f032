"""Calibration data of servers and models, kept across runs.

The file is optional: if it is broken or cannot be written, the data lasts for this process,
`problem` says why, and nothing fails.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeVar

from brim.config import state_folder
from brim.storage.database import Migration, open_database

T = TypeVar("T")

BUSY_TIMEOUT = 2.0
"""Seconds to wait for a process that holds the write lock."""


def _create_tables(base: sqlite3.Connection) -> None:
    base.execute(
        "CREATE TABLE IF NOT EXISTS calibration (endpoint TEXT NOT NULL, model TEXT NOT NULL, "
        "data TEXT NOT NULL, updated TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, "
        "PRIMARY KEY (endpoint, model)) WITHOUT ROWID"
    )


MIGRATIONS: Final[tuple[Migration, ...]] = (_create_tables,)


def default_path() -> Path:
    """Return the path in the folder for state."""
    return state_folder(os.environ) / "calibration.sqlite3"


class CalibrationStore:
    """A JSON object per (endpoint, model); safe for several threads and processes."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = default_path() if path is None else Path(path)
        self.problem: str | None = None
        """Why nothing is kept across runs; None if it is."""
        self._lock = threading.RLock()
        self._memory: dict[tuple[str, str], dict[str, Any]] = {}
        self._ready = False

    def load(self, endpoint: str, model: str) -> dict[str, Any] | None:
        """Return the data of a model at an endpoint; None if there is none."""
        with self._lock:
            rows = self._rows("WHERE endpoint = ? AND model = ?", (endpoint, model))
            return rows.get((endpoint, model))

    def save(self, endpoint: str, model: str, data: Mapping[str, Any]) -> None:
        """Replace the data of a model at an endpoint."""
        text = json.dumps(dict(data), separators=(",", ":"))
        with self._lock:
            self._memory[endpoint, model] = json.loads(text)
            self._write(
                "INSERT INTO calibration (endpoint, model, data) VALUES (?, ?, ?) "
                "ON CONFLICT (endpoint, model) DO UPDATE SET data = excluded.data, "
                "updated = CURRENT_TIMESTAMP",
                (endpoint, model, text),
            )

    def all(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Return all data, by (endpoint, model)."""
        with self._lock:
            return self._rows()

    def forget(self, endpoint: str | None = None, model: str | None = None) -> None:
        """Delete the data of a model, of an endpoint, or everything."""
        with self._lock:
            for key in list(self._memory):
                if endpoint in (None, key[0]) and model in (None, key[1]):
                    del self._memory[key]
            self._write(
                "DELETE FROM calibration WHERE (?1 IS NULL OR endpoint = ?1) "
                "AND (?2 IS NULL OR model = ?2)",
                (endpoint, model),
            )

    def _rows(
        self, where: str = "", values: tuple[str, ...] = ()
    ) -> dict[tuple[str, str], dict[str, Any]]:
        def read(base: sqlite3.Connection) -> dict[tuple[str, str], dict[str, Any]]:
            rows = base.execute(f"SELECT endpoint, model, data FROM calibration {where}", values)
            return {(endpoint, model): json.loads(text) for endpoint, model, text in rows}

        rows = self._run(read)
        return {key: dict(row) for key, row in self._memory.items()} if rows is None else rows

    def _write(self, statement: str, values: tuple[str | None, ...]) -> None:
        self._run(lambda base: base.execute(statement, values))

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Return the result of the work; None if the file cannot be used."""
        if self.problem is not None and not self._ready:
            return None
        try:
            with closing(open_database(self.path, MIGRATIONS, timeout=BUSY_TIMEOUT)) as base, base:
                self._ready = True
                found = work(base)
        except (sqlite3.Error, OSError, ValueError) as error:
            self.problem = f"{self.path} cannot be used: {error}. Nothing is kept across runs."
            return None
        self.problem = None
        return found
