"""A cleanup removes what has expired and nothing else, on Valkey, on Redis and on a cluster, as often as it is run."""

from __future__ import annotations

import json
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import redis
from lua_sessions import Session, messages, served_by
from planted_queues import PackedQueue, faults, profiled

from queuekeeper import approvals, lua, postgres
from queuekeeper.embedded import PostgresServer
from queuekeeper.errors import RefusedError, ServerUnavailable, StalePlan, UsageError
from queuekeeper.jobs import keys, progress, shares
from queuekeeper.jobs.engine import Engine
from queuekeeper.jobs.model import Step
from queuekeeper.jobs.store import RunState, ShardProgress
from queuekeeper.jobs.undo import UndoFile, remove_old_undo_files
from queuekeeper.keyspace import packed_keys
from queuekeeper.lua import scripts
from queuekeeper.maintenance.cleanup.expired_references import Cleanup, acl_rules
from queuekeeper.maintenance.cleanup.model import KIND, CleanupCounts, CleanupParameters
from queuekeeper.redis_client import RedisClient, connect, facts
from queuekeeper.sessions.model import NewMessage, SessionSave
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.redis_store import RedisSessionStore
from tests.cleanup_world import DAY_MS, HOUR_MS, Device, World, now_ms, record, with_records
from tests.conftest import ONE_SERVER_EACH
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.conformance


@pytest.fixture(scope="module")
def records_url(postgres_server: PostgresServer) -> Iterator[str]:
    """Address of a database that all tests of this file keep their records in: runs do not meet."""
    name = f"cleanups_{os.getpid()}"
    yield postgres_server.create_database(name, template="template0")
    postgres_server.drop_database(name)


@pytest.fixture(scope="module")
def records(records_url: str) -> Iterator[Any]:
    with postgres.connect(records_url, autocommit=True) as connection:
        yield with_records(connection)


@pytest.fixture
def world(each_server: RedisClient, records: Any, tmp_path: Path) -> World:
    """An empty store, and records of cleanups."""
    return World(each_server, records, tmp_path / "undo")


@pytest.fixture
def valkey(valkey_url: str, records: Any, tmp_path: Path) -> Iterator[World]:
    """The same on one server, where the kind of server makes no difference."""
    with connect(valkey_url) as client:
        yield World(client, records, tmp_path / "undo")


def pttl(device: Device, key: str) -> int:
    return int(device.client.pttl(key))


def test_dead_references_go_and_live_messages_stay_in_order(world: World) -> None:
    device = world.device("meter-7")
    device.add(6)
    device.expire(1, 3, 5)
    _, done = world.clean()
    assert (done.dead_references, done.removed, done.repaired) == (3, 3, 0)
    assert device.references() == device.live() == [2, 4, 6]
    assert done.freed_bytes > 0
    assert device.add() == 7
    assert world.plan().to_do == 0


def test_plan_writes_nothing_and_says_what_the_cleanup_will_do(world: World) -> None:
    fill(world)
    before = world.contents()
    planned = world.plan()
    assert world.contents() == before
    _, done = world.clean()
    assert asdict(done) == asdict(planned)


def test_second_plan_is_empty_and_a_repeated_cleanup_changes_nothing(world: World) -> None:
    fill(world)
    run_id, _ = world.clean()
    before = world.contents()
    outcome = world.report(run_id)
    assert outcome.clean
    assert outcome.counts == outcome.plan.counts
    assert outcome.left is not None
    assert outcome.left.to_do == 0
    _, again = world.clean()
    assert again.to_do == 0
    assert world.contents() == before
    run = world.runs.load(run_id)
    assert run.state is RunState.DONE
    assert run.report is not None
    assert run.report["clean"] is True


def fill(world: World) -> None:
    """Leave something of every kind behind."""
    for number in range(40):
        device = world.device(f"meter-{number}")
        device.add(1 + number % 7)
        device.expire(*range(1, number % 5))
        if number % 7 > 4:
            device.received(number % 7)
    group = world.device("ss_group_t/+/x")
    group.add(3)
    group.expire(1, 2, 3)
    world.device("lost").orphan(3, age_ms=3 * HOUR_MS)
    world.device("drained").add()
    world.device("drained").acknowledge(1)
    for number in range(1, 20):
        queue = PackedQueue(client=world.client, client_id=f"packed-{number}")
        queue.fill(20 * number)
        over(queue, *range(1_001, 1_001 + 30 * (number % 5)))
    sparse = PackedQueue(client=world.client, client_id="packed-sparse")
    for serial in (1, 7, 9_000):
        sparse.put(serial, serial)
    over(sparse, 1, 7)
    imported(world, "packed-import", lives_ms=(-1, -1))


def over(queue: PackedQueue, *serials: int) -> None:
    """Let lives of messages be over, as far as there are such."""
    for serial in serials:
        if queue.client.hexists(queue.key, serial):
            queue.end(serial, now_ms() - 1_000)
    queue.settle(ids=queue.state.ids if queue.client.hexists(queue.key, "s") else 9_000)


PLAN = "0123456789abcdef"


def imported(world: World, client_id: str, *, lives_ms: Sequence[int]) -> PackedQueue:
    """Import a packed session whose lives end so much later, by the script of migrations; past ones are over."""
    queue = PackedQueue(client=world.client, client_id=client_id)
    queue.fill(len(lives_ms))
    pairs = [each for pair in sorted(queue.client.hgetall(queue.key).items()) if pair[0] != b"s" for each in pair]
    queue.client.delete(queue.key)
    call = scripts.packed.import_session(
        packed_keys(client_id), plan=PLAN, epoch=1, owner="redis", chunk=0, last=1, last_packet_id=len(lives_ms),
        last_serial="", until_ms="", messages=pairs,
    )  # fmt: skip
    lua.ScriptCaller(world.client).execute([call]).or_raise()
    for serial, life_ms in enumerate(lives_ms, 1_001):
        queue.end(serial, now_ms() + life_ms)
    queue.say(earliest=0)
    return queue


