"""Lines that were written before the classifier and kept aside while it was tuned."""

from __future__ import annotations

import time
import tomllib
from pathlib import Path
from typing import Final

import pytest

from brim.shell.risk import Assessment, assess

DATA: Final = Path(__file__).parent / "data"
HELD_OUT: Final = {
    name: tomllib.loads((DATA / f"{name}.toml").read_text("utf-8"))
    for name in ("held_out", *(f"held_out_{number}" for number in range(2, 12)))
}
MOST_ASKED: Final = 0.02
"""Of the read-only lines, how many may be asked about."""
FILES: Final = (
    "notes.txt", "data.csv", "src/main.py", "docs/guide.md", "backup/notes.txt", "script.sh",
    "image.iso",
)  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("text\n", "utf-8")
    (tmp_path / "home").mkdir()
    return folder


def assess_line(line: str, place: Path, since: float) -> Assessment:
    home = place.parent / "home"
    variables = {
        "HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "PWD": str(place),
        "LIST": "rm -rf src",
    }  # fmt: skip
    return assess(line, variables=variables, folder=place, home=home, project=place, since=since)


@pytest.mark.parametrize("name", HELD_OUT)
def test_no_destructive_line_runs_without_a_question(name: str, place: Path) -> None:
    since = time.time() + 1
    lines = [*HELD_OUT[name].get("destructive", []), *HELD_OUT[name].get("asked", [])]
    found = [line for line in lines if assess_line(line, place, since).is_read_only]
    assert found == []


@pytest.mark.parametrize("name", HELD_OUT)
@pytest.mark.parametrize("kind", ["scripts", "two_step"])
def test_no_file_of_the_model_runs_without_a_question(kind: str, name: str, place: Path) -> None:
    for entry in HELD_OUT[name].get(kind, []):
        path = place / entry["file"]
        path.parent.mkdir(parents=True, exist_ok=True)
        if entry["file"].startswith(".git/"):
            (place / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
            for name in ("objects", "refs"):
                (place / ".git" / name).mkdir(exist_ok=True)
        path.write_text(entry["text"], "utf-8")
        for line in entry["run"]:
            assert not assess_line(line, place, since=0.0).is_read_only, line
        path.unlink()


@pytest.mark.parametrize("name", HELD_OUT)
def test_few_read_only_lines_are_asked_about(name: str, place: Path) -> None:
    since, lines = time.time() + 1, HELD_OUT[name]["read_only"]
    found = [line for line in lines if not assess_line(line, place, since).is_read_only]
    assert len(found) <= MOST_ASKED * len(lines), found
