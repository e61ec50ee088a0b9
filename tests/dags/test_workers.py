"""What holds where tasks run on workers of their own: one is killed, and none has what the others need."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import CommsDecoder

from queuekeeper.airflow import operators
from queuekeeper.airflow.operators.stores import StoresOperator
from queuekeeper.airflow.settings import task_settings
from queuekeeper.airflow.supervised import SupervisedOperator
from queuekeeper.errors import UsageError
from tests.dags.test_spark_operator import ProbeOperator
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.dags

WORKER = "import sys; from tests.dags.test_workers import work; work(sys.argv[1])"


class EndlessOperator(StoresOperator):
    """Says that it works, says nothing more, and notes that it was told to stop."""

    def __init__(self, *, directory: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.directory = Path(directory)

    def execute(self, context: object) -> None:
        """Work for longer than any test."""
        (self.directory / "part").write_text(str(os.getpid()), "utf-8")
        (self.directory / "part").rename(self.directory / "pid")
        time.sleep(2 * PATIENCE_S)

    def on_kill(self) -> None:
        """Note it."""
        (self.directory / "told").touch()


def work(directory: str) -> None:
    """Do what a Celery worker does: fork the task, in a process group of its own, and wait for it."""
    task = os.fork()
    if not task:
        os.setpgid(0, 0)
        task_runner.SUPERVISOR_COMMS = CommsDecoder.__new__(CommsDecoder)
        operator = EndlessOperator(task_id="endless", directory=directory)
        operator.pre_execute({})
        operator.execute({})
    os.waitpid(task, 0)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], psutil.Process]]:
    """A worker in a process group of its own, and its task."""
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(tmp_path)],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + PATIENCE_S
        while not (tmp_path / "pid").exists():
            assert process.poll() is None, "the worker ended before its task was at work"
            assert time.monotonic() < deadline, "the task was not at work"
            time.sleep(0.05)
        task = psutil.Process(int((tmp_path / "pid").read_text("utf-8")))
        yield process, task
        process.kill()
        if task.is_running():
            task.kill()


def test_task_ends_with_its_worker_and_lets_go_what_it_has_started(
    worker: tuple[subprocess.Popen[bytes], psutil.Process], tmp_path: Path
) -> None:
    process, task = worker
    assert not (tmp_path / "told").exists()

    os.killpg(process.pid, signal.SIGKILL)

    _, alive = psutil.wait_procs([task], timeout=PATIENCE_S)
    assert alive == []
    assert (tmp_path / "told").exists()


def test_every_operator_of_ours_ends_with_its_worker() -> None:
    modules = [
        importlib.import_module(module.name)
        for module in pkgutil.iter_modules(operators.__path__, f"{operators.__name__}.")
    ]
    found = {
        each
        for module in modules
        for _, each in inspect.getmembers(module, inspect.isclass)
        if issubclass(each, BaseOperator) and each.__module__.startswith("queuekeeper.")
    }
    assert len(found) > 40
    assert {each.__name__ for each in found if not issubclass(each, SupervisedOperator)} == set()


SHARED = {
    "QUEUEKEEPER_REPORTS_DIR": "s3://objects@queues/reports",
    "QUEUEKEEPER_UNDO_DIR": "s3://objects@queues/undo",
    "QUEUEKEEPER_HASH_KEY": "the same for all of them",
}


@pytest.mark.parametrize("missing", SHARED)
def test_task_refuses_to_keep_for_its_worker_what_others_need(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    for name, value in SHARED.items():
        if name != missing:
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "LocalExecutor,CeleryExecutor")

    with pytest.raises(UsageError, match=f"{missing}: not set, so each worker of .*CeleryExecutor would keep its own"):
        ProbeOperator(task_id="probe", job="probe.py", spark_jobs=str(own_home)).execute({})

    monkeypatch.setenv(missing, SHARED[missing])
    with pytest.raises(UsageError, match="there is no Spark application"):
        ProbeOperator(task_id="probe", job="probe.py", spark_jobs=str(own_home)).execute({})
    with pytest.raises(UsageError, match="QUEUEKEEPER_ARCHIVES_DIR: not set"):
        task_settings("archives_dir")


def test_one_machine_needs_no_settings(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "LocalExecutor")

    assert task_settings("archives_dir").reports == own_home / "reports"
