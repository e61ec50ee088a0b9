"""A DEVICE message as the JSON that TBMQ 2.x reads and writes, and when it expires."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import b2a_base64
from collections.abc import Sequence
from typing import Any

import orjson

from queuekeeper.errors import UsageError
from queuekeeper.keyspace import MAX_PACKET_ID
from queuekeeper.sessions.judge import (
    MAX_EXPIRY_INTERVAL_S,
    PLACE_RULES,
    BrokenRuleError,
    Reason,
    broken_rule,
    property_pairs,
)
from queuekeeper.sessions.model import NewMessage, is_plain
from queuekeeper.sessions.reports import PendingMessage

MAX_INTERVAL_S = 2**31 - 1
"""Largest expiry interval that TBMQ reads, since it uses a signed int."""

_NOTHING: dict[str, Any] = {}


class UnreadableError(ValueError):
    """A record that is not a message that can be delivered.

    :param reason: reason of the rule that it breaks; none when it is not in TBMQ's form.
    """

    def __init__(self, words: str, reason: Reason | None = None) -> None:
        super().__init__(words)
        self.reason = reason


def interval_s(msg_expiry_interval: int | None) -> int | None:
    """Return an expiry interval as an unsigned number of four bytes (MQTT 5 section 3.3.2.3.3).

    :param msg_expiry_interval: value of TBMQ 1.x's signed column.
    """
    if msg_expiry_interval is None or msg_expiry_interval >= 0:
        return msg_expiry_interval
    return msg_expiry_interval + 2**32


def expires_at_ms(*, time_ms: int, msg_expiry_interval: int | None, default_ttl_s: int) -> int:
    """Return the instant at which a message's life ends, counted from the message's own time."""
    life_s = interval_s(msg_expiry_interval)
    return time_ms + 1000 * (default_ttl_s if life_s is None else life_s)


def message_json(
    *,
    client_id: str,
    topic: str,
    time_ms: int,
    qos: int,
    packet_id: int,
    packet_type: str,
    payload: bytes,
    retain: bool | None = None,
    user_property_pairs: list[dict[str, str]] | None = None,
    msg_expiry_interval: int | None = None,
    payload_format_indicator: int | None = None,
    content_type: str | None = None,
    response_topic: str | None = None,
    correlation_data: bytes | None = None,
    subscription_ids: Sequence[int] = (),
) -> bytes:
    """Return a message with the field names of TBMQ; absent values are left out."""
    rest: dict[str, Any] = {}
    if user_property_pairs:
        rest["userProperties"] = {"props": user_property_pairs}
    life_s = interval_s(msg_expiry_interval)
    if life_s is not None:
        rest["msgExpiryInterval"] = min(life_s, MAX_INTERVAL_S)
    rest |= _rare(payload_format_indicator, content_type, response_topic, correlation_data, subscription_ids)
    return _json(client_id, topic, time_ms, qos, packet_id, packet_type, payload, bool(retain), rest)


def rare_fields(message: NewMessage | PendingMessage) -> dict[str, Any]:
    """Return the properties that few messages have, with the field names of TBMQ, without the expiry interval."""
    rest: dict[str, Any] = {}
    if message.user_properties:
        rest["userProperties"] = {"props": [{"k": name, "v": value} for name, value in message.user_properties]}
    return rest | _rare(
        message.payload_format_indicator,
        message.content_type,
        message.response_topic,
        message.correlation_data,
        message.subscription_ids,
    )


def _rare(
    payload_format_indicator: int | None,
    content_type: str | None,
    response_topic: str | None,
    correlation_data: bytes | None,
    subscription_ids: Sequence[int],
) -> dict[str, Any]:
    rest: dict[str, Any] = {}
    if payload_format_indicator is not None:
        rest["payloadFormatIndicator"] = payload_format_indicator
    if content_type is not None:
        rest["contentType"] = content_type
    if response_topic is not None:
        rest["responseTopic"] = response_topic
    if correlation_data is not None:
        rest["correlationData"] = b2a_base64(correlation_data, newline=False).decode()
    if subscription_ids:
        rest["subscriptionIds"] = subscription_ids
    return rest


def _json(
    client_id: str,
    topic: str,
    time_ms: int,
    qos: int,
    packet_id: int,
    packet_type: str,
    payload: bytes,
    retain: bool,
    rest: dict[str, Any],
) -> bytes:
    """Return the JSON of a message, byte for byte as an offline migration writes it."""
    return json_bytes(
        {
            "clientId": client_id,
            "topicName": topic,
            "time": time_ms,
            "qos": qos,
            "packetId": packet_id,
            "packetType": packet_type,
            "payload": b2a_base64(payload, newline=False).decode(),
            "retained": retain,
            **rest,
        }
    )


def json_bytes(value: Any) -> bytes:
    """Return a value as JSON, with control characters as writers of Java escape them."""
    json = orjson.dumps(value)
    # Few records hold a backslash, and searching for one byte takes a tenth of the time.
    return _CONTROL.sub(_as_java, json) if _BACKSLASH in json and b"\\u00" in json else json


_BACKSLASH = ord("\\")
_CONTROL = re.compile(rb"(?<!\\)((?:\\\\)*)\\u(00[01][0-9a-f])")
"""A control character as orjson escapes it, after an even number of backslashes, which are escaped themselves."""


def _as_java(found: re.Match[bytes]) -> bytes:
    """Return a control character as writers of JSON in Java escape it."""
    return found[1] + b"\\u" + found[2].upper()


FIELDS = frozenset(
    {
        "clientId", "topicName", "time", "qos", "packetId", "packetType", "payload", "retained", "userProperties",
        "msgExpiryInterval", "payloadFormatIndicator", "contentType", "responseTopic", "correlationData",
        "subscriptionIds",
    }
)  # fmt: skip
"""All fields of TBMQ's record."""


