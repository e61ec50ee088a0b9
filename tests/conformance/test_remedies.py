"""Each remedy on Valkey, Redis and a cluster: a planted fault is planned, mended, gone, and back after the undo."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from planted_queues import PackedQueue, faults, profiled
from tbmq_broker import Broker

from queuekeeper import assets, lua, postgres, schema_migrations
from queuekeeper.clock import Pace, system_clock
from queuekeeper.embedded import PostgresServer
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.jobs.model import World
from queuekeeper.jobs.registry import job_of
from queuekeeper.jobs.store import MaintenanceRuns, RunState
from queuekeeper.keyspace import earlier_tag, is_scattered, orphan_key, payload_key, quarantined_key, session_keys
from queuekeeper.maintenance.remedies.model import REMEDY_NAMES, RemedyParameters
from queuekeeper.maintenance.remedies.queues import named_queues
from queuekeeper.maintenance.remedies.sessions import Sessions
from queuekeeper.redis_client import RedisClient, connect, is_cluster, nodes
from queuekeeper.sessions.model import Ack, NewMessage, SessionSave, StoreRules
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.redis_store import RedisSessionStore
from tests.conftest import in_turn
from tests.patience import PATIENCE_S
from tests.remedies_world import (
    RemedyPlan,
    RemedyReport,
    apply_recorded,
    apply_remedy,
    plan_remedy,
    record_plan,
    undo_remedy,
)

pytestmark = pytest.mark.conformance

KEY = b"test key of hashes"
HOUR_MS = 3_600_000
C = "meter-7"
CLIENT_IDS = (C, "}brace", "%percent", "%7Dtruly called so", "in{the}middle", "смарт-😀", "<script>", "line\nbreak")


class Bench:
    """A server with a few healthy sessions beside the one that is spoilt."""

    def __init__(self, client: RedisClient, folder: Path) -> None:
        self.any: Any = client
        self.client = client
        self.folder = folder
        self.undo_files: dict[str, Path] = {}
        self.spoilt = C
        self.store = RedisSessionStore(client, rules=StoreRules(limit=65_000))
        self.now_ms = system_clock()
        for client_id in ("healthy-1", "healthy-2"):
            self.save(client_id, 5)

    def save(self, client_id: str = C, count: int = 6, *, life_s: int | None = 3_600, payload: bytes = b"body") -> None:
        """Store messages of different content."""
        before = self.store.inspect(client_id).messages
        messages = [
            NewMessage(
                topic="t", payload=b"%b %d" % (payload, before + n), qos=1, time_ms=self.now_ms + n,
                expiry_interval_s=life_s,
            )
            for n in range(count)
        ]  # fmt: skip
        (report,) = self.store.save_messages([SessionSave(client_id=client_id, messages=tuple(messages))])
        assert report.error is None

    def payload(self, packet_id: int | str, client_id: str = C) -> str:
        return payload_key(client_id, packet_id)

    def plan(
        self, remedy: str, *client_ids: str, source: postgres.Connection | None = None, **parameters: Any
    ) -> RemedyPlan:
        """Plan for all sessions, the healthy ones too."""
        ids = client_ids or (self.spoilt, "healthy-1", "healthy-2")
        return plan_remedy(
            self.client,
            remedy=remedy,
            queues=named_queues(ids, key=KEY),
            parameters=RemedyParameters(**parameters),
            source=source,
        )

    def apply(self, plan: RemedyPlan, *client_ids: str, source: postgres.Connection | None = None) -> RemedyReport:
        """Do what a plan says."""
        ids = client_ids or (self.spoilt, "healthy-1", "healthy-2")
        report = apply_remedy(
            self.client,
            plan=plan,
            queues=named_queues(ids, key=KEY),
            undo_directory=self.folder / plan.remedy,
            source=source,
        )
        if report.undo_file:
            self.undo_files[plan.remedy] = Path(report.undo_file)
        return report

    def undo_path(self, remedy: str) -> Path:
        """Return the file of the last run of a remedy that has changed something."""
        return self.undo_files.get(remedy, self.folder / f"{remedy}.jsonl")

    def undo(self, remedy: str, *, dry_run: bool = False) -> Any:
        """Take the last run of a remedy back."""
        return undo_remedy(self.client, remedy=remedy, path=self.undo_path(remedy), key=KEY, dry_run=dry_run)

    def mends(self, remedy: str, expected: dict[str, int], *, without_undo: bool = False, **parameters: Any) -> None:
        """Check the whole way of a remedy: plan, apply, second plan, repetition, undo, and the fault is back."""
        spoilt = self.contents()
        plan = self.plan(remedy, **parameters)
        assert plan.effects == expected
        assert self.contents() == spoilt, "a plan writes nothing"
        assert self.spoilt not in json.dumps(plan.as_record())
        report = self.apply(plan)
        assert report.done == expected
        assert (report.changed, report.not_planned, report.refusals) == (0, 0, {})
        mended = self.contents()
        second = self.plan(remedy, **parameters)
        assert second.is_empty
        repeated = self.apply(plan)
        assert not repeated.done
        assert self.contents() == mended, "repeated, it changes nothing"
        if without_undo:
            assert not job_of(remedy).undoes
            assert "There is none" in plan.undo
            assert not self.undo_path(remedy).exists()
            return
        assert self.undo(remedy, dry_run=True).restored == sum(expected.values())
        assert self.contents() == mended
        undone = self.undo(remedy)
        assert (undone.restored, undone.left) == (sum(expected.values()), {})
        assert without_marks(self.contents()) == without_marks(spoilt)

    def contents(self) -> dict[str, Any]:
        """Return all keys with values and instants of expiry."""
        found: dict[str, Any] = {}
        for _, node in nodes(self.client):
            server: Any = node
            for key in server.scan_iter(count=1_000):
                read = {b"string": server.get, b"hash": server.hgetall, b"list": lambda k, s=server: s.lrange(k, 0, -1)}
                kind = server.type(key)
                value = server.zrange(key, 0, -1, withscores=True) if kind == b"zset" else read[kind](key)
                found[key.decode()] = (value, server.pexpiretime(key))
        return found


def without_marks(contents: dict[str, Any]) -> dict[str, Any]:
    """Return contents without what only grows: counters, and the instant from which a sweep may be due.

    The state of a packed session holds such numbers, and is judged as a whole elsewhere.
    """
    marks = {b"s", b"quarantined", b"saved_last_packet_id", b"earliest_expiry_ms", b"last_serial", b"delivered_serial"}
    return {
        key: (
            {name: text for name, text in value.items() if name not in marks} if isinstance(value, dict) else value,
            end,
        )
        for key, (value, end) in contents.items()
    }


def _message(topic: str) -> NewMessage:
    return NewMessage(topic=topic, payload=b"new", qos=1, time_ms=system_clock(), expiry_interval_s=3_600)


@pytest.fixture
def bench(each_server: RedisClient, tmp_path: Path) -> Bench:
    return Bench(each_server, tmp_path)


@pytest.fixture(scope="module")
def database(postgres_server: PostgresServer) -> Iterator[postgres.Connection]:
    """Database of TBMQ 1.x for all tests of this file."""
    url = postgres_server.create_database("remedies", template="template0")
    with postgres.connect(url, autocommit=True) as connection:
        connection.execute(assets.read("sql", "sessions/vendor_schema.sql").encode())
        yield connection
    postgres_server.drop_database("remedies")


@pytest.fixture
def source(database: postgres.Connection) -> postgres.Connection:
    """The same without rows."""
    database.execute("TRUNCATE device_publish_msg")
    return database


# Packed sessions.


def _with_lives_over(queue: PackedQueue) -> None:
    queue.fill(10)
    for serial in (1_002, 1_005):
        queue.end(serial, system_clock() - 1_000)
    queue.settle(ids=10)


def _with_odd_records(queue: PackedQueue) -> None:
    queue.fill(8)
    # Once around.
    queue.put(1_006 + 65_535, 6)
    queue.settle(ids=6 + 65_535)
    queue.spoil(1_002, lambda _: b"spoiled")
    queue.spoil(1_003, lambda record: record[:20])
    queue.put(1_004, 0)


def _with_repetitions(queue: PackedQueue) -> None:
    time_ms = system_clock()
    for serial, kind in ((1, "PUBLISH"), (2, "PUBLISH"), (3, "PUBREL"), (4, "PUBLISH")):
        queue.put(serial, serial, topic="t", time_ms=time_ms, qos=2, kind=kind)
    queue.put(5, 5)
    queue.settle(ids=5)


def _with_long_lives(queue: PackedQueue) -> None:
    queue.fill(3)
    queue.put(1_004, 4, life_s=50 * 3_600)
    queue.settle(ids=4)


def _that_says(**changes: int) -> Callable[[PackedQueue], None]:
    def plant(queue: PackedQueue) -> None:
        queue.fill(8)
        queue.say(**changes)

    return plant


def _without_state(queue: PackedQueue) -> None:
    queue.fill(8)
    queue.client.hdel(queue.key, "s")


def _with_unreadable_state(queue: PackedQueue) -> None:
    queue.fill(8)
    queue.client.hset(queue.key, "s", "rubbish")


STATE = {"state worked out again from the messages": 1}
OF_PACKED: dict[str, tuple[str, Callable[[PackedQueue], None], dict[str, int], dict[str, Any]]] = {
    "over the limit": (
        "trim_dead_first",
        _with_lives_over,
        {"expired message removed": 2, "message trimmed": 3},
        {"limit": 5},
    ),
    "odd records": (
        "quarantine_messages",
        _with_odd_records,
        {
            "message whose packet id a newer one has set aside": 1,
            "record that nobody can read set aside": 2,
            "record with a packet id out of range set aside": 1,
        },
        {},
    ),
    "repetitions": ("remove_duplicates", _with_repetitions, {"repeated message set aside": 2}, {}),
    "long lives": ("repair_ttl", _with_long_lives, {"life made shorter": 1}, {}),
    "messages out of place": ("repair_state", _that_says(head=1_004, last=1_006), STATE, {}),
    "wrong counts": ("repair_state", _that_says(bound=1, others=5, largest=3, earliest=2**50), STATE, {}),
    "counter behind": ("repair_counter", _that_says(ids=3, free=3), STATE, {}),
    "ids in use": ("repair_counter", _that_says(ids=65_535, free=65_540), STATE, {}),
    "no state": ("repair_state", _without_state, STATE, {}),
    "unreadable state": ("repair_state", _with_unreadable_state, STATE, {}),
}
"""What is wrong with a packed session -> remedy, how it comes about, effects, parameters."""


@pytest.mark.parametrize(("fault", "client_id"), in_turn(OF_PACKED, [C, "}brace"]))
def test_fault_of_a_packed_session_is_mended(bench: Bench, fault: str, client_id: str) -> None:
    remedy, plant, effects, parameters = OF_PACKED[fault]
    plant(PackedQueue(client=bench.client, client_id=client_id))
    bench.spoilt = client_id

    bench.mends(remedy, effects, without_undo=not job_of(remedy).undoes, **parameters)

    if job_of(remedy).undoes:
        bench.apply(bench.plan(remedy, **parameters))
    assert faults(profiled(bench.client)[client_id]).keys() <= {"serial_gaps"}
    # A broker goes on with it.
    store = RedisSessionStore(bench.client, layout=Layout.PACKED)
    before = store.inspect(client_id).messages
    (report,) = store.save_messages([SessionSave(client_id=client_id, messages=(_message("t"), _message("t")))])
    page = store.fetch_pending(client_id)
    assert len(page.messages) == before + 2
    assert len({each.packet_id for each in page.messages}) == before + 2
    assert tuple(each.packet_id for each in page.messages[-2:]) == report.packet_ids


@pytest.mark.parametrize("remedy", ["reorder_from_source", "rekey_clients", "replay_quarantined", "unlink_orphans"])
def test_remedy_that_makes_no_sense_for_packed_sessions_says_so(
    bench: Bench, remedy: str, source: postgres.Connection
) -> None:
    PackedQueue(client=bench.client, client_id=C).fill()

    plan = bench.plan(remedy, C, source=source)

    (refusal,) = plan.refusals
    assert f"it is packed, for which {remedy} makes no sense: " in refusal


def test_packed_session_that_changed_since_the_plan_is_left_alone(bench: Bench) -> None:
    queue = PackedQueue(client=bench.client, client_id=C)
    _with_odd_records(queue)
    plan = bench.plan("quarantine_messages", C)
    bench.any.hset(queue.key, "owner", "postgres")
    queue.say(guarded=1)

    report = bench.apply(plan, C)

    assert report.done == {}
    assert report.refusals == {"the session belongs to the other store: queuekeeper online catch-up mends its copy": 1}


@pytest.mark.parametrize("text", [None, b"rubbish", b"\x7f\xf8" + b"\0" * 134])
@pytest.mark.parametrize("fault", ["over the limit", "odd records", "repetitions", "long lives"])
def test_packed_session_whose_state_nobody_can_read_waits_for_its_repair_and_holds_up_no_other(
    bench: Bench, fault: str, text: bytes | None
) -> None:
    """No script would change its messages, so that a plan would promise what no run does."""
    remedy, plant, effects, parameters = OF_PACKED[fault]
    for client_id in (C, "other"):
        plant(PackedQueue(client=bench.client, client_id=client_id))
    spoilt = PackedQueue(client=bench.client, client_id=C)
    bench.any.hdel(spoilt.key, "s")
    if text is not None:
        bench.any.hset(spoilt.key, "s", text)
        with pytest.raises(RefusedError, match="cannot be read: queuekeeper repair repair_state works it out again"):
            RedisSessionStore(bench.client, layout=Layout.PACKED).fetch_pending(C)

    plan = bench.plan(remedy, C, "other", **parameters)
    assert plan.effects == effects
    refused = {"it has messages and no state that can be read: run repair_state first": 1}
    assert plan.refusals == refused
    report = bench.apply(plan, C, "other")
    assert (report.done, report.changed) == (effects, 0)

    assert bench.apply(bench.plan("repair_state", C), C).done == STATE
    plan = bench.plan(remedy, C, "other", **parameters)
    assert not plan.refusals
    report = bench.apply(plan, C, "other")
    assert (report.done, report.changed) == (plan.effects, 0) != ({}, 0)


def test_packed_session_whose_state_counts_wrongly_is_trimmed_once_it_is_mended(bench: Bench) -> None:
    queue = PackedQueue(client=bench.client, client_id=C)
    _with_lives_over(queue)
    queue.say(others=4)

    assert bench.plan("trim_dead_first", C, limit=5).refusals == {
        "its state counts its messages wrongly: run repair_state first": 1
    }

    bench.apply(bench.plan("repair_state", C), C)
    plan = bench.plan("trim_dead_first", C, limit=5)
    assert bench.apply(plan, C).done == plan.effects == {"expired message removed": 2, "message trimmed": 3}


def test_repetition_of_a_packed_session_that_is_received_after_it_was_judged_stays(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = PackedQueue(client=bench.client, client_id=C)
    time_ms = system_clock()
    for serial in (1, 2):
        queue.put(serial, serial, topic="t", time_ms=time_ms, qos=2, payload=b"")
    queue.settle(ids=2)
    plan = bench.plan("remove_duplicates", C)
    assert plan.effects == {"repeated message set aside": 1}
    remedy: Any = job_of("remove_duplicates")
    part = remedy.packed
    find = part.look

    def found_before_a_pubrec(*arguments: Any) -> Any:
        effects = find(*arguments)
        store = RedisSessionStore(bench.client, layout=Layout.PACKED)
        assert store.mark_released(C, packet_id=2, serial=2) == "released"
        return effects

    monkeypatch.setattr(part, "look", found_before_a_pubrec)

    assert bench.apply(plan, C).done == {}
    page = RedisSessionStore(bench.client, layout=Layout.PACKED).fetch_pending(C)
    assert [(each.packet_id, each.packet_type) for each in page.messages] == [(1, "PUBLISH"), (2, "PUBREL")]


# Counter.


def test_counter_that_is_behind_moves_forward(bench: Bench) -> None:
    bench.save()
    bench.any.set(session_keys(C).last_packet_id, 2)

    bench.mends("repair_counter", {"counter moved forward": 1}, without_undo=True)


def test_counter_is_moved_round_the_end_of_the_packet_ids(bench: Bench) -> None:
    keys = session_keys(C)
    bench.any.set(keys.last_packet_id, 65_530)
    bench.save()
    bench.any.set(keys.last_packet_id, 65_533)

    report = bench.apply(bench.plan("repair_counter"))

    assert report.done == {"counter moved forward": 1}
    assert bench.any.get(keys.last_packet_id) == b"1"


@pytest.mark.parametrize("text", [None, "", "0", "abc", "70000", b"\xff\xfe"])
def test_counter_that_is_no_packet_id_is_set(bench: Bench, text: str | bytes | None) -> None:
    bench.save()
    key = session_keys(C).last_packet_id
    bench.any.delete(key)
    if text is not None:
        bench.any.set(key, text)

    report = bench.apply(bench.plan("repair_counter"))

    assert report.done == {"counter set where there was none": 1}
    assert bench.any.get(key) == b"6"
    assert bench.plan("repair_counter").is_empty


def test_counter_of_a_broker_passes_over_the_packet_ids_of_waiting_messages(bench: Bench) -> None:
    bench.save()
    bench.any.delete(session_keys(C).session)
    # The broker has come round: the newest message is far behind, and 3 and 4 wait where it gives out next.
    bench.any.zrem(session_keys(C).messages, bench.payload(5), bench.payload(6))
    bench.any.zadd(session_keys(C).messages, {bench.payload(60_000): 9})
    bench.any.set(session_keys(C).last_packet_id, 2)

    assert bench.apply(bench.plan("repair_counter")).done == {"counter moved forward": 1}
    assert bench.any.get(session_keys(C).last_packet_id) == b"4"
    assert bench.plan("repair_counter").is_empty


def test_counter_never_goes_back(bench: Bench) -> None:
    bench.save()
    bench.any.set(session_keys(C).last_packet_id, 30_000)
    assert bench.plan("repair_counter").is_empty


def test_counter_that_moved_after_the_plan_is_left_alone(bench: Bench) -> None:
    bench.save()
    key = session_keys(C).last_packet_id
    bench.any.set(key, 2)
    plan = bench.plan("repair_counter")
    bench.any.set(key, 9)

    assert not bench.apply(plan).done
    assert bench.any.get(key) == b"9"


def test_counter_does_not_go_back_onto_waiting_messages(bench: Bench) -> None:
    keys = session_keys(C)
    bench.any.set(keys.last_packet_id, 10)
    bench.save(count=10)
    bench.any.set(keys.last_packet_id, 10)
    bench.any.delete(keys.session)
    kept = bench.contents()[bench.payload(11)]

    assert "There is none" in bench.plan("repair_counter").undo
    assert bench.apply(bench.plan("repair_counter")).undo_file == ""
    # As an earlier release has left it.
    effect = {"kind": "counter moved forward", "packet_id": 20, "before": "10", "after": 20}
    header = {"format": "queuekeeper-undo-1", "kind": "repair_counter", "parameters": {}}
    lines = [json.dumps(line) for line in (header, {"client_id": C, "effect": effect})]
    bench.undo_path("repair_counter").write_text("\n".join(lines) + "\n", "utf-8")
    with pytest.raises(UsageError, match="The remedy repair_counter has no undo"):
        bench.undo("repair_counter")

    assert Broker(bench.client, C).add("t") == 21
    assert bench.contents()[bench.payload(11)] == kept


def test_text_in_place_of_a_counter_is_not_shown(bench: Bench) -> None:
    bench.save()
    bench.any.set(session_keys(C).last_packet_id, "a secret")

    record = bench.plan("repair_counter").as_record()

    assert "secret" not in json.dumps(record)
    assert record["examples"][0]["before"] == "no number"


# Lives.


def test_lives_are_given_and_shortened_but_never_made_longer(bench: Bench) -> None:
    bench.save()
    bench.any.persist(bench.payload(1))
    bench.any.pexpireat(bench.payload(2), bench.now_ms + 50 * HOUR_MS)
    bench.any.pexpireat(bench.payload(3), bench.now_ms + 60_000)

    bench.mends("repair_ttl", {"life given where there was no end": 1, "life made shorter": 1})

    bench.apply(bench.plan("repair_ttl"))
    assert bench.any.pexpiretime(bench.payload(1)) == bench.now_ms + HOUR_MS
    assert bench.any.pexpiretime(bench.payload(2)) == bench.now_ms + 1 + HOUR_MS
    assert bench.any.pexpiretime(bench.payload(3)) == bench.now_ms + 60_000


def test_message_without_expiry_gets_the_default_life_and_one_with_a_long_expiry_keeps_it(bench: Bench) -> None:
    bench.save(life_s=None, count=1)
    bench.save(life_s=30 * 86_400, count=1)
    bench.any.persist(bench.payload(1))

    bench.apply(bench.plan("repair_ttl", default_ttl_s=86_400))

    assert bench.any.pexpiretime(bench.payload(1)) == bench.now_ms + 86_400_000
    assert bench.any.pexpiretime(bench.payload(2)) == bench.now_ms + 30 * 86_400_000


def test_message_whose_life_is_over_stays_for_the_time_of_grace(bench: Bench) -> None:
    bench.save(count=1)
    record = json.loads(bench.any.get(bench.payload(1)))
    bench.any.set(bench.payload(1), json.dumps({**record, "time": bench.now_ms - 50 * HOUR_MS}))

    before_ms = system_clock()
    plan = bench.plan("repair_ttl", grace_s=300)
    bench.apply(plan)

    assert before_ms + 300_000 <= bench.any.pexpiretime(bench.payload(1)) <= system_clock() + 300_000
    assert bench.plan("repair_ttl", grace_s=300).is_empty
    assert bench.undo("repair_ttl").restored == 1
    assert bench.any.pexpiretime(bench.payload(1)) == -1


def test_exchange_from_which_the_broker_took_the_expiry_ends_again(bench: Bench) -> None:
    broker = Broker(bench.client, C)
    before_ms = system_clock()
    packet_id = broker.add("t", life_s=3_600)
    broker.received(packet_id)
    assert bench.any.pexpiretime(bench.payload(packet_id)) == -1

    bench.apply(bench.plan("repair_ttl"))

    assert before_ms + 3_600_000 <= bench.any.pexpiretime(bench.payload(packet_id)) <= system_clock() + 3_600_000
    assert [message["packetType"] for message in broker.fetch()] == ["PUBREL"]
    assert bench.plan("repair_ttl").is_empty


def test_sweep_hears_of_lives_that_end_earlier_now(bench: Bench) -> None:
    bench.save(life_s=86_400)
    record = json.loads(bench.any.get(bench.payload(1)))
    bench.any.set(bench.payload(1), json.dumps({**record, "msgExpiryInterval": 3_600}))

    bench.apply(bench.plan("repair_ttl"))

    assert int(bench.any.hget(session_keys(C).session, "earliest_expiry_ms")) == bench.now_ms + HOUR_MS


# Order.


def rows(source: postgres.Connection, messages: Sequence[tuple[int, int, int]], client_id: str = C) -> None:
    """Fill in the source, given as serial, packet id and time."""
    for serial, packet_id, time_ms in messages:
        source.execute(
            "INSERT INTO device_publish_msg"
            " (client_id, serial_number, topic, time, packet_id, packet_type, qos, payload, retain)"
            " VALUES (%s, %s, 't', %s, %s, 'PUBLISH', 1, '', false)",
            (client_id, serial, time_ms, packet_id),
        )


def order(bench: Bench) -> list[int]:
    return [int(member.rpartition(b"_")[2]) for member in bench.any.zrange(session_keys(C).messages, 0, -1)]


def test_messages_go_back_to_the_order_of_the_source_and_later_ones_behind_them(
    bench: Bench, source: postgres.Connection
) -> None:
    bench.save(count=5)
    rows(source, [(100 + n, n, bench.now_ms + n - 1) for n in range(1, 4)])
    # As a migration that is run a second time leaves it: what came live is in front.
    for packet_id, score in ((4, 1), (5, 2), (1, 7), (2, 7), (3, 6)):
        bench.any.zadd(session_keys(C).messages, {bench.payload(packet_id): score})
    spoilt = order(bench)

    plan = bench.plan("reorder_from_source", C, source=source)
    report = bench.apply(plan, C, source=source)

    assert plan.effects == report.done == {"message moved to its place": 5}
    assert order(bench) == [1, 2, 3, 4, 5]
    assert [int(score) for _, score in bench.any.zrange(session_keys(C).messages, 0, -1, withscores=True)] == [
        101, 102, 103, 104, 105,
    ]  # fmt: skip
    assert bench.plan("reorder_from_source", C, source=source).is_empty
    bench.save(count=1)
    assert order(bench) == [1, 2, 3, 4, 5, 6], "what comes now comes behind"
    bench.store.ack(C, [])
    assert bench.undo("reorder_from_source").restored == 5
    assert [packet_id for packet_id in order(bench) if packet_id != 6] == spoilt


def test_messages_go_back_to_their_places_though_the_serial_of_delivery_is_none(
    bench: Bench, source: postgres.Connection
) -> None:
    bench.save(count=2)
    rows(source, [(102, 1, bench.now_ms), (101, 2, bench.now_ms + 1)])
    bench.any.hset(session_keys(C).session, "delivered_serial", "abc")

    bench.apply(bench.plan("reorder_from_source", C, source=source), C, source=source)

    assert order(bench) == [2, 1]
    # Nobody knows which were sent before, so that all may have been.
    assert [each.redelivery for each in bench.store.fetch_pending(C).messages] == [True, True]


@pytest.mark.parametrize("newer", [3, 1_000_003])
def test_message_that_comes_during_a_reordering_stays_the_newest(
    bench: Bench, source: postgres.Connection, newer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.save(count=2)
    rows(source, [(1_000_002, 1, bench.now_ms), (1_000_001, 2, bench.now_ms + 1)])
    plan = bench.plan("reorder_from_source", C, source=source)
    remedy: Any = job_of("reorder_from_source")
    find = remedy.look

    def found_before_a_save(*arguments: Any) -> Any:
        effects = find(*arguments)
        bench.any.zadd(session_keys(C).messages, {bench.payload(3): newer})
        return effects

    monkeypatch.setattr(remedy, "look", found_before_a_save)
    report = bench.apply(plan, C, source=source)

    assert (report.done, report.changed) == ({}, 2)
    assert order(bench) == [1, 2, 3]


def test_queue_that_changes_while_it_is_read_is_not_reordered(
    bench: Bench, source: postgres.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.save(count=3)
    rows(source, [(10 - n, n, bench.now_ms + n - 1) for n in range(1, 4)])
    read = Sessions.references
    monkeypatch.setattr(Sessions, "references", lambda sessions, queue: read(sessions, queue)[1:])

    plan = bench.plan("reorder_from_source", C, source=source)

    assert plan.refusals == {"it changed while it was read: try again": 1}


def test_long_queue_is_reordered_in_steps_and_goes_back_though_messages_were_acknowledged(
    bench: Bench, source: postgres.Connection
) -> None:
    bench.save(count=450)
    rows(source, [(1_000 - n, n, bench.now_ms + n - 1) for n in range(1, 451)])

    report = bench.apply(bench.plan("reorder_from_source", C, source=source), C, source=source)

    assert report.done == {"message moved to its place": 450}
    assert order(bench) == list(range(450, 0, -1))
    bench.store.ack(C, [Ack(packet_id=packet_id) for packet_id in (1, 100, 300)])
    undone = bench.undo("reorder_from_source")
    assert undone.left == {"the message has gone or moved since": 3}
    assert order(bench) == [n for n in range(1, 451) if n not in {1, 100, 300}]


def test_newer_message_keeps_a_reordering_that_would_put_it_in_front(bench: Bench, source: postgres.Connection) -> None:
    bench.save(count=2)
    bench.any.zadd(session_keys(C).messages, {bench.payload(1): 2_000, bench.payload(2): 1_000})
    bench.any.delete(session_keys(C).session)
    rows(source, [(n, n, bench.now_ms + n - 1) for n in (1, 2)])
    bench.apply(bench.plan("reorder_from_source", C, source=source), C, source=source)
    bench.save(count=1)
    assert order(bench) == [1, 2, 3]

    assert bench.undo("reorder_from_source").left == {"the message has gone or moved since": 2}
    assert order(bench) == [1, 2, 3]


@pytest.mark.parametrize(
    ("source_rows", "reason"),
    [
        ([], "the source has no rows of this client"),
        ([(101, 1, 5)], "none of its messages has a row in the source"),
        ([(101, 6, 0)], "messages without a row in the source are older than others that have one"),
    ],
)
def test_queue_of_which_the_source_says_too_little_is_refused(
    bench: Bench, source: postgres.Connection, source_rows: list[tuple[int, int, int]], reason: str
) -> None:
    bench.save()
    rows(source, [(serial, packet_id, time or bench.now_ms + 5) for serial, packet_id, time in source_rows])

    plan = bench.plan("reorder_from_source", C, source=source)

    assert plan.refusals == {reason: 1}
    assert plan.is_empty


def test_reorder_without_a_source_is_refused_before_anything_is_done(bench: Bench) -> None:
    with pytest.raises(UsageError, match="reorder_from_source needs the PostgreSQL database"):
        bench.plan("reorder_from_source")


# Orphans.


def test_orphans_are_set_aside_for_a_while(bench: Bench) -> None:
    bench.now_ms -= 600_001
    bench.save()
    bench.any.zrem(session_keys(C).messages, bench.payload(2), bench.payload(5))
    bench.any.persist(bench.payload(5))

    bench.mends("unlink_orphans", {"orphan set aside": 2}, keep_s=600)

    before_ms = system_clock()
    bench.apply(bench.plan("unlink_orphans", keep_s=600))
    assert before_ms + 600_000 <= bench.any.pexpiretime(orphan_key(C, 5)) <= system_clock() + 600_000
    assert bench.any.exists(bench.payload(2)) == 0


def test_walk_over_all_keys_counts_each_page_and_looks_at_fewer_keys_while_the_server_struggles(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(400):
        bench.any.set(bench.payload(30_000 + number), "named nowhere else")
    amounts: list[float] = []
    walks: list[tuple[int, list[float]]] = []
    walk = Sessions.numbered_keys

    def scans() -> int:
        return sum(node.info("commandstats").get("cmdstat_scan", {}).get("calls", 0) for _, node in nodes(bench.client))

    def watched(sessions: Sessions, queues: Sequence[Any], kind: str) -> dict[str, list[int]]:
        before = scans()
        amounts.clear()
        found = walk(sessions, queues, kind)
        walks.append((scans() - before, list(amounts)))
        return found

    monkeypatch.setattr(World, "size", lambda world, full: min(full, 20))
    monkeypatch.setattr(World, "pace", lambda world, amount: amounts.append(amount))
    monkeypatch.setattr(Sessions, "numbered_keys", watched)
    bench.plan("unlink_orphans")

    ((calls, told),) = walks
    assert len(told) == calls >= 10
    assert sum(told) >= calls + 400


def test_record_whose_reference_may_be_about_to_come_is_no_orphan(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.now_ms -= 700_000
    bench.save()
    bench.any.zrem(session_keys(C).messages, bench.payload(2), bench.payload(5))
    fresh = json.loads(bench.any.get(bench.payload(2))) | {"time": system_clock()}
    bench.any.set(bench.payload(2), json.dumps(fresh), keepttl=True)
    plan = bench.plan("unlink_orphans")
    assert plan.effects == {"orphan set aside": 1}
    remedy: Any = job_of("unlink_orphans")
    find = remedy.look

    def found_before_a_save(*arguments: Any) -> Any:
        effects = find(*arguments)
        bench.any.set(bench.payload(5), json.dumps(fresh | {"packetId": 5}), keepttl=True)
        return effects

    monkeypatch.setattr(remedy, "look", found_before_a_save)

    assert (bench.apply(plan).done, bench.any.exists(bench.payload(5))) == ({}, 1)


def test_orphan_that_has_a_reference_again_is_left_alone(bench: Bench) -> None:
    bench.now_ms -= 700_000
    bench.save()
    member = bench.payload(2)
    bench.any.zrem(session_keys(C).messages, member)
    plan = bench.plan("unlink_orphans")
    bench.any.zadd(session_keys(C).messages, {member: 2})

    assert not bench.apply(plan).done
    assert bench.any.exists(member) == 1


# Duplicates.


def duplicate(bench: Bench, packet_id: int, of: int) -> None:
    """Give a message the content of another one."""
    record = json.loads(bench.any.get(bench.payload(of)))
    bench.any.set(bench.payload(packet_id), json.dumps({**record, "packetId": packet_id}), keepttl=True)


def test_of_equal_messages_the_oldest_stays(bench: Bench) -> None:
    bench.save()
    duplicate(bench, 3, of=1)
    duplicate(bench, 6, of=1)

    bench.mends("remove_duplicates", {"repeated message set aside": 2})

    bench.apply(bench.plan("remove_duplicates"))
    assert order(bench) == [1, 2, 4, 5]
    assert bench.any.exists(quarantined_key(C, 3)) == 1
    assert bench.plan("replay_quarantined").is_empty, "a repetition does not come back by a replay"


def test_repetition_stays_where_the_oldest_expires_before(bench: Bench) -> None:
    bench.save()
    duplicate(bench, 3, of=1)
    duplicate(bench, 6, of=1)
    plan = bench.plan("remove_duplicates")
    bench.any.persist(bench.payload(3))
    bench.any.pexpireat(bench.payload(6), bench.now_ms + HOUR_MS + 50_000)
    assert bench.plan("remove_duplicates").effects == {"repeated message set aside": 1}

    assert bench.apply(plan).done == {"repeated message set aside": 1}
    assert order(bench) == [1, 2, 3, 4, 5]


def test_repetition_that_is_in_the_midst_of_an_exchange_stays(bench: Bench) -> None:
    bench.save()
    duplicate(bench, 3, of=1)
    plan = bench.plan("remove_duplicates")
    bench.store.mark_released(C, packet_id=3)

    assert bench.apply(plan).done == {}
    assert order(bench) == [1, 2, 3, 4, 5, 6]


# Quarantine.


def test_records_that_do_not_belong_are_set_aside(bench: Bench) -> None:
    bench.save()
    messages = session_keys(C).messages
    good = json.loads(bench.any.get(bench.payload(5)))
    bench.any.set(bench.payload(1), "{broken", keepttl=True)
    bench.any.delete(bench.payload(2))
    bench.any.rpush(bench.payload(2), "a list")
    bench.any.set(bench.payload(3), json.dumps({**good, "clientId": "another", "packetId": 3}), keepttl=True)
    bench.any.set(bench.payload(4), json.dumps({**good, "packetId": 9}), keepttl=True)
    bench.any.set(bench.payload(70_000), json.dumps({**good, "packetId": 70_000}))
    bench.any.zadd(messages, {bench.payload(70_000): 17})

    bench.mends(
        "quarantine_messages",
        {
            "record of another client or packet id set aside": 2,
            "record that nobody can read set aside": 2,
            "record with a packet id out of range set aside": 1,
        },
    )

    bench.apply(bench.plan("quarantine_messages"))
    assert order(bench) == [5, 6]
    assert [message.packet_id for message in bench.store.fetch_pending(C).messages] == [5, 6]
    assert bench.any.exists(quarantined_key(C, 17)) == 1


def test_message_that_came_in_place_of_a_broken_record_stays(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.save()
    good = bench.any.get(bench.payload(1))
    bench.any.set(bench.payload(1), "{broken", keepttl=True)
    plan = bench.plan("quarantine_messages")
    remedy: Any = job_of("quarantine_messages")
    find = remedy.look

    def found_before_a_purge(*arguments: Any) -> Any:
        effects = find(*arguments)
        bench.any.set(bench.payload(1), good, keepttl=True)
        return effects

    monkeypatch.setattr(remedy, "look", found_before_a_purge)

    assert bench.apply(plan).done == {}
    assert order(bench) == [1, 2, 3, 4, 5, 6]


def test_records_that_share_a_serial_are_both_kept(bench: Bench) -> None:
    bench.save()
    bench.any.zadd(session_keys(C).messages, {bench.payload(2): 1})
    for packet_id in (1, 2):
        bench.any.set(bench.payload(packet_id), f"{{broken {packet_id}", keepttl=True)

    assert bench.apply(bench.plan("quarantine_messages")).done == {"record that nobody can read set aside": 1}
    assert bench.any.get(quarantined_key(C, 1)) == b"{broken 1"
    assert bench.any.get(bench.payload(2)) == b"{broken 2"


def test_reference_that_names_no_key_of_its_session_goes_for_good(bench: Bench) -> None:
    bench.save()
    bench.any.zadd(session_keys(C).messages, {b"{other}_messages_1": 0, b"\xff\xfe": 3})

    plan = bench.plan("quarantine_messages")
    assert "other" not in json.dumps(plan.as_record())
    assert bench.apply(plan).done == {"reference that names no key of its session removed": 2}
    assert order(bench) == [1, 2, 3, 4, 5, 6]
    assert bench.undo("quarantine_messages").left == {"it named nothing": 2}


def test_record_that_can_be_read_again_comes_back_to_its_place(bench: Bench) -> None:
    bench.save()
    good = bench.any.get(bench.payload(3))
    for packet_id in (2, 3, 4):
        bench.any.set(bench.payload(packet_id), "{broken", keepttl=True)
    bench.apply(bench.plan("quarantine_messages"))
    assert bench.plan("replay_quarantined").is_empty, "they cannot be read yet"
    bench.any.set(quarantined_key(C, 3), good, keepttl=True)
    bench.any.set(quarantined_key(C, 4), good, keepttl=True)

    bench.mends("replay_quarantined", {"record back in its queue": 1})

    bench.apply(bench.plan("replay_quarantined"))
    assert order(bench) == [1, 3, 5, 6]


def test_record_of_a_session_that_was_packed_once_comes_back_though_nothing_else_waits(bench: Bench) -> None:
    bench.save(count=2)
    RedisSessionStore(bench.client, layout=Layout.PACKED).set_owner(C, epoch=3, owner="postgres")
    good = bench.any.get(bench.payload(2))
    bench.any.set(bench.payload(2), "{broken", keepttl=True)
    assert bench.store.fetch_pending(C).unreadable == 1
    bench.store.ack(C, [Ack(packet_id=1)])
    bench.any.set(quarantined_key(C, 2), good, keepttl=True)

    plan = bench.plan("replay_quarantined")

    assert plan.refusals == {}
    assert bench.apply(plan).done == plan.effects == {"record back in its queue": 1}
    assert order(bench) == [2]


def test_record_whose_place_is_taken_stays_in_quarantine(bench: Bench) -> None:
    bench.save()
    good = bench.any.get(bench.payload(3))
    bench.any.set(bench.payload(3), "{broken", keepttl=True)
    bench.apply(bench.plan("quarantine_messages"))
    bench.any.set(quarantined_key(C, 3), good, keepttl=True)
    plan = bench.plan("replay_quarantined")
    bench.any.set(bench.payload(3), "new")

    assert bench.apply(plan).done == {}
    assert bench.plan("replay_quarantined").is_empty
    assert bench.any.get(quarantined_key(C, 3)) == good


# Limit.


def test_dead_references_go_first_and_then_the_oldest(bench: Bench) -> None:
    bench.save(count=10)
    bench.any.delete(bench.payload(9), bench.payload(10))

    bench.mends("trim_dead_first", {"dead reference removed": 2, "message trimmed": 3}, without_undo=True, limit=5)

    assert order(bench) == [4, 5, 6, 7, 8]
    assert bench.any.exists(bench.payload(1)) == 0


def test_dead_references_alone_can_make_room(bench: Bench) -> None:
    bench.save(count=10)
    bench.any.delete(*(bench.payload(n) for n in range(5, 11)))

    assert bench.apply(bench.plan("trim_dead_first", limit=5)).done == {"dead reference removed": 6}
    assert order(bench) == [1, 2, 3, 4]


def test_queue_that_was_emptied_after_the_plan_loses_nothing_more(bench: Bench) -> None:
    bench.save(count=10)
    plan = bench.plan("trim_dead_first", limit=5)
    bench.any.zrem(session_keys(C).messages, *(bench.payload(n) for n in range(1, 6)))

    assert bench.apply(plan).done == {}
    assert order(bench) == [6, 7, 8, 9, 10]


# Tags.


def as_earlier_builds_wrote(bench: Bench, client_id: str, count: int = 230) -> dict[int, tuple[bytes, int]]:
    """Plant a session under the tag that builds before release 0.1 gave it; return its messages by packet id."""
    stem = f"{{{earlier_tag(client_id)}}}"
    planted: dict[int, tuple[bytes, int]] = {}
    pipe = bench.any.pipeline(transaction=False)
    for n in range(1, count + 1):
        planted[n] = (record_of(bench, client_id, n), -1 if n == 2 else bench.now_ms + HOUR_MS + n)
        pipe.set(f"{stem}_messages_{n}", planted[n][0], pxat=None if n == 2 else planted[n][1])
        pipe.zadd(f"{stem}_messages", {f"{stem}_messages_{n}": 1_000 + n})
    pipe.set(f"{stem}_last_packet_id", count)
    pipe.hset(f"{stem}_session", mapping={"last_serial": 1_000 + count, "delivered_serial": 1_003})
    pipe.execute()
    return planted


def record_of(bench: Bench, client_id: str, packet_id: int) -> bytes:
    record = {
        "clientId": client_id, "topicName": "t", "time": bench.now_ms, "qos": 1, "packetId": packet_id,
        "packetType": "PUBLISH", "payload": "AAAA", "retained": False,
    }  # fmt: skip
    return json.dumps(record).encode()


@pytest.mark.parametrize(
    ("client_id", "named_by_its_tag"), in_turn(["%percent", "%7Dx", "%", "%%", "}brace", "}"], [False, True])
)
def test_session_of_an_earlier_build_moves_to_the_keys_that_the_broker_reads(
    bench: Bench, client_id: str, named_by_its_tag: bool
) -> None:
    planted = as_earlier_builds_wrote(bench, client_id)
    tag = earlier_tag(client_id)
    bench.any.delete(f"{{{tag}}}_messages_7")
    del planted[7]
    ids = (str(tag) if named_by_its_tag else client_id, C)
    before = bench.contents()

    plan = bench.plan("rekey_clients", *ids)
    if is_scattered(client_id) and is_cluster(bench.client):
        assert plan.refusals == {"a cluster cannot serve its own keys: its id begins with a closing brace": 1}
        assert bench.contents() == before
        return
    assert plan.effects == {"counter moved": 1, "dead reference left behind": 1, "message moved": 229}
    assert bench.contents() == before, "a plan writes nothing"
    report = bench.apply(plan, *ids)

    assert report.done == plan.effects
    found = bench.contents()
    assert [key for key in found if key.startswith(f"{{{tag}}}_")] == []
    assert {key: found[key] for key in found if key.startswith(f"{{{client_id}}}_messages_")} == {
        f"{{{client_id}}}_messages_{packet_id}": stored for packet_id, stored in planted.items()
    }
    page = bench.store.inspect(client_id, limit=1_000).page
    assert [(message.packet_id, message.serial) for message in page] == [(n, 1_000 + n) for n in planted]
    assert bench.store.get_last_packet_id(client_id) == 230
    pending = bench.store.fetch_pending(client_id, limit=5).messages
    assert [message.redelivery for message in pending] == [True, True, True, False, False], (
        "what was delivered is known"
    )
    assert bench.plan("rekey_clients", *ids).is_empty
    (saved,) = bench.store.save_messages(
        [SessionSave(client_id=client_id, messages=(NewMessage(topic="t", payload=b"", qos=1, time_ms=bench.now_ms),))]
    )
    assert saved.packet_ids == (231,)
    assert [message["packetId"] for message in Broker(bench.client, client_id).fetch()] == [*planted, 231]


def test_batch_that_was_saved_before_the_move_is_not_saved_again(bench: Bench) -> None:
    """The marks of its producers come with a session."""
    batch = (NewMessage(topic="t", payload=b"once", qos=1, time_ms=bench.now_ms),)
    bench.store.save_messages([SessionSave(client_id="%x", messages=batch, source="devices-0", offset=17)])
    for key, (value, _) in bench.contents().items():
        if key.startswith("{%x}_"):
            moved = key.replace("{%x}", "{%25x}")
            if isinstance(value, list):
                bench.any.zadd(moved, {member.replace(b"{%x}", b"{%25x}"): score for member, score in value})
            elif isinstance(value, dict):
                bench.any.hset(moved, mapping=value)
            else:
                bench.any.set(moved, value)
            bench.any.delete(key)

    bench.apply(bench.plan("rekey_clients", "%x"), "%x")
    (again,) = bench.store.save_messages([SessionSave(client_id="%x", messages=batch, source="devices-0", offset=17)])

    assert again.packet_ids == (1,)
    assert bench.store.inspect("%x").messages == 1


def test_interrupted_move_goes_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    client_id = "%percent"
    as_earlier_builds_wrote(bench, client_id)
    plan = bench.plan("rekey_clients", client_id)
    calls = 0

    def interrupted(pace: Any, keys: int) -> None:
        nonlocal calls
        calls += keys
        if calls > 900:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Pace, "__call__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bench.apply(plan, client_id)
    assert bench.store.inspect(client_id).messages > 0
    rest = bench.plan("rekey_clients", client_id)
    bench.apply(rest, client_id)

    assert bench.store.inspect(client_id, limit=1).messages == 230
    assert [key for key in bench.contents() if key.startswith("{%25percent}_")] == []


def meddled(bench: Bench, monkeypatch: pytest.MonkeyPatch, copy: str, meddle: Callable[[], Any]) -> None:
    """Have something done when a copy has been written, before it is read back."""
    ask_each = Sessions.ask_each

    def between(sessions: Sessions, calls: Iterable[lua.Call]) -> Any:
        asked = list(calls)
        if asked and asked[0].script.name == "sessions/export_messages" and asked[0].keys[0] == copy:
            meddle()
        return ask_each(sessions, asked)

    monkeypatch.setattr(Sessions, "ask_each", between)


def test_original_that_is_rewritten_during_its_move_stays_with_its_reference(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_earlier_builds_wrote(bench, "%percent", 3)
    plan = bench.plan("rekey_clients", "%percent")

    def meddle() -> None:
        bench.any.set("{%25percent}_messages_1", "PUBREL by now")
        bench.any.delete("{%25percent}_messages_3")

    meddled(bench, monkeypatch, payload_key("%percent", 1), meddle)
    report = bench.apply(plan, "%percent")

    assert (report.done, report.changed) == ({"message moved": 2}, 2)
    found = bench.contents()
    assert found["{%25percent}_messages_1"][0] == b"PUBREL by now"
    assert found["{%25percent}_messages"][0] == [(b"{%25percent}_messages_1", 1_001.0)]
    assert found["{%25percent}_last_packet_id"][0] == b"3"


def test_copy_that_differs_stops_its_queue_only(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for client_id in ("%percent", "%other"):
        as_earlier_builds_wrote(bench, client_id, 3)
    plan = bench.plan("rekey_clients", "%percent", "%other")
    copy = payload_key("%percent", 1)
    meddled(bench, monkeypatch, copy, lambda: bench.any.set(copy, "another"))

    report = bench.apply(plan, "%percent", "%other")

    assert report.refusals == {"a copy differs from its original, which stays": 1}
    assert report.done == {"message moved": 3, "counter moved": 1}
    assert len([key for key in bench.contents() if key.startswith("{%25percent}_")]) == 6


def test_move_leaves_no_note_behind(bench: Bench) -> None:
    as_earlier_builds_wrote(bench, "%percent", 3)
    bench.apply(bench.plan("rekey_clients", "%percent"), "%percent")
    session = session_keys("%percent").session
    assert set(bench.any.hgetall(session)) == {b"last_serial", b"delivered_serial", b"delivered_at"}
    # A kill right before the end.
    bench.any.hset(session, "rekeyed", 1)

    report = bench.apply(bench.plan("rekey_clients", "%percent"), "%percent")

    assert report.done == {"note of a move removed": 1}
    assert set(bench.any.hgetall(session)) == {b"last_serial", b"delivered_serial", b"delivered_at"}
    assert bench.plan("rekey_clients", "%percent").is_empty


def test_session_that_exists_under_both_tags_is_left_to_a_person(bench: Bench) -> None:
    as_earlier_builds_wrote(bench, "%percent", 3)
    bench.save("%percent", 2)
    before = bench.contents()

    plan = bench.plan("rekey_clients", "%percent")
    bench.apply(plan, "%percent")

    assert plan.refusals == {"the session exists and was not moved here": 1}
    assert bench.contents() == before


@pytest.mark.parametrize("name", ["%x", "%25x"])
def test_messages_of_a_client_that_is_truly_called_like_the_tag_stay(bench: Bench, name: str) -> None:
    """Earlier builds stored messages of ``%x`` under the keys of TBMQ's client ``%25x``, between its own."""
    as_earlier_builds_wrote(bench, "%x", 4)
    broker = Broker(bench.client, "%25x")
    broker.add("its own")
    bench.any.set("{%25x}_messages_9", "broken")
    bench.any.zadd("{%25x}_messages", {"{%25x}_messages_9": 2_000})

    plan = bench.plan("rekey_clients", name)
    report = bench.apply(plan, name)

    assert plan.effects == report.done == {"counter copied, as another client shares it": 1, "message moved": 4}
    assert [message["packetId"] for message in Broker(bench.client, "%x").fetch()] == [1, 2, 3, 4]
    assert bench.any.zrange("{%25x}_messages", 0, -1) == [b"{%25x}_messages_5", b"{%25x}_messages_9"]
    assert bench.store.fetch_pending("%25x").messages[0].topic == "its own"
    assert (bench.store.get_last_packet_id("%x"), bench.store.get_last_packet_id("%25x")) == (5, 5)
    assert b"rekeyed" not in bench.any.hgetall("{%x}_session")
    assert bench.plan("rekey_clients", name).is_empty


