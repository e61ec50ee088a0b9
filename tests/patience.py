"""How long tests wait for a condition before they call it a hang, and lives that end before a test does."""

from __future__ import annotations

from collections.abc import Iterator

PATIENCE_S = 600.0
"""A machine that is busy with other work takes ten times as long as one that is not: that changes no verdict.

It limits no step of the product.
"""


def short_lives_ms(first_ms: int = 300) -> Iterator[int]:
    """Yield lives that double, for what must be used before it expires: a test goes on with the first that lasts."""
    life_ms = first_ms
    while life_ms < 1_000 * PATIENCE_S:
        yield life_ms
        life_ms *= 2
    raise AssertionError(f"what takes a moment took longer than {life_ms // 2} ms")
