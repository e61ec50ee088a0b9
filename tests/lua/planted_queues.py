"""Queues with one fault each and queues without any, as plain commands, and how a profile must see them."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from lua_sessions import HOUR_MS, now_ms

from queuekeeper import lua
from queuekeeper.clock import Pace
from queuekeeper.keyspace import MAX_PACKET_ID, Cohort, cohorts, packed_keys, session_keys
from queuekeeper.quality.profile.model import FAULTS, ProfileParameters
from queuekeeper.quality.profile.queue_reader import QueueReader
from queuekeeper.quality.profile.scan import ORDER, Scanner
from queuekeeper.redis_client import RedisClient, is_cluster, shards
from queuekeeper.redis_names import ALL_SLOTS
from queuekeeper.sessions.model import Ack, NewMessage, SessionSave, StoreRules
from queuekeeper.sessions.packed_record import record_of
from queuekeeper.sessions.packed_state import STATE, PackedState
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.redis_store import RedisSessionStore
from queuekeeper.sessions.wire import message_json

LIMIT = 20
PARAMETERS = ProfileParameters(cohort_count=12, limit=LIMIT, max_payload_bytes=2_000)
CONTENTS = replace(PARAMETERS, contents=True)
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


@dataclass(frozen=True, kw_only=True)
class PackedQueue:
    """The packed session of a client as an import leaves it."""

    client: Any
    client_id: str
    prefix: str = ""

    @property
    def key(self) -> str:
        return packed_keys(self.client_id, prefix=self.prefix).session

    @property
    def state(self) -> PackedState:
        return PackedState(*map(int, STATE.unpack(self.client.hget(self.key, "s"))))

    def put(
        self, serial: int, packet_id: int, /, *, kind: str = "PUBLISH", life_s: int = LIFE_S, **fields: Any
    ) -> None:
        """Store one message, unlike any other in topic, and leave the state as it is."""
        values: dict[str, Any] = {
            "topic": f"plant/{serial}", "payload": b"\xfe is no text", "qos": 1, "time_ms": now_ms(),
            "expiry_interval_s": LIFE_S,
        }  # fmt: skip
        message = NewMessage(**values | fields)
        end_ms = message.time_ms + 1_000 * life_s
        record = record_of(message, packet_id=packet_id, end_ms=end_ms, packet_type=kind)
        self.client.hset(self.key, serial, record)

    def fill(self, count: int = MESSAGES, *, first: int = 1) -> None:
        """Store messages whose packet ids begin again after 65535, with a state that is right."""
        for number in range(first, first + count):
            self.put(1_000 + number, (number - 1) % MAX_PACKET_ID + 1)
        self.settle(ids=first + count - 1)

    def settle(self, *, ids: int) -> None:
        """Write the state that fits what is there."""
        fields = self.client.hgetall(self.key)
        records = {int(name): record for name, record in fields.items() if name.isdigit()}
        last = max(records)
        state = PackedState(
            last=last, ids=ids, bound=len(records), free=ids, largest=max(map(len, records.values())),
            earliest=min(int(struct.unpack_from(">Hd", record)[1]) for record in records.values()), until_ms=-1,
            guarded=0, since=last + 1, offset=ids - last, head=min(records), delivered=-1,
            others=1 + len(fields) - len(records) - (b"s" in fields), trimmed=0, expired=0, refused=0, quarantined=0,
        )  # fmt: skip
        self.client.hset(self.key, "s", STATE.pack(*state))

    def say(self, **changes: int) -> None:
        """Change what the state says."""
        self.client.hset(self.key, "s", STATE.pack(*self.state._replace(**changes)))

    def spoil(self, serial: int, change: Callable[[bytes], bytes]) -> None:
        """Change the bytes of a record."""
        self.client.hset(self.key, serial, change(self.client.hget(self.key, serial)))

    def end(self, serial: int, at_ms: int) -> None:
        """Let a message end at an instant."""
        self.spoil(serial, lambda record: record[:2] + struct.pack(">d", at_ms) + record[10:])


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


def _steps(*steps: Callable[[Any], Any]) -> Callable[[Any], None]:
    def plant(queue: Any) -> None:
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

    plant: Callable[[Any], None]
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


def _filled(*steps: Callable[[PackedQueue], Any]) -> Callable[[PackedQueue], None]:
    return _steps(PackedQueue.fill, *steps)


def _says(**changes: int) -> Callable[[PackedQueue], None]:
    return _filled(lambda queue: queue.say(**changes))


def _one(**fields: Any) -> Callable[[PackedQueue], None]:
    """Fill a queue whose last message is odd."""

    def plant(queue: PackedQueue) -> None:
        queue.fill(MESSAGES - 1)
        queue.put(1_000 + MESSAGES, MESSAGES, **fields)
        queue.settle(ids=MESSAGES)

    return plant


def _spoilt(change: Callable[[bytes], bytes]) -> Callable[[PackedQueue], None]:
    return _filled(lambda queue: queue.spoil(1_002, change))


def _over(queue: PackedQueue) -> None:
    for serial in (1_001, 1_002):
        queue.end(serial, now_ms() - 1_000)
    queue.settle(ids=MESSAGES)


def _again(queue: PackedQueue) -> None:
    queue.fill(3)
    time_ms = now_ms()
    for packet_id in (4, 5):
        queue.put(1_000 + packet_id, packet_id, topic="plant/again", time_ms=time_ms)
    queue.settle(ids=5)


def _taken_for_free(queue: PackedQueue) -> None:
    queue.fill(1)
    queue.fill(3, first=65_533)
    queue.say(free=65_540)


PACKED: dict[str, Planted] = {
    "more than the limit": Planted(plant=lambda queue: queue.fill(LIMIT + 3), found={"over_limit": 3}),
    "lives are over": Planted(plant=_filled(_over), found={"dead": 2}),
    "packet id twice": Planted(
        plant=_filled(lambda queue: queue.put(1_005, 4)), found={"duplicate_packet_ids": 2, "step_errors": 1}
    ),
    "packet id 0": Planted(plant=_filled(lambda queue: queue.put(1_002, 0)), found={"bad_packet_ids": 1}),
    "later message went in front": Planted(
        plant=_filled(lambda queue: queue.put(1_001, 5), lambda queue: queue.put(1_005, 1)), found={"step_errors": 2}
    ),
    "no state": Planted(plant=_filled(lambda queue: queue.client.hdel(queue.key, "s")), found={"counter_missing": 1}),
    "state is none": Planted(
        plant=_filled(lambda queue: queue.client.hset(queue.key, "s", "x")), found={"counter_invalid": 1}
    ),
    "counter lags": Planted(plant=_says(ids=3, free=3), found={"counter_behind": 1, "state_faults": 1}),
    "packet ids in use count as free": Planted(
        plant=_taken_for_free, found={"counter_behind": 1, "state_faults": 1, "serial_gaps": 65_531}
    ),
    "messages before the first": Planted(plant=_says(head=1_003), found={"bad_serials": 2, "state_faults": 1}),
    "messages behind the last": Planted(plant=_says(last=1_002), found={"bad_serials": 3, "state_faults": 1}),
    "other fields are miscounted": Planted(plant=_says(others=3), found={"state_faults": 1}),
    "messages are miscounted": Planted(plant=_says(bound=2), found={"state_faults": 1}),
    "a record is larger": Planted(plant=_says(largest=10), found={"state_faults": 1}),
    "a life ends earlier": Planted(plant=_says(earliest=2**50), found={"state_faults": 1}),
    "packet ids do not follow": Planted(plant=_says(since=1_001, offset=-999), found={"state_faults": 1}),
    "life was given back": Planted(plant=_one(life_s=2 * LIFE_S), found={"ttl_too_long": 1}),
    "large message": Planted(plant=_one(payload=bytes(7_000)), found={"oversized": 1}),
    "no record": Planted(plant=_spoilt(lambda _: b"spoiled"), found={"unreadable": 1}),
    "record is cut off": Planted(plant=_spoilt(lambda record: record[:20]), found={"unreadable": 1}),
    "neither PUBLISH nor PUBREL": Planted(
        plant=_spoilt(lambda record: record[:10] + b"\7" + record[11:]), found={"unreadable": 1}
    ),
    "end of life is no instant": Planted(
        plant=_spoilt(lambda record: record[:2] + struct.pack(">d", float("nan")) + record[10:]),
        found={"unreadable": 1},
    ),
    "properties are no JSON": Planted(
        # One byte more belongs to what is between topic and payload.
        plant=_spoilt(lambda record: record[:14] + bytes([record[14] + 1]) + record[15:]),
        found={"unreadable": 1},
    ),
    "quality of service 3": Planted(
        plant=_spoilt(lambda record: record[:23] + bytes([record[23] | 3]) + record[24:]), found={"bad_qos": 1}
    ),
    "quality of service 0": Planted(
        plant=_spoilt(lambda record: record[:23] + bytes([record[23] & 12]) + record[24:]), found={"qos_0": 1}
    ),
    "PUBREL of quality 1": Planted(plant=_one(kind="PUBREL"), found={"bad_packet_types": 1}),
    "session is a string": Planted(
        plant=lambda queue: queue.client.set(queue.key, "x"), found={"wrong_type_keys": 1, "idle_keys": 1}
    ),
    "empty id": Planted(
        plant=lambda queue: queue.client.hset("{}_packed", "1", "x"), found={"bad_tag": 1}, client_id=""
    ),
    "odd characters": Planted(
        plant=lambda queue: queue.fill(), found={"odd_characters": 1}, client_id='<img src=x onerror="a[1]">'
    ),
    "idle session": Planted(
        plant=_filled(lambda queue: queue.client.hdel(queue.key, *range(1_001, 1_006))), found={"idle_keys": 1}
    ),
    "gap": Planted(plant=_filled(lambda queue: queue.client.hdel(queue.key, 1_003)), found={"serial_gaps": 1}),
    "same message twice": Planted(plant=_again, found={"duplicate_messages": 2}, contents=True),
}
"""The same of packed sessions, in which nothing but equal contents takes a look at contents to be found."""

OF_LAYOUT: dict[Layout, dict[str, Planted]] = {Layout.TBMQ: PLANTED, Layout.PACKED: PACKED}


def client_of(name: str, layout: Layout = Layout.TBMQ) -> str:
    """Return the client that has a fault."""
    client_id = OF_LAYOUT[layout][name].client_id
    return name if client_id is None else client_id


def plant(client: RedisClient, layout: Layout = Layout.TBMQ) -> None:
    """Put every fault into a queue of its own."""
    made: Any = Queue if layout is Layout.TBMQ else PackedQueue
    for name, planted in OF_LAYOUT[layout].items():
        planted.plant(made(client=client, client_id=client_of(name, layout)))


def expected(client: RedisClient, layout: Layout = Layout.TBMQ) -> dict[str, dict[str, int]]:
    """Return what each fault is found as."""
    clustered = is_cluster(client)
    return {
        name: dict(planted.found_in_cluster if clustered and planted.found_in_cluster else planted.found)
        for name, planted in OF_LAYOUT[layout].items()
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


HEALTHY_PACKED = ("wrapped", "saved", "passed over", "released", "trimmed", "sparse", "put aside", "}x")


def plant_healthy_packed(client: RedisClient, *, prefix: str = "") -> None:
    """Make packed sessions in which nothing is wrong, and that not one save alone has made."""
    any_client: Any = client
    store = RedisSessionStore(client, prefix=prefix, layout=Layout.PACKED)
    store.set_last_packet_id("wrapped", packet_id=MAX_PACKET_ID - 2, expected=None)
    for client_id in ("wrapped", "saved", "passed over", "released", "put aside", "}x"):
        store.save_messages([save(client_id, count=5)])
    store.ack("saved", [Ack(packet_id=2)])
    store.save_messages([save("saved", count=2)])
    store.reserve_packet_ids("passed over", count=7)
    store.save_messages([save("passed over", count=2)])
    store.mark_released("released", packet_id=1)
    small = RedisSessionStore(client, prefix=prefix, layout=Layout.PACKED, rules=StoreRules(limit=4))
    for _ in range(3):
        small.save_messages([save("trimmed", count=3)])
    PackedQueue(client=client, client_id="sparse", prefix=prefix).put(5_000_000, 19_345)
    PackedQueue(client=client, client_id="sparse", prefix=prefix).put(1, 6)
    PackedQueue(client=client, client_id="sparse", prefix=prefix).settle(ids=19_345)
    any_client.hset(packed_keys("put aside", prefix=prefix).session, "3", b"spoiled")
    assert store.fetch_pending("put aside").unreadable == 1


_TOPICS = itertools.count()


def save(client_id: str, *, count: int) -> SessionSave:
    return SessionSave(
        client_id=client_id,
        messages=tuple(
            NewMessage(
                topic=f"healthy/{next(_TOPICS)}",
                payload=b"x",
                qos=2,
                time_ms=now_ms(),
                expiry_interval_s=HOUR_MS // 1_000,
            )
            for _ in range(count)
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
    return all_cohorts, pa.Table.from_batches(batches).sort_by(ORDER).to_batches()


def profiled(
    client: RedisClient, parameters: ProfileParameters = PARAMETERS, *, pace: Pace | None = None
) -> dict[str, dict[str, Any]]:
    """Return what a profile says of each client, without Spark."""
    all_cohorts, batches = scanned(client, parameters, pace=pace)
    reader = QueueReader(
        lua.ScriptCaller(client),
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
