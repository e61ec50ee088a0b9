"""Checks the state of the event broker as a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queuekeeper.airflow.operators.asked import AskedOperator
from queuekeeper.airflow.operators.stores import DatabaseOperator
from queuekeeper.airflow.run_index import forms_url
from queuekeeper.maintenance.events.watch import UpkeepLimits, watch_broker

if TYPE_CHECKING:
    from airflow.sdk import Context


class WatchBrokerOperator(AskedOperator, DatabaseOperator):
    """Check the heartbeat of polls, conditions, wraparound ages and bloat; nothing is written."""

    models = (UpkeepLimits,)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the state of the broker, and what needs attention."""
        limits = self.read(UpkeepLimits)
        with self.connect() as connection:
            watch = watch_broker(connection, limits=limits)
        for finding in watch.findings:
            self.log.warning("%s: %s", finding.subject, finding.words)
        return watch.facts(form_values={"postgres_conn_id": self.postgres_conn_id}, forms_url=forms_url())
