"""One run of the DAG inside this process, by ``dag.test()``: operators, hooks and a real Spark, without a scheduler.

What needs a person, a scheduler or a killed process is in ``tests/integration/test_session_migration.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from airflow.utils.db import initdb

from queuekeeper import postgres, redis_client
from queuekeeper.clock import system_clock
from queuekeeper.embedded import java_home
from queuekeeper.migration.ledger import MigrationLedger
from queuekeeper.sessions.sample import SampleParameters, fill

if TYPE_CHECKING:
    from airflow.sdk import DAG

pytestmark = pytest.mark.dags


def test_dry_run_plans_and_asks_nobody(
    session_migration: DAG,
    postgres_url: str,
    valkey_url: str,
    server_home: Path,
    connections: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    java = java_home(server_home)
    monkeypatch.setenv("JAVA_HOME", str(java))
    monkeypatch.setenv("PATH", os.pathsep.join([str(java / "bin"), os.environ["PATH"]]))
    connections(
        queuekeeper_postgres=postgres_url,
        queuekeeper_redis=valkey_url,
        queuekeeper_spark='{"conn_type": "spark", "host": "local[1]", "extra": {"deploy-mode": "client"}}',
    )
    with postgres.connect(postgres_url, autocommit=True) as connection:
        postgres.migrate(connection)
        now_ms = system_clock()
        sample = fill(
            connection,
            SampleParameters(messages=500, sessions=50, long_queues=0, now_ms=now_ms, create_schema=True),
        )
    initdb()

    run = session_migration.test(run_conf={"dry_run": True, "cohort_count": 4})

    assert run.state == "success"
    states = {task.task_id: task.state for task in run.get_task_instances()}
    assert states == {
        "plan": "success",
        "summarise_plan": "success",
        **dict.fromkeys(
            (
                *("approve", "check_approval", "arm", "copy", "verify", "catch_up", "rehearse", "cut_over", "soak"),
                *("approve_commit", "commit", "moved", "report", "migrated"),
            ),
            "skipped",
        ),
    }
    with postgres.connect(postgres_url, autocommit=True) as connection:
        ledger = MigrationLedger(connection)
        plan = ledger.load_plan(ledger.plan_of_run(run.run_id))
    assert plan.total("messages") == sample.messages
    assert len(plan.cohorts) == 4
    with redis_client.connect(valkey_url) as client:
        assert client.dbsize() == 0
