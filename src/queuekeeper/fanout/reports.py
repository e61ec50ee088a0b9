"""Results of calls of fan-out queues: messages, views and reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from queuekeeper.errors import QueuekeeperError
from queuekeeper.fanout.model import ConsumerOptions, QueueOptions
from queuekeeper.quick_init import quick_init


class Outcome(StrEnum):
    """What a nack did with its message."""

    RETRY = "retry"  # it will be handed out again
    DEAD = "dead"  # it is a dead letter
    STALE = "stale"  # the caller no longer has the lease; nothing was changed


class Problem(StrEnum):
    """Kinds of faults of a queue."""

    MISSING_PAYLOAD = "missing_payload"  # a consumer owes an ack for a message that is gone
    UNREFERENCED_PAYLOAD = "unreferenced_payload"  # no consumer owes an ack for a message
    WRONG_COUNT = "wrong_count"  # the stored number of consumers that owe an ack is wrong
    WRONG_EXPIRY = "wrong_expiry"  # a message without expiry, or an expiry without message
    LOST_LEASE = "lost_lease"  # a lease without token, which ends only at its deadline
    DOUBLED = "doubled"  # a consumer has a message twice
    LEFT_NOTES = "left_notes"  # a consumer has notes on a message that it does not have


@quick_init
@dataclass(frozen=True, kw_only=True)
class FanoutMessage:
    """A message as a consumer gets it.

    :param id: number within the queue; a message that is published later has a greater one.
    :param published_ms: instant at which the message was published, or was due if it was published for later.
    :param attempt: number of times that this consumer got the message, this time included.
    :param stalls: number of its leases that ran out.
    :param expires_at_ms: instant at which the message expires for consumers that have not begun on it.
    """

    queue: str
    consumer: str
    id: int
    body: bytes = field(repr=False)
    content_type: str | None
    headers: Mapping[str, str] = field(repr=False)
    order_key: str | None
    published_ms: int
    attempt: int
    stalls: int
    expires_at_ms: int


@dataclass(frozen=True, kw_only=True)
class Registration:
    """Result of registering a consumer.

    :param created: false when the consumer was registered already.
    :param options: its options; a consumer that was registered already has kept its own.
    :param adopted: number of earlier messages that it got.
    :param version: number that grows whenever the consumers of the queue change.
    """

    queue: str
    consumer: str
    created: bool
    options: ConsumerOptions
    adopted: int
    version: int


@dataclass(frozen=True, kw_only=True)
class UnregisterReport:
    """Result of removing a consumer; in a dry run, what the removal would do.

    :param released: number of messages that the consumer had yet to acknowledge.
    :param freed: number of those that were removed, since no other consumer needed them; ``None`` in a dry run.
    """

    queue: str
    consumer: str
    released: int
    freed: int | None
    dry_run: bool


@quick_init
@dataclass(frozen=True, kw_only=True)
class PublishReport:
    """Result of publishing one message.

    :param id: id of the message; ``None`` when it was not published.
    :param consumers: number of consumers that got it.
    :param held: whether the queue holds it, since no consumer is registered.
    :param duplicate: whether its deduplication id was published before; then ``id`` is that of the earlier message, and
        nothing was stored.
    :param dropped: number of messages that full consumers lost; of messages that one call of the server stores, the
        last one's report has the number of all.
    :param error: why the message was not published, or why that is unknown; then no other field is set.
    """

    id: int | None = None
    consumers: int = 0
    held: bool = False
    duplicate: bool = False
    dropped: int = 0
    error: QueuekeeperError | None = None


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """Messages under one lease.

    :param messages: the messages, in order.
    :param token: proof of the lease, for ``ack``, ``nack``, ``extend`` and ``return_claimed``.
    :param deadline_ms: instant at which the lease runs out; messages that are not done then are handed out again.
    :param wait_until_ms: instant at which the next lease ends or message is due; ``None`` when there is none.
    :param more: whether more messages may be ready.
    :param skipped: number of messages that had expired or were gone.
    :param stalled: number of messages whose lease had run out.
    :param dead: number of messages that became dead letters, since they stalled too often or cannot be read.
    """

    messages: tuple[FanoutMessage, ...]
    token: str
    deadline_ms: int
    wait_until_ms: int | None
    more: bool = False
    skipped: int = 0
    stalled: int = 0
    dead: int = 0


@dataclass(frozen=True, kw_only=True)
class AckReport:
    """Result of acknowledgements, as numbers of messages.

    :param acked: messages that this consumer is done with.
    :param stale: messages whose lease the caller no longer had.
    :param freed: messages that were removed, since no consumer needs them any more.
    """

    acked: int
    stale: int
    freed: int


@dataclass(frozen=True, kw_only=True)
class NackReport:
    """Result of reporting a failure.

    :param outcome: what became of the message.
    :param due_ms: instant of the retry; ``None`` if there is none.
    """

    outcome: Outcome
    due_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class ExtendReport:
    """Result of extending a lease.

    :param deadline_ms: instant at which the extended leases run out.
    :param stale: ids of messages whose lease the caller no longer has; stop work on them.
    """

    deadline_ms: int
    stale: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ReturnReport:
    """Result of giving messages back, as numbers of messages.

    :param returned: messages that are next in line again, without the attempt.
    :param stale: messages whose lease the caller no longer had.
    """

    returned: int
    stale: int


@dataclass(frozen=True, kw_only=True)
class ReapReport:
    """Result of ``reap``.

    :param requeued: number of messages whose lease had run out and that are in line again.
    :param dead: number of messages that became dead letters, since they had stalled too often.
    :param skipped: number of ids without a message that were removed.
    :param gone_in_line: number of messages that are in line again although they are gone or have expired.
    :param revived: ids of messages that had expired and became dead letters, which keeps them stored.
    """

    requeued: int
    dead: int
    skipped: int
    gone_in_line: int = 0
    revived: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A message that a consumer has given up.

    :param died_ms: instant at which the message became a dead letter.
    :param reason: reason that ``nack`` was given, ``stalled`` or ``unreadable``.
    :param attempts: number of times that the consumer got the message.
    :param stalls: number of its leases that ran out.
    :param message: ``None`` when it is gone or cannot be read.
    """

    id: int
    died_ms: int
    reason: str
    attempts: int
    stalls: int
    message: FanoutMessage | None


