"""Keep partitions ahead of clock and data, and retire old ones: quarantine, archive, drop, each with a way back.

Every table that has a policy is kept, each by tasks of its own: one that fails stops no other. Creation comes first,
then what passes no consumer is retired; both ask nobody. A person is asked where a retirement would pass a consumer,
and, apart from that, before anything is dropped. While one run asks or archives, later runs create and retire, and
leave asking and archiving to it. Nothing is dropped whose archive was not read again and compared with the table.

### If it fails

- **list_tables**: the log's last line says what to mend: a parameter, a server, a policy. Nothing was written.
- **creation.plan_creation**, **creation.create**: the log says why, and who held the lock. New rows need these
  partitions: mend it first, then clear the task with its downstream tasks.
- **retirement.plan_retirement**, **retirement.retire**: the log says why. The next run plans anew.
- **retirement.plan_archive**, **retirement.archive**: nothing is dropped. Do what the log says, clear the task.
- **retirement.plan_override**, **retirement.override**, **retirement.plan_drop**, **retirement.verify**: rejected, not
  answered in time, changed since the question, or an archive differs. The next run plans anew.
- **retirement.drop**: clear the task; what is dropped stays dropped, the rest follows.
- **report**: clear the task; it only reads.
- **maintained**: red when a task above is, or when head-room is short although all are green: see the report.

Step by step, with commands and the way back: `docs/runbooks/partition_maintenance.md`. Owner: queuekeeper.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, TriggerRule, XComArg, task_group

from queuekeeper.airflow.defaults import START, Pool, Tag, connections, default_args, of_file, spark_jobs, tags
from queuekeeper.airflow.forms import form
from queuekeeper.airflow.operators.jobs import CheckReportOperator
from queuekeeper.airflow.operators.partitions import (
    ASKED,
    ApplyApprovedOperator,
    ApplyPartitionsOperator,
    ApprovePartitionsOperator,
    ArchivePartitionsOperator,
    ListPartitionedTablesOperator,
    PlanArchiveOperator,
    PlanPartitionsOperator,
    PlanQuestionOperator,
    ReportPartitionsOperator,
    VerifyArchivesOperator,
)
from queuekeeper.jobs.common import Approval, DryRun, PostgresConnection, SparkConnection
from queuekeeper.maintenance.partitions.model import PartitionWish

POSTGRES: dict[str, Any] = {"pool": Pool.POSTGRES.value, "execution_timeout": timedelta(hours=6)}
NAMED: dict[str, Any] = {"map_index_template": "{{ task.planned['table'] }}"}


def asked_about(task_id: str) -> dict[str, Any]:
    """Return what a task shows that asks a person about a plan."""
    # Without the index it would be a list of all tables' plans.
    planned = f"ti.xcom_pull(task_ids='retirement.{task_id}', map_indexes=ti.map_index)"
    shown = {name: f"{{{{ {planned}['{name}'] }}}}" for name in ("subject", "body", "question", "unasked")}
    return {**shown, "map_index_template": f"{{{{ {planned}['table'] }}}}", "retry_delay": timedelta(seconds=1)}


def answered(planned: PlanQuestionOperator, approve: ApprovePartitionsOperator) -> dict[str, Any]:
    """Return what a task needs that does what a person has agreed to."""
    return {"planned": planned.output, "asked": XComArg(approve, key=ASKED), "decision": approve.output}


with DAG(
    **of_file(__file__, __doc__),
    description="Create partitions ahead of time; retire, archive and drop old ones; report coverage.",
    schedule="7,37 * * * *",
    start_date=START,
    catchup=False,
    is_paused_upon_creation=True,
    # One run archives, one waits for an answer about drops, one for an answer about consumers: others leave that to
    # them and end within minutes, so there is always one more to create partitions.
    max_active_runs=6,
    params=form(DryRun, PartitionWish, Approval, PostgresConnection, SparkConnection),
    default_args={**default_args(), **connections("postgres")},
    tags=tags(Tag.MAINTENANCE, Tag.POSTGRES, Tag.SPARK),
):
    tables = ListPartitionedTablesOperator(task_id="list_tables", **POSTGRES)

    @task_group(group_id="creation")
    def creation(table: str) -> None:
        """Create what one table lacks."""
        named: dict[str, Any] = {"table": table, "map_index_template": "{{ task.table }}", **POSTGRES}
        planned = PlanPartitionsOperator(task_id="plan_creation", purpose="creation", **named)
        ApplyPartitionsOperator(task_id="create", planned=planned.output, retries=5, **NAMED, **POSTGRES)

    @task_group(group_id="retirement")
    def retirement(table: str) -> None:
        """Retire what one table needs no longer, and ask about what cannot be undone."""
        # Also after a creation that failed, of this table or another one.
        named: dict[str, Any] = {"table": table, "map_index_template": "{{ task.table }}", **POSTGRES}
        anyway: dict[str, Any] = {**named, "trigger_rule": TriggerRule.ALL_DONE}

        planned = PlanPartitionsOperator(task_id="plan_retirement", purpose="retirement", **anyway)
        retire = ApplyPartitionsOperator(task_id="retire", planned=planned.output, **NAMED, **POSTGRES)
        to_archive = PlanArchiveOperator(task_id="plan_archive", **named)
        archive = ArchivePartitionsOperator(
            task_id="archive",
            retired=to_archive.output,
            spark_jobs=spark_jobs(__file__),
            spark_conn_id="{{ params.spark_conn_id }}",
            pool=Pool.SPARK,
            execution_timeout=timedelta(hours=12),
            map_index_template="{{ task.retired['table'] }}",
        )
        planned >> retire >> to_archive >> archive

        # A question holds up no retirement: each of both kinds comes after it, and stands for itself.
        plan_override = PlanQuestionOperator(
            task_id="plan_override",
            purpose="retirement",
            asking=["retirement.approve_override", "retirement.override"],
            **anyway,
        )
        approve_override = ApprovePartitionsOperator(task_id="approve_override", **asked_about("plan_override"))
        override = ApplyApprovedOperator(
            task_id="override", **answered(plan_override, approve_override), **NAMED, **POSTGRES
        )
        retire >> plan_override >> approve_override >> override

        plan_drop = PlanQuestionOperator(
            task_id="plan_drop",
            purpose="drop",
            asking=["retirement.approve_drop", "retirement.verify", "retirement.drop"],
            **anyway,
        )
        approve_drop = ApprovePartitionsOperator(task_id="approve_drop", **asked_about("plan_drop"))
        verify = VerifyArchivesOperator(
            task_id="verify",
            # It may read for hours, and creation uses the same pool.
            max_active_tis_per_dag=1,
            **answered(plan_drop, approve_drop),
            **NAMED,
            **POSTGRES,
        )
        drop = ApplyApprovedOperator(task_id="drop", **answered(plan_drop, approve_drop), **NAMED, **POSTGRES)
        retire >> plan_drop >> approve_drop >> verify >> drop

    created, retired = creation.expand(table=tables.output), retirement.expand(table=tables.output)
    # What was found is of interest most when something was not done.
    report = ReportPartitionsOperator(
        task_id="report", tables=tables.output, trigger_rule=TriggerRule.ALL_DONE, **POSTGRES
    )
    # The run's own verdict: a report alone must not turn a table that failed green. A dry run skips what writes.
    maintained = CheckReportOperator(
        task_id="maintained", report=report.output, trigger_rule=TriggerRule.NONE_FAILED, **POSTGRES
    )

    created >> retired >> report >> maintained
    [created, retired] >> maintained
