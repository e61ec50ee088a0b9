"""Queues with one fault each and queues without any, as plain commands, and how a profile must see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from lua_sessions import HOUR_MS, now_ms

from queuekeeper.clock import Pace
from queuekeeper.keyspace import Cohort, cohorts, session_keys
from queuekeeper.quality.profile.model import FAULTS, ProfileParameters
from queuekeeper.quality.profile.queue_reader import QueueReader
from queuekeeper.quality.profile.scan import Scanner
from queuekeeper.redis_client import RedisClient, is_cluster, shards
from queuekeeper.redis_names import ALL_SLOTS
from queuekeeper.sessions.model import Ack, NewMessage, SessionSave
from queuekeeper.sessions.redis_store import RedisSessionStore
from queuekeeper.sessions.wire import message_json

LIMIT = 20
PARAMETERS = ProfileParameters(cohort_count=12, limit=LIMIT, max_payload_bytes=2_000)
LIFE_S = 3_600
MESSAGES = 5


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The queue of a client as TBMQ leaves it."""

    client: Any
    client_id: str
    prefix: str = ""

    @property
    def messages(self) -> str:
        return session_keys(self.client_id, prefix=self.prefix).messages

    @property
    def counter(self) -> str:
        return session_keys(self.client_id, prefix=self.prefix).last_packet_id

    def payload(self, packet_id: int | str) -> str:
        return f"{self.messages}_{packet_id}"

    def put(self, packet_id: int, serial: float, /, *, age_ms: int = 0, **fields: Any) -> None:
        """Store one message behind the others, unlike any other in topic."""
        time_ms = now_ms() - age_ms
        values: dict[str, Any] = {
            "client_id": self.client_id, "topic": f"plant/{packet_id}", "time_ms": time_ms, "qos": 1,
            "packet_id": packet_id, "packet_type": "PUBLISH", "payload": b"\xfe is no text",
            "msg_expiry_interval": LIFE_S,
        }  # fmt: skip
        self.client.set(self.payload(packet_id), message_json(**values | fields), pxat=time_ms + 1000 * LIFE_S)
        self.client.zadd(self.messages, {self.payload(packet_id): serial})
        self.client.set(self.counter, packet_id)

    def fill(self, count: int = MESSAGES, *, first: int = 1) -> None:
        """Store messages whose packet ids begin again after 65535."""
        for number in range(first, first + count):
            self.put((number - 1) % 65_535 + 1, 1_000 + number)


def _dead(queue: Queue, count: int, *, of: int) -> None:
    queue.fill(of)
    for packet_id in range(1, count + 1):
        queue.client.delete(queue.payload(packet_id))


def _tied(queue: Queue) -> None:
    queue.fill(2)
    queue.put(3, 1_002)


def _counter_lags(queue: Queue) -> None:
    queue.fill()
    queue.client.set(queue.counter, 3)


def _next_id_is_in_use(queue: Queue) -> None:
    # A message that was saved behind a re-run of the vendor's import: 4 is newest, but 1 comes next.
    queue.fill(1)
    queue.fill(3, first=65_533)
    queue.client.set(queue.counter, 65_535)


def _twice(queue: Queue) -> None:
    queue.fill(3)
    time_ms = now_ms()
    for packet_id in (4, 5):
        queue.put(packet_id, 1_000 + packet_id, topic="plant/again", time_ms=time_ms)


def _set(packet_id: int, value: str) -> Callable[[Queue], None]:
    def plant(queue: Queue) -> None:
        queue.fill()
        queue.client.set(queue.payload(packet_id), value, keepttl=True)

    return plant


def _with(**fields: Any) -> Callable[[Queue], None]:
    def plant(queue: Queue) -> None:
        queue.fill(4)
        queue.put(5, 1_005, **fields)

    return plant


def _steps(*steps: Callable[[Queue], Any]) -> Callable[[Queue], None]:
    def plant(queue: Queue) -> None:
        for step in steps:
            step(queue)

    return plant


def _after(*steps: Callable[[Queue], Any]) -> Callable[[Queue], None]:
    return _steps(Queue.fill, *steps)


@dataclass(frozen=True, kw_only=True)
class Planted:
    """One fault.

    :param found: columns that it makes differ from 0, with their values; all other faults stay 0.
    :param contents: whether it takes a look at contents to find it.
    :param found_in_cluster: the same where that makes a difference.
    """

    plant: Callable[[Queue], None]
    found: Mapping[str, int]
    contents: bool = False
    client_id: str | None = None
    found_in_cluster: Mapping[str, int] | None = None


