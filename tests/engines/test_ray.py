"""Ray gives the same rows as the library, also after workers were killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import ray
from pyarrow import parquet

from brim.batch import Fitter
from brim.integrations.ray import fit, make_preprocess
from tests.support.chats import make_chat

OPTIONS: Any = {"model": "gpt-4o", "window": 400}
BRIM = [sys.executable, "-m", "brim.cli", "fit"]
WINDOW = ["--window", "400", "-m", "gpt-4o"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def sort(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: int(row["id"]))


@pytest.mark.usefixtures("cluster")
def test_a_data_set_is_fitted(path: Path, expected: list[dict[str, Any]]) -> None:
    fitted = fit(ray.data.read_parquet(str(path)), **OPTIONS)
    assert sort(pyarrow.concat_tables(ray.get(fitted.to_arrow_refs())).to_pylist()) == expected


@pytest.mark.usefixtures("cluster")
def test_rows_can_be_fitted_before_a_model(
    table: pyarrow.Table, expected: list[dict[str, Any]]
) -> None:
    def add_sampling(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "sampling_params": {"max_tokens": 50}}

    preprocess = make_preprocess(add_sampling, **OPTIONS)
    rows = sort(ray.data.from_arrow(table).map(preprocess).take_all())
    assert [row["brim_tokens"] for row in rows] == [row["brim_tokens"] for row in expected]
    assert rows[0]["sampling_params"] == {"max_tokens": 50}


def fit_with_actors(dataset: ray.data.Dataset, **options: Any) -> ray.data.Dataset:
    return dataset.map_batches(
        Fitter, fn_constructor_kwargs=options, batch_format="pyarrow", concurrency=2
    )


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("fit_with", [partial(fit, concurrency=2), fit_with_actors])
def test_a_killed_worker_changes_nothing(fit_with: Callable[..., ray.data.Dataset]) -> None:
    rows = [{"id": i, "messages": make_chat(i, 2)} for i in range(2_000)]
    dataset = ray.data.from_arrow(pyarrow.Table.from_pylist(rows)).repartition(20).materialize()
    whole = fit_with(dataset, **OPTIONS).materialize()
    killed = 0
    parts = []
    for batch in fit_with(dataset, **OPTIONS).iter_batches(batch_format="pyarrow"):
        parts.append(batch)
        if not killed:
            killed = kill_worker()
    assert killed
    found = sort(pyarrow.concat_tables(parts).to_pylist())
    assert found == sort(pyarrow.concat_tables(ray.get(whole.to_arrow_refs())).to_pylist())
    assert [row["id"] for row in found] == list(range(2_000))


def kill_worker() -> int:
    """Kill a process that runs a task or an actor; return its number, or 0 if there is none."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            title = path.read_bytes()
        except OSError:
            continue
        if title.startswith((b"ray::MapBatches", b"ray::MapWorker", b"ray::try_chunk")):
            os.kill(int(path.parent.name), signal.SIGKILL)
            return int(path.parent.name)
    return 0


@pytest.fixture
def many(tmp_path: Path) -> Path:
    path = tmp_path / "many.parquet"
    rows = [{"id": i, "messages": make_chat(i, 2)} for i in range(3_000)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


@pytest.fixture
def on_cluster(cluster: None) -> list[str]:  # noqa: ARG001 - the cluster must run
    return ["--engine", "ray", "--address", ray.get_runtime_context().gcs_address]


def test_the_command_gives_the_same_file_on_a_cluster(
    many: Path, tmp_path: Path, on_cluster: list[str]
) -> None:
    for name, engine in (("local", []), ("ray", on_cluster)):
        command = [*BRIM, str(many), *WINDOW, *engine, "-o", str(tmp_path / f"{name}.jsonl")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "3,000 rows: 3,000 fitted" in done.stderr
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "local.jsonl").read_bytes()


def test_the_command_survives_a_killed_worker_and_can_be_resumed(
    many: Path, tmp_path: Path, on_cluster: list[str]
) -> None:
    out = tmp_path / "out.jsonl"
    command = [*BRIM, str(many), *WINDOW, *on_cluster, "-o", str(out)]
    run = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not kill_worker():
        assert run.poll() is None
        time.sleep(0.02)
    _, errors = run.communicate()
    assert run.returncode == 0, errors
    rows = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [row["id"] for row in rows] == list(range(3_000))
    again = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert len(out.read_bytes().splitlines()) == 3_000


def test_a_local_cluster_has_as_many_processes_as_asked_for() -> None:
    program = """
import ray
from brim.batch import Fitter
from brim.batch.chunks import Job
from brim.integrations.ray import process_chunks

def read():
    print("processors:", ray.cluster_resources()["CPU"])
    yield from ()

list(process_chunks(read(), Job(Fitter(model="gpt-4o", window=400)), processes=3))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "processors: 3.0" in done.stdout, done.stderr
