"""Remedies as tasks: which job it is, the form says; see :mod:`queuekeeper.airflow.operators.jobs` for the rest."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from queuekeeper.airflow.operators.approval import take_answer
from queuekeeper.airflow.operators.jobs import JobOperator, PausableOperator, PlanJobOperator, ReportJobOperator
from queuekeeper.audit import Answer
from queuekeeper.clock import system_clock
from queuekeeper.errors import CheckFailed
from queuekeeper.jobs.parameters import describe
from queuekeeper.jobs.store import RunState
from queuekeeper.maintenance.remedies.job import REPORT, SHARE, Remedy
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
        self.job = self.asked(RepairWish).remedy
        run_id, plan = self.make_plan(context)
        return {
            "maintenance_run_id": run_id,
            "remedy": self.job,
            "looked_at": plan.counts.queues,
            "queues": plan.counts.treated,
            "effects": plan.counts.effects,
            "changes": plan.counts.changes,
            "refusals": plan.counts.refusals,
            "undo": cast(type[Remedy], self.kind).way_back,
        }


class ApplyRepairOperator(PausableOperator, JobOperator):
    """Read the answer, note who agreed, and do what the plan says; a task that is tried again does the rest.

    Of a run that is done it returns the report once more, and writes nothing.

    :param run_id: maintenance run that was put before the person (templated).
    :param decision: what the question returned (templated).
    """

    template_fields: Sequence[str] = (*JobOperator.template_fields, "run_id", "decision")

    def __init__(self, *, run_id: str, decision: Any, job: str = "{{ params.remedy }}", **kwargs: Any) -> None:
        super().__init__(job=job, **kwargs)
        self.run_id = run_id
        self.decision = decision

    def work(self, context: Context) -> dict[str, Any]:
        """Return what was done."""
        with self.postgres_hook.maintenance_runs() as runs, self.redis_hook.connect() as client:
            run = runs.load(self.run_id)
            self.job = run.kind

            def note(answer: Answer) -> None:
                # Once is enough, and a pause may last a night.
                if not self.looks_again:
                    runs.note_answer(self.run_id, answer)

            if run.state is not RunState.DONE:
                answer = take_answer(self.run_id, self.decision, note=note)
                runs.approve_current(self.run_id, answer, now_ms=system_clock())
                self.log.info("Run %s was approved by %s", self.run_id, answer.actor)
            report = self.engine(client, runs).apply(runs, self.run_id, SHARE)
        self.log.info("Run %s: %s; undo file %s", self.run_id, report.counts.effects, report.undo_file or "none")
        if not report.done:
            raise CheckFailed(f"run {self.run_id} is not done: {report.stopped}")
        return asdict(report) | {"done": report.counts.effects}


class ReportRepairOperator(ReportJobOperator):
    """Look a second time, write what was planned, done and left, and say it by kinds of effect."""

    reports = REPORT

    def __init__(self, *, job: str = "{{ params.remedy }}", **kwargs: Any) -> None:
        super().__init__(job=job, **kwargs)

    def work(self, context: Context) -> dict[str, Any]:
        """Return what was planned, done and is left."""
        found = super().work(context)
        done, left = found["counts"], found["left"] or {"effects": {}}
        return found | {
            "remedy": self.job,
            "planned": found["planned"]["effects"],
            "report": done | {"done": done["effects"]},
            "left": left["effects"],
        }
