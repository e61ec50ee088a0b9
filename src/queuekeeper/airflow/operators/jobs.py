"""Any job as tasks: plan, question, shares, report. Which job it is, is said by its name; the engine does the rest."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import BaseOperator, TriggerRule
from airflow.sdk.exceptions import AirflowSkipException

from queuekeeper.airflow.defaults import POSTGRES_CONNECTION, Pool
from queuekeeper.airflow.forms import reject_unknown_of
from queuekeeper.airflow.hooks import QueuekeeperPostgresHook
from queuekeeper.airflow.links import ReportLink
from queuekeeper.airflow.operators.approval import ApprovePlanOperator, take_answer
from queuekeeper.airflow.operators.asked import Ask, AskedOperator, AsksOperator
from queuekeeper.airflow.operators.stores import StoresOperator
from queuekeeper.airflow.run_index import remember
from queuekeeper.airflow.settings import task_settings
from queuekeeper.airflow.supervised import SupervisedOperator
from queuekeeper.airflow.waits import LooksAgain
from queuekeeper.clock import system_clock
from queuekeeper.errors import CheckFailed
from queuekeeper.facts import brief
from queuekeeper.identity import client_namer
from queuekeeper.jobs.common import DryRun, UndoRetention
from queuekeeper.jobs.engine import Engine, load_plan
from queuekeeper.jobs.model import AnyJob, AnyPlan
from queuekeeper.jobs.pace import RunPaused
from queuekeeper.jobs.parameters import Parameters
from queuekeeper.jobs.registry import job_of
from queuekeeper.jobs.report import FinishedRun, PlannedRun, write_report
from queuekeeper.jobs.store import MaintenanceRuns
from queuekeeper.jobs.undo import remove_old_undo_files
from queuekeeper.postgres import Connection, migrate
from queuekeeper.redis_client import RedisClient
from queuekeeper.report.files import ReportFiles, ReportKind

if TYPE_CHECKING:
    from airflow.sdk import Context

RUN_KEY = "maintenance_run_id"
"""Under this name the plan hands the id of its run on."""


class JobOperator(StoresOperator):
    """What all tasks of a job are given.

    :param job: its name, such as ``fanout_repair`` (templated).
    :param postgres_conn_id: where plan, approval and progress are kept (templated).
    :param redis_conn_id: what is worked on (templated).
    """

    template_fields: Sequence[str] = ("job", *StoresOperator.template_fields)

    def __init__(self, *, job: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job = job

    def say(self, line: str) -> None:
        """Write progress to the task's log."""
        self.log.info("%s", line)

    @property
    def kind(self) -> type[AnyJob]:
        """The job."""
        return job_of(self.job)

    def store(self) -> AbstractContextManager[RedisClient | None]:
        """Open Redis for the length of a ``with`` block, for a job that works there."""
        return self.redis_hook.connect() if self.kind.on_redis else nullcontext()

    def engine(self, client: RedisClient | None, runs: MaintenanceRuns) -> Engine:
        """Return the engine, at work on a store."""
        settings = task_settings()
        return Engine(
            job=self.kind,
            client=client,
            undo_directory=settings.undo,
            database=runs.connection,
            name_client=client_namer(settings),
            # A worker is given back.
            stays=False,
            say=self.say,
        )

    def take_approval(self, runs: MaintenanceRuns, run_id: str, decision: Any, *, note: bool = True) -> None:
        """Read the answer about a run, check that its plan may still be carried out, and note who agreed.

        :param decision: what the question returned.
        :param note: whether the answer goes into the audit; once is enough.
        """
        answer = take_answer(run_id, decision, note=lambda given: runs.note_answer(run_id, given) if note else None)
        runs.approve_current(run_id, answer, now_ms=system_clock())
        self.log.info("Run %s was approved by %s", run_id, answer.actor)


