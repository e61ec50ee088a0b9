"""Fixtures of the quality lane."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark_session import spark

__all__ = ["spark"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.quality)
