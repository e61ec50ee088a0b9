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


# Spark compiles each query, and plans it anew while it runs: that pays with millions of rows, and tests have thousands.
_WITHOUT_COMPILING = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


@pytest.fixture(scope="module")
def interpreting(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    """Let Spark interpret the queries of a file by day, a third less work; at night it compiles them.

    It is for files about what is done around the queries; what they find is shown by others, with Spark as it comes.
    """
    if request.config.getoption("--nightly"):
        yield
        return
    for name, value in _WITHOUT_COMPILING.items():
        spark.conf.set(name, value)
    yield
    for name in _WITHOUT_COMPILING:
        spark.conf.unset(name)
