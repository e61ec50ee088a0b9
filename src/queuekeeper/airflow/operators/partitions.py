"""Maintains partitions as tasks, table by table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import TaskInstanceState
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from queuekeeper.airflow.forms import reject_unknown_of, template
from queuekeeper.airflow.hooks import QueuekeeperPostgresHook
from queuekeeper.airflow.lineage import lineage, parquet_files, postgres_table
from queuekeeper.airflow.links import ReportLink
from queuekeeper.airflow.operators.approval import AnswerOperator, ApprovePlanOperator
from queuekeeper.airflow.operators.asked import Ask, AskedOperator, argument
from queuekeeper.airflow.operators.spark import QueuekeeperSparkOperator
from queuekeeper.airflow.operators.stores import DatabaseOperator
from queuekeeper.airflow.run_index import forms_url, publish
from queuekeeper.airflow.settings import task_settings
from queuekeeper.airflow.waits import ENDED, PausableOperator, count_tasks
from queuekeeper.clock import DAY_MS, system_clock
from queuekeeper.errors import CheckFailed, MaintenanceRunning, QueuekeeperError, RefusedError, StalePlan, UsageError
from queuekeeper.facts import brief, plain
from queuekeeper.jobs.pace import RunPaused
from queuekeeper.jobs.parameters import Parameters
from queuekeeper.jobs.store import MaintenanceRuns
from queuekeeper.maintenance.partitions.coverage import coverage
from queuekeeper.maintenance.partitions.manifest import archive_place, check_archive
from queuekeeper.maintenance.partitions.model import (
    ApplyReport,
    PartitionPlan,
    Purpose,
    StepState,
    plan_of,
    report_of,
)
from queuekeeper.maintenance.partitions.plan import plan_for
from queuekeeper.maintenance.partitions.policies import NO_POLICY, load_policies, load_policy
from queuekeeper.maintenance.partitions.report import PartitionsReport, TableReport
from queuekeeper.maintenance.partitions.restore import archive_folder, retired_name
from queuekeeper.maintenance.partitions.retired import load_retired, without_archive
from queuekeeper.maintenance.partitions.runs import carry_out, save_run
from queuekeeper.maintenance.partitions.summary import plan_markdown
from queuekeeper.maintenance.partitions.wishes import ArchiveWish, PartitionWish, RegisterWish
from queuekeeper.places import shared_place
from queuekeeper.postgres import Connection
from queuekeeper.report.figures import size
from queuekeeper.report.files import ReportKind
from queuekeeper.schema_migrations import migrate
from queuekeeper.wording import number_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from queuekeeper.airflow.lineage import Lineage

STORE = "PostgreSQL"
ASKED = "asked"
"""XCom key under which a task that asks leaves the id of the question that it showed."""

OUTCOME = "outcome"
"""XCom key under which a task leaves its report; unlike a return value, it is kept if the task fails."""


class PartitionOperator(DatabaseOperator):
    """A task that maintains partitions."""

    def end_dry_run(self) -> None:
        """Skip this task and all later ones in a dry run."""
        if self.only_plans:
            raise AirflowSkipException(f"a dry run ends with the plan: nothing was written to {STORE}")


class TableOperator(PartitionOperator):
    """Argument of tasks that work on one table.

    :param table: name of the table; mapped (templated).
    """

    table: str = argument()


class PlannedOperator(PartitionOperator):
    """Argument of tasks that carry a plan out.

    :param planned: return value of the task that planned (templated).
    """

    planned: Mapping[str, Any] = argument()


class ListPartitionedTablesOperator(AskedOperator, PartitionOperator):
    """List the tables to maintain; as the first task, also refuse parameters that the form does not have.

    :param parameters: ``tables``, names of tables that have a policy; if empty, all of these (templated).
    """

    models = (PartitionWish,)

    def execute(self, context: Context) -> list[str]:
        """Return the names of the tables."""
        reject_unknown_of(context)
        wanted = self.read(PartitionWish).tables
        with self.connect() as connection:
            migrate(connection)
            tables = [load_policy(connection, table).table for table in wanted] or [
                policy.table for policy in load_policies(connection)
            ]
        if not tables:
            raise AirflowSkipException(NO_POLICY)
        self.log.info("Maintaining %s", ", ".join(tables))
        return tables


class PlanPartitionsOperator(TableOperator):
    """Plan the maintenance of one table, which is not written to.

    :param purpose: ``creation``, ``retirement`` or ``drop``.
    """

    override_consumers = Ask(PartitionWish, default=False)

    def __init__(self, *, purpose: str, **kwargs: Any) -> None:
        self.check({"purpose": purpose})
        super().__init__(**kwargs)
        self.purpose = Purpose(purpose)

    @classmethod
    def check(cls, given: Mapping[str, Any]) -> None:
        """Check the purpose."""
        super().check(given)
        if "purpose" in given and given["purpose"] not in list(Purpose):
            raise UsageError(f"purpose is {given['purpose']!r}: it must be one of {', '.join(Purpose)}")

    def plan(self, connection: Connection) -> PartitionPlan:
        """Return the plan."""
        return plan_for(
            connection,
            policy=load_policy(connection, self.table),
            purpose=self.purpose,
            now_ms=system_clock(),
            override_consumers=self.read(PartitionWish).override_consumers,
        )

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the plan."""
        with self.connect() as connection:
            plan = self.plan(connection)
        self.log.info("%s", plan_markdown(plan))
        return brief(plan)


