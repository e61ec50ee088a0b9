"""What compacted queues say: messages, views and reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from queuekeeper.compacted.model import NO_PROPERTIES, Fence, Retention
from queuekeeper.quick_init import quick_init


@quick_init
@dataclass(frozen=True, kw_only=True, slots=True)
class AppendReport:
    """Result of an append.

    :param sequences: number of each entry, in order; empty when ``is_forgotten``.
    :param replaced: for each entry, the number of the value that it took the place of, none where the key had none;
        empty when ``is_replay``.
    :param live: keys of the queue now; none when ``is_replay``.
    :param evicted: messages removed because the queue was full.
    :param evicted_unacked: those of them that had not been acknowledged.
    :param is_consumed: whether a consumer holds a lease on the queue.
    :param is_replay: all of it had been stored before, and nothing was stored again.
    :param is_forgotten: the producer has appended under a greater number since, so that the numbers are not known any
        more.
    :param replicated: whether as many replicas as asked for have it; none when none were asked for.
    """

    sequences: tuple[int, ...]
    replaced: tuple[int | None, ...]
    live: int | None
    evicted: int = 0
    evicted_unacked: int = 0
    is_consumed: bool = False
    is_replay: bool = False
    is_forgotten: bool = False
    replicated: bool | None = None

    @property
    def first_sequence(self) -> int | None:
        """Number of the first entry; none when it is not known any more."""
        return self.sequences[0] if self.sequences else None

    @property
    def last_sequence(self) -> int | None:
        """Number of the last entry; none when it is not known any more."""
        return self.sequences[-1] if self.sequences else None


@quick_init
@dataclass(frozen=True, kw_only=True)
class CompactedMessage:
    """The value of a key.

    :param sequence: its place in the order; never given out twice while the queue lives.
    :param appended_ms: when it was stored, by the server's clock; never less than that of the message before. 0 when
        that was lost.
    :param tombstone: the key was deleted.
    :param properties: names and texts that go with the value; :class:`Properties` where a name comes several times.
    :param redelivered: it has been delivered before and was not acknowledged.
    :param is_readable: false for a value that is none of ours or was damaged: ``value`` has all bytes that are stored,
        and nothing else is known of it but key, number and instant.
    """

    client_id: str
    key: bytes
    value: bytes = field(repr=False)
    sequence: int
    appended_ms: int
    published_ms: int | None = None
    tombstone: bool = False
    redelivered: bool = False
    properties: Mapping[str, str] = field(default_factory=lambda: NO_PROPERTIES, repr=False)
    content_type: str | None = None
    is_readable: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Subscription:
    """A consumer's right to a queue, and where the queue stands.

    :param fence: to be given with every call; a later subscription or a rewind makes it worthless.
    :param sequence: number given out last.
    :param sent: messages up to it have been delivered.
    :param acked: messages up to it have been acknowledged, all of them.
    :param lag: messages behind ``sent``.
    :param in_flight: messages delivered and not acknowledged, which come again with ``redeliver``.
    :param previous_session: session that held the queue before; none when nobody did.
    :param is_clamped: ``start`` lies outside what the queue has, as :class:`RewindReport` has it, and the nearest place
        was taken.
    """

    client_id: str
    session: str
    fence: Fence
    sequence: int
    sent: int
    acked: int
    lag: int
    in_flight: int
    previous_session: str | None
    is_clamped: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class AckReport:
    """What acknowledgements did.

    :param acked: messages that they took out of flight.
    :param unknown: numbers that were not in flight: acknowledged before, overwritten, or never delivered.
    :param acked_up_to: cursor: all messages up to it have been acknowledged.
    :param in_flight: messages still in flight.
    """

    acked: int
    unknown: int
    acked_up_to: int
    in_flight: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """Messages to handle, in order.

    :param lag: messages that have not been delivered yet.
    :param in_flight: messages delivered and not acknowledged, these included.
    :param acks: what the acknowledgements did that came with the fetch.
    :param more_to_resend: not all was looked at yet of what comes again: fetch on, also when nothing came.
    """

    messages: tuple[CompactedMessage, ...]
    lag: int
    in_flight: int
    acks: AckReport
    more_to_resend: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Heartbeat:
    """What waits for a consumer whose lease was prolonged."""

    lag: int
    in_flight: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RewindReport:
    """Where a queue is read from now.

    :param old_acked: cursor before.
    :param new_acked: cursor now; the next message is the first one behind it.
    :param to_deliver: messages that will be delivered, again or for the first time.
    :param is_clamped: the position lies outside what the queue has: before its oldest message, behind its newest, or
        where a message was collected or purged from between others.
    :param oldest_sequence: number of the oldest message; none when there is none.
    :param fence: that takes the place of the one before.
    """

    old_acked: int
    new_acked: int
    to_deliver: int
    is_clamped: bool
    oldest_sequence: int | None
    fence: Fence


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueView:
    """Where a queue stands.

    :param exists: whether there is such a queue; if not, all else is 0 or none.
    :param sequence: number given out last.
    :param sent: messages up to it have been delivered.
    :param acked: messages up to it have been acknowledged.
    :param acked_ms: when something was acknowledged last.
    :param live: keys with a value or a tombstone.
    :param tombstones: those of them with a tombstone.
    :param lag: messages not delivered yet.
    :param size_bytes: of all keys and stored values.
    :param session: consumer of the last subscription.
    :param lease_left_ms: how long it still holds the queue; 0 when the lease is over.
    :param counters: what has happened since the queue was made, by name.
    :param last_lost_sequence: newest message that went without having been acknowledged; none when none did.
    :param retention: of this queue; none when it has the collector's.
    :param estimated_memory_bytes: what its keys take in Redis, by samples.
    """

    client_id: str
    exists: bool
    incarnation: int | None = None
    epoch: int = 0
    sequence: int = 0
    sent: int = 0
    acked: int = 0
    acked_ms: int | None = None
    live: int = 0
    tombstones: int = 0
    lag: int = 0
    in_flight: int = 0
    size_bytes: int = 0
    oldest_sequence: int | None = None
    newest_age_ms: int | None = None
    oldest_age_ms: int | None = None
    oldest_undelivered_age_ms: int | None = None
    oldest_unacked_age_ms: int | None = None
    session: str | None = None
    lease_left_ms: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)
    last_lost_sequence: int | None = None
    retention: Retention | None = None
    estimated_memory_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PurgeReport:
    """What a purge removed; in a dry run, what it would.

    :param unacked: those of ``messages`` that had not been acknowledged.
    :param tombstones: those of ``messages`` that were tombstones.
    """

    client_id: str
    messages: int
    unacked: int
    tombstones: int
    size_bytes: int
    dry_run: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class DropReport:
    """What went with a queue; in a dry run, what would.

    :param existed: whether there was such a queue.
    :param lag: messages that had not been delivered.
    :param in_flight: messages that had been delivered and not acknowledged.
    :param incarnation: which of the queues it was that have had this name; none when nothing says so.
    """

    client_id: str
    existed: bool
    messages: int
    lag: int
    in_flight: int
    size_bytes: int
    incarnation: int | None
    dry_run: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """Something in a queue's keys that should not be.

    :param rule: name of the rule that is broken.
    :param key: key of the message, where it is about one.
    :param sequence: its number, where there is one.
    """

    rule: str
    key: bytes | None = None
    sequence: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyReport:
    """Whether a queue's keys agree with each other.

    :param checked: members of its keys that were looked at.
    :param violations: what was found, at most :data:`MAX_VIOLATIONS`.
    :param found: how many there are.
    """

    client_id: str
    checked: int
    violations: tuple[Violation, ...]
    found: int

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong."""
        return not self.found


