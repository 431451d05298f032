"""Open SQLite files that only their user can read, and migrate them."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

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
