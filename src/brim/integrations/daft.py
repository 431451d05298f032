"""Daft: a function that fits the conversations of a data frame.

    from brim.integrations.daft import fit

    frame = fit(daft.read_parquet("rows.parquet"), model="gpt-5-mini", window=8192)
"""

from __future__ import annotations

from typing import Final, Unpack

import daft
import pyarrow
from daft import DataFrame, DataType, Series

from brim.batch import Fitter, FitterOptions
from brim.batch.stages import ERROR

_FITTED: Final = "brim_fitted"


def fit(frame: DataFrame, **options: Unpack[FitterOptions]) -> DataFrame:
    """Return a data frame whose conversations are fitted, with the options of `brim.batch.Fitter`."""
    fitter = Fitter(**options)
    names = fitter.choose_columns(frame.column_names)
    kinds = {name: frame.schema()[name].dtype for name in names}
    kinds |= dict.fromkeys(fitter.columns, DataType.int64())
    kinds[ERROR] = DataType.string()

    @daft.func.batch(return_dtype=DataType.struct(kinds))
    def fit_columns(*columns: Series) -> Series:
        arrays = [column.to_arrow() for column in columns]
        fitted = fitter(pyarrow.table(arrays, names)).combine_chunks()
        return Series.from_arrow(fitted.to_struct_array().combine_chunks())

    both = frame.with_column(_FITTED, fit_columns(*(frame[name] for name in names)))
    return both.with_columns({name: both[_FITTED][name] for name in kinds}).exclude(_FITTED)
