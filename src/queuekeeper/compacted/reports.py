"""Results of the calls to compacted queues: messages, views and reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from queuekeeper.compacted.model import NO_PROPERTIES, Fence, Retention
from queuekeeper.quick_init import quick_init


@quick_init
@dataclass(frozen=True, kw_only=True, slots=True)
class AppendReport:
    """Result of an append.

    :param sequences: sequence number of each entry, in order; empty when ``is_forgotten``.
    :param replaced: for each entry, the sequence number of the value that it replaced, none if the key had no value;
        empty when ``is_replay``.
    :param live: number of keys in the queue after the append; none when ``is_replay``.
    :param evicted: messages removed because the queue was full.
    :param evicted_unacked: evicted messages that were not acknowledged.
    :param is_consumed: whether a consumer holds a lease on the queue.
    :param is_replay: the append had been stored before, and was not stored again.
    :param is_forgotten: the producer has since appended under a greater number, so the queue no longer knows the
        sequence numbers of this append.
    :param replicated: whether as many replicas as asked for have the append; none when none were asked for.
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
        """Sequence number of the first entry; none when ``is_forgotten``."""
        return self.sequences[0] if self.sequences else None

    @property
    def last_sequence(self) -> int | None:
        """Sequence number of the last entry; none when ``is_forgotten``."""
        return self.sequences[-1] if self.sequences else None


