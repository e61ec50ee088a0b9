"""The repair of fan-out queues as tasks; what is repaired and how is in ``queuekeeper.maintenance``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from queuekeeper.airflow.forms import reject_unknown_of
from queuekeeper.airflow.links import ReportLink
from queuekeeper.airflow.operators.maintenance import PlanOperator, RunReportOperator, ShareOperator
from queuekeeper.airflow.values import flag
from queuekeeper.errors import CheckFailed
from queuekeeper.maintenance.fanout_repair import (
    plan_fanout_repair,
    repair_share,
    report_fanout_repair,
    save_fanout_repair_plan,
)
from queuekeeper.maintenance.fanout_repair_model import FanoutRepairParameters
from queuekeeper.maintenance.fanout_repair_report import verdict, write_report
from queuekeeper.postgres import migrate
from queuekeeper.report.files import ReportKind

if TYPE_CHECKING:
    from airflow.sdk import Context


class PlanFanoutRepairOperator(PlanOperator):
    """Look through fan-out queues for what is to be repaired and write it down; nothing is changed.

    As the first task of its DAG it also refuses parameters that the form does not have.
    """

    models = (FanoutRepairParameters,)

    def execute(self, context: Context) -> list[dict[str, str]]:
        """Return run and share of each task that is to repair; none in a dry run, or when there is nothing to do."""
        reject_unknown_of(context)
        parameters = self.asked(FanoutRepairParameters)
        with self.postgres_hook.connect() as connection, self.redis_hook.connect() as client:
            migrate(connection)
            plan = plan_fanout_repair(client, parameters=parameters, say=self.say)
        with self.postgres_hook.maintenance_runs() as runs:
            run_id = save_fanout_repair_plan(runs, plan).maintenance_run_id
        self.log.info("Run %s: %s", run_id, plan.counts)
        for unseen in plan.unseen:
            self.log.info("May be dead: %s", unseen)
        is_over = plan.empty or flag("dry_run", self.plan_only)
        return self.hand_on(context, run_id, [] if is_over else parameters.share_names())


class RepairFanoutShareOperator(ShareOperator):
    """Repair one share of a plan; repeating it goes on where it stopped."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what was done; a share that is not done fails the task once that is noted."""
        self.log.info("Repairing %s for run %s", self.share, self.maintenance_run_id)
        with self.postgres_hook.maintenance_runs() as runs, self.redis_hook.connect() as client:
            report = repair_share(client, runs=runs, run_id=self.maintenance_run_id, share=self.share, say=self.say)
        self.log.info("%s: %s", self.share, report.counts)
        if not report.done:
            raise CheckFailed(f"{self.share} is not done: {report.stopped}")
        return asdict(report)


class ReportFanoutRepairOperator(RunReportOperator):
    """Look at the queues a second time, and write what was planned, done and left as HTML and JSON."""

    operator_extra_links = (ReportLink(ReportKind.FANOUT),)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what it came to, and where the files are.

        :raises CheckFailed: once the report is written, when a queue could not be repaired.
        """
        self.demand_plan()
        with self.postgres_hook.maintenance_runs() as runs, self.redis_hook.connect() as client:
            outcome = report_fanout_repair(
                client,
                runs=runs,
                run_id=self.maintenance_run_id,
                dry_run=flag("dry_run", self.plan_only),
                say=self.say,
            )
        return self.told(
            context,
            outcome,
            write=write_report,
            words=verdict(outcome),
            hint="the log of the plan says why",
        )
