"""Spark gives the same rows as the library; it needs a JVM.

On Debian: apt-get install default-jre-headless
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from brim.integrations.spark import fit

OPTIONS: Any = {"model": "gpt-4o", "window": 400}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        pytest.fail("Java is missing. On Debian: apt-get install default-jre-headless", False)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "8",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


def test_a_data_frame_is_fitted(
    spark: SparkSession, path: Path, expected: list[dict[str, Any]]
) -> None:
    frame = fit(spark.read.parquet(str(path)).repartition(3), **OPTIONS)
    rows = [row.asDict(recursive=True) for row in frame.orderBy("id").collect()]
    assert rows == expected


def test_a_fitted_frame_can_be_fitted_again(spark: SparkSession, path: Path) -> None:
    frame = fit(spark.read.parquet(str(path)), **OPTIONS)
    again = fit(frame, **OPTIONS)
    assert again.columns == frame.columns
    assert again.filter("brim_tokens_before > 300 and brim_error = ''").count() == 0
