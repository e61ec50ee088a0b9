"""Create partitions ahead of clock and data, and retire old ones: quarantine, archive, drop, each with a way back.

Each table with a policy is maintained by its own tasks, so a table that fails does not stop the others. New partitions
are created first; then partitions that all consumers have read are retired; neither needs an approval. A person is
asked before partitions are retired that a consumer has not read, and before partitions are dropped. While one run asks
or archives, later runs only create and retire. A partition is dropped only after its archive was read again and
compared with the table. Where a policy asks for it, archives are named in an Iceberg catalog.

### If it fails

- **list_tables**: the log's last line says what to correct: a parameter, a server, a policy. Nothing was written.
- **creation.plan_creation**, **creation.create**: the log says why, and who held the lock. New rows need these
  partitions: solve this first, then clear the task with its downstream tasks.
- **retirement.plan_retirement**, **retirement.retire**: the log says why. The next run plans again.
- **retirement.plan_archive**, **retirement.archive**: nothing is dropped. Do what the log says, clear the task.
- **retirement.register**: the log says why the Iceberg catalog does not name the archives. Nothing is lost, and nothing
  waits for it; the next run registers what is missing.
- **retirement.plan_override**, **retirement.override**, **retirement.plan_drop**, **retirement.verify**: the
  plan was rejected or not answered in time, the table has changed since the question, or an archive differs. Nothing
  was dropped. The next run plans again.
- **retirement.drop**: clear the task; it drops the rest.
- **report**: clear the task; it only reads.
- **maintained**: a task above has failed, or head-room is short although all have succeeded: see the report.

Step by step, with commands and the way back: `docs/runbooks/partition_maintenance.md`. Owner: queuekeeper.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, TriggerRule, XComArg, task_group

from queuekeeper.airflow.defaults import START, Pool, Tag, connections, default_args, of_file, spark_jobs, tags
from queuekeeper.airflow.forms import form
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
    RegisterArchivesOperator,
    ReportPartitionsOperator,
    VerifyArchivesOperator,
)
from queuekeeper.airflow.operators.verdict import CheckReportOperator
from queuekeeper.jobs.common import Approval, DryRun, PostgresConnection, SparkConnection
from queuekeeper.maintenance.partitions.wishes import PartitionWish, RegisterWish

POSTGRES: dict[str, Any] = {"pool": Pool.POSTGRES.value, "execution_timeout": timedelta(hours=6)}
NAMED: dict[str, Any] = {"map_index_template": "{{ task.planned['table'] }}"}


def asked_about(task_id: str) -> dict[str, Any]:
    """Return the arguments of a task that asks a person about a plan."""
    # Without the index, the template would be a list of the plans of all tables.
    planned = f"ti.xcom_pull(task_ids='retirement.{task_id}', map_indexes=ti.map_index)"
    shown = {name: f"{{{{ {planned}['{name}'] }}}}" for name in ("subject", "body", "question", "unasked")}
    return {**shown, "map_index_template": f"{{{{ {planned}['table'] }}}}", "retry_delay": timedelta(seconds=1)}


def answered(planned: PlanQuestionOperator, approve: ApprovePartitionsOperator) -> dict[str, Any]:
    """Return the arguments of a task that carries out an approved plan."""
    return {"planned": planned.output, "asked": XComArg(approve, key=ASKED), "decision": approve.output}


with DAG(
    **of_file(__file__, __doc__),
    description="Create partitions ahead of time; retire, archive and drop old ones; report coverage.",
    schedule="7,37 * * * *",
    start_date=START,
    catchup=False,
    is_paused_upon_creation=True,
    # One run archives, one waits for an answer about drops, one for an answer about consumers. Other runs skip these
    # and end within minutes, so there is always a run that creates partitions.
    max_active_runs=6,
    params=form(DryRun, PartitionWish, RegisterWish, Approval, PostgresConnection, SparkConnection),
    default_args={**default_args(), **connections("postgres")},
    tags=tags(Tag.MAINTENANCE, Tag.POSTGRES, Tag.SPARK),
) as dag:
    tables = ListPartitionedTablesOperator(task_id="list_tables", **POSTGRES)

    @task_group(group_id="creation")
    def creation(table: str) -> None:
        """Create the missing partitions of one table."""
        named: dict[str, Any] = {"table": table, "map_index_template": "{{ task.table }}", **POSTGRES}
        planned = PlanPartitionsOperator(task_id="plan_creation", purpose="creation", **named)
        ApplyPartitionsOperator(task_id="create", planned=planned.output, retries=5, **NAMED, **POSTGRES)

    @task_group(group_id="retirement")
    def retirement(table: str) -> None:
        """Retire old partitions of one table, and ask before steps that cannot be undone."""
        # This also runs after a creation has failed, of this table or another one.
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
        # Neither archive nor drop waits for a catalog: what one run has not registered, the next one does.
        register = RegisterArchivesOperator(
            task_id="register",
            max_active_tis_per_dagrun=1,
            **{**anyway, "execution_timeout": timedelta(minutes=30)},
        )
        planned >> retire >> to_archive >> archive >> register

        # A question does not delay a retirement: both kinds of questions come after it, independently.
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
            # This may read for hours, and creation uses the same pool.
            max_active_tis_per_dag=1,
            **answered(plan_drop, approve_drop),
            **NAMED,
            **POSTGRES,
        )
        drop = ApplyApprovedOperator(task_id="drop", **answered(plan_drop, approve_drop), **NAMED, **POSTGRES)
        retire >> plan_drop >> approve_drop >> verify >> drop

    created, retired = creation.expand(table=tables.output), retirement.expand(table=tables.output)
    # The report is needed most when a task has failed.
    report = ReportPartitionsOperator(
        task_id="report", tables=tables.output, trigger_rule=TriggerRule.ALL_DONE, **POSTGRES
    )
    # This task decides the run's state: the report must not hide a failed table. A dry run skips tasks that write.
    maintained = CheckReportOperator(
        task_id="maintained", report=report.output, trigger_rule=TriggerRule.NONE_FAILED, **POSTGRES
    )

    created >> retired >> report >> maintained
    # Tasks after these two run in any case, so they would hide that one has failed.
    [created, retired, *(dag.get_task(f"retirement.{each}") for each in ("retire", "archive"))] >> maintained
