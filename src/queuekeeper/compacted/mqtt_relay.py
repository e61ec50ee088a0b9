"""One client's connection through the door, which passes packets on and adds the messages of the client's queue.

The broker decides who the client is, what it may do and what it may subscribe to. When the broker has granted the
subscription to the client's own topics, the door knocks: it publishes an empty message to one of these topics. The
broker delivers the knock only to a client that is subscribed and may read. When the knock arrives, the door opens the
queue and drops the knock, as every other message of the broker on these topics. From then on the door sends the queue's
messages to the client, with packet ids that the broker does not use, and the client's PUBACKs acknowledge them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import uuid
from asyncio import StreamReader, StreamWriter
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from queuekeeper.compacted import mqtt_packets as packets
from queuekeeper.compacted.consumer import AsyncCompactedConsumer
from queuekeeper.compacted.consumption import ConsumerRules, WhenUnreadable
from queuekeeper.compacted.model import property_pairs
from queuekeeper.compacted.mqtt_health import FailedDeliveries
from queuekeeper.compacted.mqtt_link import CONNECT_TIMEOUT_S
from queuekeeper.compacted.mqtt_packets import Kind, MalformedPacket, Packet, Reason
from queuekeeper.compacted.queue import AsyncCompactedQueues
from queuekeeper.compacted.reports import CompactedMessage
from queuekeeper.compacted.topics import Topics
from queuekeeper.errors import InvalidTopic, QueuekeeperError, ServerUnavailable, StaleEpoch

CLOSE_TIMEOUT_S = 2.0
EARLY_BYTES = 65_536
"""Most bytes that the door reads from a client before it has connected to the broker for that client."""

KNOCK_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Times to wait for a knock before the next one; after the last of them the door gives up."""

SEQUENCE_PROPERTY = "ecq-seqno"
TOMBSTONE_PROPERTY = "ecq-tombstone"
PACKET_IDS = 65_535
SIGN_OF_LIFE = 0.25
"""Part of the keep-alive after which the door tells the broker that the client lives. The client sends its next packet
within one keep-alive, and the broker waits for one and a half (MQTT 5 section 3.1.2.10)."""

NO_REDIS = "the queue cannot be read now, since Redis does not answer: try again later"
_QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(kw_only=True)
class DoorReport:
    """Counts since the door was opened, and whether Redis works now.

    :param connections: connections of clients, also those that have ended.
    :param appended: values stored.
    :param refused: publishes refused because they can never be stored.
    :param untold: refused publishes whose refusal the broker did not let the door publish.
    :param delivered: messages sent to clients.
    :param acknowledged: messages acknowledged by clients.
    :param failed: failed deliveries: queues that cannot be read, queues lost to another consumer, messages passed over,
        and connections that ended with messages delivered and none acknowledged.
    :param redis_answers: whether Redis answered the last check.
    :param stores: whether Redis stores what is published, by the last check and the last publish.
    :param unavailable: subscriptions to queues refused because Redis did not answer.
    :param outages: outages begun: Redis does not answer, or does not store.
    """

    connections: int = 0
    appended: int = 0
    refused: int = 0
    untold: int = 0
    delivered: int = 0
    acknowledged: int = 0
    failed: int = 0
    redis_answers: bool = True
    stores: bool = True
    unavailable: int = 0
    outages: int = 0


