"""The sandbox for commands that run without a question in goal mode.

The project folder is writable, everything else is read-only, there is no network unless it is
allowed, and secrets are removed from the environment. bubblewrap enforces this if it is installed,
else Landlock with a seccomp filter. Before it is used, a probe checks that it really does.
"""

from __future__ import annotations

import json
import platform
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

from brim.shell import sandbox_child

SandboxKind = Literal["bubblewrap", "landlock"]
PROBE_TIMEOUT: Final = 10.0
PROBE: Final = """
import os, socket, sys
outside, port = sys.argv[1], int(sys.argv[2])
open("inside", "w").close()
attempts = [
    lambda: open(outside, "w").write("changed"),
    lambda: os.truncate(outside, 0),
    lambda: os.chmod(outside, 0),
    lambda: os.unlink(outside),
    lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", port)),
    lambda: socket.create_connection(("127.0.0.1", port), 1),
    lambda: socket.socket(socket.AF_UNIX).connect(outside),
]
for attempt in attempts:
    try:
        attempt()
    except OSError:
        pass
"""
"""Tries to leave the sandbox, and leaves a file inside."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A sandbox that works on this machine."""

    kind: SandboxKind
    project: Path
    network: bool = False

    def wrap(self, command: list[str], folder: Path, secrets: Iterable[str] = ()) -> list[str]:
        """Return the arguments that run a command in the sandbox, without these variables."""
        options = {
            "kind": self.kind,
            "project": str(self.project.resolve()),
            "folder": str(folder.resolve()),
            "network": self.network,
            "unset": sorted(secrets),
            "command": command,
        }
        return [sys.executable, "-I", "-S", sandbox_child.__file__, json.dumps(options)]


def choose_sandbox(
    project: Path | None, state: Path, *, network: bool = False
) -> tuple[Sandbox | None, str]:
    """Return the sandbox for a project and what enforces it, or None and what is missing.

    `project` is None for a folder that cannot be one, such as the home folder. brim itself and its
    `state` must lie outside, because a command could change them.
    """
    if project is None:
        return None, "the home folder cannot be a sandbox; start in a project folder"
    own = (Path(sandbox_child.__file__), Path(sys.prefix), state)
    if any(path.resolve().is_relative_to(project.resolve()) for path in own):
        return None, "brim is installed, or keeps its state, inside the project folder"
    kind, reason = find_kind()
    return (Sandbox(kind, project, network) if kind else None), reason


@cache
def find_kind() -> tuple[SandboxKind | None, str]:
    """Return the first kind of sandbox that works on this machine, and what was found."""
    if platform.system() != "Linux" or platform.machine() not in sandbox_child.AUDIT_ARCH:
        return None, "there is no sandbox for this system"
    missing = []
    if shutil.which("bwrap") is None:
        missing.append("bubblewrap is not installed")
    elif probe("bubblewrap"):
        return "bubblewrap", "bubblewrap"
    else:
        missing.append("bubblewrap does not work on this machine")
    version = sandbox_child.landlock_version()
    if version < sandbox_child.OLDEST_LANDLOCK:
        missing.append("the kernel has no Landlock, or an old version of it")
    elif probe("landlock"):
        return "landlock", f"Landlock (version {version}) and seccomp"
    else:
        missing.append("Landlock does not work on this machine")
    return None, "; ".join(missing)


def probe(kind: SandboxKind) -> bool:
    """Return whether a sandbox of this kind keeps a program in: it is tried."""
    with (
        tempfile.TemporaryDirectory(prefix="brim-probe-") as name,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        port = server.getsockname()[1]
        receiver.bind(("127.0.0.1", port))
        project, outside = Path(name, "project"), Path(name, "outside")
        project.mkdir()
        outside.write_text("kept", "utf-8")
        command = [sys.executable, "-I", "-S", "-c", PROBE, str(outside), str(port)]
        if not _has_run(Sandbox(kind, project).wrap(command, project)):
            return False
        is_kept = outside.read_text("utf-8") == "kept" and outside.stat().st_mode & 0o400
        return bool(is_kept and (project / "inside").exists() and not _has_input(receiver, server))


def _has_run(arguments: list[str]) -> bool:
    try:
        done = subprocess.run(arguments, capture_output=True, timeout=PROBE_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _has_input(*sockets: socket.socket) -> bool:
    return bool(select.select(sockets, [], [], 0)[0])