class ApplyPartitionsOperator(PausableOperator, PlannedOperator):
    """Carry out a plan of :class:`PlanPartitionsOperator` without an approval.

    If the table has changed since a creation was planned, it is planned again once. While the run is paused, the task
    holds no worker slot.
    """

    def agreed(self, context: Context, connection: Connection) -> tuple[PartitionPlan, str | None, str]:
        """Return the plan, the person who approved it, if any, and the id of the run that records it, or empty."""
        return plan_of(self.planned), None, ""

    def work(self, context: Context) -> dict[str, Any]:
        """Return the result of each step; a step that is not done fails the task.

        :raises AirflowException: when other sessions blocked a step, so that a retry may help.
        :raises StalePlan: when a table has changed since the plan.
        :raises RefusedError: when the server refused a step.
        """
        self.end_dry_run()
        with self.connect() as connection:
            plan, person, run_id = self.agreed(context, connection)
            report = self._carry_out(connection, plan, context, actor=person, run_id=run_id)
            if report.stale and plan.purpose is Purpose.CREATION:
                self.log.info("%s has changed since it was planned: planning again", plan.table)
                policy = load_policy(connection, plan.policy.table)
                again = plan_for(connection, policy=policy, purpose=plan.purpose, now_ms=system_clock())
                report = self._carry_out(connection, again, context)
        words = "; ".join(f"{each.kind.value} {each.partition}: {each.words}" for each in report.outcomes if each.words)
        if any(each.state is StepState.FAILED for each in report.outcomes):
            raise RefusedError(f"{report.table}: {words}")
        if report.paused:
            raise RunPaused(f"{report.table}: {words}")
        if report.stale:
            raise StalePlan(f"{report.table} has changed since the plan: trigger the DAG again ({words})")
        if not report.done:
            raise AirflowException(f"{report.table}: {words}")
        self.log.info("%s: %s steps done", report.table, len(report.outcomes))
        return brief(report)

    def _carry_out(self, connection: Connection, plan: PartitionPlan, context: Context, **run: Any) -> ApplyReport:
        """Carry out a plan and leave its report for later tasks, whether it succeeds or not."""
        dag_run_id = context["dag_run"].run_id
        try:
            report = carry_out(connection, plan, dag_run_id=dag_run_id, say=self.log.info, **run)
        except MaintenanceRunning as error:
            raise AirflowException(str(error)) from error
        context["ti"].xcom_push(key=OUTCOME, value=plain(report))
        return report


