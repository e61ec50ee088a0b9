"""Python workers of a Spark on this machine begin with what tasks need, few are started, and failures are told once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from time import sleep
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from queuekeeper.migration.spark.python_workers import NEEDED
from queuekeeper.migration.spark.session import build_session
from tests.spark.world import World


def test_workers_have_what_tasks_need_before_they_import_anything(spark: SparkSession) -> None:
    def imported(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"name": list(sys.modules)})

    found = {row["name"] for row in spark.range(1).mapInArrow(imported, "name string").collect()}
    assert set(NEEDED) <= found


# It costs seconds when it is broken, and changes nothing else.
@pytest.mark.nightly
def test_plan_copy_and_verification_start_workers_of_one_kind(
    make_world: Callable[..., World], healthy_template: str
) -> None:
    world = make_world(template=healthy_template)
    java = next(child for child in psutil.Process().children(recursive=True) if child.name() == "java")
    # Other tests share this Spark, and may have started some of another kind.
    before = set(java.children())
    plan = world.plan()
    world.copy(plan.plan_id)
    assert world.verify(plan.plan_id).balanced

    started = [_arguments(child) for child in java.children() if child not in before]
    assert [each for each in started if each] in ([], ["-m queuekeeper.migration.spark.python_workers pyspark.worker"])


def _arguments(process: psutil.Process) -> str:
    """Return what a process was started with; nothing when it has ended."""
    try:
        return " ".join(process.cmdline()[1:])
    except psutil.Error:
        return ""


def test_task_that_fails_leaves_the_word_to_whoever_runs_it_unless_traces_are_wanted(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(word: str) -> None:
        def task(_: Any) -> None:
            raise RuntimeError(word)

        with pytest.raises(PySparkException, match=word):
            spark.sparkContext.parallelize([1], 1).foreach(task)

    seen = ""
    for traces, word in ((False, "silent"), (True, "told")):
        build_session("queuekeeper tests", master="local[2]", traces=traces)
        fail(word)
    # Java's lines come by a pipe, in order.
    for _ in range(300):
        seen += capfd.readouterr().err
        if "aborting job" in seen:
            break
        sleep(0.1)
    assert "told" in seen
    assert "ERROR" in seen
    assert "silent" not in seen
