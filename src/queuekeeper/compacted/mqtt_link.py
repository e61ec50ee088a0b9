"""The door's own connection to the broker: receives what producers publish, and acknowledges it when it is stored.

The broker keeps unacknowledged publishes, also while the door is not connected, and sends them again at the next
connection. So when storing a publish fails, the link does not acknowledge it and closes the connection; the broker then
sends all unacknowledged publishes again, in their order.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from queuekeeper.clock import SERVER_BACKOFF
from queuekeeper.compacted.consumer import GRACE_S
from queuekeeper.compacted.mqtt_address import BrokerAddress
from queuekeeper.compacted.mqtt_packets import (
    ANY_PACKET_BYTES,
    HEADER_BYTES,
    MalformedPacket,
    Packet,
    read_publish,
    read_publish_properties,
)
from queuekeeper.errors import PayloadTooLarge, ServerUnavailable

KEEPALIVE_S = 60
CONNECT_TIMEOUT_S = 10.0
MAX_AT_ONCE = 1_000
"""Most publishes that are stored at once; further ones wait at the broker."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A publish of a producer.

    :param properties: its MQTT user properties, in order.
    :param is_repeated: the broker has sent this publish before, and received no acknowledgement.
    """

    topic: str
    payload: bytes
    properties: tuple[tuple[str, str], ...]
    content_type: str | None
    is_repeated: bool = False


class _Receipt(NamedTuple):
    """What acknowledges a publish.

    :ivar qos: with 0, nothing does.
    """

    packet_id: int
    qos: int


class NotStored(Exception):
    """A publish could not be stored; whoever raises this has logged why."""


Store = Callable[[Published], Awaitable[None]]


class BrokerLink:
    """Keeps a connection to the broker: connects again whenever the connection ends.

    :param client_id: client id of the door; the broker keeps unacknowledged publishes under it.
    :param write_filter: topic filter that producers publish to; none to receive no publishes.
    :param store: called for every publish, in order. An exception closes the connection and is logged, except
        :class:`NotStored`, which is not logged.
    """

    def __init__(self, address: BrokerAddress, *, client_id: str, write_filter: str | None, store: Store) -> None:
        self.address = address
        self.connected = asyncio.Event()
        self._client_id = client_id
        self._write_filter = write_filter
        self._store = store
        self._session: _Session | None = None

    async def run(self) -> None:
        """Serve until the task is cancelled; a broker that cannot be reached is tried again."""
        attempt = 0
        while True:
            session = _Session(self.address, self._client_id, self._write_filter, self._store)
            try:
                await session.open()
                self._session = session
                self.connected.set()
                _log.info("connected to the broker at %s as %r", self.address, self._client_id)
                await session.lost
            except NotStored:
                # The broker is well: a new connection makes it send the unacknowledged publishes again.
                _log.debug("connecting again to the broker at %s, so that it repeats publishes", self.address)
            except Exception as error:
                _log.warning("the broker at %s: %s; connecting again", self.address, str(error) or type(error).__name__)
            finally:
                self.connected.clear()
                self._session = None
                await session.close()
            # Only a stored publish resets the pause: a new connection alone would repeat the failure at once.
            attempt = 0 if session.has_acknowledged else attempt
            await asyncio.sleep(SERVER_BACKOFF.after(attempt))
            attempt += 1

    @property
    def loses_nothing(self) -> bool:
        """Whether the broker keeps what producers publish until the door has stored it.

        It does while the link is connected and subscribed; a restarted broker may have lost the subscription. Always
        true for a link without ``write_filter``.
        """
        return self._write_filter is None or self.connected.is_set()

    async def publish(
        self,
        topic: str,
        payload: bytes = b"",
        *,
        qos: int,
        properties: tuple[tuple[str, str], ...] = (),
        content_type: str | None = None,
    ) -> bool:
        """Publish a message as soon as the link is connected; with QoS 1, wait for the broker's acknowledgement.

        :returns: false when the broker denies the publish; always true with QoS 0.
        :raises PayloadTooLarge: when the packet is larger than the broker accepts; nothing was sent.
        :raises ServerUnavailable: when the connection was lost before the acknowledgement.
        """
        await self.connected.wait()
        session = self._session
        assert session is not None
        return await session.publish(topic, payload, qos=qos, properties=properties, content_type=content_type)


class _Session:
    """One connection. Paho serves it in a thread; its callbacks run in the event loop."""

    def __init__(self, address: BrokerAddress, client_id: str, write_filter: str | None, store: Store) -> None:
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._address = address
        self._write_filter = write_filter
        self._store = store
        self._closing = self._is_deaf = False
        self.has_acknowledged = False
        self._max_packet_bytes = ANY_PACKET_BYTES
        # Publishes in order of arrival, in which they are acknowledged, too (MQTT 5 section 4.6).
        self._under_way: deque[tuple[_Receipt, asyncio.Task[None]]] = deque()
        self._told: dict[int, asyncio.Future[bool]] = {}
        self._room = threading.Semaphore(MAX_AT_ONCE)
        client = self._client = _Client(
            self._on_published,
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=MQTTv5,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.connect_timeout = CONNECT_TIMEOUT_S
        if address.username is not None:
            client.username_pw_set(address.username, address.password)
        if address.tls is not None:
            client.tls_set_context(address.tls)
        client.on_connect = lambda _client, _data, _flags, reason, said: self._say(self._on_connect, reason, said)
        client.on_subscribe = lambda _client, _data, _mid, reasons, _properties: self._say(self._on_subscribe, reasons)
        client.on_publish = lambda _client, _data, mid, reason, _properties: self._say(self._on_publish, mid, reason)
        client.on_disconnect = lambda _client, _data, _flags, reason, _properties: self._say(self._on_lost, reason)
        client.on_socket_open = lambda _client, _data, opened: _send_at_once(opened)

    async def open(self) -> None:
        """Connect, resume the session that the broker has kept, and subscribe."""
        properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 0xFFFFFFFF  # never (MQTT 5 section 3.1.2.11.2)
        properties.ReceiveMaximum = MAX_AT_ONCE
        await asyncio.to_thread(
            self._client.connect,
            self._address.host,
            self._address.port,
            KEEPALIVE_S,
            clean_start=False,
            properties=properties,
        )
        self._client.loop_start()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await asyncio.wait([self._ready, self.lost], return_when=asyncio.FIRST_COMPLETED)
        if self.lost.done():
            self.lost.result()
        self._ready.result()

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int,
        properties: tuple[tuple[str, str], ...],
        content_type: str | None,
    ) -> bool:
        packed: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        if properties:
            packed.UserProperty = list(properties)
        if content_type is not None:
            packed.ContentType = content_type
        # The broker disconnects a client that sends a larger packet (MQTT 5 section 3.2.2.3.6).
        size = HEADER_BYTES + len(topic.encode()) + len(packed.pack()) + len(payload)
        if size > self._max_packet_bytes:
            raise PayloadTooLarge(f"the packet has {size} bytes: the broker accepts at most {self._max_packet_bytes}")
        told = self._client.publish(topic, payload, qos, properties=packed)
        if not qos:
            return True
        future: asyncio.Future[bool] = self._loop.create_future()
        self._told[told.mid] = future
        ends: list[asyncio.Future[Any]] = [future, self.lost]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            raise ServerUnavailable(f"the broker at {self._address} was lost before it confirmed a publish")
        return future.result()

    async def close(self) -> None:
        """Wait up to 5 s for publishes that are being stored, acknowledge the stored ones, and disconnect."""
        self._closing = True
        tasks = [task for _, task in self._under_way]
        if tasks:
            await asyncio.wait(tasks, timeout=0 if self.lost.done() else GRACE_S)
            self._acknowledge()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        self._client.disconnect()
        await asyncio.to_thread(self._client.loop_stop)
        # The client closes its sockets when it is garbage-collected; its callbacks refer to this object.
        self._is_deaf = True
        del self._client
        if not self.lost.done():
            self.lost.cancel()
        elif not self.lost.cancelled():
            self.lost.exception()

    def _say(self, what: Callable[..., None], *about: Any) -> None:
        """Run a callback of paho's thread in the event loop."""
        self._loop.call_soon_threadsafe(self._hear, what, about)

    def _hear(self, what: Callable[..., None], about: tuple[Any, ...]) -> None:
        if not self._is_deaf:
            what(*about)

    def _on_connect(self, reason: Any, said: Any) -> None:
        self._max_packet_bytes = getattr(said, "MaximumPacketSize", ANY_PACKET_BYTES)
        if reason.is_failure:
            self._give_up(ServerUnavailable(f"the broker refuses the door: {reason}"))
        elif self._write_filter is None:
            self._begin()
        else:
            # Retained publishes were stored when they were published, so the broker must not send them again.
            options = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
            self._client.subscribe(self._write_filter, options=options)

    def _on_subscribe(self, reasons: Any) -> None:
        if reasons[0].is_failure or reasons[0].value != 1:
            self._give_up(
                ServerUnavailable(f"the broker does not let the door subscribe to {self._write_filter}: {reasons[0]}")
            )
        else:
            self._begin()

    def _begin(self) -> None:
        if not self._ready.done():
            self._ready.set_result(None)

    def _on_publish(self, mid: int, reason: Any) -> None:
        future = self._told.pop(mid, None)
        if future is not None and not future.done():
            future.set_result(not reason.is_failure)
            if reason.is_failure:
                _log.warning("the broker at %s denies a publish of the door: %s", self._address, reason)

    def _on_lost(self, reason: Any) -> None:
        self._give_up(ServerUnavailable(f"the connection was lost: {reason}"))

    def _give_up(self, error: BaseException) -> None:
        if not self.lost.done():
            self.lost.set_exception(error)

    def _on_published(self, receipt: _Receipt, published: Published) -> None:
        """Pass a publish to the event loop; while 1,000 are being stored, block paho's thread, which reads no more."""
        while not self._room.acquire(timeout=1.0):
            if self._closing:
                return
        self._say(self._arrive, receipt, published)

    def _arrive(self, receipt: _Receipt, published: Published) -> None:
        if self._closing or self.lost.done():
            self._room.release()
            return
        task = self._loop.create_task(self._take(published))
        self._under_way.append((receipt, task))
        task.add_done_callback(lambda _: self._acknowledge())

    async def _take(self, published: Published) -> None:
        try:
            await self._store(published)
        finally:
            self._room.release()

    def _acknowledge(self) -> None:
        """Acknowledge stored publishes in order, up to the first that is not stored."""
        while self._under_way and self._under_way[0][1].done():
            receipt, task = self._under_way[0]
            error = None if task.cancelled() else task.exception()
            if task.cancelled() or error is not None:
                if error is not None:
                    self._give_up(error)
                return
            self._under_way.popleft()
            self.has_acknowledged = True
            if receipt.qos:
                self._client.ack(receipt.packet_id, receipt.qos)


class _Client(Client):
    """Paho's client, which reads a publish by the door's own functions.

    Paho takes some publishes that MQTT 5 allows for malformed, and disconnects. The broker would send such a publish
    again at each connection, and none behind it would ever be stored.

    :param on_published: called in paho's thread for each publish.
    """

    def __init__(self, on_published: Callable[[_Receipt, Published], None], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._on_published = on_published

    def _handle_publish(self) -> MQTTErrorCode:
        packet = Packet(bytes((self._in_packet["command"],)) + bytes(self._in_packet["packet"]), 1)
        try:
            publish, rest = read_publish(packet), read_publish_properties(packet)
        except MalformedPacket as error:
            _log.debug("a publish of the broker does not parse: %s", error)
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        self._on_published(
            _Receipt(publish.packet_id, publish.qos),
            Published(
                topic=publish.topic,
                payload=rest.payload,
                properties=rest.user_properties,
                content_type=rest.content_type,
                is_repeated=bool(packet.flags & 8),
            ),
        )
        return MQTTErrorCode.MQTT_ERR_SUCCESS


def _send_at_once(opened: Any) -> None:
    """Turn off Nagle's algorithm, which delays small packets: the broker waits for PUBACKs before it sends more."""
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
