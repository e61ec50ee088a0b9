"""``expect_queue_to_keep_rule``: a condition in SQL that each row of a profile keeps, on PostgreSQL and on Spark alike.

Importing this module makes the expectation known to Great Expectations, and takes as long as importing that.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

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
    """Whether a row keeps a rule; a row that lacks the values to tell counts as keeping it."""

    condition_metric_name = "queue.keeps_rule"
    condition_domain_keys = ("batch_id", "table", "column_list", "row_condition", "condition_parser", "ignore_row_if")
    condition_value_keys = ("rule",)

    @multicolumn_condition_partial(engine=SqlAlchemyExecutionEngine)  # type: ignore[untyped-decorator]
    def _postgres(cls, _columns: Any, *, rule: str, **_: Any) -> Any:  # noqa: N805 - called with the class
        return sqlalchemy.literal_column(f"coalesce(({rule}), true)")

    @multicolumn_condition_partial(engine=SparkDFExecutionEngine)  # type: ignore[untyped-decorator]
    def _spark(cls, _columns: Any, *, rule: str, **_: Any) -> Any:  # noqa: N805 - called with the class
        return F.expr(f"coalesce(({rule}), true)")


class ExpectQueueToKeepRule(MulticolumnMapExpectation):
    """Each queue, a row of a profile, keeps a rule.

    ``mostly`` is the share of the queues that must keep it.

    :ivar rule: condition over the columns, in SQL that PostgreSQL and Spark both read; null counts as kept.
    :ivar column_list: columns that the rule reads, two or more; examples show them.
    """

    map_metric: ClassVar[str] = "queue.keeps_rule"
    success_keys: ClassVar[tuple[str, ...]] = ("mostly", "rule")

    rule: str = pydantic.Field(min_length=1)
    column_list: list[str] = pydantic.Field(min_items=2)
    # The rule itself says what a missing value means.
    ignore_row_if: Literal["all_values_are_missing", "any_value_is_missing", "never"] = "never"
