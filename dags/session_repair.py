"""Repair one kind of fault in sessions in Redis, while the broker works.

A quality run (`queue_quality`) finds the faulty queues. The chosen remedy reads each of them and plans exactly what it
would change; a person approves; each change is recorded in an undo file and then made by a script that checks its place
again. A second look shows what is left, and the report says what was planned, done and left.

### If it fails

- **plan**: the log's last line says what to correct: a parameter, a server, a missing privilege, no quality run yet.
  Nothing was written to Redis. Trigger the DAG again.
- **apply**: the plan was rejected or not answered in time, and nothing was written; or a server was lost: clear the
  task, and it does the rest.
- **report**: clear the task; it only reads.

Step by step, with commands: `docs/runbooks/session_repair.md`. Owner: queuekeeper.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from queuekeeper.airflow.defaults import ONE_AT_A_TIME, Pool, Tag, connections, default_args, of_file, tags
from queuekeeper.airflow.forms import form
from queuekeeper.airflow.operators.approval import ApprovePlanOperator
from queuekeeper.airflow.operators.jobs import SummariseJobOperator
from queuekeeper.airflow.operators.repair import ApplyRepairOperator, PlanRepairOperator, ReportRepairOperator
from queuekeeper.jobs.common import Approval, Connections, DryRunFirst, UndoRetention
from queuekeeper.maintenance.remedies.model import RepairWish, Selection

REDIS: dict[str, Any] = {"pool": Pool.REDIS.value, "execution_timeout": timedelta(hours=12)}
PLAN = "ti.xcom_pull(task_ids='plan')"
SUMMARY = "ti.xcom_pull(task_ids='summarise')"
RUN_ID = f"{{{{ {PLAN}['maintenance_run_id'] }}}}"

with DAG(
    **of_file(__file__, __doc__),
    description="Repair one kind of fault in sessions: plan, approve, apply, report.",
    schedule=None,
    params=form(RepairWish, DryRunFirst, Selection, UndoRetention, Approval, Connections),
    default_args={**default_args(), **connections("postgres", "redis")},
    tags=tags(Tag.MAINTENANCE, Tag.REDIS),
    **ONE_AT_A_TIME,
):
    plan = PlanRepairOperator(task_id="plan", **REDIS)
    summarise = SummariseJobOperator(
        task_id="summarise", job="{{ params.remedy }}", maintenance_run_id=RUN_ID, pool=Pool.POSTGRES
    )
    approve = ApprovePlanOperator(
        task_id="approve",
        subject=f"{{{{ {SUMMARY}['question'] }}}}",
        body=f"{{{{ {SUMMARY}['markdown'] }}}}",
        plan_only=f"{{{{ params.dry_run or {PLAN}['changes'] == 0 }}}}",
        retry_delay=timedelta(seconds=1),
    )
    mend = ApplyRepairOperator(task_id="apply", run_id=RUN_ID, decision=approve.output, **REDIS)
    report = ReportRepairOperator(task_id="report", maintenance_run_id=RUN_ID, **REDIS)

    plan >> summarise >> approve >> mend >> report
