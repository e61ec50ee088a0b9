"""Runs any job as tasks: plan, question, shares, report. The job is chosen by its name; the engine does the work."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import BaseOperator, TriggerRule, XComArg
from airflow.sdk.exceptions import AirflowSkipException

from queuekeeper.airflow.forms import reject_unknown_of
from queuekeeper.airflow.links import ReportLink
from queuekeeper.airflow.operators.approval import AnswerOperator, ApprovePlanOperator
from queuekeeper.airflow.operators.asked import Ask, AskedOperator, argument, is_fixed
from queuekeeper.airflow.operators.stores import StoresOperator
from queuekeeper.airflow.operators.verdict import CheckReportOperator
from queuekeeper.airflow.run_index import publish
from queuekeeper.airflow.settings import task_settings
from queuekeeper.airflow.waits import PausableOperator
from queuekeeper.approvals import APPROVAL_TASK
from queuekeeper.clock import system_clock
from queuekeeper.errors import CheckFailed
from queuekeeper.facts import brief
from queuekeeper.identity import client_namer
from queuekeeper.jobs.common import DryRun, UndoRetention
from queuekeeper.jobs.engine import Engine, load_plan
from queuekeeper.jobs.model import AnyJob, AnyPlan
from queuekeeper.jobs.parameters import Parameters
from queuekeeper.jobs.registry import job_of
from queuekeeper.jobs.report import FinishedRun, PlannedRun, write_report
from queuekeeper.jobs.resources import Pool
from queuekeeper.jobs.store import MaintenanceRuns
from queuekeeper.jobs.undo import remove_old_undo_files
from queuekeeper.redis_client import RedisClient
from queuekeeper.report.files import ReportKind
from queuekeeper.schema_migrations import migrate

if TYPE_CHECKING:
    from airflow.sdk import Context

RUN_KEY = "maintenance_run_id"
"""XCom key under which the plan's task leaves the id of its run."""


class JobOperator(StoresOperator):
    """Arguments of all tasks of a job.

    :param job: name of the job, such as ``fanout_repair`` (templated).
    :param postgres_conn_id: connection of the database that records plan, approval and progress (templated).
    :param redis_conn_id: connection of the Redis that the job works on (templated).
    """

    job: str = argument()

    @classmethod
    def check(cls, given: Mapping[str, Any]) -> None:
        """Check the name of the job."""
        if is_fixed(given.get("job")):
            job_of(given["job"])
        super().check(given)

    def say(self, line: str) -> None:
        """Write progress to the task's log."""
        self.log.info("%s", line)

    @property
    def kind(self) -> type[AnyJob]:
        """The job."""
        return job_of(self.job)

    def store(self) -> AbstractContextManager[RedisClient | None]:
        """Open Redis for a ``with`` block, if the job works on Redis."""
        return self.redis_hook.connect() if self.kind.on_redis else nullcontext()

    def engine(self, client: RedisClient | None, runs: MaintenanceRuns) -> Engine:
        """Return an engine that works on the store."""
        settings = task_settings()
        return Engine(
            job=self.kind,
            client=client,
            undo_directory=settings.undo,
            database=runs.connection,
            name_client=client_namer(settings),
            # A paused task gives its worker slot back.
            stays=False,
            say=self.say,
        )


class PlanJobOperator(AskedOperator, JobOperator):
    """Plan a job: count what it would do, and record the plan; nothing is changed.

    As the first task of its DAG it also refuses parameters that the form does not have.

    :param job: name of the job, such as ``fanout_repair``.
    """

    models: tuple[type[Parameters], ...] = ()
    plan_only = Ask(DryRun, name="dry_run")
    # Not every form has this parameter.
    undo_retention_days: Any = Ask(UndoRetention, default="{{ params.undo_retention_days | default('') }}")

    def __init__(self, *, job: str, **kwargs: Any) -> None:
        self.models = self.models_of({"job": job})
        super().__init__(job=job, **kwargs)

    @classmethod
    def models_of(cls, given: Mapping[str, Any]) -> tuple[type[Parameters], ...]:
        """Return the model of the job."""
        return cls.models or ((job_of(given["job"]).Parameters,) if is_fixed(given.get("job")) else ())

    def kinds(self) -> Collection[str]:
        """Return the jobs whose old undo files the task removes."""
        return [self.job]

    def execute(self, context: Context) -> list[dict[str, str]]:
        """Return run and share for each task that will work; empty in a dry run, or when there is nothing to do."""
        job = self.kind
        run_id, plan = self.make_plan(context)
        is_over = self.read(DryRun).dry_run or (plan.empty and not job.works_when_empty)
        context["ti"].xcom_push(key=RUN_KEY, value=run_id)
        return [] if is_over else [{RUN_KEY: run_id, "share": share} for share in plan.share_names()]

    def make_plan(self, context: Context) -> tuple[str, AnyPlan]:
        """Plan, record the plan, and return it with the id of its run."""
        reject_unknown_of(context)
        job = self.kind
        parameters = self.read(job.Parameters)
        kept = (self.read(UndoRetention) if self.undo_retention_days else UndoRetention()).undo_retention_days
        with self.postgres_hook.connect() as connection:
            migrate(connection)
        with self.postgres_hook.maintenance_runs() as runs:
            for kind in self.kinds():
                now_ms = system_clock()
                if old := remove_old_undo_files(
                    task_settings().undo, kind=kind, days=kept, now_ms=now_ms, goes_on=runs.goes_on
                ):
                    self.log.info("%s undo files of %s were older than %s days and were removed", old, kind, kept)
        with self.postgres_hook.maintenance_runs() as runs, self.store() as client:
            engine = self.engine(client, runs)
            plan = engine.plan(parameters)
            run_id = engine.save(runs, plan).maintenance_run_id
        self.log.info("Run %s: %s", run_id, plan.counts)
        for table in job.tables(plan):
            for row in table.rows:
                self.log.info("%s: %s", table.heading, dict(zip(table.heads, row, strict=True)))
        return run_id, plan


