"""The jobs as programs: spark-submit, exit codes, the result as the last line, and an end together with their task.

By day a job runs in this process, with the Spark of all tests; tests/dags/test_spark_operator.py submits programs for
real, and tests/integration/test_demo.py these.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from queuekeeper.config import POSTGRES_VARIABLE, REDIS_VARIABLE, SUPERVISOR_VARIABLE
from queuekeeper.migration.spark import job
from tests.patience import PATIENCE_S
from tests.spark.world import World

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def world(make_world: Callable[..., World], healthy_template: str) -> World:
    return make_world(template=healthy_template)


@contextmanager
def _submitted(
    world: World, name: str, *arguments: str, supervisor: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {POSTGRES_VARIABLE: world.postgres_url, REDIS_VARIABLE: world.redis_url}
    if supervisor is not None:
        environment[SUPERVISOR_VARIABLE] = str(supervisor)
    submit = Path(sys.executable).with_name("spark-submit")
    process = subprocess.Popen(
        [submit, "--master", "local[2]", ROOT / "spark_jobs" / f"{name}.py", *arguments],
        env=environment | {"PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if supervisor is None else subprocess.DEVNULL,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _run(world: World, name: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    with _submitted(world, name, *arguments) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert out.strip(), err
    result: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return process.returncode, result


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.ZombieProcess:
        return "ended already"


def test_job_heeds_its_supervisor_first_and_ends_with_the_exit_code_and_the_last_line_of_a_failed_check(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = world.plan()
    done: list[str] = []

    def spark(environment: job.Environment, _: str) -> object:
        assert (environment.postgres_url, environment.redis_url) == (world.postgres_url, world.redis_url)
        done.append("Spark")
        return world.spark

    monkeypatch.setattr(job, "end_with_supervisor", lambda: done.append("supervisor"))
    monkeypatch.setattr(job.Environment, "spark", spark)
    monkeypatch.setenv(POSTGRES_VARIABLE, world.postgres_url)
    monkeypatch.setenv(REDIS_VARIABLE, world.redis_url)
    program = str(ROOT / "spark_jobs" / "verify_migration.py")
    monkeypatch.setattr(sys, "argv", [program, "--plan-id", plan.plan_id])
    capsys.readouterr()

    with pytest.raises(SystemExit) as ended:
        runpy.run_path(program, run_name="__main__")

    assert (ended.value.code, done) == (1, ["supervisor", "Spark"])
    said = capsys.readouterr()
    missing = json.loads(said.out.splitlines()[-1])
    assert missing["error"] == "CheckFailed"
    assert missing["message"].startswith("source and target differ: ")
    assert said.err.endswith(f"error: {missing['message']}\n")


# The same by spark-submit; that it hands on any program's exit code and last line: tests/dags/test_spark_operator.py.
@pytest.mark.nightly
def test_failed_check_is_reported_by_exit_code_and_last_line(world: World) -> None:
    plan = world.plan()

    code, missing = _run(world, "verify_migration", "--plan-id", plan.plan_id)

    assert (code, missing["error"]) == (1, "CheckFailed")
    assert missing["message"].startswith("source and target differ: ")


# Every migration by Airflow begins with it.
@pytest.mark.nightly
def test_plan_is_reported_by_exit_code_and_last_line(world: World) -> None:
    code, plan = _run(world, "plan_migration", "--run-id", "nightly", "--cohort-count", "12", "--quarantine-cap", "0.5")

    assert code == 0
    assert plan["plan_id"] == world.ledger.plan_of_run("nightly")
    assert plan["messages"] == 3_000


# That a driver that heeds its supervisor ends with it, JVM included: tests/dags/test_spark_operator.py, a killed task.
@pytest.mark.nightly
def test_driver_and_jvm_end_with_their_supervisor(world: World) -> None:
    plan = world.plan()
    world.ledger.set_throttle(plan.plan_id, 1)  # it would take most of an hour
    supervisor = subprocess.Popen(["sleep", "600"])
    try:
        with _submitted(world, "copy_sessions", "--plan-id", plan.plan_id, supervisor=supervisor.pid) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("copy 0/")
            below = psutil.Process(process.pid).children(recursive=True)
            assert any("copy_sessions.py" in _command(each) for each in below)
            supervisor.kill()
            supervisor.wait()
            assert process.wait(timeout=PATIENCE_S) < 0
            _, alive = psutil.wait_procs(below, timeout=PATIENCE_S)
            assert [_command(each) for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []
    finally:
        if supervisor.poll() is None:
            supervisor.kill()
