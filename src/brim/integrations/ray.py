"""Ray: brim as a stage of Ray Data and Ray Data LLM, and `brim fit` on a Ray cluster.

import ray
from brim.integrations.ray import fit

dataset = fit(ray.data.read_parquet("rows.parquet"), model="gpt-5-mini", window=8192)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Final, Unpack

import ray

from brim.batch import Fitter, FitterOptions
from brim.batch.chunks import Chunk, ChunkResult, Job, try_chunk
from brim.errors import BrimError

if TYPE_CHECKING:
    from ray.data import Dataset

RowFunction = Callable[[dict[str, Any]], dict[str, Any]]

CHUNKS_AHEAD: Final = 3
"""Chunks in flight per processor of the cluster."""


def fit(
    dataset: Dataset, *, concurrency: int | None = None, **options: Unpack[FitterOptions]
) -> Dataset:
    """Return a dataset whose conversations are fitted, with the options of `brim.batch.Fitter`.

    `concurrency` is the largest number of tasks at a time.
    """
    return dataset.map_batches(Fitter(**options), batch_format="pyarrow", concurrency=concurrency)


def make_preprocess(
    then: RowFunction | None = None, **options: Unpack[FitterOptions]
) -> RowFunction:
    """Return a function for `preprocess` of Ray Data LLM's `build_processor`.

    It fits the conversation of a row, and passes the row to `then`, which adds what the model
    needs, such as `sampling_params`.
    """
    fitter = Fitter(**options)

    def preprocess(row: dict[str, Any]) -> dict[str, Any]:
        (fitted,) = fitter([row])
        return fitted if then is None else then(fitted)

    return preprocess


def process_chunks(
    chunks: Iterator[Chunk], job: Job, *, address: str | None = None, processes: int | None = None
) -> Generator[ChunkResult]:
    """Process the chunks of `brim fit` on a cluster, and yield the results in order.

    Without an address, a local cluster with a number of processes is started, by default one per
    core. Ray runs a chunk again if its worker dies.
    """
    own = {} if address else {"include_dashboard": False, "num_cpus": processes}
    ray.init(address=address, log_to_driver=False, logging_level="warning", **own)
    try:
        run = ray.remote(try_chunk)
        shared = ray.put(job)
        limit = max(1, int(ray.cluster_resources().get("CPU", 1))) * CHUNKS_AHEAD
        waiting: deque[Any] = deque()
        for chunk in chunks:
            waiting.append(run.remote(chunk, shared))
            if len(waiting) >= limit:
                yield _get(waiting.popleft())
        while waiting:
            yield _get(waiting.popleft())
    finally:
        ray.shutdown()


def _get(reference: Any) -> ChunkResult:
    answer: ChunkResult | BrimError = ray.get(reference)
    if isinstance(answer, BrimError):
        raise answer
    return answer
