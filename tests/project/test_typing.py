"""Type checkers in strict mode accept a program with every public call."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import brim

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests/project/typed_program.py"


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(300)
def test_mypy_accepts_the_public_api(tmp_path: Path) -> None:
    cache = f"--cache-dir={tmp_path}"
    run(sys.executable, "-m", "mypy", "--strict", "--config-file=", cache, str(PROGRAM))


@pytest.mark.timeout(300)
def test_pyright_accepts_the_public_api(tmp_path: Path) -> None:
    # basedpyright brings its own Node.js from PyPI; pyright downloads it.
    settings = {"typeCheckingMode": "strict", "include": [str(PROGRAM)]}
    config = tmp_path / "pyrightconfig.json"
    config.write_text(json.dumps(settings))
    run(sys.executable, "-m", "basedpyright", "-p", str(config), "--pythonpath", sys.executable)


def test_the_program_uses_every_public_member_of_a_session() -> None:
    source = PROGRAM.read_text()
    members = [name for name, _ in inspect.getmembers(brim.Session) if not name.startswith("_")]
    assert [name for name in members if f".{name}" not in source] == []
    assert len(members) <= 40
