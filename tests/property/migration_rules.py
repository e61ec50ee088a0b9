"""What a migration does with a client's rows, as plain Python from the written rules; it shares no code with the jobs.

The rules stand in ``docs/adr`` 0004 and 0005 and in the docstring of ``queuekeeper.migration.offline.transforms``.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

_STRING = r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
_PAIR = rf'\{{\s*(?:"k"\s*:\s*{_STRING}\s*,\s*"v"\s*:\s*{_STRING}|"v"\s*:\s*{_STRING}\s*,\s*"k"\s*:\s*{_STRING})\s*\}}'
_PROPERTIES = re.compile(
    rf'[ \t\r\n]*(?:null(?!\w)|(\{{\s*"props"\s*:\s*\[\s*(?:{_PAIR}(?:\s*,\s*{_PAIR})*)?\s*\]\s*\}}))', re.ASCII
)


class Message(NamedTuple):
    """A row of ``device_publish_msg``, its columns in the order in which the migration reads them."""

    client_id: str
    serial_number: int
    topic: str
    time: int
    packet_id: int | None
    packet_type: str | None
    qos: int
    payload: bytes
    user_properties: str | None
    retain: bool | None
    msg_expiry_interval: int | None
    payload_format_indicator: int | None
    content_type: str | None
    response_topic: str | None
    correlation_data: bytes | None


class Session(NamedTuple):
    """A row of ``device_session_ctx``."""

    client_id: str
    last_serial_number: int | None
    last_packet_id: int | None


class Outcome(NamedTuple):
    """What becomes of one row."""

    fate: str
    reason: str | None
    expires_at_ms: int | None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What becomes of one client.

    :param messages: by serial number.
    :param session_reason: why the session row is put aside, if it is.
    :param last_packet_id: what the counter must be; none when it is not written.
    """

    messages: dict[int, Outcome]
    session_reason: str | None
    last_packet_id: int | None


class Rules(NamedTuple):
    """What a person chooses, the plan's instant, and whether the target is a cluster."""

    limit: int
    default_ttl_s: int
    as_of_ms: int
    clustered: bool = False


def pairs(text: str | None) -> list[dict[str, str]] | None:
    """Return user properties as TBMQ wrote them.

    :raises ValueError: when it did not.
    """
    if text is None:
        return None
    found = _PROPERTIES.match(text)
    if found is None:
        raise ValueError(text)
    if found[1] is None:
        return None
    props: list[dict[str, str]] = json.loads(found[1])["props"]
    if any(_cannot_be_carried(text) for pair in props for text in pair.values()):
        raise ValueError(text)
    return props or None


def _cannot_be_carried(text: str | None) -> bool:
    """Whether MQTT has no way to send a text; Unicode's half pairs are no characters."""
    return text is not None and (
        "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text) or len(text.encode()) > 65_535
    )


def broken_rule(message: Message, *, clustered: bool = False) -> str | None:
    """Return the first rule that a message breaks by itself."""
    if message.client_id == "":
        return "client_id_empty"
    if clustered and message.client_id[0] == "}":
        return "client_id_scattered"
    if message.serial_number < 0 or message.serial_number > 9_007_199_254_740_991:
        return "serial_out_of_range"
    if message.packet_id is None or message.packet_id < 1 or message.packet_id > 65_535:
        return "packet_id_out_of_range"
    if message.topic == "":
        return "topic_empty"
    if _cannot_be_carried(message.topic):
        return "topic_invalid"
    if message.packet_type not in ("PUBLISH", "PUBREL"):
        return "packet_type_unknown"
    if message.qos not in (1, 2):
        return "qos_out_of_range"
    if message.time < 0 or message.time > 253_402_300_799_999:
        return "time_out_of_range"
    try:
        pairs(message.user_properties)
    except ValueError:
        return "user_properties_invalid"
    if message.payload_format_indicator not in (None, 0, 1):
        return "payload_format_invalid"
    if _cannot_be_carried(message.content_type):
        return "content_type_invalid"
    if _cannot_be_carried(message.response_topic):
        return "response_topic_invalid"
    if message.correlation_data is not None and len(message.correlation_data) > 65_535:
        return "correlation_data_too_long"
    return "packet_too_large" if _packet_bytes(message) > 268_435_455 else None


