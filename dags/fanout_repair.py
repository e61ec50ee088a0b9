"""Repair fan-out queues: what ran out, drifted or was left is set right in bounded steps, then a second look.

Leases of workers that died go back in line, expired messages and old dead letters go, and what does not fit together
is mended: messages that nobody owes an acknowledgement for, acknowledgements owed for messages that are gone, counts
that drifted, leases that nobody can end. Each is judged by a script that sees all places of a message at once, so what
is under way is never touched. On healthy queues nothing is changed, and the report says so. Consumers that were unseen
for as long as their own options say are removed; others that may be dead are shown.

### If it fails

- **plan**: the log's last line says what to mend: a parameter, a server. Nothing was changed. Clear the task.
- **repair**: it has retried what a retry can mend. Do what the log says, then clear the failed task with its
  downstream tasks: it goes on where it stopped. The same after its time limit.
- **report**: queues that cannot be repaired are counted in the report; the log of the plan says what is wrong with
  each. Otherwise clear the task: it only reads.

Step by step, with commands: `docs/runbooks/fanout_repair.md`. Owner: queuekeeper.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, TriggerRule

from queuekeeper.airflow.defaults import ONE_AT_A_TIME, Pool, Tag, connections, default_args, tags
from queuekeeper.airflow.forms import form
from queuekeeper.airflow.operators.jobs import ApplyJobShareOperator, PlanJobOperator, ReportJobOperator
from queuekeeper.jobs.common import Connections, DryRun
from queuekeeper.maintenance.fanout.model import FanoutRepairParameters

JOB = Path(__file__).stem

with DAG(
    Path(__file__).stem,
    description="Set right what ran out, drifted or was left in fan-out queues: plan, repair, look again.",
    doc_md=__doc__,
    schedule="5,35 * * * *",
    is_paused_upon_creation=True,
    params=form(DryRun, FanoutRepairParameters, Connections),
    default_args={**default_args(), **connections("postgres", "redis"), "job": JOB},
    tags=tags(Tag.MAINTENANCE, Tag.REDIS),
    **ONE_AT_A_TIME,
):
    plan = PlanJobOperator(task_id="plan", job=JOB, pool=Pool.REDIS, execution_timeout=timedelta(hours=6))
    repair = ApplyJobShareOperator.partial(
        task_id="repair",
        map_index_template="{{ task.share }}",
        pool=Pool.REDIS,
        execution_timeout=timedelta(days=1),
    ).expand_kwargs(plan.output)
    # What was done is of interest most when a share was not finished; where there was nothing to do, the plan is all
    # there is.
    report = ReportJobOperator(
        task_id="report",
        maintenance_run_id="{{ ti.xcom_pull(task_ids='plan', key='maintenance_run_id') or '' }}",
        pool=Pool.REDIS,
        execution_timeout=timedelta(hours=6),
        trigger_rule=TriggerRule.ALL_DONE,
    )
    # The run's own verdict: a report alone must not turn a share that failed green. Where there is nothing to do, or
    # nothing is to be done, no share is repaired.
    repaired = EmptyOperator(task_id="repaired", trigger_rule=TriggerRule.NONE_FAILED)

    plan >> repair
    [plan, repair] >> report
    [repair, report] >> repaired
