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
    """Return a frame whose conversations are fitted, with the options of `brim.batch.Fitter`."""
    fitter = Fitter(**options)
    names = fitter.choose_columns(frame.column_names)
    kinds = {name: frame.schema()[name].dtype for name in names}
    kinds |= dict.fromkeys(fitter.columns, DataType.int64())
    kinds[ERROR] = DataType.string()

    def fit_columns(*columns: Series) -> Series:
        arrays = [column.to_arrow() for column in columns]
        table = fitter(pyarrow.table(arrays, names))
        return Series.from_arrow(table.to_struct_array().combine_chunks())

    fitted = daft.func.batch(return_dtype=DataType.struct(kinds))(fit_columns)
    both = frame.with_column(_FITTED, fitted(*(frame[name] for name in names)))
    return both.with_columns({name: both[_FITTED][name] for name in kinds}).exclude(_FITTED)
