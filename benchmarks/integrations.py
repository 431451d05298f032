"""The adapters of frameworks: their size, and what brim costs in a tool loop.

    python -m benchmarks.integrations

A line of code is one that is not blank, a comment, a docstring or an import. The loop has forty
calls of a tool: without brim at a server without a window, with brim in a window of 4,096 tokens
(smolagents: 8,192). CPU is that of the client's process: the best of ROUNDS for each step, after a
first round, which warms up; the loops take turns, and brim counts every text again in each of
them. "noise" is what a second loop without brim adds to the first one. "tokenizing" is a part of
the time with brim: counting the outputs of the tool with the tokenizer alone. "once" is what brim
adds to the first round. "fails without brim" is the first request too long for the window.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.environment import ROOT

FOLDER = ROOT / "src/brim/integrations"
LARGE = ("pydantic_ai", "dspy", "llama_index")
"""The adapters with the most logic, which may have 80 lines."""
OTHERS = ("__init__", "adapter", "client", "client_fitter", "client_recall", "client_stream")
ENGINES = ("daft", "datasets", "polars", "ray", "spark")
CLIENT = "openai_client"
"""The loop with `brim.wrap`, in this environment."""
ROUNDS = 20
ENVIRONMENTS = ROOT / ".venv-frameworks"


def count_lines(path: Path) -> int:
    """Return the lines of code of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[int] = set()
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            assert isinstance(node, ast.stmt)
            skipped |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in skipped
        for number, line in lines
    )


def measure(name: str, rounds: int) -> dict[str, Any] | None:
    """Return the figures of a framework's loop; None if its environment is not installed."""
    python = Path(sys.executable) if name == CLIENT else ENVIRONMENTS / name / "bin/python"
    if not python.exists():
        return None
    command = [str(python), "-m", "benchmarks.framework_loop", name, str(rounds)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def list_sizes() -> list[dict[str, report.Cell]]:
    """Return the lines of code of each adapter, and how many it may have."""
    paths = [path for path in sorted(FOLDER.glob("*.py")) if path.stem not in OTHERS]
    return [
        {
            "adapter": path.stem,
            "lines": count_lines(path),
            "target": 80 if path.stem in LARGE else 40,
        }
        for path in paths
    ]


def tables(given: report.Options) -> Iterator[report.Table]:
    sizes = list_sizes()
    yield report.Table("Integrations: lines of code", sizes)
    rows: list[dict[str, report.Cell]] = []
    missing = []
    for name in (CLIENT, *(str(row["adapter"]) for row in sizes if row["adapter"] not in ENGINES)):
        if (figures := measure(name, 2 if given.short else ROUNDS)) is None:
            missing.append(name)
            continue
        plain, fitted, again, tokenizing, first = figures["cost"]
        rows.append(
            {
                "loop": name,
                "CPU ms": 1_000 * plain,
                "with brim": 1_000 * fitted,
                "tokenizing": 1_000 * tokenizing,
                "added %": 100 * (fitted / plain - 1),
                "noise %": 100 * (again / plain - 1),
                "once ms": 1_000 * first,
                "errors": figures["errors"],
                "history": "whole" if figures["is_whole"] else "not whole",
                "fails without brim": figures["failed_at"],
            }
        )
    notes = ["target: at most 3 % added CPU, no context-length error, whole history"]
    if missing:
        notes.append(f"not installed (make test-frameworks): {', '.join(missing)}")
    formats = {"CPU ms": ",.1f", "with brim": ",.1f", "tokenizing": ".1f", "added %": "+.1f"}
    formats |= {"noise %": "+.1f", "once ms": ",.0f"}
    yield report.Table("Integrations: forty tool calls", rows, formats, notes)


if __name__ == "__main__":
    report.run(__doc__, tables)