def _packet_bytes(message: Message) -> int:
    """The PUBLISH after its fixed header, with expiry interval, format indicator and topic alias (MQTT 5, 3.3)."""
    head = 2 + len(message.topic.encode()) + 2 + 4 + 5 + 2 + 3
    texts = sum(3 + len((text or "").encode()) for text in (message.content_type, message.response_topic))
    found = pairs(message.user_properties) or []
    properties = sum(5 + len(pair["k"].encode()) + len(pair["v"].encode()) for pair in found)
    return head + texts + 3 + len(message.correlation_data or b"") + properties + len(message.payload)


def life_s(message: Message) -> int | None:
    """Return the expiry interval that the publisher sent."""
    interval = message.msg_expiry_interval
    return interval if interval is None or interval >= 0 else interval + 4_294_967_296


def expires_at_ms(message: Message, rules: Rules) -> int | None:
    """Return when a message's life ends; none where its time means nothing."""
    if message.time < 0 or message.time > 253_402_300_799_999:
        return None
    life = life_s(message)
    return message.time + (rules.default_ttl_s if life is None else life) * 1_000


def decide(messages: Sequence[Message], session: Session | None, rules: Rules) -> Decision:
    """Return what becomes of all rows of one client."""
    outcomes: dict[int, Outcome] = {}
    taken: set[int] = set()
    waiting: list[int] = []  # the newest message's packet id first
    newest: Message | None = None
    for message in sorted(messages, key=lambda each: -each.serial_number):
        reason = broken_rule(message, clustered=rules.clustered)
        end = expires_at_ms(message, rules)
        if reason is not None:
            outcomes[message.serial_number] = Outcome("quarantined", reason, end)
            continue
        newest = newest or message
        assert end is not None
        assert message.packet_id is not None
        if end <= rules.as_of_ms:
            outcomes[message.serial_number] = Outcome("expired", None, end)
        elif message.packet_id in taken:
            outcomes[message.serial_number] = Outcome("quarantined", "packet_id_duplicate", end)
        else:
            taken.add(message.packet_id)
            waiting.append(message.packet_id)
            fate = "copied" if len(waiting) <= rules.limit else "trimmed"
            outcomes[message.serial_number] = Outcome(fate, None, end)
    return Decision(
        messages=outcomes,
        session_reason=None if session is None else _broken_session_rule(session, clustered=rules.clustered),
        last_packet_id=_beyond_what_waits(_last_packet_id(session, newest), waiting[: rules.limit]),
    )


def _broken_session_rule(session: Session, *, clustered: bool) -> str | None:
    if session.client_id == "":
        return "client_id_empty"
    if clustered and session.client_id[0] == "}":
        return "client_id_scattered"
    if session.last_packet_id is not None and not 0 <= session.last_packet_id <= 65_535:
        return "last_packet_id_out_of_range"
    return None


def _last_packet_id(session: Session | None, newest: Message | None) -> int | None:
    """The counter counts, unless it is unusable or a message is newer than the serial number it goes with."""
    of_newest = None if newest is None else newest.packet_id
    if session is None:
        return of_newest
    known = -1 if session.last_serial_number is None else session.last_serial_number
    if newest is not None and newest.serial_number > known:
        return of_newest
    counter = session.last_packet_id
    return counter if counter is not None and 1 <= counter <= 65_535 else of_newest


def _beyond_what_waits(counter: int | None, waiting: Sequence[int]) -> int | None:
    """The counter is never before the newest message that is copied, nor right before any of them."""
    if counter is None or len(waiting) == 65_535:
        return counter
    if waiting and 0 < (waiting[0] - counter) % 65_535 < 32_768:
        counter = waiting[0]
    while (1 if counter == 65_535 else counter + 1) in waiting:
        counter = 1 if counter == 65_535 else counter + 1
    return counter


def stored_json(message: Message) -> dict[str, Any]:
    """Return what TBMQ 2.x must find under a copied message's key."""
    life = life_s(message)
    properties = pairs(message.user_properties)
    fields: dict[str, Any] = {
        "clientId": message.client_id,
        "topicName": message.topic,
        "time": message.time,
        "qos": message.qos,
        "packetId": message.packet_id,
        "packetType": message.packet_type,
        "payload": b64encode(message.payload).decode(),
        "retained": message.retain is True,
        "userProperties": None if properties is None else {"props": properties},
        "msgExpiryInterval": None if life is None else min(life, 2_147_483_647),
        "payloadFormatIndicator": message.payload_format_indicator,
        "contentType": message.content_type,
        "responseTopic": message.response_topic,
        "correlationData": None if message.correlation_data is None else b64encode(message.correlation_data).decode(),
    }
    return {name: value for name, value in fields.items() if value is not None}
