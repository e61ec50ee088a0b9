"""Expectation on two stores that hold the same session."""

from __future__ import annotations

from typing import Literal

from great_expectations.compatibility import pydantic

from queuekeeper.quality.expectations.rule import QueueExpectation


class ExpectStoresToAgree(QueueExpectation):
    """A session has the same value in both stores; a value that only one of them has is a difference.

    ``column_list`` names the two columns.
    """

    column_list: list[str] = pydantic.Field(min_items=2, max_items=2)
    # An agreement on having nothing is one; a lack on one side must be looked at.
    ignore_row_if: Literal["all_values_are_missing", "any_value_is_missing", "never"] = "never"

    def rule(self) -> str:
        """Return the rule."""
        source, target = self.column_list
        return f"{source} IS NOT DISTINCT FROM {target}"
