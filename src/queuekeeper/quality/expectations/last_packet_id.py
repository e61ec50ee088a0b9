"""Expectation on the packet id that a session gave out last."""

from __future__ import annotations

from typing import ClassVar

from queuekeeper.quality.expectations.rule import QueueExpectation, reads


class ExpectLastPacketIdToCoverQueue(QueueExpectation):
    """Where messages wait, the packet id given out last is on record and is not behind the newest message's."""

    faults: ClassVar[tuple[str, ...]] = ("messages",)
    column_list: list[str] = reads("messages", "last_packet_id", "counter_missing", "counter_invalid", "counter_behind")

    def rule(self) -> str:
        """Return the rule."""
        return "counter_missing = 0 AND counter_invalid = 0 AND counter_behind = 0"
