"""Fit a Parquet file with one engine and write Parquet: the engine's side of `benchmarks.scale`."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def run(engine: str, source: str, target: str, options: dict[str, Any]) -> None:
    fit = import_module(f"brim.integrations.{engine}").fit
    Path(target).mkdir(parents=True)
    file = f"{target}/rows.parquet"
    if engine == "ray":
        import ray

        ray.init(include_dashboard=False, log_to_driver=False)
        fit(ray.data.read_parquet(source), **options).write_parquet(target)
    elif engine == "spark":
        from pyspark.sql import SparkSession

        os.environ["PYSPARK_PYTHON"] = sys.executable
        local = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        frame = local.getOrCreate().read.parquet(source)
        fit(frame, **options).write.mode("overwrite").parquet(target)
    elif engine == "datasets":
        from datasets import load_dataset

        dataset = load_dataset("parquet", data_files=source, split="train", cache_dir=target)
        fit(dataset, num_proc=2, **options).to_parquet(file)
    elif engine == "polars":
        import polars

        fit(polars.scan_parquet(source), **options).sink_parquet(file)
    else:
        import daft

        fit(daft.read_parquet(source), **options).write_parquet(target)


if __name__ == "__main__":
    name, given, written, window, reply = sys.argv[1:]
    run(name, given, written, {"model": "gpt-4o", "window": int(window), "reply": int(reply)})
