"""What fan-out queues say: messages, views and reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from queuekeeper.errors import QueuekeeperError
from queuekeeper.fanout.model import ConsumerOptions, QueueOptions
from queuekeeper.quick_init import quick_init


class Outcome(StrEnum):
    """What a failed message has become."""

    RETRY = "retry"  # it will be handed out again
    DEAD = "dead"  # it is a dead letter
    STALE = "stale"  # the lease is no longer the caller's; nothing has changed


class Problem(StrEnum):
    """What can be wrong inside a queue."""

    MISSING_PAYLOAD = "missing_payload"  # somebody owes an ack for a message that is gone
    UNREFERENCED_PAYLOAD = "unreferenced_payload"  # a message that nobody owes an ack for
    WRONG_COUNT = "wrong_count"  # the number of those who owe an ack has drifted
    WRONG_EXPIRY = "wrong_expiry"  # a message whose life does not end, or the end of a life that nothing has
    LOST_LEASE = "lost_lease"  # a lease without a token, which nobody can end but its deadline
    DOUBLED = "doubled"  # a consumer has a message twice
    LEFT_NOTES = "left_notes"  # notes on a message that the consumer no longer has


@quick_init
@dataclass(frozen=True, kw_only=True)
class FanoutMessage:
    """A message as a consumer gets it.

    :param id: number within the queue; a message published later has a greater one.
    :param published_ms: when it was published, or was due if it was published for later.
    :param attempt: how often it was handed to this consumer, this time included.
    :param stalls: how often its lease ran out.
    :param expires_at_ms: end of its life, which ends sooner or later than that once somebody has begun on it.
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
    """What registering a consumer did.

    :param created: false when it was registered before.
    :param options: those that it has; a consumer that was registered before keeps its own.
    :param adopted: messages that were there already and now wait for it.
    :param version: number of the membership.
    """

    queue: str
    consumer: str
    created: bool
    options: ConsumerOptions
    adopted: int
    version: int


@dataclass(frozen=True, kw_only=True)
class UnregisterReport:
    """What removing a consumer did; in a dry run, what it would do.

    :param released: messages that it no longer owes an ack.
    :param freed: those of them that nobody else owed one, and that are gone; none in a dry run.
    """

    queue: str
    consumer: str
    released: int
    freed: int | None
    dry_run: bool


@quick_init
@dataclass(frozen=True, kw_only=True)
class PublishReport:
    """Outcome of one message.

    :param id: none when it was not published.
    :param consumers: how many got it.
    :param held: nobody was registered; it waits for a consumer that adopts it.
    :param duplicate: its deduplication id was published before; ``id`` is that message's, and nothing was stored.
    :param dropped: oldest messages that full consumers have lost for it, and for those that were published in one go
        with it.
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

    :param messages: in order.
    :param token: proves the lease to ack, nack, extend and return.
    :param deadline_ms: when the lease runs out; what is not done by then is handed out again.
    :param wait_until_ms: when the next message is due if nothing is published before; none when nothing is foreseen.
    :param more: whether there may be more to claim at once.
    :param skipped: messages whose life was over, or that were gone.
    :param stalled: messages taken back from leases that had run out.
    :param dead: messages that became dead letters, since their lease ran out too often or nobody can read them.
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
    """What acknowledgements did.

    :param acked: messages that this consumer is done with.
    :param stale: ids whose lease was not the caller's any more.
    :param freed: messages that nobody owes an ack any more, and that are gone.
    """

    acked: int
    stale: int
    freed: int


@dataclass(frozen=True, kw_only=True)
class NackReport:
    """What reporting a failure did.

    :param due_ms: when it will be handed out again; none unless it is to be retried.
    """

    outcome: Outcome
    due_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class ExtendReport:
    """What extending a lease did.

    :param deadline_ms: of those that were extended.
    :param stale: ids whose lease is not the caller's any more; stop work on them.
    """

    deadline_ms: int
    stale: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ReturnReport:
    """What giving messages back did.

    :param returned: they are the next to be handed out, and the attempt does not count.
    :param stale: ids whose lease was not the caller's any more.
    """

    returned: int
    stale: int


@dataclass(frozen=True, kw_only=True)
class ReapReport:
    """What taking back leases that had run out did.

    :param requeued: messages whose lease had run out and that are to be handed out again.
    :param dead: messages that had stalled too often.
    :param skipped: ids that waited though their messages were gone.
    :param gone_in_line: messages that were put in line again though they are gone, or their time is over.
    :param revived: dead letters whose time was over, and who live on as such.
    """

    requeued: int
    dead: int
    skipped: int
    gone_in_line: int = 0
    revived: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A message that was given up.

    :param died_ms: when.
    :param reason: as ``nack`` was told, or ``stalled``.
    :param message: none when its payload is gone or cannot be read.
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

    :param next_offset: of the next page; none at the end.
    """

    letters: tuple[DeadLetter, ...]
    total: int
    next_offset: int | None


