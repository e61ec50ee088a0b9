"""Expectations on references and payloads, which belong to each other one to one."""

from __future__ import annotations

from typing import ClassVar

from queuekeeper.quality.expectations.rule import QueueExpectation, reads


class ExpectReferencesToHavePayloads(QueueExpectation):
    """Each reference of a queue names a payload that is there."""

    faults: ClassVar[tuple[str, ...]] = ("dead",)
    column_list: list[str] = reads("messages", "live", "dead")

    def rule(self) -> str:
        """Return the rule."""
        return self.few("dead")


class ExpectDeadReferencesToLeaveRoom(QueueExpectation):
    """Dead references do not fill a queue to nine tenths of its limit: a trim would then remove live messages."""

    faults: ClassVar[tuple[str, ...]] = ("dead",)
    column_list: list[str] = reads("messages", "live", "dead", "dead_crowding")

    def rule(self) -> str:
        """Return the rule."""
        return "dead_crowding = 0"


class ExpectPayloadsToBeReferenced(QueueExpectation):
    """Each payload of a client is named by a reference: nobody would ever send the others."""

    faults: ClassVar[tuple[str, ...]] = ("orphans",)
    column_list: list[str] = reads("messages", "orphans")

    def rule(self) -> str:
        """Return the rule."""
        return self.few("orphans")
