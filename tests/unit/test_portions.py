"""Items are cut into portions by size and number, the same ones whenever it is repeated."""

from __future__ import annotations

import pytest

from queuekeeper.portions import portions

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("sizes", "most_items", "cut"),
    [
        ([], None, []),
        ([4, 6, 1], None, [[4, 6], [1]]),
        ([4, 7, 3], None, [[4], [7, 3]]),
        ([11, 1, 12], None, [[11], [1], [12]]),
        ([1, 1, 1, 1, 1], 2, [[1, 1], [1, 1], [1]]),
        ([0, 0, 0], None, [[0, 0, 0]]),
    ],
)
def test_a_portion_is_full_by_size_or_number_and_what_is_larger_is_one_by_itself(
    sizes: list[int], most_items: int | None, cut: list[list[int]]
) -> None:
    assert list(portions(iter(sizes), size=lambda each: each, most=10, most_items=most_items)) == cut