@quick_init
@dataclass(frozen=True, kw_only=True)
class CompactedMessage:
    """A message of a queue: the newest value of a key, or its tombstone.

    :param sequence: sequence number, which gives its place in the order; unique in the queue.
    :param appended_ms: time of the append in milliseconds since 1970, by the server's clock; never less than that of
        the message before. 0 when it was lost.
    :param published_ms: the producer's time in milliseconds since 1970; none when the producer gave none.
    :param tombstone: the key was deleted.
    :param properties: user properties of the value; a :class:`Properties` if a name occurs several times.
    :param redelivered: the message was delivered before and not acknowledged.
    :param is_readable: false when the record is damaged or was not written by Queuekeeper: then ``value`` has the
        stored bytes, and only ``key``, ``sequence`` and ``appended_ms`` are known besides.
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

    :param fence: argument of the consumer's calls; valid until the next subscription or rewind.
    :param sequence: sequence number of the newest append.
    :param sent: all messages up to this sequence number have been delivered.
    :param acked: cursor: all messages up to this sequence number have been acknowledged.
    :param lag: messages not delivered yet.
    :param in_flight: messages delivered and not acknowledged; the first fetches return them again.
    :param previous_session: session that held the queue before; none when no session did.
    :param is_clamped: the queue has no message at ``start``, so the nearest position was taken; see
        :class:`RewindReport`.
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
    """Result of acknowledgements.

    :param acked: messages that were in flight and are acknowledged now.
    :param unknown: sequence numbers that were not in flight: acknowledged before, overwritten, or never delivered.
    :param acked_up_to: cursor: all messages up to this sequence number have been acknowledged.
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
    :param in_flight: messages delivered and not acknowledged, including those of this fetch.
    :param acks: result of the acknowledgements that were sent with the fetch.
    :param more_to_resend: there may be more messages to redeliver: fetch again, even if this fetch returned none.
    """

    messages: tuple[CompactedMessage, ...]
    lag: int
    in_flight: int
    acks: AckReport
    more_to_resend: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Heartbeat:
    """Result of a heartbeat.

    :param lag: messages not delivered yet.
    :param in_flight: messages delivered and not acknowledged.
    """

    lag: int
    in_flight: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RewindReport:
    """Result of a rewind.

    :param old_acked: cursor before the rewind.
    :param new_acked: cursor after the rewind; the first message behind it is delivered next.
    :param to_deliver: messages behind the cursor, delivered before or not.
    :param is_clamped: the queue has no message at the position: it lies before the oldest message or behind the newest,
        or its message was collected or purged.
    :param oldest_sequence: sequence number of the oldest message; none when the queue is empty.
    :param fence: new fence, which replaces the consumer's.
    """

    old_acked: int
    new_acked: int
    to_deliver: int
    is_clamped: bool
    oldest_sequence: int | None
    fence: Fence


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueView:
    """State of a queue.

    :param exists: whether the queue exists; if not, all other fields are 0 or none.
    :param sequence: sequence number of the newest append.
    :param sent: all messages up to this sequence number have been delivered.
    :param acked: cursor: all messages up to this sequence number have been acknowledged.
    :param acked_ms: time of the last acknowledgement in milliseconds since 1970; none when there was none.
    :param live: keys with a value or a tombstone.
    :param tombstones: keys with a tombstone.
    :param lag: messages not delivered yet.
    :param size_bytes: size of all keys and stored values.
    :param session: session of the last subscription; none when there was none.
    :param lease_left_ms: time until the session's lease ends; 0 when it has ended.
    :param counters: counts since the queue was made, by name.
    :param last_lost_sequence: newest message that was removed before it was acknowledged; none when none was.
    :param retention: the queue's own retention; none when the collector's applies.
    :param estimated_memory_bytes: memory of the queue's keys in Redis, estimated from samples.
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
    """What a purge removed, or in a dry run would remove.

    :param messages: removed messages.
    :param unacked: removed messages that were not acknowledged.
    :param tombstones: removed tombstones.
    """

    client_id: str
    messages: int
    unacked: int
    tombstones: int
    size_bytes: int
    dry_run: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class DropReport:
    """What was removed with a queue, or in a dry run would be.

    :param existed: whether the queue existed.
    :param lag: messages that were not delivered.
    :param in_flight: messages that were delivered and not acknowledged.
    :param incarnation: incarnation of the queue, see :class:`Fence`; none when the queue's state does not hold it.
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
    """A rule that the Redis keys of a queue break.

    :param rule: name of the rule.
    :param key: key of the message that breaks the rule; none when the rule is about the whole queue.
    :param sequence: sequence number of the message; none when it is not known.
    """

    rule: str
    key: bytes | None = None
    sequence: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyReport:
    """Whether the Redis keys of a queue are consistent.

    :param checked: members of the Redis keys that were read.
    :param violations: the first 1,000 violations.
    :param found: number of all violations.
    """

    client_id: str
    checked: int
    violations: tuple[Violation, ...]
    found: int

    @property
    def healthy(self) -> bool:
        """Whether there are no violations."""
        return not self.found


MAX_VIOLATIONS = 1_000
"""Most violations that a report names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairReport:
    """What a repair found and changed; a dry run changes nothing.

    :param found: violations before the repair.
    :param indexed: keys put back into their places in the order.
    :param dropped: keys removed because they have no value, or one with another sequence number.
    :param strays: messages taken out of flight because they cannot be in flight.
    :param numbers: numbers of the queue's state that were corrected.
    :param remaining: violations after the repair.
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
    """A message that is due for collection.

    :param size_bytes: size of key and stored value.
    :param stored: the stored value, which ``restore`` needs; none without ``with_values``.
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
    """A page of a queue's messages that are due for collection, oldest first.

    :param retention: the retention that was applied: the queue's own, or the one that was passed.
    :param more: whether there may be more messages behind this page.
    :param next_after_sequence: ``after_sequence`` of the next page.
    :param looked_at: messages that were read, due or not.
    :param next_due_ms: time at which the next message is due, as far as is known; none when none ever will be.
    """

    rows: tuple[DueRow, ...]
    retention: Retention
    more: bool
    next_after_sequence: int
    looked_at: int
    next_due_ms: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectReport:
    """Result of a collection.

    :param collected: removed messages.
    :param kept: rows not removed: their key has a newer value, the message is gone already, or it is not due.
    :param kept_sequences: sequence numbers of these rows.
    :param unacked: removed messages that were not acknowledged.
    :param tombstones: removed tombstones.
    :param producers: producers whose last append the queue has forgotten, see ``producer_ms``.
    :param live: number of keys in the queue after the collection.
    :param next_due_ms: time at which the next message is due; none when none ever will be.
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
    """Result of a restoration.

    :param restored: messages brought back.
    :param present: rows left out because their key has a value now.
    :param refused: rows left out because their sequence number is taken or was never given out, or their value is
        damaged.
    :param to_deliver: restored messages that will still be delivered to the consumer.
    """

    restored: int
    present: int
    refused: int
    to_deliver: int
