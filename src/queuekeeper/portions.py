"""Cuts what goes to a server into portions of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def portions(
    items: Iterable[T], *, size: Callable[[T], int], most: int, most_items: int | None = None
) -> Iterator[list[T]]:
    """Cut items into portions, in their order, in the same way whenever it is repeated.

    :param size: of an item; one that is larger than a portion is one by itself.
    :param most: size of a portion.
    :param most_items: of a portion, besides; none for any number.
    """
    portion: list[T] = []
    filled = 0
    for item in items:
        item_size = size(item)
        if portion and (filled + item_size > most or len(portion) == most_items):
            yield portion
            portion, filled = [], 0
        portion.append(item)
        filled += item_size
    if portion:
        yield portion