def dropped(world: World, queue: PackedQueue) -> int:
    """Undo an import, which a use of it would refuse; return how many messages there were."""
    call = scripts.packed.drop_import(packed_keys(queue.client_id), plan=PLAN)
    return int(lua.ScriptCaller(world.client).execute([call]).or_raise()[0])


def test_messages_of_packed_sessions_go_when_their_lives_are_over_and_others_stay_in_order(world: World) -> None:
    queue = PackedQueue(client=world.client, client_id="meter-7")
    queue.fill(350)
    gone = {1_001, *range(1_100, 1_130), 1_350}
    over(queue, *gone)
    sparse = PackedQueue(client=world.client, client_id="}brace")
    for serial in (1, 7, 9_000):
        sparse.put(serial, serial)
    over(sparse, 7)

    planned = world.plan()
    _, done = world.clean()

    assert asdict(done) == asdict(planned)
    assert (done.expired_messages, done.removed, done.repaired, done.sessions, done.references) == (33, 33, 0, 2, 353)
    assert done.freed_bytes > 33 * 40
    store = RedisSessionStore(world.client, layout=Layout.PACKED)
    assert [each.serial for each in store.inspect("meter-7", limit=400).page] == sorted({*range(1_001, 1_351)} - gone)
    assert [each.serial for each in store.inspect("}brace").page] == [1, 9_000]
    assert store.inspect("meter-7").counts.expired == 32  # type: ignore[union-attr]
    # Nothing of it contradicts the state, by which the next look has nothing to read.
    ends_ms = [each.expires_at_ms or 0 for each in store.inspect("meter-7", limit=400).page]
    assert faults(profiled(world.client)["meter-7"]) == {"over_limit": 298, "serial_gaps": 30}
    assert queue.state.earliest == min(ends_ms)
    assert world.plan().to_do == 0


def test_packed_import_that_nobody_has_touched_is_cleaned_and_can_still_be_undone(world: World) -> None:
    some = imported(world, "some", lives_ms=(-1, HOUR_MS, -1, HOUR_MS))
    none = imported(world, "none", lives_ms=(-1, -1))

    run_id, done = world.clean(idle_days=30)

    assert (done.expired_messages, done.idle_keys) == (4, 1)
    assert some.client.ttl(some.key) == -1
    assert 29 * DAY_MS < none.client.pttl(none.key) <= 30 * DAY_MS
    assert world.take_back(run_id, dry_run=True).expiries == 1
    assert none.client.ttl(none.key) != -1
    assert world.take_back(run_id).expiries == 1
    assert none.client.ttl(none.key) == -1
    assert (dropped(world, some), dropped(world, none)) == (2, 0)
    assert not some.client.exists(some.key)


def test_save_into_an_idle_packed_session_prolongs_it(valkey: World) -> None:
    queue = imported(valkey, "idle", lives_ms=(-1,))
    valkey.clean(idle_days=2)
    assert 0 < queue.client.pttl(queue.key) <= 2 * DAY_MS
    message = NewMessage(topic="t", payload=b"p", qos=1, time_ms=now_ms())
    RedisSessionStore(valkey.client, layout=Layout.PACKED).save_messages(
        [SessionSave(client_id="idle", messages=(message,))]
    )
    assert queue.client.pttl(queue.key) > 7 * DAY_MS


def test_save_into_a_packed_session_whose_cleanup_was_undone_gives_it_an_expiry(valkey: World) -> None:
    queue = imported(valkey, "idle", lives_ms=(-1,))
    run_id, _ = valkey.clean(idle_days=30)
    assert valkey.take_back(run_id).expiries == 1
    assert queue.client.ttl(queue.key) == -1
    message = NewMessage(topic="t", payload=b"p", qos=1, time_ms=now_ms(), expiry_interval_s=3_600)
    RedisSessionStore(valkey.client, layout=Layout.PACKED).save_messages(
        [SessionSave(client_id="idle", messages=(message,))]
    )
    assert 7 * DAY_MS < queue.client.pttl(queue.key) <= 8 * DAY_MS


def test_packed_session_whose_state_nobody_can_read_is_counted_and_holds_up_no_other(valkey: World) -> None:
    spoilt, other = (PackedQueue(client=valkey.client, client_id=client_id) for client_id in ("spoilt", "other"))
    for queue in (spoilt, other):
        queue.fill(3)
        queue.end(1_002, now_ms() - 1_000)
        queue.settle(ids=3)
    spoilt.client.hset(spoilt.key, "s", "rubbish")
    before = spoilt.client.hgetall(spoilt.key)

    planned = valkey.plan()
    _, done = valkey.clean()

    assert asdict(done) == asdict(planned)
    assert (done.expired_messages, done.wrong_type_keys) == (1, 1)
    assert spoilt.client.hgetall(spoilt.key) == before


def test_packed_session_that_belongs_to_somebody_else_is_held(world: World) -> None:
    queue = imported(world, "meter-7", lives_ms=(-1, HOUR_MS))
    queue.client.hset(queue.key, "owner", "postgres")
    queue.say(guarded=1, others=queue.state.others)
    before = world.contents()
    _, done = world.clean()
    assert (done.to_do, done.held_sessions) == (0, 1)
    assert world.contents() == before


