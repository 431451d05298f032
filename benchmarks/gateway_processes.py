"""Starts, measures and stops the processes of the gateway benchmark.

CPU time and memory are read where Linux shows them.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.error import URLError
from urllib.request import urlopen

STOPPING = 10
"""Seconds that a process has to exit before it is killed."""


class StartError(Exception):
    """A process did not become ready; contains the end of its output."""


@dataclass(frozen=True)
class Server:
    """A running server."""

    name: str
    pid: int
    port: int
    log: Path

    def describe_end(self) -> str | None:
        """Return how the process ended, with the end of its output; None if it still runs."""
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        kind = "status" if ended.si_code == os.CLD_EXITED else "signal"
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - 2_000))
            tail = file.read().decode(errors="replace")
        return f"{self.name} ended with {kind} {ended.si_status}:\n{tail}"


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its children, all threads included."""
    # How Linux numbers the clock of another process; it counts nanoseconds, /proc hundredths.
    own = time.clock_gettime(~pid << 3 | 2)
    return own + sum(map(cpu_seconds, children(pid)))


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process and its children."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(map(resident_bytes, children(pid)))


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def is_measurable() -> bool:
    """Return whether this system reports the CPU time of other processes."""
    return Path(f"/proc/self/task/{os.getpid()}/children").exists()


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


@contextmanager
def start_server(
    name: str,
    command: Sequence[str],
    port: int,
    ready: str,
    *,
    patience: float = 30,
    extra: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run a server with its own home folder; yield it once `ready` responds."""
    with TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=_surroundings(folder) | dict(extra or {}),
                start_new_session=True,
            )
        try:
            _wait(process, f"http://127.0.0.1:{port}{ready}", patience, log)
            yield Server(name, process.pid, port, log)
        finally:
            _stop(process)


def _surroundings(folder: str) -> dict[str, str]:
    kept = {"PATH": os.environ["PATH"], "HOME": folder, "LANG": "C.UTF-8"}
    return {**kept, "BRIM_STATE": str(Path(folder, "state"))}


def _wait(process: subprocess.Popen[bytes], url: str, patience: float, log: Path) -> None:
    end = time.monotonic() + patience
    while time.monotonic() < end and process.poll() is None:
        with suppress(URLError, ConnectionError, TimeoutError), urlopen(url, timeout=5):
            return
        time.sleep(0.1)
    raise StartError(log.read_text(errors="replace").strip()[-500:] or "it said nothing")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and its children."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOPPING)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