def test_session_that_is_named_by_both_of_its_names_is_planned_once(bench: Bench) -> None:
    as_earlier_builds_wrote(bench, "%x", 210)

    plan = bench.plan("rekey_clients", "%x", "%25x")
    report = bench.apply(plan, "%x", "%25x")

    assert plan.effects == report.done == {"counter moved": 1, "message moved": 210}


def test_keys_that_no_message_claims_are_left_alone(bench: Bench) -> None:
    bench.any.set("{%25x}_last_packet_id", 7)
    bench.any.set("{%25y}_messages_1", "broken")
    bench.any.zadd("{%25y}_messages", {"{%25y}_messages_1": 1})
    before = bench.contents()

    plan = bench.plan("rekey_clients", "%x", "%y", "%25x", "%25y")

    assert plan.is_empty
    assert plan.refusals == {"no message tells whether the keys under its encoded id are its own": 2}
    assert bench.contents() == before


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"owner": "postgres"}, "the session belongs to the other store: queuekeeper online catch-up mends its copy"),
        ({"owner": "fenced"}, "the session is on its way to the other store"),
        ({"import": "3"}, "its import is not complete"),
        ({"mirror": "7"}, "its changes still go to the other store too: end the online migration first"),
    ],
)
def test_session_of_an_earlier_build_that_is_on_its_way_is_left_alone(
    bench: Bench, fields: dict[str, str], reason: str
) -> None:
    as_earlier_builds_wrote(bench, "%x", 3)
    bench.any.hset("{%25x}_session", mapping=fields)
    before = bench.contents()

    assert bench.plan("rekey_clients", "%x").refusals == {reason: 1}
    assert bench.contents() == before


