"""A DEVICE message as the JSON that TBMQ 2.x reads and writes, and when it expires; storing it is the stores' job."""

from __future__ import annotations

from base64 import b64encode
from json import JSONDecoder
from typing import Any

import orjson

MAX_INTERVAL_S = 2**31 - 1
"""TBMQ's reader holds the expiry interval in a signed int."""


def interval_s(msg_expiry_interval: int | None) -> int | None:
    """Return an expiry interval as MQTT means it (MQTT 5 section 3.3.2.3.3: four bytes, unsigned).

    :param msg_expiry_interval: as TBMQ 1.x stores it, in a signed column.
    """
    if msg_expiry_interval is None or msg_expiry_interval >= 0:
        return msg_expiry_interval
    return msg_expiry_interval + 2**32


def expires_at_ms(*, time_ms: int, msg_expiry_interval: int | None, default_ttl_s: int) -> int:
    """Return the instant at which a message's life ends, counted from the message's own time."""
    life_s = interval_s(msg_expiry_interval)
    return time_ms + 1000 * (default_ttl_s if life_s is None else life_s)


def user_properties(text: str | None) -> list[dict[str, str]] | None:
    """Return the pairs of a stored ``user_properties`` column; none when there are none.

    :raises ValueError: when the text is not what TBMQ writes: an object of ``props`` only, whose pairs hold ``k`` and
        ``v`` only, both texts. What follows the object is not looked at, as by TBMQ's own reader.
    """
    if text is None:
        return None
    try:
        stripped = text.lstrip(" \t\r\n")
        parsed, end = _DECODER.raw_decode(stripped)
        if parsed is None and not _is_word(stripped[: end + 1]):
            return None
        pairs = parsed["props"] if isinstance(parsed, dict) and parsed.keys() == {"props"} else None
        if not isinstance(pairs, list) or not all(_is_pair(pair) for pair in pairs):
            raise ValueError("user properties are not a list of pairs of k and v")
    except RecursionError:
        raise ValueError("user properties are nested too deeply") from None
    return pairs or None


def _is_word(text: str) -> bool:
    """Return whether ``null`` is only the beginning of something else."""
    return len(text) > len("null") and text.isidentifier()


def _is_pair(pair: Any) -> bool:
    if not isinstance(pair, dict) or pair.keys() != {"k", "v"}:
        return False
    if not all(isinstance(value, str) for value in pair.values()):
        return False
    "".join(pair.values()).encode()  # half a surrogate pair is no character; the error is a ValueError
    return True


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        raise ValueError("user properties name a member twice")
    return found


_DECODER = JSONDecoder(object_pairs_hook=_unique)


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
) -> bytes:
    """Return a message in TBMQ's field names and no others; absent values are left out."""
    life_s = interval_s(msg_expiry_interval)
    fields: dict[str, Any] = {
        "clientId": client_id,
        "topicName": topic,
        "time": time_ms,
        "qos": qos,
        "packetId": packet_id,
        "packetType": packet_type,
        "payload": b64encode(payload).decode(),
        "retained": bool(retain),
        "userProperties": {"props": user_property_pairs} if user_property_pairs else None,
        "msgExpiryInterval": None if life_s is None else min(life_s, MAX_INTERVAL_S),
        "payloadFormatIndicator": payload_format_indicator,
        "contentType": content_type,
        "responseTopic": response_topic,
        "correlationData": None if correlation_data is None else b64encode(correlation_data).decode(),
    }
    return orjson.dumps({name: value for name, value in fields.items() if value is not None})
