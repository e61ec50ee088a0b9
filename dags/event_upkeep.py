"""Keep the event broker in order: expire subscriptions, repeat what was never dispatched, watch polls, ages and bloat.

Nobody is asked: a subscription is removed when the time it was given has passed since it was last active, and an event
that was stored and never dispatched is put up for dispatch, which harms no consumer that can bear a repetition. What
must not wait (polls have stopped, a table nears wraparound, events are written to the overflow) turns the run red.

### If it fails

- **plan**: the log's last line says what to mend: a parameter, a server, a privilege, a broker that is not installed.
  Nothing was changed. Clear the task.
- **expire_subscriptions**, **reenqueue_events**: do what the log says, then clear the task with its downstream tasks:
  it goes on where it stopped. They are skipped in a dry run, and where nothing is to be done.
- **watch**, **report**: clear the task; it only reads.
- **upkept**: something must not wait. The message says what and what to do; the report has the figures.

Step by step, with commands: `docs/runbooks/event_upkeep.md`. Owner: queuekeeper.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, TriggerRule

from queuekeeper.airflow.defaults import ON_SCHEDULE, Pool, Tag, connections, default_args, of_file, tags
from queuekeeper.airflow.forms import form
from queuekeeper.airflow.operators.event_upkeep import (
    MendEventsOperator,
    ReportUpkeepOperator,
    WatchBrokerOperator,
)
from queuekeeper.airflow.operators.jobs import CheckReportOperator, PlanJobOperator
from queuekeeper.jobs.common import DryRun, PostgresConnection
from queuekeeper.maintenance.events.upkeep import UpkeepParameters

JOB = Path(__file__).stem
POSTGRES: dict[str, Any] = {"pool": Pool.POSTGRES.value, "execution_timeout": timedelta(hours=1)}
OF_JOB: dict[str, Any] = {**POSTGRES, "job": JOB}

with DAG(
    **of_file(__file__, __doc__),
    description="Expire subscriptions, repeat what was never dispatched, watch polls, ages and bloat, report.",
    schedule="*/15 * * * *",
    params=form(DryRun, UpkeepParameters, PostgresConnection),
    default_args={**default_args(), **connections("postgres")},
    tags=tags(Tag.MAINTENANCE, Tag.POSTGRES),
    **ON_SCHEDULE,
):
    plan = PlanJobOperator(task_id="plan", **OF_JOB)
    mend = [
        MendEventsOperator(task_id=remedy, remedy=remedy, planned=plan.output, **OF_JOB)
        for remedy in ("expire_subscriptions", "reenqueue_events")
    ]
    # What is wrong is of interest most when something was not done.
    watch = WatchBrokerOperator(task_id="watch", trigger_rule=TriggerRule.ALL_DONE, **POSTGRES)
    report = ReportUpkeepOperator(
        task_id="report",
        maintenance_run_id="{{ ti.xcom_pull(task_ids='plan', key='maintenance_run_id') or '' }}",
        watch=watch.output,
        trigger_rule=TriggerRule.ALL_DONE,
        **OF_JOB,
    )
    # The run's own verdict: a report alone must not turn a task that failed green.
    upkept = CheckReportOperator(
        task_id="upkept", report=report.output, trigger_rule=TriggerRule.NONE_FAILED, **POSTGRES
    )

    mend >> watch >> report
    [plan, *mend] >> report
    mend >> upkept
