"""A message of a packed session: bytes with a fixed head that scripts read, and a body that only this module reads.

======  ===============  ==========================================================================
bytes   name             content, big-endian
======  ===============  ==========================================================================
2       packet id        as expected; a script that gives out another one writes it
8       expiry           instant in ms, a double
1       kind             1 PUBLISH, 2 PUBREL
4       size             bytes from here to the payload, after these four
8       time             when the broker received the message, in ms
1       flags            QoS (1 or 2), 4 retain, 8 with an expiry interval
2       topic size       bytes
4       expiry interval  seconds; only if the flags say so
n       topic            UTF-8
n       properties       JSON with TBMQ's field names; only if there are any
n       payload          as it is
======  ===============  ==========================================================================
"""

from __future__ import annotations

import struct
from typing import Any

import orjson

from queuekeeper.sessions.model import NewMessage, is_plain
from queuekeeper.sessions.reports import PendingMessage
from queuekeeper.sessions.wire import UnreadableError, json_bytes, judged_message, rare_fields

_PUT = struct.Struct(">HdBIQBH")
_PUT_INTERVAL = struct.Struct(">HdBIQBHI")
_HEAD = struct.Struct(">HdBI")
_META = struct.Struct(">QBH")
_INTERVAL = struct.Struct(">I")
KINDS = {"PUBLISH": 1, "PUBREL": 2}
"""Packet type -> its number, from 1 in this order."""
_TYPES = {kind: name for name, kind in KINDS.items()}
RETAIN, HAS_INTERVAL = 4, 8
META_BYTES = _META.size
"""Bytes between a record's head and its topic, without the expiry interval."""


def record_of(
    message: NewMessage | PendingMessage, *, packet_id: int, end_ms: int, packet_type: str = "PUBLISH"
) -> bytes:
    """Return the record of a message."""
    topic = message.topic.encode()
    flags = message.qos + (RETAIN if message.retain else 0)
    kind = KINDS[packet_type]
    if is_plain(message):
        head = _PUT.pack(packet_id, end_ms, kind, META_BYTES + len(topic), message.time_ms, flags, len(topic))
        return head + topic + message.payload
    rare = rare_fields(message)
    rest = json_bytes(rare) if rare else b""
    interval_s = message.expiry_interval_s
    if interval_s is None:
        size = META_BYTES + len(topic) + len(rest)
        head = _PUT.pack(packet_id, end_ms, kind, size, message.time_ms, flags, len(topic))
    else:
        size = META_BYTES + 4 + len(topic) + len(rest)
        flags += HAS_INTERVAL
        head = _PUT_INTERVAL.pack(packet_id, end_ms, kind, size, message.time_ms, flags, len(topic), interval_s)
    return head + topic + rest + message.payload


def expires_at_ms(record: bytes) -> int | None:
    """Return when a record expires; none when it is none."""
    if len(record) < _HEAD.size:
        return None
    ends_ms: float = _HEAD.unpack_from(record)[1]
    return int(ends_ms) if 0 <= ends_ms <= 2**53 else None


def fields_of(record: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the fields of a record by TBMQ's names, and its payload.

    :raises UnreadableError: when it is no record.
    """
    try:
        packet_id, _, kind, size = _HEAD.unpack_from(record)
        meta = record[_HEAD.size : _HEAD.size + size]
        time_ms, flags, topic_bytes = _META.unpack_from(meta)
        at = _META.size
        fields: dict[str, Any] = {
            "packetId": packet_id,
            "packetType": _TYPES.get(kind, ""),
            "time": time_ms,
            "qos": flags & 3,
            "retained": bool(flags & RETAIN),
        }
        if flags & HAS_INTERVAL:
            fields["msgExpiryInterval"] = _INTERVAL.unpack_from(meta, at)[0]
            at += _INTERVAL.size
        fields["topicName"] = meta[at : at + topic_bytes].decode()
        rest = meta[at + topic_bytes :]
        if rest:
            fields |= orjson.loads(rest)
    except (struct.error, ValueError, TypeError) as error:
        raise UnreadableError(f"it is no record of a packed session: {error}") from None
    if len(meta) != size or at + topic_bytes > size:
        raise UnreadableError("it is cut off")
    return fields, record[_HEAD.size + size :]


def message_of(record: bytes, *, serial: int, redelivery: bool) -> PendingMessage:
    """Return a record as a message, judged by the rules of every store.

    :raises UnreadableError: when it is not a message that can be delivered.
    """
    fields, payload = fields_of(record)
    ends_ms = expires_at_ms(record)
    if ends_ms is None:
        raise UnreadableError("its expiry is no instant")
    return judged_message(fields, serial=serial, expires_at_ms=ends_ms, redelivery=redelivery, payload=payload)