def test_reference_that_expires_between_plan_and_cleanup_goes_and_one_that_came_back_stays(world: World) -> None:
    device = world.device("meter-7")
    device.add(4)
    device.expire(1, 2)
    run_id, shards = world.approved()
    device.client.set(device.payload(1), record("meter-7", time_ms=now_ms(), packet_id=1), px=HOUR_MS)
    device.expire(4)
    for shard in shards:
        world.apply(run_id, shard)
    assert device.references() == device.live() == [1, 3]


def test_queue_in_which_dead_references_crowd_out_live_messages_is_counted(world: World) -> None:
    for name, dead in (("full", 2), ("emptier", 3), ("alive", 0)):
        device = world.device(name)
        device.add(8 if name == "emptier" else 9)
        device.expire(*range(1, dead + 1))
    plan = world.engine(name_client=lambda client_id: client_id.upper()).plan(CleanupParameters(limit=10))
    assert plan.counts.crowded_queues == 1
    assert [(each.client_hash, each.references, each.dead) for each in plan.found.worst] == [
        ("EMPTIER", 8, 3),
        ("FULL", 9, 2),
    ]


def test_orphan_goes_only_when_it_is_old_enough(world: World) -> None:
    device = world.device("meter-7")
    device.add(2)
    device.orphan(11, age_ms=2 * HOUR_MS)
    device.orphan(12, age_ms=2 * HOUR_MS, life_ms=HOUR_MS)
    device.orphan(13, age_ms=HOUR_MS // 2)
    device.client.set(device.payload(14), "nobody can read this")
    device.client.set(device.payload(15), "nor this", px=HOUR_MS)
    _, done = world.clean(grace_s=3_600, default_ttl_s=86_400)
    assert (done.orphans, done.young_orphans, done.expiries_repaired, done.unreadable) == (2, 1, 1, 1)
    assert [packet_id for packet_id in range(1, 16) if device.client.exists(device.payload(packet_id))] == [
        1, 2, 13, 14, 15,
    ]  # fmt: skip
    assert 0 < pttl(device, device.payload(14)) <= DAY_MS
    assert device.live() == [1, 2]


@pytest.mark.parametrize(
    ("age_ms", "interval_s", "left_ms"),
    [
        (0, None, 2 * DAY_MS),
        (HOUR_MS, None, 2 * DAY_MS - HOUR_MS),
        (HOUR_MS, 7_200, HOUR_MS),
        (0, 30 * 86_400, 30 * DAY_MS),
        (0, -1, (2**32 - 1) * 1_000),
        (0, 2**31 - 1, (2**32 - 1) * 1_000),
        (3 * DAY_MS, None, HOUR_MS),
        (HOUR_MS, 60, HOUR_MS),
        (0, 0, HOUR_MS),
    ],
    ids=[
        "default",
        "default-from-its-time",
        "own",
        "own-is-longer",
        "unsigned",
        "highest-signed",
        "over",
        "own-over",
        "zero",
    ],
)
def test_record_without_expiry_gets_the_one_that_it_says_of_itself(
    valkey: World, age_ms: int, interval_s: int | None, left_ms: int
) -> None:
    device = valkey.device("meter-7")
    device.add(1, time_ms=now_ms() - age_ms, interval_s=interval_s)
    device.received(1)
    assert pttl(device, device.payload(1)) == -1
    _, done = valkey.clean(default_ttl_s=2 * 86_400, grace_s=3_600)
    assert done.expiries_repaired == 1
    assert pttl(device, device.payload(1)) == pytest.approx(left_ms, abs=5_000)
    assert device.live() == [1]
    assert valkey.plan().to_do == 0


def test_expiry_that_is_there_is_left_alone(world: World) -> None:
    device = world.device("meter-7")
    device.add(1, life_ms=50 * DAY_MS)
    before = world.contents()
    world.clean(default_ttl_s=60)
    assert world.contents() == before


def test_unreadable_message_without_expiry_is_left_to_the_remedies(world: World) -> None:
    device = world.device("meter-7")
    device.add(1)
    device.client.set(device.payload(1), '{"packetType":"PUBREL","time":"soon"}')
    _, done = world.clean()
    assert (done.unreadable, done.to_do) == (1, 0)
    assert pttl(device, device.payload(1)) == -1


def test_our_sessions_learn_that_a_message_expires_earlier(world: World) -> None:
    session = Session(client=world.client)
    session.save_messages(messages(1, expires_at_ms=now_ms() + 9 * DAY_MS))
    device = world.device("meter-7")
    device.client.set(device.payload(1), record("meter-7", time_ms=now_ms(), packet_id=1))
    world.clean(default_ttl_s=86_400)
    assert int(session.state()["earliest_expiry_ms"]) == int(device.client.pexpiretime(device.payload(1)))


def test_idle_session_gets_an_expiry_that_the_next_message_takes_off(world: World) -> None:
    device = world.device("meter-7")
    device.add(2)
    device.acknowledge(1)
    device.acknowledge(2)
    _, done = world.clean(idle_days=30)
    assert (done.idle_keys, done.later_bytes > 0) == (1, True)
    assert pttl(device, device.keys.last_packet_id) == pytest.approx(30 * DAY_MS, abs=5_000)
    assert world.plan(idle_days=1).to_do == 0
    assert device.add() == 3
    assert pttl(device, device.keys.last_packet_id) == -1
    assert world.clean()[1].to_do == 0


def test_idle_session_that_was_imported_gets_an_expiry_and_can_be_undone(world: World) -> None:
    session = Session(client=world.client)
    session.import_session([], last_packet_id=7)
    device = world.device("meter-7")
    _, done = world.clean(idle_days=30)
    assert done.idle_keys == 2
    for key in (device.keys.last_packet_id, device.keys.session):
        assert pttl(device, key) == pytest.approx(30 * DAY_MS, abs=5_000)
    assert world.plan(idle_days=1).to_do == 0
    assert session.import_session([], last_packet_id=7) == {"word": "unchanged", "written": 0, "expired": 0}
    assert session.drop_import() == {"removed": 0, "remaining": 0}
    assert world.contents() == {}


def test_import_without_messages_is_as_unused_as_before_when_a_cleanup_of_it_is_undone(world: World) -> None:
    session = Session(client=world.client)
    session.import_session([], last_packet_id=7)
    before = world.contents()
    run_id, _ = world.clean(idle_days=30)
    assert world.take_back(run_id, dry_run=True).expiries == 2
    assert world.take_back(run_id).expiries == 2
    assert world.contents() == before
    assert session.import_session([], last_packet_id=7) == {"word": "unchanged", "written": 0, "expired": 0}
    assert session.drop_import() == {"removed": 0, "remaining": 0}


def test_last_packet_id_stays_while_a_message_waits(world: World) -> None:
    device = world.device("meter-7")
    device.add(2)
    device.expire(1)
    world.clean(idle_days=1)
    assert pttl(device, device.keys.last_packet_id) == -1
    assert pttl(device, device.keys.messages) == -1


def test_session_of_dead_references_only_is_left_with_keys_that_expire(world: World) -> None:
    device = world.device("ss_group_sensors/+/t")
    device.add(3)
    device.expire(1, 2, 3)
    _, done = world.clean(idle_days=2)
    assert (done.dead_references, done.idle_keys, done.shared_subscriptions) == (3, 1, 1)
    assert not device.client.exists(device.keys.messages)
    assert 0 < pttl(device, device.keys.last_packet_id) <= 2 * DAY_MS


@pytest.mark.parametrize(
    "fields",
    [
        {"last_serial": "3", "until_ms": "never"},
        {"owner": "postgres", "epoch": "2"},
        {"owner": "redis", "import": "2", "plan": "p"},
        {"rekeyed": "1"},
    ],
    ids=["for-ever", "postgres", "being-imported", "being-moved"],
)
def test_session_that_somebody_keeps_is_held(valkey: World, fields: dict[str, str]) -> None:
    device = valkey.device("meter-7")
    device.client.set(device.keys.last_packet_id, 7)
    device.client.hset(device.keys.session, mapping=fields)
    _, done = valkey.clean()
    assert (done.to_do, done.held_sessions > 0) == (0, True)
    assert pttl(device, device.keys.session) == pttl(device, device.keys.last_packet_id) == -1


@pytest.mark.parametrize("owner", ["postgres", "fenced"])
def test_dead_references_of_a_session_of_postgres_are_left_to_its_move(world: World, owner: str) -> None:
    device, other = world.device("meter-7"), world.device("meter-8")
    for each in (device, other):
        each.add(3)
        each.expire(1, 2)
    device.client.hset(device.keys.session, mapping={"owner": owner, "epoch": "2", "import": "done"})
    before = {key: value for key, value in world.contents().items() if b"meter-7" in key}
    _, done = world.clean()
    assert (done.dead_references, done.held_sessions) == (2, 1)
    assert {key: value for key, value in world.contents().items() if b"meter-7" in key} == before


def test_imported_session_without_messages_gets_an_expiry_not_before_its_own(valkey: World) -> None:
    device = valkey.device("meter-7")
    device.client.set(device.keys.last_packet_id, 7)
    until_ms = now_ms() + 50 * DAY_MS
    device.client.hset(
        device.keys.session, mapping={"owner": "redis", "import": "done", "last_serial": "7", "until_ms": str(until_ms)}
    )
    _, done = valkey.clean(idle_days=30)
    assert done.idle_keys == 2
    for key in (device.keys.session, device.keys.last_packet_id):
        assert int(device.client.pexpiretime(key)) == until_ms


def test_keys_of_other_programs_are_left_alone(world: World) -> None:
    client: Any = world.client
    client.hset("{user}_session", mapping={"name": "ada"})
    client.set("{user2}_session", "x")
    client.set("{user3}_last_packet_id", "not a number")
    client.set("{user4}_messages", "x")
    client.set("{user4}_messages_1", record("user4", time_ms=0))
    client.rpush("{user5}_messages_1", "x")
    client.set("{user6}_orphan_1", "x")
    client.set("other_messages", "x")
    before = world.contents()
    _, done = world.clean()
    assert done.to_do == 0
    assert done.wrong_type_keys > 0
    assert world.contents() == before


def test_reference_that_names_no_message_of_its_session_is_left_to_the_remedies(world: World) -> None:
    device = world.device("meter-7")
    device.add(2)
    device.expire(1)
    device.client.zadd(device.keys.messages, {"{elsewhere}_messages_1": 9, device.payload(1) + "x": 10, b"\xff": 11})
    _, done = world.clean()
    assert (done.dead_references, done.foreign_references) == (1, 3)
    assert device.client.zcard(device.keys.messages) == 4


@pytest.mark.parametrize("prefix", ["", "tbmq:", "a*[b]?\\:"])
def test_every_id_and_prefix_is_found(world: World, prefix: str) -> None:
    client_ids = served_by(world.client)
    for client_id in client_ids:
        device = world.device(client_id, prefix=prefix)
        device.add(2)
        device.expire(1)
    world.device("of another prefix", prefix="other:").add(1)
    world.device("of another prefix", prefix="other:").expire(1)
    _, done = world.clean(key_prefix=prefix)
    assert done.dead_references == len(client_ids)
    assert world.device("of another prefix", prefix="other:").references() == [1]
    for client_id in client_ids:
        assert world.device(client_id, prefix=prefix).live() == [2]


@pytest.mark.parametrize("prefix", ["", "tbmq:"])
def test_keys_that_a_broker_scatters_over_slots_do_not_stop_a_cleanup(world: World, prefix: str) -> None:
    client: Any = world.client
    stem = f"{prefix}{{}}x}}"
    client.zadd(f"{stem}_messages", {f"{stem}_messages_1": 1, f"{stem}_messages_2": 2})
    client.set(f"{stem}_messages_2", record("}x", time_ms=now_ms(), packet_id=2))
    client.set(f"{stem}_messages_3", record("}x", time_ms=0, packet_id=3))
    client.set(f"{stem}_last_packet_id", 2)
    before = world.contents()
    device = world.device("meter-7", prefix=prefix)
    device.add(2)
    device.expire(1)
    _, done = world.clean(key_prefix=prefix)
    assert device.references() == [2]
    if isinstance(client, redis.RedisCluster):
        assert (done.scattered_keys, done.to_do) == (4, 1)
        after = world.contents()
        assert {key: after[key] for key in before} == before
        assert ("Left alone", "4 keys that an id beginning with } scatters") in done.rows()
    else:
        assert (done.scattered_keys, done.dead_references, done.orphans) == (0, 2, 1)
        assert client.zrange(f"{stem}_messages", 0, -1) == [f"{stem}_messages_2".encode()]


def test_client_id_that_is_no_text_is_cleaned_and_can_be_taken_back(valkey: World) -> None:
    client: Any = valkey.client
    client.zadd(b"{\xff\xfe}_messages", {b"{\xff\xfe}_messages_1": 1})
    run_id, done = valkey.clean()
    assert done.dead_references == 1
    valkey.take_back(run_id)
    assert client.zrange(b"{\xff\xfe}_messages", 0, -1) == [b"{\xff\xfe}_messages_1"]


def test_queue_of_many_pages_is_gone_through_whole(world: World) -> None:
    device = world.device("meter-7")
    for _ in range(5):
        device.add(700)
    device.expire(*(packet_id for packet_id in range(1, 3_501) if packet_id % 3))
    device.received(3_000)
    _, done = world.clean()
    assert (done.references, done.expiries_repaired) == (3_500, 1)
    assert done.dead_references == len([packet_id for packet_id in range(1, 3_501) if packet_id % 3])
    assert device.references() == [packet_id for packet_id in range(1, 3_501) if not packet_id % 3]
    assert world.plan().to_do == 0


def test_many_large_records_without_expiry_fit_by_several_calls(valkey: World) -> None:
    device = valkey.device("meter-7")
    device.add(30)
    for packet_id in range(1, 31):
        text = record("meter-7", time_ms=now_ms(), packet_id=packet_id, size=100_000)
        device.client.set(device.payload(packet_id), text)
    assert valkey.clean()[1].expiries_repaired == 30


def test_keys_that_scan_shows_twice_are_cleaned_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(world)
    planned = world.plan()
    find = Cleanup.find

    def twice(*args: Any) -> Iterator[Step]:
        for page in find(*args):
            yield page
            yield page

    monkeypatch.setattr(Cleanup, "find", twice)
    _, done = world.clean()
    assert (done.removed, done.repaired) == (planned.removed, planned.repaired)


def test_shares_of_a_single_server_cover_it_once(valkey: World) -> None:
    fill(valkey)
    planned = valkey.plan()
    run_id, shards = valkey.approved(shares=3)
    assert [shard.partition(" ")[2] for shard in shards] == ["slots 0-5460", "slots 5461-10921", "slots 10922-16383"]
    total = CleanupCounts()
    for shard in reversed(shards):
        assert valkey.runs.load(run_id).state is not RunState.DONE
        total.add(valkey.apply(run_id, shard).counts)
    assert total == planned
    assert valkey.runs.load(run_id).state is RunState.DONE


# --- undo --------------------------------------------------------------------------------------------------------


def test_undo_puts_references_back_and_takes_expiries_off(world: World) -> None:
    device = world.device("meter-7")
    device.add(4)
    device.expire(1, 2)
    device.received(3)
    idle = world.device("idle")
    idle.add()
    idle.acknowledge(1)
    scores = device.client.zrange(device.keys.messages, 0, -1, withscores=True)
    run_id, done = world.clean()
    assert (done.dead_references, done.expiries_repaired, done.idle_keys) == (2, 1, 1)
    for path in world.undo.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert "payload" not in path.read_text("utf-8")
    counted = world.take_back(run_id, dry_run=True)
    assert device.references() == [3, 4]
    found = world.take_back(run_id, dry_run=False)
    assert (found.references, found.expiries) == (counted.references, counted.expiries) == (2, 2)
    assert device.client.zrange(device.keys.messages, 0, -1, withscores=True) == scores
    assert pttl(device, device.payload(3)) == pttl(idle, idle.keys.last_packet_id) == -1
    again = world.take_back(run_id, dry_run=False)
    assert (again.references, again.expiries) == (0, 0)


def test_undo_leaves_what_has_changed_since(world: World) -> None:
    device = world.device("meter-7")
    device.client.set(device.keys.last_packet_id, 0)
    device.client.zadd(device.keys.messages, {device.payload(1): 1})
    other = world.device("other")
    other.add()
    other.acknowledge(1)
    run_id, done = world.clean()
    assert done.to_do == 3
    device.add(1)
    score = device.client.zscore(device.keys.messages, device.payload(1))
    device.client.zadd(device.keys.messages, {device.payload(1): 40})
    other.client.pexpire(other.keys.last_packet_id, HOUR_MS)
    found = world.take_back(run_id, dry_run=False)
    assert (found.references, found.expiries) == (0, 0)
    assert (score, device.client.zscore(device.keys.messages, device.payload(1))) == (1, 40)
    assert 0 < pttl(other, other.keys.last_packet_id) <= HOUR_MS


def test_expiries_of_which_nobody_heard_are_taken_back_too(valkey: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        device, idle = valkey.device(f"meter-{number}"), valkey.device(f"idle-{number}")
        device.add()
        device.received(1)
        device.client.set(device.payload(9), "nobody can read this")
        idle.client.set(idle.keys.last_packet_id, 1)
    before = valkey.contents()
    run_id, (shard,) = valkey.approved()
    execute = lua.ScriptCaller.execute
    lost = ("unlink_orphans", b"{meter-1}"), ("repair_expiries", b"{meter-1}"), ("expire_idle_session", b"{idle-1}")
    for script, stem in lost:

        def fail(
            self: lua.ScriptCaller, calls: Sequence[lua.Call], script: str = script, stem: bytes = stem
        ) -> lua.Replies:
            replies = execute(self, calls)
            for position, call in enumerate(calls):
                if call.script.name != f"maintenance/{script}" or call.client_id != stem:
                    continue
                # What was announced has been done, and the answer is lost.
                if call.args[1 if script == "expire_idle_session" else -1]:
                    replies[position] = ServerUnavailable("cut")
            return replies

        monkeypatch.setattr(lua.ScriptCaller, "execute", fail)
        with pytest.raises(ServerUnavailable, match=r"^cut$"):
            valkey.apply(run_id, shard)
    monkeypatch.setattr(lua.ScriptCaller, "execute", execute)
    assert valkey.apply(run_id, shard).done
    assert all(expires_at_ms > 0 for key, (_, expires_at_ms) in valkey.contents().items() if b"_messages_" in key)
    valkey.take_back(run_id, dry_run=False)
    assert valkey.contents() == before


def test_set_that_is_of_another_type_by_now_does_not_stop_an_undo(world: World) -> None:
    devices = [world.device(f"meter-{number}") for number in range(4)]
    for device in devices:
        device.add(2)
        device.expire(1)
    run_id, _ = world.clean()
    devices[1].client.set(devices[1].keys.messages, "x")
    found = world.take_back(run_id, dry_run=False)
    assert (found.references, found.wrong_type_keys) == (3, 1)
    assert [devices[number].references() for number in (0, 2, 3)] == [[1, 2]] * 3


def test_old_undo_files_of_remedies_stay(valkey: World) -> None:
    device = valkey.device("meter-7")
    device.add(2)
    device.expire(1)
    valkey.clean()
    remedies = valkey.undo / "0123456789abcdef.repair.undo.jsonl"
    with UndoFile(remedies, {"kind": "repair_ttl"}):
        pass
    (valkey.undo / "notes.undo.jsonl").write_text("somebody's\n")
    assert remove_old_undo_files(valkey.undo, kind=KIND, days=1, now_ms=now_ms() + 2 * DAY_MS) == 1
    assert sorted(path.name for path in valkey.undo.iterdir()) == [remedies.name, "notes.undo.jsonl"]


def test_undo_without_a_file_says_so_and_old_files_go(valkey: World) -> None:
    device = valkey.device("meter-7")
    device.add(2)
    device.expire(1)
    run_id, _ = valkey.clean()
    assert remove_old_undo_files(valkey.undo, kind=KIND, days=1, now_ms=now_ms()) == 0
    assert remove_old_undo_files(valkey.undo, kind=KIND, days=1, now_ms=now_ms() + 2 * DAY_MS) == 1
    with pytest.raises(UsageError, match=f"run {run_id} has no undo file in .*: it changed nothing"):
        valkey.take_back(run_id, dry_run=False)


# --- pause, throttle, time, resume ---------------------------------------------------------------------------------


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "KEYS_PER_PAGE", 10)


def many(world: World, count: int = 300) -> list[Device]:
    devices = [world.device(f"meter-{number}") for number in range(count)]
    for device in devices:
        device.add(2)
        device.expire(1)
    return devices


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    return thread, results


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def test_pause_throttle_and_resume_while_it_runs(
    valkey: World, valkey_url: str, records_url: str, small_pages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = many(valkey, 120)
    run_id, (shard,) = valkey.approved(max_operations_per_s=200)
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    said: list[str] = []
    with postgres.connect(records_url, autocommit=True) as connection, connect(valkey_url) as client:
        worker = World(client, connection, valkey.undo)
        thread, results = in_thread(lambda: worker.apply(run_id, shard, say=said.append))
        until(lambda: valkey.runs.shard_progress(run_id, shard).scanned > 0)
        valkey.runs.set_paused(run_id, True)
        until(lambda: f"{shard}: run {run_id} is paused" in said)
        at = valkey.runs.shard_progress(run_id, shard)
        time.sleep(0.3)
        assert valkey.runs.shard_progress(run_id, shard) == at
        assert not at.done
        valkey.runs.set_throttle(run_id, None)
        valkey.runs.set_paused(run_id, False)
        thread.join(timeout=PATIENCE_S)
    assert results[0].done
    assert results[0].counts.dead_references == len(devices)
    assert any(re.match(rf"{shard}: \d+/360 keys \(\d+ %\), \d+/s, .* s left; \d+ changes made", line) for line in said)
    assert said[-1] == f"{shard}: {results[0].counts.changes} changes made, 360 keys"


def test_throttle_holds_the_rate(valkey: World, small_pages: None) -> None:
    many(valkey, 100)
    run_id, (shard,) = valkey.approved(max_operations_per_s=300)
    started = time.monotonic()
    report = valkey.apply(run_id, shard)
    operations = report.counts.keys + report.counts.references
    assert operations == 500
    assert time.monotonic() - started > (operations - 150 - 20) / 300


def test_time_limit_stops_a_run_that_goes_on_later(
    valkey: World, small_pages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = many(valkey, 200)
    for device in devices:
        device.orphan(9, age_ms=0)
    run_id, (shard,) = valkey.approved(max_operations_per_s=300, max_run_minutes=1)
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: 45 * real())
    stopped = valkey.apply(run_id, shard)
    monkeypatch.setattr(time, "monotonic", real)
    assert not stopped.done
    assert stopped.stopped == "its 1 minutes are over: apply again, and it goes on from here"
    assert 0 < stopped.counts.dead_references < len(devices)
    assert valkey.runs.load(run_id).state is RunState.STOPPED
    valkey.runs.set_throttle(run_id, None)
    report = valkey.apply(run_id, shard)
    assert report.done
    # The page in which the time was over is looked at twice, and counted once.
    assert (report.counts.dead_references, report.counts.young_orphans) == (len(devices), len(devices))
    assert report.counts.keys == 800


def test_run_that_fails_goes_on_where_it_stopped_and_one_that_is_done_does_nothing(
    valkey: World, small_pages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = many(valkey)
    run_id, (shard,) = valkey.approved()
    find = Cleanup.find

    def cut(*args: Any) -> Iterator[Step]:
        for number, page in enumerate(find(*args)):
            if number == 20:
                raise RefusedError("cut")
            yield page

    monkeypatch.setattr(Cleanup, "find", cut)
    with pytest.raises(RefusedError, match=r"^cut$"):
        valkey.apply(run_id, shard)
    assert valkey.runs.load(run_id).state is RunState.FAILED
    first = valkey.runs.shard_progress(run_id, shard)
    assert 0 < first.scanned < 900
    monkeypatch.setattr(Cleanup, "find", find)
    report = valkey.apply(run_id, shard)
    assert (report.counts.keys, report.counts.dead_references) == (900, len(devices))
    before = valkey.contents()
    assert valkey.apply(run_id, shard).counts == report.counts
    assert valkey.contents() == before


def test_cursor_of_a_server_that_was_started_again_is_not_used(
    redis_server_factory: Callable[..., Any], records: Any, tmp_path: Path, small_pages: None
) -> None:
    server = redis_server_factory()
    with connect(server.url) as client:
        world = World(client, records, tmp_path)
        many(world, 50)
        run_id, (shard,) = world.approved()
        progress = world.runs.shard_progress(run_id, shard)
        world.runs.save_progress(run_id, ShardProgress(shard=progress.shard, cursor="another process/1234"))
        assert world.apply(run_id, shard).counts.dead_references == 50


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"key_prefix": "a{b"}, "key_prefix is 'a{b': it must be text of at most 200 characters without a brace"),
        ({"default_ttl_s": 0}, "default_ttl_s is 0: it must be an integer from 1 to 4,294,967,295"),
        ({"idle_days": 0}, "idle_days is 0: it must be an integer from 1 to 3,650"),
        ({"grace_s": -5}, "grace_s is -5: it must be an integer from 1 to 31,536,000"),
        ({"session_limit": 65_536}, "limit is 65536: it must be an integer from 1 to 65,535"),
        ({"max_operations_per_s": 0}, "max_operations_per_s is 0: it must be an integer from 1 to 2,147,483,647"),
        ({"max_run_minutes": 1.5}, "max_run_minutes is 1.5: it must be an integer from 1 to 10,080"),
        ({"shares": 65}, "shares is 65: it must be an integer from 1 to 64"),
    ],
)
def test_parameter_out_of_range_is_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        CleanupParameters(**parameters)
    assert message in str(caught.value)


