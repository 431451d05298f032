"""CPU time of fitting as a multiple of tokenizing everything once, compared with peers.

    python -m benchmarks.speed [--no-peers] [--limit SECONDS] [--json]

Every measurement has a process of its own and its own baseline in it. Cold calls meet text never
seen before, best of some rounds. A growing history is fitted at every request point to 8k, best
of three processes (peers: one). A peer is stopped after the limit, and then left out of what
is larger.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks import environment, report, subjects
from benchmarks.report import Cell, Options, Table
from benchmarks.worker import SESSION

COLD = {"10k → 8k": (10_000, 8_000, 15), "100k → 64k": (100_000, 64_000, 7)} | {
    "1M → 128k": (1_000_000, 128_000, 3)
}
"""Tokens, limit and rounds."""
COLD_TARGETS = {"10k → 8k": 1.75, "100k → 64k": 1.75, "1M → 128k": 1.5}
TURNS = (200, 1_000, 5_000)
GROWTH_LIMIT = 8_000
GROWN = [SESSION, "brim steady", "brim thrift", "brim rolling", "brim sliding"]
STARTS = 10


@dataclass(frozen=True)
class Time:
    """CPU seconds of a subject and of the baseline in the same process, or an error."""

    seconds: float = math.nan
    tokenizing: float = math.nan
    failure: str = ""

    @property
    def ratio(self) -> float | None:
        return None if self.failure else self.seconds / self.tokenizing


def measure(python: Path, limit: float, *arguments: str | int) -> Time:
    """Run the worker once."""
    paths = os.pathsep.join([str(environment.ROOT), str(environment.ROOT / "src")])
    command = [str(python), "-m", "benchmarks.worker", *map(str, arguments)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            timeout=limit,
            env={**os.environ, "PYTHONPATH": paths},
            cwd=environment.ROOT,
        )
    except subprocess.TimeoutExpired:
        return Time(failure=f"> {limit:.0f} s")
    except subprocess.CalledProcessError as error:
        if python != environment.PYTHON:
            raise
        print(f"{arguments}: {error.stderr.strip()[-300:]}", file=sys.stderr)
        return Time(failure="failed")
    return Time(**json.loads(done.stdout.splitlines()[-1]))


class Bench:
    """The measurements of one run, with the environment and the time limit of each subject."""

    def __init__(self, options: Options) -> None:
        self.missing = environment.ready() if options.peers else "peers left out: not asked for"
        self.limit = options.limit
        self.peers = [] if self.missing else list(subjects.PEERS)
        self.notes = [self.missing] if self.missing else []

    def time(self, name: str, *arguments: str | int) -> Time:
        if name in subjects.PEERS:
            return measure(environment.PYTHON, self.limit, *arguments)
        return measure(Path(sys.executable), 10 * self.limit, *arguments)

    def best(self, name: str, rounds: int, *arguments: str | int) -> Time:
        """Return the smallest time and the smallest baseline; the smallest ratio would be noise."""
        times = [self.time(name, *arguments) for _ in range(rounds)]
        if failed := next((time for time in times if time.failure), None):
            return failed
        return Time(min(time.seconds for time in times), min(time.tokenizing for time in times))


def cold(bench: Bench) -> Table:
    rows: list[dict[str, Cell]] = []
    for name in [*subjects.BRIM, *bench.peers]:
        row: dict[str, Cell] = {"one cold call": name}
        failed = ""
        for title, (tokens, limit, rounds) in COLD.items():
            peer = name in subjects.PEERS
            arguments = ("cold", name, tokens, limit, 3 if peer else rounds)
            found = Time(failure="–") if failed else bench.time(name, *arguments)
            failed = found.failure
            row[f"{title} ms"] = found.failure or f"{1000 * found.seconds:,.1f}"
            row[title] = found.ratio
        rows.append(row)
    target = ", ".join(f"{title} ≤ {most}" for title, most in COLD_TARGETS.items())
    notes = [*bench.notes, f"multiples of tokenizing everything once; brim's targets: {target}"]
    return Table("Speed: one cold call", rows, dict.fromkeys(COLD, ".2f"), notes)


def growth(bench: Bench) -> Table:
    times = {name: _grow(bench, name) for name in [*GROWN, *bench.peers]}
    rows: list[dict[str, Cell]] = []
    for name, found in times.items():
        row: dict[str, Cell] = {"growing history": _title(name)}
        row |= {f"{turns:,} turns s": _seconds(time) for turns, time in found.items()}
        row["× tokenizing"] = found[TURNS[-1]].ratio
        row["exponent"] = _exponent(found)
        rows.append(row)
    formats = {"× tokenizing": ".2f", "exponent": ".2f"}
    return Table(
        f"Speed: a growing history, fitted at every request to {GROWTH_LIMIT:,} tokens",
        rows,
        formats,
        [*bench.notes, _describe_tokenizing(times), *_against(times, bench.peers)],
    )


def _grow(bench: Bench, name: str) -> dict[int, Time]:
    found: dict[int, Time] = {}
    for turns in TURNS:
        if any(time.failure for time in found.values()):
            found[turns] = Time(failure="–")
            continue
        rounds = 1 if name in subjects.PEERS else 3
        found[turns] = bench.best(name, rounds, "growth", name, turns, GROWTH_LIMIT)
    return found


def _title(name: str) -> str:
    return f"{name}, stateless" if name in subjects.BRIM else name


def _seconds(time: Time) -> str:
    return time.failure or f"{time.seconds:,.2f}"


def _exponent(found: dict[int, Time]) -> float | None:
    """Return the exponent of the time's growth from the middle size to the largest."""
    middle, largest = TURNS[1], TURNS[2]
    if found[largest].failure:
        return None
    return math.log(found[largest].seconds / found[middle].seconds) / math.log(largest / middle)


