"""Clean sessions in Redis of what has expired, while the broker runs.

References whose message is gone and messages that no reference names are removed; messages without expiry and what is
left of idle sessions get one. A first pass counts; a person approves; each master is cleaned by a task of its own; a
second pass shows what is left. No live message is touched: the script that writes looks again.

**Before**: nothing has to be stopped. Start with a dry run.

### If it fails

- **plan**: the log's last line says what to mend: a parameter, a server, a right that the Redis user lacks, with the
  command that grants it. Nothing was written to Redis. Trigger the DAG again.
- **check_approval**: the plan was rejected, not answered in time, or is too old. Nothing was written to Redis. Trigger
  the DAG again.
- **apply**: it has retried what a retry can mend. Do what the log says, then clear the failed task with its downstream
  tasks: it goes on where it stopped. The same after its time limit.
- **report**: clear the task; it only reads.

Step by step, with commands: `docs/runbooks/expired_reference_cleanup.md`. Owner: queuekeeper.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, TriggerRule

from queuekeeper.airflow.defaults import ONE_AT_A_TIME, Pool, Tag, connections, default_args, of_file, tags
from queuekeeper.airflow.forms import form
from queuekeeper.airflow.operators.approval import ApprovePlanOperator
from queuekeeper.airflow.operators.jobs import (
    ApplyJobShareOperator,
    CheckJobApprovalOperator,
    PlanJobOperator,
    ReportJobOperator,
    SummariseJobOperator,
)
from queuekeeper.jobs.common import Approval, Connections, DryRun, UndoRetention
from queuekeeper.maintenance.cleanup.model import CleanupParameters

JOB = Path(__file__).stem
SUMMARY = "ti.xcom_pull(task_ids='summarise_plan')"
RUN_ID = "{{ ti.xcom_pull(task_ids='plan', key='maintenance_run_id') }}"

with DAG(
    **of_file(__file__, __doc__),
    description="Clean sessions in Redis of what has expired: plan, approve, clean, look again.",
    schedule=None,
    params=form(DryRun, CleanupParameters, UndoRetention, Approval, Connections),
    default_args={**default_args(), **connections("postgres", "redis"), "job": JOB},
    tags=tags(Tag.MAINTENANCE, Tag.REDIS),
    **ONE_AT_A_TIME,
):
    plan = PlanJobOperator(task_id="plan", job=JOB, pool=Pool.REDIS)
    summarise = SummariseJobOperator(task_id="summarise_plan", maintenance_run_id=RUN_ID, pool=Pool.POSTGRES)
    approve = ApprovePlanOperator(
        task_id="approve",
        subject=f"Clean {{{{ '{{:,}}'.format({SUMMARY}['numbers']['to_do']) }}}} keys and references in Redis?",
        body=f"{{{{ {SUMMARY}['markdown'] }}}}",
        plan_only=f"{{{{ params.dry_run or {SUMMARY}['empty'] }}}}",
        retry_delay=timedelta(seconds=1),
    )
    check = CheckJobApprovalOperator(
        task_id="check_approval", maintenance_run_id=RUN_ID, decision=approve.output, pool=Pool.POSTGRES
    )
    apply = ApplyJobShareOperator.partial(
        task_id="apply",
        map_index_template="{{ task.share }}",
        pool=Pool.REDIS,
        execution_timeout=timedelta(days=7),
    ).expand_kwargs(check.output)
    # What was done is of interest most when a shard was not finished; without an approval there is nothing to report.
    report = ReportJobOperator(
        task_id="report", maintenance_run_id=RUN_ID, pool=Pool.REDIS, trigger_rule=TriggerRule.ALL_DONE_MIN_ONE_SUCCESS
    )
    # The run's own verdict: a report alone must not turn a shard that failed green.
    cleaned = EmptyOperator(task_id="cleaned")

    plan >> summarise >> approve >> check >> apply
    [check, apply] >> report
    [apply, report] >> cleaned
