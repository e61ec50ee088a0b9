"""Runs of the DAG inside this process, by ``dag.test()``: its wiring, operators and hooks, without a scheduler.

What Spark's jobs find is written down by a stand-in, and at night by Spark. What needs a person, a scheduler or a
killed process is in ``tests/integration/test_session_migration.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk.exceptions import AirflowFailException

from queuekeeper import postgres, redis_client, schema_migrations, sql_statements
from queuekeeper.airflow.operators.spark import QueuekeeperSparkOperator
from queuekeeper.clock import system_clock
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.ledger.model import PlanState, code_version
from queuekeeper.migration.preflight import source_fingerprint
from queuekeeper.postgres import Connection
from queuekeeper.sessions.sample import fill
from queuekeeper.sessions.sample_parameters import SampleParameters
from tests import report_samples as samples

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from tests.dags.conftest import Stores

pytestmark = [pytest.mark.dags, pytest.mark.usefixtures("airflow_database")]

ROOT = Path(__file__).resolve().parents[2]
BEHIND_THE_PLAN = (
    "approve", "check_approval", "arm", "copy", "verify", "catch_up", "rehearse", "cut_over", "soak", "approve_commit",
    "mirror", "commit", "moved", "report", "migrated",
)  # fmt: skip
ONLINE = {"catch_up", "rehearse", "cut_over", "soak", "approve_commit", "mirror", "commit"}


class Runs:
    """Runs of the DAG over a source without rows and a plan made up; somebody answers what they ask.

    :ivar jobs: of Spark that were asked for.
    :ivar asked: the questions.
    """

    def __init__(self, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ledger = MigrationLedger(connection)
        self.jobs: list[str] = []
        self.asked: list[str] = []
        evidence = samples.balanced(count=4)
        self.plan = replace(
            evidence.plan,
            source_fingerprint=source_fingerprint(connection),
            code_version=code_version(),
            as_of_ms=system_clock(),
            state=PlanState.PLANNED,
        )
        self._rows = evidence.rows
        self._answer = ""
        monkeypatch.setattr(QueuekeeperSparkOperator, "execute", lambda operator, context: self._job(operator))
        monkeypatch.setattr(HITLOperator, "execute", lambda operator, context: self._decide(operator))

    def _job(self, operator: Any) -> dict[str, Any]:
        self.jobs.append(operator.job.removesuffix(".py"))
        if operator.job == "plan_migration.py":
            self.ledger.save_plan(self.plan, run_id=operator.run_id)
        elif operator.job == "verify_migration.py":
            lost = samples.with_lost_message(self._rows)
            self.ledger.replace_ledger(self.plan.plan_id, lost, system_clock())
            raise AirflowFailException("verify_migration.py stopped with exit code 1: source and target differ")
        return {"plan_id": self.plan.plan_id, "messages_written": 0}

    def _decide(self, operator: HITLOperator) -> Mapping[str, Any]:
        self.asked.append(operator.subject)
        return {"chosen_options": [self._answer], "responded_by_user": {"id": "1", "name": "ada"}}

    def run(self, *, answer: str = "", **conf: Any) -> tuple[str, dict[str, str]]:
        """Return the state of a run and of its tasks.

        A run leaves its values behind in the DAG, so it is read anew. What fails is not tried again, as that takes
        minutes.
        """
        self._answer = answer
        dag = DagBag(str(ROOT / "dags" / "session_migration.py")).dags["session_migration"]
        for task in dag.tasks:
            task.retries, task.retry_policy = 0, None
        run = dag.test(run_conf=conf)
        return str(run.state), {task.task_id: str(task.state) for task in run.get_task_instances()}


@pytest.fixture
def runs(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Airflow's own database, and servers that it knows."""
    _, connection = stores
    connection.execute(sql_statements.statement("sessions/vendor_schema"))
    schema_migrations.migrate(connection)
    return Runs(connection, monkeypatch)


def test_dry_run_ends_with_the_plan(runs: Runs) -> None:
    state, tasks = runs.run(dry_run=True)

    assert state == "success"
    assert tasks == {"plan": "success", "summarise_plan": "success", **dict.fromkeys(BEHIND_THE_PLAN, "skipped")}
    assert (runs.jobs, runs.asked) == (["plan_migration"], [])


def test_rejected_plan_is_not_copied_and_has_no_report(runs: Runs) -> None:
    state, tasks = runs.run(answer="Reject")

    assert state == "failed"
    assert runs.asked == [f"Copy {runs.plan.total('to_copy'):,} messages to Redis?"]
    assert (tasks["approve"], tasks["check_approval"]) == ("success", "failed")
    assert {tasks[task] for task in ("copy", "verify", "report", "migrated")} == {"upstream_failed"}
    assert runs.jobs == ["plan_migration"]
    assert runs.ledger.approval(runs.plan.plan_id) is None


def test_failed_verification_is_reported_and_fails_the_run(runs: Runs) -> None:
    state, tasks = runs.run(answer="Approve", copy_groups=2)

    assert state == "failed"
    assert runs.jobs == ["plan_migration", "copy_sessions", "copy_sessions", "verify_migration"]
    assert {task for task, each in tasks.items() if each == "skipped"} == ONLINE
    assert (tasks["copy"], tasks["verify"]) == ("success", "failed")
    assert (tasks["moved"], tasks["report"], tasks["migrated"]) == ("upstream_failed", "success", "upstream_failed")
    (stored,) = runs.ledger.reports(runs.plan.plan_id)
    written = json.loads(Path(stored.json_path).read_text("utf-8"))
    assert (written["verdict"], written["totals"]["unaccounted"]) == ("not balanced", 1)
    assert "Not balanced" in Path(stored.html_path).read_text("utf-8")


@pytest.mark.nightly
def test_dry_run_plans_and_asks_nobody(
    session_migration: DAG,
    postgres_url: str,
    valkey_url: str,
    local_spark: None,
    connections: Callable[..., None],
) -> None:
    connections(queuekeeper_postgres=postgres_url, queuekeeper_redis=valkey_url)
    with postgres.connect(postgres_url, autocommit=True) as connection:
        schema_migrations.migrate(connection)
        now_ms = system_clock()
        sample = fill(
            connection,
            SampleParameters(messages=500, sessions=50, long_queues=0, now_ms=now_ms, create_schema=True),
        )

    run = session_migration.test(run_conf={"dry_run": True, "cohort_count": 4})

    assert run.state == "success"
    states = {task.task_id: task.state for task in run.get_task_instances()}
    assert states == {"plan": "success", "summarise_plan": "success", **dict.fromkeys(BEHIND_THE_PLAN, "skipped")}
    with postgres.connect(postgres_url, autocommit=True) as connection:
        ledger = MigrationLedger(connection)
        plan = ledger.load_plan(ledger.plan_of_run(run.run_id))
    assert plan.total("messages") == sample.messages
    assert len(plan.cohorts) == 4
    with redis_client.connect(valkey_url) as client:
        assert client.dbsize() == 0
