"""The collection of compacted queues as tasks; what is collected and how is in ``queuekeeper.maintenance``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from queuekeeper.airflow.forms import reject_unknown_of
from queuekeeper.airflow.links import ReportLink
from queuekeeper.airflow.operators.maintenance import PlanOperator, RunReportOperator, ShareOperator
from queuekeeper.airflow.values import flag
from queuekeeper.clock import system_clock
from queuekeeper.config import Settings
from queuekeeper.errors import CheckFailed
from queuekeeper.identity import client_hash, hash_key
from queuekeeper.jobs.common import UndoRetention
from queuekeeper.jobs.undo import remove_old_undo_files
from queuekeeper.maintenance.compacted_gc import (
    collect_share,
    plan_collection,
    report_collection,
    save_collection_plan,
)
from queuekeeper.maintenance.compacted_gc_model import KIND, CollectionParameters
from queuekeeper.maintenance.compacted_gc_report import last_finished, verdict, write_report
from queuekeeper.postgres import migrate
from queuekeeper.report.files import ReportKind

if TYPE_CHECKING:
    from airflow.sdk import Context


class PlanCollectionOperator(PlanOperator):
    """Count what is due in compacted queues and write it down; nothing is removed.

    As the first task of its DAG it also refuses parameters that the form does not have.
    """

    models = (CollectionParameters, UndoRetention)

    def execute(self, context: Context) -> list[dict[str, str]]:
        """Return run and share of each task that is to collect; none in a dry run."""
        reject_unknown_of(context)
        parameters = self.asked(CollectionParameters)
        settings = Settings()
        days = self.asked(UndoRetention).undo_retention_days
        old = remove_old_undo_files(settings.undo, kind=KIND, days=days, now_ms=system_clock())
        self.log.info("Looking for what is due; %s undo files were old and are gone", old)
        key = hash_key(settings)
        with self.postgres_hook.connect() as connection, self.redis_hook.connect() as client:
            migrate(connection)
            plan = plan_collection(
                client,
                parameters=parameters,
                name_client=lambda client_id: client_hash(client_id, key=key),
                say=self.say,
            )
        with self.postgres_hook.maintenance_runs() as runs:
            run_id = save_collection_plan(runs, plan).maintenance_run_id
        self.log.info("Run %s: %s", run_id, plan.counts)
        return self.hand_on(context, run_id, [] if flag("dry_run", self.plan_only) else parameters.share_names())


class CollectShareOperator(ShareOperator):
    """Collect one share of a plan; repeating it goes on where it stopped."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what was done; a share that is not done fails the task once that is noted."""
        self.log.info("Collecting %s for run %s", self.share, self.maintenance_run_id)
        with self.postgres_hook.maintenance_runs() as runs, self.redis_hook.connect() as client:
            report = collect_share(
                client,
                runs=runs,
                run_id=self.maintenance_run_id,
                share=self.share,
                undo_directory=Settings().undo,
                say=self.say,
            )
        self.log.info("%s: %s", self.share, report.counts)
        if report.undo_file:
            self.log.info("What is gone stands in %s", report.undo_file)
        if not report.done:
            raise CheckFailed(f"{self.share} is not done: {report.stopped}")
        return asdict(report)


class ReportCollectionOperator(RunReportOperator):
    """Look at the queues a second time, and write what was planned, done and left as HTML and JSON."""

    operator_extra_links = (ReportLink(ReportKind.COMPACTED),)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what it came to, and where the files are.

        :raises CheckFailed: once the report is written, when a queue could not be collected.
        """
        self.demand_plan()
        with self.postgres_hook.maintenance_runs() as runs, self.redis_hook.connect() as client:
            outcome = report_collection(
                client,
                runs=runs,
                run_id=self.maintenance_run_id,
                dry_run=flag("dry_run", self.plan_only),
                say=self.say,
            )
        self.log.info("The registry was last finished: %s", last_finished(outcome.finished_ms))
        found = self.told(
            context,
            outcome,
            write=write_report,
            words=verdict(outcome),
            hint="`queuekeeper quality run --store compacted` names them, `queuekeeper compacted repair` mends them",
        )
        return found | {"finished_ms": outcome.finished_ms}
