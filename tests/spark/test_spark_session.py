"""What Spark's session is told, however it was started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.spark.hosts import without_local_address

pytestmark = pytest.mark.spark

STEPS = """
import sys
from queuekeeper.migration.spark.session import build_session, set_task_count

session = build_session("session", master=sys.argv[1])
for rows in (0, 1_900_000, 5):
    print(set_task_count(session, rows=rows), session.conf.get("spark.sql.shuffle.partitions"))
session.stop()
"""


@pytest.mark.parametrize(
    ("cores", "submitted", "tasks", "partitions"),
    [
        pytest.param(2, "", (2, 19, 2), (2, 19, 2), id="few cores"),
        pytest.param(12, "", (12, 19, 12), (12, 19, 12), id="many cores", marks=pytest.mark.nightly),
        pytest.param(*(2, "--conf spark.sql.shuffle.partitions=3 ", (2, 19, 2), (3, 3, 3)), id="as the user says"),
    ],
)
def test_a_step_and_its_shuffles_follow_rows_and_cores_unless_the_user_says_otherwise(
    cores: int, submitted: str, tasks: tuple[int, ...], partitions: tuple[int, ...]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STEPS, f"local[{cores}]"],
        env=without_local_address() | {"PYSPARK_SUBMIT_ARGS": f"{submitted}pyspark-shell"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert [tuple(map(int, line.split())) for line in done.stdout.splitlines()] == list(
        zip(tasks, partitions, strict=True)
    )
    # People read what a command says, and nothing of how Java was started.
    assert done.stderr == ""


def test_java_that_does_not_start_says_why() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STEPS, "local[1]"],
        env=without_local_address() | {"PYSPARK_SUBMIT_ARGS": "--unheard-of pyspark-shell"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "Unrecognized option: --unheard-of" in done.stderr


def test_java_runs_once_it_is_started_also_under_spark_submit(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from pyspark import SparkConf, SparkContext\n"
        "from queuekeeper.migration.spark.java_start import start_java\n"
        "start_java(SparkConf())\n"
        "print(SparkContext._jvm.java.lang.Math.max(3, 4))\n",
        "utf-8",
    )
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"

    ways: list[list[str | Path]] = [[sys.executable, program], [submit, "--master", "local[1]", program]]
    for command in ways:
        environment = without_local_address() | {"PYSPARK_PYTHON": sys.executable}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == "4\n"
