"""Every DAG file parses alone, quickly and without I/O, and keeps the rules that operators rely on."""

from __future__ import annotations

import importlib.util
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization

from queuekeeper.airflow.operators.jobs import PlanJobOperator
from queuekeeper.jobs.registry import job_of
from queuekeeper.jobs.resources import POOLS

pytestmark = pytest.mark.dags

ROOT = Path(__file__).resolve().parents[2]

FILES = sorted((ROOT / "dags").glob("*.py"))
PARSE_BUDGET_S = 2.0
"""Airflow's own limit is 30 s; everything above a second or two delays every DAG of the installation."""


def load(path: Path) -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location(f"parsed_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


def test_there_are_dag_files() -> None:
    assert "session_migration" in [path.stem for path in FILES]


def test_every_file_is_read_without_an_error(dag_bag: DagBag) -> None:
    assert dag_bag.import_errors == {}
    assert sorted(dag_bag.dags) == [path.stem for path in FILES]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
class TestEveryDag:
    def test_parsing_opens_no_socket_and_stays_in_its_budget(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        load(path)  # pays for the imports, which Airflow pays once

        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("a DAG file opened a socket while it was parsed")

        monkeypatch.setattr(socket.socket, "connect", refuse)
        monkeypatch.setattr(socket.socket, "connect_ex", refuse)
        monkeypatch.setattr(socket, "getaddrinfo", refuse)
        # Time of this thread, not of the clock: tests share their machine.
        started_s = time.thread_time()
        load(path)

        assert time.thread_time() - started_s < PARSE_BUDGET_S

    def test_the_file_is_named_after_its_dag(self, path: Path, dag_bag: DagBag) -> None:
        dag = dag_bag.dags[path.stem]

        assert path.stem == dag.dag_id
        assert str(path) == dag.fileloc

    def test_it_has_owner_tags_description_and_help(self, path: Path, dag_bag: DagBag) -> None:
        dag = dag_bag.dags[path.stem]

        assert "queuekeeper" in dag.tags
        assert dag.description
        assert dag.doc_md is not None
        assert "### If it fails" in dag.doc_md
        assert {task.owner for task in dag.tasks} == {"queuekeeper"}

    def test_its_runbook_exists_and_names_every_task(self, path: Path, dag_bag: DagBag) -> None:
        runbook = ROOT / "docs" / "runbooks" / f"{path.stem}.md"
        text = runbook.read_text("utf-8")

        assert f"docs/runbooks/{path.stem}.md" in (dag_bag.dags[path.stem].doc_md or "")
        assert [task.task_id for task in dag_bag.dags[path.stem].tasks if f"`{task.task_id}`" not in text] == []

    def test_its_runbook_clears_tasks_of_one_run_and_asks_first(self, path: Path) -> None:
        text = (ROOT / "docs" / "runbooks" / f"{path.stem}.md").read_text("utf-8").replace("\\\n", " ")

        for command in re.findall(r"^airflow tasks clear .*$", text, re.MULTILINE):
            assert "--start-date" in command
            assert "--end-date" in command
            assert "--yes" not in command

    def test_its_form_says_how_long_undo_files_are_kept(self, path: Path, dag_bag: DagBag) -> None:
        dag = dag_bag.dags[path.stem]
        plans = [task for task in dag.tasks if isinstance(task, PlanJobOperator)]
        undoes = any(job_of(kind).undoes for task in plans for kind in task.kinds())

        assert ("undo_retention_days" in dag.params) == undoes

    def test_one_run_at_a_time_and_none_for_the_past(self, path: Path, dag_bag: DagBag) -> None:
        dag = dag_bag.dags[path.stem]

        # Partitions are created while other runs wait for a person; each table's work is under a lock of its own.
        assert dag.max_active_runs == (6 if path.stem == "partition_maintenance" else 1)
        assert dag.catchup is False

    def test_tasks_that_load_a_store_are_in_its_pool_and_are_retried(self, path: Path, dag_bag: DagBag) -> None:
        for task in dag_bag.dags[path.stem].tasks:
            if hasattr(task, "postgres_conn_id") or task.is_mapped:
                assert task.pool in {str(pool) for pool in POOLS}, task.task_id
                assert (task.retries or 0) >= 1, task.task_id
                assert task.retry_policy is not None, task.task_id

    def test_it_survives_being_serialized(self, path: Path, dag_bag: DagBag) -> None:
        serialized = DagSerialization.serialize_dag(dag_bag.dags[path.stem])

        assert DagSerialization.deserialize_dag(serialized).task_ids == dag_bag.dags[path.stem].task_ids

    def test_parameters_are_titled_and_described_with_their_units(self, path: Path, dag_bag: DagBag) -> None:
        params = dag_bag.dags[path.stem].params
        units = {"_s": "second", "_percent": "percent", "_per_s": "per second", "_minutes": "minute"}

        for name in params:
            param = params.get_param(name)
            assert param.schema.get("title"), name
            assert help_of(param).endswith("."), name
            for suffix, word in units.items():
                if name.endswith(suffix):
                    assert word in f"{param.schema['title']} {help_of(param)}".lower(), name


def help_of(param: Any) -> str:
    """Return what Airflow's form says below a field: Markdown where there is a command in it."""
    return str(param.description or param.schema["description_md"])


def test_parsing_imports_neither_spark_nor_pandas_nor_expectations() -> None:
    # Airflow, which all of them need, takes seconds to import: one process reads them all. The first line that is not
    # empty names the file that is to blame.
    code = (
        "import runpy, sys\n"
        "for path in sys.argv[1:]:\n"
        "    runpy.run_path(path)\n"
        "    print(path, sorted({'pyspark', 'pandas', 'great_expectations', 'altair'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, FILES)], capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines()[-len(FILES) :] == [f"{path} []" for path in FILES]


def test_session_migration_is_wired_as_it_is_drawn(dag_bag: DagBag) -> None:
    dag = dag_bag.dags["session_migration"]

    assert {task.task_id: set(task.upstream_task_ids) for task in dag.tasks} == {
        "plan": set(),
        "summarise_plan": {"plan"},
        "approve": {"summarise_plan"},
        "check_approval": {"approve"},
        "arm": {"check_approval"},
        "copy": {"arm", "check_approval"},
        # With the broker stopped.
        "verify": {"copy"},
        # With devices connected.
        "catch_up": {"copy"},
        "rehearse": {"catch_up"},
        "cut_over": {"rehearse"},
        "soak": {"cut_over"},
        "approve_commit": {"soak"},
        "mirror": {"soak"},
        "commit": {"approve_commit"},
        "moved": {"verify", "commit", "mirror"},
        "report": {"check_approval", "moved"},
        "migrated": {"moved", "report"},
    }
    # The run's verdict is that of its leaves.
    assert [task.task_id for task in dag.tasks if not task.downstream_task_ids] == ["migrated"]


def test_plugin_file_does_not_hide_the_package() -> None:
    # Airflow imports plugin files under their bare stem.
    stems = [path.stem for path in (ROOT / "plugins").glob("*.py")]

    assert stems == ["queuekeeper_plugin"]
    assert not any(re.fullmatch("queuekeeper|airflow", stem) for stem in stems)
