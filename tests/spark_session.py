"""The one Spark of a test run; every lane that needs it shares it, since starting it takes as long as many tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from queuekeeper.java import WITHOUT_COMPILING
from queuekeeper.migration.spark.session import build_session


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


@pytest.fixture
def spark_of_commands(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """The same for commands that are called in this process: each would end it."""
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    return spark


@pytest.fixture(scope="module")
def compiling(spark: SparkSession) -> Iterator[None]:
    """Let Spark compile the queries of a file by day, too, as it does where nobody says anything.

    It is for one file of each job; the others are about what is done around the queries.
    """
    before = {name: str(spark.conf.get(name)) for name in WITHOUT_COMPILING}
    for name in WITHOUT_COMPILING:
        spark.conf.unset(name)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)
