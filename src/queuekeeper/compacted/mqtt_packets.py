"""Read and write those packets of MQTT 3.1, 3.1.1 and 5 that a proxy between client and broker has to understand.

The proxy passes a packet on as the bytes that it received. The functions read only the fields that the proxy needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from queuekeeper.errors import QueuekeeperError

MQTT_5 = 5
ANY_PACKET_BYTES = 268_435_460
"""Largest size of an MQTT packet in bytes: the length field of its header has at most four bytes."""

HEADER_BYTES = 9
"""Largest size of a PUBLISH in bytes without topic, properties and payload: header, topic length, packet id."""


class MalformedPacket(QueuekeeperError):
    """A packet breaks the rules of MQTT."""


class Kind(IntEnum):
    """Packet types that the proxy reads; it passes the other types on unread."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14


class Reason(IntEnum):
    """Reason codes of MQTT 5. MQTT 3 has one code for a refused subscription, 0x80."""

    GRANTED_QOS_1 = 0x01
    UNSPECIFIED = 0x80
    IMPLEMENTATION_SPECIFIC = 0x83
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_SHUTTING_DOWN = 0x8B
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    QUOTA_EXCEEDED = 0x97


class Packet(NamedTuple):
    """A packet as received.

    :ivar start: offset of the first byte behind the fixed header.
    """

    raw: bytes
    start: int

    @property
    def kind(self) -> int:
        """Number of the packet type, see :class:`Kind`."""
        return self.raw[0] >> 4

    @property
    def flags(self) -> int:
        """The lower four bits of the first byte."""
        return self.raw[0] & 0x0F

    @property
    def packet_id(self) -> int:
        """Packet id: the two bytes behind the fixed header. CONNECT has none, PUBLISH has it behind the topic."""
        return _Reader(self).integer16()


async def read_packet(stream: asyncio.StreamReader, *, max_bytes: int) -> Packet | None:
    """Read the next packet; none at the end of the stream.

    :param max_bytes: largest size of a packet in bytes.
    :raises MalformedPacket: when the packet is larger, or its length does not parse.
    """
    try:
        header = await stream.readexactly(2)
        length, shift = header[1] & 0x7F, 7
        while header[-1] & 0x80:
            if len(header) == 5:
                raise MalformedPacket("the length of a packet takes more than four bytes")
            header += await stream.readexactly(1)
            length |= (header[-1] & 0x7F) << shift
            shift += 7
        if len(header) + length > max_bytes:
            raise MalformedPacket(f"a packet has {len(header) + length} bytes: at most {max_bytes} are taken")
        return Packet(header + await stream.readexactly(length), len(header))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


class Connect(NamedTuple):
    """Fields of a CONNECT.

    :ivar level: protocol level: 3 for MQTT 3.1, 4 for MQTT 3.1.1, 5 for MQTT 5.
    :ivar keep_alive_s: longest time in seconds between two packets of the client; 0 for no limit.
    :ivar receive_maximum: most unacknowledged messages with QoS 1 or 2 that the client accepts; none when the CONNECT
        does not set it.
    :ivar max_packet_bytes: largest packet in bytes that the client accepts.
    :ivar takes_reasons: whether the client accepts reason strings in packets other than CONNACK and DISCONNECT.
    """

    level: int
    keep_alive_s: int
    client_id: str
    receive_maximum: int | None
    max_packet_bytes: int
    takes_reasons: bool


def read_connect(packet: Packet) -> Connect:
    """Read a CONNECT."""
    reader = _Reader(packet)
    if packet.kind != Kind.CONNECT or reader.text() not in ("MQTT", "MQIsdp"):
        raise MalformedPacket("a connection does not begin with the CONNECT of MQTT")
    level = reader.integer8()
    reader.skip(1)  # flags
    keep_alive_s = reader.integer16()
    properties = reader.properties(PacketTypes.CONNECT) if level == MQTT_5 else {}
    return Connect(
        level,
        keep_alive_s,
        reader.text(),
        properties.get("ReceiveMaximum"),
        properties.get("MaximumPacketSize", ANY_PACKET_BYTES),
        properties.get("RequestProblemInformation", 1) != 0,
    )


