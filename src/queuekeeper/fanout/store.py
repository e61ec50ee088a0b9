"""The contract of a store of fan-out queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from queuekeeper.fanout.model import (
    DEFAULT_MAX_STALLS,
    DEFAULT_PAGE,
    AckReport,
    Claimed,
    ConsumerOptions,
    DeadPage,
    ExpireReport,
    ExtendReport,
    FanoutMessage,
    NackReport,
    NewMessage,
    PublishReport,
    PurgeReport,
    QueueOptions,
    QueueView,
    ReapReport,
    Registration,
    RepairReport,
    RetryReport,
    ReturnReport,
    Start,
    UnregisterReport,
    VerifyReport,
)
from queuekeeper.operation import Operation

DEFAULT_LEASE_MS = 30_000
DEFAULT_FINDINGS = 100


class FanoutStore(Protocol):
    """What fan-out queues can do, as operations.

    A blocking object offers each as a method that returns the result, an asyncio object as a coroutine method. Each
    raises ``InvalidName`` for a name that cannot be one, and ``UnknownQueue`` or ``UnknownConsumer`` where there is
    none of that name.
    """

    def register(
        self, queue: str, *, consumer: str, options: ConsumerOptions | None = None, start: Start = Start.NEW
    ) -> Operation[Registration]:
        """Register a consumer; it gets every message that is published from then on.

        One that is registered already keeps its options and what waits for it; :meth:`configure` changes the former.
        Repeat the call when it was interrupted: nothing can be claimed until everything is adopted.

        :param options: none for the defaults.
        :param start: what it gets of earlier messages; only a consumer that is new gets any.
        :raises ConsumerLeaving: while one of this name is being removed.
        """

    def adopt(self, queue: str, *, consumer: str) -> Operation[int]:
        """End a registration that was interrupted before its consumer had all that it was to get of before.

        Until then it claims nothing. Repeating changes nothing, also while the one who registered it is still at it.

        :returns: messages that wait for it now.
        """

    def configure(
        self, queue: str, *, consumer: str | None = None, options: ConsumerOptions | QueueOptions
    ) -> Operation[None]:
        """Give a consumer, or the queue itself, other options.

        :raises UsageError: when mode or lanes are to change while messages wait.
        """

    def touch(self, queue: str, *, consumer: str) -> Operation[int]:
        """Note that a consumer is alive, so that it is not removed as idle; a claim notes it too.

        :returns: the instant that was noted, in milliseconds.
        """

    def unregister(
        self, queue: str, *, consumer: str, force: bool = False, begun: bool = False, dry_run: bool = False
    ) -> Operation[UnregisterReport]:
        """Remove a consumer and all that waits for it, its dead letters too, in bounded steps.

        It gets nothing more from the first step on. Repeat the call when it was interrupted.

        :param force: even while somebody works on messages of it; their acks will be refused.
        :param begun: only to finish a removal; a consumer that was registered anew since counts as unknown.
        :raises HasLeases: when somebody does, and it is not forced.
        """

    def unregister_idle(
        self, queue: str, *, idle_expiry_ms: int | None = None, dry_run: bool = False
    ) -> Operation[list[UnregisterReport]]:
        """Remove the consumers that were not seen for as long as their options allow, and what is left of others.

        :param idle_expiry_ms: holds for consumers whose options have none; none lets these stay.
        """

    def publish(
        self, queue: str, messages: Sequence[NewMessage], *, to: str | None = None
    ) -> Operation[list[PublishReport]]:
        """Publish messages, in order, each to all consumers at once or to nobody.

        An exception is raised when not a single one was published; else the reports of those that were not hold it.
        After the first that fails the others are not tried, so that order is kept.

        :param to: a consumer, for it alone.
        :returns: a report for each message, in order.
        :raises QueueFull: naming the consumer that has no room, or when too many messages are held.
        :raises NoConsumer: when nobody is registered, and the queue holds nothing for later.
        :raises PayloadTooLarge: nothing was published then.
        :raises ServerUnavailable: where a reply is lost, nobody knows whether the message was published. With a
            deduplication id it can be repeated, and is one message.
        """

    def claim(
        self,
        queue: str,
        *,
        consumer: str,
        count: int = 1,
        lease_ms: int = DEFAULT_LEASE_MS,
        max_stalls: int = DEFAULT_MAX_STALLS,
    ) -> Operation[Claimed]:
        """Take the next messages under a lease; an attempt is counted.

        Leases of others that have run out end here, and messages whose retry is due are next in line.

        :param count: at most; fewer come when they have more than a megabyte together, and ``more`` says so.
        :param max_stalls: a message whose lease has run out more often becomes a dead letter.
        """

    def ack(self, queue: str, *, consumer: str, token: str, ids: Sequence[int]) -> Operation[AckReport]:
        """End work on messages; a message that nobody owes an ack any more is removed."""

    def nack(
        self,
        queue: str,
        *,
        consumer: str,
        token: str,
        message_id: int,
        delay_ms: int = 0,
        max_attempts: int | None = None,
        reason: str = "",
    ) -> Operation[NackReport]:
        """Report a failure: the message is retried, or becomes a dead letter.

        :param delay_ms: until the retry; other messages go first meanwhile, unless the consumer is ordered.
        :param max_attempts: it becomes a dead letter when it has had so many; none for never.
        """

    def extend(
        self, queue: str, *, consumer: str, token: str, ids: Sequence[int], lease_ms: int = DEFAULT_LEASE_MS
    ) -> Operation[ExtendReport]:
        """Keep messages for longer, from now on."""

    def return_claimed(self, queue: str, *, consumer: str, token: str, ids: Sequence[int]) -> Operation[ReturnReport]:
        """Give messages back that were not begun; they are next in line, and the attempt does not count."""

    def reap(self, queue: str, *, consumer: str, max_stalls: int = DEFAULT_MAX_STALLS) -> Operation[ReapReport]:
        """Do for a consumer that nobody claims for what claims do bit by bit, in bounded steps.

        Leases that have run out end, retries that are due get in line, and ids go whose messages have expired.
        """

    def list_dead(
        self, queue: str, *, consumer: str, offset: int = 0, limit: int = DEFAULT_PAGE
    ) -> Operation[DeadPage]:
        """Return a page of a consumer's dead letters, oldest first."""

    def retry_dead(self, queue: str, *, consumer: str, ids: Sequence[int] | None = None) -> Operation[RetryReport]:
        """Put dead letters back in line, with their counts at zero: behind the others, or ahead if it is ordered.

        :param ids: none for all of them.
        """

    def purge_dead(
        self, queue: str, *, consumer: str, ids: Sequence[int] | None = None, dry_run: bool = False
    ) -> Operation[PurgeReport]:
        """Give dead letters up for good.

        :param ids: none for all of them.
        """

    def expire(self, queue: str) -> Operation[ExpireReport]:
        """Remove messages whose life and dead letters whose retention is over, in bounded steps.

        Consumers pass over what is left in their lists.
        """

    def purge(self, queue: str, *, consumer: str | None = None, dry_run: bool = False) -> Operation[PurgeReport]:
        """Remove what waits, in bounded steps; what somebody works on, and dead letters, stay.

        :param consumer: none for all of them, and for what is held.
        """

    def pause(self, queue: str, *, consumer: str | None = None) -> Operation[bool]:
        """Let nothing be claimed, by one consumer or by any; what is claimed can be finished.

        :returns: whether it was not paused before.
        """

    def resume(self, queue: str, *, consumer: str | None = None) -> Operation[bool]:
        """Let messages be claimed again.

        :returns: whether it was paused before.
        """

    def peek(
        self, queue: str, *, consumer: str, offset: int = 0, limit: int = DEFAULT_PAGE, lane: int = 0
    ) -> Operation[tuple[FanoutMessage, ...]]:
        """Return messages that wait for a consumer, next in line first, changing nothing.

        :param limit: at most; fewer come when they have more than a megabyte together.
        :param lane: of an ordered consumer with several, from 0.
        """

    def size(self, queue: str, *, consumer: str | None = None) -> Operation[int]:
        """Return how many messages are stored, or how many wait for a consumer or are worked on for it."""

    def inspect(self, queue: str) -> Operation[QueueView]:
        """Describe a queue and its consumers, changing nothing; a queue that does not exist, too."""

    def verify(self, queue: str, *, findings: int = DEFAULT_FINDINGS) -> Operation[VerifyReport]:
        """Look through all of a queue for what does not fit together, in bounded steps, changing nothing.

        Whatever looks wrong while others go on is looked at again, all of it at once, before it is reported. A message
        that has expired and that consumers will pass over is no finding.

        :param findings: most that are named.
        """

    def repair(self, queue: str, *, dry_run: bool = True) -> Operation[RepairReport]:
        """Set right what :meth:`verify` finds, in bounded steps."""

    def await_wake(self, queue: str, *, consumer: str, timeout_s: float) -> Operation[bool]:
        """Wait until there may be something to claim.

        :param timeout_s: how long at most; more than 0.
        :returns: whether it was woken; whoever waits claims either way.
        """
