"""Fixtures of the property lane."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lanes import mark
from tests.spark_session import spark

__all__ = ["spark"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items, HERE, pytest.mark.property)