def with_receive_maximum(packet: Packet, receive_maximum: int) -> bytes:
    """Return an MQTT 5 CONNECT that has a Receive Maximum with another one."""
    reader = _Reader(packet)
    reader.text()
    reader.skip(4)
    ((begin, end),) = (
        (begin, reader.at) for name, begin, _ in reader.each_property(PacketTypes.CONNECT) if name == "ReceiveMaximum"
    )
    return packet.raw[:begin] + _integer16(receive_maximum) + packet.raw[end:]


class Connack(NamedTuple):
    """Fields of a CONNACK.

    :ivar client_id: client id that the broker assigned; none when the client sent its own.
    :ivar keep_alive_s: keep-alive in seconds that the broker sets in place of the client's; none for the client's.
    """

    is_accepted: bool
    session_present: bool
    client_id: str | None
    keep_alive_s: int | None


def read_connack(packet: Packet, level: int) -> Connack:
    """Read a CONNACK."""
    reader = _Reader(packet)
    flags, code = reader.integer8(), reader.integer8()
    properties = reader.properties(PacketTypes.CONNACK) if level == MQTT_5 and reader.left else {}
    return Connack(
        code == 0, bool(flags & 1), properties.get("AssignedClientIdentifier"), properties.get("ServerKeepAlive")
    )


def write_unavailable(level: int) -> bytes:
    """Return the CONNACK that tells the client that the broker cannot be reached."""
    if level == MQTT_5:
        return _packed(Kind.CONNACK << 4, bytes((0, Reason.SERVER_UNAVAILABLE, 0)))
    return _packed(Kind.CONNACK << 4, bytes((0, 3)))


class Subscribe(NamedTuple):
    """Fields of a SUBSCRIBE.

    :ivar properties: undecoded, with their length.
    :ivar filters: pairs of topic filter and options.
    """

    packet_id: int
    properties: bytes
    filters: tuple[tuple[str, int], ...]


def read_subscribe(packet: Packet, level: int) -> Subscribe:
    """Read a SUBSCRIBE."""
    reader = _Reader(packet)
    packet_id = reader.integer16()
    properties = reader.raw_properties() if level == MQTT_5 else b""
    filters = []
    while reader.left:
        filters.append((reader.text(), reader.integer8()))
    if not filters:
        raise MalformedPacket("a SUBSCRIBE names no topic filter")
    return Subscribe(packet_id, properties, tuple(filters))


def write_subscribe(subscribe: Subscribe) -> bytes:
    """Return a SUBSCRIBE."""
    filters = [_text(name) + bytes((options,)) for name, options in subscribe.filters]
    return _packed(Kind.SUBSCRIBE << 4 | 2, _integer16(subscribe.packet_id), subscribe.properties, *filters)


def read_unsubscribe(packet: Packet, level: int) -> tuple[int, tuple[str, ...]]:
    """Return the packet id and the topic filters of an UNSUBSCRIBE."""
    reader = _Reader(packet)
    packet_id = reader.integer16()
    if level == MQTT_5:
        reader.raw_properties()
    filters = []
    while reader.left:
        filters.append(reader.text())
    return packet_id, tuple(filters)


class Suback(NamedTuple):
    """Fields of a SUBACK.

    :ivar properties: undecoded, with their length.
    :ivar codes: for each topic filter, the granted QoS or the reason of the refusal.
    """

    packet_id: int
    properties: bytes
    codes: bytes


def read_suback(packet: Packet, level: int) -> Suback:
    """Read a SUBACK."""
    reader = _Reader(packet)
    packet_id = reader.integer16()
    properties = reader.raw_properties() if level == MQTT_5 else b""
    return Suback(packet_id, properties, reader.rest())


def reason_string(text: str) -> bytes:
    """Return the properties of an MQTT 5 packet with one property: the Reason String."""
    packed = b"\x1f" + _text(text)
    return _length(len(packed)) + packed


