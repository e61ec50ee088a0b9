"""What counts as a bloated table."""

from __future__ import annotations

FEWEST_DEAD_ROWS = 10_000
"""Fewest dead rows of a bloated table; autovacuum leaves tables with fewer alone."""
