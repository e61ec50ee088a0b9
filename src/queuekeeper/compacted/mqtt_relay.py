"""One client's connection through the door: all is passed on to the broker and back, but for the client's own queue.

The broker decides who the client is, what it may do and what it subscribes to. When it has accepted the subscription
to the client's own topics, the door knocks: it publishes to such a topic, and the broker lets that pass only to a
client that is subscribed and may read. What comes through on those topics is never passed on. It opens the queue: from
then on its messages are put between the broker's, with packet ids that the broker does not use, and the client's
PUBACKs for them acknowledge.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import uuid
from asyncio import StreamReader, StreamWriter
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
"""What is taken of a client that waits to be let in."""

KNOCK_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""How long a knock is waited for before the next one."""

SEQUENCE_PROPERTY = "ecq-seqno"
TOMBSTONE_PROPERTY = "ecq-tombstone"
PACKET_IDS = 65_535
NO_REDIS = "the queue cannot be read now, since Redis does not answer: try again later"
_QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(kw_only=True)
class DoorReport:
    """What went through a door since it was opened.

    :param connections: of clients.
    :param appended: values stored.
    :param refused: publishes that never can be stored, and were told so.
    :param untold: those of them that the broker let nobody know of.
    :param delivered: messages given to clients.
    :param acknowledged: those that the clients confirmed.
    :param failed: deliveries that failed: a queue that cannot be read or was lost, a message that was passed over, a
        connection that has ended with nothing acknowledged.
    :param redis_answers: whether Redis answers now.
    :param stores: whether what is published can be stored now, as far as is known.
    :param unavailable: subscriptions to queues that were refused since Redis did not answer.
    :param outages: how often Redis has begun not to answer, or not to store.
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
    """Receiver of durations, in seconds.

    :param append: from taking a publish until it is stored.
    :param delivery: from having a message until the client's connection has taken it.
    :param ack: from giving it until the client's PUBACK.
    """

    append: Callable[[float], None]
    delivery: Callable[[float], None]
    ack: Callable[[float], None]


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What all connections of a door share.

    :param window: messages that a client gets before it has to acknowledge.
    :param open_broker: opens a connection to the broker; raises an ``OSError`` when a client cannot be let in.
    :param knock: publishes to a topic by the door's own connection.
    :param has_redis: whether Redis answers, as far as is known.
    :param failures: to deliver, by client.
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


# What becomes of a filter of a SUBSCRIBE: the broker answers, it is the client's own, or the door refuses it.
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
        # Packet ids of the broker's messages that the client has not confirmed.
        self._brokers_ids: set[int] = set()
        self._brokers_last_id = 0
        self._subscribing: dict[int, list[int]] = {}
        self._unsubscribing: set[int] = set()
        # Of messages on the client's own topics, which are not passed on.
        self._own_aliases: set[int] = set()
        self._own_qos_2: set[int] = set()
        self._subscription_ids: tuple[int, ...] = ()
        self._opened = asyncio.Event()
        self._delivering: asyncio.Task[None] | None = None
        # Messages of the queue that the client was given by this connection, until it acknowledges one.
        self._unanswered = 0
        self._has_acknowledged = self._is_ended_by_us = False
        self._tasks: set[asyncio.Task[None]] = set()
        # To the broker, once the client is let in.
        self._let_in: asyncio.Future[StreamWriter] = asyncio.Future()
        # What the client has sent behind its CONNECT until then.
        self._early: list[Packet] = []
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Pass packets on until either side ends."""
        opened: list[tuple[StreamReader, StreamWriter]] = []

        async def open_broker() -> None:
            # Noted where it is opened: it is to be closed however the wait for it ends.
            opened.append(await self._world.open_broker())

        try:
            connect = await self._unless_it_ends(self._read_connect())
            if connect is None:
                return
            # Read from now on, since a client may leave before it is let in: the broker is not to hear of it then.
            self._spawn(self._pass_on(self._reader, None, self._from_client))
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
            self._let_in.set_result(broker)
            for packet in self._early:
                broker.write(self._from_client(packet))
            self._spawn(self._pass_on(reader, self._client, lambda packet: self._from_broker(packet, broker)))
            await self._ended.wait()
        except (MalformedPacket, ConnectionError, TimeoutError) as error:
            _log.info("connection of client %r ends: %s", self._client_id, error)
        finally:
            if self._unanswered and not self._has_acknowledged and not self._is_ended_by_us:
                self._failed(f"goes without an acknowledgement, having been given {self._unanswered} of its queue")
            await self._stop_delivering()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for writer in (*(broker for _, broker in opened), self._client):
                writer.close()
                with suppress(OSError, TimeoutError):
                    async with asyncio.timeout(CLOSE_TIMEOUT_S):
                        await writer.wait_closed()
                # A peer that reads nothing has had its time.
                writer.transport.abort()

    def end(self, reason: Reason, why: str | None = None) -> None:
        """End the connection, with a reason if the client understands one; a waiting client gets it in its CONNACK."""
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
        """Wait for something, but no longer than for the end of the connection.

        :raises ConnectionAbortedError: at that end.
        """
        task = asyncio.get_running_loop().create_task(work)
        ending = asyncio.get_running_loop().create_task(self._ended.wait())
        ending.add_done_callback(lambda _: task.cancel())
        try:
            return await task
        except asyncio.CancelledError:
            if self._ended.is_set():
                raise ConnectionAbortedError("it has left, or the door is shut") from None
            raise
        finally:
            ending.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read_connect(self) -> bytes | None:
        """Return the client's CONNECT as it is for the broker."""
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            packet = await packets.read_packet(self._reader, max_bytes=self._world.max_packet_bytes)
        if packet is None:
            return None
        connect = packets.read_connect(packet)
        self._level = connect.level
        self._max_packet_bytes = connect.max_packet_bytes
        self._takes_reasons = connect.level == packets.MQTT_5 and connect.takes_reasons
        self._take_client_id(connect.client_id)
        if connect.receive_maximum is None:
            return packet.raw
        # What the client takes at once is shared between the broker and the queue.
        self._window = min(self._window, connect.receive_maximum // 2)
        self._room = asyncio.Semaphore(self._window)
        return packets.with_receive_maximum(packet, connect.receive_maximum - self._window)

    def _take_client_id(self, client_id: str) -> None:
        self._client_id = client_id
        # Without an own topic there is no queue, and the broker sees to all else.
        with suppress(InvalidTopic):
            self._own_filter = self._topics.subscription(client_id)
            self._own_topics = self._topics.delivery(client_id, b"")

    async def _pass_on(
        self, source: StreamReader, sink: StreamWriter | None, look_at: Callable[[Packet], bytes]
    ) -> None:
        """Pass packets on; with no sink, to the broker, once the client is let in.

        Until then it is read all the same, so that its end is seen; from one that has sent a lot nothing more is read.
        """
        try:
            while packet := await packets.read_packet(source, max_bytes=self._world.max_packet_bytes):
                if not self._let_in.done():
                    if packet.kind == Kind.DISCONNECT:
                        return
                    self._early.append(packet)
                    if sum(len(early.raw) for early in self._early) > EARLY_BYTES:
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

    def _from_client(self, packet: Packet) -> bytes:
        """Return what the broker is to get."""
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
        """Have the system confirm at once what has arrived.

        Most clients hold back their next small packet until then (Nagle's algorithm), and systems confirm only after
        40 ms what has no answer, as a PUBACK has none.
        """
        if _QUICK_ACK is not None:
            self._client.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)

    def _subscribe(self, packet: Packet) -> bytes:
        subscribe = packets.read_subscribe(packet, self._level)
        verdicts = [self._judge(name, options) for name, options in subscribe.filters]
        if all(verdict == _BROKERS for verdict in verdicts):
            return packet.raw
        # Of the client's own topics nothing but the knock comes from the broker, which is not kept while nobody is
        # there: QoS 0.
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
            _log.warning("client %r takes one message at a time, which leaves none for its queue", self._client_id)
            return Reason.QUOTA_EXCEEDED
        if self._topics.covers(name if shared is None else shared):
            _log.warning("client %r may not subscribe to %r: only to its own queue", self._client_id, name[:200])
            return Reason.NOT_AUTHORIZED
        return _BROKERS

    # From the broker

    def _from_broker(self, packet: Packet, broker: StreamWriter) -> bytes:
        """Return what the client is to get."""
        kind = packet.kind
        if kind == Kind.PUBLISH:
            return self._publish(packet, broker)
        if kind == Kind.PUBREL and packet.packet_id in self._own_qos_2:
            self._own_qos_2.discard(packet.packet_id)
            broker.write(packets.write_acknowledgement(Kind.PUBCOMP, packet.packet_id))
            return b""
        if kind == Kind.CONNACK:
            connack = packets.read_connack(packet, self._level)
            if connack.client_id is not None:
                self._take_client_id(connack.client_id)
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
        """Return a SUBACK; what the broker says in it stays, and where it says nothing the door says why it refuses."""
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
                raise MalformedPacket(f"packet id {publish.packet_id} is the broker's and the queue's; connect again")
            self._brokers_ids.add(publish.packet_id)
            self._brokers_last_id = publish.packet_id
        return packet.raw

    # The queue

    async def _knock(self, *, is_expected: bool) -> None:
        """Find out whether the broker lets the client's own topics pass to it."""
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
                "client %r gets nothing of its queue: the broker has granted %s, but lets nothing of it pass; may the "
                "door write there, and the client read?",
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
        """Put the queue's messages between the broker's."""
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
            # Connected, and without its queue, the client would wait for ever.
            _log.exception("client %r: its queue cannot be delivered", self._client_id)
            self.end(Reason.UNSPECIFIED)

    def _inject(self, consumer: AsyncCompactedConsumer, message: CompactedMessage) -> bool:
        """Give a message to the client; return false for one that it cannot have."""
        if not message.is_readable:
            self._pass_over(consumer, message, "what is stored cannot be read")
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
            # As if it had been sent (MQTT 5 section 3.1.2.11.4).
            self._pass_over(consumer, message, f"it takes no packet of {len(raw)} bytes")
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
        """Return a packet id as far from the broker's as can be: brokers count up."""
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
    """Return whether a text may be in a packet (MQTT 5 section 1.5.4): else a client would hang up, time and again."""
    return "\0" not in text
