"""Collect from compacted queues what their retention lets go: what is due goes in bounded steps, then a second look.

Nobody is asked: the rules are the queues' own, or those of the form. A registry says which queues are due, so no names
of keys are looked through. What goes is on disk before it does, with its value, and can be brought back. The queue's
own script decides again in the moment in which it removes: a newer value of a key is never touched. Each part of the
registry notes when its collection was last *finished*; the DAG `queue_quality` finds a collector that stopped.

### If it fails

- **plan**: the log's last line says what to mend: a parameter, a server. Nothing was removed. Clear the task.
- **collect**: it has retried what a retry can mend. Do what the log says, then clear the failed task with its
  downstream tasks: it goes on where it stopped. The same after its time limit.
- **report**: queues that cannot be collected are counted in the report; `queuekeeper quality run --store compacted`
  names them, `queuekeeper compacted repair` mends them. Otherwise clear the task: it only reads.

Step by step, with commands: `docs/runbooks/compacted_queue_gc.md`. Owner: queuekeeper.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, TriggerRule

from queuekeeper.airflow.defaults import ONE_AT_A_TIME, Pool, Tag, connections, default_args, tags
from queuekeeper.airflow.forms import form
from queuekeeper.airflow.operators.jobs import ApplyJobShareOperator, PlanJobOperator, ReportJobOperator
from queuekeeper.jobs.common import Connections, DryRun, UndoRetention
from queuekeeper.maintenance.compacted.model import CollectionParameters

JOB = Path(__file__).stem

with DAG(
    Path(__file__).stem,
    description="Collect what compacted queues may lose by their retention: plan, collect, look again.",
    doc_md=__doc__,
    schedule="20 * * * *",
    is_paused_upon_creation=True,
    params=form(DryRun, CollectionParameters, UndoRetention, Connections),
    default_args={**default_args(), **connections("postgres", "redis"), "job": JOB},
    tags=tags(Tag.MAINTENANCE, Tag.REDIS),
    **ONE_AT_A_TIME,
):
    plan = PlanJobOperator(task_id="plan", job=JOB, pool=Pool.REDIS, execution_timeout=timedelta(hours=6))
    collect = ApplyJobShareOperator.partial(
        task_id="collect",
        map_index_template="{{ task.share }}",
        pool=Pool.REDIS,
        execution_timeout=timedelta(days=1),
    ).expand_kwargs(plan.output)
    # What was done is of interest most when a share was not finished; in a dry run the plan is all there is.
    report = ReportJobOperator(
        task_id="report",
        maintenance_run_id="{{ ti.xcom_pull(task_ids='plan', key='maintenance_run_id') or '' }}",
        pool=Pool.REDIS,
        execution_timeout=timedelta(hours=6),
        trigger_rule=TriggerRule.ALL_DONE,
    )
    # The run's own verdict: a report alone must not turn a share that failed green. In a dry run no share is collected.
    collected = EmptyOperator(task_id="collected", trigger_rule=TriggerRule.NONE_FAILED)

    plan >> collect
    [plan, collect] >> report
    [collect, report] >> collected
