"""Buttons on the pages of tasks; what they lead to is in the plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from airflow.sdk import BaseOperatorLink

from queuekeeper.airflow.run_index import PREFIX, base_path

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class ReportLink(BaseOperatorLink):
    """Leads from a task to the report of its run; subclasses name it."""

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the address of the run's report in Airflow's own UI."""
        query = urlencode({"dag_id": ti_key.dag_id, "run_id": ti_key.run_id})
        return f"{base_path()}{PREFIX}/run?{query}"


class MigrationReportLink(ReportLink):
    """The report of a migration."""

    name = "Migration report"


class QualityReportLink(ReportLink):
    """The report of a judgement of quality."""

    name = "Quality report"


class PartitionReportLink(ReportLink):
    """The report of a maintenance of partitions."""

    name = "Partition report"


class EventReportLink(ReportLink):
    """The report of an upkeep of the event broker."""

    name = "Event report"


class CollectionReportLink(ReportLink):
    """The report of a collection of compacted queues."""

    name = "Collection report"


class FanoutReportLink(ReportLink):
    """The report of a repair of fan-out queues."""

    name = "Fan-out report"
