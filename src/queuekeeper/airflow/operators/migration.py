"""Runs the three Spark steps of a migration as tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from queuekeeper.airflow.forms import reject_unknown_of, template
from queuekeeper.airflow.hooks import QueuekeeperPostgresHook, QueuekeeperRedisHook
from queuekeeper.airflow.lineage import lineage, postgres_table, redis_sessions
from queuekeeper.airflow.operators.asked import AskedOperator, argument
from queuekeeper.airflow.operators.spark import QueuekeeperSparkOperator
from queuekeeper.airflow.waits import PausableOperator
from queuekeeper.facts import brief
from queuekeeper.jobs.pace import RunPaused, control_of
from queuekeeper.jobs.parameters import Parameters, describe
from queuekeeper.jobs.resources import REDIS_CONNECTION
from queuekeeper.migration.ledger.parameters import (
    CohortChoice,
    CopyManner,
    MigrationParameters,
    Mode,
    OnlineWish,
    PlanChoice,
    PlanRequest,
)
from queuekeeper.migration.online.inside_redis import plan_inside_redis
from queuekeeper.migration.servers import SOURCE_TABLES

if TYPE_CHECKING:
    from airflow.sdk import Context

    from queuekeeper.airflow.lineage import Lineage


class PlanMigrationOperator(AskedOperator, QueuekeeperSparkOperator):
    """Read the source once and record what a migration would do; nothing is written to Redis.

    As the first task of its DAG it also refuses parameters that the form does not have.

    :param run_id: id of the run, by which later tasks find the plan (templated).
    """

    models = (MigrationParameters,)
    job = "plan_migration.py"
    run_id: str = argument("{{ run_id }}")

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Plan by Spark, or without it where sessions move inside Redis."""
        self.wishes(context)
        wanted = self.read(MigrationParameters)
        if not wanted.inside_redis:
            return super().execute(context)
        plan = plan_inside_redis(
            postgres_url=QueuekeeperPostgresHook(postgres_conn_id=self.postgres_conn_id).url,
            redis_url=QueuekeeperRedisHook(redis_conn_id=self.redis_conn_id or REDIS_CONNECTION).url,
            parameters=wanted,
            run_id=self.run_id,
        )
        return brief(plan)

    def wishes(self, context: Context) -> Sequence[Parameters]:
        """Check the parameters of later steps, and return the requester and the parameters of the plan."""
        reject_unknown_of(context)
        given = context["params"]
        OnlineWish.of_texts({name: given[name] for name in describe(OnlineWish) if name in given})
        return PlanRequest(run_id=self.run_id), self.read(MigrationParameters)


class CopySessionsOperator(PausableOperator, QueuekeeperSparkOperator):
    """Copy cohorts of an approved plan to Redis; a repeated task skips what is copied and copies the rest.

    While the migration is paused, Spark does not run and the task holds no worker slot; it checks again once a minute.

    :param plan_id: id of the plan (templated).
    :param cohorts: cohorts such as ``0-23``; mapped over groups (templated).
    """

    job = "copy_sessions.py"
    plan_id: str = argument()
    cohorts: str = argument()

    def work(self, context: Context) -> dict[str, Any]:
        """Return what the copy did since the last pause; while the migration is paused, Spark is not started.

        Where sessions move inside Redis there is nothing to do: ``catch_up`` copies them.

        :raises RunPaused: when the migration is paused.
        """
        with QueuekeeperPostgresHook(postgres_conn_id=self.postgres_conn_id).ledger() as ledger:
            if ledger.load_plan(self.plan_id).parameters.inside_redis:
                self.log.info("Sessions move inside Redis: the next step copies them")
                return {}
            control_of(ledger, self.plan_id, paused=lambda: None, stays=False)
        report = QueuekeeperSparkOperator.execute(self, context)
        if report.get("paused"):
            raise RunPaused(f"run {self.plan_id} is paused; {report['messages_written']:,} messages were written")
        return report

    def wishes(self, context: Context) -> Sequence[Parameters]:
        """Return plan and cohorts; the job itself skips copied cohorts."""
        manner = CopyManner(gives_way=True, only_missing=self.looks_again)
        return PlanChoice(plan_id=self.plan_id), CohortChoice(cohorts=self.cohorts), manner

    def get_openlineage_facets_on_start(self) -> Lineage:
        """Return the tables that are read and the sessions that are written, for OpenLineage."""
        return self._lineage()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Lineage:
        """Return the same with the number of messages that were written."""
        return self._lineage(rows=self.result.get("messages_written"))

    def _lineage(self, *, rows: int | None = None) -> Lineage:
        with QueuekeeperPostgresHook(postgres_conn_id=self.postgres_conn_id).ledger() as ledger:
            key_prefix = ledger.load_plan(self.plan_id).parameters.key_prefix
        sessions = redis_sessions(self.redis_conn_id or REDIS_CONNECTION, key_prefix=key_prefix, rows=rows)
        return lineage(
            inputs=[postgres_table(self.postgres_conn_id, f"public.{table}") for table in SOURCE_TABLES],
            outputs=[sessions],
        )


class VerifyMigrationOperator(QueuekeeperSparkOperator):
    """Read both stores again, compare them client by client and write the ledger; a difference fails the task.

    With devices connected, both stores change while they are read: this task is skipped, and ``catch_up`` compares.

    :param plan_id: id of the plan (templated).
    :param mode: mode of the migration, which says whether devices are connected (templated).
    """

    job = "verify_migration.py"
    plan_id: str = argument()
    mode: str = argument(template("mode"))

    def execute(self, context: Context) -> Any:
        """Compare, or skip if later steps compare each client while its writers wait."""
        if self.mode == Mode.ONLINE:
            raise AirflowSkipException("devices are connected: each client is compared by itself")
        return super().execute(context)

    def wishes(self, context: Context) -> Sequence[Parameters]:
        """Return the plan."""
        return (PlanChoice(plan_id=self.plan_id),)
