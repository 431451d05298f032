"""The sandbox for commands that run without a question in goal mode.

The project folder is writable, everything else is read-only, there is no network unless it is
allowed, and secrets are removed from the environment. bubblewrap enforces this if it is installed,
else Landlock with a seccomp filter. Before it is used, a probe checks that it really does.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

from brim.data import load_table
from brim.shell import sandbox_child

SandboxKind = Literal["bubblewrap", "landlock"]
PROBE_TIMEOUT: Final = 10.0
PROBE: Final = """
import errno, os, socket, sys
outside = sys.argv[1]
open("inside", "w").close()
attempts = [
    lambda: open(outside, "w"), lambda: os.chmod(outside, 0), lambda: os.unlink(outside),
    lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 9)),
    lambda: socket.create_connection(("192.0.2.1", 9), 1), lambda: socket.socket(socket.AF_UNIX),
]
for attempt in attempts:
    try:
        attempt()
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENETUNREACH):
            continue
    sys.exit(1)
"""
"""Tries to leave the sandbox; it succeeds if every attempt is denied."""


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
            **{kind: [*calls.values()] for kind, calls in load_table("system_calls").items()},
            "command": command,
        }
        return [sys.executable, "-I", "-S", sandbox_child.__file__, json.dumps(options)]


def choose_sandbox(
    project: Path | None, state: Path, *, network: bool = False
) -> tuple[Sandbox | None, str]:
    """Return the sandbox for a project, if it can be one, and what enforces it or is missing."""
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
    if probe("bubblewrap"):
        return "bubblewrap", "bubblewrap"
    if probe("landlock"):
        return "landlock", f"Landlock (version {sandbox_child.landlock_version()}) and seccomp"
    state = "does not work on this machine" if shutil.which("bwrap") else "is not installed"
    return None, f"bubblewrap {state}; the kernel does not support Landlock"


def probe(kind: SandboxKind) -> bool:
    """Return whether a sandbox of this kind keeps a program in: it is tried."""
    with tempfile.TemporaryDirectory(prefix="brim-probe-") as name:
        project, outside = Path(name, "project"), Path(name, "outside")
        project.mkdir()
        outside.touch()
        command = [sys.executable, "-I", "-S", "-c", PROBE, str(outside)]
        wrapped = Sandbox(kind, project).wrap(command, project)
        try:
            done = subprocess.run(wrapped, capture_output=True, timeout=PROBE_TIMEOUT, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0 and outside.exists() and (project / "inside").exists()
