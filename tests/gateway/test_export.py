"""Finished requests as files: rotated JSON lines, or Parquet."""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from brim.config import ExportConfig
from brim.gateway.export import RequestExport
from brim.gateway.records import RequestRecord
from brim.models.pricing import Usage
from brim.testing import ScriptedServer
from tests.support.gateway.accounts import create_secret, make_priced_config, say_hi, with_gateway
from tests.support.gateway.process import run_gateway
from tests.support.gateway.requests import CHAT

pytestmark = pytest.mark.anyio


def make_record(number: int = 0) -> RequestRecord:
    record = RequestRecord(CHAT, "openai")
    record.model, record.status, record.end = f"model-{number}", 200, "completed"
    record.usage = Usage(100, 0, 20)
    return record


def read_lines(folder: Path, pattern: str = "*.jsonl") -> list[dict[str, Any]]:
    texts = [path.read_text() for path in sorted(folder.glob(pattern))]
    return [json.loads(line) for text in texts for line in text.splitlines()]


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_a_gateway_exports_every_request_without_content(
    upstream: ScriptedServer, tmp_path: Path, format: Any
) -> None:
    config = make_priced_config(upstream.url)
    folder = tmp_path / "export"
    secret = create_secret("anna", project="web")
    with run_gateway(with_gateway(config, export=ExportConfig(str(folder), format))) as served:
        assert say_hi(served, secret).status_code == 200
        assert say_hi(served, "brim-wrong").status_code == 401
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o077 == 0
    rows = read_lines(folder)
    if format == "parquet":
        rows = pyarrow.parquet.read_table(file).to_pylist()
    assert [(row["key"], row["status"], row["code"]) for row in rows] == [
        ("anna", 200, None),
        (None, 401, "invalid_api_key"),
    ]
    assert (rows[0]["input"], rows[0]["output"], rows[0]["project"]) == (8, 2, "web")
    assert "hi" not in rows[0].values()
    assert secret not in str(rows)


async def test_a_file_ends_at_its_size_and_the_next_begins(tmp_path: Path) -> None:
    export = RequestExport(ExportConfig(str(tmp_path), megabytes=1))
    for number in range(3_000):
        export.add(make_record(number))
        if number % 500 == 499:
            await export.flush()
    assert len(list(tmp_path.glob("*.jsonl"))) == 1
    assert len(list(tmp_path.glob("*.part"))) == 1
    await export.flush(is_last=True)
    assert [row["model"] for row in read_lines(tmp_path)] == [f"model-{n}" for n in range(3_000)]


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
async def test_an_absurd_report_of_an_upstream_is_exported(tmp_path: Path, format: Any) -> None:
    export, record = RequestExport(ExportConfig(str(tmp_path), format)), make_record()
    record.usage = Usage(10**30, 0, 20)
    export.add(record)
    await export.flush(is_last=True)
    assert len(list(tmp_path.glob(f"*.{format}"))) == 1


async def test_old_files_are_deleted_and_those_of_others_stay(tmp_path: Path) -> None:
    names = "requests-20200101T000000-a-1-1.jsonl", "requests-2.parquet", "notes.jsonl"
    for name in names:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - 9 * 86_400,) * 2)
    await RequestExport(ExportConfig(str(tmp_path), days=10)).flush()
    assert len(list(tmp_path.iterdir())) == 3
    await RequestExport(ExportConfig(str(tmp_path), days=0)).flush()
    assert len(list(tmp_path.iterdir())) == 3
    await RequestExport(ExportConfig(str(tmp_path), days=8)).flush()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.jsonl"]


async def test_rows_wait_while_the_folder_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "file"
    place.touch()
    export = RequestExport(replace(ExportConfig(), folder=str(place)))
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            export.add(make_record(number))
            await export.flush()
    assert len(caplog.records) == 1
    place.unlink()
    await export.flush(is_last=True)
    assert [row["model"] for row in read_lines(place)] == ["model-0", "model-1", "model-2"]
