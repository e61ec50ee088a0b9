"""What our expectations share: a rule over the columns of a row, in words that PostgreSQL and Spark take alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import sqlalchemy
from great_expectations.compatibility import pydantic
from great_expectations.execution_engine.sparkdf_execution_engine import SparkDFExecutionEngine
from great_expectations.execution_engine.sqlalchemy_execution_engine import SqlAlchemyExecutionEngine
from great_expectations.expectations.expectation import MulticolumnMapExpectation
from great_expectations.expectations.metrics.map_metric_provider.multicolumn_condition_partial import (
    multicolumn_condition_partial,
)
from great_expectations.expectations.metrics.map_metric_provider.multicolumn_map_metric_provider import (
    MulticolumnMapMetricProvider,
)
from pyspark.sql import functions as F


class QueueKeepsRule(MulticolumnMapMetricProvider):
    """Whether a row keeps a rule; what the rule cannot tell, for want of a value, is not held against the row."""

    condition_metric_name = "queue.keeps_rule"
    condition_domain_keys = ("batch_id", "table", "column_list", "row_condition", "condition_parser", "ignore_row_if")
    condition_value_keys = ("rule",)

    @multicolumn_condition_partial(engine=SqlAlchemyExecutionEngine)  # type: ignore[untyped-decorator]
    def _postgres(cls, _columns: Any, *, rule: str, **_: Any) -> Any:  # noqa: N805 - called with the class
        return sqlalchemy.literal_column(f"coalesce({rule}, true)")

    @multicolumn_condition_partial(engine=SparkDFExecutionEngine)  # type: ignore[untyped-decorator]
    def _spark(cls, _columns: Any, *, rule: str, **_: Any) -> Any:  # noqa: N805 - called with the class
        return F.expr(f"coalesce({rule}, true)")


def reads(*columns: str) -> Any:
    """Return the columns that an expectation's rule reads, as the value that its field has."""
    return pydantic.Field(default=list(columns))


class QueueExpectation(MulticolumnMapExpectation, ABC):
    """Each queue, a row of a profile, keeps a rule.

    ``column_list`` is what the rule reads and what an example shows. ``mostly`` is the share of the queues that must
    keep the rule; ``tolerated_share`` the share of a queue's messages that may break it before the queue counts.

    :cvar faults: columns that say how badly a queue breaks the rule: the more, the worse.
    """

    faults: ClassVar[tuple[str, ...]] = ()
    map_metric: ClassVar[str] = "queue.keeps_rule"
    success_keys: ClassVar[tuple[str, ...]] = ("mostly", "tolerated_share")

    tolerated_share: float = pydantic.Field(default=0, ge=0, le=1)

    @abstractmethod
    def rule(self) -> str:
        """Return the rule as a condition in SQL."""

    def few(self, faults: str) -> str:
        """Return the rule that not too many of a queue's messages have a fault.

        :param faults: column that counts them; null where nobody looked.
        """
        return f"{faults} <= {self.tolerated_share!r} * messages" if self.tolerated_share else f"{faults} = 0"

    def _get_success_kwargs(self) -> dict[str, Any]:
        """Hand the rule to the metric, beside what the suite's file says."""
        return {**super()._get_success_kwargs(), "rule": f"({self.rule()})"}