def write_suback(packet_id: int, codes: Sequence[int], *, level: int, properties: bytes = b"") -> bytes:
    """Return a SUBACK; in MQTT 3 every refusal has the code 0x80."""
    if level == MQTT_5:
        return _packed(Kind.SUBACK << 4, _integer16(packet_id), properties or b"\0", bytes(codes))
    return _packed(Kind.SUBACK << 4, _integer16(packet_id), bytes(min(code, Reason.UNSPECIFIED) for code in codes))


class Publish(NamedTuple):
    """Fields of a PUBLISH that do not depend on the MQTT version.

    :ivar topic: empty when the packet has a topic alias instead.
    :ivar packet_id: 0 with QoS 0.
    """

    topic: str
    qos: int
    packet_id: int


class PublishProperties(NamedTuple):
    """Properties of an MQTT 5 PUBLISH, and what stands behind them.

    :ivar alias: topic alias; none when the packet has none.
    :ivar subscription_ids: identifiers of the subscriptions that matched the topic.
    :ivar user_properties: in their order.
    """

    alias: int | None
    subscription_ids: tuple[int, ...]
    user_properties: tuple[tuple[str, str], ...]
    content_type: str | None
    payload: bytes


def read_publish(packet: Packet) -> Publish:
    """Read topic, QoS and packet id of a PUBLISH."""
    reader = _Reader(packet)
    qos = packet.flags >> 1 & 3
    topic = reader.text()
    return Publish(topic, qos, reader.integer16() if qos else 0)


def read_publish_properties(packet: Packet) -> PublishProperties:
    """Read the properties and the payload of a PUBLISH of MQTT 5."""
    reader = _Reader(packet)
    reader.text()
    reader.skip(2 if packet.flags >> 1 & 3 else 0)
    properties = reader.properties(PacketTypes.PUBLISH)
    return PublishProperties(
        properties.get("TopicAlias"),
        tuple(properties.get("SubscriptionIdentifier", ())),
        tuple(properties.get("UserProperty", ())),
        properties.get("ContentType"),
        reader.rest(),
    )


def write_publish(
    topic: str,
    payload: bytes,
    *,
    packet_id: int,
    is_repeated: bool,
    level: int,
    user_properties: Sequence[tuple[str, str]] = (),
    content_type: str | None = None,
    subscription_ids: Sequence[int] = (),
) -> bytes:
    """Return a PUBLISH with QoS 1; in MQTT 3 it has no properties."""
    properties = b""
    if level == MQTT_5:
        # paho packs any property, but takes twenty times as long.
        parts = [b"\x26" + _text(name) + _text(text) for name, text in user_properties]
        parts += [b"\x0b" + _length(number) for number in subscription_ids]
        if content_type is not None:
            parts.append(b"\x03" + _text(content_type))
        packed = b"".join(parts)
        properties = _length(len(packed)) + packed
    first = Kind.PUBLISH << 4 | (8 if is_repeated else 0) | 2
    return _packed(first, _text(topic), _integer16(packet_id), properties, payload)


def write_acknowledgement(kind: Kind, packet_id: int) -> bytes:
    """Return a PUBACK, PUBREC or PUBCOMP without a reason code; all MQTT versions have the same packet."""
    return _packed(kind << 4, _integer16(packet_id))


def write_ping() -> bytes:
    """Return a PINGREQ."""
    return _packed(Kind.PINGREQ << 4)


def is_refusal(packet: Packet) -> bool:
    """Return whether the reason code of a PUBACK or PUBREC is an error."""
    return len(packet.raw) > packet.start + 2 and packet.raw[packet.start + 2] >= Reason.UNSPECIFIED


def write_disconnect(reason: Reason, *, level: int, properties: bytes = b"\0") -> bytes:
    """Return the DISCONNECT of a server with its reason; empty for MQTT 3, where servers send no DISCONNECT."""
    return _packed(Kind.DISCONNECT << 4, bytes((reason,)), properties) if level == MQTT_5 else b""


