"""Adds buttons to the pages of tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from airflow.sdk import BaseOperatorLink

from queuekeeper.airflow.run_index import PREFIX, base_path
from queuekeeper.report.files import ReportKind

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class ReportLink(BaseOperatorLink):
    """Links a task to the report of its run.

    :param kind: kind of the reports that the task writes.
    """

    def __init__(self, kind: ReportKind) -> None:
        self.kind = kind

    def __reduce__(self) -> tuple[type[ReportLink], tuple[ReportKind]]:
        """Copy the link with its kind, which Airflow's own class would omit."""
        return ReportLink, (self.kind,)

    @property
    def name(self) -> str:
        """Text on the button."""
        return self.kind.words

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the address of the run's report in Airflow's own UI."""
        query = urlencode({"dag_id": ti_key.dag_id, "run_id": ti_key.run_id})
        return f"{base_path()}{PREFIX}/run?{query}"
