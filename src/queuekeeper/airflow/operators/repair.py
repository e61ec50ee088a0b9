"""Remedies as tasks: plan, show a person, apply, look again; what each remedy does is for ``maintenance.remedies``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from queuekeeper.airflow.defaults import POSTGRES_CONNECTION, REDIS_CONNECTION
from queuekeeper.airflow.forms import reject_unknown_of
from queuekeeper.airflow.hooks import QueuekeeperPostgresHook, QueuekeeperRedisHook
from queuekeeper.airflow.operators.approval import take_answer
from queuekeeper.airflow.operators.asked import AskedOperator
from queuekeeper.airflow.waits import LooksAgain
from queuekeeper.audit import Answer
from queuekeeper.clock import Pace, system_clock
from queuekeeper.config import Settings
from queuekeeper.jobs.pace import RunPaused
from queuekeeper.jobs.store import MaintenanceRuns, RunState
from queuekeeper.maintenance.remedies import Queue, RemedyParameters, RemedyPlan, plan_remedy
from queuekeeper.maintenance.remedies.queues import Selection
from queuekeeper.maintenance.remedies.records import apply_recorded, in_short, record_plan, recorded_plan
from queuekeeper.maintenance.remedies.registry import RepairWish
from queuekeeper.quality.failed_queues import failed_queues

if TYPE_CHECKING:
    from airflow.sdk import Context

    from queuekeeper.postgres import Connection
    from queuekeeper.redis_client import RedisClient


class RepairOperator(BaseOperator):
    """What all tasks of a repair are given.

    :param postgres_conn_id: where profiles and records are kept, and the rows of TBMQ 1.x (templated).
    :param redis_conn_id: where the sessions are (templated).
    """

    template_fields: Sequence[str] = ("postgres_conn_id", "redis_conn_id")

    def __init__(
        self, *, postgres_conn_id: str = POSTGRES_CONNECTION, redis_conn_id: str = REDIS_CONNECTION, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.postgres_conn_id = postgres_conn_id
        self.redis_conn_id = redis_conn_id

    @contextmanager
    def open_servers(self) -> Iterator[tuple[Connection, RedisClient]]:
        """Open both for the length of a ``with`` block."""
        with (
            QueuekeeperPostgresHook(postgres_conn_id=self.postgres_conn_id).connect() as connection,
            QueuekeeperRedisHook(self.redis_conn_id).connect() as client,
        ):
            yield connection, client


class PlanRepairOperator(AskedOperator, RepairOperator):
    """Look at the queues that failed the remedy's check and keep what would be changed as a plan.

    Nothing is written to Redis.

    As the first task of its DAG it also refuses parameters that the form does not have.
    """

    template_fields: Sequence[str] = (*AskedOperator.template_fields, *RepairOperator.template_fields)
    models = (RepairWish, Selection)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the run's id and how much there is to do."""
        reject_unknown_of(context)
        wish, wanted = self.asked(RepairWish), self.asked(Selection)
        rate = wish.max_operations_per_s
        with self.open_servers() as (connection, client):
            judged = failed_queues(connection, remedy=wish.remedy, selection=wanted)
            # What was judged is written down: the newest judgement may be another one by the time of the approval.
            selection = replace(wanted, quality_run_id=judged.quality_run_id)
            self.log.info("%s: looking at %s queues", wish.remedy, len(judged.queues))
            plan = plan_remedy(
                client,
                remedy=wish.remedy,
                queues=judged.queues,
                parameters=RemedyParameters(
                    key_prefix=wish.key_prefix, limit=judged.limit, default_ttl_s=judged.default_ttl_s
                ),
                source=connection,
                pace=Pace(lambda: rate),
            )
            runs = MaintenanceRuns(connection)
            run = record_plan(runs, plan, selection=selection, now_ms=system_clock(), operations_per_s=rate)
        numbers, _ = in_short(plan, run.maintenance_run_id)
        self.log.info("Run %s: %s", run.maintenance_run_id, numbers["effects"] or "nothing to do")
        return numbers