def test_keys_of_another_client_are_not_taken_for_those_of_an_earlier_build(bench: Bench) -> None:
    bench.save("%25x", 3)
    before = bench.contents()

    plan = bench.plan("rekey_clients", "%x", "%25x", "a}b", C)

    assert plan.is_empty
    assert plan.refusals == {}
    assert bench.contents() == before


# All of them.


@pytest.mark.parametrize("remedy", REMEDY_NAMES)
def test_healthy_sessions_are_left_alone_whatever_their_ids(
    bench: Bench, source: postgres.Connection, remedy: str
) -> None:
    client_ids = [each for each in CLIENT_IDS if not (is_scattered(each) and is_cluster(bench.client))]
    for client_id in client_ids:
        bench.save(client_id)
        bench.store.mark_released(client_id, packet_id=2)
        rows(source, [(n, n, bench.now_ms + n - 1) for n in range(1, 7)], client_id)
    before = bench.contents()

    plan = bench.plan(remedy, *client_ids, "nobody", source=source)
    report = bench.apply(plan, *client_ids, "nobody", source=source)

    assert plan.is_empty
    assert plan.looked_at == len(client_ids) + 1
    assert set(plan.refusals) <= {"the source has no rows of this client"}
    assert report.done == {}
    assert bench.contents() == before