PLANTED: dict[str, Planted] = {
    "more than the limit": Planted(plant=lambda queue: queue.fill(LIMIT + 3), found={"over_limit": 3}),
    "dead references crowd": Planted(
        plant=lambda queue: _dead(queue, 2, of=LIMIT), found={"dead": 2, "dead_crowding": 1}
    ),
    "dead references": Planted(plant=lambda queue: _dead(queue, 2, of=MESSAGES), found={"dead": 2}),
    "two of one serial": Planted(plant=_tied, found={"tied_serials": 2}),
    "serial is no whole number": Planted(
        plant=_after(lambda queue: queue.client.zadd(queue.messages, {queue.payload(5): 1_005.5})),
        found={"bad_serials": 1},
    ),
    "live message went in front": Planted(
        plant=_steps(lambda queue: queue.put(3, 1_000), lambda queue: queue.fill(1), lambda queue: queue.put(2, 1_002)),
        found={"step_errors": 1, "counter_behind": 1},
    ),
    "packet id 0": Planted(
        plant=_after(lambda queue: queue.client.zadd(queue.messages, {queue.payload(0): 1_000})),
        found={"bad_packet_ids": 1, "dead": 1},
    ),
    "packet id in words": Planted(
        plant=_after(lambda queue: queue.client.zadd(queue.messages, {queue.payload("one"): 1_000})),
        found={"bad_packet_ids": 1},
    ),
    "reference to another client": Planted(
        plant=_after(lambda queue: queue.client.zadd(queue.messages, {"{other}_messages_1": 1_000})),
        found={"foreign_references": 1},
    ),
    "orphan": Planted(
        plant=_after(lambda queue: queue.client.zrem(queue.messages, queue.payload(1))), found={"orphans": 1}
    ),
    "orphans without a set": Planted(
        plant=_after(lambda queue: queue.client.delete(queue.messages)), found={"orphans": MESSAGES, "idle_keys": 1}
    ),
    "no counter": Planted(plant=_after(lambda queue: queue.client.delete(queue.counter)), found={"counter_missing": 1}),
    "counter is no number": Planted(
        plant=_after(lambda queue: queue.client.set(queue.counter, "5.0")), found={"counter_invalid": 1}
    ),
    "counter is a list": Planted(
        plant=_after(
            lambda queue: queue.client.delete(queue.counter), lambda queue: queue.client.rpush(queue.counter, "5")
        ),
        found={"counter_invalid": 1, "wrong_type_keys": 1},
    ),
    "counter lags": Planted(plant=_counter_lags, found={"counter_behind": 1}),
    "next packet id is in use": Planted(plant=_next_id_is_in_use, found={"counter_behind": 1, "serial_gaps": 65_531}),
    "message that never expires": Planted(
        plant=_after(lambda queue: queue.client.persist(queue.payload(2))), found={"without_ttl": 1}
    ),
    "life was given back": Planted(
        plant=_after(lambda queue: queue.client.pexpireat(queue.payload(2), now_ms() + 2_000 * LIFE_S)),
        found={"ttl_too_long": 1},
        contents=True,
    ),
    "large message": Planted(plant=_with(payload=bytes(5_000)), found={"oversized": 1}),
    "no JSON": Planted(plant=_set(2, "{"), found={"unreadable": 1}, contents=True),
    "message without payload": Planted(
        plant=_set(2, '{"clientId":"x","topicName":"t","time":1,"qos":1,"packetId":2,"packetType":"PUBLISH"}'),
        found={"unreadable": 1},
        contents=True,
    ),
    "message of another client": Planted(plant=_with(client_id="other"), found={"mismatched": 1}, contents=True),
    "message of another packet id": Planted(plant=_with(packet_id=4), found={"mismatched": 1}, contents=True),
    "quality of service 3": Planted(plant=_with(qos=3), found={"bad_qos": 1}, contents=True),
    "quality of service 0": Planted(plant=_with(qos=0), found={"qos_0": 1}, contents=True),
    "PUBREL of quality 1": Planted(plant=_with(packet_type="PUBREL"), found={"bad_packet_types": 1}, contents=True),
    "unknown packet type": Planted(plant=_with(packet_type="PUBACK"), found={"bad_packet_types": 1}, contents=True),
    "payload is a hash": Planted(
        plant=_after(
            lambda queue: queue.client.delete(queue.payload(2)),
            lambda queue: queue.client.hset(queue.payload(2), "a", "b"),
        ),
        found={"wrong_type_keys": 1},
    ),
    "set is a string": Planted(
        plant=_after(lambda queue: queue.client.set(queue.messages, "")),
        found={"wrong_type_keys": 1, "orphans": MESSAGES, "idle_keys": 2},
    ),
    "empty id": Planted(plant=lambda queue: queue.client.set("{}_messages_1", "x"), found={"bad_tag": 1}, client_id=""),
    "id begins with a brace": Planted(
        plant=_after(lambda queue: queue.client.set("{}x}_messages_9", "x")),
        found={"orphans": 1},
        client_id="}x",
        found_in_cluster={"bad_tag": 1},
    ),
    "keys of an id that an earlier build encoded": Planted(
        plant=_with(client_id="%x"),
        found={"bad_tag": 1},
        contents=True,
        client_id="%25x",
    ),
    "odd characters": Planted(
        plant=lambda queue: queue.fill(), found={"odd_characters": 1}, client_id='<img src=x onerror="a[1]">'
    ),
    "idle session": Planted(plant=lambda queue: queue.client.set(queue.counter, 5), found={"idle_keys": 1}),
    "gap": Planted(
        plant=_after(
            lambda queue: queue.client.zrem(queue.messages, queue.payload(3)),
            lambda queue: queue.client.delete(queue.payload(3)),
        ),
        found={"serial_gaps": 1},
    ),
    "same message twice": Planted(plant=_twice, found={"duplicate_messages": 2}, contents=True),
}
"""What is wrong -> how it comes about and is found."""


