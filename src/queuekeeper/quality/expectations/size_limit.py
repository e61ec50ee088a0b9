"""Expectation on the length of a queue."""

from __future__ import annotations

from typing import ClassVar

from great_expectations.compatibility import pydantic

from queuekeeper.keyspace import MAX_PACKET_ID
from queuekeeper.quality.expectations.rule import QueueExpectation, reads


class ExpectQueueToKeepWithinLimit(QueueExpectation):
    """A queue holds no more live messages than it may.

    Without ``limit`` it is the limit that the profile was made with; ``limit`` sets a lower one, to warn early.
    """

    faults: ClassVar[tuple[str, ...]] = ("live",)
    success_keys: ClassVar[tuple[str, ...]] = ("mostly", "tolerated_share", "limit")

    column_list: list[str] = reads("messages", "live", "over_limit")
    limit: int | None = pydantic.Field(default=None, ge=1, le=MAX_PACKET_ID)

    def rule(self) -> str:
        """Return the rule."""
        return self.few("over_limit") if self.limit is None else f"live <= {self.limit}"
