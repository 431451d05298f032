"""`brim fit` reads and writes a real S3 server on this machine."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pytest
import s3fs
from moto.server import ThreadedMotoServer
from pyarrow import parquet

import brim
from brim.batch.input_files import FileKind, open_source
from brim.batch.outputs import open_output

BRIM = [sys.executable, "-m", "brim.cli", "fit"]
WINDOW = ["--window", "400", "-m", "gpt-4o"]


@pytest.fixture(scope="module")
def bucket() -> Iterator[s3fs.S3FileSystem]:
    """Yield the file system of a server with the bucket `data`, which fsspec uses by default."""
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    server = start_server()
    system = s3fs.S3FileSystem(use_listings_cache=False)
    system.mkdir("data")
    yield system
    server.stop()


def start_server() -> ThreadedMotoServer:
    """Start a server that fsspec uses by default; all of them have the same data."""
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ["AWS_ENDPOINT_URL"] = f"http://{host}:{port}"
    return server


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


def test_a_report_that_cannot_be_written_stops_the_run_at_its_start(
    bucket: s3fs.S3FileSystem, path: Path
) -> None:
    done = run(path, "-o", "s3://data/unwritten.parquet", "--report", "s3://nosuch/report.html")
    assert done.returncode == 2
    assert done.stderr.startswith("brim: s3://nosuch/report.html: ")
    assert not bucket.exists("data/unwritten.parquet")
    done = run(path, "-o", "s3://data/written.parquet", "--report", "s3://data/report.html")
    assert done.returncode in (0, 3), done.stderr
    assert b"<html" in bucket.cat("data/report.html")


def test_a_server_that_stops_midway_is_an_error_with_the_address(
    bucket: s3fs.S3FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = 5 * 2**20
    lines = [f"{json.dumps({'id': i, 'text': os.urandom(5000).hex()})}\n" for i in range(2000)]
    data = "".join(lines).encode()
    table = pyarrow.Table.from_pylist(list(map(json.loads, lines)))
    sink = BytesIO()
    parquet.write_table(table, sink, row_group_size=500, compression="none")
    bucket.pipe({"data/long.jsonl": data, "data/long.parquet": sink.getvalue()})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setitem(fsspec.config.conf, "s3", {"default_block_size": block})
    server = start_server()
    sources = [open_source(f"s3://data/long.{kind}").pieces(None) for kind in ("jsonl", "parquet")]
    for source in sources:
        next(source)
    output = open_output("s3://data/written.jsonl", FileKind("jsonl"))
    output.write(data[: block + 1])
    server.stop()
    for source, kind in zip(sources, ("jsonl", "parquet"), strict=True):
        with pytest.raises(brim.InputError, match=f"^s3://data/long.{kind}: EndpointConnection"):
            list(source)
    with pytest.raises(brim.InputError, match=r"^s3://data/written\.jsonl: EndpointConnection"):
        output.finish()
    output.close()
    assert not bucket.exists("data/written.jsonl")
