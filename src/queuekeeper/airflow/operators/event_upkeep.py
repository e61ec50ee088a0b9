"""Upkeep of the event broker as tasks; what is done is in ``queuekeeper.maintenance.events.upkeep``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from queuekeeper.airflow.forms import reject_unknown_of
from queuekeeper.airflow.links import ReportLink
from queuekeeper.airflow.operators.asked import AskedOperator
from queuekeeper.airflow.operators.jobs import DatabaseOperator, publish
from queuekeeper.clock import system_clock
from queuekeeper.config import Settings
from queuekeeper.errors import RefusedError
from queuekeeper.maintenance.events.remedies import (
    EventRemedyReport,
    mend_events,
    note_upkeep,
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


class MendEventsOperator(DatabaseOperator):
    """Remove subscriptions whose time is up, or have events dispatched that were stored and never dispatched.

    As the first task of its DAG it also refuses parameters that the form does not have.

    :param remedy: ``expire_subscriptions`` or ``reenqueue_events``.
    """

    def __init__(self, *, remedy: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.remedy = remedy

    def execute(self, context: Context) -> dict[str, Any]:
        """Return how many were found, and how many of them were changed."""
        reject_unknown_of(context)
        report: ExpiryReport | EventRemedyReport
        with self.connect() as connection:
            if self.remedy == "expire_subscriptions":
                report = expire_subscriptions(connection, count_only=self.only_plans)
                done = report.removed
            else:
                report = mend_events(connection, remedy=self.remedy, count_only=self.only_plans)
                done = report.done
            note_upkeep(connection, subject=self.remedy, done=done)
        self.log.info("%s: %s", self.remedy, report)
        return asdict(report)


class WatchBrokerOperator(AskedOperator, DatabaseOperator):
    """Look at the heartbeat of polls, conditions, wraparound ages and bloat; nothing is written."""

    template_fields: Sequence[str] = (*AskedOperator.template_fields, *DatabaseOperator.template_fields)
    models = (UpkeepLimits,)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return how the broker stands, and what needs a look."""
        limits = self.asked(UpkeepLimits)
        with self.connect() as connection:
            watch = watch_broker(connection, limits=limits)
        for finding in watch.findings:
            self.log.warning("%s: %s", finding.subject, finding.words)
        return asdict(watch)


class ReportUpkeepOperator(DatabaseOperator):
    """Write what was found and done as HTML and JSON.

    :param expiry: what :class:`MendEventsOperator` returned of subscriptions; none when it failed (templated).
    :param reenqueued: what :class:`MendEventsOperator` returned of events; none when it failed (templated).
    :param watch: what :class:`WatchBrokerOperator` returned (templated).
    """

    template_fields: Sequence[str] = (*DatabaseOperator.template_fields, "expiry", "reenqueued", "watch")
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
            dry_run=self.only_plans,
            expiry=None if self.expiry is None else ExpiryReport(**self.expiry),
            reenqueued=None if self.reenqueued is None else EventRemedyReport(**self.reenqueued),
            watch=TypeAdapter(BrokerWatch).validate_python(self.watch),
            generated_at_ms=system_clock(),
        )
        where = publish(report.write(Settings().reports), context)
        self.log.info("%s findings; report %s", len(report.watch.findings), where["html"])
        return {"trouble": "; ".join(f"{each.subject}: {each.words}" for each in report.watch.urgent), **where}
