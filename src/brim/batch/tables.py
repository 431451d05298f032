"""Batches as engines pass them: lists of rows, columns, Arrow tables, pandas data frames.

Only the columns that a shape needs are converted to Python objects, and only those that changed
are converted back, to the type that they had.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from brim.errors import InputError

if TYPE_CHECKING:
    import pandas
    import pyarrow

Batch = TypeVar("Batch")
"""A list of rows, a mapping of columns, a pyarrow Table or RecordBatch, or a pandas DataFrame."""
Columns = Mapping[str, Sequence[Any]]


def read_columns(batch: object, choose: Callable[[Iterable[str]], list[str]]) -> Columns:
    """Return the chosen columns of a batch that is not a list of rows."""
    if isinstance(batch, Mapping):
        return {name: list(batch[name]) for name in choose(batch)}
    table = cast("Any", batch)
    if is_arrow(batch):
        return {name: table.column(name).to_pylist() for name in choose(table.schema.names)}
    if is_pandas(batch):
        return {name: table[name].tolist() for name in choose(table.columns)}
    raise InputError(
        f"The batch is not supported: {type(batch).__name__}. Use a list of rows, a dict of "
        "columns, a pyarrow Table or RecordBatch, or a pandas DataFrame."
    )


def count_rows(batch: object) -> int:
    """Return the number of rows of a batch that is not a list of rows."""
    if isinstance(batch, Mapping):
        return len(next(iter(batch.values()), ()))
    return len(cast("Sequence[object]", batch))


def write_columns(batch: Batch, columns: Columns) -> Batch:
    """Return the batch with other or further columns; texts and integers have fixed types."""
    result: object
    if isinstance(batch, Mapping):
        result = {**batch, **columns}
    elif is_arrow(batch):
        result = _write_arrow(batch, columns)
    else:
        result = _write_pandas(cast("pandas.DataFrame", batch), columns)
    return cast("Batch", result)


def is_arrow(batch: object) -> bool:
    """Whether a batch is a pyarrow Table or RecordBatch."""
    arrow = sys.modules.get("pyarrow")
    return arrow is not None and isinstance(batch, arrow.Table | arrow.RecordBatch)


def is_pandas(batch: object) -> bool:
    frames = sys.modules.get("pandas")
    return frames is not None and isinstance(batch, frames.DataFrame)


def _write_pandas(frame: pandas.DataFrame, columns: Columns) -> pandas.DataFrame:
    import pandas

    def to_series(values: Sequence[Any]) -> pandas.Series[Any]:
        is_number = bool(values) and all(isinstance(value, int) for value in values)
        return pandas.Series(values, frame.index, dtype="int64" if is_number else "object")

    return frame.assign(**{name: to_series(values) for name, values in columns.items()})


def _write_arrow(
    table: pyarrow.Table | pyarrow.RecordBatch, columns: Columns
) -> pyarrow.Table | pyarrow.RecordBatch:
    import pyarrow

    schema = table.schema
    arrays = dict(zip(schema.names, table.columns, strict=True))
    for name, values in columns.items():
        place = schema.get_field_index(name)
        if place >= 0:
            kind = schema.field(place).type
        else:
            kind = pyarrow.string() if name.endswith("_error") else pyarrow.int64()
            schema = schema.append(pyarrow.field(name, kind))
        arrays[name] = to_array(values, kind)
    return type(table).from_arrays(list(arrays.values()), schema=schema)


def to_array(values: Sequence[Any], kind: pyarrow.DataType) -> pyarrow.Array:
    """Return values as an array of a type.

    A note of a trim is text: if the contents of the column are lists of parts, it becomes a part.
    """
    import pyarrow

    try:
        return pyarrow.array(values, kind)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):
        return pyarrow.array([_wrap_texts(value, kind) for value in values], kind)


def _wrap_texts(value: Any, kind: pyarrow.DataType) -> Any:
    import pyarrow.types as kinds

    if kinds.is_list(kind) or kinds.is_large_list(kind):
        if isinstance(value, str):
            value = [{"type": "text", "text": value}]
        if value is not None:
            return [_wrap_texts(item, kind.value_type) for item in value]
    if kinds.is_struct(kind) and isinstance(value, Mapping):
        return {field.name: _wrap_texts(value.get(field.name), field.type) for field in kind}
    return value
