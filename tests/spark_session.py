"""The one Spark of a test run; every lane that needs it shares it, since starting it takes as long as many tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from queuekeeper.migration.spark import build_session


@pytest.fixture(scope="session")
def spark(java: None) -> Iterator[SparkSession]:
    """Local Spark on two cores; its shuffles are as small as the data of tests."""
    session = build_session("queuekeeper tests", master="local[2]")
    session.conf.set("spark.sql.shuffle.partitions", "2")
    # It tells of each connection that it closes, also when Python ends: Airflow's logging, which other tests set up,
    # would then write to a stream that pytest has closed.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    yield session
    session.stop()