class SummariseRepairOperator(RepairOperator):
    """Put a plan in a few lines.

    :param run_id: maintenance run (templated).
    """

    template_fields: Sequence[str] = (*RepairOperator.template_fields, "run_id")

    def __init__(self, *, run_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run_id = run_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Return numbers and Markdown."""
        with QueuekeeperPostgresHook(postgres_conn_id=self.postgres_conn_id).connect() as connection:
            plan, _ = recorded_plan(MaintenanceRuns(connection).load(self.run_id))
        numbers, markdown = in_short(plan, self.run_id)
        self.log.info("Run %s in short:\n%s", self.run_id, markdown)
        return {"numbers": numbers, "markdown": markdown}


class ApplyRepairOperator(LooksAgain, RepairOperator):
    """Read the answer, note who agreed, and do what the plan says; a task that is tried again does the rest.

    Of a run that is done it returns the report once more, and writes nothing. While the run is paused, the task
    holds no worker: it looks once a minute whether it may go on.

    :param run_id: maintenance run that was put before the person (templated).
    :param decision: what the question returned (templated).
    """

    template_fields: Sequence[str] = (*RepairOperator.template_fields, "run_id", "decision")

    def __init__(self, *, run_id: str, decision: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run_id = run_id
        self.decision = decision

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what was done."""
        settings = Settings()
        with self.open_servers() as (connection, client):
            runs = MaintenanceRuns(connection)
            run = runs.load(self.run_id)
            if run.state is RunState.DONE and run.report is not None:
                self.log.info("Run %s is done: nothing more is written", self.run_id)
                return run.report
            plan, selection = recorded_plan(run)

            def note(answer: Answer) -> None:
                # Once is enough, and a pause may last a night.
                if not self.looks_again:
                    runs.note_answer(self.run_id, answer)

            answer = take_answer(self.run_id, self.decision, note=note)
            runs.approve_current(self.run_id, answer, now_ms=system_clock())
            self.log.info("Run %s was approved by %s: %s", self.run_id, answer.actor, plan.effects)
            try:
                report = apply_recorded(
                    client,
                    runs=runs,
                    run_id=self.run_id,
                    queues=_planned(connection, plan, selection),
                    undo_directory=settings.undo,
                    source=connection,
                    say=self.log.info,
                    stays=False,
                )
            except RunPaused:
                self.park()
        self.log.info("Run %s: %s; undo file %s", self.run_id, dict(report.done), report.undo_file or "none")
        return _as_dict(report)


class ReportRepairOperator(RepairOperator):
    """Plan a second time and say what is left.

    :param run_id: maintenance run (templated).
    """

    template_fields: Sequence[str] = (*RepairOperator.template_fields, "run_id")

    def __init__(self, *, run_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run_id = run_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what was planned, done and is left."""
        with self.open_servers() as (connection, client):
            run = MaintenanceRuns(connection).load(self.run_id)
            plan, selection = recorded_plan(run)
            second = plan_remedy(
                client,
                remedy=plan.remedy,
                queues=_planned(connection, plan, selection),
                parameters=plan.parameters,
                source=connection,
                pace=Pace(lambda: run.throttle_operations_per_s),
            )
        found = {
            "maintenance_run_id": self.run_id,
            "remedy": plan.remedy,
            "planned": plan.effects,
            "report": run.report,
            "left": second.effects,
            "refusals": second.refusals,
            "undo": plan.undo,
        }
        if second.is_empty:
            self.log.info("Run %s: a second plan finds nothing to do", self.run_id)
        else:
            self.log.warning("Run %s: a second plan finds %s; trigger again", self.run_id, second.effects)
        return found


def _planned(connection: Connection, plan: RemedyPlan, selection: Selection) -> tuple[Queue, ...]:
    """Return the queues of a plan: their client ids are in the profile and nowhere else."""
    hashes = tuple(sorted(queue.client_hash for queue in plan.queues if queue.effects))
    if not hashes:
        return ()
    again = Selection(quality_run_id=selection.quality_run_id, cohorts=selection.cohorts, client_hashes=hashes)
    return failed_queues(connection, remedy=plan.remedy, selection=again).queues


def _as_dict(report: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(asdict(report)))
    return found
