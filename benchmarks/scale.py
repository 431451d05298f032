"""Data sets: throughput per core, memory, speed-up by processes, and equal results of engines.

    python -m benchmarks.scale [--short] [--only throughput,command,engines,ray] [--json]

The rows are random spans of the recordings, so that no text repeats, and more than half of them
exceed the window. Throughput is CPU time in one process, divided by the time to tokenize the same
kind of text with nothing else; further steps show where the rest goes. Engines run in the
environments of `make test-integrations`; those that do not exist are skipped. Those that run on a
cluster get a million rows, Polars and Daft a tenth. `--short` uses 20,000 rows for memory and
engines. Progress goes to standard error.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import environment, recordings, report
from benchmarks.report import Cell, Options, Table

if TYPE_CHECKING:
    from brim.batch.chunks import Chunk

MODEL = "gpt-4o"
REPLY = 500
LARGE_ROWS, LARGE_BYTES = 2_000, 10_000
SMALL_BYTES = 1_000
ROWS, SHORT_ROWS = 1_000_000, 20_000
ROUNDS = 5
RAY_SHARE = 5
"""The speed-up of Ray is measured with a fifth of the rows."""
RAY_DATA = "Ray Data"
ENGINE_SECONDS = 1_800
"""An engine that takes longer is stopped."""
ENGINES = {"ray": 1, "spark": 1, "datasets": 1, "polars": 10, "daft": 10}
"""Each engine gets all rows, or one in so many."""
EQUAL = "equal: the messages of every row, as JSON without nulls, have the same bytes"
TARGETS = "targets: 2,040 rows/s, ratio ≤ 1.5, 200 and 300 MB, speed-up ≥ 1.7"


def make_rows(number: int, size: int, seed: int = 1) -> Iterator[dict[str, Any]]:
    """Yield conversations of about this many bytes, in turns as long as those of the recordings."""
    chosen = random.Random(seed)
    texts = [
        message["content"]
        for recording in recordings.load()
        for message in recording.messages
        if isinstance(message.get("content"), str)
    ]
    material = "\n".join(texts)
    lengths = [min(len(text), size // 4) for text in texts if text]
    for index in range(number):
        messages = [{"role": "system", "content": "You are a helpful assistant."}]
        left = int(size * chosen.uniform(0.5, 1.5))
        while left > 0:
            length = min(left, max(20, chosen.choice(lengths)))
            start = chosen.randrange(len(material) - length)
            role = ("assistant", "user")[len(messages) % 2]
            messages.append({"role": role, "content": material[start : start + length]})
            left -= length
        if messages[-1]["role"] == "assistant":
            messages.append({"role": "user", "content": f"Continue with part {index}."})
        yield {"id": index, "messages": messages}


def write_rows(path: Path, number: int, size: int, seed: int = 1) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in make_rows(number, size, seed):
            file.write(f"{json.dumps(row, ensure_ascii=False)}\n")


def find_window(size: int) -> int:
    """Return a window that more than half of the rows exceed: three fifths of a sample do."""
    import brim

    sizes = sorted(int(brim.count(row["messages"], model=MODEL)) for row in make_rows(200, size, 9))
    return sizes[len(sizes) * 2 // 5] + REPLY


# Throughput


ALONE = "tokenizing alone"
READ = "parsing, reading and counting"
PLAN = "and planning and writing, if all rows fit"
TRIM = "and trimming the rows that do not fit"


def measure_throughput(folder: Path) -> Iterator[Table]:
    """Measure one process as a worker runs: each step with those before it, always on new rows."""
    from brim.batch import Counter, Fitter
    from brim.batch.chunks import Job, parse_rows, process_chunk
    from brim.batch.workers import collect_between
    from brim.tokens import tokenizer

    count, counter = tokenizer("o200k_base").count, Counter(model=MODEL)
    whole, fitted = (
        Job(Fitter(model=MODEL, window=size, reply=REPLY))
        for size in (LARGE_BYTES, find_window(LARGE_BYTES))
    )
    trimmed = 0
    steps: dict[str, Callable[[Chunk, Sequence[str]], Any]] = {
        ALONE: lambda _, texts: list(map(count, texts)),
        READ: lambda chunk, _: counter(list(parse_rows(chunk.piece, chunk.place))),
        PLAN: lambda chunk, _: process_chunk(chunk, whole),
        TRIM: lambda chunk, _: process_chunk(chunk, fitted),
    }
    best = dict.fromkeys(steps, float("inf"))
    with collect_between() as collect:
        collect()
        for seed, (name, step) in enumerate(list(steps.items()) * ROUNDS):
            chunks = make_chunks(folder / "large.jsonl", seed)
            collect()
            start = time.process_time()
            for chunk, texts in chunks:
                done = step(chunk, texts)
                collect()
                trimmed += done.tally.trimmed if name == TRIM else 0
            best[name] = min(best[name], (time.process_time() - start) / LARGE_ROWS * ROUNDS)
    row: dict[str, Cell] = {
        "rows of 10 kB": LARGE_ROWS,
        "trimmed": trimmed / LARGE_ROWS,
        "rows/s": round(1 / best[TRIM]),
        ALONE: round(1 / best[ALONE]),
        "ratio": best[TRIM] / best[ALONE],
    }
    styles, notes = {"trimmed": ".0%", "ratio": ".2f"}, [f"best of {ROUNDS} rounds; {TARGETS}"]
    yield Table("Data sets: throughput per core, in CPU time", [row], styles, notes)
    before, rows = 0.0, list[dict[str, Cell]]()
    for name, seconds in best.items():
        times: dict[str, Cell] = {"µs per row": seconds * 1e6, "added": (seconds - before) * 1e6}
        rows.append({"step": name, **times, "ratio": seconds / best[ALONE]})
        before = seconds
    styles = {"µs per row": ".0f", "added": ".0f", "ratio": ".2f"}
    yield Table("Data sets: where the time goes", rows, styles)


def make_chunks(path: Path, seed: int) -> list[tuple[Chunk, list[str]]]:
    """Return the chunks of new rows, and the texts in each."""
    from brim.batch.chunks import Chunk, parse_rows
    from brim.batch.input_files import FileKind, open_source
    from brim.batch.shapes import MESSAGES

    write_rows(path, LARGE_ROWS // ROUNDS, LARGE_BYTES, 10 + seed)
    chunks = []
    for piece in open_source(str(path)).pieces(None):
        chunk = Chunk(piece, "large.jsonl: line", MESSAGES, FileKind("jsonl"), False)
        rows: Any = parse_rows(piece, chunk.place)
        chunks.append((chunk, [turn["content"] for row in rows for turn in row["messages"]]))
    return chunks


# The command


def run_command(
    path: Path, out: Path, window: int, jobs: int, engine: str = "local"
) -> tuple[float, int, int]:
    """Run `brim fit`; return its seconds, and the peak memory of the parent and of a worker."""
    python = sys.executable if engine == "local" else str(find_python(engine))
    options = ["-m", MODEL, "--window", str(window), "--reply", str(REPLY), "-j", str(jobs)]
    options += ["--engine", engine, "-o", str(out)]
    command = [python, "-m", "brim.cli", "fit", str(path), *options]
    start = time.perf_counter()
    run = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    peaks: dict[int, int] = {}
    while run.poll() is None:
        for number in _find_session(run.pid):
            peaks[number] = max(peaks.get(number, 0), _read_peak(number))
        time.sleep(0.2)
    seconds = time.perf_counter() - start
    parent = peaks.pop(run.pid, 0)
    return seconds, parent, max(peaks.values(), default=0)


def _find_session(leader: int) -> Iterator[int]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader:
            yield int(stat.parent.name)


def _read_peak(number: int) -> int:
    """Return the peak resident size in bytes; 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{number}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def measure_command(folder: Path, number: int) -> Table:
    window = find_window(SMALL_BYTES)
    rows: list[dict[str, Cell]] = []
    for count in (number // 4, number):
        write_rows(folder / "small.jsonl", count, SMALL_BYTES)
        times = {}
        for jobs in (1, 2):
            show_progress(f"brim fit, {count:,} rows, {jobs} processes")
            out = folder / f"small-{jobs}.jsonl"
            times[jobs], parent, worker = run_command(folder / "small.jsonl", out, window, jobs)
            rows.append(
                {
                    "rows of 1 kB": count,
                    "processes": jobs,
                    "seconds": times[jobs],
                    "rows/s": round(count / times[jobs]),
                    "parent MB": round(parent / 1e6),
                    "worker MB": round(worker / 1e6) or None,
                    "speed-up": times[1] / times[jobs],
                }
            )
    notes = ["wall time, including the start; -j 1 fits in the parent", TARGETS]
    return Table("Data sets: brim fit", rows, {"seconds": ".1f", "speed-up": ".2f"}, notes)


# Engines


def compare_engines(folder: Path, number: int) -> Iterator[Table]:
    for share in sorted(set(ENGINES.values())):
        names = [name for name, own in ENGINES.items() if own == share]
        yield compare_with_command(folder, number // share, names)


def compare_with_command(folder: Path, number: int, engines: Sequence[str]) -> Table:
    window, path = find_window(SMALL_BYTES), write_table(folder, number)
    show_progress(f"brim fit, {number:,} rows")
    seconds, *_ = run_command(path, folder / "brim.parquet", window, 2)
    expected = digest_rows(folder / "brim.parquet")
    rows: list[dict[str, Cell]] = [{"engine": "brim fit", "seconds": seconds, "equal": True}]
    for name in engines:
        if not find_python(name).exists():
            rows.append({"engine": f"{name} (not installed)", "seconds": None, "equal": None})
            continue
        show_progress(f"{name}, {number:,} rows")
        out, start = folder / name, time.perf_counter()
        is_complete = run_engine(name, path, out, window, 2) is not None
        seconds = time.perf_counter() - start
        is_equal = is_complete and digest_rows(out) == expected
        rows.append({"engine": name, "seconds": seconds, "equal": is_equal})
    styles = {"seconds": ".1f"}
    return Table(f"Data sets: {number:,} rows with each engine", rows, styles, [EQUAL])


def write_table(folder: Path, number: int) -> Path:
    """Write rows as Parquet; return the path."""
    from pyarrow import json as arrow_json
    from pyarrow import parquet

    show_progress(f"generating {number:,} rows")
    given, path = folder / "small.jsonl", folder / "small.parquet"
    write_rows(given, number, SMALL_BYTES)
    with parquet.ParquetWriter(path, arrow_json.open_json(given).schema) as writer:
        for batch in arrow_json.open_json(given):
            writer.write_batch(batch)
    return path


def find_python(engine: str) -> Path:
    """Return the interpreter of the engine's environment."""
    return environment.ROOT / f".venv-{engine}/bin/python"


def run_engine(
    name: str, path: Path, out: Path, window: int, jobs: int
) -> tuple[float, float] | None:
    """Fit a Parquet file; return the seconds of the start and of the rest, None if it failed."""
    command = [find_python(name), "-m", "benchmarks.scale_engine", name, path, out]
    numbers = map(str, (jobs, window, REPLY))
    try:
        done = subprocess.run(
            [*map(str, command), *numbers],
            cwd=environment.ROOT,
            stdout=subprocess.PIPE,
            text=True,
            timeout=ENGINE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        return None
    start, seconds = map(float, done.stdout.split()[-2:])
    return start, seconds


def measure_ray(folder: Path, number: int) -> Table:
    """Compare the speed-ups of `brim fit`, of Ray Data, and of `brim fit` on Ray."""
    window, path = find_window(SMALL_BYTES), write_table(folder, number)
    rows: list[dict[str, Cell]] = []
    expected: tuple[int, int] | None = None
    for name in ("brim fit", RAY_DATA, "brim fit --engine ray"):
        single: float | None = None
        for jobs in (1, 2) if find_python("ray").exists() else ():
            show_progress(f"{name}, {number:,} rows, {jobs} processors")
            out = folder / f"{len(rows)}.parquet"
            if name == RAY_DATA:
                found = run_engine("ray", path, out, window, jobs)
            else:
                engine = "ray" if name.endswith("ray") else "local"
                found = 0.0, run_command(path, out, window, jobs, engine)[0]
            row: dict[str, Cell] = {"program": name, "processors": jobs}
            rows.append(row | dict.fromkeys(("start", "seconds", "rows/s", "speed-up", "equal")))
            if found is None or not out.exists():
                break
            start, seconds = found
            digest = digest_rows(out)
            single, expected = single or seconds, expected or digest
            rows[-1] |= {"start": start, "seconds": seconds, "rows/s": round(number / seconds)}
            rows[-1] |= {"speed-up": single / seconds, "equal": digest == expected}
    times = "seconds: of brim fit with the start, of Ray Data without; target: Ray's speed-up ≥ 1.5"
    styles = {"start": ".1f", "seconds": ".1f", "speed-up": ".2f"}
    return Table(f"Data sets: {number:,} rows with Ray", rows, styles, [times, EQUAL])


def digest_rows(path: Path) -> tuple[int, int]:
    """Return the number of rows, and a digest of their messages in any order."""
    from pyarrow import parquet

    from brim.batch.shapes import to_plain

    total = count = 0
    for file in [path] if path.is_file() else sorted(path.rglob("*.parquet")):
        for batch in parquet.ParquetFile(file).iter_batches(1_000, columns=["id", "messages"]):
            for row in batch.to_pylist():
                text = json.dumps([row["id"], to_plain(row["messages"])], ensure_ascii=False)
                digest = blake2b(text.encode(), digest_size=16).digest()
                total = (total + int.from_bytes(digest)) % 2**128
                count += 1
    return count, total


def show_progress(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def tables(given: Options) -> Iterator[Table]:
    number = SHORT_ROWS if given.short else ROWS
    parts: dict[str, Callable[[Path], Iterable[Table]]] = {
        "throughput": measure_throughput,
        "command": lambda folder: [measure_command(folder, number)],
        "engines": lambda folder: compare_engines(folder, number),
        "ray": lambda folder: [measure_ray(folder, max(SHORT_ROWS, number // RAY_SHARE))],
    }
    if unknown := set(given.only) - set(parts):
        sys.exit(f"Unknown: {', '.join(unknown)}. Use {', '.join(parts)}.")
    for part in given.only or parts:
        with tempfile.TemporaryDirectory() as name:
            yield from parts[part](Path(name))


if __name__ == "__main__":
    report.run(__doc__, tables)
