"""Marks of lanes, which hold for every test of a folder."""

from __future__ import annotations

from pathlib import Path

import pytest


def mark(items: list[pytest.Item], folder: Path, lane: pytest.MarkDecorator) -> None:
    """Give every test below a folder its lane's mark."""
    for item in items:
        if folder in item.path.parents:
            item.add_marker(lane)
