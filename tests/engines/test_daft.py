"""Daft gives the same rows as the library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import daft

from brim.integrations.daft import fit

OPTIONS: Any = {"model": "gpt-4o", "window": 400}


def test_a_data_frame_is_fitted(path: Path, expected: list[dict[str, Any]]) -> None:
    frame = fit(daft.read_parquet(str(path)), **OPTIONS)
    assert frame.to_pylist() == expected


def test_partitions_are_fitted_on_their_own(path: Path, expected: list[dict[str, Any]]) -> None:
    frame = fit(daft.read_parquet(str(path)).into_partitions(3), **OPTIONS)
    assert frame.sort("id").to_pylist() == expected
