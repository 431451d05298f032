"""The peers' own environment, made when it is first needed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv-peers"
PYTHON = FOLDER / "bin" / "python"
WANTED = Path(__file__).parent / "peers.txt"
PATIENCE = 600


def ready() -> str | None:
    """Make the environment if need be; a sentence says why where that is not possible."""
    stamp = FOLDER / WANTED.name
    if stamp.exists() and stamp.read_text() == WANTED.read_text():
        return None
    print("setting up .venv-peers ...", file=sys.stderr)
    for command in _commands():
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
        except subprocess.CalledProcessError as error:
            reason = error.stderr.strip().splitlines()
            return f"peers left out: {reason[-1] if reason else error}"
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"peers left out: {error}"
    shutil.copyfile(WANTED, stamp)
    return None


def _commands() -> list[list[str]]:
    python, folder, wanted = str(PYTHON), str(FOLDER), str(WANTED)
    if uv := _uv():
        return [
            [*uv, "venv", "-q", "--clear", "--python", sys.executable, folder],
            [*uv, "pip", "install", "-q", "--compile-bytecode", "--python", python, "-r", wanted],
        ]
    return [
        [sys.executable, "-m", "venv", "--clear", folder],
        [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", wanted],
    ]


def _uv() -> list[str] | None:
    if found := shutil.which("uv"):
        return [found]
    beside = [sys.executable, "-m", "uv"]
    works = subprocess.run([*beside, "--version"], capture_output=True, check=False).returncode == 0
    return beside if works else None
