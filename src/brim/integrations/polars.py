"""Polars: a function that fits the conversations of a data frame.

from brim.integrations.polars import fit

frame = fit(polars.read_parquet("rows.parquet"), model="gpt-5-mini", window=8192)
"""

from __future__ import annotations

from typing import TypeVar, Unpack, cast

import polars

from brim.batch import Fitter, FitterOptions
from brim.batch.stages import ERROR

Frame = TypeVar("Frame", polars.DataFrame, polars.LazyFrame)


def fit(frame: Frame, **options: Unpack[FitterOptions]) -> Frame:
    """Return a data frame whose conversations are fitted, with the options of `brim.batch.Fitter`.

    A lazy frame is fitted in batches when it is collected.
    """
    fitter = Fitter(**options)

    def fit_frame(part: polars.DataFrame) -> polars.DataFrame:
        return cast("polars.DataFrame", polars.from_arrow(fitter(part.to_arrow())))

    if isinstance(frame, polars.DataFrame):
        return fit_frame(frame)
    schema = {**frame.collect_schema(), **dict.fromkeys(fitter.columns, polars.Int64)}
    return frame.map_batches(fit_frame, schema={**schema, ERROR: polars.String}, streamable=True)
