"""The MQTT door between a real Mosquitto and real clients: what producers publish is kept, and PUBACKs acknowledge."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import fields
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.enums import MQTTProtocolVersion
from prometheus_client.parser import text_string_to_metric_families

from queuekeeper.compacted import consumption, mqtt, mqtt_health, mqtt_link, mqtt_relay
from queuekeeper.compacted.model import Append, Position, QueueRules
from queuekeeper.compacted.mqtt import MqttDoor
from queuekeeper.compacted.mqtt_address import BrokerAddress
from queuekeeper.compacted.mqtt_packets import (
    Kind,
    Subscribe,
    read_connack,
    read_packet,
    read_publish,
    write_acknowledgement,
    write_ping,
    write_subscribe,
)
from queuekeeper.compacted.mqtt_relay import DoorReport
from queuekeeper.compacted.queue import AsyncCompactedQueues
from queuekeeper.compacted.settings import EcqSettings
from queuekeeper.compacted.topics import Topics
from queuekeeper.embedded import RedisServer
from queuekeeper.errors import UsageError
from queuekeeper.keyspace import compacted_keys
from queuekeeper.redis_async import connect
from queuekeeper.redis_client import connect as connect_blocking
from tests.integration.mosquitto import MQTT_3, MQTT_5, QUIET_S, Got, Mosquitto, MqttClient, free_port, payloads
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration

NO_SUBSCRIBERS = 0x10
CONNECTS = {
    MQTT_3: b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01c",
    MQTT_5: b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x01c",
}
"""CONNECT of the client ``c``."""

MAKES_PASSWORDS = shutil.which("mosquitto_passwd") or "mosquitto_passwd"
GUIDE = Path(__file__).parents[2] / "docs" / "compacted.md"


def guide_acl() -> str:
    """The rights that the guide recommends."""
    match = re.search(r"^```\n(# acl_file\n.*?)^```", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert match is not None
    return match[1]


def documented_acl() -> str:
    """The same, beside a topic of everybody's and somebody who may read nothing."""
    return f"topic readwrite free/#\n{guide_acl()}\nuser mute\ntopic deny $ECQ/#\n"


_names = count(1)


class ShortBackoff:
    """Notes each attempt, and lets it follow soon."""

    def __init__(self) -> None:
        self.attempts: list[int] = []

    def after(self, attempt: int) -> float:
        self.attempts.append(attempt)
        return 0.02