@pytest.mark.parametrize("remedy", REMEDY_NAMES)
def test_key_of_the_wrong_type_stops_its_queue_only(bench: Bench, source: postgres.Connection, remedy: str) -> None:
    bench.save()
    bench.any.delete(session_keys(C).messages)
    bench.any.set(session_keys(C).messages, "no set")
    bench.any.set("{%25x}_messages", "no set")

    plan = bench.plan(remedy, C, "%x", "healthy-1", source=source)

    reason = "a key of the session holds another Redis type"
    assert plan.refusals.get(reason) == 1


@pytest.mark.parametrize("remedy", [name for name in REMEDY_NAMES if name != "rekey_clients"])
def test_session_whose_import_is_not_complete_is_left_alone(
    bench: Bench, source: postgres.Connection, remedy: str
) -> None:
    bench.save()
    bench.any.hset(session_keys(C).session, "import", "3")

    assert bench.plan(remedy, source=source).refusals.get("its import is not complete") == 1


@pytest.mark.parametrize(
    ("owner", "reason"),
    [
        ("postgres", "the session belongs to the other store: queuekeeper online catch-up mends its copy"),
        ("fenced", "the session is on its way to the other store"),
    ],
)
@pytest.mark.parametrize("remedy", [name for name in REMEDY_NAMES if name != "rekey_clients"])
def test_session_of_postgres_is_left_alone(
    bench: Bench, source: postgres.Connection, remedy: str, owner: str, reason: str
) -> None:
    bench.save()
    bench.any.hset(session_keys(C).session, "owner", owner)

    assert bench.plan(remedy, source=source).refusals.get(reason) == 1


