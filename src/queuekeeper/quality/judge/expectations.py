"""Defines ``expect_queue_to_keep_rule``: an SQL condition that each row of a profile meets, on PostgreSQL and Spark.

Importing this module registers the expectation with Great Expectations, which is imported too; that takes seconds.
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
    """Tells whether a row keeps a rule; a row without the values that the rule needs counts as keeping it."""

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
    """Expects that each row of a profile, which is a queue, keeps a rule.

    ``mostly`` is the share of the queues that must keep it.

    :ivar rule: condition over the columns, in SQL that both PostgreSQL and Spark understand; null counts as kept.
    :ivar column_list: two or more columns that the rule reads; examples show them.
    """

    map_metric: ClassVar[str] = "queue.keeps_rule"
    success_keys: ClassVar[tuple[str, ...]] = ("mostly", "rule")

    rule: str = pydantic.Field(min_length=1)
    column_list: list[str] = pydantic.Field(min_items=2)
    # The rule itself decides what a missing value means.
    ignore_row_if: Literal["all_values_are_missing", "any_value_is_missing", "never"] = "never"
