"""`brim fit` reads and writes a real S3 server on this machine."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import s3fs
from moto.server import ThreadedMotoServer
from pyarrow import parquet

BRIM = [sys.executable, "-m", "brim.cli", "fit"]
WINDOW = ["--window", "400", "-m", "gpt-4o"]


@pytest.fixture(scope="module")
def bucket() -> Iterator[s3fs.S3FileSystem]:
    """Yield the file system of a server with the bucket `data`, which fsspec uses by default."""
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    system = s3fs.S3FileSystem(use_listings_cache=False)
    system.mkdir("data")
    yield system
    server.stop()


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*BRIM, *map(str, arguments), *WINDOW]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_table_is_read_and_written(
    bucket: s3fs.S3FileSystem, path: Path, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    bucket.put_file(str(path), "data/in/rows.parquet")
    done = run("s3://data/in/rows.parquet", "-o", "s3://data/out/rows.parquet")
    assert done.returncode in (0, 3), done.stderr
    bucket.get_file("data/out/rows.parquet", str(tmp_path / "out.parquet"))
    assert parquet.read_table(tmp_path / "out.parquet").to_pylist() == expected


def test_a_folder_becomes_a_folder(
    bucket: s3fs.S3FileSystem, rows: list[dict[str, Any]], expected: list[dict[str, Any]]
) -> None:
    lines = [f"{json.dumps(row)}\n".encode() for row in rows]
    bucket.pipe({"data/logs/a.jsonl.gz": gzip.compress(b"".join(lines[:20]))})
    bucket.pipe({"data/logs/deep/b.jsonl": b"".join(lines[20:])})
    done = run("s3://data/logs", "-o", "s3://data/fitted")
    assert done.returncode in (0, 3), done.stderr
    first = gzip.decompress(bucket.cat("data/fitted/a.jsonl.gz"))
    written = first + bucket.cat("data/fitted/deep/b.jsonl")
    assert [json.loads(line) for line in written.splitlines()] == expected


def test_an_interrupted_run_writes_nothing(bucket: s3fs.S3FileSystem, tmp_path: Path) -> None:
    rows = [{"id": i, "messages": [{"role": "user", "content": "x" * 10_000}]} for i in range(1500)]
    packed = gzip.compress(b"".join(f"{json.dumps(row)}\n".encode() for row in rows), 0)
    given = tmp_path / "cut.jsonl.gz"
    given.write_bytes(packed[:-20_000])
    done = run(given, "-o", "s3://data/cut/rows.jsonl")
    assert done.returncode == 2, done.stderr
    assert not bucket.exists("data/cut/rows.jsonl")


@pytest.mark.usefixtures("bucket")
def test_a_bucket_that_does_not_exist_is_named(path: Path) -> None:
    for arguments in (("s3://nosuch/a.parquet", "-o", "b.parquet"), (path, "-o", "s3://nosuch/a")):
        done = run(*arguments, "--output-format", "parquet")
        assert done.returncode == 2
        assert "brim: s3://nosuch/a" in done.stderr
        assert "Traceback" not in done.stderr
