"""What upkeep of the event broker has besides the tasks of every job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from queuekeeper.airflow.operators.asked import AskedOperator
from queuekeeper.airflow.operators.jobs import (
    RUN_KEY,
    ApplyJobShareOperator,
    DatabaseOperator,
    ReportJobOperator,
)
from queuekeeper.jobs.engine import Engine
from queuekeeper.jobs.store import MaintenanceRuns
from queuekeeper.maintenance.events.watch import UpkeepLimits, watch_broker
from queuekeeper.redis_client import RedisClient

if TYPE_CHECKING:
    from airflow.sdk import Context


class MendEventsOperator(ApplyJobShareOperator):
    """Do one share of a plan in a task of its own; it is skipped where nothing is to be done.

    :param remedy: the share: ``expire_subscriptions`` or ``reenqueue_events``.
    :param planned: what :class:`~queuekeeper.airflow.operators.jobs.PlanJobOperator` returned (templated).
    """

    template_fields: Sequence[str] = (*ApplyJobShareOperator.template_fields, "planned")

    def __init__(self, *, remedy: str, planned: Any, **kwargs: Any) -> None:
        super().__init__(maintenance_run_id="", share=remedy, **kwargs)
        self.planned = planned

    def work(self, context: Context) -> dict[str, Any]:
        """Return what was done."""
        for each in self.planned or ():
            if each["share"] == self.share:
                self.maintenance_run_id = each[RUN_KEY]
                return super().work(context)
        raise AirflowSkipException("nothing is to be done")


class WatchBrokerOperator(AskedOperator, DatabaseOperator):
    """Look at the heartbeat of polls, conditions, wraparound ages and bloat; nothing is written."""

    template_fields: Sequence[str] = (*AskedOperator.template_fields, *DatabaseOperator.template_fields)
    models = (UpkeepLimits,)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return how the broker stands, and what needs a look."""
        limits = self.read(UpkeepLimits)
        with self.connect() as connection:
            watch = watch_broker(connection, limits=limits)
        for finding in watch.findings:
            self.log.warning("%s: %s", finding.subject, finding.words)
        return asdict(watch)


class ReportUpkeepOperator(ReportJobOperator):
    """Write what was planned, done and left, and how the broker stood when it was looked at.

    :param watch: what :class:`WatchBrokerOperator` returned; none: the report looks itself (templated).
    """

    template_fields: Sequence[str] = (*ReportJobOperator.template_fields, "watch")

    def __init__(self, *, watch: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.watch = watch

    def engine(self, client: RedisClient | None, runs: MaintenanceRuns) -> Engine:
        """Return the engine, told how the broker stands."""
        return replace(super().engine(client, runs), given=self.watch)