MAX_VIOLATIONS = 1_000
"""Most violations that a report names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairReport:
    """What a repair did; in a dry run, only what it found.

    :param found: violations before.
    :param indexed: keys put in their places again.
    :param dropped: keys of which nothing is left.
    :param strays: numbers that were in flight and cannot be.
    :param numbers: numbers of the queue that were put right.
    :param remaining: violations afterwards.
    """

    client_id: str
    found: int
    indexed: int
    dropped: int
    strays: int
    numbers: int
    remaining: int
    dry_run: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class DueRow:
    """A message that retention removes.

    :param size_bytes: of key and stored value.
    :param stored: the value as it is stored, for :meth:`restore`; none when it was not asked for.
    """

    key: bytes
    sequence: int
    appended_ms: int
    tombstone: bool
    size_bytes: int
    acked: bool
    stored: bytes | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DuePage:
    """What of a queue is due for collection, oldest first.

    :param retention: what was applied, the queue's own or the one asked for.
    :param more: whether there may be more than these.
    :param next_after_sequence: pass it to the next call; it has moved past rows that stay, too.
    :param looked_at: rows that were looked at, due or not.
    :param next_due_ms: when more will be due, as far as is known now; none when nothing ever will.
    """

    rows: tuple[DueRow, ...]
    retention: Retention
    more: bool
    next_after_sequence: int
    looked_at: int
    next_due_ms: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectReport:
    """What a collection removed.

    :param kept: rows that stayed: their key has a newer value, they are gone, or they are not due.
    :param kept_sequences: the numbers by which those were named.
    :param unacked: those of ``collected`` that had not been acknowledged.
    :param tombstones: those of ``collected`` that were tombstones.
    :param producers: producers whose last append was forgotten.
    :param live: keys of the queue now.
    :param next_due_ms: when the queue is due again; none when nothing of it ever will be.
    """

    collected: int
    kept: int
    kept_sequences: tuple[int, ...]
    unacked: int
    tombstones: int
    size_bytes: int
    producers: int
    live: int
    next_due_ms: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoreReport:
    """What a restoration brought back.

    :param present: rows left out because their key has a value.
    :param refused: rows left out because they do not fit: their number is taken or was never given out, or their value
        was damaged.
    :param to_deliver: those of ``restored`` that the consumer is still to get.
    """

    restored: int
    present: int
    refused: int
    to_deliver: int
