"""Rows for all engines, and what each of them must return."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from brim.batch import Fitter
from tests.support.chats import TOO_MUCH, make_chat, make_sharegpt

OPTIONS: Any = {"model": "gpt-4o", "window": 400}


@pytest.fixture(params=["messages", "sharegpt"])
def rows(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """Return rows of which some fit, most are trimmed, and one cannot be fitted."""
    if request.param == "sharegpt":
        return [{"id": i, "conversations": make_sharegpt(i, 1 + i % 4)} for i in range(50)]
    rows: list[dict[str, Any]] = [{"id": i, "messages": make_chat(i, 1 + i % 4)} for i in range(50)]
    rows[7]["messages"] = TOO_MUCH
    return rows


@pytest.fixture
def expected(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return Fitter(**OPTIONS)(rows)


@pytest.fixture
def table(rows: list[dict[str, Any]]) -> pyarrow.Table:
    return pyarrow.Table.from_pylist(rows)


@pytest.fixture
def path(table: pyarrow.Table, tmp_path: Path) -> Path:
    path = tmp_path / "rows.parquet"
    parquet.write_table(table, path, row_group_size=10)
    return path
