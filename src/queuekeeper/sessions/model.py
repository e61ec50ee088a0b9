"""What the stores of DEVICE sessions take and say, and the rules that hold in each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Self, TypeAlias

from queuekeeper.checks import check_integer, check_text, shown
from queuekeeper.errors import QueuekeeperError, UsageError
from queuekeeper.keyspace import MAX_PACKET_ID, check_client_id
from queuekeeper.quick_init import quick_init
from queuekeeper.sessions.judge import (
    CONTENT_RULES,
    MAX_PACKET_BYTES,
    MAX_SERIAL,
    MAX_TEXT_BYTES,
    MAX_TIME_MS,
    BrokenRuleError,
    Reason,
    broken_rule,
)

StoreChoice: TypeAlias = Literal["owner", "redis", "postgres"]
"""Which store a session is looked for in: the one that owns it, or one of the two."""

EpochOf: TypeAlias = Callable[[str], int | None]
"""Says under which epoch the caller knows a session; none when it does not."""

DEFAULT_PAGE = 500
MAX_PAGE = 10_000
"""Most messages of one inspection; longer queues are read page by page."""

MAX_PAYLOAD_BYTES = MAX_PACKET_BYTES
"""A store may be told to take less."""

MAX_SUBSCRIPTION_ID = 268_435_455
_SHORT_TEXT = 1_024
_SMALL_PAYLOAD_BYTES = 1_048_576
MAX_EXPIRY_INTERVAL_S = 2**32 - 1
MAX_BATCH = 5_000
"""Most messages of one save for one session."""


@dataclass(frozen=True, kw_only=True)
class StoreRules:
    """Bounds that a store keeps; the same in each.

    :param limit: most messages of a session; the oldest go when there are more, expired ones first and those in
        flight last.
    :param default_ttl_s: life of a message without an expiry interval.
    :param session_expiry_s: how long a session's keys outlive the end of its last message's life; none for ever.
    :param max_payload_bytes: larger payloads are refused before anything is written.
    :raises UsageError: naming parameter, value and rule.
    """

    limit: int = 10_000
    default_ttl_s: int = 604_800
    session_expiry_s: int | None = 604_800
    max_payload_bytes: int = 1_048_576

    def __post_init__(self) -> None:
        check_integer("limit", self.limit, 1, MAX_PACKET_ID, "a session has no more packet ids (MQTT 5 section 2.2.1)")
        check_integer("default_ttl_s", self.default_ttl_s, 1, MAX_EXPIRY_INTERVAL_S, "a message must have a life")
        if self.session_expiry_s is not None:
            check_integer("session_expiry_s", self.session_expiry_s, 0, MAX_EXPIRY_INTERVAL_S, "or none, for ever")
        check_integer("max_payload_bytes", self.max_payload_bytes, 1, MAX_PAYLOAD_BYTES, "MQTT 5 section 2.1.4")


class Problem(StrEnum):
    """Why a reference in Redis, or a row of PostgreSQL, leads to no message."""

    DANGLING = "dangling"  # the payload key has expired or was removed
    FOREIGN = "foreign"  # the reference does not name a payload key of this session, and is not followed
    UNREADABLE = "unreadable"  # the payload key or the row holds something else than a message that can be delivered


@dataclass(frozen=True, kw_only=True)
class MessageView:
    """One pending message without its content.

    What the store does not say, or what a broken reference hides, is none.

    :param serial: place in the order of delivery.
    :param packet_type: ``PUBLISH``, or ``PUBREL`` once the client has sent PUBREC.
    :param payload_bytes: size of the payload itself, without base64.
    :param time_ms: when the broker received it.
    :param expires_at_ms: end of its life; none for a record in Redis that has no end.
    :param problem: set when the reference leads to no message, or nobody can deliver the one that it leads to.
    :param reason: rule that the message breaks, in the words of the quarantine.
    """

    serial: int
    packet_id: int | None = None
    packet_type: str | None = None
    qos: int | None = None
    topic: str | None = None
    payload_bytes: int | None = None
    time_ms: int | None = None
    expires_at_ms: int | None = None
    problem: Problem | None = None
    reason: Reason | None = None


@dataclass(frozen=True, kw_only=True)
class ImportView:
    """What the session hash in Redis says about the migration that wrote the session.

    :param state: number of the next chunk, or ``done``.
    :param references: references that the import left.
    :param last_packet_id: last packet id that it wrote.
    :param touched: whether somebody has used the session since.
    """

    plan_id: str
    state: str
    references: int | None
    last_packet_id: int | None
    touched: bool


@dataclass(frozen=True, kw_only=True)
class SessionCounts:
    """What has become of a session's messages beside delivery, as far as its store has seen it.

    :param trimmed: live messages removed because the session was over its limit.
    :param expired: messages whose life was over when they were saved or found.
    :param refused: messages refused for their expiry interval.
    :param quarantined: records put aside because nobody could read them.
    """

    trimmed: int = 0
    expired: int = 0
    refused: int = 0
    quarantined: int = 0


@dataclass(frozen=True, kw_only=True)
class SessionView:
    """A session and one page of its messages, in the order of delivery.

    :param store: ``redis`` or ``postgres``.
    :param exists: whether the store holds anything of the session.
    :param messages: all messages of the session; references in Redis, rows in PostgreSQL.
    :param offset: messages before the page.
    :param page: messages of the page.
    :param last_serial: serial given out last, where the store keeps it.
    :param delivered_serial: messages up to it have been sent; none when the store does not say.
    :param counts: none when the store has no record of its own for the session.
    :param owner: store that owns the session, where Redis says so.
    :param imported: none when no migration wrote the session.
    """

    client_id: str
    store: str
    exists: bool
    messages: int
    offset: int
    page: tuple[MessageView, ...]
    last_packet_id: int | None
    last_serial: int | None = None
    delivered_serial: int | None = None
    counts: SessionCounts | None = None
    owner: str | None = None
    epoch: int | None = None
    imported: ImportView | None = None

    @property
    def next_offset(self) -> int | None:
        """Offset of the next page, or none at the end."""
        reached = self.offset + len(self.page)
        return reached if self.page and reached < self.messages else None

    @property
    def payload_bytes(self) -> int:
        """Size of all payloads of the page."""
        return sum(message.payload_bytes or 0 for message in self.page)

    @property
    def problems(self) -> dict[Problem, int]:
        """Broken references of the page by kind."""
        counts: dict[Problem, int] = {}
        for message in self.page:
            if message.problem is not None:
                counts[message.problem] = counts.get(message.problem, 0) + 1
        return counts


class Refusal(StrEnum):
    """Why one message of a batch was not stored, while its neighbours were."""

    EXPIRED = "expired"  # its life, counted from its own time, is over
    EXPIRY_OUT_OF_RANGE = "expiry_out_of_range"  # the interval is not four unsigned bytes (MQTT 5 section 3.3.2.3.3)


@quick_init
@dataclass(frozen=True, kw_only=True)
class NewMessage:
    """A PUBLISH to keep for a session, with the fields of TBMQ's record.

    :param time_ms: when the broker received it; its life is counted from here, on every retry.
    :param qos: 1 or 2.
    :param expiry_interval_s: MQTT 5 Message Expiry Interval; None if it has none. A value out of range does not fail
        the batch: the message is refused and counted.
    :param user_properties: pairs in order; a name may come twice (MQTT 5 section 3.3.2.3.7).
    :param subscription_ids: each 1 to 268,435,455 (MQTT 5 section 3.3.2.3.8); TBMQ 1.x has no column for them.
    :raises UsageError: naming field, value and rule.
    """

    topic: str
    payload: bytes = field(repr=False)
    qos: int
    time_ms: int
    retain: bool = False
    expiry_interval_s: int | None = None
    payload_format_indicator: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = field(default=None, repr=False)
    user_properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    subscription_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        topic, payload, qos, time_ms = self.topic, self.payload, self.qos, self.time_ms
        # What is well within all bounds, as nearly every message is, need not be held to them one by one.
        if not (
            type(topic) is str
            and type(payload) is bytes
            and type(qos) is int
            and type(time_ms) is int
            and type(self.retain) is bool  # type: ignore[redundant-expr]  # who calls may not check types
            and 0 < len(topic) <= _SHORT_TEXT
            and topic.isascii()
            and "\0" not in topic
            and 1 <= qos <= 2
            and 0 <= time_ms <= MAX_TIME_MS
            and len(payload) <= _SMALL_PAYLOAD_BYTES
            and is_plain(self)
        ):
            check_message(self)


@quick_init
@dataclass(frozen=True, kw_only=True)
class SessionSave:
    """Messages for one session, in the order of delivery.

    :param source: who numbers the batches, for example a Kafka partition; with ``offset`` it makes a retry harmless.
        A source has one batch per session in flight, and its offsets grow.
    :param offset: number of the batch, 0 or more.
    :ivar payload_bytes: of all messages together. Like the next one it is counted here, once, for all stores.
    :ivar largest_bytes: of the message with the largest payload.
    :ivar is_checked: its maker has had each message checked by the store, at a door of its own.
    :raises UsageError: for an empty client id, no messages or too many, or only one of source and offset.
    """

    client_id: str
    messages: tuple[NewMessage, ...]
    source: str | None = None
    offset: int | None = None
    payload_bytes: int = field(init=False, repr=False, compare=False)
    largest_bytes: int = field(init=False, repr=False, compare=False)
    is_checked: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_save(self)
        self._count()

    @classmethod
    def checked(
        cls, *, client_id: str, messages: tuple[NewMessage, ...], source: str | None, offset: int | None
    ) -> Self:
        """Return a batch whose parts its maker has checked one by one, at a door of its own: they are not again."""
        save = cls.__new__(cls)
        fields = {"client_id": client_id, "messages": messages, "source": source, "offset": offset, "is_checked": True}
        object.__setattr__(save, "__dict__", fields)
        save._count()
        return save

    def _count(self) -> None:
        payload_bytes = largest_bytes = 0
        for message in self.messages:
            if type(message) is not NewMessage:
                kind = type(message).__name__
                raise UsageError(f"a message for {self.client_id!r} is a {kind}: it must be a NewMessage")
            size_bytes = len(message.payload)
            payload_bytes += size_bytes
            if size_bytes > largest_bytes:  # noqa: PLR1730 - a call for each message takes twice as long
                largest_bytes = size_bytes
        fields = self.__dict__
        fields["payload_bytes"] = payload_bytes
        fields["largest_bytes"] = largest_bytes


@quick_init
@dataclass(frozen=True, kw_only=True)
class SaveReport:
    """What became of one :class:`SessionSave`.

    :param packet_ids: packet id of each message, none where it was refused.
    :param serials: serial of each message, none where it was refused.
    :param refused: why, by position in the batch.
    :param trimmed: messages removed because the session was over its limit, live ones only.
    :param trimmed_in_flight: those of ``trimmed`` that had been delivered and not acknowledged.
    :param dead: references removed whose message had expired; they make room before live messages do.
    :param replayed: the batch had been stored before; nothing was stored again.
    :param forgotten: a replayed batch is older than the last one of its source, so its ids are no longer known.
    :param replicated: whether as many replicas as asked for have it; none when none were asked for.
    :param error: set when this session's part failed; then nothing else is, and other sessions are not affected.
    """

    client_id: str
    packet_ids: tuple[int | None, ...] = ()
    serials: tuple[int | None, ...] = ()
    refused: Mapping[int, Refusal] = field(default_factory=dict)
    trimmed: int = 0
    trimmed_in_flight: int = 0
    dead: int = 0
    replayed: bool = False
    forgotten: bool = False
    replicated: bool | None = None
    error: QueuekeeperError | None = None

    def __post_init__(self) -> None:
        error = self.error
        if error is not None:
            # One error may have ended the saves of many sessions.
            if error.client_id not in (None, self.client_id):
                error = self.__dict__["error"] = copy(error)
                error.client_id = self.client_id
            error.about(client_id=self.client_id)

    @property
    def stored(self) -> int:
        """Messages that are in the store because of this batch."""
        return sum(packet_id is not None for packet_id in self.packet_ids)


@quick_init
@dataclass(frozen=True, kw_only=True)
class PendingMessage:
    """A message to deliver, or an exchange to finish.

    :param packet_type: ``PUBLISH``, or ``PUBREL`` once the client has sent PUBREC; the latter has no payload any more.
    :param expires_at_ms: end of its life; none without one.
    :param expiry_interval_s: as the publisher set it; what is left of it is :meth:`remaining_s`.
    :param redelivery: it has been sent before, so PUBLISH carries DUP (MQTT 5 section 3.3.1.1).
    """

    serial: int
    packet_id: int
    packet_type: str
    topic: str
    payload: bytes = field(repr=False)
    qos: int
    time_ms: int
    expires_at_ms: int | None
    redelivery: bool
    retain: bool = False
    expiry_interval_s: int | None = None
    payload_format_indicator: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = field(default=None, repr=False)
    user_properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    subscription_ids: tuple[int, ...] = ()

    def remaining_s(self, *, now_ms: int) -> int | None:
        """Return the expiry interval to send on, less the time it has waited (MQTT 5 section 3.3.2.3.3).

        :returns: none when the publisher set none; 0 when its life is over.
        """
        if self.expiry_interval_s is None:
            return None
        return max(0, self.expiry_interval_s - max(0, -((self.time_ms - now_ms) // 1000)))


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingPage:
    """One page of a session's messages, in the order of delivery.

    :param after_serial: pass it to the next call; it has moved past expired and unreadable records too.
    :param backlog_serial: highest serial when the first page was read. A message saved later has a greater one, and
        must wait until the pages have reached this serial.
    :param more: whether there may be messages up to ``backlog_serial`` that were not read yet.
    :param expired: references of the page that led to no message.
    :param unreadable: records of the page that nobody can read; they were put in quarantine.
    """

    client_id: str
    messages: tuple[PendingMessage, ...]
    after_serial: int
    backlog_serial: int
    more: bool
    expired: int = 0
    unreadable: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Ack:
    """A PUBACK or PUBCOMP.

    :param serial: of the message that was sent under this packet id; with it a late answer can never remove a newer
        message that got the same id. None: whatever has the id.
    :raises UsageError: when the packet id or the serial is out of range.
    """

    packet_id: int
    serial: int | None = None

    def __post_init__(self) -> None:
        check_packet_id(self.packet_id)
        check_serial(self.serial)


@dataclass(frozen=True, kw_only=True, slots=True)
class AckReport:
    """What acknowledgements removed.

    :param removed: messages removed.
    :param unknown: acknowledgements that met no message, or one of another serial.
    """

    client_id: str
    removed: int
    unknown: int


class Release(StrEnum):
    """What a PUBREC did."""

    RELEASED = "released"  # the record is PUBREL now; its body is gone and its expiry is what it was
    ALREADY = "already"  # it was PUBREL before
    MISSING = "missing"  # no message has this packet id (and serial)


@dataclass(frozen=True, kw_only=True, slots=True)
class PurgeReport:
    """What a purge removed.

    :param messages: references or rows removed; in a dry run, what would be.
    :param kept: messages that were saved while the purge ran, and stay.
    :param dry_run: nothing was removed.
    """

    client_id: str
    messages: int
    kept: int
    dry_run: bool


@dataclass(kw_only=True, slots=True)
class PurgeProgress:
    """How far a purge has come, so that it can go on where it was interrupted, also in another store.

    :param up_to_serial: what has a greater serial was saved meanwhile; none before the first step.
    :param removed: references or rows removed so far.
    """

    up_to_serial: int | None = None
    removed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportPage:
    """A part of a session as JSON Lines.

    :param lines: each a JSON object, without line end; the first page begins with the session's own line.
    :param after_serial: pass it to the next call.
    :param more: whether there is a next page.
    :param unreadable: records left out because nobody can read them.
    """

    lines: tuple[bytes, ...]
    after_serial: int
    more: bool
    unreadable: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportReport:
    """What an import of JSON Lines stored.

    :param stored: messages that are in the session now.
    :param expired: messages whose life was over.
    """

    client_id: str
    stored: int
    expired: int
    last_packet_id: int | None


def check_packet_id(packet_id: Any) -> None:
    """Refuse what is not a packet id.

    :raises UsageError: naming the value and the rule.
    """
    check_integer("packet_id", packet_id, 1, MAX_PACKET_ID, "MQTT 5 section 2.2.1")


def check_expected(expected: Any) -> None:
    """Refuse what can be no last packet id that somebody expects.

    :raises UsageError: naming the value and the rule.
    """
    if expected is not None:
        check_integer("expected", expected, 1, MAX_PACKET_ID, "or none; MQTT 5 section 2.2.1")


def check_serial(serial: Any) -> None:
    """Refuse what is no serial that a message may have had, nor none; -1 is the one before all others.

    :raises UsageError: naming the value and the rule.
    """
    if serial is not None:
        check_integer("serial", serial, -1, MAX_SERIAL, "of a message that was fetched")


def check_message(message: NewMessage) -> None:
    """Refuse a message that no store may take; its expiry interval is judged when it is saved.

    :raises UsageError: naming field, value and rule.
    """
    if type(message.payload) is not bytes:
        raise UsageError(f"payload is {shown(message.payload)}: it must be bytes")
    _check_type("topic", message.topic, str)
    _check_type("qos", message.qos, int)
    _check_type("time_ms", message.time_ms, int)
    if type(message.retain) is not bool:
        raise UsageError(f"retain is {shown(message.retain)}: it must be True or False")
    _check_property_types(message)
    values = {
        "topic": message.topic,
        "qos": message.qos,
        "time": message.time_ms,
        "payload": len(message.payload),
        "payload_format_indicator": message.payload_format_indicator,
        "content_type": message.content_type,
        "response_topic": message.response_topic,
        "correlation_data": None if message.correlation_data is None else len(message.correlation_data),
        "user_properties": message.user_properties,
    }
    broken = broken_rule(values, CONTENT_RULES)
    if broken is not None:
        raise BrokenRuleError(broken.reason, broken.words(values))


def is_plain(message: NewMessage | PendingMessage) -> bool:
    """Return whether a message has none of the properties of MQTT 5, as most have none."""
    return (
        message.expiry_interval_s is None
        and message.payload_format_indicator is None
        and message.content_type is None
        and message.response_topic is None
        and message.correlation_data is None
        and message.user_properties == ()
        and message.subscription_ids == ()
    )


def _check_type(name: str, value: Any, kind: type) -> None:
    if type(value) is not kind:
        raise UsageError(f"{name} is {shown(value)}: it must be {'text' if kind is str else 'an integer'}")


def _check_property_types(message: NewMessage) -> None:
    if message.expiry_interval_s is not None:
        _check_type("expiry_interval_s", message.expiry_interval_s, int)
    if message.payload_format_indicator is not None:
        _check_type("payload_format_indicator", message.payload_format_indicator, int)
    if message.content_type is not None:
        _check_type("content_type", message.content_type, str)
    if message.response_topic is not None:
        _check_type("response_topic", message.response_topic, str)
    if message.correlation_data is not None and type(message.correlation_data) is not bytes:
        raise UsageError(f"correlation_data is {shown(message.correlation_data)}: it must be bytes")
    if type(message.user_properties) is not tuple:
        raise UsageError(f"user_properties is {shown(message.user_properties)}: it must be a tuple of pairs")
    for pair in message.user_properties:
        if type(pair) is not tuple or len(pair) != 2:
            raise UsageError(f"user_properties holds {shown(pair)}: each must be a pair of texts")
        _check_type("user property name", pair[0], str)
        _check_type("user property value", pair[1], str)
    if type(message.subscription_ids) is not tuple:
        raise UsageError(f"subscription_ids is {shown(message.subscription_ids)}: it must be a tuple of integers")
    for subscription_id in message.subscription_ids:
        check_integer("subscription_id", subscription_id, 1, MAX_SUBSCRIPTION_ID, "MQTT 5 section 3.3.2.3.8")


def check_save(save: SessionSave) -> None:
    """Refuse a batch that no store may take.

    :raises UsageError: naming field, value and rule.
    """
    check_client_id(save.client_id)
    if type(save.messages) is not tuple:
        raise UsageError(f"messages of the save for {save.client_id!r} is {shown(save.messages)}: it must be a tuple")
    if not save.messages:
        raise UsageError(f"the save for {save.client_id!r} has no messages")
    if len(save.messages) > MAX_BATCH:
        raise UsageError(f"the save for {save.client_id!r} has {len(save.messages)} messages: at most {MAX_BATCH}")
    if (save.source is None) != (save.offset is None):
        raise UsageError("source and offset go together: name both or neither")
    if save.source is not None:
        check_text("source", save.source, most_bytes=MAX_TEXT_BYTES, filled=True)
        check_integer("offset", save.offset, 0, 2**53 - 1, "a number of the source's")
