"""Expectation on the packet ids of a queue, which wrap at 65,535."""

from __future__ import annotations

from typing import ClassVar

from queuekeeper.quality.expectations.rule import QueueExpectation, reads


class ExpectPacketIdsToStepWithSerials(QueueExpectation):
    """From message to message the packet id grows as the serial does, modulo 65,535.

    Steps are counted message by message. A queue with more messages than there are packet ids has given one out twice,
    whatever its steps.
    """

    faults: ClassVar[tuple[str, ...]] = ("step_errors",)
    column_list: list[str] = reads("messages", "step_errors")

    def rule(self) -> str:
        """Return the rule."""
        return f"{self.few('step_errors')} AND messages <= 65535"
