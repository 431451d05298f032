"""SQLite files that only their user can read, and the database of the user's conversations."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from brim.errors import StoreError

Migration = Callable[[sqlite3.Connection], None]


class NewerSchemaError(sqlite3.DatabaseError):
    """A newer version of brim has written the file."""


def open_database(
    path: Path, migrations: Sequence[Migration], *, timeout: float, shared: bool = False
) -> sqlite3.Connection:
    """Open a file, creating it if needed; the caller begins transactions explicitly.

    `timeout` is how long to wait for the write lock, in seconds. A connection that is `shared`
    between threads must be used by one thread at a time.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Created here, so that other users can never read it, not even for a moment.
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    base = sqlite3.connect(
        path, timeout=timeout, isolation_level=None, check_same_thread=not shared
    )
    try:
        _prepare(base, migrations)
    except BaseException:
        base.close()
        raise
    return base


def _prepare(base: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    if base.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        # If two processes start at the same time, one of them makes the switch.
        with suppress(sqlite3.OperationalError):
            base.execute("PRAGMA journal_mode = WAL")
    # Survives a crash of this process; a power failure may lose the last moments.
    base.execute("PRAGMA synchronous = NORMAL")
    version = _read_version(base)
    if version > len(migrations):
        known = len(migrations)
        raise NewerSchemaError(
            f"it was written by a newer brim (schema version {version}, supported {known})"
        )
    if version < len(migrations):
        _migrate(base, migrations)


def _migrate(base: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    with base:
        # The write lock comes first: of two processes, one migrates and the other waits.
        base.execute("BEGIN IMMEDIATE")
        version = _read_version(base)
        for number, migrate in enumerate(migrations[version:], version + 1):
            migrate(base)
            base.execute(f"PRAGMA user_version = {number}")


def _read_version(base: sqlite3.Connection) -> int:
    (version,) = base.execute("PRAGMA user_version").fetchone()
    return int(version)


# The user's database

BUSY_TIMEOUT: Final = 10.0
"""Seconds to wait for a process that holds the write lock."""
FILE: Final = "brim.sqlite3"


def run_script(base: sqlite3.Connection, package: str, file: str) -> None:
    """Run the statements of a file in the current transaction."""
    from importlib import resources

    script = resources.files(package).joinpath(file).read_text("utf-8")
    for statement in script.split(";"):  # executescript would end the transaction
        base.execute(statement)


MIGRATIONS: Final[tuple[Migration, ...]] = (
    partial(run_script, package="brim.storage", file="schema.sql"),
    partial(run_script, package="brim.storage", file="schema_2.sql"),
)


class Database:
    """One connection, opened on first use, that threads use one at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / FILE
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit everything that is done inside, or nothing."""
        with self._lock, self._translate_errors(), self._connect() as base:
            base.execute("BEGIN IMMEDIATE")
            yield base

    def rows(self, statement: str, *values: Any) -> list[sqlite3.Row]:
        with self._lock, self._translate_errors():
            return self._connect().execute(statement, values).fetchall()

    def write(self, statement: str, *values: Any) -> int:
        """Run one statement and return the number of rows that it changed."""
        with self.transaction() as base:
            return base.execute(statement, values).rowcount

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def __del__(self) -> None:
        self.close()

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise `StoreError` with the path for every error of SQLite or the file system."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise StoreError(f"{self.path} is locked by another process.") from None
            raise StoreError(f"{self.path} cannot be used: {error}") from None
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot be created: {error.strerror or error}. Set BRIM_STATE to "
                "another folder."
            ) from None
        except sqlite3.Error as error:
            raise StoreError(
                f"{self.path} cannot be used: {error}. Move the file away to start with a new one, "
                "or set BRIM_STATE to another folder."
            ) from None

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = open_database(
                self.path, MIGRATIONS, timeout=BUSY_TIMEOUT, shared=True
            )
            self._connection.row_factory = sqlite3.Row
            self._connection.execute("PRAGMA foreign_keys = ON")
        return self._connection