@dataclass(frozen=True, kw_only=True)
class Durations:
    """Functions that are called with durations in seconds.

    :param append: from receiving a publish until it is stored.
    :param delivery: from fetching a message until it is written to the client.
    :param ack: from writing a message to the client until its PUBACK.
    """

    append: Callable[[float], None]
    delivery: Callable[[float], None]
    ack: Callable[[float], None]


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What all connections of a door share.

    :param window: most unacknowledged messages of a queue that a client has.
    :param max_packet_bytes: largest packet in bytes that the door reads.
    :param open_broker: opens a connection to the broker for a client; raises ``OSError`` when that fails.
    :param knock: publishes an empty message to a topic, over the door's own connection.
    :param has_redis: returns whether Redis answered the last check.
    :param failures: counts and logs failed deliveries.
    """

    queues: AsyncCompactedQueues
    topics: Topics
    window: int
    max_packet_bytes: int
    open_broker: Callable[[], Coroutine[Any, Any, tuple[StreamReader, StreamWriter]]]
    knock: Callable[[str], Awaitable[None]]
    has_redis: Callable[[], bool]
    failures: FailedDeliveries
    durations: Durations
    report: DoorReport


class _Injected(NamedTuple):
    consumer: AsyncCompactedConsumer
    message: CompactedMessage
    given_at_s: float


# Verdicts on a topic filter of a SUBSCRIBE: the broker decides, or the filter is that of the client's own queue. Any
# other verdict is the reason code with which the door refuses the filter.
_BROKERS, _OWN = -1, -2


class Relay:
    """Serves one connection until it ends."""

    def __init__(self, world: Surroundings, reader: StreamReader, writer: StreamWriter) -> None:
        self._world = world
        self._topics = world.topics
        self._reader = reader
        self._client = writer
        self._level = packets.MQTT_5
        self._client_id = ""
        self._own_topics: str | None = None
        self._own_filter: str | None = None
        self._window = world.window
        self._max_packet_bytes = packets.ANY_PACKET_BYTES
        self._takes_reasons = False
        self._room = asyncio.Semaphore(world.window)
        self._injected: dict[int, _Injected] = {}
        # Packet ids of the broker's messages that the client has not acknowledged.
        self._brokers_ids: set[int] = set()
        self._brokers_last_id = 0
        self._subscribing: dict[int, list[int]] = {}
        self._unsubscribing: set[int] = set()
        # Topic aliases and packet ids of the broker's messages on the client's own topics, which are not passed on.
        self._own_aliases: set[int] = set()
        self._own_qos_2: set[int] = set()
        self._subscription_ids: tuple[int, ...] = ()
        self._opened = asyncio.Event()
        self._delivering: asyncio.Task[None] | None = None
        # Number of queue messages sent to the client.
        self._unanswered = 0
        self._has_acknowledged = self._is_ended_by_us = False
        self._tasks: set[asyncio.Task[None]] = set()
        # Writer to the broker; done once the client is let in, that is, connected to the broker.
        self._let_in: asyncio.Future[StreamWriter] = asyncio.Future()
        # Packets that the client has sent behind its CONNECT before it was let in.
        self._early: list[Packet] = []
        self._early_bytes = 0
        self._keep_alive_s = 0
        self._passed_at_s = 0.0
        # For each PINGREQ that the broker has not answered, whether it is the door's.
        self._pings: deque[bool] = deque()
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Pass packets on until the client or the broker closes its connection, or :meth:`end` is called."""
        opened: list[tuple[StreamReader, StreamWriter]] = []

        async def open_broker() -> None:
            # Kept outside, so that it is closed even if the wait for it is cancelled.
            opened.append(await self._world.open_broker())

        try:
            connect = await self._unless_it_ends(self._read_connect())
            if connect is None:
                return
            # Read from the client already now: if it leaves before it is let in, its CONNECT must not reach the broker.
            self._spawn(self._pass_on(self._reader, None, self._for_broker))
            try:
                await self._unless_it_ends(open_broker())
            except OSError as error:
                _log.warning("client %r cannot be let in to the broker: %s", self._client_id, error)
                self._client.write(packets.write_unavailable(self._level))
                return
            if self._ended.is_set():
                return
            ((reader, broker),) = opened
            broker.write(connect)
            self._passed_at_s = time.monotonic()
            self._let_in.set_result(broker)
            for packet in self._early:
                broker.write(self._for_broker(packet))
            self._spawn(self._pass_on(reader, self._client, lambda packet: self._from_broker(packet, broker)))
            await self._ended.wait()
        except (MalformedPacket, ConnectionError, TimeoutError) as error:
            _log.info("connection of client %r ends: %s", self._client_id, error)
        finally:
            if self._unanswered and not self._has_acknowledged and not self._is_ended_by_us:
                self._failed(f"goes without an acknowledgement, after {self._unanswered} messages of its queue")
            await self._stop_delivering()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for writer in (*(broker for _, broker in opened), self._client):
                writer.close()
                with suppress(OSError, TimeoutError):
                    async with asyncio.timeout(CLOSE_TIMEOUT_S):
                        await writer.wait_closed()
                # Data that the peer has not read within 2 s is discarded.
                writer.transport.abort()

    def end(self, reason: Reason, why: str | None = None) -> None:
        """End the connection, with a DISCONNECT for MQTT 5; a client that is not let in yet gets a CONNACK instead.

        :param why: Reason String of the DISCONNECT; left out if the packet would be too large for the client.
        """
        self._is_ended_by_us = True
        self._ended.set()
        if not self._let_in.done():
            return
        properties = b"\0" if why is None else packets.reason_string(why)
        said = packets.write_disconnect(reason, level=self._level, properties=properties)
        if len(said) > self._max_packet_bytes:
            said = packets.write_disconnect(reason, level=self._level)
        self._client.write(said)

    async def _unless_it_ends(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Wait for some work, and cancel it when the connection ends.

        :raises ConnectionAbortedError: when the connection ended first.
        """
        task = asyncio.get_running_loop().create_task(work)
        ending = asyncio.get_running_loop().create_task(self._ended.wait())
        ending.add_done_callback(lambda _: task.cancel())
        try:
            return await task
        except asyncio.CancelledError:
            if self._ended.is_set():
                raise ConnectionAbortedError("the client has left, or the door is shut") from None
            raise
        finally:
            ending.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read_connect(self) -> bytes | None:
        """Read the client's CONNECT, and return the CONNECT for the broker; none when the client has closed."""
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            packet = await packets.read_packet(self._reader, max_bytes=self._world.max_packet_bytes)
        if packet is None:
            return None
        connect = packets.read_connect(packet)
        self._level = connect.level
        self._keep_alive_s = connect.keep_alive_s
        self._max_packet_bytes = connect.max_packet_bytes
        self._takes_reasons = connect.level == packets.MQTT_5 and connect.takes_reasons
        self._take_client_id(connect.client_id)
        if connect.receive_maximum is None:
            return packet.raw
        # The broker and the queue share the client's Receive Maximum.
        self._window = min(self._window, connect.receive_maximum // 2)
        self._room = asyncio.Semaphore(self._window)
        return packets.with_receive_maximum(packet, connect.receive_maximum - self._window)

    def _take_client_id(self, client_id: str) -> None:
        self._client_id = client_id
        # A client id that no topic can hold has no queue over MQTT; the broker serves the client all the same.
        with suppress(InvalidTopic):
            self._own_filter = self._topics.subscription(client_id)
            self._own_topics = self._topics.delivery(client_id, b"")

    async def _pass_on(
        self, source: StreamReader, sink: StreamWriter | None, look_at: Callable[[Packet], bytes]
    ) -> None:
        """Pass packets on from the source to the sink.

        :param sink: none for the broker. Until the client is let in, its packets are kept; after 64 KiB of them, no
            more is read.
        :param look_at: returns the bytes to pass on in place of a packet.
        """
        try:
            while packet := await packets.read_packet(source, max_bytes=self._world.max_packet_bytes):
                if not self._let_in.done():
                    if packet.kind == Kind.DISCONNECT:
                        return
                    self._early.append(packet)
                    self._early_bytes += len(packet.raw)
                    if self._early_bytes > EARLY_BYTES:
                        await self._let_in
                    continue
                writer = sink or self._let_in.result()
                writer.write(look_at(packet))
                await writer.drain()
        except (MalformedPacket, ConnectionError) as error:
            _log.info("connection of client %r ends: %s", self._client_id, error)
        finally:
            self._ended.set()

    # From the client

    def _for_broker(self, packet: Packet) -> bytes:
        """Handle a packet of the client, and return the bytes for the broker.

        A broker disconnects a client of which it gets nothing. It gets nothing of what the door takes for itself, and
        a client that sends enough of that sends no PINGREQ: then the door sends one.
        """
        passed = self._from_client(packet)
        now_s = time.monotonic()
        if packet.kind == Kind.PINGREQ:
            self._pings.append(False)
        elif not passed and 0 < SIGN_OF_LIFE * self._keep_alive_s <= now_s - self._passed_at_s:
            self._pings.append(True)
            passed = packets.write_ping()
        if passed:
            self._passed_at_s = now_s
        return passed

    def _from_client(self, packet: Packet) -> bytes:
        """Handle a packet of the client, and return the bytes for the broker."""
        kind = packet.kind
        if kind in (Kind.PUBACK, Kind.PUBREC, Kind.PUBCOMP):
            packet_id = packet.packet_id
            if kind == Kind.PUBACK and packet_id in self._injected:
                injected = self._injected.pop(packet_id)
                self._room.release()
                self._has_acknowledged = True
                self._world.durations.ack(time.monotonic() - injected.given_at_s)
                self._world.failures.end(self._client_id)
                if injected.consumer.ack_soon(injected.message):
                    self._world.report.acknowledged += 1
                self._confirm_receipt()
                return b""
            if kind != Kind.PUBREC or packets.is_refusal(packet):
                self._brokers_ids.discard(packet_id)
        elif kind == Kind.SUBSCRIBE:
            return self._subscribe(packet)
        elif kind == Kind.UNSUBSCRIBE:
            packet_id, filters = packets.read_unsubscribe(packet, self._level)
            if self._own_filter in filters:
                self._unsubscribing.add(packet_id)
        return packet.raw

    def _confirm_receipt(self) -> None:
        """Have the system send the TCP acknowledgement of a PUBACK at once.

        Nothing answers a PUBACK, so the system would delay the TCP acknowledgement by 40 ms. Most clients hold back
        their next small packet until they have it (Nagle's algorithm).
        """
        if _QUICK_ACK is not None:
            self._client.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)

    def _subscribe(self, packet: Packet) -> bytes:
        subscribe = packets.read_subscribe(packet, self._level)
        verdicts = [self._judge(name, options) for name, options in subscribe.filters]
        if all(verdict == _BROKERS for verdict in verdicts):
            return packet.raw
        # The broker is asked for QoS 0 on the client's own topics: it delivers only knocks there, and need not keep a
        # knock while the client is away.
        asked = tuple(
            (name, options & ~3 if verdict == _OWN else options)
            for (name, options), verdict in zip(subscribe.filters, verdicts, strict=True)
            if verdict < 0
        )
        if not asked:
            self._client.write(self._answer(subscribe.packet_id, verdicts))
            return b""
        self._subscribing[subscribe.packet_id] = verdicts
        return packets.write_subscribe(subscribe._replace(filters=asked))

    def _judge(self, name: str, options: int) -> int:
        # $share/GROUP/FILTER
        shared = name.split("/", maxsplit=2)[-1] if name.startswith("$share/") else None
        if shared is None and name == self._own_filter and self._window:
            if options & 3 and not self._world.has_redis():
                self._world.report.unavailable += 1
                return Reason.IMPLEMENTATION_SPECIFIC
            if options & 3:
                return _OWN
            _log.warning("client %r subscribes to its queue with QoS 0, and is refused", self._client_id)
            return Reason.UNSPECIFIED
        if shared is None and name == self._own_filter:
            _log.warning("client %r has Receive Maximum 1, which leaves no room for its queue", self._client_id)
            return Reason.QUOTA_EXCEEDED
        if self._topics.covers(name if shared is None else shared):
            _log.warning("client %r may not subscribe to %r: only to its own queue", self._client_id, name[:200])
            return Reason.NOT_AUTHORIZED
        return _BROKERS

    # From the broker

    def _from_broker(self, packet: Packet, broker: StreamWriter) -> bytes:
        """Handle a packet of the broker, and return the bytes for the client."""
        kind = packet.kind
        if kind == Kind.PUBLISH:
            return self._publish(packet, broker)
        if kind == Kind.PUBREL and packet.packet_id in self._own_qos_2:
            self._own_qos_2.discard(packet.packet_id)
            broker.write(packets.write_acknowledgement(Kind.PUBCOMP, packet.packet_id))
            return b""
        if kind == Kind.PINGRESP:
            is_doors = bool(self._pings) and self._pings.popleft()
            return b"" if is_doors else packet.raw
        if kind == Kind.CONNACK:
            connack = packets.read_connack(packet, self._level)
            if connack.client_id is not None:
                self._take_client_id(connack.client_id)
            if connack.keep_alive_s is not None:
                self._keep_alive_s = connack.keep_alive_s
            if connack.is_accepted and connack.session_present:
                self._spawn(self._knock(is_expected=False))
        elif kind == Kind.SUBACK and packet.packet_id in self._subscribing:
            return self._suback(packet)
        elif kind == Kind.UNSUBACK and packet.packet_id in self._unsubscribing:
            self._unsubscribing.discard(packet.packet_id)
            self._spawn(self._stop_delivering())
        return packet.raw

    def _suback(self, packet: Packet) -> bytes:
        suback = packets.read_suback(packet, self._level)
        answers = iter(suback.codes)
        codes = []
        for verdict in self._subscribing.pop(suback.packet_id):
            code = verdict if verdict >= 0 else next(answers, Reason.UNSPECIFIED)
            if verdict == _OWN and code < Reason.UNSPECIFIED:
                code = Reason.GRANTED_QOS_1
                self._spawn(self._knock(is_expected=True))
            codes.append(code)
        return self._answer(suback.packet_id, codes, suback.properties)

    def _answer(self, packet_id: int, codes: list[int], properties: bytes = b"") -> bytes:
        """Return a SUBACK with the broker's properties.

        If the broker sent none and the door refuses a filter because Redis does not answer, the SUBACK has a Reason
        String, unless the client does not accept it.
        """
        plain = packets.write_suback(packet_id, codes, level=self._level, properties=properties)
        if Reason.IMPLEMENTATION_SPECIFIC not in codes or not self._takes_reasons or properties not in (b"", b"\0"):
            return plain
        why = packets.reason_string(NO_REDIS)
        explained = packets.write_suback(packet_id, codes, level=self._level, properties=why)
        return explained if len(explained) <= self._max_packet_bytes else plain

    def _publish(self, packet: Packet, broker: StreamWriter) -> bytes:
        publish = packets.read_publish(packet)
        is_own = self._own_topics is not None and publish.topic.startswith(self._own_topics)
        if self._level == packets.MQTT_5 and (is_own or not publish.topic or self._own_aliases):
            properties = packets.read_publish_properties(packet)
            if publish.topic and properties.alias is not None:
                (self._own_aliases.add if is_own else self._own_aliases.discard)(properties.alias)
            is_own = is_own or (not publish.topic and properties.alias in self._own_aliases)
            if is_own:
                self._subscription_ids = properties.subscription_ids
        if is_own:
            if publish.qos == 1:
                broker.write(packets.write_acknowledgement(Kind.PUBACK, publish.packet_id))
            elif publish.qos == 2:
                self._own_qos_2.add(publish.packet_id)
                broker.write(packets.write_acknowledgement(Kind.PUBREC, publish.packet_id))
            self._open()
            return b""
        if publish.qos:
            if publish.packet_id in self._injected:
                raise MalformedPacket(
                    f"the broker uses packet id {publish.packet_id} of a queue message; connect again"
                )
            self._brokers_ids.add(publish.packet_id)
            self._brokers_last_id = publish.packet_id
        return packet.raw

    # The queue

    async def _knock(self, *, is_expected: bool) -> None:
        """Knock until a knock arrives, at most five times.

        :param is_expected: log a warning if none arrives.
        """
        topic = self._own_topics
        if topic is None:
            return
        for knock_pause_s in KNOCK_PAUSES_S:
            await self._world.knock(topic)
            with suppress(TimeoutError):
                async with asyncio.timeout(knock_pause_s):
                    await self._opened.wait()
                    return
        if is_expected:
            _log.warning(
                "client %r receives nothing from its queue: the broker granted its subscription to %s, but delivers "
                "nothing there; check that the door may write to these topics and the client may read them",
                *(self._client_id, self._own_filter),
            )

    def _open(self) -> None:
        self._opened.set()
        if self._delivering is None and not self._ended.is_set():
            self._delivering = asyncio.get_running_loop().create_task(self._deliver())

    async def _stop_delivering(self) -> None:
        task, self._delivering = self._delivering, None
        self._opened.clear()
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _deliver(self) -> None:
        """Consume the queue, and send its messages to the client."""
        rules = ConsumerRules(window=self._window, unreadable=WhenUnreadable.HAND_OUT)
        session = f"mqtt:{uuid.uuid4().hex}"
        try:
            async with AsyncCompactedConsumer(
                self._world.queues, self._client_id, rules=rules, session=session
            ) as consumer:
                async for message in consumer:
                    began_at_s = time.monotonic()
                    await self._room.acquire()
                    is_given = self._inject(consumer, message)
                    await self._client.drain()
                    if is_given:
                        self._world.durations.delivery(time.monotonic() - began_at_s)
        except StaleEpoch as error:
            self._failed(f"loses its queue: {error}")
            self.end(Reason.SESSION_TAKEN_OVER)
        except ServerUnavailable as error:
            if self._world.has_redis():
                self._failed(f"gets nothing, since its queue cannot be read: {error}")
            self.end(Reason.IMPLEMENTATION_SPECIFIC, NO_REDIS)
        except QueuekeeperError as error:
            self._failed(f"gets nothing, since its queue cannot be read: {error}")
            self.end(Reason.UNSPECIFIED)
        except ConnectionError:
            self._ended.set()
        except Exception:
            # A client that stayed connected without its queue would wait for ever.
            _log.exception("client %r: its queue cannot be delivered", self._client_id)
            self.end(Reason.UNSPECIFIED)

    def _inject(self, consumer: AsyncCompactedConsumer, message: CompactedMessage) -> bool:
        """Send a message to the client.

        :returns: false when the client cannot receive the message, which is then passed over.
        """
        if not message.is_readable:
            self._pass_over(consumer, message, "its record cannot be read")
            return False
        packet_id = self._free_id()
        try:
            raw = packets.write_publish(
                self._topics.delivery(self._client_id, message.key),
                message.value,
                packet_id=packet_id,
                is_repeated=message.redelivered,
                level=self._level,
                user_properties=_user_properties(message),
                content_type=message.content_type if _is_allowed(message.content_type or "") else None,
                subscription_ids=self._subscription_ids,
            )
        except InvalidTopic as error:
            self._pass_over(consumer, message, str(error))
            return False
        if len(raw) > self._max_packet_bytes:
            # MQTT 5 section 3.1.2.11.4: discard it, and go on as if it had been sent.
            self._pass_over(consumer, message, f"the client accepts no packet of {len(raw)} bytes")
            return False
        self._injected[packet_id] = _Injected(consumer, message, time.monotonic())
        self._client.write(raw)
        self._unanswered += 1
        self._world.report.delivered += 1
        return True

    def _pass_over(self, consumer: AsyncCompactedConsumer, message: CompactedMessage, why: str) -> None:
        self._failed(f"does not get message {message.sequence} of its queue: {why}", level=logging.ERROR)
        consumer.ack_soon(message)
        self._room.release()

    def _failed(self, why: str, *, level: int = logging.WARNING) -> None:
        self._world.report.failed += 1
        self._world.failures.meet(self._client_id, why, level=level)

    def _free_id(self) -> int:
        """Return a packet id that is as far as possible from the broker's last one, since brokers count up."""
        packet_id = self._brokers_last_id + PACKET_IDS // 2
        while True:
            packet_id = packet_id % PACKET_IDS + 1
            if packet_id not in self._injected and packet_id not in self._brokers_ids:
                return packet_id


def _user_properties(message: CompactedMessage) -> list[tuple[str, str]]:
    own = [(SEQUENCE_PROPERTY, str(message.sequence))]
    if message.tombstone:
        own.append((TOMBSTONE_PROPERTY, "1"))
    return own + [pair for pair in property_pairs(message.properties) if _is_allowed("".join(pair))]


def _is_allowed(text: str) -> bool:
    """Return whether a packet may contain a text (MQTT 5 section 1.5.4); if not, clients disconnect at the packet."""
    return "\0" not in text