def test_no_more_is_done_in_a_queue_than_was_planned(bench: Bench) -> None:
    bench.save()
    bench.any.persist(bench.payload(1))
    plan = bench.plan("repair_ttl")
    bench.any.persist(bench.payload(2))

    report = bench.apply(plan)

    assert report.done == {"life given where there was no end": 1}
    assert report.not_planned == 1


@pytest.mark.parametrize("remedy", REMEDY_NAMES)
def test_user_with_the_rules_that_a_refusal_names_can_mend(
    bench: Bench, source: postgres.Connection, remedy: str
) -> None:
    bench.save()
    masters: list[Any] = [node for _, node in nodes(bench.client)]
    options = masters[0].connection_pool.connection_kwargs

    def allow(*rules: str) -> None:
        for node in masters:
            node.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">secret", *rules)

    def work() -> None:
        queues = named_queues([C], key=KEY)
        with connect(f"redis://limited:secret@{options['host']}:{options['port']}") as user:
            plan = plan_remedy(user, remedy=remedy, queues=queues, parameters=RemedyParameters(), source=source)
            apply_remedy(user, plan=plan, queues=queues, undo_directory=bench.folder, source=source)

    try:
        basic = [
            "+ping",
            "+info",
            "+evalsha",
            "+script|load",
            "+cluster|slots",
            "+cluster|shards",
            "+command",
            "+client",
        ]
        allow("~*", *basic, "+zrange")
        with pytest.raises(RefusedError, match=r"does not allow this user .*zcard.* on keys such as") as refused:
            work()
        allow(*str(refused.value).partition("ACL SETUSER <user> ")[2].split(), "+ping", "+client", "+cluster|shards")
        with pytest.raises(RefusedError, match=r"does not allow this user .* on keys such as") as refused:
            work()
        allow(*str(refused.value).partition("ACL SETUSER <user> ")[2].split(), "+ping", "+client", "+cluster|shards")
        work()
    finally:
        for node in masters:
            node.execute_command("ACL", "DELUSER", "limited")