class PlanJobOperator(AskedOperator, JobOperator):
    """Count what a job would do and write it down; nothing is changed.

    As the first task of its DAG it also refuses parameters that the form does not have.

    :param job: its name, such as ``fanout_repair``.
    """

    template_fields: Sequence[str] = (*AskedOperator.template_fields, *JobOperator.template_fields)
    models: tuple[type[Parameters], ...] = ()
    plan_only = Ask(DryRun, name="dry_run")
    # A form need not have it.
    undo_retention_days: Any = Ask(UndoRetention, default="{{ params.undo_retention_days | default('') }}")

    def __init__(self, *, job: str, **kwargs: Any) -> None:
        self.models = self.models or (job_of(job).Parameters,)
        super().__init__(job=job, **kwargs)

    def kinds(self) -> Collection[str]:
        """Return the jobs that the task may be of: their old undo files are removed."""
        return [self.job]

    def execute(self, context: Context) -> list[dict[str, str]]:
        """Return run and share of each task that is to work; none in a dry run, or when there is nothing to do."""
        job = self.kind
        run_id, plan = self.make_plan(context)
        is_over = self.read(DryRun).dry_run or (plan.empty and not job.works_when_empty)
        context["ti"].xcom_push(key=RUN_KEY, value=run_id)
        return [] if is_over else [{RUN_KEY: run_id, "share": share} for share in plan.share_names()]

    def make_plan(self, context: Context) -> tuple[str, AnyPlan]:
        """Plan, write it down, and return it with the id of its run."""
        reject_unknown_of(context)
        job = self.kind
        parameters = self.read(job.Parameters)
        kept = (self.read(UndoRetention) if self.undo_retention_days else UndoRetention()).undo_retention_days
        for kind in self.kinds():
            if old := remove_old_undo_files(task_settings().undo, kind=kind, days=kept, now_ms=system_clock()):
                self.log.info("%s undo files of %s were older than %s days and are gone", old, kind, kept)
        with self.postgres_hook.connect() as connection:
            migrate(connection)
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
    """Put the plan of a job in a few lines, for the person who is asked.

    :param maintenance_run_id: the run (templated).
    """

    template_fields: Sequence[str] = (*JobOperator.template_fields, RUN_KEY)

    def __init__(self, *, maintenance_run_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.maintenance_run_id = maintenance_run_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what a command tells of the plan in few lines, and Markdown."""
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


class CheckJobApprovalOperator(JobOperator):
    """Read the answer, check that the plan may still be carried out, note who agreed, and share out the work.

    :param maintenance_run_id: run that was put before the person (templated).
    :param decision: what :class:`~queuekeeper.airflow.operators.approval.ApprovePlanOperator` returned (templated).
    """

    template_fields: Sequence[str] = (*JobOperator.template_fields, RUN_KEY, "decision")

    def __init__(self, *, maintenance_run_id: str, decision: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.maintenance_run_id = maintenance_run_id
        self.decision = decision

    def execute(self, context: Context) -> list[dict[str, str]]:
        """Return run and share of each task that is to work."""
        run_id = self.maintenance_run_id
        with self.postgres_hook.maintenance_runs() as runs:
            plan = load_plan(self.kind, runs, run_id)
            self.take_approval(runs, run_id, self.decision)
        self.log.info("Its shares: %s", ", ".join(plan.share_names()))
        return [{RUN_KEY: run_id, "share": share} for share in plan.share_names()]


class DatabaseOperator(AsksOperator):
    """What tasks are given that work on PostgreSQL alone.

    :param postgres_conn_id: database, with schema ``queuekeeper`` where there is one (templated).
    """

    template_fields: Sequence[str] = ("postgres_conn_id",)
    plan_only = Ask(DryRun, name="dry_run")

    def __init__(self, *, postgres_conn_id: str = POSTGRES_CONNECTION, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.postgres_conn_id = postgres_conn_id

    @property
    def only_plans(self) -> bool:
        """Whether nothing is to be changed."""
        return self.read(DryRun).dry_run

    def connect(self) -> AbstractContextManager[Connection]:
        """Open the database for the length of a ``with`` block."""
        return QueuekeeperPostgresHook(postgres_conn_id=self.postgres_conn_id).connect()


class PausableOperator(LooksAgain):
    """A task that gives its worker back while its run is paused; the triggerer has it look again each minute."""

    @abstractmethod
    def work(self, context: Context) -> Any:
        """Do it, in a way that can be called again when it was broken off.

        :raises RunPaused: when the run is paused.
        """

    def execute(self, context: Context) -> Any:
        """Return what was done."""
        try:
            return self.work(context)
        except RunPaused as paused:
            self.log.info("%s: this task gives its worker back, and looks again in a minute", paused)
            self.park()


class ApplyJobShareOperator(PausableOperator, JobOperator):
    """Do one share of a plan; repeating it goes on where it stopped.

    :param maintenance_run_id: the run (templated).
    :param share: one of the plan's; mapped (templated).
    """

    template_fields: Sequence[str] = (*JobOperator.template_fields, RUN_KEY, "share")

    def __init__(self, *, maintenance_run_id: str, share: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.maintenance_run_id = maintenance_run_id
        self.share = share

    def work(self, context: Context) -> dict[str, Any]:
        """Return what was done; a share that is not done fails the task once that is noted."""
        self.log.info("%s %s for run %s", self.kind.words.title, self.share, self.maintenance_run_id)
        with self.postgres_hook.maintenance_runs() as runs, self.store() as client:
            report = self.engine(client, runs).apply(runs, self.maintenance_run_id, self.share)
        self.log.info("%s: %s", self.share, report.counts)
        if report.undo_file:
            self.log.info("What can be taken back stands in %s", report.undo_file)
        if not report.done:
            raise CheckFailed(f"{self.share} is not done: {report.stopped}")
        return brief(report)


class ApplyPlannedShareOperator(ApplyJobShareOperator):
    """Do one share of a plan in a task of its own; it is skipped where nothing is to be done.

    :param share: one of the job's.
    :param planned: what :class:`PlanJobOperator` returned (templated).
    """

    template_fields: Sequence[str] = (*ApplyJobShareOperator.template_fields, "planned")

    def __init__(self, *, planned: Any, **kwargs: Any) -> None:
        super().__init__(maintenance_run_id="", **kwargs)
        self.planned = planned

    def work(self, context: Context) -> dict[str, Any]:
        """Return what was done."""
        for each in self.planned or ():
            if each["share"] == self.share:
                self.maintenance_run_id = each[RUN_KEY]
                return super().work(context)
        raise AirflowSkipException("nothing is to be done")


class ReportJobOperator(PausableOperator, AsksOperator, JobOperator):
    """Look a second time, and write what was planned, done and left as HTML and JSON.

    :cvar reports: kind of all of its reports, where the form chooses the job.

    :param maintenance_run_id: the run; empty when there is no plan (templated).
    :param given: what another task has found for the report; none: the job looks itself (templated).
    """

    template_fields: Sequence[str] = (*JobOperator.template_fields, RUN_KEY, "given")
    reports: ReportKind | None = None
    plan_only = Ask(DryRun, name="dry_run")

    def __init__(self, *, maintenance_run_id: str, given: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.maintenance_run_id = maintenance_run_id
        self.given = given
        self.operator_extra_links = (ReportLink(self.reports or self.kind.report),)

    def work(self, context: Context) -> dict[str, Any]:
        """Return what it came to, and where the files are.

        :raises CheckFailed: once the report is written, when there was something that could not be worked on.
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
    question: str = "",
    limit: timedelta = timedelta(hours=6),
    watch: BaseOperator | None = None,
) -> None:
    """Make the tasks of a job: a plan, a question if the job asks, a task per share, a report, the verdict.

    :param do: task that works on a share; or the names of shares, each of which is a task of this name.
    :param done: task that is green when all that had to be done was done.
    :param question: what a person is asked, with ``{count}`` for the number of changes; else that of the job's words.
    :param limit: how long plan and report may take where nobody is asked: a run on a schedule must not hold up the next
        ones for long.
    :param watch: task that looks at the store before the report. The report gets what it returns and says what must not
        wait; then the run is red.
    """
    kind = job_of(job)
    common: dict[str, Any] = {"job": job, "pool": Pool.REDIS if kind.on_redis else Pool.POSTGRES}
    short: dict[str, Any] = common if kind.asks else {**common, "execution_timeout": limit}
    plan = PlanJobOperator(task_id="plan", **short)
    run_id = f"{{{{ ti.xcom_pull(task_ids='plan', key='{RUN_KEY}') or '' }}}}"
    agreed = _asked(plan, job, run_id, question or f"{{count}} {kind.words.to_do}: go on?") if kind.asks else plan
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
    # What was done is of interest most when a share was not finished. Without an approval there is nothing to report;
    # where nobody is asked, the plan is all there is when nothing is to be done, and in a dry run.
    report = ReportJobOperator(
        task_id="report",
        maintenance_run_id=run_id,
        given=None if watch is None else watch.output,
        trigger_rule=TriggerRule.ALL_DONE_MIN_ONE_SUCCESS if kind.asks else TriggerRule.ALL_DONE,
        **short,
    )
    # The run's own verdict: a report alone must not turn a share that failed green. No share may be there to be done.
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


