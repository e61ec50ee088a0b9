"""Marks of lanes, which hold for every test of a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def mark(items: list[pytest.Item], folder: Path, lane: pytest.MarkDecorator) -> None:
    """Give every test below a folder its lane's mark."""
    # As text: there are many thousand items, and a path that is asked for its parents makes each of them.
    below = f"{folder}{os.sep}"
    for item in items:
        if str(item.path).startswith(below):
            item.add_marker(lane)