def test_plan_that_may_not_be_carried_out_is_refused(valkey: World) -> None:
    device = valkey.device("meter-7")
    device.add(2)
    device.expire(1)
    run_id, plan = valkey.planned()
    (shard,) = plan.share_names()
    with pytest.raises(RefusedError, match=f"nobody has approved run {run_id}: nothing was written"):
        valkey.apply(run_id, shard)
    valkey.runs.approve(run_id, "ada")
    with pytest.raises(UsageError, match=f"run {run_id} has no share 'nowhere:1': it has {shard}"):
        valkey.apply(run_id, "nowhere:1")
    with pytest.raises(StalePlan, match=r"and an approval counts for 8\.0 days: plan again"):
        valkey.apply(run_id, shard, clock=lambda: now_ms() + 9 * DAY_MS)
    other = valkey.runs.save_plan(kind="repair_ttl", parameters={}, plan={}).maintenance_run_id
    with pytest.raises(UsageError, match=f"run {other} is a remedy repair_ttl, not a cleanup"):
        valkey.apply(other, shard)
    assert device.references() == [1, 2]


def test_plan_of_another_release_and_of_a_server_that_has_gone_are_stale(
    valkey: World, monkeypatch: pytest.MonkeyPatch, redis_server_factory: Callable[..., Any]
) -> None:
    run_id, (shard,) = valkey.approved()
    with connect(redis_server_factory().url) as elsewhere, pytest.raises(StalePlan, match="is no master any more"):
        Engine(job=Cleanup, client=elsewhere, undo_directory=valkey.undo).apply(valkey.runs, run_id, shard)
    monkeypatch.setattr(approvals, "__version__", "9.9")
    with pytest.raises(StalePlan, match=r"was planned by release .*, and this is release 9\.9: plan again"):
        valkey.apply(run_id, shard)


