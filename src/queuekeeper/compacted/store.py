"""The contract of compacted queues, as operations.

A blocking object offers each as a method that returns the result, an asyncio object as a coroutine method.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from queuekeeper.compacted.model import (
    FETCH_BYTES,
    PRODUCER_MS,
    AckReport,
    Append,
    AppendReport,
    CollectReport,
    CompactedMessage,
    DropReport,
    DuePage,
    DueRow,
    Fence,
    Fetched,
    Heartbeat,
    Position,
    Purge,
    PurgeReport,
    QueueView,
    Refill,
    RepairReport,
    RestoreReport,
    Retention,
    RewindReport,
    Subscription,
    VerifyReport,
)
from queuekeeper.operation import Operation


class QueueOperations(Protocol):
    """What can be done to a queue; it belongs to one client, and is made by the first append or subscription.

    Of what producers append at once, each append has its place in one order. Whoever consumes has a fence, and one
    that is old is refused (:class:`StaleEpoch`).
    """

    def append(
        self, client_id: str, appends: Sequence[Append], *, producer: str | None = None, number: int | None = None
    ) -> Operation[AppendReport]:
        """Store values, each in the place of its key's value before, at the end of the order.

        Up to 200 entries and 1 MB are stored as a whole or not at all. A larger append is cut into such parts; when
        one fails, those before it are stored.

        :param producer: who numbers the appends. An append whose answer was lost is repeated with the same number
            and entries, which stores nothing twice. A producer's numbers grow, and it has one append per queue in
            flight.
        :param number: of the append, 0 or more.
        :raises QueueFull: when the queue has reached its limits and rejects what is over them.
        :raises SequenceConflict: when a key's value has not the number that was expected.
        :raises NumberReused: when the producer's last append had the same number and other entries.
        :raises StoreFull: when Redis has no memory left.
        """

    def subscribe(
        self,
        client_id: str,
        *,
        session: str,
        takeover: bool = True,
        lease_ms: int = 60_000,
        start: Position | None = None,
    ) -> Operation[Subscription]:
        """Become the queue's only consumer; the one before is fenced off.

        :param session: name of the consumer, for others to see.
        :param takeover: also while another session holds its lease.
        :param lease_ms: how long the queue is held without a further call.
        :param start: none for where the consumer before ended.
        :raises QueueBusy: when another session holds its lease, without ``takeover``.
        """

    def fetch(
        self,
        client_id: str,
        *,
        fence: Fence,
        limit: int = 5,
        window: int = 5,
        max_bytes: int = FETCH_BYTES,
        refill: Refill = Refill.ON_EMPTY,
        redeliver: bool = False,
        acks: Sequence[int] = (),
    ) -> Operation[Fetched]:
        """Acknowledge messages, then return the next ones in order.

        After a subscription, messages come first that are in flight from before, flagged; those that were overwritten
        meanwhile are left out.

        :param limit: most messages, at most ``window``.
        :param window: most messages in flight.
        :param max_bytes: of keys and values; one message is returned whatever its size.
        :param redeliver: begin again with what is in flight, all of it; to be said in one call only.
        :param acks: numbers to acknowledge before, as :meth:`ack` does.
        """

    def ack(
        self, client_id: str, *, fence: Fence, sequences: Sequence[int], up_to: bool = False
    ) -> Operation[AckReport]:
        """Acknowledge messages in any order; repeated and unknown numbers change nothing.

        :param up_to: acknowledge everything in flight up to the greatest of the numbers.
        """

    def heartbeat(self, client_id: str, *, fence: Fence, lease_ms: int = 60_000) -> Operation[Heartbeat]:
        """Hold the queue for longer, and learn what waits."""

    def release(self, client_id: str, *, fence: Fence) -> Operation[bool]:
        """Give the queue up, so that another session may subscribe at once; what is in flight stays so.

        :returns: whether the fence still held it.
        """

    def rewind(self, client_id: str, *, to: Position, fence: Fence | None = None) -> Operation[RewindReport]:
        """Move the cursor, back or forward; then nothing is in flight, and the consumer's fence is old.

        :param fence: of the consumer that asks; none for an operator.
        :raises UnknownQueue: when there is no such queue.
        """

    def skip(self, client_id: str, *, sequence: int) -> Operation[AckReport]:
        """Acknowledge a message that holds the consumer up, as an operator.

        :raises UnknownQueue: when there is no such queue.
        """

    def get(self, client_id: str, *, key: bytes) -> Operation[CompactedMessage | None]:
        """Return a key's value, or its tombstone, without consuming; none when the key has neither."""

    def peek(
        self, client_id: str, *, after_sequence: int = 0, limit: int = 100
    ) -> Operation[tuple[CompactedMessage, ...]]:
        """Return messages in order without consuming."""

    def inspect(self, client_id: str) -> Operation[QueueView]:
        """Say where a queue stands, changing nothing."""

    def configure(self, client_id: str, *, retention: Retention | None) -> Operation[None]:
        """Give a queue a retention of its own; none for the collector's. The queue is made if it is not there."""

    def purge(self, client_id: str, *, what: Purge, dry_run: bool = False) -> Operation[PurgeReport]:
        """Remove messages in bounded steps; those appended meanwhile stay."""

    def drop(self, client_id: str, *, dry_run: bool = False, incarnation: int | None = None) -> Operation[DropReport]:
        """Remove a queue with its numbers and cursor; whoever appends then makes another.

        :param incarnation: the one that may go, as a dry run or :meth:`inspect` has told; none for any.
        :raises StaleEpoch: when the queue is another one, or gone.
        """

    def verify(self, client_id: str) -> Operation[VerifyReport]:
        """Check in bounded steps that a queue's keys agree; what changes meanwhile is looked at again."""

    def repair(self, client_id: str, *, dry_run: bool = True) -> Operation[RepairReport]:
        """Drop what :meth:`verify` finds to lead nowhere, and put numbers right."""

    def find_due(
        self,
        client_id: str,
        *,
        retention: Retention,
        override: bool = False,
        after_sequence: int = 0,
        limit: int = 100,
        with_values: bool = False,
        now_ms: int | None = None,
    ) -> Operation[DuePage]:
        """Return a page of what retention lets go, oldest first, changing nothing.

        :param retention: for a queue that has none of its own.
        :param override: use it also for a queue that has.
        :param after_sequence: from the page before, for who collects nothing between pages.
        :param limit: most rows looked at, at most 500.
        :param with_values: also return values as they are stored, for :meth:`restore`.
        :param now_ms: none for the server's time.
        """

    def collect(
        self,
        client_id: str,
        *,
        retention: Retention,
        rows: Sequence[DueRow],
        override: bool = False,
        producer_ms: int = PRODUCER_MS,
        now_ms: int | None = None,
    ) -> Operation[CollectReport]:
        """Remove rows that :meth:`find_due` returned, those only that are due still and have no newer value.

        :param rows: may be none.
        :param producer_ms: how long a producer that appends nothing can repeat its last append.
        """

    def restore(
        self, client_id: str, *, rows: Sequence[DueRow], incarnation: int | None = None
    ) -> Operation[RestoreReport]:
        """Bring back rows that were collected, those only whose key has no value now.

        :param rows: with their values.
        :param incarnation: of the queue that they are of; none when it is not known.
        :raises UnknownQueue: when there is no such queue.
        :raises StaleEpoch: when the queue was dropped and made anew since.
        """
