"""The grids of `tests.support.pairwise` contain every pair of values, in few cases."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.support.pairwise import cover_pairs


@pytest.mark.parametrize("sizes", [(8, 3, 4, 2), (2, 2, 2), (5, 1), (3, 3, 6), (4,)])
def test_every_two_values_meet(sizes: tuple[int, ...]) -> None:
    axes = [[f"{axis}-{value}" for value in range(size)] for axis, size in enumerate(sizes)]
    rows = cover_pairs(axes)
    for first, second in combinations(range(len(axes)), 2):
        assert {(row[first], row[second]) for row in rows} == set(
            product(axes[first], axes[second])
        )


def test_a_grid_is_much_smaller_than_the_product() -> None:
    assert len(cover_pairs([range(8), range(3), range(4), range(2)])) == 32