def test_two_cleanups_never_share_a_shard(valkey: World, records_url: str) -> None:
    run_id, (shard,) = valkey.approved()
    with postgres.connect(records_url, autocommit=True) as connection:
        other = World(valkey.client, connection, valkey.undo)
        with (
            other.runs.shard_lock(run_id, shard),
            pytest.raises(RefusedError, match=f"another process works on {shard}"),
        ):
            valkey.apply(run_id, shard)


PASSWORD = "cleaner"


@pytest.fixture(params=ONE_SERVER_EACH)
def guarded(
    request: pytest.FixtureRequest, redis_servers: Callable[..., Any], records: Any, tmp_path: Path
) -> Iterator[tuple[World, Callable[..., World]]]:
    """An empty server, and the same world for a user with the rules that the documents name."""
    server = redis_servers(request.param)
    clients: list[Any] = []

    def cleaner(*rules: str) -> World:
        admin: Any = clients[0]
        granted = acl_rules("").split()[3:]
        admin.execute_command("ACL", "SETUSER", "cleaner", "reset", "on", f">{PASSWORD}", *granted, *rules)
        options = admin.connection_pool.connection_kwargs
        clients.append(connect(f"redis://cleaner:{PASSWORD}@{options['host']}:{options['port']}"))
        return World(clients[-1], records, tmp_path)

    clients.append(connect(server.url))
    clients[0].flushall()
    yield World(clients[0], records, tmp_path), cleaner
    clients[0].execute_command("ACL", "DELUSER", "cleaner")
    for client in clients:
        client.close()