class SummariseJobOperator(JobOperator):
    """Summarise the plan of a job for the person who is asked.

    :param maintenance_run_id: id of the run (templated).
    """

    maintenance_run_id: str = argument()

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the summary of the plan that commands print, and the same as Markdown."""
        with self.postgres_hook.maintenance_runs() as runs:
            plan = load_plan(self.kind, runs, self.maintenance_run_id)
        rows = [("Run", f"`{self.maintenance_run_id}`"), *self.kind.plan_rows(plan)]
        tables = [each for each in self.kind.tables(plan) if each.rows]
        markdown = "\n\n".join(
            [_markdown(("", ""), rows), *(f"{each.heading}:\n\n{_markdown(each.heads, each.rows)}" for each in tables)]
        )
        self.log.info("Run %s in short:\n%s", self.maintenance_run_id, markdown)
        told = PlannedRun(job=self.kind, maintenance_run_id=self.maintenance_run_id, plan=plan)
        return brief(told) | {"markdown": markdown}


class AnsweredJobOperator(AnswerOperator, JobOperator):
    """A task of a job that acts on the answer of a person."""

    def take_approval(self, context: Context, runs: MaintenanceRuns, run_id: str, *, note: bool = True) -> None:
        """Read the answer about a run, check that its plan may still be carried out, and record who approved.

        :param note: whether to write the answer into the audit, which is needed only once.
        """
        answer = self.answer(
            context, subject=run_id, note=lambda given: runs.note_answer(run_id, given) if note else None
        )
        runs.approve_current(run_id, answer, now_ms=system_clock())
        self.log.info("Run %s was approved by %s", run_id, answer.actor)


class CheckJobApprovalOperator(AnsweredJobOperator):
    """Read the answer, check that the plan may still be carried out, record who approved, and divide the work.

    :param maintenance_run_id: id of the run that the person was asked about (templated).
    """

    maintenance_run_id: str = argument()

    def execute(self, context: Context) -> list[dict[str, str]]:
        """Return run and share for each task that will work."""
        run_id = self.maintenance_run_id
        with self.postgres_hook.maintenance_runs() as runs:
            plan = load_plan(self.kind, runs, run_id)
            self.take_approval(context, runs, run_id)
        self.log.info("Its shares: %s", ", ".join(plan.share_names()))
        return [{RUN_KEY: run_id, "share": share} for share in plan.share_names()]


class ApplyJobShareOperator(PausableOperator, JobOperator):
    """Do one share of a plan; a repeated task continues where it stopped.

    :param maintenance_run_id: id of the run (templated).
    :param share: one of the plan's shares; mapped (templated).
    """

    maintenance_run_id: str = argument()
    share: str = argument()

    def work(self, context: Context) -> dict[str, Any]:
        """Return the result; if the share is not finished, record that and fail the task."""
        self.log.info("%s %s for run %s", self.kind.words.title, self.share, self.maintenance_run_id)
        with self.postgres_hook.maintenance_runs() as runs, self.store() as client:
            report = self.engine(client, runs).apply(runs, self.maintenance_run_id, self.share)
        self.log.info("%s: %s", self.share, report.counts)
        if report.undo_file:
            self.log.info("The undo file is %s", report.undo_file)
        if not report.done:
            raise CheckFailed(f"{self.share} is not finished: {report.stopped}")
        return brief(report)


class ApplyPlannedShareOperator(ApplyJobShareOperator):
    """Do one share of a plan in a task of its own, which is skipped if there is nothing to do.

    :param share: one of the job's shares.
    :param planned: return value of :class:`PlanJobOperator` (templated).
    """

    maintenance_run_id: str = argument("")
    planned: Sequence[Mapping[str, Any]] | None = argument()

    def work(self, context: Context) -> dict[str, Any]:
        """Return what was done."""
        for each in self.planned or ():
            if each["share"] == self.share:
                self.maintenance_run_id = each[RUN_KEY]
                return super().work(context)
        raise AirflowSkipException("there is nothing to do")


class ReportJobOperator(PausableOperator, JobOperator):
    """Check the store again, and write what was planned, done and left as HTML and JSON.

    :cvar reports: kind of all its reports, if the form chooses the job.

    :param maintenance_run_id: id of the run; empty when there is no plan (templated).
    :param given: findings of another task for the report; without it, the job checks the store itself (templated).
    """

    maintenance_run_id: str = argument()
    given: Mapping[str, Any] | None = argument(None)
    reports: ReportKind | None = None
    plan_only = Ask(DryRun, name="dry_run")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.operator_extra_links = (ReportLink(self.reports or self.kind.report),)

    def work(self, context: Context) -> dict[str, Any]:
        """Return the verdict, and the places of the files.

        :raises CheckFailed: after the report is written, if the job could not work on some parts.
        """
        if not self.maintenance_run_id:
            raise AirflowSkipException("there is no plan, so there is nothing to report")
        job = self.kind
        with self.postgres_hook.maintenance_runs() as runs, self.store() as client:
            outcome = replace(self.engine(client, runs), given=self.given).report(
                runs, self.maintenance_run_id, dry_run=self.read(DryRun).dry_run
            )
        files = write_report(job, outcome, task_settings().reports)
        where = publish(files, context)
        told = brief(FinishedRun(job=job, outcome=outcome))
        self.log.info("Run %s: %s; report %s", outcome.maintenance_run_id, told["verdict"], files.html)
        if outcome.broken:
            raise CheckFailed(f"{told['verdict']}: {job.words.hint}; report: {files.html}")
        return told | where


def plan_do_report(
    job: str,
    *,
    do: str | Sequence[str],
    done: str,
    limit: timedelta = timedelta(hours=6),
    watch: BaseOperator | None = None,
) -> None:
    """Make the tasks of a job: a plan, a question if the job asks, a task per share, a report, the verdict.

    :param do: id of the task that works on a share; or the names of shares, each of which is a task of this id.
    :param done: id of the task that succeeds only if all shares succeeded.
    :param limit: time limit of plan and report if nobody is asked, so that a scheduled run does not delay the next one
        for long.
    :param watch: task that checks the store before the report. The report gets its return value; if that names trouble
        that must not wait, the run fails.
    """
    kind = job_of(job)
    common: dict[str, Any] = {"job": job, "pool": Pool.REDIS if kind.on_redis else Pool.POSTGRES}
    short: dict[str, Any] = common if kind.asks else {**common, "execution_timeout": limit}
    plan = PlanJobOperator(task_id="plan", **short)
    agreed, run_id = _asked(plan, job) if kind.asks else (plan, XComArg(plan, key=RUN_KEY))
    shares: list[Any] = (
        [
            ApplyJobShareOperator.partial(
                task_id=do,
                map_index_template="{{ task.share }}",
                execution_timeout=timedelta(days=7 if kind.asks else 1),
                **common,
            ).expand_kwargs(agreed.output)
        ]
        if isinstance(do, str)
        else [ApplyPlannedShareOperator(task_id=each, share=each, planned=agreed.output, **short) for each in do]
    )
    # A report is needed most when a share failed. Without an approval there is nothing to report. A run that asks
    # nobody and has no work, such as a dry run, reports its plan.
    report = ReportJobOperator(
        task_id="report",
        maintenance_run_id=run_id,
        given=None if watch is None else watch.output,
        trigger_rule=TriggerRule.ALL_DONE_MIN_ONE_SUCCESS if kind.asks else TriggerRule.ALL_DONE,
        **short,
    )
    # This task decides the run's state: the report must not hide a failed share. There may be no share at all.
    rule = TriggerRule.ALL_SUCCESS if kind.asks else TriggerRule.NONE_FAILED
    verdict_of_run = (
        EmptyOperator(task_id=done, trigger_rule=rule)
        if watch is None
        else CheckReportOperator(
            task_id=done, report=report.output, trigger_rule=rule, pool=common["pool"], execution_timeout=limit
        )
    )

    agreed >> shares >> report >> verdict_of_run
    agreed >> report
    shares >> verdict_of_run
    if watch is not None:
        shares >> watch


def _asked(plan: PlanJobOperator, job: str) -> tuple[CheckJobApprovalOperator, str]:
    """Make the tasks that ask a person about a plan.

    :return: the task that divides the work after an approval, and the template of the id of the run.
    """
    summarise = SummariseJobOperator(
        task_id="summarise_plan", job=job, maintenance_run_id=XComArg(plan, key=RUN_KEY), pool=Pool.POSTGRES
    )
    # In a group of tasks, ids begin with that of the group.
    summary = f"ti.xcom_pull(task_ids='{summarise.task_id}')"
    run_id = f"{{{{ {summary}['{RUN_KEY}'] }}}}"
    approve = ApprovePlanOperator(
        task_id=APPROVAL_TASK,
        subject=f"{{{{ {summary}['question'] }}}}",
        body=f"{{{{ {summary}['markdown'] }}}}",
        plan_only=f"{{{{ params.dry_run or {summary}['empty'] }}}}",
        retry_delay=timedelta(seconds=1),
    )
    check = CheckJobApprovalOperator(
        task_id="check_approval", job=job, maintenance_run_id=run_id, decision=approve.output, pool=Pool.POSTGRES
    )
    plan >> summarise >> approve >> check
    return check, run_id


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (heads, ["---"] * len(heads), *rows)
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