def client_of(name: str) -> str:
    """Return the client that has a fault."""
    client_id = PLANTED[name].client_id
    return name if client_id is None else client_id


def plant(client: RedisClient) -> None:
    """Put every fault into a queue of its own."""
    for name, planted in PLANTED.items():
        planted.plant(Queue(client=client, client_id=client_of(name)))


def expected(client: RedisClient) -> dict[str, dict[str, int]]:
    """Return what each fault is found as."""
    clustered = is_cluster(client)
    return {
        name: dict(planted.found_in_cluster if clustered and planted.found_in_cluster else planted.found)
        for name, planted in PLANTED.items()
    }


HEALTHY = (
    "%7Dx",
    "wrapped",
    "acknowledged",
    "saved",
    "saved and passed over",
    "released",
    "long lives",
    "{in}the{middle}",
)


def plant_healthy(client: RedisClient, *, prefix: str = "") -> None:
    """Make queues in which nothing is wrong, the vendor's and our own."""
    wrapped = Queue(client=client, client_id="wrapped", prefix=prefix)
    wrapped.fill(12, first=65_530)
    acknowledged = Queue(client=client, client_id="acknowledged", prefix=prefix)
    acknowledged.fill()
    acknowledged.client.zrem(acknowledged.messages, acknowledged.payload(5))
    acknowledged.client.delete(acknowledged.payload(5))
    for client_id in ("{in}the{middle}", "%7Dx"):
        Queue(client=client, client_id=client_id, prefix=prefix).fill()
    # TBMQ's signed number has no room for the longest expiry: the key's own is the true one.
    longest = Queue(client=client, client_id="long lives", prefix=prefix)
    longest.put(1, 1, msg_expiry_interval=-1)
    longest.client.pexpireat(longest.payload(1), now_ms() + 1000 * (2**32 - 1))
    longest.put(2, 2, msg_expiry_interval=2**31 - 2)
    longest.put(3, 3, msg_expiry_interval=None)
    store = RedisSessionStore(client, prefix=prefix)
    for client_id in ("saved", "saved and passed over", "released"):
        store.save_messages([save(client_id, count=3)])
    store.reserve_packet_ids("saved and passed over", count=7)
    store.save_messages([save("saved and passed over", count=2)])
    store.ack("saved", [Ack(packet_id=2)])
    store.mark_released("released", packet_id=1)


def save(client_id: str, *, count: int) -> SessionSave:
    return SessionSave(
        client_id=client_id,
        messages=tuple(
            NewMessage(
                topic=f"healthy/{number}", payload=b"x", qos=2, time_ms=now_ms(), expiry_interval_s=HOUR_MS // 1_000
            )
            for number in range(count)
        ),
    )


def scanned(
    client: RedisClient, parameters: ProfileParameters, *, pace: Pace | None = None
) -> tuple[list[Cohort], list[pa.RecordBatch]]:
    """Return the cohorts, and what SCAN sees of all masters, in the order in which a task gets it."""
    all_cohorts = cohorts(count=parameters.cohort_count, shards=shards(client))
    scanner = Scanner(
        sample_percent=parameters.sample_percent,
        prefix=parameters.key_prefix,
        slot_firsts=tuple(cohort.slot_first for cohort in all_cohorts),
        labels=(0,) * len(all_cohorts),
        is_cluster=is_cluster(client),
        key_share=parameters.shares.key,
        pace=pace or Pace(lambda: None),
    )
    batches = list(scanner.read(client, ALL_SLOTS))
    return all_cohorts, pa.Table.from_batches(batches).sort_by("client_id").to_batches()


def profiled(
    client: RedisClient, parameters: ProfileParameters = PARAMETERS, *, pace: Pace | None = None
) -> dict[str, dict[str, Any]]:
    """Return what a profile says of each client, without Spark."""
    all_cohorts, batches = scanned(client, parameters, pace=pace)
    reader = QueueReader(
        client,
        parameters=parameters,
        shards=[cohort.shard for cohort in all_cohorts],
        hash_key=b"key",
        pace=pace or Pace(lambda: None),
    )
    return {row["client_id"]: row for batch in reader.read(iter(batches)) for row in batch.to_pylist()}


SHOWN = (*FAULTS, "dead", "serial_gaps", "duplicate_messages", "idle_keys")


def faults(row: Mapping[str, Any]) -> dict[str, int]:
    """Return what a row holds that a plain healthy queue does not."""
    return {name: row[name] for name in SHOWN if row[name]}
