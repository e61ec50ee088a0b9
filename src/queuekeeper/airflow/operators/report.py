"""Writes the report of a migration as files and records their places."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from queuekeeper.airflow.links import ReportLink
from queuekeeper.airflow.operators.asked import argument
from queuekeeper.airflow.operators.stores import StoresOperator
from queuekeeper.airflow.run_index import publish
from queuekeeper.airflow.settings import task_settings
from queuekeeper.clock import system_clock
from queuekeeper.jobs.store import Runs
from queuekeeper.migration import kinds
from queuekeeper.report.files import ReportKind

if TYPE_CHECKING:
    from airflow.sdk import Context


class ReportMigrationOperator(StoresOperator):
    """Write the report of a migration, balanced or not, as HTML and JSON.

    :param plan_id: id of the plan (templated).
    :param postgres_conn_id: connection of the control database (templated).
    :param redis_conn_id: connection of the target, whose use of memory is read (templated).
    """

    plan_id: str = argument()
    operator_extra_links = (ReportLink(ReportKind.MIGRATION),)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the verdict and the places of the files."""
        with (
            self.postgres_hook.connect() as connection,
            self.redis_hook.connect() as client,
        ):
            stores = SimpleNamespace(connection=connection, client=client)
            told = kinds.report(stores, Runs(connection).load(self.plan_id), now_ms=system_clock())
            files = told.write(task_settings().reports)
        self.log.info("Migration %s: %s; report %s", self.plan_id, told.verdict, files.html)
        return {**told.facts, **publish(files, context)}
