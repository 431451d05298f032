"""Fit a Parquet file with one engine and write Parquet: the engine's side of `benchmarks.scale`.

It prints the seconds until the engine had started, and those that it needed from then on. Ray has
started when its workers have read, fitted and written a few rows: then all its processes run, and
have imported brim and loaded the vocabulary. The start of other engines is part of their time.
"""

from __future__ import annotations

import os
import sys
import time
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

TASK_ROWS = 2_000
"""Rows of a task of Ray, which would read up to 128 MB in one."""
FEW_ROWS = 20
"""Rows of a task while Ray starts."""


def run(
    engine: str, source: str, target: str, processes: int, options: dict[str, Any]
) -> tuple[float, float]:
    """Fit a file; return the seconds of the start, if it can be told apart, and of the rest."""
    fit = import_module(f"brim.integrations.{engine}").fit
    Path(target).mkdir(parents=True)
    file = f"{target}/rows.parquet"
    first = start = time.perf_counter()
    if engine == "ray":
        import ray

        ray.init(num_cpus=processes, include_dashboard=False, log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = False

        def fit_file(source: str, target: str, task_rows: int) -> None:
            rows = ray.data.read_parquet(source).repartition(target_num_rows_per_block=task_rows)
            fit(rows, **options).write_parquet(target)

        with TemporaryDirectory() as folder:
            few = f"{folder}/few.parquet"
            write_first_rows(source, few, FEW_ROWS * processes)
            fit_file(few, f"{folder}/fitted", FEW_ROWS)
        start = time.perf_counter()
        fit_file(source, target, TASK_ROWS)
    elif engine == "spark":
        from pyspark.sql import SparkSession

        os.environ["PYSPARK_PYTHON"] = sys.executable
        local = SparkSession.builder.master(f"local[{processes}]")
        session = local.config("spark.ui.enabled", "false").getOrCreate()
        frame = session.read.parquet(source)
        fit(frame, **options).write.mode("overwrite").parquet(target)
    elif engine == "datasets":
        from datasets import load_dataset

        dataset = load_dataset("parquet", data_files=source, split="train", cache_dir=target)
        fit(dataset, num_proc=processes, **options).to_parquet(file)
    elif engine == "polars":
        import polars

        fit(polars.scan_parquet(source), **options).sink_parquet(file)
    else:
        import daft

        fit(daft.read_parquet(source), **options).write_parquet(target)
    return start - first, time.perf_counter() - start


def write_first_rows(source: str, target: str, number: int) -> None:
    from pyarrow import Table, parquet

    batch = next(parquet.ParquetFile(source).iter_batches(number))
    parquet.write_table(Table.from_batches([batch]), target)


if __name__ == "__main__":
    name, given, written, *numbers = sys.argv[1:]
    jobs, window, reply = map(int, numbers)
    print(*run(name, given, written, jobs, {"model": "gpt-4o", "window": window, "reply": reply}))
