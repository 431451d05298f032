"""Polars gives the same rows as the library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars
import pyarrow

from brim.integrations.polars import fit

OPTIONS: Any = {"model": "gpt-4o", "window": 400}


def test_a_data_frame_is_fitted(table: pyarrow.Table, expected: list[dict[str, Any]]) -> None:
    frame = polars.DataFrame(table)
    assert fit(frame, **OPTIONS).to_dicts() == expected


def test_a_lazy_frame_is_fitted_when_it_is_collected(
    path: Path, expected: list[dict[str, Any]]
) -> None:
    frame = fit(polars.scan_parquet(path), **OPTIONS)
    assert frame.collect_schema()["brim_tokens"] == polars.Int64
    assert frame.filter(polars.col("id") > 5).collect().to_dicts() == expected[6:]
