"""What is said is what is then done: each job that changes data, its dry run and its undo, in a world that changes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, cast

import pytest
from lua_sessions import Session, messages
from planted_queues import PackedQueue
from psycopg.sql import Composed
from tbmq_broker import Broker

from queuekeeper import lua, postgres, sql_statements
from queuekeeper.compacted.model import Purge, Retention, RetentionPolicy
from queuekeeper.events.schema import install
from queuekeeper.fanout.model import ConsumerOptions, Start
from queuekeeper.jobs import engine
from queuekeeper.jobs.pace import Breaker, TimeIsUp
from queuekeeper.jobs.registry import job_of
from queuekeeper.jobs.store import MaintenanceRuns
from queuekeeper.keyspace import payload_key, quarantined_key, session_keys
from queuekeeper.maintenance.fanout.model import FanoutRepairCounts
from queuekeeper.maintenance.partitions.adoption.model import AdoptionParameters
from queuekeeper.maintenance.remedies.model import REMEDY_NAMES, RemedyParameters
from queuekeeper.maintenance.remedies.queues import named_queues
from queuekeeper.migration.offline.undo import drop_imports
from queuekeeper.redis_client import RedisClient, connect, nodes
from queuekeeper.sessions.model import Ack, NewMessage, SessionSave
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.redis_store import RedisSessionStore
from tests import cleanup_world, compacted_gc_world, fanout_repair_world
from tests.cleanup_world import HOUR_MS, Device, record
from tests.fanout_lists import lanes_of_log, line_up
from tests.golden_defects.event_defects import POISON
from tests.remedies_world import RemedyPlan, apply_remedy, plan_remedy, undo_remedy
from tests.run_kinds import JOBS as ENGINE_JOBS

pytestmark = pytest.mark.conformance

Counts = dict[str, Any]
Change = Callable[[], object]
KEY = b"k" * 32


def both(*changes: Change) -> Change:
    return lambda: [change() for change in changes]


class Job(Protocol):
    """A job in a world that has something of everything that it looks for."""

    changes: dict[str, Change]

    def say(self) -> Counts:
        """Return what the job would do now."""

    def plan(self) -> object:
        """Make a plan to be carried out."""

    def do(self, planned: Any) -> Counts:
        """Carry it out."""

    def valued(self) -> object:
        """Return what nobody may lose: all that is alive, and how long it lives."""


def agree(planned: Any, done: Any, moved_on: dict[str, int]) -> None:
    """Check that what was planned was done or has moved on."""
    to_do = asdict(planned).keys() - planned.looked_at
    assert {each: getattr(done, each) + moved_on.get(each, 0) for each in to_do} == {
        each: getattr(planned, each) for each in to_do
    }


@dataclass
class Cleanup:
    """Sessions, dead references, orphans, records without expiry, idle sessions; two of them held by PostgreSQL."""

    world: cleanup_world.World
    long: int = 1_500
    changes: dict[str, Change] = field(init=False)

    def __post_init__(self) -> None:
        device = self.world.device
        for number in range(6):
            device(f"meter-{number}").add(6)
            device(f"meter-{number}").expire(1, 3, *range(4, 4 + number % 3))
        device("meter-1").received(2)
        device("meter-2").orphan(99, age_ms=3 * HOUR_MS, life_ms=HOUR_MS)
        device("meter-3").client.hset(device("meter-3").keys.session, mapping={"owner": "postgres", "epoch": 1})
        device("meter-4").client.set(device("meter-4").payload(98), "nobody can read this")
        long = device("long")
        long.add(self.long)
        long.expire(*range(1, self.long, 2))
        idle = device("idle")
        idle.add()
        idle.acknowledge(1)
        emptied = device("emptied")
        emptied.add(2)
        emptied.expire(1, 2)
        one, two = device("meter-0"), device("meter-1")
        server: Any = self.world.client
        back = record("meter-0", time_ms=1, packet_id=1)
        self.changes = {
            "expire": lambda: one.expire(2),
            "add": lambda: one.add(3),
            "add to an emptied one": lambda: emptied.add(1),
            "ack": lambda: one.acknowledge(2),
            "remove": lambda: server.delete(one.keys.messages, *(one.payload(n) for n in range(1, 7))),
            "new session": both(lambda: device("new").add(3), lambda: device("new").expire(2)),
            "takeover": lambda: server.hset(one.keys.session, mapping={"owner": "postgres", "epoch": 2}),
            "foreign writer": lambda: server.set(one.keys.session, "not ours"),
            "life given": lambda: server.pexpire(two.payload(2), HOUR_MS),
            "life taken": lambda: two.received(4),
            "message is back": lambda: server.set(one.payload(1), back, px=HOUR_MS),
            "idle one is used": lambda: idle.add(1),
            "purge": lambda: server.delete(*one.keys, *(one.payload(n) for n in range(1, 7))),
        }

    def say(self) -> Counts:
        return asdict(self.world.plan())

    def plan(self) -> object:
        return self.world.approved()

    def do(self, planned: Any) -> Counts:
        run_id, (shard,) = planned
        done = self.world.apply(run_id, shard).counts
        outcome = self.world.report(run_id)
        agree(outcome.plan.counts, done, outcome.moved_on)
        return asdict(done)

    def undo(self, planned: Any, *, dry_run: bool) -> Counts:
        found = self.world.take_back(planned[0], dry_run=dry_run)
        assert found.noted == found.references + found.expiries + found.left > 0
        return asdict(replace(found, dry_run=False))

    def valued(self) -> object:
        names = [f"meter-{number}" for number in range(6)] + ["long", "idle", "emptied", "new"]
        server: Any = self.world.client
        devices = [self.world.device(name) for name in names if server.type(session_set(name)) == b"zset"]
        kept = [(each, packet_id) for each in devices for packet_id in each.live()]
        with server.pipeline(transaction=False) as pipeline:
            for each, packet_id in kept:
                pipeline.get(each.payload(packet_id)).pexpiretime(each.payload(packet_id))
            texts_and_ends = iter(pipeline.execute())
        return {
            (each.client_id, packet_id): (next(texts_and_ends), lives(packet_id, next(texts_and_ends)))
            for each, packet_id in kept
        }


def session_set(name: str) -> str:
    return f"{{{name}}}_messages"


def lives(packet_id: int, end_ms: int) -> int | None:
    """Return when a message expires; one without an end may get one."""
    return None if end_ms < 0 or packet_id in (2, 4) else end_ms


@dataclass
class Collection:
    """Compacted queues with rows of every age."""

    world: compacted_gc_world.World
    changes: dict[str, Change] = field(init=False)

    def __post_init__(self) -> None:
        world, queues = self.world, self.world.queues
        for number in range(4):
            world.append(f"meter-{number}", "a", "b", "c", "d")
            world.append(f"meter-{number}", "gone", tombstone=True)
        world.append("many", *(f"key-{number}" for number in range(450)))
        self.fence = world.consume("meter-1", acks=3)
        world.now_ms += 8 * compacted_gc_world.DAY_MS
        world.append("meter-0", "fresh")
        world.now_ms += compacted_gc_world.MINUTE_MS
        keep = Retention(policy=RetentionPolicy.ACKED_ONLY, retention_ms=HOUR_MS, tombstone_ms=HOUR_MS)
        server: Any = world.client
        self.changes = {
            "newer value": lambda: world.append("meter-0", "a", "b"),
            "tombstone": lambda: world.append("meter-0", "a", tombstone=True),
            "ack": lambda: queues.ack("meter-1", fence=self.fence, sequences=[4]),
            "remove": lambda: queues.drop("meter-0"),
            "new queue": lambda: world.append("new", "x"),
            "takeover": lambda: queues.subscribe("meter-1", session="other"),
            "foreign writer": lambda: server.set(world.keys("meter-3").order, "not ours"),
            "retention": lambda: queues.configure("meter-0", retention=keep),
            "purge": lambda: queues.purge("meter-0", what=Purge.everything()),
            "many get newer values": lambda: world.append("many", *(f"key-{n}" for n in range(0, 450, 3))),
        }

    def say(self) -> Counts:
        return asdict(self.world.plan().counts)

    def plan(self) -> object:
        return self.world.planned()

    def do(self, planned: Any) -> Counts:
        run_id, (share,) = planned
        done = self.world.collect(run_id, share).counts
        outcome = self.world.report(run_id)
        agree(outcome.plan.counts, done, outcome.moved_on)
        return asdict(done)

    def undo(self, planned: Any, *, dry_run: bool) -> Counts:
        found = self.world.take_back(planned[0], dry_run=dry_run)
        assert found.restored + found.kept > 0
        return asdict(replace(found, dry_run=False))

    def valued(self) -> object:
        found = {}
        for name in ("meter-0", "meter-1", "meter-2", "new", "many"):
            for message in self.world.queues.peek(name, limit=500):
                if message.appended_ms > self.world.now_ms - compacted_gc_world.DAY_MS:
                    found[name, message.key] = (message.sequence, message.value)
        return found


@dataclass
class FanoutRepair:
    """A fan-out queue with each fault, and all that time brings about."""

    world: fanout_repair_world.World
    changes: dict[str, Change] = field(init=False)

    def __post_init__(self) -> None:
        world, queues, q = self.world, self.world.queues, "orders"
        client: Any = world.client
        world.register(q, "a", options=ConsumerOptions(dead_retention_ms=HOUR_MS))
        world.register(q, "b", "idle")
        popped, missing, drifted, endless, *_ = world.publish(q, 12)
        line_up(client, q, "a", "b", prefix=world.prefix)
        for consumer in ("a", "b", "idle"):
            client.lrem(world.consumer_keys(q, consumer).ready[0], 0, popped)
        client.hdel(world.keys(q).messages, missing)
        client.hset(world.keys(q).references, drifted, 7)
        client.zrem(world.keys(q).expiries, endless)
        short = world.publish(q, 1_300, ttl_ms=10 * fanout_repair_world.MINUTE_MS)
        world.kill(q, "b", 4)
        claimed = world.claim(q, "a", 3)
        queues.nack(
            q, consumer="a", token=claimed.token, message_id=claimed.messages[0].id, max_attempts=1, reason="no"
        )
        queues.nack(q, consumer="a", token=claimed.token, message_id=claimed.messages[1].id, delay_ms=1_000)
        world.now_ms += 2 * HOUR_MS
        # Leases of messages whose time is over: one that comes back, one that has stalled too often.
        world.publish(q, 3)
        self.token = world.claim(q, "b", 2).token
        client.hset(world.consumer_keys(q, "a").details, "77777", "1 0 0 -")
        world.now_ms += fanout_repair_world.LEASE_MS + 1
        own = world.consumer_keys(q, "a")
        self.changes = {
            "expire": lambda: queues.expire(q),
            "publish": lambda: world.publish(q, 5),
            "ack": lambda: world.process(q, "a", 2),
            "claim": lambda: world.claim(q, "b", 3),
            "new consumer": lambda: queues.register(q, consumer="new", start=Start.RETAINED),
            "unregister": lambda: queues.unregister(q, consumer="idle"),
            "takeover": lambda: queues.reap(q, consumer="b"),
            "foreign writer": lambda: client.rpush(own.ready[0], short[0], short[1], 999_999),
            "purge": lambda: queues.purge(q, consumer="a"),
            "options": lambda: queues.configure(q, consumer="a", options=ConsumerOptions(dead_retention_ms=1)),
            "pause": lambda: queues.pause(q),
            "repair by somebody": lambda: queues.repair(q, dry_run=False),
        }

    def say(self) -> Counts:
        plan = self.world.plan(idle_expiry_s=86_400)
        # Queues in which nothing is to be done are not gone through again.
        return asdict(FanoutRepairCounts() if plan.empty else plan.counts)

    def plan(self) -> object:
        return self.world.planned(idle_expiry_s=86_400)

    def do(self, planned: Any) -> Counts:
        run_id, (share,) = planned
        done = self.world.repair(run_id, share).counts
        outcome = self.world.report(run_id)
        if not outcome.plan.empty:
            agree(outcome.plan.counts, done, outcome.moved_on)
        return asdict(done)

    def valued(self) -> object:
        """Return what each consumer is still owed of the messages whose time is not over."""
        client: Any = self.world.client
        q = "orders"
        alive = {
            member
            for member, end in client.zrange(self.world.keys(q).expiries, 0, -1, withscores=True)
            if end > self.world.now_ms and client.hexists(self.world.keys(q).messages, member)
        }
        found, log = set(), client.xrange(self.world.keys(q).log)
        for each in self.world.queues.inspect(q).consumers:
            own = self.world.consumer_keys(q, each.consumer)
            held = [*client.zrange(own.leases, 0, -1), *client.zrange(own.delayed, 0, -1)]
            held += [one for key in own.ready for one in client.lrange(key, 0, -1)]
            cursor = client.zscore(self.world.keys(q).cursors, each.consumer)
            held += [b"%d" % one for one in lanes_of_log(log, cursor, lanes=1)[0]]
            found |= {(each.consumer, one) for one in alive.intersection(held)}
        return found


@dataclass
class Remedy:
    """One session with everything that a remedy mends."""

    client: Any
    folder: Path
    remedy: str
    source: Any = None
    name: str = "meter-7"
    changes: dict[str, Change] = field(init=False)

    def __post_init__(self) -> None:
        device = self.device = Device(self.client, "meter-7")
        for number in range(12):
            device.add(time_ms=cleanup_world.now_ms() + number)
        device.expire(1, 2)
        device.received(3)
        twin = self.client.get(device.payload(6)).decode()
        for packet_id in (7, 8):
            text = twin.replace('"packetId":6', f'"packetId":{packet_id}')
            self.client.set(device.payload(packet_id), text, keepttl=True)
        for packet_id in (9, 10):
            self.client.set(device.payload(packet_id), f"{{broken {packet_id}", keepttl=True)
        self.client.zadd(device.keys.messages, {device.payload(10): 9})
        self.client.zadd(device.keys.messages, {"{other}_messages_1": 0})
        for packet_id in (90, 91):
            device.orphan(packet_id, age_ms=3 * HOUR_MS, life_ms=HOUR_MS)
        self.client.set(device.keys.last_packet_id, 5)
        own = device.keys
        self.changes = {
            "expire": lambda: device.expire(6, 9),
            "add": lambda: device.add(2),
            "ack": lambda: device.acknowledge(7),
            "remove": lambda: self.client.zrem(own.messages, device.payload(9)),
            "takeover": lambda: self.client.hset(own.session, mapping={"owner": "postgres", "epoch": 1}),
            "foreign writer": lambda: self.client.set(own.session, "not ours"),
            "rekey": lambda: self.client.rename(own.messages, "{meter-7}_elsewhere"),
            "life": lambda: self.client.pexpire(device.payload(3), HOUR_MS),
            "repair by somebody": lambda: self.client.set(
                device.payload(9), record("meter-7", time_ms=5, packet_id=9), px=HOUR_MS
            ),
            "record is referred to": lambda: self.client.zadd(own.messages, {device.payload(90): 77}),
            "purge": lambda: self.client.delete(*own, *(device.payload(n) for n in range(1, 13))),
        }

    def _queues(self) -> Any:
        return named_queues([self.name], key=KEY)

    def _parameters(self) -> RemedyParameters:
        return RemedyParameters(limit=9)

    def plan(self) -> RemedyPlan:
        return plan_remedy(
            self.client,
            remedy=self.remedy,
            queues=self._queues(),
            parameters=self._parameters(),
            source=self.source,
        )

    def say(self) -> Counts:
        return dict(self.plan().effects)

    def do(self, planned: Any) -> Counts:
        report = apply_remedy(
            self.client, plan=planned, queues=self._queues(), undo_directory=self.folder, source=self.source
        )
        assert sum(report.moved_on.values()) == sum(planned.effects.values()) - sum(report.done.values())
        return dict(report.done)

    def as_planned(self, said: Counts, first: Counts) -> Counts:
        """Return what is done of what is said now: no more than was planned."""
        return {kind: min(count, first.get(kind, 0)) for kind, count in said.items() if kind in first}

    def undo(self, planned: Any, *, dry_run: bool) -> Counts:
        (path,) = self.folder.glob("*.undo.jsonl")
        found = undo_remedy(self.client, remedy=self.remedy, path=path, key=KEY, dry_run=dry_run)
        assert found.restored + sum(found.left.values()) > 0
        return asdict(replace(found, dry_run=False))

    def valued(self) -> object:
        if self.client.type(self.device.keys.messages) != b"zset":
            return {}
        healthy = (4, 5, 11, 12, 13, 14) if self.remedy != "trim_dead_first" else (12, 13, 14)
        return {n: self.client.get(self.device.payload(n)) for n in self.device.live() if n in healthy}


@dataclass
class Reorder(Remedy):
    """A session whose messages lie in the wrong order, with their rows and a newer message."""

    def __post_init__(self) -> None:
        device, own, base_ms = Device(self.client, self.name), session_keys(self.name), cleanup_world.now_ms()
        self.device = device
        self.source.execute(sql_statements.statement("sessions/vendor_schema"))
        self.source.execute("TRUNCATE device_publish_msg")
        for n in range(1, 13):
            device.add(time_ms=base_ms + n)
            if n < 12:
                self._row(100 + n, n, base_ms + n)
            # The last four are in their places.
            self.client.zadd(own.messages, {device.payload(n): 100 + n if n > 8 else 50 - n})
        self.changes = {
            "expire": lambda: device.expire(2),
            "add": lambda: device.add(2),
            "ack": lambda: device.acknowledge(3),
            "ack of one in its place": lambda: device.acknowledge(10),
            "remove": lambda: self.client.zrem(own.messages, device.payload(4)),
            "takeover": lambda: self.client.hset(own.session, mapping={"owner": "postgres", "epoch": 1}),
            "foreign writer": lambda: self.client.set(own.session, "not ours"),
            "pubrec": lambda: device.received(5),
            "repair by somebody": lambda: self.client.zadd(own.messages, {device.payload(n): 100 + n for n in (1, 2)}),
            "rows are gone": lambda: self.source.execute("TRUNCATE device_publish_msg"),
            "a row has another serial": lambda: self.source.execute(
                "UPDATE device_publish_msg SET serial_number = 200 WHERE packet_id = 1"
            ),
            "purge": lambda: self.client.delete(*own, *(device.payload(n) for n in range(1, 13))),
        }

    def as_planned(self, said: Counts, first: Counts) -> Counts:
        """Return nothing where not all was planned: a part would be another order."""
        return {kind: count for kind, count in said.items() if count <= first.get(kind, 0)}

    def _row(self, serial: int, packet_id: int, time_ms: int) -> None:
        self.source.execute(
            "INSERT INTO device_publish_msg (client_id, serial_number, topic, time, packet_id, packet_type, qos,"
            " payload) VALUES (%s, %s, 't', %s, %s, 'PUBLISH', 1, '')",
            (self.name, serial, time_ms, packet_id),
        )

    def valued(self) -> object:
        if self.client.type(self.device.keys.messages) != b"zset":
            return {}
        return {n: self.client.get(self.device.payload(n)) for n in self.device.live()}


@dataclass
class Replay(Remedy):
    """A session with records in its quarantine that can be read again."""

    def __post_init__(self) -> None:
        device, own = Device(self.client, self.name), session_keys(self.name)
        self.device = device
        for n in range(12):
            device.add(time_ms=cleanup_world.now_ms() + n)
        for n in (3, 5, 7, 9, 11):
            self.client.zrem(own.messages, device.payload(n))
            self.client.rename(device.payload(n), self._aside(n))
        self.changes = {
            "expire": lambda: self.client.delete(self._aside(3)),
            "add": lambda: device.add(2),
            "ack": lambda: device.acknowledge(4),
            "repair by somebody": lambda: self._bring_back(5),
            "packet id is given out": both(
                lambda: self.client.set(own.last_packet_id, 6), lambda: device.add(time_ms=4)
            ),
            "serial is given out": lambda: self.client.zadd(own.messages, {device.payload(12): 9}),
            "nobody can read it": lambda: self.client.set(self._aside(9), "{broken"),
            "one more": lambda: self.client.set(
                self._aside(30), record(self.name, time_ms=7, packet_id=30), px=HOUR_MS
            ),
            "it repeats a message": lambda: self.client.set(
                self._aside(11), self.client.get(device.payload(12)), px=HOUR_MS
            ),
            "takeover": lambda: self.client.hset(own.session, mapping={"owner": "postgres", "epoch": 1}),
            "foreign writer": lambda: self.client.set(own.session, "not ours"),
            "purge": lambda: self.client.delete(*own, *(device.payload(n) for n in range(1, 13))),
        }

    def _aside(self, serial: int) -> str:
        return quarantined_key(self.name, serial)

    def _bring_back(self, serial: int) -> None:
        device = self.device
        if self.client.exists(self._aside(serial)):
            self.client.rename(self._aside(serial), device.payload(serial))
            self.client.zadd(device.keys.messages, {device.payload(serial): serial})

    def valued(self) -> object:
        """Return all records: none goes, wherever it is."""
        places = [name(n) for n in range(1, 31) for name in (self.device.payload, self._aside)]
        return {text for text in self.client.mget(places) if text}


@dataclass
class Rekey(Remedy):
    """A session of ``%x`` under the keys that early builds gave it, which are those of the client ``%25x``."""

    name: str = "%x"

    def __post_init__(self) -> None:
        old, other, target = session_keys("%25x"), Device(self.client, "%25x"), Device(self.client, self.name)
        self.device = target
        for n in range(1, 13):
            text = record(self.name, time_ms=cleanup_world.now_ms() + n, packet_id=n)
            self.client.set(other.payload(n), text, px=HOUR_MS)
            self.client.zadd(old.messages, {other.payload(n): n})
        self.client.set(old.last_packet_id, 12)
        self.client.hset(old.session, mapping={"last_serial": 12, "delivered_serial": 2})
        other.expire(1)
        late = record(self.name, time_ms=5, packet_id=13)
        self.changes = {
            "expire": lambda: other.expire(3),
            "add": both(
                lambda: self.client.set(other.payload(13), late, px=HOUR_MS),
                lambda: self.client.zadd(old.messages, {other.payload(13): 13}),
            ),
            "ack": lambda: other.acknowledge(4),
            "remove": lambda: self.client.zrem(old.messages, other.payload(5)),
            "pubrec": lambda: other.received(6),
            "broken": lambda: self.client.set(other.payload(7), "{broken", px=HOUR_MS),
            "the other client comes": lambda: other.add(2),
            "its own keys are used": lambda: target.add(2),
            "counter": lambda: self.client.set(old.last_packet_id, 99),
            "takeover": lambda: self.client.hset(old.session, mapping={"owner": "postgres", "epoch": 1}),
            "foreign writer": lambda: self.client.set(old.session, "not ours"),
            "purge": lambda: self.client.delete(*old, *(other.payload(n) for n in range(1, 14))),
        }

    def as_planned(self, said: Counts, first: Counts) -> Counts:
        """Return the counter only where all was planned: it stays while anything does."""
        done = super().as_planned(said, first)
        if any(count > first.get(kind, 0) for kind, count in said.items()):
            done.pop("counter moved", None)
        return done

    def valued(self) -> object:
        """Return the messages that are in either place."""
        places = [payload_key(name, n) for n in range(1, 15) for name in ("%x", "%25x")]
        return {text for text in self.client.mget(places) if text}


@dataclass
class State(Remedy):
    """A packed session whose state does not hold for its messages."""

    def __post_init__(self) -> None:
        queue = self.queue = PackedQueue(client=self.client, client_id=self.name)
        queue.fill(12)
        queue.say(others=4, bound=2)
        store = RedisSessionStore(self.client, layout=Layout.PACKED)
        key = queue.key

        def save() -> object:
            new = NewMessage(topic="t", payload=b"", qos=1, time_ms=cleanup_world.now_ms())
            return store.save_messages([SessionSave(client_id=self.name, messages=(new,))])

        self.changes = {
            "expire": lambda: queue.end(1_002, cleanup_world.now_ms() - 1),
            "add": save,
            "ack": lambda: store.ack(self.name, [Ack(packet_id=3)]),
            "remove": lambda: self.client.hdel(key, 1_004),
            "takeover": lambda: self.client.hset(key, mapping={"owner": "postgres", "epoch": 1}),
            "foreign writer": both(lambda: self.client.delete(key), lambda: self.client.set(key, "not ours")),
            "pubrec": lambda: store.mark_released(self.name, packet_id=5),
            "repair by somebody": lambda: queue.settle(ids=12),
            "no state": lambda: self.client.hdel(key, "s"),
            "unreadable": lambda: queue.spoil(1_006, lambda _: b"broken"),
            "purge": lambda: store.purge_session(self.name),
        }

    def valued(self) -> object:
        if self.client.type(self.queue.key) != b"hash":
            return {}
        return {name: value for name, value in self.client.hgetall(self.queue.key).items() if name.isdigit()}


@dataclass
class MigrationUndo:
    """Imports of a plan that a broker begins to use."""

    client: Any
    changes: dict[str, Change] = field(init=False)

    def __post_init__(self) -> None:
        self.names = [f"meter-{number}" for number in range(5)]
        self.sessions = [Session(client=self.client, client_id=name) for name in self.names]
        for session, count in zip(self.sessions, (3, 1_300, 2, 0, 4), strict=True):
            session.import_session(messages(count), last_packet_id=count)
        one, device = self.sessions[0], Device(self.client, "meter-0")
        self.changes = {
            "expire": lambda: device.expire(1),
            "add": lambda: device.add(2),
            "ack": lambda: device.acknowledge(1),
            "remove": lambda: self.client.delete(one.keys.messages),
            "new session": lambda: Device(self.client, "new").add(2),
            "takeover": lambda: one.set_owner("redis", epoch=3),
            "counter": lambda: self.client.set(one.keys.last_packet_id, 9),
            "second copy of a used one": both(
                lambda: device.acknowledge(2), lambda: one.import_session(messages(3), last_packet_id=3)
            ),
            "purge": lambda: self.client.delete(*one.keys),
            "use of a long one": lambda: Device(self.client, "meter-1").acknowledge(7),
            "adds once around all packet ids": lambda: Broker(self.client, "meter-2").add_many("new", 65_535, limit=2),
            "purge, and as many adds": both(
                lambda: Broker(self.client, "meter-0").purge(),
                lambda: Broker(self.client, "meter-0").add_many("new", 3, limit=3),
            ),
            "pubrec": lambda: Broker(self.client, "meter-4").received(4),
        }

    def _drop(self, *, dry_run: bool) -> Counts:
        found = drop_imports(self.client, [*self.names, "new"], plan_id="plan-a", prefix="", dry_run=dry_run)
        assert found.sessions_dropped + found.sessions_moved_on + found.sessions_absent == len(self.names) + 1
        return asdict(replace(found, dry_run=False))

    def say(self) -> Counts:
        return self._drop(dry_run=True)

    def plan(self) -> object:
        return None

    def do(self, planned: Any) -> Counts:
        return self._drop(dry_run=False)

    def valued(self) -> object:
        """Return the messages of sessions that somebody has used."""
        found = {}
        for session in self.sessions:
            count, noted = self.client.zcard(session.keys.messages), session.state().get("references")
            last, known = self.client.get(session.keys.last_packet_id), session.state().get("imported_last_packet_id")
            written = self.client.pexpiretime(session.keys.last_packet_id) == -1
            with self.client.pipeline(transaction=False) as pipeline:
                for key, _ in session.references():
                    pipeline.pexpiretime(key)
                rewritten = -1 in pipeline.execute()
            same = noted is not None and str(count) == noted and (last or b"").decode() == known
            if same and not written and not rewritten:
                continue
            found[session.client_id] = self.client.zrange(session.keys.messages, 0, -1, withscores=True)
        return found


@dataclass
class BrokerWork:
    """An event broker with many places for each of its jobs."""

    name: str
    connection: Any

    def __post_init__(self) -> None:
        self.connection.execute("DROP SCHEMA IF EXISTS pgmb CASCADE")
        install(self.connection)
        self.connection.execute(
            "INSERT INTO pgmb.subscription_groups (id) VALUES ('g');"
            "INSERT INTO pgmb.subscriptions (group_id) VALUES ('g');"
            "INSERT INTO pgmb.subscriptions (group_id, params, last_active_at, expiry_interval)"
            " SELECT 'g', jsonb_build_object('n', n), now() - interval '2 hours', '1 hour'"
            " FROM generate_series(1, 100) AS n"
        )
        # As if a crash had lost what was dispatched, and nothing else.
        publish = "INSERT INTO pgmb.events (topic, payload) SELECT 't', %s FROM generate_series(1, 100)"
        self.connection.execute(publish, ('{"value": 1}',))
        self.connection.execute("SELECT pgmb.poll_for_events()")
        self.connection.execute("DELETE FROM pgmb.subscription_events; DELETE FROM pgmb.dispatches")
        if self.name == "quarantine_subscription":
            self.connection.execute("UPDATE pgmb.subscriptions SET conditions_sql = %s", (POISON,))
            self.connection.execute(publish, ('{"value": 0}',))
        self._engine = engine.Engine(job=job_of(self.name), database=cast("postgres.Connection", self))
        self._runs = MaintenanceRuns(self.connection)

    def execute(self, query: Any, values: Any = None) -> Any:
        """Ask the broker as the job does."""
        return self.connection.execute(query, values)

    def asked(self, query: Any, values: Any) -> tuple[str, int]:
        """Return a name of a statement, and how much it is given."""
        return str(query), listed_in(values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)

    def parameters(self) -> Any:
        return self._engine.job.Parameters()

    def plan(self) -> tuple[str, list[str]]:
        plan = self._engine.plan(self.parameters())
        return self._engine.save(self._runs, plan).maintenance_run_id, plan.share_names()

    def do(self, planned: Any) -> Counts:
        run_id, shares = planned
        for share in shares:
            self._engine.apply(self._runs, run_id, share)
        return asdict(self._engine.report(self._runs, run_id, dry_run=False).counts)


@dataclass
class AdoptionWork(BrokerWork):
    """A plain table of several batches."""

    def __post_init__(self) -> None:
        self.connection.execute(
            "DROP TABLE IF EXISTS readings; CREATE TABLE readings (id int PRIMARY KEY, at timestamptz NOT NULL);"
            "INSERT INTO readings SELECT n, now() - n * interval '1 minute' FROM generate_series(1, 3000) AS n"
        )
        self._engine = engine.Engine(job=job_of(self.name), database=cast("postgres.Connection", self))
        self._runs = MaintenanceRuns(self.connection)

    def asked(self, query: Any, values: Any) -> tuple[str, int]:
        """Return the rows of a batch, which its statement has in its text."""
        batch = re.search(r"LIMIT (\d+)\) AS batch", query.as_string(None)) if isinstance(query, Composed) else None
        return ("batch", int(batch[1])) if batch else ("other", 1)

    def parameters(self) -> Any:
        rules: Any = {"key": "at", "step": "1 day", "ahead": "1 day", "disk_mib": 500, "widen_keys": True}
        return AdoptionParameters(table="public.readings", batch_rows=FULL, **rules)

    def plan(self) -> tuple[str, list[str]]:
        run_id, shares = super().plan()
        self.connection.execute(
            "UPDATE queuekeeper.maintenance_runs SET approved_by = 'ada', approved_at = now() "
            "WHERE maintenance_run_id = %s",
            [run_id],
        )
        return run_id, shares


OF_ITS_OWN: dict[str, type[Remedy]] = {
    "reorder_from_source": Reorder,
    "replay_quarantined": Replay,
    "rekey_clients": Rekey,
    "repair_state": State,
}
"""Worlds of remedies that need another than the rest."""

REDIS_JOBS = tuple(name for name in ENGINE_JOBS if job_of(name).on_redis)
BROKER_JOBS = tuple(name for name in ENGINE_JOBS if name not in REDIS_JOBS)
UNDONE = tuple(name for name in REDIS_JOBS if job_of(name).undoes)
JOBS = (*REDIS_JOBS, "migration_undo")


@pytest.fixture
def world(valkey_url: str, shared_records: Any, tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """Make worlds, each in an empty store and without runs of others."""
    with connect(valkey_url) as client:
        made: list[str] = []

        def make(name: str, **size: int) -> Any:
            client.flushall()
            shared_records.execute("TRUNCATE queuekeeper.maintenance_runs CASCADE")
            made.append(name)
            folder = tmp_path / str(len(made))
            match name:
                case "expired_reference_cleanup":
                    return Cleanup(cleanup_world.World(client, shared_records, folder), **size)
                case "compacted_queue_gc":
                    return Collection(compacted_gc_world.World(client=client, connection=shared_records, undo=folder))
                case "fanout_repair":
                    return FanoutRepair(fanout_repair_world.World(client=client, connection=shared_records))
                case "migration_undo":
                    return MigrationUndo(client)
                case "partition_adoption":
                    return AdoptionWork(name, shared_records)
                case _ if name in BROKER_JOBS:
                    return BrokerWork(name, shared_records)
                case _ if name in REMEDY_NAMES:
                    return OF_ITS_OWN.get(name, Remedy)(client, folder, name, source=shared_records)
            pytest.fail(f"{name} has no world here: make one in which it has work for several steps")

        yield make


def contents(client: RedisClient) -> dict[bytes, Any]:
    return {key: node.dump(key) for _, node in nodes(client) for key in node.scan_iter()}


def test_the_world_changes_in_ten_ways_for_every_job_and_every_remedy(world: Any) -> None:
    assert [name for name in JOBS if len(world(name).changes) < 10] == []
    assert {*REMEDY_NAMES} < {*REDIS_JOBS}


@pytest.mark.parametrize("name", JOBS)
def test_in_a_world_that_stands_still_it_is_done_as_it_was_said(world: Any, name: str, valkey_url: str) -> None:
    job: Job = world(name)
    with connect(valkey_url) as client:
        before = contents(client)
        said = job.say()
        planned = job.plan()
        assert contents(client) == before
    assert job.do(planned) == said
    assert any(said.values())


@pytest.mark.parametrize("name", JOBS)
def test_what_changes_after_a_plan_is_done_as_a_dry_run_says_at_that_instant(world: Any, name: str) -> None:
    for change in world(name).changes:
        job = world(name)
        planned, first = job.plan(), job.say()
        job.changes[change]()
        said, valued = job.say(), job.valued()
        done = job.do(planned)
        if isinstance(job, Remedy):
            said = job.as_planned(said, first)
        assert done == said, change
        assert valued_still(job, valued), change


@contextmanager
def changed_during_work(monkeypatch: pytest.MonkeyPatch, job: Any, change: str) -> Iterator[list[object]]:
    """Change the world when what was found has been noted, and is about to be done; yield what may not be lost then."""
    execute = lua.ScriptCaller.execute
    waiting: list[Change] = [job.changes[change]]
    valued: list[object] = []

    def changing(caller: lua.ScriptCaller, calls: Any) -> Any:
        if waiting and not caller.counts_only and any(call.script.name in WORK for call in calls):
            waiting.pop()()
            valued.append(job.valued())
        return execute(caller, calls)

    with monkeypatch.context() as patch:
        patch.setattr(lua.ScriptCaller, "execute", changing)
        yield valued
    assert valued, "no script has done what was found"


@pytest.mark.parametrize("name", JOBS)
def test_what_changes_during_the_work_is_left_alone(world: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for change in world(name).changes:
        job = world(name)
        planned = job.plan()
        with changed_during_work(monkeypatch, job, change) as valued:
            job.do(planned)
        assert valued_still(job, valued[0]), change
        # What is left is done as it is said.
        said, planned = job.say(), job.plan()
        assert job.do(planned) == said, change


@pytest.mark.parametrize("name", UNDONE)
def test_an_undo_takes_back_what_its_dry_run_says(world: Any, name: str) -> None:
    for change in world(name).changes:
        job = world(name)
        planned = job.plan()
        job.do(planned)
        job.changes[change]()
        said, done = (job.undo(planned, dry_run=dry_run) for dry_run in (True, False))
        assert said == done, change


@pytest.mark.parametrize("name", UNDONE)
def test_what_changes_during_an_undo_is_left_alone(world: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for change in world(name).changes:
        job = world(name)
        planned = job.plan()
        job.do(planned)
        with changed_during_work(monkeypatch, job, change) as valued:
            job.undo(planned, dry_run=False)
        assert valued_still(job, valued[0]), change
        # What is left to take back is taken back as it is said.
        said, done = (job.undo(planned, dry_run=dry_run) for dry_run in (True, False))
        assert said == done, change


OF_ONE_SIZE = {
    "maintenance/refused_commands": "it is given many arguments, but no more where there is more to do",
    "maintenance/finish_registry": "it is given many arguments, but no more where there is more to do",
}
"""Scripts whose calls do not shrink."""

UNDIVIDED = {"freeze_partition": "a step is the VACUUM of one table, which PostgreSQL cannot take in parts"}
"""Jobs whose steps are as small as they can be from the beginning."""

FULL = 1_024


@dataclass
class Answers:
    """Answers of a server, which take as long as a test says by a clock of their own.

    :param before_s: how long those took that a pass has had when it begins.
    :param each_s: how long each takes from then on.
    :ivar most: script or statement -> most that one trip to the server has asked of it.
    :ivar breakers: of each pass, with what a full step of 1,024 was cut down to when the pass began.
    """

    before_s: Sequence[float]
    each_s: float
    now_s: float = 0.0
    most: Counter[str] = field(default_factory=Counter)
    breakers: list[tuple[Breaker, int]] = field(default_factory=list)

    def begin(self, say: Callable[[str], None]) -> Breaker:
        """Return the breaker of a pass."""
        breaker = Breaker(say, now_s=lambda: self.now_s)
        for took_s in self.before_s:
            breaker.sent()
            self.now_s += took_s
            breaker.answered()
        self.breakers.append((breaker, breaker.size(FULL)))
        return breaker

    def come(self, asked: Iterable[tuple[str, int]]) -> None:
        """Take the time of a trip, and keep how much it asked of each script or statement."""
        self.now_s += self.each_s
        trip: Counter[str] = Counter()
        for name, most in asked:
            trip[name] += most
        self.most |= trip


def asked_for(call: lua.Call) -> int:
    """Return how much a call takes in, by the header of its script: what it names, or its limit."""
    declared = call.script
    given = [(declared.args, call.args), (declared.keys, call.keys)]
    named = (len(values) - len(some) + 1 for some, values in given if any(each.repeats for each in some))
    limits = [
        int(str(value))
        for each, value in zip(declared.args, call.args, strict=False)
        if each.name in ("limit", "count")
    ]
    # A consumer is named by two values, before what is asked.
    consumers = sum(
        2 * int(str(value)) for each, value in zip(declared.args, call.args, strict=False) if each.name == "consumers"
    )
    return max(1, next(named, 1) - consumers, *limits)


def listed_in(values: Any) -> int:
    """Return how much a statement is given: the length of its longest list."""
    each = values.values() if isinstance(values, Mapping) else values or ()
    return max((len(value) for value in each if isinstance(value, list)), default=1)


@contextmanager
def answering(monkeypatch: pytest.MonkeyPatch, answers: Answers) -> Iterator[None]:
    to_redis, to_broker = lua.ScriptCaller.execute, BrokerWork.execute

    def timed(caller: lua.ScriptCaller, calls: Any) -> Any:
        answers.come((call.script.name, asked_for(call)) for call in calls)
        return to_redis(caller, calls)

    def timed_statement(job: BrokerWork, query: Any, values: Any = None) -> Any:
        answers.come([job.asked(query, values)])
        return to_broker(job, query, values)

    with monkeypatch.context() as patch:
        patch.setattr(lua.ScriptCaller, "execute", timed)
        patch.setattr(BrokerWork, "execute", timed_statement)
        patch.setattr(engine, "Breaker", answers.begin)
        yield


def carried_out(job: Any, name: str) -> Counts:
    """Plan a job, do it, and take it back where it can be."""
    planned = job.plan()
    done: Counts = job.do(planned)
    if name in UNDONE:
        job.undo(planned, dry_run=False)
    return {kind: count for kind, count in done.items() if kind != "freed_bytes"}


@pytest.mark.parametrize("name", [name for name in ENGINE_JOBS if name not in UNDIVIDED])
def test_while_a_server_is_slow_each_job_does_the_same_in_smaller_steps(
    world: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, slow = Answers(before_s=[], each_s=0.0), Answers(before_s=[2.0] * 18, each_s=2.0)
    job = world(name)
    with answering(monkeypatch, quick):
        done = carried_out(job, name)
    job = world(name)
    with answering(monkeypatch, slow):
        assert carried_out(job, name) == done
    large = {script: most for script, most in quick.most.items() if most >= 10 and script not in OF_ONE_SIZE}
    # Each share of a job on the broker does its work by a statement of its own.
    assert len(large) >= len(getattr(job_of(name), "remedies", [name]))
    assert {script: slow.most[script] for script, most in large.items() if slow.most[script] > most / 2} == {}


@pytest.mark.parametrize("name", ENGINE_JOBS)
def test_each_job_tells_how_long_answers_take_so_that_its_steps_shrink_and_grow_back(
    world: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The next slow answer halves the steps, and the next quick one doubles them again.
    shrinking = Answers(before_s=[2.0, 2.0], each_s=2.0)
    growing = Answers(before_s=[2.0] * 6 + [0.1] * 19, each_s=0.1)
    for answers in (shrinking, growing):
        job = world(name)
        with answering(monkeypatch, answers):
            carried_out(job, name)
    # The plan, the work, and the way back; that of a remedy is one trip here.
    for at in (0, 1, *([-1] if name in UNDONE and name not in REMEDY_NAMES else [])):
        breaker, size = shrinking.breakers[at]
        assert (size, breaker.size(FULL) < FULL) == (FULL, True)
        breaker, size = growing.breakers[at]
        assert (size, breaker.size(FULL) > FULL // 4) == (FULL // 4, True)


def test_cleanup_that_is_stopped_before_any_trip_to_the_server_counts_all_that_it_changes(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each call goes by itself.
    monkeypatch.setattr("queuekeeper.maintenance.cleanup.sweep.COST_PER_TRIP", 1)
    # A tenth of the references, by as many calls.
    monkeypatch.setattr("queuekeeper.maintenance.cleanup.sweep.REFERENCES_PER_CALL", 100)
    job = world("expired_reference_cleanup", long=150)
    changed = {
        name: count
        for name, count in job.say().items()
        if name in {"dead_references", "orphans", "expiries_repaired", "idle_keys"}
    }
    stops, done = 0, False
    while not done:
        job = world("expired_reference_cleanup", long=150)
        run_id, (shard,) = planned = job.plan()
        trips_left = iter([False] * stops + [True])

        def wait(_: float, *, is_last: Iterator[bool] = trips_left) -> None:
            if next(is_last, False):
                raise TimeIsUp("its time is over")

        with monkeypatch.context() as patch:
            patch.setattr(engine, "run_pace", lambda *_, **__: wait)
            done = job.world.apply(run_id, shard).done
        assert {name: job.do(planned)[name] for name in changed} == changed, stops
        stops += 1
    assert stops > 10


WORK = {
    "sessions/remove_dead_references",
    "compacted/collect",
    "fanout/reap",
    "fanout/expire",
    "sessions/drop_import",
    "sessions/set_last_packet_id",
    "sessions/set_expiry",
    "sessions/unlink_orphan",
    "sessions/quarantine_duplicate",
    "sessions/quarantine_message",
    "packed/repair_state",
    "sessions/trim_messages",
    "sessions/reorder_messages",
    "sessions/restore_message",
    "sessions/rekey_messages",
    "maintenance/restore_references",
    "maintenance/persist_keys",
    "compacted/restore",
}
"""Scripts that each job does its work by, and takes it back by."""


def valued_still(job: Job, before: Any) -> bool:
    """Tell whether nothing has been lost."""
    after: Any = job.valued()
    if isinstance(before, dict):
        return {name: after.get(name) for name in before} == before
    return bool(before <= after)
