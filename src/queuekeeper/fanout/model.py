"""What fan-out queues take and say, and what is refused before a server is asked."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from queuekeeper.checks import check_choice, check_fields, check_instant, check_integer, check_text
from queuekeeper.errors import InvalidLife, InvalidName, PayloadTooLarge, QueuekeeperError, UsageError
from queuekeeper.quick_init import quick_init

DAY_MS = 86_400_000
MAX_NAME = 255
"""Most characters of a queue's or consumer's name."""

MAX_TEXT_BYTES = 65_535
"""Longest content type, order key, deduplication id, and name or value of a header."""

MAX_HEADERS = 128
MAX_BODY_BYTES = 268_435_455
"""Most that rules may allow; a value of Redis has at most 512 MB."""

MAX_MS = 10 * 365 * DAY_MS
"""Longest life, lease, delay or retention."""

MAX_LANES = 64
MAX_CLAIM = 1_000
"""Most messages of one claim, and most ids of one call."""

MAX_PAGE = 1_000
DEFAULT_PAGE = 100
DEFAULT_MAX_STALLS = 3
DEFAULT_LEASE_MS = 30_000
DEFAULT_FINDINGS = 100
_SEPARATORS = frozenset(":{}")
SUSPECT_STALLS = 2
"""A message whose lease ran out so often may be what ends its workers, and is worked on alone."""


class Start(StrEnum):
    """What a consumer that registers gets besides what is published from then on."""

    NEW = "new"  # nothing
    HELD = "held"  # what was published while nobody was registered
    RETAINED = "retained"  # every message that the queue still has, for whomever it was


class Mode(StrEnum):
    """Whether messages of a consumer may be worked on at the same time."""

    FIFO = "fifo"  # handed out in order, to as many workers as ask; a failed one comes later
    ORDERED = "ordered"  # one at a time per lane, and none before its predecessor is done or given up


class WhenFailed(StrEnum):
    """What becomes of an ordered consumer when a message has failed too often."""

    SKIP = "skip"  # it goes to the dead letters, and the next one follows
    HALT = "halt"  # it goes to the dead letters, and the consumer is paused until somebody resumes it


class WhenFull(StrEnum):
    """What a publish does when a consumer has as many messages as it may."""

    REJECT = "reject"  # nobody gets the message; the error names the consumer
    DROP_OLDEST = "drop_oldest"  # this consumer loses its oldest waiting message, counted


class WhenNobody(StrEnum):
    """What a publish does when no consumer is registered."""

    HOLD = "hold"  # keep the message for a consumer that adopts it
    REFUSE = "refuse"  # nothing is stored


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


@dataclass(frozen=True, kw_only=True)
class FanoutRules:
    """Bounds that a caller keeps; the server is not asked about what breaks them.

    :param max_body_bytes: larger payloads are refused before anything is written.
    :raises UsageError: naming parameter, value and rule.
    """

    max_body_bytes: int = 1_048_576

    def __post_init__(self) -> None:
        check_integer("max_body_bytes", self.max_body_bytes, 1, MAX_BODY_BYTES)


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """How a queue behaves towards publishers.

    :param max_held: most messages that are held while nobody is registered; a publish is refused beyond them.
    :param deduplication_ms: how long a deduplication id is remembered, unless its message asks for less.
    :raises UsageError: naming parameter, value and rule.
    """

    when_nobody: WhenNobody = WhenNobody.HOLD
    max_held: int = 100_000
    deduplication_ms: int = DAY_MS

    def __post_init__(self) -> None:
        check_choice("when_nobody", self.when_nobody, WhenNobody)
        check_integer("max_held", self.max_held, 1, 2**31 - 1)
        check_integer("deduplication_ms", self.deduplication_ms, 1, MAX_MS)


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions:
    """How a consumer is served.

    :param lanes: parts of an ordered consumer that are worked on at the same time; messages with the same order key
        are in the same lane. It can only be changed while nothing waits.
    :param max_length: most messages that may wait, in each lane; none for no bound.
    :param dead_retention_ms: how long a dead letter is kept at least.
    :param idle_expiry_ms: the consumer may be removed when it was not seen for so long; none for never.
    :raises UsageError: naming parameter, value and rule.
    """

    mode: Mode = Mode.FIFO
    when_failed: WhenFailed = WhenFailed.SKIP
    lanes: int = 1
    max_length: int | None = None
    when_full: WhenFull = WhenFull.REJECT
    dead_retention_ms: int = 7 * DAY_MS
    idle_expiry_ms: int | None = None

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, Mode)
        check_choice("when_failed", self.when_failed, WhenFailed)
        check_choice("when_full", self.when_full, WhenFull)
        check_integer("lanes", self.lanes, 1, MAX_LANES)
        if self.lanes > 1 and self.mode is not Mode.ORDERED:
            raise UsageError(f"lanes is {self.lanes}: only an ordered consumer has more than one")
        if self.max_length is not None:
            check_integer("max_length", self.max_length, 1, 2**31 - 1)
        check_integer("dead_retention_ms", self.dead_retention_ms, 1, MAX_MS)
        if self.idle_expiry_ms is not None:
            check_integer("idle_expiry_ms", self.idle_expiry_ms, 1, MAX_MS)


@quick_init
@dataclass(frozen=True, kw_only=True)
class NewMessage:
    """A message to publish, at once or for later.

    One that is for later goes to the consumers that are registered when it is published, and nobody gets it before its
    time; then it is next behind what waits, also among messages of its order key. An instant that has passed means at
    once.

    :param content_type: MIME type of the payload, such as application/json.
    :param order_key: messages with the same one are kept in order, also by ordered consumers with several lanes.
    :param ttl_ms: time after which the message expires. It begins when the message is published, or due.
    :param delay_ms: time for which nobody gets the message yet, by the server's clock.
    :param due_at: the same as an instant with a time zone; one of the two.
    :param deduplication_id: a second publish with the same id stores nothing.
    :param deduplication_ms: how long the queue remembers that id; none for as long as its options say, and no longer.
    :raises UsageError: naming field, value and rule; ``InvalidLife`` for a life of 0 or less.
    """

    body: bytes = field(repr=False)
    content_type: str | None = None
    order_key: str | None = None
    ttl_ms: int = DAY_MS
    deduplication_id: str | None = None
    deduplication_ms: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    delay_ms: int | None = None
    due_at: datetime | None = None

    def __post_init__(self) -> None:
        if type(self.body) is not bytes:
            raise UsageError(f"body is a {type(self.body).__name__}: it must be bytes")
        if type(self.ttl_ms) is int and self.ttl_ms < 1:
            raise InvalidLife(f"ttl_ms is {self.ttl_ms}: a message must have a life of 1 ms or more")
        check_integer("ttl_ms", self.ttl_ms, 1, MAX_MS)
        for name, value in (
            ("content_type", self.content_type),
            ("order_key", self.order_key),
            ("deduplication_id", self.deduplication_id),
        ):
            if value is not None:
                check_text(name, value, most_bytes=MAX_TEXT_BYTES)
        if self.deduplication_ms is not None:
            check_integer("deduplication_ms", self.deduplication_ms, 1, MAX_MS)
        if self.delay_ms is not None:
            check_integer("delay_ms", self.delay_ms, 0, MAX_MS)
        if self.due_at is not None:
            check_instant("due_at", self.due_at)
            if self.delay_ms is not None:
                raise UsageError("delay_ms and due_at both say when the message is due: name one of them")
        if self.deduplication_id == "":
            raise UsageError("deduplication_id is empty: name the message, or take none")
        headers: Any = self.headers
        if type(headers) is not dict and not isinstance(headers, Mapping):
            check_fields(self, "headers")
        if len(self.headers) > MAX_HEADERS:
            raise UsageError(f"headers has {len(self.headers)} entries: at most {MAX_HEADERS}")
        for name, value in self.headers.items():
            check_text("header name", name, most_bytes=MAX_TEXT_BYTES)
            check_text(f"header {name!r}", value, most_bytes=MAX_TEXT_BYTES)


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
    """What became of one message.

    :param id: none when it was not published.
    :param consumers: how many got it.
    :param held: nobody was registered; it waits for a consumer that adopts it.
    :param duplicate: its deduplication id was published before; ``id`` is that message's, and nothing was stored.
    :param dropped: oldest messages that full consumers have lost for it, and for those that were published in one go
        with it.
    :param error: set when it was not published, or when nobody knows; then nothing else is.
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
    :param sampled: messages next in line that ``only_holder`` speaks of.
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