def test_user_without_scripts_is_told_so(bench: Bench) -> None:
    masters: list[Any] = [node for _, node in nodes(bench.client)]
    for node in masters:
        node.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">secret", "~*", "+@all", "-evalsha")
    options = masters[0].connection_pool.connection_kwargs
    try:
        with (
            connect(f"redis://limited:secret@{options['host']}:{options['port']}") as user,
            pytest.raises(RefusedError, match=r"does not allow this user .*evalsha.* ACL SETUSER"),
        ):
            plan_remedy(user, remedy="repair_ttl", queues=(), parameters=RemedyParameters())
    finally:
        for node in masters:
            node.execute_command("ACL", "DELUSER", "limited")


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"limit": 0}, "limit is 0: it must be an integer from 1 to 65,535"),
        ({"default_ttl_s": 0}, "default_ttl_s is 0: it must be an integer from 1 to"),
        ({"keep_s": -1}, "keep_s is -1: it must be an integer from 1 to"),
        ({"grace_s": 0}, "grace_s is 0: it must be an integer from 1 to"),
        ({"key_prefix": "{a}"}, "it must be text of at most 200 characters without a brace"),
    ],
)
def test_parameter_that_makes_no_sense_is_refused(parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        RemedyParameters(**parameters)


def test_unknown_remedy_and_unfit_undo_file_are_refused(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no job 'magic': .* repair_counter, repair_state, repair_ttl"):
        bench.plan("magic")
    path = bench.undo_path("repair_ttl")
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        bench.undo("repair_ttl")
    path.write_text("{}\n", "utf-8")
    with pytest.raises(UsageError, match="is no undo file"):
        bench.undo("repair_ttl")


@pytest.mark.parametrize("remedy", ["repair_counter", "repair_ttl", "unlink_orphans", "quarantine_messages"])
def test_writer_that_is_at_work_loses_nothing(bench: Bench, remedy: str) -> None:
    bench.save(count=300)
    for packet_id in range(1, 301, 3):
        bench.any.persist(bench.payload(packet_id))
        bench.any.set(bench.payload(packet_id + 1), "{broken", keepttl=True)
        bench.any.zrem(session_keys(C).messages, bench.payload(packet_id + 2))
    stop = threading.Event()
    saved: list[int] = []

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            message = NewMessage(topic="live", payload=b"%d" % number, qos=1, time_ms=system_clock())
            (report,) = bench.store.save_messages([SessionSave(client_id=C, messages=(message,))])
            assert report.error is None
            saved.extend(serial for serial in report.serials if serial is not None)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(5):
            bench.apply(bench.plan(remedy))
    finally:
        stop.set()
        writer.join()

    serials = {message.serial for message in bench.store.inspect(C, limit=10_000).page}
    assert len(saved) > 5
    assert set(saved) <= serials
    assert len(set(saved)) == len(saved)


def test_pace_is_asked_before_every_call(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.save()
    asked: list[float] = []
    monkeypatch.setattr(Pace, "__call__", lambda pace, amount: asked.append(amount))
    plan_remedy(bench.client, remedy="repair_ttl", queues=named_queues([C], key=KEY), parameters=RemedyParameters())
    assert sum(asked) >= 6


def test_paused_run_waits_and_goes_on(bench: Bench, postgres_url: str) -> None:
    bench.save()
    bench.any.persist(bench.payload(1))
    queues = named_queues([C], key=KEY)
    with postgres.connect(postgres_url, autocommit=True) as connection:
        schema_migrations.migrate(connection)
        runs = MaintenanceRuns(connection)
        run_id = record_plan(runs, bench.plan("repair_ttl"))
        runs.approve(run_id, "ada")
        runs.set_paused(run_id, True)
        said: list[str] = []
        paused = threading.Event()

        def say(text: str) -> None:
            said.append(text)
            paused.set()

        def mend() -> None:
            with postgres.connect(postgres_url, autocommit=True) as own:
                apply_recorded(
                    bench.client,
                    runs=MaintenanceRuns(own),
                    run_id=run_id,
                    queues=queues,
                    undo_directory=bench.folder,
                    say=say,
                )

        worker = threading.Thread(target=mend)
        worker.start()
        assert paused.wait(PATIENCE_S)
        assert said == [f"queues: run {run_id} is paused"]
        assert bench.any.pexpiretime(bench.payload(1)) == -1
        with pytest.raises(RefusedError, match="another process works on queues"):
            apply_recorded(bench.client, runs=runs, run_id=run_id, queues=queues, undo_directory=bench.folder)
        runs.set_paused(run_id, False)
        worker.join(PATIENCE_S)
        assert bench.any.pexpiretime(bench.payload(1)) > 0
        assert runs.load(run_id).state is RunState.DONE


@pytest.mark.parametrize(("keys", "trimmed"), [(700, 200), (10_000, 450)])
def test_run_that_was_killed_does_the_rest_and_nothing_else(
    bench: Bench, postgres_url: str, monkeypatch: pytest.MonkeyPatch, keys: int, trimmed: int
) -> None:
    bench.save(count=460)
    queues = named_queues([C, "healthy-1", "healthy-2"], key=KEY)
    asked = 0

    def killed_in_its_midst(pace: Any, count: int) -> None:
        nonlocal asked
        asked += count
        if asked > keys:
            raise KeyboardInterrupt

    def killed_at_its_end(runs: MaintenanceRuns, run_id: str, report: Any, **_: Any) -> None:
        raise KeyboardInterrupt

    with postgres.connect(postgres_url, autocommit=True) as connection:
        schema_migrations.migrate(connection)
        runs = MaintenanceRuns(connection)
        plan = bench.plan("trim_dead_first", limit=10)
        assert plan.effects == {"message trimmed": 450}
        run_id = record_plan(runs, plan)
        runs.approve(run_id, "ada")

        def mend() -> RemedyReport:
            return apply_recorded(bench.client, runs=runs, run_id=run_id, queues=queues, undo_directory=bench.folder)

        with monkeypatch.context() as patched:
            patched.setattr(Pace, "__call__", killed_in_its_midst)
            patched.setattr(MaintenanceRuns, "save_report", killed_at_its_end)
            with pytest.raises(KeyboardInterrupt):
                mend()
        assert bench.store.inspect(C).messages == 460 - trimmed
        bench.save(count=100)

        report = mend()

        assert (report.done, report.queues) == ({"message trimmed": 450}, 1)
        assert bench.store.inspect(C).messages == 110
        kept: Any = runs.load(run_id).report
        assert kept["left"]["effects"] == {"message trimmed": 100}
        assert runs.shard_progress(run_id, "queues").repaired == 450
        assert mend().done == {"message trimmed": 450}, "the report of what was done"
        assert bench.store.inspect(C).messages == 110