class _Reader:
    """Reads a packet from its start."""

    def __init__(self, packet: Packet) -> None:
        self._raw = packet.raw
        self.at = packet.start

    @property
    def left(self) -> int:
        return len(self._raw) - self.at

    def skip(self, count: int) -> bytes:
        if count > self.left:
            raise MalformedPacket("a packet ends too early")
        self.at += count
        return self._raw[self.at - count : self.at]

    def integer8(self) -> int:
        return self.skip(1)[0]

    def integer16(self) -> int:
        return int.from_bytes(self.skip(2))

    def text(self) -> str:
        try:
            return self.skip(self.integer16()).decode()
        except UnicodeDecodeError:
            raise MalformedPacket("a text in a packet is not UTF-8") from None

    def rest(self) -> bytes:
        return self.skip(self.left)

    def variable(self) -> int:
        """Return a Variable Byte Integer (MQTT 5 section 1.5.5)."""
        number, shift = 0, 0
        while True:
            digit = self.integer8()
            number |= (digit & 0x7F) << shift
            if not digit & 0x80:
                return number
            shift += 7
            if shift > 21:
                raise MalformedPacket("a number in a packet takes more than four bytes")

    def raw_properties(self) -> bytes:
        """Return the properties undecoded, with their length."""
        begin = self.at
        self.skip(self.variable())
        return self._raw[begin : self.at]

    def properties(self, packet_type: int) -> dict[str, Any]:
        """Return properties by paho's names, such as ``ReceiveMaximum``."""
        found: dict[str, Any] = {}
        for name, _, value in self.each_property(packet_type):
            if name in _REPEATABLE:
                found.setdefault(name, []).append(value)
            elif name in found:
                raise MalformedPacket(f"a packet has property {name} twice")
            else:
                found[name] = value
        return found

    def each_property(self, packet_type: int) -> Iterator[tuple[str, int, Any]]:
        """Yield name, offset and value of each property; the next byte to be read is then the one behind the value.

        The broker judges the values. Paho reads properties, too, but refuses some that MQTT 5 allows: texts with
        U+FEFF (section 1.5.4) and a Maximum Packet Size beyond that of any packet (section 3.1.2.11.4).
        """
        size = self.variable()
        end = self.at + size
        if size > self.left:
            raise MalformedPacket("a packet ends within its properties")
        while self.at < end:
            name, form, packet_types = _PROPERTIES.get(self.variable(), ("", "", ()))
            if packet_type not in packet_types:
                raise MalformedPacket("a packet has a property that its type cannot have")
            begin = self.at
            value = _FORMS[form](self)
            if self.at > end:
                raise MalformedPacket("a property of a packet is longer than all of them")
            yield name, begin, value


_FORMS: dict[str, Callable[[_Reader], Any]] = {
    "Byte": _Reader.integer8,
    "Two Byte Integer": _Reader.integer16,
    "Four Byte Integer": lambda reader: int.from_bytes(reader.skip(4)),
    "Variable Byte Integer": _Reader.variable,
    "Binary Data": lambda reader: reader.skip(reader.integer16()),
    "UTF-8 Encoded String": _Reader.text,
    "UTF-8 String Pair": lambda reader: (reader.text(), reader.text()),
}
_REPEATABLE = frozenset({"UserProperty", "SubscriptionIdentifier"})


def _known_properties() -> dict[int, tuple[str, str, Sequence[int]]]:
    """Return name, form and packet types of each property, by its number; paho knows them."""
    known: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    return {
        number: (name.replace(" ", ""), known.types[known.properties[number][0]], known.properties[number][1])
        for name, number in known.names.items()
    }


_PROPERTIES = _known_properties()


def _text(text: str) -> bytes:
    raw = text.encode()
    return _integer16(len(raw)) + raw


def _integer16(number: int) -> bytes:
    return number.to_bytes(2)


def _length(number: int) -> bytes:
    """Return a number as a Variable Byte Integer (MQTT 5 section 1.5.5)."""
    packed = bytearray()
    while True:
        number, digit = divmod(number, 128)
        packed.append(digit | 0x80 if number else digit)
        if not number:
            return bytes(packed)


def _packed(first: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes((first,)) + _length(len(body)) + body
