"""The MQTT door: a proxy between clients and a broker that serves compacted queues under MQTT topics.

Producers publish to ``$ECQ/w/{client}/{key}``, through the door or directly to the broker. The door subscribes to these
topics at the broker, and acknowledges a publish after it has stored the value (``mqtt_link``). A client that connects
through the door and subscribes to ``$ECQ/{client}/#`` receives its queue with QoS 1, and its PUBACKs acknowledge the
messages (``mqtt_relay``). A plain subscriber of the broker could not do this, since a broker does not pass on PUBACKs.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from asyncio import StreamReader, StreamWriter
from types import TracebackType
from typing import Self

from queuekeeper.checks import check_integer, check_text, checked
from queuekeeper.compacted.consumer import GRACE_S
from queuekeeper.compacted.model import MAX_SEQUENCE, MAX_TEXT_BYTES, Append, Properties
from queuekeeper.compacted.mqtt_address import BrokerAddress
from queuekeeper.compacted.mqtt_health import FailedDeliveries, Outage
from queuekeeper.compacted.mqtt_link import BrokerLink, NotStored, Published
from queuekeeper.compacted.mqtt_metrics import DoorMetrics
from queuekeeper.compacted.mqtt_packets import Reason
from queuekeeper.compacted.mqtt_relay import TOMBSTONE_PROPERTY, DoorReport, Relay, Surroundings
from queuekeeper.compacted.producer import AsyncCompactedProducer
from queuekeeper.compacted.queue import AsyncCompactedQueues
from queuekeeper.compacted.settings import EcqSettings
from queuekeeper.compacted.topics import Topics
from queuekeeper.errors import (
    PayloadTooLarge,
    QueueFull,
    QueuekeeperError,
    ScriptError,
    SequenceConflict,
    ServerUnavailable,
    UnknownLayout,
    UsageError,
)
from queuekeeper.text_form import shows

EXPECTED_SEQUENCE_PROPERTY = "ecq-expected-sequence"
OWN_PROPERTIES = "ecq-"
MAX_PACKET_BYTES = 16_777_216
DEFAULT_WRITER_POOL_SIZE = 1_000
ERROR_AFTER = 3
ASK_EVERY_S = 1.0
"""Time between two checks whether Redis answers."""

LET_IN_WITHIN_S = 10.0
"""How long a new client waits until the door has connected to the broker and subscribed there."""

NO_ANSWER = "the broker does not answer"
NOT_SUBSCRIBED = "the door has no subscription at the broker yet, so it would not store what the client publishes"
REASON_CHARACTERS = 1_000

_log = logging.getLogger(__name__)


@shows(queues="_queues", broker="_broker", listen="_listen")
class MqttDoor:
    """Serves clients inside its ``async with`` block.

    :param listen: host and port for clients; port 0 for a free one.
    :param settings: the door uses ``reader_batch_size``, ``write_timeout``, ``read_timeout`` and ``writer_pool_size``;
        none for the defaults.
    :param tls: TLS context with the certificate for clients; none for connections without TLS.
    :param client_id: client id of the door at the broker, which keeps unacknowledged publishes under it. Each door of a
        broker needs its own.
    :param takes_writes: whether the door stores what producers publish. Set it in one door of each broker only: two
        would store every value twice.
    :param empty_is_tombstone: an empty payload deletes its key, as with retained messages.
    :param error_after: number of the failed delivery since a client's last acknowledgement from which each is logged as
        an ERROR; the failures before it are WARNINGs.
    :param metrics: host and port where Prometheus reads metrics; port 0 for a free one, none for no metrics.
    :param max_packet_bytes: largest packet in bytes that the door reads; a larger one ends the connection.
    :raises UsageError: naming parameter, value and rule.
    """

    @checked
    def __init__(
        self,
        queues: AsyncCompactedQueues,
        broker: BrokerAddress,
        *,
        listen: tuple[str, int] = ("127.0.0.1", 0),
        topics: Topics | None = None,
        settings: EcqSettings | None = None,
        tls: ssl.SSLContext | None = None,
        client_id: str = "queuekeeper-compacted",
        takes_writes: bool = True,
        empty_is_tombstone: bool = False,
        error_after: int = ERROR_AFTER,
        metrics: tuple[str, int] | None = None,
        max_packet_bytes: int = MAX_PACKET_BYTES,
    ) -> None:
        check_text("client_id", client_id, most_bytes=MAX_TEXT_BYTES, filled=True)
        check_integer("max_packet_bytes", max_packet_bytes, 1_024, 268_435_460, "MQTT 5 section 2.1.4")
        check_integer("error_after", error_after, 1, 1_000_000, "failed deliveries to a client")
        self.report = DoorReport()
        self._metrics = DoorMetrics(self.report)
        self._metrics_listen = metrics
        self._topics = topics or Topics()
        self._settings = settings or EcqSettings()
        self._queues = queues
        self._silence = Outage(
            "Redis does not answer",
            meanwhile="What is published waits at the broker, clients receive nothing from their queues, and "
            "subscriptions to queues are refused.",
            over="Redis answers again",
        )
        self._unstored = Outage(
            "Redis does not store what is published",
            meanwhile="The broker keeps it, and sends it again until it is stored.",
            over="Redis stores again what is published",
        )
        self._may_tell = True
        self._broker = broker
        self._listen = listen
        self._tls = tls
        self._empty_is_tombstone = empty_is_tombstone
        self._producer = AsyncCompactedProducer(
            queues,
            retry_for_s=self._settings.write_timeout_ms / 1_000,
            max_queues=self._settings.writer_pool_size or DEFAULT_WRITER_POOL_SIZE,
        )
        self._link = BrokerLink(
            broker,
            client_id=client_id,
            write_filter=self._topics.write_filter if takes_writes else None,
            store=self._store,
        )
        self._world = Surroundings(
            queues=queues,
            topics=self._topics,
            window=self._settings.reader_batch_size,
            max_packet_bytes=max_packet_bytes,
            open_broker=self._open_broker,
            knock=self._knock,
            has_redis=lambda: not self._silence.is_on,
            failures=FailedDeliveries(error_after=error_after),
            durations=self._metrics.durations,
            report=self.report,
        )
        self._relays: dict[Relay, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None
        self._linking: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """Port for clients."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def metrics_port(self) -> int:
        """Port of the metrics."""
        return self._metrics.port

    @property
    def connected(self) -> asyncio.Event:
        """Set while the door itself is connected to the broker."""
        return self._link.connected

    async def __aenter__(self) -> Self:
        if self._metrics_listen is not None:
            self._metrics.open(self._metrics_listen)
        host, port = self._listen
        try:
            self._server = await asyncio.start_server(self._let_in, host, port, ssl=self._tls)
        except (OSError, OverflowError, ValueError) as error:
            await self._metrics.close()
            raise UsageError(f"the door cannot listen at {host}:{port}: {error}") from None
        self._linking = asyncio.get_running_loop().create_task(self._link.run())
        self._asking = asyncio.get_running_loop().create_task(self._ask())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        assert self._linking is not None
        assert self._asking is not None
        self._server.close()
        for relay in self._relays:
            relay.end(Reason.SERVER_SHUTTING_DOWN)
        if self._relays:
            await asyncio.wait(self._relays.values(), timeout=GRACE_S)
        for task in [*self._relays.values(), self._linking, self._asking]:
            task.cancel()
        await asyncio.gather(*self._relays.values(), self._linking, self._asking, return_exceptions=True)
        await self._producer.close()
        await self._server.wait_closed()
        await self._metrics.close()

    async def _let_in(self, reader: StreamReader, writer: StreamWriter) -> None:
        _stay_awake(writer)
        self.report.connections += 1
        relay = Relay(self._world, reader, writer)
        task = asyncio.current_task()
        assert task is not None
        self._relays[relay] = task
        try:
            await relay.run()
        finally:
            del self._relays[relay]

    async def _open_broker(self) -> tuple[StreamReader, StreamWriter]:
        """Connect to the broker for a client, after the door itself has subscribed there.

        :raises OSError: when the broker cannot be reached, or the door has not subscribed there within 10 s.
        """
        try:
            async with asyncio.timeout(LET_IN_WITHIN_S):
                while True:
                    reader, writer = await asyncio.open_connection(
                        self._broker.host, self._broker.port, ssl=self._broker.tls
                    )
                    if self._link.loses_nothing:
                        break
                    # A broker disconnects a client that sends nothing, and a restarted one may have lost its sessions.
                    writer.close()
                    await self._link.connected.wait()
        except TimeoutError:
            raise TimeoutError(NO_ANSWER if self._link.loses_nothing else NOT_SUBSCRIBED) from None
        _stay_awake(writer)
        return reader, writer

    async def _knock(self, topic: str) -> None:
        await self._link.publish(topic, qos=0)

    async def _ask(self) -> None:
        """Check every second whether Redis answers; other calls repeat for long before they report that it does not."""
        timeout_s = self._settings.read_timeout_ms / 1_000
        while True:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._queues.ping()
            except TimeoutError:
                self._meet(self._silence, ServerUnavailable(f"no answer within {timeout_s:g} s"))
            except QueuekeeperError as error:
                self._meet(self._silence, error)
            else:
                self._silence.end()
            self._say_state()
            await asyncio.sleep(ASK_EVERY_S)

    def _meet(self, outage: Outage, error: Exception) -> None:
        if outage.meet(error):
            self.report.outages += 1

    def _say_state(self) -> None:
        self.report.redis_answers = not self._silence.is_on
        self.report.stores = not (self._silence.is_on or self._unstored.is_on)

    async def _store(self, published: Published) -> None:
        """Store a published value, or publish its refusal if it can never be stored.

        :raises NotStored: when Redis cannot store the value now, after the cause was logged; the broker keeps the
            publish and sends it again.
        """
        began_at_s = time.monotonic()
        try:
            client_id, append = self._read(published)
        except Exception as error:
            # A publish that cannot be read now cannot be read when the broker sends it again either.
            await self._refuse(published, error)
            return
        try:
            refusal = await self._append(client_id, append, is_repeated=published.is_repeated)
        except Exception as error:
            if not self._silence.is_on:
                self._meet(self._unstored, error)
                self._say_state()
            raise NotStored from error
        self._unstored.end()
        self._say_state()
        if refusal is None:
            self.report.appended += 1
            self._world.durations.append(time.monotonic() - began_at_s)
        else:
            await self._refuse(published, refusal)

    async def _append(self, client_id: str, append: Append, *, is_repeated: bool) -> Exception | None:
        """Store a value.

        :returns: none, or the error because of which the value can never be stored.
        """
        try:
            await self._producer.append(client_id, append)
        except SequenceConflict as error:
            return None if is_repeated and await self._is_stored(client_id, append) else error
        except (QueueFull, UnknownLayout, UsageError) as error:
            return error
        except ScriptError as error:
            if await self._is_damaged(client_id):
                return error
            raise
        return None

    def _read(self, published: Published) -> tuple[str, Append]:
        """Return the client id of the queue that a publish is for, and the append."""
        topic = self._topics.parse(published.topic)
        assert topic is not None
        assert topic.key is not None
        properties = dict(published.properties)
        expected = properties.get(EXPECTED_SEQUENCE_PROPERTY)
        if expected is not None and not (
            expected.isascii() and expected.isdecimal() and len(expected) <= len(str(MAX_SEQUENCE))
        ):
            raise UsageError(f"{EXPECTED_SEQUENCE_PROPERTY} is {expected[:80]!r}: it must be a sequence number")
        is_marked = properties.get(TOMBSTONE_PROPERTY, "0") != "0"
        return topic.client_id, Append(
            key=topic.key,
            value=published.payload,
            tombstone=is_marked or (self._empty_is_tombstone and not published.payload),
            properties=Properties(pair for pair in published.properties if not pair[0].startswith(OWN_PROPERTIES)),
            content_type=published.content_type,
            expected_sequence=None if expected is None else int(expected),
        )

    async def _is_damaged(self, client_id: str) -> bool:
        """Return whether a queue is damaged, so that no repetition of the append can succeed."""
        try:
            await self._queues.inspect(client_id)
        except ScriptError:
            return True
        return False

    async def _is_stored(self, client_id: str, append: Append) -> bool:
        """Return whether an append's condition fails because an earlier attempt, whose answer was lost, stored it."""
        found = await self._queues.get(client_id, key=append.key)
        return (
            found is not None
            and found.is_readable
            and found.sequence > (append.expected_sequence or 0)
            and (found.value, found.tombstone) == (append.value, append.tombstone)
            and (found.properties, found.content_type) == (append.properties, append.content_type)
        )

    async def _refuse(self, published: Published, error: Exception) -> None:
        """Publish that a publish can never be stored; without its payload if the broker does not take it whole."""
        self.report.refused += 1
        _log.warning("a publish to %r is refused: %s", published.topic[:200], error)
        topic = self._topics.refusal(published.topic)
        reason = (("reason", str(error)[:REASON_CHARACTERS]), ("error", type(error).__name__))
        try:
            try:
                is_told = self._may_tell and await self._link.publish(
                    topic,
                    published.payload,
                    qos=1,
                    properties=(*published.properties, *reason),
                    content_type=published.content_type,
                )
            except PayloadTooLarge:
                is_told = await self._link.publish(topic, qos=1, properties=reason)
            # Some brokers disconnect a client whose publish they deny: to try again would delay all other publishes.
            self._may_tell = is_told
        except ServerUnavailable:
            raise
        except Exception as its_own:
            # A refusal that fits into no packet must not delay the other publishes.
            is_told = False
            _log.error("the refusal cannot be published: %s", its_own)
        if not is_told:
            self.report.untold += 1
            _log.error(
                "no refusal was published to %r, and the value is lost. If the broker denied the publish, let the door "
                "write to that topic, and restart the door",
                topic[:200],
            )


def _stay_awake(writer: StreamWriter) -> None:
    """Turn on TCP keepalive, so that the system notices a peer that is gone."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