def _describe_tokenizing(times: dict[str, dict[int, Time]]) -> str:
    baselines = [time[TURNS[-1]].tokenizing for time in times.values() if time[TURNS[-1]].ratio]
    return (
        f"tokenizing {TURNS[-1]:,} turns once: {min(baselines, default=math.nan):.2f} s; "
        "targets: session ≤ 4 × tokenizing, exponent ≤ 1.2"
    )


def _against(times: dict[str, dict[int, Time]], peers: Iterable[str]) -> list[str]:
    """Compare the stateless call with the fastest peer that finished."""
    known = {name: times[name][TURNS[-1]] for name in peers}
    done = {name: time.seconds for name, time in known.items() if not time.failure}
    if not done:
        return []
    fastest = min(done, key=lambda name: done[name])
    share = times["brim steady"][TURNS[-1]].seconds / done[fastest]
    return [f"stateless steady takes {share:.3f} of {fastest}, the fastest peer (target ≤ 1/3)"]


def starts() -> Table:
    """Measure start-up times, best of ten."""
    timer = "import time; t = time.perf_counter(); import brim; print(time.perf_counter() - t)"
    rows: list[dict[str, Cell]] = [
        {"start": "python -c pass", "ms": _wall([sys.executable, "-c", "pass"]), "target": None},
        {"start": "import brim", "ms": _inside([sys.executable, "-c", timer]), "target": "< 50"},
    ]
    notes = [f"wall time, best of {STARTS}; the import is timed inside the new process"]
    if find_spec("brim.cli"):
        rows.append({"start": "brim --help", "ms": _wall(_help()), "target": "< 200"})
    else:
        notes.append("brim --help not measured: there is no brim.cli")
    return Table("Speed: starting", rows, {"ms": ".0f"}, notes)


def _help() -> list[str]:
    script = Path(sys.executable).with_name("brim")
    if script.exists():
        return [str(script), "--help"]
    return [sys.executable, "-c", "from brim.cli import main; main()", "--help"]


def _wall(command: list[str]) -> float:
    def once() -> float:
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return 1000 * (time.perf_counter() - start)

    return min(once() for _ in range(STARTS))


def _inside(command: list[str]) -> float:
    runs = (subprocess.run(command, check=True, capture_output=True) for _ in range(STARTS))
    return 1000 * min(float(run.stdout) for run in runs)


def tables(options: Options) -> Iterator[Table]:
    bench = Bench(options)
    yield starts()
    yield cold(bench)
    yield growth(bench)


if __name__ == "__main__":
    report.run(__doc__, tables)
