"""Hugging Face datasets give the same rows as the library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pytest

from brim.integrations.datasets import fit

OPTIONS: Any = {"model": "gpt-4o", "window": 400}


@pytest.mark.parametrize("processes", [None, 2])
def test_a_data_set_is_fitted(
    processes: int | None, table: pyarrow.Table, expected: list[dict[str, Any]]
) -> None:
    dataset = datasets.Dataset(table)
    fitted = fit(dataset, num_proc=processes, **OPTIONS)
    assert fitted.to_list() == expected
    assert fitted.features["brim_error"].dtype == "string"


def test_a_stream_is_fitted_while_it_is_read(path: Path, expected: list[dict[str, Any]]) -> None:
    stream = datasets.load_dataset("parquet", data_files=str(path), split="train", streaming=True)
    assert list(fit(stream, **OPTIONS)) == expected


def test_every_split_is_fitted(table: pyarrow.Table, expected: list[dict[str, Any]]) -> None:
    splits = datasets.DatasetDict({name: datasets.Dataset(table) for name in ("train", "test")})
    assert fit(splits, **OPTIONS)["test"].to_list() == expected