def stored_json(message: NewMessage | PendingMessage, *, client_id: str, packet_id: int, packet_type: str) -> bytes:
    """Return a message of the store's model as TBMQ's JSON."""
    if is_plain(message):
        # This runs for every message: properties that most messages lack are not passed through two calls.
        return _json(
            client_id,
            message.topic,
            message.time_ms,
            message.qos,
            packet_id,
            packet_type,
            message.payload,
            message.retain,
            _NOTHING,
        )
    return message_json(
        client_id=client_id,
        topic=message.topic,
        time_ms=message.time_ms,
        qos=message.qos,
        packet_id=packet_id,
        packet_type=packet_type,
        payload=message.payload,
        retain=message.retain,
        user_property_pairs=[{"k": name, "v": value} for name, value in message.user_properties],
        msg_expiry_interval=message.expiry_interval_s,
        payload_format_indicator=message.payload_format_indicator,
        content_type=message.content_type,
        response_topic=message.response_topic,
        correlation_data=message.correlation_data,
        subscription_ids=message.subscription_ids,
    )


def pending_message(
    fields: Any, *, client_id: str, serial: int, expires_at_ms: int | None, redelivery: bool
) -> PendingMessage:
    """Return TBMQ's parsed JSON as a message of the store's model; unknown fields are ignored.

    :param client_id: client that the message must belong to.
    :param expires_at_ms: end of its life. An expiry interval too large for TBMQ's signed number is computed from it.
    :raises UnreadableError: when it is not a message that can be delivered, saying why.
    """
    if not isinstance(fields, dict) or fields.get("clientId") != client_id:
        raise UnreadableError("it is not an object whose clientId is the session's")
    return judged_message(fields, serial=serial, expires_at_ms=expires_at_ms, redelivery=redelivery)


