"""Fit a Parquet file with one engine and write Parquet: the engine's side of `benchmarks.scale`.

It prints the seconds that the engine needed once it had started. Ray has started when its workers
have imported brim and loaded the vocabulary.
"""

from __future__ import annotations

import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

TASK_ROWS = 2_000
"""Rows of a task of Ray, which would read up to 128 MB in one."""


def run(engine: str, source: str, target: str, processes: int, options: dict[str, Any]) -> float:
    """Return the seconds without the start of the engine, if it has a start of its own."""
    fit = import_module(f"brim.integrations.{engine}").fit
    Path(target).mkdir(parents=True)
    file = f"{target}/rows.parquet"
    start = time.perf_counter()
    if engine == "ray":
        import ray

        ray.init(num_cpus=processes, include_dashboard=False, log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        row = {"id": 0, "messages": [{"role": "user", "content": "Hello!"}]}
        few = ray.data.from_items([row] * processes, override_num_blocks=processes)
        fit(few, **options).materialize()
        start = time.perf_counter()
        rows = ray.data.read_parquet(source).repartition(target_num_rows_per_block=TASK_ROWS)
        fit(rows, **options).write_parquet(target)
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
    return time.perf_counter() - start


if __name__ == "__main__":
    name, given, written, *numbers = sys.argv[1:]
    jobs, window, reply = map(int, numbers)
    print(run(name, given, written, jobs, {"model": "gpt-4o", "window": window, "reply": reply}))
