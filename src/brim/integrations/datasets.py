"""Hugging Face datasets: a function that fits the conversations of a data set.

from brim.integrations.datasets import fit

dataset = fit(datasets.load_dataset(...), model="gpt-5-mini", window=8192, num_proc=8)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, Unpack

from brim.batch import Fitter, FitterOptions

if TYPE_CHECKING:
    import datasets

    Data = TypeVar(
        "Data",
        datasets.Dataset,
        datasets.DatasetDict,
        datasets.IterableDataset,
        datasets.IterableDatasetDict,
    )


def fit(dataset: Data, *, num_proc: int | None = None, **options: Unpack[FitterOptions]) -> Data:
    """Return a data set whose conversations are fitted, with the options of `brim.batch.Fitter`.

    `num_proc` is the number of processes; a data set that is read while it is used has none.
    """
    fitter = Fitter(**options)
    if num_proc is None:
        return dataset.map(fitter, batched=True)
    return dataset.map(fitter, batched=True, num_proc=num_proc)