class PlanArchiveOperator(TableOperator):
    """List the partitions in quarantine that need an archive; if there are none, no Spark slot is waited for.

    While another run archives, this task is skipped and a later run archives, since waiting would delay creation.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the records of partitions in quarantine that need an archive and have none."""
        self.end_dry_run()
        with self.connect() as connection:
            policy = load_policy(connection, self.table)
            to_archive = [each.retired_id for each in without_archive(connection, policy)]
        if not to_archive:
            raise AirflowSkipException(f"{self.table}: nothing to archive")
        if _others_at_work(context, "retirement.archive"):
            raise AirflowSkipException(f"another run archives: {self.table} is left to a later run")
        self.log.info("%s: %s to be archived", self.table, len(to_archive))
        return {"table": self.table, "to_archive": to_archive}


class PlanQuestionOperator(PlanPartitionsOperator):
    """Plan steps that need an approval, and record the question; nothing is written to a table.

    A retirement needs an approval only for partitions that consumers have not read; others were retired before. While
    another run waits for an answer of the same kind, or acts on one, this run does not ask, since waiting would delay
    the creation of partitions.

    :param asking: ids of the tasks that wait for an answer of this kind, or act on it.
    """

    override_consumers = Ask(PartitionWish)

    def __init__(self, *, asking: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.asking = tuple(asking)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the plan and the question, or the reason why nobody is asked."""
        passes = self.read(PartitionWish).override_consumers
        if self.purpose is Purpose.RETIREMENT and not passes:
            raise AirflowSkipException("override_consumers is off: no consumer is passed over")
        question, unasked = "", ""
        with self.connect() as connection:
            plan = self.plan(connection)
            body = plan_markdown(plan)
            self.log.info("%s", body)
            if self.only_plans:
                unasked = "a dry run ends with the plan"
            elif plan.empty:
                unasked = "there is nothing to approve"
            elif _others_at_work(context, *self.asking):
                unasked = "another run waits for an answer or acts on it; a later run asks again"
            else:
                question = save_run(MaintenanceRuns(connection), plan, dag_run_id=context["dag_run"].run_id)
        count = number_of(len(plan.steps), "partition")
        is_drop = plan.purpose is Purpose.DROP
        words = (
            f"drop {count} for good ({size(plan.bytes)})" if is_drop else f"retire {count} that consumers have not read"
        )
        return {
            **brief(plan),
            "question": question,
            "unasked": unasked,
            "subject": f"{plan.table}: {words}?",
            "body": body,
        }


_AT_WORK = frozenset(state.value for state in TaskInstanceState) - ENDED


def _others_at_work(context: Context, *task_ids: str) -> bool:
    """Return whether another run has begun one of these tasks and not ended it; Airflow ends tasks that were killed."""
    ours = count_tasks(context, *task_ids, states=_AT_WORK, run_ids=[context["dag_run"].run_id])
    return count_tasks(context, *task_ids, states=_AT_WORK) > ours


class ApprovePartitionsOperator(ApprovePlanOperator):
    """Ask a person, and leave the id of the question beside the answer; without a question, skip the later tasks.

    :param question: id of the question; empty when nobody has to be asked (templated).
    :param unasked: reason why nobody is asked (templated).
    """

    question: str = argument()
    unasked: str = argument()

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(store=STORE, **kwargs)

    def execute(self, context: Context) -> Any:
        """Ask, or skip."""
        if not self.question:
            raise AirflowSkipException(f"nobody is asked: {self.unasked}")
        # Stored before the answer: later the plan may have changed, and with it the rendered template.
        context["ti"].xcom_push(key=ASKED, value=self.question)
        return super().execute(context)


class AnsweredOperator(AnswerOperator, PlannedOperator):
    """Arguments of tasks that carry out a plan of :class:`PlanQuestionOperator` after a person has approved it.

    :param asked: id of the question that the person was shown (templated).
    """

    asked: str = argument()

    def agreed(self, context: Context, connection: Connection) -> tuple[PartitionPlan, str | None, str]:
        """Record the answer, and return the plan, the person and the run.

        :raises StalePlan: when the plan is not the one that the person was shown.
        :raises RefusedError: unless a person has approved.
        """
        question = self.planned["question"]
        runs = MaintenanceRuns(connection)
        answer = self.answer(
            context, subject=self.asked, note=lambda given: runs.note_answer(self.asked, given), store=STORE
        )
        if not question or question != self.asked:
            raise StalePlan(
                f"{self.planned['table']} was planned anew as {question or 'no question'} since a person was asked "
                f"about {self.asked}: nothing was done; the next run asks again"
            )
        runs.approve_current(question, answer, now_ms=system_clock())
        self.log.info("Plan %s was approved by %s", question, answer.actor)
        return plan_of(self.planned), answer.actor, question


class ApplyApprovedOperator(AnsweredOperator, ApplyPartitionsOperator):
    """Retire unread partitions, or drop partitions, after a person has approved."""


class ArchivePartitionsOperator(QueuekeeperSparkOperator):
    """Archive the retired partitions of one table.

    :param retired: return value of :class:`PlanArchiveOperator` (templated).
    :param directory: folder that all workers of Spark can reach, or a URL in an object store; if empty, that of the
        settings (templated).
    """

    job = "archive_partition.py"
    retired: Mapping[str, Any] = argument()
    directory: str = argument(template("archive_directory"))

    def __init__(self, *, redis_conn_id: None = None, **kwargs: Any) -> None:
        super().__init__(redis_conn_id=redis_conn_id, **kwargs)

    def wishes(self, context: Context) -> Sequence[Parameters]:
        """Return the partitions to archive, and the folder."""
        # A folder that cannot be opened is refused before Spark starts.
        directory = _archives(self.directory)
        return (ArchiveWish(retired_ids=tuple(map(str, self.retired["to_archive"])), directory=str(directory)),)

    def get_openlineage_facets_on_start(self) -> Lineage:
        """Return the table whose partitions are read, for OpenLineage."""
        return lineage(inputs=[postgres_table(self.postgres_conn_id, self.retired["table"])], outputs=[])

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Lineage:
        """Return each partition with its rows, and the folder of its archive."""
        archives = self.result.get("archives", ())
        return lineage(
            inputs=[postgres_table(self.postgres_conn_id, each["partition"], rows=each["rows"]) for each in archives],
            outputs=[
                parquet_files(each["path"], rows=each["rows"], size_bytes=each["size_bytes"], files=each["files"])
                for each in archives
            ],
        )


def _archives(named: str) -> Path | str:
    """Return the folder of archives, or its URL: the one that is named, else that of the settings.

    :raises UsageError: when it cannot be opened.
    """
    if named:
        name, directory = "archive_directory", shared_place(named, name="archive_directory")
    else:
        name, directory = "QUEUEKEEPER_ARCHIVES_DIR", task_settings("archives_dir").archives
    archive_place(directory, name=name)
    return directory


class RegisterArchivesOperator(TableOperator):
    """Have the Iceberg catalog name the archives of one table, where its policy asks for that.

    While another run registers, this task is skipped and a later run registers, since waiting would delay creation.
    """

    archive_directory = Ask(PartitionWish)
    keep_snapshots_days = Ask(RegisterWish)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what was registered; a catalog that is away fails this task, and no other.

        :raises ServerUnavailable: when the catalog is away, so that a retry may help.
        """
        with self.connect() as connection:
            if not load_policy(connection, self.table).register_archives:
                raise AirflowSkipException(f"{self.table}: its policy does not ask for archives to be registered")
            self.end_dry_run()
            if _others_at_work(context, "retirement.register"):
                raise AirflowSkipException(f"another run registers: {self.table} is left to a later run")
            # Imported here: its extra is for who registers.
            from queuekeeper.maintenance.partitions.iceberg import register  # noqa: PLC0415

            report = register(
                connection,
                postgres_url=QueuekeeperPostgresHook(postgres_conn_id=self.postgres_conn_id).url,
                table=self.table,
                directory=_archives(self.read(PartitionWish).archive_directory),
                now_ms=system_clock(),
                kept_snapshots_ms=self.read(RegisterWish).keep_snapshots_days * DAY_MS,
            )
        self.log.info("%s: %s registered, %s removed", self.table, len(report.added), len(report.removed))
        return brief(report)


class VerifyArchivesOperator(AnsweredOperator):
    """Read the archives of partitions that are to be dropped once more, and compare them with the present tables."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the records of the compared partitions; a difference fails the task, and nothing is dropped."""
        verified = []
        with self.connect() as connection:
            drop, *_ = self.agreed(context, connection)
            for step in drop.steps:
                record = load_retired(connection, _retired_id(step.retired_id))
                if record.archive is None:
                    self.log.info("%s has no archive and needs none by its policy", step.partition)
                    continue
                manifest = check_archive(
                    connection, table=retired_name(connection, record), path=archive_folder(record)
                )
                self.log.info("%s: %s rows are archived", step.partition, manifest.content.rows)
                verified.append(record.retired_id)
        return {"table": drop.table, "verified": verified}


class ReportPartitionsOperator(PartitionOperator):
    """Check all tables once more and report what was found and done.

    :param tables: return value of :class:`ListPartitionedTablesOperator` (templated).
    """

    operator_extra_links = (ReportLink(ReportKind.PARTITIONS),)
    tables: Sequence[str] | None = argument()

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the verdict and the places of the files."""
        tables = list(self.tables or ())
        if not tables:
            raise AirflowSkipException("there was no table to maintain")
        with self.connect() as connection:
            found = tuple(self._table(connection, table, index, context) for index, table in enumerate(tables))
        run = context["dag_run"]
        report = PartitionsReport(
            run_name=f"{run.dag_id} {run.run_id}",
            dry_run=self.only_plans,
            tables=found,
            generated_at_ms=system_clock(),
        )
        where = publish(report.write(task_settings().reports), context)
        self.log.info("%s: report %s", report.verdict, where["html"])
        return brief(report) | where

    def _table(self, connection: Connection, table: str, index: int, context: Context) -> TableReport:
        def left(task_id: str, key: str = "return_value") -> Any:
            return context["ti"].xcom_pull(task_ids=task_id, key=key, map_indexes=index)

        plans, applied = {}, {}
        for purpose, (planning, applying) in _TASKS.items():
            if planned := left(planning):
                plans[purpose] = plan_of(planned)
            if told := left(applying, OUTCOME):
                applied[purpose] = report_of(told)
        problem, stands, is_unregistered = "", None, False
        registered = left("retirement.register")
        try:
            policy = load_policy(connection, table)
            form_values = {"postgres_conn_id": self.postgres_conn_id}
            stands = coverage(connection, policy=policy, now_ms=system_clock()).with_forms(form_values, forms_url())
            is_unregistered = policy.register_archives and not registered and not self.only_plans
        except QueuekeeperError as error:
            problem = str(error)
        return TableReport(
            table=table,
            coverage=stands,
            plans=plans,
            applied=applied,
            archives=tuple((left("retirement.archive") or {}).get("archives", ())),
            registered=registered,
            is_unregistered=is_unregistered,
            problem=problem,
        )


_TASKS = {
    Purpose.CREATION.value: ("creation.plan_creation", "creation.create"),
    Purpose.RETIREMENT.value: ("retirement.plan_retirement", "retirement.retire"),
    "override": ("retirement.plan_override", "retirement.override"),
    Purpose.DROP.value: ("retirement.plan_drop", "retirement.drop"),
}
"""Purpose of a plan -> the tasks that plan it and carry it out."""


def _retired_id(value: int | None) -> int:
    if value is None:
        raise CheckFailed("a drop step names no record of a partition in quarantine: plan again")
    return value
