"""What compacted queues take and say, and the rules of what may be asked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from queuekeeper.checks import check_integer, check_text, checked, shown
from queuekeeper.errors import InvalidPolicy, PayloadTooLarge, UsageError
from queuekeeper.quick_init import quick_init

MAX_TEXT_BYTES = 65_535
"""Longest client id, name, property and content type, and longest key: what MQTT can carry (MQTT 5 section 1.5.4)."""

MAX_APPENDS = 5_000
"""Most entries of one append."""

MAX_WINDOW = 500
"""Most messages in flight."""

MAX_PAGE = 500
"""Most messages or rows of one page."""

MAX_ACKS = 1_000
"""Most numbers of one acknowledgement."""

MAX_SEQUENCE = 2**53 - 1
"""Largest number that Redis' scores and Lua hold exactly."""

MAX_LEASE_MS = 86_400_000
MAX_VALUE_BYTES = 268_435_455
"""Largest remaining length of an MQTT packet (MQTT 5 section 2.1.4); a store may be told to take less."""

FETCH_BYTES = 4_000_000
"""Bytes of values in one fetch by default; a single larger one comes alone."""

PRODUCER_MS = 604_800_000
"""How long the last append of a producer is remembered by default."""

NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class Properties(Mapping[str, str]):
    """Names and texts in order, of which MQTT allows several with one name; looked up by it, the last one counts.

    :ivar pairs: all of them.
    """

    __slots__ = ("_texts", "pairs")
    __hash__ = None  # type: ignore[assignment]

    @checked
    def __init__(self, pairs: Iterable[Sequence[str]] = ()) -> None:
        self.pairs = tuple((name, text) for name, text in pairs)
        self._texts = dict(self.pairs)

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Properties):
            return self.pairs == other.pairs
        return isinstance(other, Mapping) and plain_properties(self) == dict(other)

    def __repr__(self) -> str:
        return f"Properties({list(self.pairs)!r})"


def property_pairs(properties: Mapping[str, str]) -> Collection[tuple[str, str]]:
    """Return all names and texts in order."""
    return properties.pairs if isinstance(properties, Properties) else properties.items()


def plain_properties(properties: Mapping[str, str]) -> dict[str, str] | list[tuple[str, str]]:
    """Return properties as JSON can hold them: by their names, or as pairs where a name comes several times."""
    pairs = property_pairs(properties)
    return dict(pairs) if len(pairs) == len(properties) else list(pairs)


class WhenFull(StrEnum):
    """What an append does when a queue has reached its limits."""

    REJECT = "reject"  # nothing is stored, and the producer is told
    DROP_OLDEST = "drop_oldest"  # the oldest messages go, and are counted


class RetentionPolicy(StrEnum):
    """What may be collected when it is old enough."""

    DELETE = "delete"  # every message, acknowledged or not
    ACKED_ONLY = "acked_only"  # what the consumer has acknowledged
    COMPACT = "compact"  # acknowledged tombstones alone: the newest value of a key stays for ever


class Refill(StrEnum):
    """When a fetch gives new messages while others are in flight."""

    ON_EMPTY = "on_empty"  # only when all have been acknowledged
    SLIDING = "sliding"  # as far as the window has room


def chosen(kind: type[StrEnum], name: str, value: Any) -> Any:
    """Return the member of an enum that a value names.

    :raises InvalidPolicy: when there is none, naming the choices.
    """
    try:
        return kind(value)
    except ValueError:
        raise InvalidPolicy(f"{name} is {value!r}: it must be one of {', '.join(kind)}") from None


@dataclass(frozen=True, kw_only=True)
class QueueRules:
    """Bounds of each queue; every producer of a queue has to use the same.

    :param max_keys: largest number of keys in a queue; 0 is no limit.
    :param max_bytes: largest size of a queue's keys and values in bytes; 0 is no limit.
    :param when_full: what an append does when ``max_keys`` or ``max_bytes`` is reached.
    :param max_value_bytes: largest size of a value in bytes; larger ones are refused before anything is written.
    :raises UsageError: naming parameter, value and rule.
    """

    max_keys: int = 0
    max_bytes: int = 0
    when_full: WhenFull = WhenFull.REJECT
    max_value_bytes: int = 1_048_576

    def __post_init__(self) -> None:
        check_integer("max_keys", self.max_keys, 0, MAX_SEQUENCE, "0 for no limit")
        check_integer("max_bytes", self.max_bytes, 0, MAX_SEQUENCE, "0 for no limit")
        check_integer("max_value_bytes", self.max_value_bytes, 1, MAX_VALUE_BYTES, "MQTT 5 section 2.1.4")
        object.__setattr__(self, "when_full", chosen(WhenFull, "when_full", self.when_full))