class World:
    """A broker, a door and queues."""

    def __init__(self, broker: Mosquitto, queues: AsyncCompactedQueues, door: MqttDoor) -> None:
        self.broker = broker
        self.queues = queues
        self.door = door

    def client(self, client_id: str, **options: Any) -> MqttClient:
        """A client that connects through the door."""
        return MqttClient(client_id, self.door.port, **options)

    def stranger(self, client_id: str, **options: Any) -> MqttClient:
        """A client that connects to the broker itself."""
        return MqttClient(client_id, self.broker.port, **options)

    async def stored(self, client_id: str, sequence: int) -> None:
        """Wait until a queue has given out a number."""
        await self.until(client_id, lambda view: view.sequence >= sequence)

    async def reports(self, **state: Any) -> None:
        """Wait until the door says so of itself."""
        while any(getattr(self.door.report, name) != value for name, value in state.items()):
            await asyncio.sleep(0.01)

    async def until(self, client_id: str, condition: Callable[[Any], bool]) -> None:
        while not condition(await self.queues.inspect(client_id)):
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def asked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let doors notice soon that Redis is gone, or back."""
    monkeypatch.setattr(mqtt, "ASK_EVERY_S", 0.1)


@pytest.fixture
def broker(server_home: Path) -> Iterator[Mosquitto]:
    """A Mosquitto that lets clients read their own queue alone."""
    broker = Mosquitto(server_home / f"mosquitto-{os.getpid()}-{next(_names)}", acl=documented_acl())
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def forgetful_broker(server_home: Path) -> Iterator[Mosquitto]:
    """A Mosquitto that has forgotten everything after a restart."""
    broker = Mosquitto(server_home / f"mosquitto-{os.getpid()}-{next(_names)}", keeps=False)
    broker.start()
    yield broker
    broker.stop()


@asynccontextmanager
async def opened(
    broker: Mosquitto, redis_url: str, *, rules: QueueRules | None = None, ca_file: str | None = None, **options: Any
) -> AsyncIterator[World]:
    async with await connect(redis_url) as caller:
        queues = AsyncCompactedQueues(caller, rules=rules)
        async with MqttDoor(queues, BrokerAddress.parse(broker.url, ca_file=ca_file), **options) as door:
            await door.connected.wait()
            yield World(broker, queues, door)


def run(broker: Mosquitto, redis_url: str, test: Callable[[World], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), opened(broker, redis_url, **options) as world:
            await test(world)

    asyncio.run(main())


@pytest.mark.parametrize("version", [MQTT_3, MQTT_5])
def test_value_reaches_the_clients_own_subscription_and_its_puback_acknowledges(
    broker: Mosquitto, redis_url: str, version: MQTTProtocolVersion
) -> None:
    async def test(world: World) -> None:
        async with (
            world.client("sub-T", version=version) as client,
            world.stranger("direct", version=version) as direct,
            world.client("through", version=version) as through,
        ):
            assert await client.subscribe(("$ECQ/sub-T/#", 1), ("free/sub-T/#", 1)) == [1, 1]
            body = os.urandom(24)
            await direct.publish("$ECQ/w/sub-T/key/1", body)
            message = await client.got.get()
            assert (message.topic, message.payload, message.qos, message.dup) == ("$ECQ/sub-T/key/1", body, 1, False)
            await through.publish("$ECQ/w/sub-T/", b"empty key")
            await through.publish("free/sub-T/x", b"no queue's")
            got = {message.topic: message.payload for message in await client.take(2)}
            assert got == {"$ECQ/sub-T/": b"empty key", "free/sub-T/x": b"no queue's"}
            await world.until("sub-T", lambda view: view.acked == 2)
            assert world.door.report.acknowledged == 2

    run(broker, redis_url, test)


def test_what_was_not_acknowledged_comes_again_flagged_and_the_rest_does_not(
    broker: Mosquitto, valkey_url: str
) -> None:
    async def test(world: World) -> None:
        await world.queues.append("c", [Append(key=b"%d" % n, value=b"%d" % n) for n in range(8)])
        async with world.client("c", manual_ack=True) as client:
            await client.subscribe(("$ECQ/c/#", 1))
            first = await client.take(5)
            await client.nothing()
            # In any order; the window opens when all are acknowledged.
            client.ack(first[3])
            client.ack(first[1])
            await world.until("c", lambda view: view.in_flight == 3)
            await world.queues.append("c", [Append(key=b"2", value=b"new")])
            await client.vanish()
        async with world.client("c") as client:
            await client.subscribe(("$ECQ/c/#", 1))
            again = await client.take(6)
        assert payloads(first) == [b"0", b"1", b"2", b"3", b"4"]
        assert [(message.payload, message.dup) for message in again] == [
            *((b"0", True), (b"4", True)),
            *((b"5", False), (b"6", False), (b"7", False), (b"new", False)),
        ]
        assert [message.properties["ecq-seqno"] for message in again] == ["1", "5", "6", "7", "8", "9"]

    run(broker, valkey_url, test)


def test_client_that_was_away_gets_the_newest_of_each_key(broker: Mosquitto, valkey_url: str) -> None:
    hops = [("hop", "b"), ("colour", "blue"), ("hop", "a")]

    async def test(world: World) -> None:
        async with world.stranger("producer") as producer:
            for turn in range(3):
                for key in ("a", "b/c"):
                    await producer.publish(f"$ECQ/w/c/{key}", f"{key} {turn}".encode())
            await producer.publish("$ECQ/w/c/a", UserProperty=("ecq-tombstone", "1"))
            await producer.publish(
                "$ECQ/w/c/d", b"", ContentType="text/plain", UserProperty=[*hops, ("ecq-x", "left out")]
            )
        await world.stored("c", 8)
        async with world.client("c") as client:
            await client.subscribe(("$ECQ/c/#", 1), SubscriptionIdentifier=7)
            middle, gone, last = await client.take(3)
        assert (middle.topic, middle.payload, middle.properties) == ("$ECQ/c/b/c", b"b/c 2", {"ecq-seqno": "6"})
        assert (gone.topic, gone.payload) == ("$ECQ/c/a", b"")
        assert gone.properties == {"ecq-seqno": "7", "ecq-tombstone": "1"}
        assert (last.payload, last.content_type) == (b"", "text/plain")
        assert last.pairs == [("ecq-seqno", "8"), *hops]
        assert last.subscription_ids == [7]

    run(broker, valkey_url, test)


def test_empty_payload_deletes_where_the_door_is_told_so(broker: Mosquitto, valkey_url: str) -> None:
    async def test(world: World) -> None:
        async with world.client("c", version=MQTT_3) as client:
            await client.publish("$ECQ/w/c/a", b"")
            await world.stored("c", 1)
        (message,) = await world.queues.peek("c")
        assert message.tombstone

    run(broker, valkey_url, test, empty_is_tombstone=True)


def test_direct_publish_to_the_clients_topics_never_arrives(server_home: Path, valkey_url: str) -> None:
    broker = Mosquitto(server_home / f"mosquitto-{os.getpid()}-{next(_names)}")
    broker.start()

    async def test(world: World) -> None:
        async with world.client("c") as client, world.stranger("other") as other:
            await client.subscribe(("$ECQ/c/#", 2), ("normal/#", 1))
            for qos in (0, 1, 2):
                await other.publish("$ECQ/c/k", b"data1", qos=qos)
            await other.publish("normal/k", b"data2")
            assert (await client.got.get()).payload == b"data2"
            await client.nothing()
            await other.publish("$ECQ/w/c/k", b"data3")
            assert (await client.got.get()).payload == b"data3"

    try:
        run(broker, valkey_url, test)
    finally:
        broker.stop()


@pytest.mark.parametrize("username", [None, "alice"], ids=["anonymous", "authenticated"])
def test_rights_of_the_guide_let_clients_with_and_without_a_name_do_what_it_says_and_no_more(
    server_home: Path, valkey_url: str, username: str | None
) -> None:
    folder = server_home / f"mosquitto-{os.getpid()}-{next(_names)}"
    passwords = server_home / f"{folder.name}.passwords"
    for name in ("door", "alice"):
        made = [MAKES_PASSWORDS, *(["-c"] if name == "door" else []), "-b", str(passwords), name, "secret"]
        subprocess.run(made, check=True, capture_output=True)
    # Without the lines that other tests add: what the guide prints, and nothing else.
    broker = Mosquitto(folder, acl=guide_acl(), settings=[f"password_file {passwords}"])
    broker.start()

    async def test(world: World) -> None:
        async with (
            world.client("c", username=username) as client,
            world.stranger("p", username=username) as producer,
            world.stranger("spy", username=username) as spy,
        ):
            assert await client.subscribe(("$ECQ/c/#", 1)) == [1]
            # Mosquitto grants these subscriptions, and lets nothing pass that the client may not read.
            await spy.subscribe(("$ECQ/c/#", 1), ("$ECQ/w/#", 1), ("$ECQ-refused/#", 1))
            await producer.publish("$ECQ/w/c/k", b"1")
            assert payloads(await client.take(1)) == [b"1"]
            for topic in ("$ECQ/c/k", "$ECQ-refused/c"):
                # One each: some brokers hang up on whom they deny a publish.
                async with world.stranger("forger", username=username) as forger:
                    await forger.publish(topic, b"forged", qos=0)
            await producer.publish("$ECQ/w/c", b"no key")
            assert [(got.topic, got.payload) for got in await spy.take(1)] == [("$ECQ-refused/c", b"no key")]
            await client.nothing()
            await spy.nothing()

    try:
        run(broker, valkey_url, test)
    finally:
        broker.stop()


def test_right_by_user_name_of_the_guide_opens_the_queue_of_that_name_alone(server_home: Path, valkey_url: str) -> None:
    by_name = "pattern read $ECQ/%u/#"
    assert f"`{by_name}`" in GUIDE.read_text("utf-8")
    folder = server_home / f"mosquitto-{os.getpid()}-{next(_names)}"
    passwords = server_home / f"{folder.name}.passwords"
    for name in ("door", "alice"):
        made = [MAKES_PASSWORDS, *(["-c"] if name == "door" else []), "-b", str(passwords), name, "secret"]
        subprocess.run(made, check=True, capture_output=True)
    acl = guide_acl().replace("pattern read $ECQ/%c/#", by_name)
    broker = Mosquitto(folder, acl=acl, settings=[f"password_file {passwords}"])
    broker.start()

    async def test(world: World) -> None:
        async with (
            world.client("alice", username="alice") as alice,
            world.client("bob", username="alice") as bob,
            world.client("carol") as carol,
        ):
            for client, name in ((alice, "alice"), (bob, "bob"), (carol, "carol")):
                await client.subscribe((f"$ECQ/{name}/#", 1))
                await client.publish(f"$ECQ/w/{name}/k", b"1")
            assert payloads(await alice.take(1)) == [b"1"]
            await bob.nothing()
            await carol.nothing()

    try:
        run(broker, valkey_url, test)
    finally:
        broker.stop()


@pytest.mark.parametrize(("version", "not_authorized"), [(MQTT_3, 0x80), (MQTT_5, 0x87)])
def test_subscription_to_what_is_not_the_clients_own_is_refused(
    broker: Mosquitto, valkey_url: str, version: MQTTProtocolVersion, not_authorized: int
) -> None:
    async def test(world: World) -> None:
        await world.queues.append("c", [Append(key=b"k")])
        async with world.client("c", version=version) as client:
            for name in ("$ECQ/other/#", "$ECQ/#", "$ECQ/+/#", "$ECQ/w/#", "$ECQ/c/k", "$ECQ", "$share/g/$ECQ/c/#"):
                assert await client.subscribe((name, 1)) == [not_authorized], name
            assert await client.subscribe(("$ECQ/c/#", 0)) == [0x80]
            mixed = [("$ECQ/d/#", 1), ("free/a", 1), ("$ECQ/c/#", 0), ("free/b", 0)]
            assert await client.subscribe(*mixed) == [not_authorized, 1, 0x80, 0]
            await client.publish("free/b", b"1")
            assert (await client.got.get()).topic == "free/b"
            await client.nothing()
            assert await client.subscribe(("$ECQ/c/#", 2)) == [1]
            assert (await client.got.get()).topic == "$ECQ/c/k"
        for client_id in ("w", "a/b"):
            async with world.client(client_id, version=version) as client:
                assert await client.subscribe((f"$ECQ/{client_id}/#", 1)) in ([not_authorized], [0x80])

    run(broker, valkey_url, test)


def test_broker_that_lets_nothing_pass_to_a_client_keeps_its_queue_shut(broker: Mosquitto, valkey_url: str) -> None:
    async def test(world: World) -> None:
        await world.queues.append("c", [Append(key=b"k")])
        async with world.client("c", username="mute") as client:
            assert await client.subscribe(("$ECQ/c/#", 1)) == [1], "Mosquitto grants what it then filters"
            await client.nothing()
        assert (await world.queues.inspect("c")).epoch == 0

    run(broker, valkey_url, test)


def test_session_that_is_resumed_needs_no_new_subscription(broker: Mosquitto, valkey_url: str) -> None:
    async def test(world: World) -> None:
        for version in (MQTT_3, MQTT_5):
            name = f"c{version}"
            async with world.client(name, version=version, clean=False) as client:
                await client.subscribe((f"$ECQ/{name}/#", 1))
                await world.queues.append(name, [Append(key=b"1", value=b"1")])
                await client.got.get()
                await world.until(name, lambda view: view.acked == 1)
            await world.queues.append(name, [Append(key=b"2", value=b"2")])
            async with world.client(name, version=version, clean=False) as client:
                assert client.session_present
                assert (await client.got.get()).payload == b"2"
                await client.unsubscribe(f"$ECQ/{name}/#")
                await world.until(name, lambda view: view.session is None)
                await world.queues.append(name, [Append(key=b"3", value=b"3")])
                await client.nothing()
            async with world.client(name, version=version, clean=False) as client:
                await client.nothing()

    run(broker, valkey_url, test)


def test_messages_of_broker_and_queue_share_what_the_client_takes_at_once(broker: Mosquitto, valkey_url: str) -> None:
    async def test(world: World) -> None:
        total = 60
        async with world.client("c", manual_ack=True, ReceiveMaximum=8) as client, world.stranger("p") as producer:
            await client.subscribe(("$ECQ/c/#", 1), ("free/#", 2))
            for number in range(total):
                producer.client.publish(f"$ECQ/w/c/{number}", b"%d" % number, 1)
                producer.client.publish(f"free/{number}", b"%d" % number, 1)
            await world.stored("c", total)
            held: list[Got] = []
            seen: list[Got] = []
            while len(seen) < 2 * total:
                while len(held) < 8 and len(seen) + len(held) < 2 * total:
                    try:
                        async with asyncio.timeout(0.05 if held else None):
                            held.append(await client.got.get())
                    except TimeoutError:
                        break
                assert len({message.mid for message in held}) == len(held) <= 8
                seen += held
                for message in held:
                    client.ack(message)
                held.clear()
            await world.until("c", lambda view: view.acked == total)
        for topic in ("$ECQ/c/", "free/"):
            own = [message.payload for message in seen if message.topic.startswith(topic)]
            assert own == [b"%d" % number for number in range(total)]
        async with world.client("d", ReceiveMaximum=1) as client:
            assert await client.subscribe(("$ECQ/d/#", 1)) == [0x97]

    run(broker, valkey_url, test)


def test_message_that_the_client_cannot_take_holds_up_no_other(
    broker: Mosquitto, valkey_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(world: World) -> None:
        keys = (b"large", b"\xff", b"a/+", b"good")
        await world.queues.append(
            "c", [Append(key=key, value=b"x" * 2_000 if key == b"large" else b"x") for key in keys]
        )
        await world.queues.append("c", [Append(key=b"zero", properties={"a": "\0", "b": "1"}), Append(key=b"damaged")])
        with connect_blocking(valkey_url) as admin:
            admin.hset(compacted_keys("c").values, "damaged", b"6 0 ?")
        async with world.client("c", MaximumPacketSize=1_000) as client:
            await client.subscribe(("$ECQ/c/#", 1))
            good, zero = await client.take(2)
            await world.until("c", lambda view: view.acked == 6)
        assert (good.topic, zero.topic) == ("$ECQ/c/good", "$ECQ/c/zero")
        assert zero.properties == {"ecq-seqno": "5", "b": "1"}

    run(broker, valkey_url, test)
    assert len([record for record in caplog.records if "does not get message" in record.getMessage()]) == 4


def test_publish_that_cannot_be_stored_is_told_and_holds_up_no_other(broker: Mosquitto, valkey_url: str) -> None:
    async def test(world: World) -> None:
        async with world.stranger("p") as producer:
            await producer.subscribe(("$ECQ-refused/#", 1))
            await producer.publish("$ECQ/w/c/a", b"1")
            await producer.publish("$ECQ/w/c/b", b"2")
            await producer.publish("$ECQ/w/c", b"no key")
            await producer.publish("$ECQ/w/c/c", b"x" * 101)
            await producer.publish("$ECQ/w/c/a", b"3", UserProperty=("ecq-expected-sequence", "7"))
            await producer.publish("$ECQ/w/c/a", b"4", UserProperty=("ecq-expected-sequence", "seven"))
            await producer.publish("$ECQ/w/c/a", b"5", UserProperty=("ecq-tombstone", "1"))
            await producer.publish("$ECQ/w/c/a", b"6", UserProperty=("ecq-expected-sequence", "1"))
            told = await producer.take(6)
        assert sorted((message.topic, message.payload[:2], message.properties["error"]) for message in told) == [
            ("$ECQ-refused/c", b"no", "InvalidTopic"),
            ("$ECQ-refused/c/a", b"3", "SequenceConflict"),
            ("$ECQ-refused/c/a", b"4", "UsageError"),
            ("$ECQ-refused/c/a", b"5", "UsageError"),
            ("$ECQ-refused/c/b", b"2", "QueueFull"),
            ("$ECQ-refused/c/c", b"xx", "PayloadTooLarge"),
        ]
        await world.stored("c", 2)
        (message,) = await world.queues.peek("c")
        assert message.value == b"6"
        assert (world.door.report.appended, world.door.report.refused) == (2, 6)

    run(broker, valkey_url, test, rules=QueueRules(max_keys=1, max_value_bytes=100))


def test_refusal_says_what_it_can_and_one_that_cannot_be_told_holds_up_no_other(
    server_home: Path, valkey_url: str
) -> None:
    broker = Mosquitto(server_home / f"mosquitto-{os.getpid()}-{next(_names)}", settings=["max_packet_size 100000"])
    broker.start()
    condition = ("ecq-expected-sequence", "7")

    async def test(world: World) -> None:
        async with world.stranger("p") as producer:
            await producer.subscribe(("$ECQ-refused/#", 1))
            await producer.publish(
                "$ECQ/w/c/a", b"1", ContentType="text/plain", UserProperty=[("colour", "blue"), condition]
            )
            whole = await producer.got.get()
            assert (whole.topic, whole.payload, whole.content_type) == ("$ECQ-refused/c/a", b"1", "text/plain")
            assert (whole.properties["colour"], whole.properties["error"]) == ("blue", "SequenceConflict")

            await producer.publish("$ECQ/w/c/a", b"2", UserProperty=("ecq-expected-sequence", "9" * 5_000))
            assert (await producer.got.get()).properties["error"] == "UsageError"

            await producer.publish("$ECQ/w/c/" + "x" * 65_526, b"3", UserProperty=condition)
            told = await producer.got.get()
            assert (told.topic, told.payload) == ("$ECQ-refused", b"3")

            await producer.publish("$ECQ/w/c/a", b"x" * 99_900, UserProperty=condition)
            told = await producer.got.get()
            assert (told.payload, told.properties["error"]) == (b"", "SequenceConflict")

            await producer.publish("$ECQ/w/c/a", b"4")
            await world.stored("c", 1)
        assert (world.door.report.refused, world.door.report.untold, world.door.report.appended) == (4, 0, 1)

    try:
        run(broker, valkey_url, test)
    finally:
        broker.stop()


def test_refusal_that_the_door_may_not_tell_is_counted_and_logged(
    server_home: Path, valkey_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    acl = documented_acl().replace("topic write $ECQ-refused/#\n", "")
    broker = Mosquitto(server_home / f"mosquitto-{os.getpid()}-{next(_names)}", acl=acl)
    broker.start()

    async def test(world: World) -> None:
        async with world.stranger("p") as producer:
            await producer.publish("$ECQ/w/c", b"no key")
            await producer.publish("$ECQ/w/c/k", b"1")
            await world.stored("c", 1)
            while not world.door.report.untold:
                await asyncio.sleep(0.01)
        assert world.door.report.refused >= world.door.report.untold

    try:
        run(broker, valkey_url, test)
    finally:
        broker.stop()
    assert "no refusal was published to '$ECQ-refused/c'" in caplog.text


@pytest.mark.parametrize(
    "damage",
    [
        lambda admin, state: admin.set(state, "no hash"),
        lambda admin, state: admin.hset(state, "bytes", "many"),
        lambda admin, state: admin.hset(state, "last_ms", "today"),
        lambda admin, state: admin.hset(state, "version", "2"),
    ],
    ids=["no hash", "no number", "no instant", "a later version"],
)
def test_queue_that_is_damaged_holds_up_no_other(
    broker: Mosquitto, valkey_url: str, damage: Callable[[Any, str], object]
) -> None:
    async def test(world: World) -> None:
        async with world.stranger("p") as producer:
            await producer.subscribe(("$ECQ-refused/#", 1))
            await producer.publish("$ECQ/w/broken/a", b"1")
            await world.stored("broken", 1)
            with connect_blocking(valkey_url) as admin:
                damage(admin, compacted_keys("broken").state)
            await producer.publish("$ECQ/w/broken/a", b"2")
            await producer.publish("$ECQ/w/c/a", b"3")
            (told,) = await producer.take(1)
        assert (told.topic, told.payload) == ("$ECQ-refused/broken/a", b"2")
        await world.stored("c", 1)
        await world.reports(appended=2, refused=1)
        assert world.door.report.outages == 0

    run(broker, valkey_url, test)


@pytest.mark.parametrize("trouble", ["replicas are missing", "the door has no rights"])
def test_publish_waits_at_the_broker_while_redis_refuses_writes(
    broker: Mosquitto,
    redis_server_factory: Callable[..., RedisServer],
    monkeypatch: pytest.MonkeyPatch,
    trouble: str,
) -> None:
    server = redis_server_factory()
    backoff = ShortBackoff()
    attempts = backoff.attempts
    monkeypatch.setattr(mqtt_link, "SERVER_BACKOFF", backoff)

    async def test(world: World) -> None:
        with connect_blocking(server.url) as admin:

            def set_trouble(is_on: bool) -> None:
                if trouble == "replicas are missing":
                    admin.config_set("min-replicas-to-write", int(is_on))
                else:
                    admin.execute_command("ACL", "SETUSER", "default", "-hset" if is_on else "+hset")

            async with world.stranger("p") as producer:
                await producer.subscribe(("$ECQ-refused/#", 1))
                await producer.publish("$ECQ/w/c/a", b"1")
                await world.stored("c", 1)
                set_trouble(True)
                for number in range(2, 5):
                    await producer.publish("$ECQ/w/c/a", b"%d" % number)
                while len(attempts) < 4:
                    await asyncio.sleep(0.01)
                set_trouble(False)
                while [message.value for message in await world.queues.peek("c")] != [b"4"]:
                    await asyncio.sleep(0.01)
                await producer.nothing()
        assert world.door.report.refused == 0
        assert attempts[:4] == [0, 0, 1, 2] or attempts[:4] == [0, 1, 2, 3], "what stores nothing is no progress"

    run(broker, server.url, test, settings=EcqSettings(write_timeout_ms=100))


def test_conditional_publish_that_comes_again_after_it_was_stored_is_not_refused(
    broker: Mosquitto, redis_server_factory: Callable[..., RedisServer]
) -> None:
    server = redis_server_factory()

    async def test(world: World) -> None:
        with connect_blocking(server.url) as admin:
            admin.execute_command("ACL", "SETUSER", "default", "resetkeys", "~*{c}*", "~compacted:due:*")
            async with world.stranger("p") as producer:
                # What is not stored holds back the acknowledgements of those behind it.
                await producer.publish("$ECQ/w/first/k", b"1")
                await producer.publish("$ECQ/w/c/k", b"2", UserProperty=("ecq-expected-sequence", "0"))
                await world.stored("c", 1)
                admin.execute_command("ACL", "SETUSER", "default", "allkeys")
                await world.stored("first", 1)
                await producer.publish("$ECQ/w/last/k", b"3")
                await world.stored("last", 1)
        assert world.door.report.refused == 0
        assert (await world.queues.inspect("c")).sequence == 1

    run(broker, server.url, test)


def test_retained_value_is_stored_once(broker: Mosquitto, valkey_url: str) -> None:
    async def test() -> None:
        for _ in range(3):
            async with asyncio.timeout(PATIENCE_S), opened(broker, valkey_url) as world:
                async with world.stranger("p") as producer:
                    await producer.publish("$ECQ/w/c/k", b"1", retain=True)
                    await producer.publish("$ECQ/w/d/k", b"2")
                await world.stored("d", _ + 1)
                assert (await world.queues.inspect("c")).sequence == _ + 1

    asyncio.run(test())


def test_what_is_published_while_the_door_is_shut_is_stored_when_it_opens(broker: Mosquitto, valkey_url: str) -> None:
    async def test() -> None:
        async with opened(broker, valkey_url) as world, world.stranger("p") as producer:
            await producer.publish("$ECQ/w/c/first", b"0")
            await world.stored("c", 1)
        async with MqttClient("p", broker.port) as producer:
            for number in range(1_100):
                producer.client.publish(f"$ECQ/w/c/{number}", b"%d" % number, 1)
            await producer.publish("$ECQ/w/c/last", b"1")
        async with opened(broker, valkey_url) as world:
            await world.stored("c", 1_102)
            view = await world.queues.inspect("c")
            assert (view.sequence, view.live) == (1_102, 1_102)

    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test()

    asyncio.run(main())


def test_broker_that_is_restarted_loses_nothing(broker: Mosquitto, valkey_url: str) -> None:
    async def test(world: World) -> None:
        total = 300
        seen: dict[bytes, int] = {}

        async def produce() -> None:
            number = 0
            while number < total:
                try:
                    async with MqttClient("p", broker.port) as producer:
                        while number < total:
                            async with asyncio.timeout(1):
                                await producer.publish(f"$ECQ/w/c/{number}", b"%d" % number)
                            number += 1
                except (OSError, TimeoutError):
                    await asyncio.sleep(0.02)

        async def consume() -> None:
            while len(seen) < total:
                try:
                    async with asyncio.timeout(10), world.client("c") as client:
                        await client.subscribe(("$ECQ/c/#", 1))
                        losing = asyncio.create_task(client.lost.wait())
                        while len(seen) < total and not losing.done():
                            getting = asyncio.create_task(client.got.get())
                            await asyncio.wait([getting, losing], return_when=asyncio.FIRST_COMPLETED)
                            if getting.done():
                                message = getting.result()
                                seen[message.payload] = seen.get(message.payload, 0) + 1
                except (OSError, TimeoutError):
                    await asyncio.sleep(0.02)

        producing, consuming = asyncio.create_task(produce()), asyncio.create_task(consume())
        for part in (1, 2):
            while len(seen) < part * total // 4:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(broker.stop)
            await asyncio.to_thread(broker.start)
        await producing
        await consuming
        assert sorted(seen, key=int) == [b"%d" % number for number in range(total)]
        await world.until("c", lambda view: view.lag == 0)

    run(broker, valkey_url, test)


class HeldLink:
    """Holds back the door's own connection to the broker, as a slow network does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_open = asyncio.Event()
        self.attempts = 0
        its_own = mqtt_link._Session.open

        async def open_later(session: mqtt_link._Session) -> None:
            self.attempts += 1
            await self.may_open.wait()
            await its_own(session)

        monkeypatch.setattr(mqtt_link._Session, "open", open_later)


