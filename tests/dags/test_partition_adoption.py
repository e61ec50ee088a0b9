"""An adoption through Airflow: whole runs by ``dag.test()``, with a person's answer, there and committed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from airflow.providers.standard.operators.hitl import HITLOperator

from tests.dags.runs import states

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk import DAG

    from queuekeeper.postgres import Connection

pytestmark = [pytest.mark.dags, pytest.mark.usefixtures("airflow_database")]

ANSWER = {"chosen_options": ["Approve"], "responded_by_user": {"id": "1", "name": "ada"}}
ADOPT = {"table": "public.visits", "key": "at", "step": "1 day", "ahead": "2 days", "disk_mib": 100}


@pytest.fixture
def adoption(dag_bag: DagBag) -> Callable[[], DAG]:
    """Return copies of the DAG, one for each run."""
    return lambda: copy.deepcopy(dag_bag.dags["partition_adoption"])


@pytest.fixture
def table(empty_database: Connection) -> Connection:
    """A plain table, and Airflow's connection to it."""
    empty_database.execute("CREATE TABLE visits (id bigserial, at timestamptz NOT NULL, PRIMARY KEY (id, at))")
    empty_database.execute(
        "INSERT INTO visits (at) SELECT now() - n * interval '1 hour' FROM generate_series(1, 50) AS n"
    )
    return empty_database


def kind(connection: Connection) -> str:
    row = connection.execute("SELECT relkind FROM pg_class WHERE oid = 'public.visits'::regclass").fetchone()
    return str(row[0]) if row else ""


def test_dry_run_ends_with_the_plan(adoption: Callable[[], DAG], table: Connection) -> None:
    run = adoption().test(run_conf={**ADOPT, "dry_run": True})
    assert (run.state, states(run)["work"], kind(table)) == ("success", {"skipped"}, "r")


def test_approved_runs_adopt_the_table_and_drop_the_old_one(
    adoption: Callable[[], DAG], table: Connection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(HITLOperator, "execute", lambda *_: ANSWER)
    run = adoption().test(run_conf=ADOPT)
    assert (run.state, {each for found in states(run).values() for each in found}) == ("success", {"success"})
    assert kind(table) == "p"
    assert table.execute("SELECT count(*) FROM visits").fetchone() == (50,)
    (page,) = (tmp_path / "reports").glob("partition_adoption-*.html")
    assert "partitions adopt public.visits --act commit" in page.read_text("utf-8")
    assert adoption().test(run_conf={"table": "public.visits", "act": "commit"}).state == "success"
    left = table.execute("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'queuekeeper\\_adopt%'").fetchone()
    assert (kind(table), left) == ("p", (0,))