@dataclass(frozen=True, kw_only=True)
class Retention:
    """How long messages are kept.

    :param retention_ms: age at which the policy's messages are collected; it means nothing with ``compact``.
    :param tombstone_ms: age at which a tombstone is collected that the consumer has acknowledged; one that it has
        not goes after ``retention_ms`` with ``delete``, and else stays.
    :raises InvalidPolicy: for a policy that does not exist.
    :raises UsageError: for a time that is negative.
    """

    policy: RetentionPolicy = RetentionPolicy.DELETE
    retention_ms: int = 604_800_000
    tombstone_ms: int = 86_400_000

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", chosen(RetentionPolicy, "retention policy", self.policy))
        check_integer("retention_ms", self.retention_ms, 0, MAX_SEQUENCE, "an age in milliseconds")
        check_integer("tombstone_ms", self.tombstone_ms, 0, MAX_SEQUENCE, "an age in milliseconds")


@quick_init
@dataclass(frozen=True, kw_only=True, slots=True)
class Append:
    """A value to keep for a key, in the place of the one before.

    :param key: any bytes, also none.
    :param tombstone: delete the key: the consumer gets the deletion as a message, and later nothing of it is left. It
        has no value.
    :param properties: names and texts that go with the value; :class:`Properties` where a name comes several times.
    :param content_type: MQTT content type of the value, such as application/json.
    :param published_ms: the producer's own time; the queue's order does not depend on it.
    :param expected_sequence: store only if the key's newest value has this sequence number; 0: only if the key has no
        value. What counts is the value before the append, also for a key that comes twice in it. An append with such
        an entry is stored at once, so it is bounded: 200 entries, 1 MB.
    :raises UsageError: naming field, value and rule.
    """

    key: bytes
    value: bytes = field(default=b"", repr=False)
    tombstone: bool = False
    properties: Mapping[str, str] = field(default_factory=lambda: NO_PROPERTIES, repr=False)
    content_type: str | None = None
    published_ms: int | None = None
    expected_sequence: int | None = None

    def __post_init__(self) -> None:
        check_key(self.key)
        if type(self.value) is not bytes:
            raise UsageError(f"value is a {type(self.value).__name__}: it must be bytes")
        if type(self.tombstone) is not bool:
            raise UsageError(f"tombstone is {self.tombstone!r}: it must be True or False")
        if self.tombstone and self.value:
            raise UsageError(f"the tombstone has a value of {len(self.value)} bytes: a deleted key has none")
        if self.properties is not NO_PROPERTIES:
            if not isinstance(self.properties, Mapping):
                raise UsageError(f"properties is a {type(self.properties).__name__}: it must map names to texts")
            for name, text in property_pairs(self.properties):
                check_text("property name", name, most_bytes=MAX_TEXT_BYTES)
                check_text("property value", text, most_bytes=MAX_TEXT_BYTES)
        if self.content_type is not None:
            check_text("content_type", self.content_type, most_bytes=MAX_TEXT_BYTES)
        if self.published_ms is not None:
            check_integer("published_ms", self.published_ms, 0, MAX_SEQUENCE, "milliseconds since 1970")
        if self.expected_sequence is not None:
            check_integer("expected_sequence", self.expected_sequence, 0, MAX_SEQUENCE, "0: the key has no value")


