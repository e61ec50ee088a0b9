"""The steps of a cleanup as tasks; what is cleaned and how is in ``queuekeeper.maintenance``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from queuekeeper.airflow.forms import reject_unknown_of
from queuekeeper.airflow.operators.approval import take_answer
from queuekeeper.airflow.operators.asked import AskedOperator
from queuekeeper.airflow.operators.maintenance import MaintenanceOperator
from queuekeeper.clock import system_clock
from queuekeeper.config import Settings
from queuekeeper.errors import CheckFailed
from queuekeeper.identity import client_hash, hash_key
from queuekeeper.jobs.common import UndoRetention
from queuekeeper.jobs.undo import remove_old_undo_files
from queuekeeper.maintenance.cleanup_model import KIND, CleanupParameters
from queuekeeper.maintenance.cleanup_summary import plan_rows
from queuekeeper.maintenance.expired_references import (
    apply_cleanup,
    load_cleanup_plan,
    plan_cleanup,
    report_cleanup,
    save_cleanup_plan,
)
from queuekeeper.postgres import migrate

if TYPE_CHECKING:
    from airflow.sdk import Context


class PlanCleanupOperator(AskedOperator, MaintenanceOperator):
    """Count what a cleanup would do and write it down; nothing is written to Redis.

    As the first task of its DAG it also refuses parameters that the form does not have.
    """

    template_fields: Sequence[str] = (*AskedOperator.template_fields, *MaintenanceOperator.template_fields)
    models = (CleanupParameters, UndoRetention)

    def execute(self, context: Context) -> str:
        """Return the id of the run that waits for approval."""
        reject_unknown_of(context)
        parameters = self.asked(CleanupParameters)
        settings = Settings()
        now_ms = system_clock()
        days = self.asked(UndoRetention).undo_retention_days
        old = remove_old_undo_files(settings.undo, kind=KIND, days=days, now_ms=now_ms)
        self.log.info("Looking for what has expired; %s undo files were old and are gone", old)
        key = hash_key(settings)
        with self.postgres_hook.connect() as connection, self.redis_hook.connect() as client:
            migrate(connection)
            plan = plan_cleanup(
                client,
                parameters=parameters,
                now_ms=now_ms,
                name_client=lambda client_id: client_hash(client_id, key=key),
                say=self.say,
            )
        with self.postgres_hook.maintenance_runs() as runs:
            run_id = save_cleanup_plan(runs, plan).maintenance_run_id
        self.log.info("Run %s: %s", run_id, plan.counts)
        return run_id


class SummariseCleanupOperator(MaintenanceOperator):
    """Put the plan of a cleanup in a few lines.

    :param maintenance_run_id: the run (templated).
    """

    template_fields: Sequence[str] = (*MaintenanceOperator.template_fields, "maintenance_run_id")

    def __init__(self, *, maintenance_run_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.maintenance_run_id = maintenance_run_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Return numbers and Markdown, and whether there is nothing to do."""
        with self.postgres_hook.maintenance_runs() as runs:
            plan = load_cleanup_plan(runs, self.maintenance_run_id)
        rows = [("Run", f"`{self.maintenance_run_id}`"), *plan_rows(plan)]
        markdown = "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in rows)])
        self.log.info("Run %s in short:\n%s", self.maintenance_run_id, markdown)
        return {
            "maintenance_run_id": self.maintenance_run_id,
            "numbers": asdict(plan.counts) | {"to_do": plan.counts.to_do},
            "empty": plan.empty,
            "markdown": markdown,
        }


class CheckCleanupApprovalOperator(MaintenanceOperator):
    """Read the answer, check that the plan may still be carried out, note who agreed, and share out the work.

    :param maintenance_run_id: run that was put before the person (templated).
    :param decision: what :class:`~queuekeeper.airflow.operators.approval.ApprovePlanOperator` returned (templated).
    """

    template_fields: Sequence[str] = (*MaintenanceOperator.template_fields, "maintenance_run_id", "decision")

    def __init__(self, *, maintenance_run_id: str, decision: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.maintenance_run_id = maintenance_run_id
        self.decision = decision

    def execute(self, context: Context) -> list[str]:
        """Return the shards to clean."""
        run_id = self.maintenance_run_id
        with self.postgres_hook.maintenance_runs() as runs:
            plan = load_cleanup_plan(runs, run_id)
            answer = take_answer(run_id, self.decision, note=lambda given: runs.note_answer(run_id, given))
            runs.approve_current(run_id, answer, now_ms=system_clock())
        shards = [each.shard for each in plan.shards]
        self.log.info("Run %s was approved by %s; cleaning %s", run_id, answer.actor, ", ".join(shards))
        return shards


class ApplyCleanupOperator(MaintenanceOperator):
    """Clean one shard of an approved plan; repeating it goes on where it stopped.

    :param maintenance_run_id: the run (templated).
    :param shard: one of the plan's shards; mapped (templated).
    """

    template_fields: Sequence[str] = (*MaintenanceOperator.template_fields, "maintenance_run_id", "shard")

    def __init__(self, *, maintenance_run_id: str, shard: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.maintenance_run_id = maintenance_run_id
        self.shard = shard

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what was done; a shard that is not done fails the task once that is noted."""
        self.log.info("Cleaning %s for run %s", self.shard, self.maintenance_run_id)
        with self.postgres_hook.maintenance_runs() as runs, self.redis_hook.connect() as client:
            report = apply_cleanup(
                client,
                runs=runs,
                run_id=self.maintenance_run_id,
                shard=self.shard,
                undo_directory=Settings().undo,
                say=self.say,
            )
        self.log.info("%s: %s", self.shard, report.counts)
        if report.undo_file:
            self.log.info("What can be taken back stands in %s", report.undo_file)
        if not report.done:
            raise CheckFailed(f"{self.shard} is not done: {report.stopped}")
        return asdict(report)


class ReportCleanupOperator(MaintenanceOperator):
    """Plan a second time and say what was done and what is left.

    :param maintenance_run_id: the run (templated).
    """

    template_fields: Sequence[str] = (*MaintenanceOperator.template_fields, "maintenance_run_id")

    def __init__(self, *, maintenance_run_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.maintenance_run_id = maintenance_run_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Return plan, deed and rest."""
        with self.postgres_hook.maintenance_runs() as runs, self.redis_hook.connect() as client:
            outcome = report_cleanup(
                client, runs=runs, run_id=self.maintenance_run_id, now_ms=system_clock(), say=self.say
            )
        verdict = "clean" if outcome.clean else f"{outcome.left.to_do:,} left, which may have expired since"
        self.log.info(
            "Run %s: %s. Planned %s, done %s", outcome.maintenance_run_id, verdict, outcome.planned, outcome.counts
        )
        return asdict(outcome) | {"clean": outcome.clean}
