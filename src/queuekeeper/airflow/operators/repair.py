"""Remedies as tasks: which job it is, the form says."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from queuekeeper.airflow.operators.jobs import ApplyJobShareOperator, PlanJobOperator, ReportJobOperator
from queuekeeper.jobs.parameters import describe
from queuekeeper.jobs.report import plan_facts
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
        return plan_facts(self.kind, run_id, plan)


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
        report = super().work(context)
        return report | {"done": report["counts"]["effects"]}


class ReportRepairOperator(ReportJobOperator):
    """Look a second time, write what was planned, done and left, and say it by kinds of effect."""

    reports = REPORT

    def __init__(self, *, job: str = "{{ params.remedy }}", **kwargs: Any) -> None:
        super().__init__(job=job, **kwargs)

    def work(self, context: Context) -> dict[str, Any]:
        """Return what was planned, done and is left."""
        found = super().work(context)
        left = found["left"] or {"effects": {}}
        # By kinds of effect, as earlier releases had it.
        names = {"planned": found["effects"], "report": found["counts"] | {"done": found["done"]}}
        return found | names | {"left": left["effects"]}
