"""Grids of parameters: a few cases that contain every pair of values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest

Case = tuple[Any, ...]


def pairwise(**axes: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize a test with cases in which every two values of different axes meet.

    The full product of four axes finds little that pairs do not, and takes many times as long.
    """
    return pytest.mark.parametrize(list(axes), cover_pairs(list(axes.values())))


def cover_pairs(axes: Sequence[Sequence[Any]]) -> list[Case]:
    """Return rows of the product of the axes that together contain every pair of values."""
    rows = list(product(*(range(len(axis)) for axis in axes)))
    missing = {pair for row in rows for pair in _pairs(row)}
    chosen = []
    while missing:
        best = max(rows, key=lambda row: len(missing.intersection(_pairs(row))))
        missing.difference_update(_pairs(best))
        chosen.append(best)
    return [
        tuple(axis[place] for axis, place in zip(axes, row, strict=True)) for row in sorted(chosen)
    ]


def _pairs(row: Iterable[int]) -> list[tuple[tuple[int, int], ...]]:
    return list(combinations(enumerate(row), 2))
