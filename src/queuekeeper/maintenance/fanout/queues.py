"""Finds fan-out queues and goes over them at a pace."""

from __future__ import annotations

from collections.abc import Callable

from queuekeeper import lua
from queuekeeper.clock import Clock
from queuekeeper.errors import QueuekeeperError, RefusedError, ScriptError, ServerUnavailable, UsageError
from queuekeeper.fanout.operations import FanoutOperations, Step
from queuekeeper.fanout.queue import FanoutQueues
from queuekeeper.jobs.shares import scan_names
from queuekeeper.keyspace import fanout_queue_of, fanout_scan_pattern
from queuekeeper.redis_client import RedisClient
from queuekeeper.redis_names import KEYS_PER_PAGE

QUEUE_ERRORS = (ScriptError, UsageError, RefusedError, ValueError)
"""Errors that a single queue may cause."""


class PacedFanoutQueues(FanoutQueues):
    """Fan-out queues that keep to a pace.

    :param pace: called with each call's work before the next call is sent; may wait.
    :param size: returns the size of the next call, given the usual size.
    """

    def __init__(
        self,
        client: RedisClient,
        prefix: str = "",
        *,
        clock: Clock | None = None,
        pace: Callable[[int], None],
        size: Callable[[int], int] = lambda full: full,
        counts_only: bool = False,
    ) -> None:
        super().__init__(client, prefix, clock=clock, counts_only=counts_only)
        self.operations = FanoutOperations(prefix=prefix, clock=clock, counts_only=counts_only, size=size)
        self.counts_only = counts_only
        self._pace = pace
        self._passed = 0

    def answer(self, step: Step) -> lua.Replies | bool:
        """Send the calls of a step when it is time to."""
        passed, self._passed = self._passed, 0
        self._pace(passed)
        replies = super().answer(step)
        if not isinstance(replies, bool):
            self._passed = sum(1 + (len(reply) if isinstance(reply, list) else 0) for reply in replies)
        return replies


def find_queues(
    client: RedisClient,
    *,
    prefix: str,
    pace: Callable[[int], None] = lambda _: None,
    size: Callable[[int], int] = lambda full: full,
) -> list[str]:
    """Return the names of all fan-out queues in order, by a SCAN of all keys.

    :param pace: called with each call's work before the next call is sent; may wait.
    :param size: returns how many keys the next call looks at, given the usual number.
    """
    found: set[str] = set()
    pages = scan_names(client, fanout_scan_pattern(prefix), of_type="hash", count=lambda: size(KEYS_PER_PAGE))
    for keys in pages:
        pace(1 + len(keys))
        found.update(fanout_queue_of(key, prefix=prefix) for key in keys)
    return sorted(found)


def note_broken(queue: str, error: Exception, say: Callable[[str], None]) -> None:
    """Print why a queue cannot be read or repaired; such a queue does not stop the others.

    :raises ServerUnavailable: when the error was not caused by the queue.
    """
    if isinstance(error, ServerUnavailable):
        raise error
    words = str(error) if isinstance(error, QueuekeeperError) else "its fields cannot be read"
    say(f"queue {queue!r} cannot be repaired: {words}")