def judged_message(
    fields: dict[str, Any], *, serial: int, expires_at_ms: int | None, redelivery: bool, payload: bytes | None = None
) -> PendingMessage:
    """Return the fields of a record as a message of the store's model, as :func:`pending_message` does.

    :param payload: the payload itself, where it is not base64 among the fields.
    :raises UnreadableError: when it is not a message that can be delivered, saying why.
    """
    packet_id, packet_type = fields.get("packetId"), fields.get("packetType")
    if type(packet_id) is not int:
        raise UnreadableError(f"packetId is no number from 1 to {MAX_PACKET_ID}", Reason.PACKET_ID_OUT_OF_RANGE)
    if type(packet_type) is not str:
        raise UnreadableError("packetType is no text", Reason.PACKET_TYPE_UNKNOWN)
    place = {"serial_number": serial, "packet_id": packet_id, "packet_type": packet_type}
    broken = broken_rule(place, PLACE_RULES)
    if broken is not None:
        raise UnreadableError(broken.words(place), broken.reason)
    life_s = fields.get("msgExpiryInterval")
    if life_s is not None:
        if type(life_s) is not int or not -(2**31) <= life_s <= MAX_EXPIRY_INTERVAL_S:
            raise UnreadableError("msgExpiryInterval is not four bytes")
        life_s = interval_s(life_s)
    properties, subscription_ids = fields.get("userProperties"), fields.get("subscriptionIds")
    if subscription_ids is not None and not isinstance(subscription_ids, list):
        raise UnreadableError("subscriptionIds is not a list")
    try:
        message = NewMessage(
            # Releases before 2.1 wrote it as "topic".
            topic=fields.get("topicName", fields.get("topic")),  # type: ignore[arg-type]  # the model checks it
            payload=payload
            if payload is not None
            else _bytes("payload", fields.get("payload", "" if packet_type == "PUBREL" else None)),
            qos=fields.get("qos"),  # type: ignore[arg-type]
            time_ms=fields.get("time"),  # type: ignore[arg-type]
            retain=fields.get("retained", False),
            expiry_interval_s=life_s,
            payload_format_indicator=fields.get("payloadFormatIndicator"),
            content_type=fields.get("contentType"),
            response_topic=fields.get("responseTopic"),
            correlation_data=_bytes("correlationData", fields["correlationData"])
            if fields.get("correlationData") is not None
            else None,
            user_properties=_pairs(properties) if properties is not None else (),
            subscription_ids=tuple(subscription_ids or ()),
        )
    except UsageError as error:
        raise UnreadableError(str(error), error.reason if isinstance(error, BrokenRuleError) else None) from None
    if life_s == MAX_INTERVAL_S and expires_at_ms is not None:
        told_s, rest_ms = divmod(expires_at_ms - message.time_ms, 1000)
        if rest_ms == 0 and MAX_INTERVAL_S < told_s <= MAX_EXPIRY_INTERVAL_S:
            life_s = told_s
    return PendingMessage(
        serial=serial,
        packet_id=packet_id,
        packet_type=packet_type,
        topic=message.topic,
        payload=message.payload,
        qos=message.qos,
        time_ms=message.time_ms,
        expires_at_ms=expires_at_ms,
        redelivery=redelivery,
        retain=message.retain,
        expiry_interval_s=life_s,
        payload_format_indicator=message.payload_format_indicator,
        content_type=message.content_type,
        response_topic=message.response_topic,
        correlation_data=message.correlation_data,
        user_properties=message.user_properties,
        subscription_ids=message.subscription_ids,
    )


def _pairs(properties: Any) -> tuple[tuple[str, str], ...]:
    try:
        return tuple((pair["k"], pair["v"]) for pair in property_pairs(properties))
    except ValueError as error:
        raise UnreadableError(str(error), Reason.USER_PROPERTIES_INVALID) from None


def _bytes(name: str, text: Any) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (TypeError, ValueError):
        raise UnreadableError(f"{name} is not base64 text") from None
