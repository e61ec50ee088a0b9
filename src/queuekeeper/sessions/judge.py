"""The rules that say whether a DEVICE message can be stored and delivered: one rule per field, the only definition.

A message passes when both stores can hold it and MQTT 5 can carry it. Saves, fetches, snapshots and inspections
ask :func:`broken_rule`; the offline migration and its verification apply the same :data:`RULES` to Arrow's columns
(``queuekeeper.migration.offline.judging``), and SQL takes its bounds from :func:`sql_bounds`. A property test holds
them all to the same verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from json import JSONDecoder
from typing import Any, Literal

import orjson

from queuekeeper.errors import UsageError
from queuekeeper.keyspace import MAX_PACKET_ID, is_scattered

MAX_SERIAL = 2**53 - 1
"""Greatest serial that every store keeps exactly, with its successor; the score of a sorted set is a double."""

MAX_TIME_MS = 253_402_300_799_999
"""End of the year 9999; the sum of it and any expiry interval is still an exact double."""

MAX_EXPIRY_INTERVAL_S = 2**32 - 1
"""Longest life of a message (MQTT 5 section 3.3.2.3.3)."""

MAX_TEXT_BYTES = 65_535
"""Longest UTF-8 string and longest binary data of MQTT (MQTT 5 sections 1.5.4 and 1.5.6)."""

MAX_PACKET_BYTES = 268_435_455
"""Largest remaining length of an MQTT packet (MQTT 5 section 2.1.4)."""

PACKET_FIXED_BYTES = 27
"""Bytes of the lengths, packet id, expiry interval, payload format indicator, topic alias and property names in a
PUBLISH that has all of them."""

PAIR_FIXED_BYTES = 5
"""Bytes that the identifier and the two lengths of a user property take."""


class Reason(StrEnum):
    """Why a row or a record cannot be stored or delivered."""

    CLIENT_ID_EMPTY = "client_id_empty"
    CLIENT_ID_SCATTERED = "client_id_scattered"  # the id begins with a closing brace, and the target is a cluster
    PACKET_ID_DUPLICATE = "packet_id_duplicate"  # a newer pending message of the client has the same packet id
    PACKET_ID_OUT_OF_RANGE = "packet_id_out_of_range"  # null, 0, negative or over 65,535
    PACKET_TYPE_UNKNOWN = "packet_type_unknown"  # neither PUBLISH nor PUBREL
    QOS_OUT_OF_RANGE = "qos_out_of_range"  # neither 1 nor 2
    SERIAL_OUT_OF_RANGE = "serial_out_of_range"  # negative or over 2^53 - 1: not exact as a sorted set's score
    TIME_OUT_OF_RANGE = "time_out_of_range"  # negative, or so far ahead that expiry cannot be expressed
    TOPIC_EMPTY = "topic_empty"
    TOPIC_INVALID = "topic_invalid"  # over 65,535 bytes, or text that MQTT cannot carry
    USER_PROPERTIES_INVALID = "user_properties_invalid"  # not the JSON that TBMQ writes, or text that MQTT cannot carry
    PAYLOAD_FORMAT_INVALID = "payload_format_invalid"  # the payload format indicator is neither 0 nor 1
    CONTENT_TYPE_INVALID = "content_type_invalid"  # over 65,535 bytes, or text that MQTT cannot carry
    RESPONSE_TOPIC_INVALID = "response_topic_invalid"  # likewise
    CORRELATION_DATA_TOO_LONG = "correlation_data_too_long"  # over 65,535 bytes
    PACKET_TOO_LARGE = "packet_too_large"  # over the 268,435,455 bytes of an MQTT packet
    LAST_PACKET_ID_OUT_OF_RANGE = "last_packet_id_out_of_range"  # of a session row


class BrokenRuleError(UsageError):
    """A message that breaks a rule, so that no store accepts it."""

    def __init__(self, reason: Reason, words: str) -> None:
        super().__init__(words)
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class ColumnRule:
    """The rule of one column.

    :param column: column of ``device_publish_msg``.
    :param reason: reason under which a message that breaks the rule is quarantined.
    """

    column: str
    reason: Reason


@dataclass(frozen=True, kw_only=True)
class Bounds(ColumnRule):
    """Bounds of a number, or of the size in bytes of a text or of binary data.

    :param measure: ``text`` for a text, whose size is counted here; of binary data the caller gives the size.
    :param optional: whether the value may be absent.
    :param rule: source of the bounds, such as a section of MQTT 5.
    :param name: name of the field in the stores' model, when it differs from the column's.
    :param must: the bounds in words, for messages where the numbers alone do not explain them.
    """

    least: int
    most: int
    rule: str
    measure: Literal["number", "text", "bytes"] = "number"
    optional: bool = False
    name: str = ""
    must: str = ""

    def breaks(self, values: Mapping[str, Any]) -> bool:
        """Return whether a message breaks the rule."""
        value = values[self.column]
        if value is None:
            return not self.optional
        size = text_bytes(value) if self.measure == "text" else value
        return size is None or not self.least <= size <= self.most

    def words(self, values: Mapping[str, Any]) -> str:
        """Return a sentence with the rule and the value that breaks it, without content of the message."""
        value, name = values[self.column], self.name or self.column
        if value is None:
            return f"{name} is missing ({self.rule})"
        if self.measure == "number":
            return f"{name} is {value}: {self.must or f'it must be {self.least} to {self.most}'} ({self.rule})"
        return too_long(name, value, most=self.most, rule=self.rule)


@dataclass(frozen=True, kw_only=True)
class NotEmpty(ColumnRule):
    """A text that must not be empty."""

    rule: str

    def breaks(self, values: Mapping[str, Any]) -> bool:
        """Return whether a message breaks the rule."""
        return not values[self.column]

    def words(self, values: Mapping[str, Any]) -> str:
        """Return a sentence with the rule and the value that breaks it."""
        del values
        return f"{self.column} is empty: a message needs one ({self.rule})"


@dataclass(frozen=True, kw_only=True)
class OneOf(ColumnRule):
    """A text that must be one of a list."""

    allowed: tuple[str, ...]

    def breaks(self, values: Mapping[str, Any]) -> bool:
        """Return whether a message breaks the rule."""
        return values[self.column] not in self.allowed

    def words(self, values: Mapping[str, Any]) -> str:
        """Return a sentence with the rule and the value that breaks it."""
        return f"{self.column} is {values[self.column]!r}: it must be {' or '.join(self.allowed)}"


@dataclass(frozen=True, kw_only=True)
class Pairs(ColumnRule):
    """User properties: pairs of texts that MQTT can carry."""

    most_bytes: int

    def breaks(self, values: Mapping[str, Any]) -> bool:
        """Return whether a message breaks the rule; :data:`UNREADABLE` stands for a text that is no list of pairs."""
        pairs = values[self.column]
        if pairs is UNREADABLE:
            return True
        sizes = (text_bytes(text) for pair in pairs for text in pair)
        return any(size is None or size > self.most_bytes for size in sizes)

    def words(self, values: Mapping[str, Any]) -> str:
        """Return a sentence with the rule and the value that breaks it, without content of the message."""
        pairs = values[self.column]
        if pairs is not UNREADABLE:
            for pair in pairs:
                for what, text in zip(("name", "value"), pair, strict=True):
                    size = text_bytes(text)
                    if size is None or size > self.most_bytes:
                        return too_long(f"user property {what}", text, most=self.most_bytes, rule=_MQTT_TEXT)
        return "user properties are not a list of pairs of k and v, as TBMQ writes it"


@dataclass(frozen=True, kw_only=True)
class Packet:
    """The size of the PUBLISH that delivers a message, with every property that a broker may add."""

    reason: Reason
    most_bytes: int

    def breaks(self, values: Mapping[str, Any]) -> bool:
        """Return whether a message breaks the rule."""
        return self.size(values) > self.most_bytes

    def words(self, values: Mapping[str, Any]) -> str:
        """Return a sentence with the rule and the value that breaks it."""
        return (
            f"payload has {values['payload']} bytes, and the packet {self.size(values)} with what goes with it: MQTT "
            f"carries at most {self.most_bytes} (MQTT 5 section 2.1.4)"
        )

    @staticmethod
    def size(values: Mapping[str, Any]) -> int:
        """Return the largest remaining length that the packet can have."""
        texts = sum(text_bytes(values[name] or "") or 0 for name in PACKET_TEXTS)
        properties = Packet.pair_bytes(values["user_properties"])
        return int(PACKET_FIXED_BYTES + values["payload"] + texts + (values["correlation_data"] or 0) + properties)

    @staticmethod
    def pair_bytes(pairs: Iterable[tuple[str, str]]) -> int:
        """Return what user properties add to a packet."""
        return sum(PAIR_FIXED_BYTES + sum(text_bytes(text) or 0 for text in pair) for pair in pairs)


Rule = Bounds | NotEmpty | OneOf | Pairs | Packet

UNREADABLE = object()
"""Value in place of user properties that are not a list of pairs."""

PACKET_TYPES = ("PUBLISH", "PUBREL")
PACKET_TEXTS = ("topic", "content_type", "response_topic")
_MQTT_TEXT = "MQTT 5 section 1.5.4"

RULES: tuple[Rule, ...] = (
    Bounds(
        column="serial_number", reason=Reason.SERIAL_OUT_OF_RANGE, least=0, most=MAX_SERIAL,
        rule="a sorted set keeps no greater score exactly",
    ),
    Bounds(
        column="packet_id", reason=Reason.PACKET_ID_OUT_OF_RANGE, least=1, most=MAX_PACKET_ID,
        rule="MQTT 5 section 2.2.1",
    ),
    NotEmpty(column="topic", reason=Reason.TOPIC_EMPTY, rule="MQTT 5 section 4.7.3"),
    Bounds(column="topic", reason=Reason.TOPIC_INVALID, least=0, most=MAX_TEXT_BYTES, measure="text", rule=_MQTT_TEXT),
    OneOf(column="packet_type", reason=Reason.PACKET_TYPE_UNKNOWN, allowed=PACKET_TYPES),
    Bounds(
        column="qos", reason=Reason.QOS_OUT_OF_RANGE, least=1, most=2, must="only QoS 1 and 2 are stored",
        rule="MQTT 5 section 4.3",
    ),
    Bounds(
        column="time", name="time_ms", reason=Reason.TIME_OUT_OF_RANGE, least=0, most=MAX_TIME_MS,
        rule="milliseconds since 1970, to year 9999",
    ),
    Pairs(column="user_properties", reason=Reason.USER_PROPERTIES_INVALID, most_bytes=MAX_TEXT_BYTES),
    Bounds(
        column="payload_format_indicator", reason=Reason.PAYLOAD_FORMAT_INVALID, least=0, most=1, optional=True,
        rule="MQTT 5 section 3.3.2.3.2",
    ),
    Bounds(
        column="content_type", reason=Reason.CONTENT_TYPE_INVALID, least=0, most=MAX_TEXT_BYTES, measure="text",
        optional=True, rule=_MQTT_TEXT,
    ),
    Bounds(
        column="response_topic", reason=Reason.RESPONSE_TOPIC_INVALID, least=0, most=MAX_TEXT_BYTES, measure="text",
        optional=True, rule=_MQTT_TEXT,
    ),
    Bounds(
        column="correlation_data", reason=Reason.CORRELATION_DATA_TOO_LONG, least=0, most=MAX_TEXT_BYTES,
        measure="bytes", optional=True, rule="MQTT 5 section 1.5.6",
    ),
    Packet(reason=Reason.PACKET_TOO_LARGE, most_bytes=MAX_PACKET_BYTES),
)  # fmt: skip
"""All rules, in order of precedence: the first rule that a message breaks gives the reason."""

_PLACE = (Reason.SERIAL_OUT_OF_RANGE, Reason.PACKET_ID_OUT_OF_RANGE, Reason.PACKET_TYPE_UNKNOWN)

PLACE_RULES = tuple(rule for rule in RULES if rule.reason in _PLACE)
"""Columns that a store fills when it saves a message; a message that was not saved yet has none of them."""

CONTENT_RULES = tuple(rule for rule in RULES if rule.reason not in _PLACE)
"""Rules of the columns that a publisher fills."""


def broken_rule(values: Mapping[str, Any], rules: Iterable[Rule] = RULES) -> Rule | None:
    """Return the first rule that a message breaks; none when it breaks none.

    :param values: values by column of ``device_publish_msg``, with user properties as pairs or :data:`UNREADABLE`, and
        the sizes in bytes of ``payload`` and ``correlation_data``.
    """
    for rule in rules:
        if rule.breaks(values):
            return rule
    return None


def client_defect(client_id: str, *, clustered: bool) -> Reason | None:
    """Return why Redis cannot hold a client's session; none when it can.

    :param clustered: whether Redis is a cluster, which cannot hold a client id that begins with a closing brace.
    """
    if not client_id:
        return Reason.CLIENT_ID_EMPTY
    return Reason.CLIENT_ID_SCATTERED if clustered and is_scattered(client_id) else None


def check_reason(reason: str | None) -> None:
    """Refuse a text that is not a :class:`Reason`.

    :param reason: none for all reasons.
    :raises UsageError: naming the text and all reasons.
    """
    if reason is not None and reason not in set(Reason):
        raise UsageError(f"the reason is {reason!r}: it must be one of {', '.join(sorted(Reason))}")


def row_defect(values: Mapping[str, Any]) -> Reason | None:
    """Return why a row of the vendor's table cannot be delivered; none when it can.

    :param values: as :func:`broken_rule` takes them, but user properties as the text of their column.
    """
    broken = broken_rule({**values, "user_properties": pairs_of(values["user_properties"])})
    return None if broken is None else broken.reason


def sql_bounds() -> dict[str, Any]:
    """Return the rules' bounds as parameters of a statement: ``<column>_least``, ``<column>_most``, ``<column>_words``.

    A statement uses them to find rows that may break a rule; :func:`broken_rule` then judges the whole row.
    """
    found: dict[str, Any] = {"packet_most": MAX_PACKET_BYTES - PACKET_FIXED_BYTES}
    for rule in RULES:
        if isinstance(rule, Bounds):
            found |= {f"{rule.column}_least": rule.least, f"{rule.column}_most": rule.most}
        elif isinstance(rule, OneOf):
            found[f"{rule.column}_words"] = list(rule.allowed)
    return found


def text_bytes(text: str) -> int | None:
    """Return the size of a text in UTF-8, or none when MQTT cannot carry it (MQTT 5 section 1.5.4)."""
    if "\0" in text:
        return None
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return None


def too_long(name: str, value: str | int, *, most: int, rule: str) -> str:
    """Return a sentence that says why MQTT cannot carry a text or binary data."""
    size = text_bytes(value) if isinstance(value, str) else value
    if size is None:
        fault = "a zero character" if "\0" in str(value) else "half a surrogate pair"
        return f"{name} holds {fault}, which MQTT forbids (MQTT 5 section 1.5.4)"
    return f"{name} has {size} bytes: MQTT carries at most {most} ({rule})"


# --- user properties as TBMQ 1.x stores them -----------------------------------------------------------------------


def pairs_of(text: str | None) -> Any:
    """Return the pairs of a stored ``user_properties`` column, or :data:`UNREADABLE`."""
    try:
        return tuple((pair["k"], pair["v"]) for pair in user_properties(text) or ())
    except ValueError:
        return UNREADABLE


def user_properties(text: str | None) -> list[dict[str, str]] | None:
    """Return the pairs of a stored ``user_properties`` column; none when there are none.

    :raises ValueError: when the text is not what TBMQ writes: an object of ``props`` only, whose pairs hold ``k`` and
        ``v`` only, both texts. Text after the object is ignored, as by TBMQ's own reader.
    """
    if text is None:
        return None
    usual = _usual(text)
    if usual is not None:
        return property_pairs(usual) or None
    try:
        stripped = text.lstrip(" \t\r\n")
        parsed, end = _DECODER.raw_decode(stripped)
        if parsed is None and not _is_word(stripped[: end + 1]):
            return None
        return property_pairs(parsed) or None
    except RecursionError:
        raise ValueError("user properties are nested too deeply") from None


def property_pairs(parsed: Any) -> list[dict[str, str]]:
    """Return the pairs of user properties that were parsed as JSON.

    :raises ValueError: as :func:`user_properties`.
    """
    pairs = parsed["props"] if isinstance(parsed, dict) and parsed.keys() == {"props"} else None
    if not isinstance(pairs, list) or not all(_is_pair(pair) for pair in pairs):
        raise ValueError("user properties are not a list of pairs of k and v")
    return pairs


def _usual(text: str) -> Any:
    """Return a text's value where it is written as TBMQ writes it, read by a fast parser; none where it may not be.

    What the parser gives back as the same text holds nothing that readers of JSON disagree about.
    """
    try:
        parsed = orjson.loads(text)
        return parsed if orjson.dumps(parsed) == text.encode() else None
    except (orjson.JSONDecodeError, TypeError, UnicodeEncodeError):
        return None


def _is_word(text: str) -> bool:
    """Return whether the text begins with ``null`` but is another word."""
    return len(text) > len("null") and text.isidentifier()


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, dict) and pair.keys() == {"k", "v"} and all(isinstance(text, str) for text in pair.values())


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        raise ValueError("user properties name a member twice")
    return found


_DECODER = JSONDecoder(object_pairs_hook=_unique)