def test_rules_that_are_named_are_enough(guarded: tuple[World, Callable[..., World]]) -> None:
    world, cleaner = guarded
    fill(world)
    session = Session(client=world.client, client_id="ours")
    session.save_messages(messages(2))
    world.device("ours").expire(1)
    limited = cleaner()
    run_id, done = limited.clean()
    assert done.dead_references > 0
    assert limited.report(run_id).clean
    user: Any = limited.client
    for refused in (
        ("SET", "{a}_messages_1", "x"),
        ("ZADD", "{a}_messages", 1, "x"),
        ("DEL", "{a}_messages"),
        ("KEYS", "*"),
    ):
        with pytest.raises(redis.exceptions.NoPermissionError):
            user.execute_command(*refused)


@pytest.mark.parametrize("rule", ["-zrem", "-memory|usage", "-unlink", "-pexpireat", "resetkeys"])
def test_missing_permission_is_named_before_work_starts(guarded: tuple[World, Callable[..., World]], rule: str) -> None:
    world, cleaner = guarded
    fill(world)
    run_id, (shard,) = world.approved()
    before = world.contents()
    limited = cleaner(rule)
    with pytest.raises(RefusedError) as caught:
        limited.apply(run_id, shard)
    text = str(caught.value)
    assert "ACL SETUSER <user> ~{*}_messages* ~{*}_last_packet_id ~{*}_session" in text
    assert rule == "resetkeys" or rule[1:] in text.partition(" on keys such as ")[0]
    assert world.contents() == before


