"""Remedies as tasks: which job it is, the form says."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from queuekeeper.airflow.operators.jobs import ApplyJobShareOperator, PlanJobOperator, ReportJobOperator
from queuekeeper.facts import brief
from queuekeeper.jobs.parameters import describe
from queuekeeper.jobs.report import PlannedRun
from queuekeeper.jobs.store import RunState
from queuekeeper.maintenance.remedies.job import REPORT, SHARE
from queuekeeper.maintenance.remedies.model import RepairWish, Selection

if TYPE_CHECKING:
    from airflow.sdk import Context


class PlanRepairOperator(PlanJobOperator):
    """Look at the queues that failed the remedy's check and keep what would be changed as a plan.

    Nothing is written to Redis.

    As the first task of its DAG it also refuses parameters that the form does not have.
    """

    models = (RepairWish, Selection)

    def __init__(self, *, job: str = "{{ params.remedy }}", **kwargs: Any) -> None:
        super().__init__(job=job, **kwargs)

    def kinds(self) -> Collection[str]:
        """Return all remedies."""
        return describe(RepairWish)["remedy"].choices or ()

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Return the run's id and how much there is to do."""
        self.job = self.read(RepairWish).remedy
        run_id, plan = self.make_plan(context)
        return brief(PlannedRun(job=self.kind, maintenance_run_id=run_id, plan=plan))


class ApplyRepairOperator(ApplyJobShareOperator):
    """Read the answer, note who agreed, and do what the plan says; a task that is tried again does the rest.

    Of a run that is done it returns the report once more, and writes nothing.

    :param run_id: maintenance run that was put before the person (templated).
    :param decision: what the question returned (templated).
    """

    template_fields: Sequence[str] = (*ApplyJobShareOperator.template_fields, "decision")

    def __init__(self, *, run_id: str, decision: Any, job: str = "{{ params.remedy }}", **kwargs: Any) -> None:
        super().__init__(job=job, maintenance_run_id=run_id, share=SHARE, **kwargs)
        self.decision = decision

    def work(self, context: Context) -> dict[str, Any]:
        """Return what was done."""
        run_id = self.maintenance_run_id
        with self.postgres_hook.maintenance_runs() as runs:
            run = runs.load(run_id)
            self.job = run.kind
            if run.state is not RunState.DONE:
                # A pause may last a night, with many looks.
                self.take_approval(runs, run_id, self.decision, note=not self.looks_again)
        return super().work(context)


class ReportRepairOperator(ReportJobOperator):
    """Look a second time, and write what was planned, done and left."""

    reports = REPORT

    def __init__(self, *, job: str = "{{ params.remedy }}", **kwargs: Any) -> None:
        super().__init__(job=job, **kwargs)
