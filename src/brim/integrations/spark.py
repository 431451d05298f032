"""Spark: a function that fits the conversations of a data frame.

from brim.integrations.spark import fit

frame = fit(spark.read.parquet("rows.parquet"), model="gpt-5-mini", window=8192)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Unpack

from pyspark.sql.types import LongType, StringType, StructField, StructType

from brim.batch import Fitter, FitterOptions
from brim.batch.stages import ERROR

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame


def fit(frame: DataFrame, **options: Unpack[FitterOptions]) -> DataFrame:
    """Return a frame whose conversations are fitted, with the options of `brim.batch.Fitter`."""
    fitter = Fitter(**options)
    added = {**dict.fromkeys(fitter.columns, LongType()), ERROR: StringType()}
    kept = [field for field in frame.schema.fields if field.name not in added]
    schema = StructType([*kept, *(StructField(name, kind) for name, kind in added.items())])

    def fit_batches(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        for batch in batches:
            yield fitter(batch).select(schema.names)

    return frame.mapInArrow(fit_batches, schema)