@quick_init
@dataclass(frozen=True, kw_only=True, slots=True)
class AppendReport:
    """What became of an append.

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
class Fence:
    """Who consumes: the queue's incarnation and the number of the subscription; an older one is refused.

    :param incarnation: when the queue was made; a dropped and remade queue has another.
    """

    incarnation: int
    epoch: int

    def __post_init__(self) -> None:
        check_integer("incarnation", self.incarnation, 0, MAX_SEQUENCE, "from the subscription")
        check_integer("epoch", self.epoch, 0, MAX_SEQUENCE, "from the subscription")


def _check_kind(what: str, kind: str, *kinds: str) -> None:
    """Refuse a kind that is none of these.

    :raises UsageError: naming them.
    """
    if kind not in kinds:
        raise UsageError(f"{what} is {kind!r}: it must be one of {', '.join(kinds)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Where a queue is to be read from.

    :param kind: ``earliest``, ``latest``, ``sequence`` or ``time_ms``.
    :param value: number or time that the kind asks for.
    :raises UsageError: for another kind, or a value that does not go with it.
    """

    kind: str
    value: int | None = None

    def __post_init__(self) -> None:
        _check_kind("position", self.kind, "earliest", "latest", "sequence", "time_ms")
        if self.kind in ("earliest", "latest"):
            if self.value is not None:
                raise UsageError(f"position {self.kind} takes no value, not {self.value!r}")
        else:
            check_integer(f"position {self.kind}", self.value, 0, MAX_SEQUENCE, "where to begin")

    @classmethod
    def earliest(cls) -> Position:
        """Return the position before the oldest message."""
        return cls(kind="earliest")

    @classmethod
    def latest(cls) -> Position:
        """Return the position behind the newest message."""
        return cls(kind="latest")

    @classmethod
    def sequence(cls, number: int) -> Position:
        """Return the position from which the message with this number, or the next one, is delivered first.

        :raises UsageError: when it is not a whole number from 0.
        """
        return cls(kind="sequence", value=number)

    @classmethod
    def time_ms(cls, instant_ms: int) -> Position:
        """Return the position from which the first message is delivered that was stored then or later.

        :param instant_ms: milliseconds since 1970, UTC.
        :raises UsageError: when it is not a whole number from 0.
        """
        return cls(kind="time_ms", value=instant_ms)


@dataclass(frozen=True, kw_only=True, slots=True)
class Purge:
    """What to remove of a queue; numbers and cursor stay.

    :param kind: ``all``, ``acked`` or ``up_to``.
    :param sequence: last number to remove, with ``up_to``.
    """

    kind: str
    sequence: int | None = None

    def __post_init__(self) -> None:
        _check_kind("purge", self.kind, "all", "acked", "up_to")
        if self.kind == "up_to":
            check_integer("purge up to", self.sequence, 1, MAX_SEQUENCE, "a sequence number")
        elif self.sequence is not None:
            raise UsageError(f"purge of {self.kind} takes no sequence number, not {self.sequence!r}")

    @classmethod
    def everything(cls) -> Purge:
        """Return the choice of every message that is there when the purge begins."""
        return cls(kind="all")

    @classmethod
    def acked(cls) -> Purge:
        """Return the choice of what the consumer has acknowledged."""
        return cls(kind="acked")

    @classmethod
    def up_to(cls, sequence: int) -> Purge:
        """Return the choice of messages up to a number.

        :param sequence: last number to remove.
        :raises UsageError: when it is not a whole number from 1.
        """
        return cls(kind="up_to", sequence=sequence)


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
    """A message that retention lets go.

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


def check_key(key: Any) -> None:
    """Refuse what cannot be a message's key.

    :raises UsageError: naming the rule.
    """
    if type(key) is not bytes:
        raise UsageError(f"key is a {type(key).__name__}: it must be bytes")
    if len(key) > MAX_TEXT_BYTES:
        raise UsageError(f"key has {len(key)} bytes: at most {MAX_TEXT_BYTES}")


def check_appends(appends: Sequence[Append], rules: QueueRules) -> None:
    """Refuse a batch that no queue may take.

    :raises UsageError: for no entries, too many, or what is no entry.
    :raises PayloadTooLarge: naming size and limit.
    """
    if not 1 <= len(appends) <= MAX_APPENDS:
        raise UsageError(f"the append has {len(appends)} entries: it must have 1 to {MAX_APPENDS}")
    for append in appends:
        check_entry("an entry", append, rules.max_value_bytes)


def check_entry(name: str, append: Append, most: int) -> None:
    """Refuse what is no entry, or too large for a queue.

    :raises UsageError: naming what it is.
    :raises PayloadTooLarge: naming size and limit.
    """
    if type(append) is not Append:
        raise UsageError(f"{name} is {shown(append)}: it must be an Append")
    if len(append.value) > most:
        raise PayloadTooLarge(
            f"the value has {len(append.value)} bytes: this queue takes at most {most} (max_value_bytes)"
        )
