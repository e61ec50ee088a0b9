"""The users that ``queuekeeper acl`` prints can do their jobs on real servers; that of quality has its own file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import NoPermissionError

from queuekeeper import lua, postgres
from queuekeeper.access import redis_user, redis_users
from queuekeeper.compacted.consumer import CompactedConsumer
from queuekeeper.compacted.model import Append, Position, Purge
from queuekeeper.compacted.queue import CompactedQueues
from queuekeeper.doctor import State, examine_redis
from queuekeeper.errors import UsageError
from queuekeeper.fanout.model import NewMessage as Published
from queuekeeper.fanout.queue import FanoutQueues
from queuekeeper.keyspace import payload_key, session_keys
from queuekeeper.migration.offline.target import TargetReader
from queuekeeper.redis_client import RedisClient, nodes
from queuekeeper.sessions.model import Ack
from tests.access_users import CLIENT, PREFIX, SECRET, WORD, forget_refusals, holder, save, working_as
from tests.compacted_gc_world import DAY_MS
from tests.compacted_gc_world import World as CompactedWorld
from tests.fanout_repair_world import World as FanoutWorld

pytestmark = pytest.mark.conformance


@pytest.fixture
def admin(each_server: RedisClient) -> RedisClient:
    """A client that may do everything, of an empty server or cluster."""
    return each_server


def test_store_of_sessions(admin: RedisClient) -> None:
    with working_as(admin, "sessions") as client:
        store = save(client, count=4)
        page = store.fetch_pending(CLIENT, mark_delivered=True)
        assert [message.payload for message in page.messages] == [SECRET] * 4
        first, second, third, _ = page.messages
        store.mark_released(CLIENT, packet_id=first.packet_id)
        assert store.ack(CLIENT, [Ack(packet_id=second.packet_id, serial=second.serial)]).removed == 1
        exported = store.export_session(CLIENT)
        assert store.reserve_packet_ids(CLIENT, count=2) == (5, 6)
        assert store.set_last_packet_id(CLIENT, packet_id=9, expected=6)
        # What nobody can read is put aside, and what has expired is swept.
        anything: Any = admin
        anything.set(payload_key(CLIENT, third.packet_id, prefix=PREFIX), "{", keepttl=True)
        assert store.fetch_pending(CLIENT).unreadable == 1
        assert store.inspect(CLIENT).messages == 2
        assert store.purge_session(CLIENT).messages == 2
        assert store.import_session(CLIENT, exported.lines).stored == 3


def test_migration(admin: RedisClient) -> None:
    keys = session_keys(CLIENT, prefix=PREFIX)
    payload = payload_key(CLIENT, 1, prefix=PREFIX)
    with working_as(admin, "migration") as client:
        caller = lua.ScriptCaller(client)
        end_ms = 4_000_000_000_000
        args = ["plan", "1", "redis", "0", "1", "1", "", "7", str(end_ms), "{}"]
        caller.call(lua.load("sessions/import_session"), [*keys, payload], args)
        reader = TargetReader(client, prefix=PREFIX)
        scores = [score for _, pages in reader.read([CLIENT]) for page in pages for score in page["score"].to_pylist()]
        assert scores == [7.0]
        caller.call(lua.load("sessions/drop_import"), [*keys, payload], ["plan"])
        with pytest.raises(NoPermissionError):
            holder(client).delete(keys.messages)
        forget_refusals(admin)


def test_compacted_queues_and_their_collector(admin: RedisClient, records: postgres.Connection, tmp_path: Path) -> None:
    with working_as(admin, "compacted") as client:
        queues = CompactedQueues(client, PREFIX)
        queues.append(CLIENT, [Append(key=b"%d" % number, value=SECRET) for number in range(5)])
        queues.append(CLIENT, [Append(key=b"4", tombstone=True)])
        with CompactedConsumer(queues, CLIENT) as consumer:
            for message in consumer:
                consumer.ack(message)
                if message.tombstone:
                    break
        assert queues.inspect(CLIENT).in_flight == 0
        assert queues.get(CLIENT, key=b"1") is not None
        assert queues.verify(CLIENT).found == 0
        queues.rewind(CLIENT, to=Position(kind="earliest"))
        queues.purge(CLIENT, what=Purge.everything())
        assert queues.drop(CLIENT).existed

    world = CompactedWorld(client=admin, connection=records, undo=tmp_path, prefix=PREFIX)
    world.append("collected", "a", "b")
    world.now_ms += 30 * DAY_MS
    with working_as(admin, "compacted-gc") as client:
        limited = CompactedWorld(client=client, connection=records, undo=tmp_path, prefix=PREFIX, now_ms=world.now_ms)
        assert limited.collected().clean
    assert world.live("collected") == []


def test_fanout_queues_and_their_repair(admin: RedisClient, records: postgres.Connection) -> None:
    with working_as(admin, "fanout") as client:
        queues = FanoutQueues(client, PREFIX)
        queues.register("orders", consumer="billing")
        queues.publish("orders", [Published(body=SECRET)] * 3)
        claimed = queues.claim("orders", consumer="billing", count=3)
        first, second, third = (message.id for message in claimed.messages)
        queues.ack("orders", consumer="billing", token=claimed.token, ids=[first])
        queues.nack("orders", consumer="billing", token=claimed.token, message_id=second)
        queues.extend("orders", consumer="billing", token=claimed.token, ids=[third])
        queues.pause("orders", consumer="billing")
        queues.resume("orders", consumer="billing")
        assert queues.inspect("orders").messages == 2
        queues.purge("orders", consumer="billing")

    world = FanoutWorld(client=admin, connection=records, prefix=PREFIX)
    world.register("broken", "billing")
    world.publish("broken", 2)
    world.kill("broken", "billing", 2)
    world.now_ms += DAY_MS
    with working_as(admin, "fanout-repair") as client:
        limited = FanoutWorld(client=client, connection=records, prefix=PREFIX, now_ms=world.now_ms)
        assert limited.repaired().proved
    assert len(world.process("broken", "billing", 2)) == 2


def test_monitoring_needs_no_key(admin: RedisClient) -> None:
    save(admin)
    with working_as(admin, "monitor") as client:
        options = nodes(client)[0][1].connection_pool.connection_kwargs
        url = f"redis://queuekeeper-monitor:{WORD}@{options['host']}:{options['port']}"
        assert not [finding for finding in examine_redis(url) if finding.state is State.UNKNOWN]
        with pytest.raises(NoPermissionError):
            holder(client).strlen(payload_key(CLIENT, 1, prefix=PREFIX))
        forget_refusals(admin)


def test_nobody_but_the_broker_and_the_copy_may_add_a_message_or_empty_a_server() -> None:
    for job, user in redis_users().items():
        rules = user.rules()
        assert not {"+flushall", "+flushdb", "+keys", "+config", "+shutdown", "+debug", "+@all"} & set(rules), job
        if job in ("cleanup", "quality", "monitor"):
            assert not {"+set", "+zadd", "+hmset", "+rpush", "+xadd"} & set(rules), job


def test_unknown_job_and_prefix_that_would_be_a_pattern_are_refused() -> None:
    with pytest.raises(UsageError, match="there is no job 'everything': name one of sessions, migration"):
        redis_user("everything")
    with pytest.raises(UsageError, match="means something in an access rule"):
        redis_user("quality").rules(key_prefix="site*:")
