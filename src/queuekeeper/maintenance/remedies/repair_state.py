"""Works out the state of packed sessions again, so that each message is delivered and none is overwritten."""

from __future__ import annotations

from collections.abc import Sequence

from queuekeeper.maintenance.remedies.job import Remedy
from queuekeeper.maintenance.remedies.model import Effect, Queue
from queuekeeper.maintenance.remedies.packed import StateOfPacked


class RepairState(Remedy):
    """Work out the state of a packed session from its messages."""

    kind = "repair_state"
    packed = StateOfPacked
    writes_by = frozenset()
    undoes = False

    def look(self, queue: Queue, surveyed: Sequence[int]) -> list[Effect]:
        """Return nothing: a session in TBMQ's layout has no such state."""
        self.sessions.state(queue)
        return []

    def change(self, queue: Queue, effects: Sequence[Effect]) -> list[bool]:
        """Make nothing, as :meth:`look` has found nothing."""
        return [False for _ in effects]
