"""Runs remedies as tasks; the form chooses the job."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from queuekeeper.airflow.operators.asked import argument
from queuekeeper.airflow.operators.jobs import (
    AnsweredJobOperator,
    ApplyJobShareOperator,
    PlanJobOperator,
    ReportJobOperator,
)
from queuekeeper.facts import brief
from queuekeeper.jobs.parameters import describe
from queuekeeper.jobs.report import PlannedRun
from queuekeeper.jobs.store import RunState
from queuekeeper.maintenance.remedies.job import REPORT, SHARE
from queuekeeper.maintenance.remedies.model import RepairWish, Selection

if TYPE_CHECKING:
    from airflow.sdk import Context

REMEDY = "{{ params.remedy }}"


class PlanRepairOperator(PlanJobOperator):
    """Read the queues that failed the remedy's check, and record what would be changed as a plan.

    Nothing is written to Redis.

    As the first task of its DAG it also refuses parameters that the form does not have.
    """

    models = (RepairWish, Selection)

    def __init__(self, *, job: str = REMEDY, **kwargs: Any) -> None:
        super().__init__(job=job, **kwargs)

    def kinds(self) -> Collection[str]:
        """Return all remedies."""
        return describe(RepairWish)["remedy"].choices or ()

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Return the id of the run and the number of changes."""
        self.job = self.read(RepairWish).remedy
        run_id, plan = self.make_plan(context)
        return brief(PlannedRun(job=self.kind, maintenance_run_id=run_id, plan=plan))


class ApplyRepairOperator(AnsweredJobOperator, ApplyJobShareOperator):
    """Read the answer, record who approved, and carry out the plan; a repeated task does the rest.

    When the run is done already, the task returns its report again and writes nothing.

    :param run_id: id of the maintenance run that the person was asked about (templated).
    """

    job: str = argument(REMEDY)
    share: str = argument(SHARE)

    def __init__(self, *, run_id: str, **kwargs: Any) -> None:
        super().__init__(maintenance_run_id=run_id, **kwargs)

    def work(self, context: Context) -> dict[str, Any]:
        """Return what was done."""
        run_id = self.maintenance_run_id
        with self.postgres_hook.maintenance_runs() as runs:
            run = runs.load(run_id)
            self.job = run.kind
            if run.state is not RunState.DONE:
                # The answer is recorded once, although a paused task checks again many times.
                self.take_approval(context, runs, run_id, note=not self.looks_again)
        return super().work(context)


class ReportRepairOperator(ReportJobOperator):
    """Check the queues again, and write what was planned, done and left."""

    job: str = argument(REMEDY)
    reports = REPORT