@dataclass(frozen=True, kw_only=True)
class DeadPage:
    """A page of dead letters, oldest first.

    :param total: number of dead letters on all pages.
    :param next_offset: offset of the next page; ``None`` on the last page.
    """

    letters: tuple[DeadLetter, ...]
    total: int
    next_offset: int | None


@dataclass(frozen=True, kw_only=True)
class RetryReport:
    """Result of retrying dead letters.

    :param retried: number of messages that wait again, with attempts and stalls at zero.
    :param missing: number of ids that are no dead letters, or whose message is gone.
    """

    retried: int
    missing: int


@dataclass(frozen=True, kw_only=True)
class PurgeReport:
    """Result of removing messages from consumers; in a dry run, what the removal would do.

    :param released: number of removed messages, once for each consumer that had them.
    :param freed: number of messages that are gone, since no other consumer needs them; ``None`` in a dry run.
    """

    released: int
    freed: int | None
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class ExpireReport:
    """Result of ``expire``.

    :param expired: number of expired messages that were removed.
    :param dead: number of dead letters that were removed after their retention.
    """

    expired: int
    dead: int


@dataclass(frozen=True, kw_only=True)
class ConsumerView:
    """State of a consumer.

    :param options: ``None`` while the consumer is being removed.
    :param paused: whether it gets no messages until it is resumed.
    :param adopting: whether it is still getting earlier messages; it can claim none meanwhile.
    :param last_seen_ms: instant at which it last registered, claimed or was touched.
    :param ready: number of messages that can be claimed, now or when their lane is free.
    :param leased: number of messages under lease.
    :param overdue: number of messages under lease whose lease has run out.
    :param delayed: number of messages that are not due: they wait for a retry, or were published for later.
    :param dead: number of dead letters.
    :param oldest_ready_ms: instant at which the oldest message that is next in a lane was published, or due.
    :param next_deadline_ms: instant at which the next lease runs out.
    :param next_due_ms: instant at which the next delayed message is due.
    :param oldest_dead_ms: instant at which the oldest dead letter died.
    :param blocked_until_ms: earliest instant at which a lane that waits for a retry goes on.
    :param sampled: number of messages next in line that were looked at for ``only_holder``.
    :param only_holder: number of sampled messages that only this consumer has yet to acknowledge.
    :param counters: counters since the registration.
    """

    consumer: str
    options: ConsumerOptions | None
    paused: bool
    adopting: bool
    last_seen_ms: int
    ready: int
    leased: int
    overdue: int
    delayed: int
    dead: int
    oldest_ready_ms: int | None
    next_deadline_ms: int | None
    next_due_ms: int | None
    oldest_dead_ms: int | None
    blocked_until_ms: int | None
    sampled: int
    only_holder: int
    counters: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class QueueView:
    """State of a queue and of its consumers.

    :param exists: whether a consumer was ever registered or a message published.
    :param paused: whether no consumer gets messages until the queue is resumed.
    :param version: number that grows whenever the consumers of the queue change.
    :param last_id: id of the message that was published last; 0 before the first.
    :param messages: number of stored messages.
    :param held: number of messages that wait for a consumer that adopts them.
    :param deduplications: number of remembered deduplication ids.
    :param stored_bytes: size of the stored messages.
    :param next_expiry_ms: instant at which the next message expires; ``None`` when no message is stored.
    :param counters: counters since the first use of the queue.
    """

    queue: str
    exists: bool
    options: QueueOptions
    paused: bool
    version: int
    last_id: int
    messages: int
    held: int
    deduplications: int
    stored_bytes: int
    next_expiry_ms: int | None
    counters: Mapping[str, int]
    consumers: tuple[ConsumerView, ...]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A fault of a message.

    :param id: id of the message.
    :param consumer: consumer whose keys are wrong; ``None`` for keys of the queue.
    :param found: stored count; ``None`` without one.
    :param expected: correct count; ``None`` where no count is wrong.
    """

    problem: Problem
    id: int
    consumer: str | None = None
    found: int | None = None
    expected: int | None = None


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """Result of ``verify``.

    :param checked: number of messages that were checked.
    :param findings: first findings, up to the limit of the call.
    :param counts: number of all findings by kind.
    :param expired_references: number of ids in lists of consumers whose messages have expired; these are no findings.
    """

    checked: int
    findings: tuple[Finding, ...]
    counts: Mapping[Problem, int]
    expired_references: int = 0

    @property
    def found(self) -> int:
        """Number of findings of all kinds."""
        return sum(self.counts.values())

    @property
    def healthy(self) -> bool:
        """Whether there are no findings."""
        return not self.found


@dataclass(frozen=True, kw_only=True)
class RepairReport:
    """Result of ``repair``; in a dry run, what the repair would do.

    :param checked: number of messages that were checked.
    :param repaired: number of repaired findings by kind.
    :param freed: number of messages that were removed.
    """

    checked: int
    repaired: Mapping[Problem, int]
    freed: int
    dry_run: bool

    @property
    def found(self) -> int:
        """Number of findings of all kinds."""
        return sum(self.repaired.values())
