"""The one Spark of a test run; every lane that needs it shares it, since starting it takes as long as many tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from queuekeeper.migration.spark import build_session


@pytest.fixture(scope="session")
def spark(java: None) -> Iterator[SparkSession]:
    """Local Spark on two cores; its shuffles are as small as the data of tests."""
    session = build_session("queuekeeper tests", master="local[2]")
    session.conf.set("spark.sql.shuffle.partitions", "2")
    yield session
    session.stop()
