"""What Spark's session is told, however it was started."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.spark.hosts import without_local_address

pytestmark = pytest.mark.spark

SHUFFLE_PARTITIONS = """
import sys
from queuekeeper.migration.spark.session import build_session

session = build_session("session", master=sys.argv[1])
print(session.conf.get("spark.sql.shuffle.partitions"))
session.stop()
"""


@pytest.mark.parametrize(
    ("cores", "submitted", "partitions"),
    [(2, "", 8), (12, "", 12), (12, "--conf spark.sql.shuffle.partitions=3 ", 3)],
    ids=["few cores", "many cores", "as the user says"],
)
def test_shuffles_have_a_partition_for_each_core_and_eight_at_least_unless_told_otherwise(
    cores: int, submitted: str, partitions: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHUFFLE_PARTITIONS, f"local[{cores}]"],
        env=without_local_address() | {"PYSPARK_SUBMIT_ARGS": f"{submitted}pyspark-shell"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert int(done.stdout) == partitions
