"""The demo: a conversation with a small model that continues after its window is full."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from brim.providers.local import SMOLLM2, LocalServer

DEMO = [sys.executable, str(Path(__file__).parents[2] / "examples/demo.py")]
OFFLINE = {"PIP_NO_INDEX": "1", "UV_OFFLINE": "1", "UV_NO_INDEX": "1"}


def run_demo(*options: str, **environment: str) -> str:
    """Run the demo without a terminal and return its output."""
    result = subprocess.run(
        [*DEMO, *options],
        capture_output=True,
        check=False,
        encoding="utf-8",
        env={**os.environ, **environment},
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "\x1b" not in result.stdout
    return result.stdout


@pytest.fixture(scope="module")
def data(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data folder that contains the model."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "models").mkdir()
    (folder / "models" / weights.name).symlink_to(weights)
    return str(folder)


@pytest.fixture(scope="module")
def output(data: str) -> str:
    return run_demo("--turns", "6", BRIM_DATA=data)


def test_the_naive_client_is_rejected_and_brim_is_not(output: str) -> None:
    assert sum(line.startswith("turn ") for line in output.splitlines()) == 6
    assert "HTTP 400: " in output
    assert "The naive client: 2 requests rejected, from turn 5 on." in output
    assert "brim: none rejected; " in output


def test_no_line_is_wider_than_a_terminal(output: str) -> None:
    assert max(len(line) for line in output.splitlines()) < 80


def test_the_python_code_that_it_suggests_works(
    output: str, llama: LocalServer, capsys: pytest.CaptureFixture[str]
) -> None:
    code = textwrap.dedent(output[output.index("  import brim\n") :])
    assert '  brim local serve --port 8080 --key ""' in output
    exec(code.replace('"http://127.0.0.1:8080"', f"{llama.url!r}, key={llama.key!r}"), {})
    assert capsys.readouterr().out.strip()


def test_a_scripted_server_answers_if_the_model_cannot_be_downloaded(tmp_path: Path) -> None:
    output = run_demo(BRIM_DATA=str(tmp_path), **OFFLINE)
    assert "The embedded model is not available (" in output
    assert "HTTP 400: " in output
    assert "brim: none rejected; " in output
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_a_scripted_server_answers_if_the_model_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with (tmp_path / "models" / SMOLLM2.file).open("wb") as file:
        file.truncate(SMOLLM2.size)
    output = run_demo("--turns", "1", BRIM_DATA=str(tmp_path))
    assert output.startswith("The embedded model is not available (")


def test_ctrl_c_stops_it_without_a_traceback(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        DEMO,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env={**os.environ, **OFFLINE, "BRIM_DATA": str(tmp_path), "PYTHONUNBUFFERED": "1"},
    )
    assert demo.stdout is not None
    for line in demo.stdout:
        if line.startswith("turn 1 "):
            break
    demo.send_signal(signal.SIGINT)
    _, errors = demo.communicate(timeout=60)
    assert (demo.returncode, errors) == (130, "")
