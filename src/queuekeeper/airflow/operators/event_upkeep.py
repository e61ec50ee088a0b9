"""Upkeep of the event broker as tasks; what is done is in ``queuekeeper.maintenance.events.upkeep``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from pydantic import TypeAdapter

from queuekeeper.airflow.defaults import POSTGRES_CONNECTION
from queuekeeper.airflow.forms import reject_unknown_of
from queuekeeper.airflow.hooks import QueuekeeperPostgresHook
from queuekeeper.airflow.links import ReportLink
from queuekeeper.airflow.operators.asked import AskedOperator
from queuekeeper.airflow.operators.jobs import publish
from queuekeeper.clock import system_clock
from queuekeeper.config import Settings
from queuekeeper.errors import RefusedError
from queuekeeper.maintenance.events.remedies import (
    EventRemedyReport,
    apply_event_remedy,
    note_upkeep,
    plan_event_remedy,
)
from queuekeeper.maintenance.events.upkeep import (
    BrokerWatch,
    ExpiryReport,
    UpkeepLimits,
    UpkeepReport,
    expire_subscriptions,
    watch_broker,
)
from queuekeeper.report.files import ReportKind

if TYPE_CHECKING:
    from airflow.sdk import Context

    from queuekeeper.postgres import Connection


class EventOperator(BaseOperator):
    """What all tasks of the upkeep are given.

    :param count_only: whether nothing is changed; ``True`` after rendering (templated).
    :param postgres_conn_id: database of the event broker (templated).
    """

    template_fields: Sequence[str] = ("count_only", "postgres_conn_id")

    def __init__(
        self,
        *,
        count_only: bool | str = "{{ params.dry_run }}",
        postgres_conn_id: str = POSTGRES_CONNECTION,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.count_only = count_only
        self.postgres_conn_id = postgres_conn_id

    @property
    def only_counts(self) -> bool:
        """Whether nothing is to be changed."""
        return str(self.count_only) == "True"

    def connect(self) -> AbstractContextManager[Connection]:
        """Open the database for the length of a ``with`` block."""
        return QueuekeeperPostgresHook(postgres_conn_id=self.postgres_conn_id).connect()


class ExpireSubscriptionsOperator(EventOperator):
    """Remove subscriptions whose time is up; as a first task it also refuses parameters that the form lacks."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return how many were found and removed."""
        reject_unknown_of(context)
        with self.connect() as connection:
            report = expire_subscriptions(connection, count_only=self.only_counts)
            note_upkeep(connection, subject="expire_subscriptions", done=report.removed)
        self.log.info("%s subscriptions had expired, %s are removed", report.found, report.removed)
        return asdict(report)


class ReenqueueEventsOperator(EventOperator):
    """Have events dispatched that were stored and never dispatched; as a first task it refuses unknown parameters."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return how many were found and put up again."""
        reject_unknown_of(context)
        with self.connect() as connection:
            plan = plan_event_remedy(connection, remedy="reenqueue_events")
            report = EventRemedyReport(remedy=plan.remedy, planned=len(plan.subjects), done=0)
            if plan.subjects and not self.only_counts:
                report = apply_event_remedy(connection, plan)
                note_upkeep(connection, subject=plan.remedy, done=report.done)
        self.log.info("%s events were never dispatched, %s are put up again", report.planned, report.done)
        return asdict(report)


class WatchBrokerOperator(AskedOperator, EventOperator):
    """Look at the heartbeat of polls, conditions, wraparound ages and bloat; nothing is written."""

    template_fields: Sequence[str] = (*AskedOperator.template_fields, *EventOperator.template_fields)
    models = (UpkeepLimits,)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return how the broker stands, and what needs a look."""
        limits = self.asked(UpkeepLimits)
        with self.connect() as connection:
            watch = watch_broker(connection, limits=limits)
        for finding in watch.findings:
            self.log.warning("%s: %s", finding.subject, finding.words)
        return asdict(watch)


class ReportUpkeepOperator(EventOperator):
    """Write what was found and done as HTML and JSON.

    :param expiry: what :class:`ExpireSubscriptionsOperator` returned; none when it failed (templated).
    :param reenqueued: what :class:`ReenqueueEventsOperator` returned; none when it failed (templated).
    :param watch: what :class:`WatchBrokerOperator` returned (templated).
    """

    template_fields: Sequence[str] = (*EventOperator.template_fields, "expiry", "reenqueued", "watch")
    operator_extra_links = (ReportLink(ReportKind.EVENTS),)

    def __init__(self, *, expiry: Any, reenqueued: Any, watch: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.expiry = expiry
        self.reenqueued = reenqueued
        self.watch = watch

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what must not wait, and where the files are.

        :raises RefusedError: when nobody has watched.
        """
        if self.watch is None:
            raise RefusedError("there is nothing to report: clear the task watch, with its downstream tasks")
        run = context["dag_run"]
        report = UpkeepReport(
            run_name=f"{run.dag_id} {run.run_id}",
            dry_run=self.only_counts,
            expiry=None if self.expiry is None else ExpiryReport(**self.expiry),
            reenqueued=None if self.reenqueued is None else EventRemedyReport(**self.reenqueued),
            watch=TypeAdapter(BrokerWatch).validate_python(self.watch),
            generated_at_ms=system_clock(),
        )
        where = publish(report.write(Settings().reports), context)
        self.log.info("%s findings; report %s", len(report.watch.findings), where["html"])
        return {"trouble": "; ".join(f"{each.subject}: {each.words}" for each in report.watch.urgent), **where}
