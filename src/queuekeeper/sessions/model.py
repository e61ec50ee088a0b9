"""What the stores of DEVICE sessions take, and the rules that hold in each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from queuekeeper.checks import check_integer, check_text, shown
from queuekeeper.errors import UsageError
from queuekeeper.keyspace import MAX_PACKET_ID, check_client_id
from queuekeeper.quick_init import quick_init
from queuekeeper.sessions.judge import (
    CONTENT_RULES,
    MAX_EXPIRY_INTERVAL_S,
    MAX_PACKET_BYTES,
    MAX_SERIAL,
    MAX_TEXT_BYTES,
    MAX_TIME_MS,
    BrokenRuleError,
    broken_rule,
)
from queuekeeper.sessions.pages import STORES, Layout

if TYPE_CHECKING:
    from queuekeeper.sessions.reports import PendingMessage

Owner: TypeAlias = Literal["postgres", "redis", "packed"]
"""Store that owns a session; ``redis`` is TBMQ's layout in Redis, ``packed`` the packed one of the same Redis."""

OWNER_OF: Mapping[Layout, Owner] = {Layout.TBMQ: "redis", Layout.PACKED: "packed"}
"""Owner of the sessions of a layout."""

OWNER_WORDS: Mapping[str, str] = {**STORES, "packed": "Redis, in the packed layout"}
"""Owners in words."""

StoreChoice: TypeAlias = Literal["owner", "redis", "postgres"]
"""Store in which to look for a session: the one that owns it, or a store by name."""

EpochOf: TypeAlias = Callable[[str], int | None]
"""Returns the epoch in which the caller knows a session; none when it knows none."""

MAX_PAYLOAD_BYTES = MAX_PACKET_BYTES
"""Largest payload of any store; ``StoreRules`` may set less."""

MAX_SUBSCRIPTION_ID = 268_435_455
_SHORT_TEXT = 1_024
_SMALL_PAYLOAD_BYTES = 1_048_576
MAX_BATCH = 5_000
"""Most messages of one save for one session."""


@dataclass(frozen=True, kw_only=True)
class StoreRules:
    """Limits that a store applies; the same for every store.

    :param limit: most messages of a session. A store removes the oldest beyond it: expired messages first, messages in
        flight last.
    :param default_ttl_s: life in seconds of a message without an expiry interval.
    :param session_expiry_s: seconds that a session's keys stay after its last message has expired; none for ever.
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

    def check_size(self, save: SessionSave) -> None:
        """Refuse a save with a larger payload than the rules allow.

        :raises UsageError: naming client, size and limit.
        """
        if save.largest_bytes > self.max_payload_bytes:
            raise UsageError(
                f"a payload for {save.client_id!r} has {save.largest_bytes} bytes: this store takes at most "
                f"{self.max_payload_bytes} (max_payload_bytes)"
            )


@quick_init
@dataclass(frozen=True, kw_only=True)
class NewMessage:
    """A PUBLISH to store for a session, with the fields of TBMQ's record.

    :param time_ms: when the broker received the message; its life is counted from this instant, also on a retry.
    :param qos: 1 or 2.
    :param expiry_interval_s: MQTT 5 Message Expiry Interval in seconds; none when the publisher set none. A value out
        of range does not fail the batch: the store refuses and counts this message.
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
        # Nearly every message is well within all bounds; this one test spares it the test of each field.
        if not (
            type(topic) is str
            and type(payload) is bytes
            and type(qos) is int
            and type(time_ms) is int
            and type(self.retain) is bool  # type: ignore[redundant-expr]  # callers may not check types
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
    """Messages to store for one session, in the order of delivery.

    :param source: name of what numbers the batches, such as a Kafka partition. With ``offset``, a retry stores nothing
        twice.
        A source has one batch per session in flight, and its offsets grow.
    :param offset: number of the batch, 0 or more.
    :ivar payload_bytes: size of all payloads together.
    :ivar largest_bytes: size of the largest payload.
    :ivar is_checked: the store has already checked each message, see ``check_payload``.
    :raises UsageError: for an empty client id, no messages or too many, or only one of source and offset.
    """

    client_id: str
    messages: tuple[NewMessage, ...]
    source: str | None = None
    offset: int | None = None
    payload_bytes: int = field(init=False, repr=False, compare=False)
    largest_bytes: int = field(init=False, repr=False, compare=False)
    is_checked: bool = field(default=False, init=False, repr=False, compare=False)

    @classmethod
    def checked(
        cls,
        *,
        client_id: str,
        messages: tuple[NewMessage, ...],
        sizes_bytes: Sequence[int],
        source: str | None,
        offset: int | None,
    ) -> Self:
        """Return a batch of messages that the caller has checked and measured one by one; neither is done again."""
        save = cls.__new__(cls)
        fields = {
            "client_id": client_id, "messages": messages, "source": source, "offset": offset, "is_checked": True,
            "payload_bytes": sum(sizes_bytes), "largest_bytes": max(sizes_bytes),
        }  # fmt: skip
        object.__setattr__(save, "__dict__", fields)
        return save

    def __post_init__(self) -> None:
        check_save(self)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Ack:
    """A PUBACK or PUBCOMP.

    :param serial: serial of the message that was sent under this packet id, so that a late answer cannot remove a newer
        message with the same id; none for any message with the id.
    :raises UsageError: when the packet id or the serial is out of range.
    """

    packet_id: int
    serial: int | None = None

    def __post_init__(self) -> None:
        check_packet_id(self.packet_id)
        check_serial(self.serial)


class Release(StrEnum):
    """What a PUBREC did."""

    RELEASED = "released"  # the record is PUBREL now, without a body and with its old expiry
    ALREADY = "already"  # it was PUBREL before
    MISSING = "missing"  # no message has this packet id (and serial)


def check_packet_id(packet_id: Any) -> None:
    """Refuse a value that is not a packet id.

    :raises UsageError: naming the value and the rule.
    """
    check_integer("packet_id", packet_id, 1, MAX_PACKET_ID, "MQTT 5 section 2.2.1")


def check_expected(expected: Any) -> None:
    """Refuse a value that is neither a packet id nor none.

    :raises UsageError: naming the value and the rule.
    """
    if expected is not None:
        check_integer("expected", expected, 1, MAX_PACKET_ID, "or none; MQTT 5 section 2.2.1")


def check_serial(serial: Any) -> None:
    """Refuse a value that is neither a serial nor none; -1 stands before all serials.

    :raises UsageError: naming the value and the rule.
    """
    if serial is not None:
        check_integer("serial", serial, -1, MAX_SERIAL, "of a message that was fetched")


def check_message(message: NewMessage) -> None:
    """Refuse a message that breaks a rule; a save judges the expiry interval.

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
    """Return whether a message has no properties of MQTT 5; most messages have none."""
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
    """Refuse a batch that breaks a rule.

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
