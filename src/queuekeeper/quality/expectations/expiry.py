"""Expectations on how long payloads live."""

from __future__ import annotations

from typing import ClassVar

from queuekeeper.quality.expectations.rule import QueueExpectation, reads


class ExpectPayloadsToExpire(QueueExpectation):
    """Each payload of a queue has a time to live."""

    faults: ClassVar[tuple[str, ...]] = ("without_ttl",)
    column_list: list[str] = reads("messages", "without_ttl")

    def rule(self) -> str:
        """Return the rule."""
        return self.few("without_ttl")


class ExpectTtlToEndWithExpiry(QueueExpectation):
    """No payload lives longer than its message may, counted from the message's own time."""

    faults: ClassVar[tuple[str, ...]] = ("ttl_too_long",)
    column_list: list[str] = reads("messages", "ttl_too_long", "latest_expires_at_ms")

    def rule(self) -> str:
        """Return the rule."""
        return self.few("ttl_too_long")
