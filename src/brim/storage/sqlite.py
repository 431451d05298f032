"""SQLite files that only their user can read, brought up to date when they are opened."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

Migration = Callable[[sqlite3.Connection], None]


class NewerSchemaError(sqlite3.DatabaseError):
    """A later version of brim has written the file."""


def open_database(
    path: Path, migrations: Sequence[Migration], *, timeout: float, shared: bool = False
) -> sqlite3.Connection:
    """A connection to a file, which is made where it is not there; transactions begin by hand.

    `timeout` is how long another process that writes is waited for. `shared` between threads, it
    is for its owner to let one at a time use it.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Made by hand, so that nobody else can read it even for a moment.
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
        # Where two processes begin at once, the switch is made by one of them.
        with suppress(sqlite3.OperationalError):
            base.execute("PRAGMA journal_mode = WAL")
    # What was written outlives this process at once; only a power cut can take the last moments.
    base.execute("PRAGMA synchronous = NORMAL")
    version = _read_version(base)
    if version > len(migrations):
        known = len(migrations)
        raise NewerSchemaError(
            f"it was written by a newer brim (version {version}, this one knows {known})"
        )
    if version < len(migrations):
        _migrate(base, migrations)


def _migrate(base: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    with base:
        # The write lock comes first, so that of two processes one migrates and the other looks on.
        base.execute("BEGIN IMMEDIATE")
        version = _read_version(base)
        for number, migrate in enumerate(migrations[version:], version + 1):
            migrate(base)
            base.execute(f"PRAGMA user_version = {number}")


def _read_version(base: sqlite3.Connection) -> int:
    (version,) = base.execute("PRAGMA user_version").fetchone()
    return int(version)