@dataclass(frozen=True, kw_only=True)
class RetryReport:
    """What retrying dead letters did.

    :param retried: messages that wait again, with their counts of attempts and stalls at zero.
    :param missing: ids that were no dead letters, or whose payload was gone.
    """

    retried: int
    missing: int


@dataclass(frozen=True, kw_only=True)
class PurgeReport:
    """What removing messages did; in a dry run, what it would do.

    :param released: acks that are no longer owed.
    :param freed: messages that are gone since nobody else owed one; none in a dry run.
    """

    released: int
    freed: int | None
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class ExpireReport:
    """What removing messages at the end of their life did.

    :param expired: messages that are gone.
    :param dead: dead letters whose retention was over.
    """

    expired: int
    dead: int


@dataclass(frozen=True, kw_only=True)
class ConsumerView:
    """State of a consumer.

    :param options: none while it is being removed.
    :param adopting: it gets messages of before, and claims nothing meanwhile.
    :param last_seen_ms: when it registered, claimed or was touched last.
    :param ready: messages that can be claimed now or when their lane is free.
    :param leased: messages that somebody works on.
    :param overdue: those of them whose lease has run out.
    :param delayed: messages that wait for their time: for a retry, or as they were published for later.
    :param dead: dead letters.
    :param oldest_ready_ms: when the oldest of those that are next in line was published, or due.
    :param next_deadline_ms: earliest end of a lease.
    :param next_due_ms: earliest time of those.
    :param oldest_dead_ms: when the oldest dead letter died.
    :param blocked_until_ms: lanes of an ordered consumer wait for the retry of their first message; the earliest one.
    :param sampled: number of next messages that ``only_holder`` is based on.
    :param only_holder: those that nobody else owes an ack for.
    :param counters: what has been counted since it registered.
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

    :param exists: whether anything was ever registered or published.
    :param version: number of the membership.
    :param last_id: number of the message that was published last; 0 before the first.
    :param messages: messages that are stored.
    :param held: messages that wait for a consumer that adopts them.
    :param deduplications: deduplication ids that are remembered.
    :param stored_bytes: size of the stored messages.
    :param next_expiry_ms: earliest end of a life; none when nothing is stored.
    :param counters: what has been counted since the queue exists.
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
    """One thing that is wrong.

    :param consumer: whose; none when it is the queue's.
    :param expected: what a count should be; none where there is no count.
    """

    problem: Problem
    id: int
    consumer: str | None = None
    found: int | None = None
    expected: int | None = None


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """What a look at all of a queue found.

    :param checked: messages that were looked at.
    :param findings: the first of them, up to the limit that was asked for.
    :param counts: all findings by kind.
    :param expired_references: ids in consumers' lists whose messages have expired; these are no findings.
    """

    checked: int
    findings: tuple[Finding, ...]
    counts: Mapping[Problem, int]
    expired_references: int = 0

    @property
    def found(self) -> int:
        """How many findings there are of all kinds."""
        return sum(self.counts.values())

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong."""
        return not self.found


@dataclass(frozen=True, kw_only=True)
class RepairReport:
    """What a repair changed; in a dry run, what it would change.

    :param checked: messages that were looked at.
    :param repaired: findings by kind.
    :param freed: payloads that were removed.
    """

    checked: int
    repaired: Mapping[Problem, int]
    freed: int
    dry_run: bool

    @property
    def found(self) -> int:
        """How many findings there are of all kinds."""
        return sum(self.repaired.values())