def test_an_undo_names_what_a_user_lacks_before_it_begins_and_in_its_dry_run(
    guarded: tuple[World, Callable[..., World]],
) -> None:
    world, cleaner = guarded
    fill(world)
    run_id, _ = world.clean()
    before, limited = world.contents(), cleaner()
    for dry_run in (True, False):
        with pytest.raises(RefusedError, match=r"does not allow this user persist, zadd on keys .*\+persist \+zadd$"):
            limited.take_back(run_id, dry_run=dry_run)
    assert world.contents() == before
    assert cleaner("+zadd", "+persist").take_back(run_id, dry_run=False).references > 0


@pytest.mark.parametrize("rule", ["-evalsha", "-scan", "-script|load"])
def test_command_that_a_user_lacks_is_named_with_the_rules(
    guarded: tuple[World, Callable[..., World]], rule: str
) -> None:
    world, cleaner = guarded
    fill(world)
    world.client.script_flush()
    with pytest.raises(RefusedError, match=r"does not allow this user to do that: .*ACL SETUSER <user> ~") as caught:
        cleaner(rule).plan()
    assert rule[1:].replace("|", " ").split()[0] in str(caught.value).lower()


def test_reading_needs_no_right_to_write(guarded: tuple[World, Callable[..., World]]) -> None:
    world, cleaner = guarded
    fill(world)
    planned = world.plan()
    assert cleaner("-zrem", "-unlink", "-pexpireat", "-hset", "-hincrby").plan() == planned


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": "6.2.14", "is_valkey": False}, r"is version 6\.2\.14: upgrade it to 7\.0 or later"),
        ({"role": "slave"}, r"is a replica: name its master instead"),
    ],
)
def test_server_that_will_not_do_is_refused_before_work_starts(
    valkey: World, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
) -> None:
    found = [replace(server, **changes) for server in facts(valkey.client)]
    monkeypatch.setattr(shares, "facts", lambda _: found)
    with pytest.raises(RefusedError, match=words):
        valkey.plan()


def test_plan_is_kept_without_a_client_id(valkey: World) -> None:
    device = valkey.device("secret-device")
    device.add(2)
    device.expire(1)
    run_id, _ = valkey.clean()
    run = valkey.runs.load(run_id)
    assert "secret-device" not in json.dumps([run.plan, run.report, run.parameters])