def _check_name(kind: str, name: Any, *, separators: frozenset[str] = frozenset()) -> None:
    """Refuse what cannot be a name.

    :param kind: ``queue`` or ``consumer``.
    :param separators: characters that the keys of the queue need for themselves.
    :raises InvalidName: naming the value and the rule.
    """
    if type(name) is not str:
        raise InvalidName(f"name of the {kind} is {name!r}: it must be text")
    if not 1 <= len(name) <= MAX_NAME:
        raise InvalidName(f"name of the {kind} has {len(name)} characters: 1 to {MAX_NAME}")
    # What is printable holds none of these, and nearly every name is.
    if name.isprintable() and separators.isdisjoint(name):
        return
    for character in name:
        if unicodedata.category(character) in {"Cc", "Cs"}:
            raise InvalidName(f"name of the {kind} {name!r} holds {character!r}: no control characters or surrogates")
        if character in separators:
            raise InvalidName(f"name of the {kind} {name!r} holds {character!r}: it separates parts of a key")


def check_queue(queue: Any) -> None:
    """Refuse what cannot be the name of a queue.

    :raises InvalidName: naming the value and the rule.
    """
    _check_name("queue", queue)


def check_consumer(consumer: Any) -> None:
    """Refuse what cannot be the name of a consumer.

    :raises InvalidName: naming the value and the rule.
    """
    _check_name("consumer", consumer, separators=_SEPARATORS)


def check_body(message: NewMessage, rules: FanoutRules) -> None:
    """Refuse a payload that the rules do not allow.

    :raises PayloadTooLarge: naming its size and the bound.
    """
    if len(message.body) > rules.max_body_bytes:
        raise PayloadTooLarge(f"body has {len(message.body)} bytes: at most {rules.max_body_bytes}")
