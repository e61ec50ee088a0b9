"""Ends a run as its report says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from queuekeeper.airflow.operators.asked import AsksOperator, argument
from queuekeeper.errors import CheckFailed

if TYPE_CHECKING:
    from airflow.sdk import Context


class CheckReportOperator(AsksOperator):
    """Fail the run if its report names trouble that must not wait; the task that writes the report does not fail.

    :param report: return value of the report's task: ``trouble``, a sentence, and ``html`` (templated).
    """

    report: Mapping[str, Any] | None = argument()

    def execute(self, context: Context) -> None:
        """Fail with the trouble that the report names, if it names any."""
        if self.report is None:
            raise AirflowSkipException("there was nothing to report")
        if self.report["trouble"]:
            raise CheckFailed(f"{self.report['trouble']}; report: {self.report['html']}")