@asynccontextmanager
async def opening(broker: Mosquitto, redis_url: str, **options: Any) -> AsyncIterator[World]:
    """A door that does not wait for its own connection to the broker."""
    async with asyncio.timeout(PATIENCE_S), await connect(redis_url) as caller:
        queues = AsyncCompactedQueues(caller)
        async with MqttDoor(queues, BrokerAddress.parse(broker.url), **options) as door:
            yield World(broker, queues, door)


async def comes_in_once_the_door_is_subscribed(world: World, link: HeldLink, **options: Any) -> None:
    """A client comes, waits until the door may connect, and publishes a value that the broker has a taker for."""
    coming = asyncio.create_task(world.client("c", **options).__aenter__())
    await asyncio.wait([coming], timeout=QUIET_S)
    assert not coming.done()
    link.may_open.set()
    client = await coming
    assert await client.publish("$ECQ/w/c/key", b"after") == 0
    await client.__aexit__(None, None, None)


@pytest.mark.parametrize("version", [MQTT_3, MQTT_5])
def test_client_of_a_new_door_is_let_in_once_the_door_has_subscribed(
    broker: Mosquitto, valkey_url: str, version: MQTTProtocolVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        link = HeldLink(monkeypatch)
        async with opening(broker, valkey_url) as world:
            await comes_in_once_the_door_is_subscribed(world, link, version=version)
            await world.stored("c", 1)

    asyncio.run(test())


def test_client_that_comes_back_to_a_broker_without_memory_is_let_in_once_the_door_has_subscribed_again(
    forgetful_broker: Mosquitto, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = forgetful_broker

    async def test() -> None:
        link = HeldLink(monkeypatch)
        link.may_open.set()
        async with opening(broker, valkey_url) as world:
            async with world.client("c") as client:
                assert await client.publish("$ECQ/w/c/key", b"first") == 0
                link.may_open.clear()
                await asyncio.to_thread(broker.stop)
                await client.lost.wait()
            await asyncio.to_thread(broker.start)
            while link.attempts < 2:
                await asyncio.sleep(0.01)
            await comes_in_once_the_door_is_subscribed(world, link)
            await world.stored("c", 2)

    asyncio.run(test())


def test_client_of_a_door_that_cannot_subscribe_is_told_and_the_log_says_why(
    broker: Mosquitto, valkey_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mqtt, "LET_IN_WITHIN_S", 0.2)

    async def test() -> None:
        HeldLink(monkeypatch)
        async with opening(broker, valkey_url) as world:
            for version in (MQTT_3, MQTT_5):
                with pytest.raises(ConnectionRefusedError, match="Server unavailable"):
                    await world.client("c", version=version).__aenter__()

    asyncio.run(test())
    assert caplog.messages.count(f"client 'c' cannot be let in to the broker: {mqtt.NOT_SUBSCRIBED}") == 2


def test_door_that_takes_no_writes_lets_clients_in_without_a_subscription_of_its_own(
    broker: Mosquitto, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        HeldLink(monkeypatch)
        async with opening(broker, valkey_url, takes_writes=False) as world, world.client("c"):
            pass

    asyncio.run(test())


@pytest.mark.parametrize("version", [MQTT_3, MQTT_5])
@pytest.mark.parametrize("says_so", [True, False])
@pytest.mark.parametrize("behind", [b"", b"\xc0\x00" * 3], ids=["", "which has sent more"])
def test_client_that_leaves_while_it_waits_takes_nothing_from_its_newer_connection(
    broker: Mosquitto,
    valkey_url: str,
    version: MQTTProtocolVersion,
    says_so: bool,
    behind: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mqtt, "LET_IN_WITHIN_S", PATIENCE_S)

    async def test() -> None:
        link = HeldLink(monkeypatch)
        async with opening(broker, valkey_url) as world:
            reader, writer = await asyncio.open_connection("127.0.0.1", world.door.port)
            writer.write(CONNECTS[version] + behind)
            if says_so:
                writer.write(b"\xe0\x00")
            writer.write_eof()
            await reader.read()
            writer.close()
            async with world.stranger("c") as client:
                link.may_open.set()
                async with world.client("d"):
                    assert await client.publish("$ECQ/w/c/key", b"first") == 0
                await world.stored("c", 1)
                assert not client.lost.is_set()

    asyncio.run(test())


@pytest.mark.parametrize("version", [MQTT_3, MQTT_5])
def test_client_that_waits_is_told_when_the_door_is_shut(
    broker: Mosquitto, valkey_url: str, version: MQTTProtocolVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt, "GRACE_S", PATIENCE_S)
    monkeypatch.setattr(mqtt, "LET_IN_WITHIN_S", PATIENCE_S)

    async def test() -> None:
        HeldLink(monkeypatch)
        async with opening(broker, valkey_url) as world:
            coming = asyncio.create_task(world.client("c", version=version).__aenter__())
            await world.reports(connections=1)
            await asyncio.wait([coming], timeout=QUIET_S)
        with pytest.raises(ConnectionRefusedError, match="Server unavailable"):
            await coming

    asyncio.run(test())


def test_client_that_waits_is_let_in_by_a_broker_that_hangs_up_on_the_silent(
    broker: Mosquitto, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        link = HeldLink(monkeypatch)
        silent: set[asyncio.StreamWriter] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            silent.add(writer)
            first = await reader.read(1)
            silent.discard(writer)
            if first:
                its_reader, its_writer = await asyncio.open_connection("127.0.0.1", broker.port)
                its_writer.write(first)
                await asyncio.wait(
                    [asyncio.create_task(pass_on(reader, its_writer)), asyncio.create_task(pass_on(its_reader, writer))]
                )
            writer.close()

        async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65_536):
                sink.write(data)
            sink.close()

        async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
            address = BrokerAddress.parse(f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            async with (
                asyncio.timeout(PATIENCE_S),
                await connect(valkey_url) as caller,
                MqttDoor(AsyncCompactedQueues(caller), address) as door,
            ):
                coming = asyncio.create_task(MqttClient("c", door.port).__aenter__())
                await asyncio.wait([coming], timeout=QUIET_S)
                for writer in silent:
                    writer.close()
                link.may_open.set()
                client = await coming
                assert await client.publish("free/topic", b"first") == NO_SUBSCRIBERS
                await client.__aexit__(None, None, None)

    asyncio.run(test())


def test_client_that_comes_while_nothing_can_be_stored_waits_for_a_broker_that_has_forgotten_the_door(
    forgetful_broker: Mosquitto, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = forgetful_broker

    async def test() -> None:
        link = HeldLink(monkeypatch)
        link.may_open.set()
        async with opening(broker, valkey_url) as world:
            with monkeypatch.context() as failing:
                failing.setattr(MqttDoor, "_append", fails)
                async with world.client("c") as client:
                    link.may_open.clear()
                    assert await client.publish("$ECQ/w/c/key", b"first") == 0
                while link.attempts < 2:
                    await asyncio.sleep(0.01)
            await asyncio.to_thread(broker.stop)
            await asyncio.to_thread(broker.start)
            await comes_in_once_the_door_is_subscribed(world, link)
            await world.stored("c", 1)

    async def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("nothing can be stored")

    asyncio.run(test())


def test_publish_is_not_acknowledged_before_it_is_stored(
    broker: Mosquitto, redis_server_factory: Callable[..., RedisServer]
) -> None:
    server = redis_server_factory(appendonly="yes", appendfsync="always")

    async def test(world: World) -> None:
        async with world.stranger("p") as producer:
            await producer.publish("$ECQ/w/c/0", b"0")
            await world.stored("c", 1)
            await asyncio.to_thread(server.stop)
            for number in range(1, 30):
                await producer.publish(f"$ECQ/w/c/{number % 10}", b"%d" % number)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(server.start)
            await world.until("c", lambda view: view.live == 10)
            while {message.value for message in await world.queues.peek("c")} != {b"%d" % n for n in range(20, 30)}:
                await asyncio.sleep(0.01)

    run(broker, server.url, test, settings=EcqSettings(write_timeout_ms=100))


def test_redis_that_is_away_is_said_once_at_intervals_and_when_it_is_over(
    broker: Mosquitto,
    redis_server_factory: Callable[..., RedisServer],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = redis_server_factory(appendonly="yes")
    monkeypatch.setattr(mqtt_health, "REMIND_S", 0.0)

    def said(text: str) -> list[str]:
        return [record.getMessage() for record in caplog.records if text in record.getMessage()]

    async def test(world: World) -> None:
        async with world.client("c") as client, world.stranger("p") as producer:
            await client.subscribe(("$ECQ/c/#", 1))
            await producer.publish("$ECQ/w/c/0", b"0")
            await client.take(1)
            report = world.door.report
            assert (report.redis_answers, report.stores, report.outages) == (True, True, 0)
            await asyncio.to_thread(server.stop)
            for number in range(1, 50):
                await producer.publish(f"$ECQ/w/c/{number}", b"%d" % number)
            await world.reports(redis_answers=False, stores=False)
            while not said("Redis does not answer, for"):
                await asyncio.sleep(0.01)
            await asyncio.to_thread(server.start)
            await client.take(49)
            while not said("Redis answers again, after"):
                await asyncio.sleep(0.01)
            await world.reports(redis_answers=True, stores=True)

    run(broker, server.url, test, settings=EcqSettings(write_timeout_ms=100))
    (begins,) = said("Redis does not answer:")
    assert "nothing listens there" in begins or "closed the connection" in begins
    assert "waits at the broker" in begins
    assert len(said("Redis answers again")) == 1
    troubles = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert not [text for text in troubles if "the broker at" in text], "nothing is wrong with the broker"


@pytest.mark.parametrize(
    ("version", "code", "properties", "why"),
    [
        (MQTT_3, 0x80, {}, None),
        (MQTT_5, 0x83, {}, mqtt_relay.NO_REDIS),
        (MQTT_5, 0x83, {"RequestProblemInformation": 0}, None),
        (MQTT_5, 0x83, {"MaximumPacketSize": 40}, None),
    ],
    ids=["mqtt 3.1.1", "mqtt 5", "no reasons wanted", "no room for reasons"],
)
def test_subscription_to_a_queue_is_refused_with_a_reason_while_redis_is_away(
    broker: Mosquitto,
    redis_server_factory: Callable[..., RedisServer],
    version: MQTTProtocolVersion,
    code: int,
    properties: dict[str, Any],
    why: str | None,
) -> None:
    server = redis_server_factory()

    async def test(world: World) -> None:
        await asyncio.to_thread(server.stop)
        await world.reports(redis_answers=False)
        async with world.client("c", version=version, **properties) as client:
            assert await client.subscribe(("$ECQ/c/#", 1)) == [code]
            assert client.suback_reason == why
            # What is the broker's goes on.
            assert await client.subscribe(("free/a", 1), ("$ECQ/c/#", 1), ("$ECQ/d/#", 1)) == [
                *(1, code, 0x87 if version == MQTT_5 else 0x80)
            ]
            assert client.suback_reason == why
            await client.publish("free/a", b"1")
            assert (await client.got.get()).payload == b"1"
            assert world.door.report.unavailable == 2
            await client.publish("$ECQ/w/c/k", b"2")
            await asyncio.to_thread(server.start)
            await world.reports(redis_answers=True)
            assert await client.subscribe(("$ECQ/c/#", 1)) == [1]
            assert client.suback_reason is None
            assert (await client.got.get()).payload == b"2"

    run(broker, server.url, test)


def test_client_whose_queue_cannot_be_read_any_more_is_told_why(
    broker: Mosquitto, redis_server_factory: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = redis_server_factory()
    monkeypatch.setattr(consumption, "BEGIN_S", 0.1)

    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), await connect(server.url, retry_for_s=0) as caller:
            door = MqttDoor(AsyncCompactedQueues(caller), BrokerAddress.parse(broker.url))
            monkeypatch.setattr(mqtt, "ASK_EVERY_S", 3_600.0)
            async with door:
                await door.connected.wait()
                async with MqttClient("c", door.port) as client:
                    await asyncio.to_thread(server.stop)
                    # It is not known yet, so the subscription is granted.
                    assert await client.subscribe(("$ECQ/c/#", 1)) == [1]
                    await client.lost.wait()
                    assert client.reason == "Implementation specific error"
                    assert client.disconnect_reason == mqtt_relay.NO_REDIS

    asyncio.run(main())


def test_redis_that_stores_nothing_is_said_once_and_when_it_is_over(
    broker: Mosquitto,
    redis_server_factory: Callable[..., RedisServer],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = redis_server_factory()
    backoff = ShortBackoff()
    attempts = backoff.attempts
    monkeypatch.setattr(mqtt_link, "SERVER_BACKOFF", backoff)

    async def test(world: World) -> None:
        with connect_blocking(server.url) as admin:
            admin.config_set("maxmemory-policy", "noeviction")
            admin.config_set("maxmemory", 1)
            async with world.stranger("p") as producer:
                await producer.publish("$ECQ/w/c/a", b"1")
                while len(attempts) < 4:
                    await asyncio.sleep(0.01)
                await world.reports(redis_answers=True, stores=False)
                admin.config_set("maxmemory", 0)
                await world.stored("c", 1)
                await world.reports(stores=True)
        assert (world.door.report.refused, world.door.report.outages) == (0, 1)

    run(broker, server.url, test, settings=EcqSettings(write_timeout_ms=100))
    told = [record.getMessage() for record in caplog.records]
    (begins,) = [text for text in told if text.startswith("Redis does not store what is published:")]
    assert "is full" in begins
    assert len([text for text in told if text.startswith("Redis stores again what is published")]) == 1


def test_client_that_goes_again_and_again_without_an_acknowledgement_is_an_error_from_a_threshold_on(
    broker: Mosquitto, valkey_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def levels(client_id: str) -> list[str]:
        return [
            record.levelname
            for record in caplog.records
            if record.getMessage().startswith(f"client {client_id!r} goes without an acknowledgement")
        ]

    async def test(world: World) -> None:
        for client_id in ("poisoned", "well"):
            await world.queues.append(client_id, [Append(key=b"k", value=b"v")])

        async def come_and_go(client_id: str, *, met: int) -> None:
            async with world.client(client_id, manual_ack=True) as client:
                await client.subscribe((f"$ECQ/{client_id}/#", 1))
                await client.got.get()
                await client.vanish()
            while len(levels(client_id)) < met:
                await asyncio.sleep(0.01)

        for met in (1, 2, 3):
            await come_and_go("poisoned", met=met)
        await come_and_go("well", met=1)
        async with world.client("well") as client:
            await client.subscribe(("$ECQ/well/#", 1))
            await client.got.get()
            await world.until("well", lambda view: view.acked == 1)
        await world.queues.append("well", [Append(key=b"k", value=b"v")])
        await come_and_go("well", met=2)
        assert world.door.report.failed == 5

    run(broker, valkey_url, test, error_after=2)
    assert levels("poisoned") == ["WARNING", "ERROR", "ERROR"]
    assert levels("well") == ["WARNING", "WARNING"], "an acknowledgement lets it begin anew"


def test_queue_that_cannot_be_read_is_an_error_from_a_threshold_on(
    broker: Mosquitto, valkey_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(world: World) -> None:
        with connect_blocking(valkey_url) as admin:
            admin.set(compacted_keys("c").state, "no hash")
        for _ in range(3):
            async with world.client("c") as client:
                await client.subscribe(("$ECQ/c/#", 1))
                await client.lost.wait()

    run(broker, valkey_url, test, error_after=3)
    told = [record for record in caplog.records if "its queue cannot be read" in record.getMessage()]
    assert [record.levelname for record in told] == ["WARNING", "WARNING", "ERROR"]


def test_queue_that_is_taken_or_rewound_is_taken_note_of(broker: Mosquitto, valkey_url: str) -> None:
    async def test(world: World) -> None:
        await world.queues.append("c", [Append(key=b"%d" % n, value=b"%d" % n) for n in range(3)])
        async with world.client("c") as client:
            await client.subscribe(("$ECQ/c/#", 1))
            await client.take(3)
            await world.until("c", lambda view: view.acked == 3)
            await world.queues.rewind("c", to=Position.sequence(2))
            assert payloads(await client.take(2)) == [b"1", b"2"]
            await world.until("c", lambda view: view.acked == 3)
            await world.queues.subscribe("c", session="another")
            await client.lost.wait()
            assert client.reason == "Session taken over"

    run(broker, valkey_url, test)


def test_newer_connection_of_a_client_has_its_queue(broker: Mosquitto, valkey_url: str) -> None:
    async def test(world: World) -> None:
        async with world.client("c") as old:
            await old.subscribe(("$ECQ/c/#", 1))
            async with world.client("c") as new:
                await new.subscribe(("$ECQ/c/#", 1))
                await old.lost.wait()
                await world.queues.append("c", [Append(key=b"1", value=b"1")])
                assert (await new.got.get()).payload == b"1"

    run(broker, valkey_url, test)


def test_prefix_can_be_another(server_home: Path, valkey_url: str) -> None:
    broker = Mosquitto(server_home / f"mosquitto-{os.getpid()}-{next(_names)}")
    broker.start()

    async def test(world: World) -> None:
        async with world.client("c") as client:
            assert await client.subscribe(("a/queues/c/#", 1)) == [1]
            await client.publish("a/queues/w/c/k", b"1")
            assert (await client.got.get()).topic == "a/queues/c/k"

    try:
        run(broker, valkey_url, test, topics=Topics(prefix="a/queues"))
    finally:
        broker.stop()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\x10",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x10\xff\xff\xff\xff\x7f",
        b"\x10\xff\xff\xff\x7f",
        b"\x10\x04\x00\x04MQ",
        b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x3c\xff\x00\x01a",
        b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01a\x82\x02\x00\x01",
        b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01a\x82\x05\x00\x01\x00\xff$",
    ],
)
def test_what_is_no_mqtt_ends_its_own_connection_alone(broker: Mosquitto, valkey_url: str, sent: bytes) -> None:
    async def test(world: World) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.door.port)
        writer.write(sent)
        writer.write_eof()
        await reader.read()
        writer.close()
        async with world.client("c") as client:
            assert await client.subscribe(("$ECQ/c/#", 1)) == [1]

    run(broker, valkey_url, test)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x3c\x00\x02a\x00", id="mqtt 3.1.1"),
        pytest.param(b"\x10\x0f\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x02a\x00", id="mqtt 5"),
    ],
)
def test_zero_character_in_a_client_id_is_refused(broker: Mosquitto, valkey_url: str, sent: bytes) -> None:
    async def test(world: World) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.door.port)
        writer.write(sent)
        # MQTT 5 section 1.5.4: whoever receives one closes the connection; its CONNACK, if any, refuses.
        answer = await reader.read()
        writer.close()
        assert not answer or answer[3] >= 0x80 or (sent[8] == 4 and answer[3] in range(1, 6))

    run(broker, valkey_url, test)


@pytest.mark.parametrize("largest", [b"\x10\x00\x00\x00", b"\xff\xff\xff\xff"])
def test_connect_that_paho_takes_for_malformed_is_the_brokers_to_judge(
    broker: Mosquitto, valkey_url: str, largest: bytes
) -> None:
    async def test(world: World) -> None:
        # Maximum Packet Size, Receive Maximum 7, and a user property with U+FEFF.
        properties = b"\x27" + largest + b"\x21\x00\x07" + b"\x26\x00\x03\xef\xbb\xbf\x00\x01v"
        body = b"\x00\x04MQTT\x05\x02\x00\x3c" + bytes((len(properties),)) + properties + b"\x00\x01c"
        reader, writer = await asyncio.open_connection("127.0.0.1", world.door.port)
        writer.write(b"\x10" + bytes((len(body),)) + body)
        connack = await read_packet(reader, max_bytes=1_000)
        assert connack is not None
        assert read_connack(connack, 5).is_accepted
        writer.close()

    run(broker, valkey_url, test)


@pytest.mark.parametrize("properties", [{"UserProperty": [("unit", "\ufeffkW")]}, {"ContentType": "text\ufeff"}])
def test_publish_that_paho_takes_for_malformed_is_stored_and_holds_up_no_other(
    broker: Mosquitto, valkey_url: str, properties: dict[str, Any]
) -> None:
    async def test(world: World) -> None:
        async with world.client("c") as client, world.stranger("producer") as producer:
            # MQTT 5 section 1.5.4: U+FEFF is a character like others. The test's own client would not take it.
            await producer.publish("$ECQ/w/other/1", b"a", **properties)
            await producer.publish("$ECQ/w/c/2", b"b")
            await world.stored("c", 1)
            await world.stored("other", 1)
            stored = await world.queues.get("other", key=b"1")
            assert stored is not None
            assert (stored.content_type, list(stored.properties.items())) == (
                properties.get("ContentType"),
                properties.get("UserProperty", []),
            )
            assert await client.subscribe(("$ECQ/c/#", 1)) == [1]
            assert payloads(await client.take(1)) == [b"b"]

    run(broker, valkey_url, test)


def test_client_that_says_nothing_but_pubacks_lives_and_gets_no_answer_that_it_did_not_ask_for(
    broker: Mosquitto, valkey_url: str
) -> None:
    async def test(world: World) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.door.port)
        # A keep-alive of 1 s: after 1.5 s without a packet, a broker disconnects (Mosquitto looks every few seconds).
        writer.write(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x01\x00\x01c")
        writer.write(write_subscribe(Subscribe(1, b"", (("$ECQ/c/#", 1),))))
        kinds = []
        for number in range(70):
            await world.queues.append("c", [Append(key=b"%d" % number, value=b"v")])
            while (packet := await read_packet(reader, max_bytes=1_000)) and packet.kind != Kind.PUBLISH:
                kinds.append(packet.kind)
            assert packet is not None, f"disconnected at message {number}"
            await asyncio.sleep(0.1)
            writer.write(write_acknowledgement(Kind.PUBACK, read_publish(packet).packet_id))
        assert kinds == [Kind.CONNACK, Kind.SUBACK]
        writer.write(write_ping())
        answer = await read_packet(reader, max_bytes=1_000)
        assert answer is not None
        assert answer.kind == Kind.PINGRESP
        writer.close()

    run(broker, valkey_url, test)


def test_packets_of_a_client_that_waits_are_counted_not_summed_up_again_and_again(
    broker: Mosquitto, valkey_url: str
) -> None:
    async def test(world: World) -> None:
        async def seconds(count: int) -> float:
            reader, writer = await asyncio.open_connection("127.0.0.1", world.door.port)
            began_at_s = time.monotonic()
            writer.write(CONNECTS[MQTT_3] + b"\xc0\x00" * count)
            for _ in range(count + 1):
                assert await read_packet(reader, max_bytes=1_000)
            writer.close()
            return time.monotonic() - began_at_s

        # As many packets of one client take no longer than those of many; summed up, some thirty times as long.
        assert await seconds(32_000) < 10 * sum([await seconds(500) for _ in range(64)])

    run(broker, valkey_url, test)


def test_client_is_told_when_there_is_no_broker(broker: Mosquitto, valkey_url: str) -> None:
    async def test(world: World) -> None:
        await asyncio.to_thread(broker.stop)
        for version in (MQTT_3, MQTT_5):
            with pytest.raises(ConnectionRefusedError, match="Server unavailable"):
                await world.client("c", version=version).__aenter__()

    run(broker, valkey_url, test)


def test_both_connections_can_be_encrypted(server_home: Path, valkey_url: str) -> None:
    folder = server_home / f"mosquitto-tls-{os.getpid()}"
    folder.mkdir()
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    broker = Mosquitto(folder / "broker", tls=(certificate, key))
    broker.start()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)

    async def test(world: World) -> None:
        async with world.client("c", ca_file=certificate) as client:
            await client.subscribe(("$ECQ/c/#", 1))
            await client.publish("$ECQ/w/c/k", b"1")
            assert (await client.got.get()).payload == b"1"

    try:
        run(broker, valkey_url, test, tls=tls, ca_file=str(certificate))
    finally:
        broker.stop()


@pytest.mark.parametrize(
    "url",
    [
        *("", "redis://h", "mqtt://", "mqtt://h:0", "mqtt://h:secret", "mqtt://u:secret@h:99999", "mqtt://h/path"),
        *("h:1883", "mqtt://u:secret@h\0", f"mqtt://u:secret@{'h' * 64}.example", "mqtt://u:secret@h..example"),
    ],
)
def test_address_that_does_not_parse_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UsageError, match="does not parse: write mqtt://") as refusal:
        BrokerAddress.parse(url)
    assert "secret" not in str(refusal.value)


def scraped(port: int) -> dict[str, float]:
    """What Prometheus reads, by name with labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert {label for sample in samples for label in sample.labels} <= {"le"}, "no client, topic or payload is named"
    return {sample.name: sample.value for sample in samples if not sample.labels}


def test_prometheus_reads_figures_and_durations_while_messages_flow(
    broker: Mosquitto, redis_server_factory: Callable[..., RedisServer]
) -> None:
    server = redis_server_factory()

    async def test(world: World) -> None:
        port = world.door.metrics_port

        async def read() -> dict[str, float]:
            return await asyncio.to_thread(scraped, port)

        first = await read()
        assert {name.removesuffix("_total") for name in first if "_seconds" not in name} == {
            f"queuekeeper_mqtt_{field.name}" for field in fields(DoorReport)
        }
        async with world.client("c") as client, world.stranger("p") as producer:
            await client.subscribe(("$ECQ/c/#", 1))
            for number in range(5):
                await producer.publish(f"$ECQ/w/c/{number}", b"%d" % number)
            await producer.publish("$ECQ/w/c", b"no key")
            await client.take(5)
            await world.until("c", lambda view: view.acked == 5)
            await world.reports(refused=1, appended=5, delivered=5, acknowledged=5)
            while (said := await read())["queuekeeper_mqtt_delivery_seconds_count"] < 5:
                await asyncio.sleep(0.05)
            for name in ("appended", "delivered", "acknowledged"):
                assert said[f"queuekeeper_mqtt_{name}_total"] == 5, name
            assert said["queuekeeper_mqtt_refused_total"] == 1
            assert (said["queuekeeper_mqtt_redis_answers"], said["queuekeeper_mqtt_stores"]) == (1, 1)
            for name in ("append", "delivery", "ack"):
                assert said[f"queuekeeper_mqtt_{name}_seconds_count"] == 5, name
                assert 0 < said[f"queuekeeper_mqtt_{name}_seconds_sum"] < PATIENCE_S * 5, name
            await asyncio.to_thread(server.stop)
            while (await read())["queuekeeper_mqtt_redis_answers"]:
                await asyncio.sleep(0.05)
            assert (await read())["queuekeeper_mqtt_outages_total"] == 1
            await asyncio.to_thread(server.start)
            while not (await read())["queuekeeper_mqtt_redis_answers"]:
                await asyncio.sleep(0.05)

    run(broker, server.url, test, metrics=("127.0.0.1", 0))


def test_metrics_that_cannot_be_served_are_refused_with_their_address(broker: Mosquitto, valkey_url: str) -> None:
    async def main() -> None:
        async with await connect(valkey_url) as caller:
            with socket.create_server(("127.0.0.1", 0)) as taken:
                place = taken.getsockname()
                door = MqttDoor(AsyncCompactedQueues(caller), BrokerAddress.parse(broker.url), metrics=place)
                with pytest.raises(UsageError, match=f"metrics cannot be served at 127.0.0.1:{place[1]}"):
                    await door.__aenter__()

    asyncio.run(main())


@pytest.mark.parametrize("place", [("127.0.0.1", 65_536), ("h" * 64, 0), ("h\0", 0)])
@pytest.mark.parametrize("what", ["listen", "metrics"])
def test_place_that_there_cannot_be_is_refused_with_it(
    broker: Mosquitto, valkey_url: str, what: str, place: tuple[str, int]
) -> None:
    async def main() -> None:
        async with await connect(valkey_url) as caller:
            options: dict[str, Any] = {what: place}
            door = MqttDoor(AsyncCompactedQueues(caller), BrokerAddress.parse(broker.url), **options)
            with pytest.raises(UsageError, match=f"(served|listen) at {re.escape(f'{place[0]}:{place[1]}')}: "):
                await door.__aenter__()

    asyncio.run(main())


@pytest.mark.parametrize("as_json", [True, False])
def test_command_shows_its_settings_without_passwords_and_connects_nowhere(as_json: bool) -> None:
    port = free_port()
    command = [str(Path(sys.executable).with_name("queuekeeper")), "compacted", "serve-mqtt", "--show-config"]
    command += ["--broker-url", f"mqtt://door:hidden@127.0.0.1:{port}", "--listen", f"127.0.0.1:{port}"]
    command += ["--redis-url", f"redis://app:hushed@127.0.0.1:{port}/0?password=veiled", "--write-timeout", "2s"]
    command += ["--max-keys", "7", *(["--json"] if as_json else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    assert not {"hidden", "hushed", "veiled"} & set(re.findall(r"\w+", done.stdout + done.stderr))
    if as_json:
        config = json.loads(done.stdout)
        assert config["broker_url"] == f"mqtt://door@127.0.0.1:{port}"
        assert f"app@127.0.0.1:{port}" in config["redis_url"]
        assert "socket_timeout=5.0" in config["redis_url"], "what holds, not only what was given"
        assert (config["max_keys"], config["write_timeout_ms"], config["writer_pool_size"]) == (7, 2_000, 1_000)
        assert (config["error_after"], config["when_full"], config["topic_prefix"]) == (3, "reject", "$ECQ")
    else:
        assert f"mqtt://door@127.0.0.1:{port}" in done.stdout


def test_command_serves_until_it_is_told_to_end(broker: Mosquitto, valkey_url: str) -> None:
    port = free_port()
    command = [str(Path(sys.executable).with_name("queuekeeper")), "compacted", "serve-mqtt", "--json"]
    command += ["--broker-url", broker.url, "--listen", f"127.0.0.1:{port}", "--redis-url", valkey_url]
    metrics_port = free_port()
    command += [
        "--reader-batch-size",
        "2",
        "--write-timeout",
        f"{PATIENCE_S:g}s",
        "--metrics",
        f"127.0.0.1:{metrics_port}",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    async def test() -> None:
        while True:
            client = MqttClient("c", port)
            try:
                await client.__aenter__()
            except OSError:
                assert process.poll() is None
                await asyncio.sleep(0.05)
            else:
                break
        await client.subscribe(("$ECQ/c/#", 1))
        for number in range(5):
            assert await client.publish(f"$ECQ/w/c/{number}", b"%d" % number) == 0
        assert payloads(await client.take(5)) == [b"%d" % number for number in range(5)]
        await client.__aexit__(None, None, None)
        assert (await asyncio.to_thread(scraped, metrics_port))["queuekeeper_mqtt_delivered_total"] == 5

    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test()

    try:
        asyncio.run(main())
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 0, err
    report = json.loads(out)
    assert (report["appended"], report["delivered"], report["refused"]) == (5, 5, 0)
