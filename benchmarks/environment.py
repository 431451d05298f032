"""Virtual environments of the peers, created at first use."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PEERS = "peers"
GATEWAY = "peers-gateway"
TIMEOUT = 600


def program(name: str, peers: str = PEERS) -> Path:
    """Return the path of a program in an environment."""
    return ROOT / f".venv-{peers}" / "bin" / name


PYTHON = program("python")


def ready(peers: str = PEERS) -> str | None:
    """Create the environment if necessary; return the reason if that fails."""
    folder, wanted = ROOT / f".venv-{peers}", Path(__file__).parent / f"{peers}.txt"
    stamp = folder / wanted.name
    if stamp.exists() and stamp.read_text() == wanted.read_text():
        return None
    print(f"setting up {folder.name} ...", file=sys.stderr)
    for command in _commands(folder, wanted, program("python", peers)):
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT)
        except subprocess.CalledProcessError as error:
            reason = error.stderr.strip().splitlines()
            return f"peers omitted: {reason[-1] if reason else error}"
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"peers omitted: {error}"
    shutil.copyfile(wanted, stamp)
    return None


def _commands(folder: Path, wanted: Path, python: Path) -> list[list[str]]:
    listed = ["-r", str(wanted)]
    if uv := _uv():
        install = [*uv, "pip", "install", "-q", "--compile-bytecode", "--python", str(python)]
        return [
            [*uv, "venv", "-q", "--clear", "--python", sys.executable, str(folder)],
            [*install, *listed],
        ]
    install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    return [[sys.executable, "-m", "venv", "--clear", str(folder)], [*install, *listed]]


def _uv() -> list[str] | None:
    if found := shutil.which("uv"):
        return [found]
    module = [sys.executable, "-m", "uv"]
    works = subprocess.run([*module, "--version"], capture_output=True, check=False).returncode == 0
    return module if works else None
