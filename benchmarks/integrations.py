"""The adapters of frameworks: their size, and what `brim.wrap` costs in a tool loop.

    python -m benchmarks.integrations

A line of code is one that is not blank, a comment, a docstring or an import. The loop sends forty
requests with the OpenAI client; CPU is that of the client's thread, best of seven.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import brim
from benchmarks import report
from benchmarks.environment import ROOT
from brim.testing import ScriptedServer, ToolCallReply

FOLDER = ROOT / "src/brim/integrations"
LARGE = ("pydantic_ai", "llama_index", "autogen")
"""The adapters with the most logic, which may have 80 lines."""
OTHERS = ("__init__", "adapter", "client", "client_fitter")
ENGINES = ("daft", "datasets", "polars", "ray", "spark")
WINDOW, CALLS, ROUNDS = 4_096, 40, 7
MODEL = "gpt-4o"


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


def run_loop(window: int | None, *, fitted: bool) -> tuple[float, int]:
    """Return the CPU seconds of a tool loop and its context-length errors."""
    import openai

    calls = [ToolCallReply("read_file", {"number": number}) for number in range(CALLS - 1)]
    with (
        ScriptedServer([*calls, "Done."], window=window, model=MODEL) as server,
        openai.OpenAI(base_url=server.url, api_key="key", max_retries=0) as plain,
    ):
        client = brim.wrap(plain, window=WINDOW, reply=500) if fitted else plain
        messages: list[Any] = [{"role": "user", "content": "Read all the files."}]
        start = time.thread_time()
        for number in range(CALLS):
            try:
                reply = client.chat.completions.create(model=MODEL, messages=messages)
            except openai.BadRequestError:
                break
            messages.append(reply.choices[0].message)
            for call in reply.choices[0].message.tool_calls or ():
                text = f"file {number}: " + "the words of the file are many " * 40
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
        return time.thread_time() - start, len(server.rejected)


def _list_adapters() -> Iterator[tuple[str, int]]:
    for path in sorted(FOLDER.glob("*.py")):
        if path.stem not in (*OTHERS, *ENGINES):
            yield path.stem, 80 if path.stem in LARGE else 40


def tables(_: report.Options) -> Iterator[report.Table]:
    rows: list[dict[str, report.Cell]] = [
        {
            "adapter": path.stem,
            "lines": count_lines(path),
            "target": 80 if path.stem in LARGE else 40,
        }
        for path in sorted(FOLDER.glob("*.py"))
        if path.stem not in OTHERS
    ]
    yield report.Table("Integrations: lines of code", rows, {}, [])
    without = min(run_loop(None, fitted=False)[0] for _ in range(ROUNDS))
    runs = [run_loop(WINDOW, fitted=True) for _ in range(ROUNDS)]
    fitted, errors = min(seconds for seconds, _ in runs), sum(found for _, found in runs)
    loop: list[dict[str, report.Cell]] = [
        {"loop": "large window, without brim", "CPU ms": 1_000 * without, "errors": 0},
        {"loop": f"window of {WINDOW:,}, with brim", "CPU ms": 1_000 * fitted, "errors": errors},
    ]
    rejected = run_loop(WINDOW, fitted=False)[1]
    notes = [
        f"brim adds {fitted / without - 1:.1%} CPU (target: 3 %)",
        f"without brim, the loop ends with {rejected} context-length error in {WINDOW:,}",
    ]
    yield report.Table("Integrations: the OpenAI client", loop, {"CPU ms": ".1f"}, notes)


if __name__ == "__main__":
    report.run(__doc__, tables)