def _asked(plan: PlanJobOperator, job: str, run_id: str, question: str) -> CheckJobApprovalOperator:
    """Have a person asked about a plan, and return the task that shares the work out once the answer is yes."""
    summary = "ti.xcom_pull(task_ids='summarise_plan')"
    summarise = SummariseJobOperator(task_id="summarise_plan", job=job, maintenance_run_id=run_id, pool=Pool.POSTGRES)
    approve = ApprovePlanOperator(
        task_id="approve",
        subject=question.format(count=f"{{{{ '{{:,}}'.format({summary}['to_do']) }}}}"),
        body=f"{{{{ {summary}['markdown'] }}}}",
        plan_only=f"{{{{ params.dry_run or {summary}['empty'] }}}}",
        retry_delay=timedelta(seconds=1),
    )
    check = CheckJobApprovalOperator(
        task_id="check_approval", job=job, maintenance_run_id=run_id, decision=approve.output, pool=Pool.POSTGRES
    )
    plan >> summarise >> approve >> check
    return check


def publish(files: ReportFiles, context: Context) -> dict[str, str]:
    """Note that a run's report is now this one, and return where its files are, with the hash of its page."""
    run = context["dag_run"]
    remember(files.html.parent, dag_id=run.dag_id, run_id=run.run_id, files=files)
    return {"html": str(files.html), "json": str(files.json), "sha256": files.sha256}


class CheckReportOperator(SupervisedOperator):
    """Fail the run where its report says that something must not wait; the report alone does not.

    :param report: what the task that has written it returned: ``trouble``, a sentence, and ``html`` (templated).
    """

    template_fields: Sequence[str] = ("report",)

    def __init__(self, *, report: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.report = report

    def execute(self, context: Context) -> None:
        """Fail with what must not wait, if anything."""
        if self.report is None:
            raise AirflowSkipException("there was nothing to report")
        if self.report["trouble"]:
            raise CheckFailed(f"{self.report['trouble']}; report: {self.report['html']}")


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (heads, ["---"] * len(heads), *rows)
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
