"""The collection of compacted queues: what goes, what stays, what is written down, and what it proves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from queuekeeper.compacted.model import Append, Retention, RetentionPolicy
from queuekeeper.compacted.queue import CompactedQueues
from queuekeeper.errors import RefusedError, ScriptError, ServerUnavailable, StoreFull, UsageError
from queuekeeper.jobs import engine, pace
from queuekeeper.jobs.pace import RunPaused
from queuekeeper.jobs.report import write_report
from queuekeeper.jobs.store import RunState
from queuekeeper.jobs.undo import UndoFile
from queuekeeper.keyspace import COMPACTED_REGISTRIES, client_slot, compacted_registry_key
from queuekeeper.maintenance.compacted import collection
from queuekeeper.maintenance.compacted.collection import Collection
from queuekeeper.maintenance.compacted.model import CollectionCounts, CollectionParameters
from queuekeeper.maintenance.compacted.registry import Registry, rebuild_registry, registry_status
from queuekeeper.redis_client import RedisClient, connect, nodes
from tests.compacted_gc_world import DAY_MS, HOUR_MS, MINUTE_MS, START_MS, World
from tests.conformance.stale_plans import refused_as_stale

pytestmark = pytest.mark.conformance

WEEK_MS = 7 * DAY_MS


@pytest.fixture
def world(each_server: RedisClient, records: Any, tmp_path: Path) -> World:
    """An empty store, and records of collections."""
    return World(client=each_server, connection=records, undo=tmp_path / "undo")


@pytest.fixture
def valkey(valkey_url: str, records: Any, tmp_path: Path) -> Iterator[World]:
    """The same on one server, where the kind of server makes no difference."""
    with connect(valkey_url) as client:
        yield World(client=client, connection=records, undo=tmp_path / "undo", prefix="tenant:")


def contents(client: RedisClient) -> dict[bytes, Any]:
    """Return all there is, apart from who collects."""
    found: dict[bytes, Any] = {}
    for _, server in nodes(client):
        node: Any = server
        for key in node.scan_iter():
            if b"compacted:collector:" not in key:
                found[key] = node.dump(key)
    return found


def fill(world: World) -> None:
    """Two queues with something due and one without; one message of each kind, and fresh ones."""
    world.append("meter-7", "a", "b", "c")
    world.append("meter-7", "gone", tombstone=True)
    world.consume("meter-7", acks=2)
    world.append("{odd}/{id}*", b"\xff\x00", "")
    world.now_ms += WEEK_MS
    world.append("meter-7", "b", "fresh")
    world.append("meter-8", "fresh")
    world.now_ms += MINUTE_MS


def test_what_is_due_goes_with_its_bytes_and_the_second_look_finds_nothing(world: World, tmp_path: Path) -> None:
    fill(world)
    outcome = world.collected()
    assert (outcome.clean, outcome.proved, outcome.open_shares) == (True, True, ())
    assert outcome.left == CollectionCounts(queues=3)
    counts = outcome.counts
    assert (counts.messages, counts.acked, counts.unacked, counts.tombstones) == (5, 1, 4, 1)
    assert (counts.queues, counts.due_queues) == (3, 2)
    assert counts.freed_bytes > 0
    assert world.live("meter-7") == [b"b", b"fresh"]
    assert world.live("{odd}/{id}*") == []
    for client_id in ("meter-7", "meter-8", "{odd}/{id}*"):
        assert world.queues.verify(client_id).violations == ()
    assert world.queues.inspect("meter-7").counters["expired_unacked"] == 2
    run = world.runs.load(outcome.maintenance_run_id)
    assert (run.state, run.report and run.report["clean"]) == (RunState.DONE, True)
    files = write_report(Collection, outcome, tmp_path / "reports")
    page = files.html.read_text("utf-8")
    assert "clean: a second look finds nothing that was due" in page
    assert json.loads(files.json.read_text("utf-8"))["counts"]["messages"] == 5
    assert "meter-" not in page + files.json.read_text("utf-8") + json.dumps([run.plan, run.report])


def test_plan_changes_nothing_and_says_what_will_go(valkey: World) -> None:
    fill(valkey)
    before = contents(valkey.client)
    planned = valkey.plan()
    assert contents(valkey.client) == before
    assert planned.found.registered == 3
    assert asdict(valkey.collected().counts) == asdict(planned.counts)
    assert valkey.plan().empty
    again = valkey.collected()
    assert (again.counts.queues, again.counts.messages) == (0, 0)


def test_plan_that_is_too_old_or_of_another_release_collects_nothing(
    valkey: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    valkey.append("meter-1", "a", "b")
    run_id, (share, *_) = valkey.planned(retention_s=0)
    refused_as_stale(valkey, lambda: valkey.collect(run_id, share), monkeypatch)
    assert valkey.live("meter-1") == [b"a", b"b"]


def test_report_of_a_dry_run_says_that_nothing_was_removed(valkey: World, tmp_path: Path) -> None:
    fill(valkey)
    before = contents(valkey.client)
    run_id, _ = valkey.planned()
    outcome = valkey.report(run_id, dry_run=True)
    assert contents(valkey.client) == before
    assert (outcome.left, outcome.clean, outcome.facts["finished_ms"]) == (None, False, None)
    assert "5 messages due, nothing was removed" in write_report(Collection, outcome, tmp_path).html.read_text("utf-8")


def overtaken(world: World, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Plan to collect two messages, one of which gets a newer value once both stand in the undo file."""
    world.append("meter-7", "a", "b")
    world.now_ms += WEEK_MS + 1
    run_id, [share] = world.planned()
    write = UndoFile.write

    def noted(undo: UndoFile, lines: Any) -> None:
        write(undo, lines)
        if "rows" in lines[-1]:
            world.append("meter-7", "a")

    monkeypatch.setattr(UndoFile, "write", noted)
    return run_id, share


def test_newer_value_of_a_key_never_goes(valkey: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id, share = overtaken(valkey, monkeypatch)
    counts = valkey.collect(run_id, share).counts
    assert (counts.messages, counts.kept) == (1, 1)
    assert valkey.live("meter-7") == [b"a"]
    assert valkey.queues.get("meter-7", key=b"a") is not None


def test_many_messages_and_queues_go_in_bounded_steps(valkey: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuekeeper.maintenance.compacted.registry.QUEUES_PER_STEP", 2)
    part = client_slot("queue-0") % COMPACTED_REGISTRIES
    names = [name for number in range(600) if client_slot(name := f"queue-{number}") % COMPACTED_REGISTRIES == part]
    for name in names[:5]:
        valkey.append(name, "a")
    valkey.append(names[0], *(f"key-{number}" for number in range(450)))
    valkey.now_ms += WEEK_MS + 1
    outcome = valkey.collected()
    assert outcome.clean
    assert (outcome.counts.queues, outcome.counts.messages) == (5, 455)
    lines = [json.loads(line) for path in valkey.undo.iterdir() for line in path.read_text("utf-8").splitlines()[1:]]
    assert sorted(len(line["rows"]) for line in lines if "rows" in line) == [1, 1, 1, 1, 51, 100, 100, 100, 100]


def test_queue_is_looked_at_again_when_its_oldest_message_is_due(valkey: World) -> None:
    valkey.append("meter-7", "a")
    assert valkey.due_ms("meter-7") == START_MS
    valkey.collected(retention_s=3_600)
    assert valkey.due_ms("meter-7") == START_MS + HOUR_MS + 1
    valkey.now_ms += HOUR_MS
    assert valkey.collected(retention_s=3_600).counts.messages == 0
    valkey.now_ms += 1
    assert valkey.collected(retention_s=3_600).counts.messages == 1
    # What is appended to it now is not due before.
    assert valkey.due_ms("meter-7") == valkey.now_ms + HOUR_MS + 1


def test_queue_that_was_emptied_is_collected_again_in_time(valkey: World) -> None:
    for _ in range(3):
        valkey.append("meter-7", "a")
        valkey.now_ms += HOUR_MS + 1
        outcome = valkey.collected(retention_s=3_600)
        assert (outcome.plan.counts.messages, outcome.counts.messages, outcome.clean) == (1, 1, True)


def test_other_rules_than_last_time_hold_at_once_and_as_planned(valkey: World) -> None:
    valkey.append("meter-7", "a")
    valkey.append("meter-8", "a")
    assert valkey.collected().counts.messages == 0
    valkey.now_ms += HOUR_MS + 1
    outcome = valkey.collected(retention_s=3_600)
    assert (outcome.plan.counts.messages, outcome.counts.messages, outcome.clean) == (2, 2, True)
    # By the same rules again only what is due is looked at.
    assert valkey.collected(retention_s=3_600).counts.queues == 0
    assert [valkey.collected().counts.queues for _ in range(2)] == [2, 0]


def test_acknowledgement_that_makes_something_due_is_planned_as_the_second_look_finds_it(valkey: World) -> None:
    valkey.append("meter-7", "a", "b")
    valkey.now_ms += WEEK_MS + 1
    assert valkey.collected(policy="acked_only").counts.messages == 0
    valkey.consume("meter-7")
    outcome = valkey.collected(policy="acked_only")
    assert (outcome.plan.counts.messages, outcome.counts.messages, outcome.clean) == (2, 2, True)


def test_queue_that_was_given_a_shorter_retention_is_collected_at_once(valkey: World) -> None:
    valkey.append("meter-7", "a")
    valkey.collected()
    valkey.now_ms += HOUR_MS
    valkey.queues.configure("meter-7", retention=Retention(retention_ms=MINUTE_MS))
    assert valkey.collected().counts.messages == 1


@pytest.mark.parametrize(
    ("policy", "acks", "left"),
    [
        ("delete", 0, []),
        ("acked_only", 1, [b"b", b"gone"]),
        ("compact", 1, [b"a", b"b", b"gone"]),
        ("compact", 3, [b"a", b"b"]),
    ],
)
def test_policy_says_what_may_go(valkey: World, policy: str, acks: int, left: list[bytes]) -> None:
    valkey.append("meter-7", "a", "b")
    valkey.append("meter-7", "gone", tombstone=True)
    valkey.consume("meter-7", acks=acks)
    valkey.now_ms += WEEK_MS + 1
    assert valkey.collected(policy=policy).clean
    assert valkey.live("meter-7") == left


def test_tombstone_goes_early_only_when_the_consumer_knows(valkey: World) -> None:
    valkey.append("meter-7", "gone", tombstone=True)
    valkey.now_ms += DAY_MS + 1
    assert valkey.collected(policy="compact").counts.messages == 0
    valkey.consume("meter-7")
    valkey.now_ms += HOUR_MS
    assert valkey.collected(policy="compact").counts.tombstones == 1


def test_own_rules_of_a_queue_win_unless_they_are_overridden(valkey: World) -> None:
    valkey.append("keeps", "a")
    valkey.append("others", "a")
    valkey.queues.configure("keeps", retention=Retention(policy=RetentionPolicy.COMPACT))
    valkey.now_ms += WEEK_MS + 1
    assert valkey.collected().counts.messages == 1
    assert valkey.live("keeps") == [b"a"]
    registered = valkey.due_ms("keeps")
    assert valkey.collected(override=True).counts.messages == 1
    assert valkey.live("keeps") == []
    # What is done by other rules than every day's tells nothing of when a queue is due.
    assert valkey.due_ms("keeps") == registered


def test_filters_leave_the_rest_and_the_registry_alone(valkey: World) -> None:
    for client_id in ("meter-7", "meter-8", "valve-1"):
        valkey.append(client_id, "config/a", "state/a")
    valkey.now_ms += WEEK_MS + 1
    counts = valkey.collected(client_filter="meter-*", key_filter="config/*").counts
    assert (counts.queues, counts.messages) == (2, 2)
    assert valkey.live("meter-7") == [b"state/a"]
    assert valkey.live("valve-1") == [b"config/a", b"state/a"]
    assert valkey.due_ms("meter-7") == START_MS
    assert valkey.registry.finished_ms() is None
    assert valkey.collected().counts.messages == 4


def test_run_that_is_killed_goes_on_where_it_was(valkey: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        valkey.append(f"meter-{number}", "a")
    valkey.now_ms += WEEK_MS + 1
    run_id, [share] = valkey.planned()
    rearm, calls = Registry.rearm, iter(range(100))

    def lost(registry: Registry, *args: Any) -> None:
        if next(calls) == 10:
            raise ServerUnavailable("the server is gone")
        rearm(registry, *args)

    monkeypatch.setattr(Registry, "rearm", lost)
    with pytest.raises(ServerUnavailable):
        valkey.collect(run_id, share)
    assert valkey.runs.load(run_id).state is RunState.FAILED
    assert valkey.registry.finished_ms() is None
    first = valkey.runs.shard_progress(run_id, share)
    assert 0 < first.removed < 30
    monkeypatch.undo()
    report = valkey.collect(run_id, share)
    assert report.done
    assert sum(len(valkey.live(f"meter-{number}")) for number in range(30)) == 0
    outcome = valkey.report(run_id)
    assert (outcome.clean, outcome.facts["finished_ms"]) == (True, valkey.now_ms)
    assert valkey.collect(run_id, share).counts == report.counts


def test_heartbeat_says_when_every_part_was_last_finished(valkey: World) -> None:
    valkey.append("meter-7", "a")
    assert valkey.collected().facts["finished_ms"] == START_MS
    part = client_slot("meter-7") % COMPACTED_REGISTRIES
    valkey.now_ms += WEEK_MS + 1
    outcome = valkey.collected(retention_s=604_800, policy="delete")
    beat = valkey.registry.heartbeat(part)
    assert beat is not None
    assert (beat.finished_ms, beat.maintenance_run_id) == (valkey.now_ms, outcome.maintenance_run_id)
    assert (beat.queues, beat.messages, beat.unacked, beat.retention) == (1, 1, 1, Retention())


def test_part_that_another_collector_holds_is_left_to_it(valkey: World) -> None:
    valkey.append("meter-7", "a")
    valkey.now_ms += WEEK_MS + 1
    part = client_slot("meter-7") % COMPACTED_REGISTRIES
    assert valkey.registry.hold(part, "somebody else")
    said: list[str] = []
    run_id, [share] = valkey.planned()
    report = valkey.collect(run_id, share, said.append)
    assert (report.counts.held_parts, report.counts.messages) == (1, 0)
    assert f"another collector is at part {part:02}" in said[0]
    assert valkey.registry.heartbeat(part) is None
    valkey.registry.finish(part, "somebody else", {})
    # The same plan at the same instant would be the run that is over.
    valkey.now_ms += 1
    assert valkey.collected().counts.messages == 1


def test_time_limit_stops_a_share_that_can_go_on(valkey: World, monkeypatch: pytest.MonkeyPatch) -> None:
    valkey.append("meter-7", "a")
    valkey.now_ms += WEEK_MS + 1
    run_id, [share] = valkey.planned(max_run_minutes=1)
    late = iter([0.0])
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: next(late, 61.0), sleep=lambda _: None))
    report = valkey.collect(run_id, share)
    assert (report.done, report.stopped.startswith("its 1 minutes are over")) == (False, True)
    assert valkey.runs.load(run_id).state is RunState.STOPPED
    assert valkey.report(run_id).open_shares == (share,)
    monkeypatch.undo()
    assert valkey.collect(run_id, share).counts.messages == 1


def test_paused_collection_gives_up_within_a_queue_and_goes_on_with_what_it_counted(
    valkey: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection, "ROWS_PER_STEP", 2)
    for number in range(9):
        valkey.append("meter-7", f"key {number}")
    valkey.now_ms += WEEK_MS + 1
    run_id, [share] = valkey.planned()

    def after(calls: int) -> Callable[[], None]:
        left = iter(range(calls))

        def rest() -> None:
            if next(left, None) is None:
                raise RunPaused("not now")

        return rest

    # Each time it gets one call further: it is broken off at every one.
    for calls in count():
        monkeypatch.setattr(engine, "run_rest", lambda *_, calls=calls: after(calls))
        with suppress(RunPaused):
            valkey.collect(run_id, share, stays=False)
        if valkey.runs.shard_progress(run_id, share).done:
            break

    assert calls >= 4
    outcome = valkey.report(run_id)
    assert (outcome.counts.messages, outcome.counts.due_queues, outcome.moved_on) == (9, 1, {})
    assert outcome.clean
    assert valkey.take_back(run_id).restored == 9


def test_start_is_put_off_by_chance(valkey: World, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(engine, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=slept.append))
    run_id, [share] = valkey.planned(max_jitter_s=30)
    valkey.collect(run_id, share, uniform=lambda low, high: low + high / 2)
    assert slept == [15.0]


def test_queue_that_cannot_be_read_does_not_stop_the_others(valkey: World) -> None:
    client: Any = valkey.client
    for client_id in ("broken", "meter-7"):
        valkey.append(client_id, "a")
    client.delete(valkey.keys("broken").order)
    client.set(valkey.keys("broken").order, "no sorted set")
    client.zadd(compacted_registry_key("meter-7", prefix="tenant:"), {b"\xff\xfe": START_MS})
    valkey.now_ms += WEEK_MS + 1
    outcome = valkey.collected()
    assert (outcome.counts.messages, outcome.counts.broken_queues) == (1, 2)
    assert outcome.clean is False
    # It stays due.
    assert valkey.due_ms("broken") == START_MS


@pytest.mark.parametrize(
    "damage",
    [
        {"retention_policy": "forever", "retention_ms": 1, "tombstone_ms": 1},
        {"retention_policy": "delete", "retention_ms": "long", "tombstone_ms": 1},
        {"retention_policy": "delete", "retention_ms": -1, "tombstone_ms": 1},
        {"retention_policy": "delete", "retention_ms": 1},
        {"retention_policy": b"\xff", "retention_ms": 1, "tombstone_ms": 1},
        {"expired": "many"},
        {"incarnation": "1.5"},
        {"epoch": 10**30},
        {"session": b"\xff"},
    ],
    ids=lambda damage: "-".join(map(repr, damage.values())),
)
def test_damaged_state_of_one_queue_does_not_stop_the_others(valkey: World, damage: dict[str, Any]) -> None:
    client: Any = valkey.client
    for client_id in ("broken", "meter-7"):
        valkey.append(client_id, "a")
    client.hset(valkey.keys("broken").state, mapping=damage)
    with pytest.raises(ScriptError, match="the state of the queue of 'broken' is damaged: "):
        valkey.queues.inspect("broken")
    assert registry_status(valkey.client, prefix="tenant:").first_client_id == "meter-7"
    valkey.now_ms += WEEK_MS + 1
    outcome = valkey.collected()
    assert (outcome.counts.messages, outcome.counts.broken_queues) == (1, 1)
    assert outcome.clean is False
    assert valkey.due_ms("broken") == START_MS


def test_collection_by_rules_of_its_own_passes_a_damaged_retention_over(valkey: World) -> None:
    client: Any = valkey.client
    valkey.append("broken", "a")
    valkey.append("broken", "b")
    client.hset(valkey.keys("broken").state, "retention_policy", "forever")
    retention = Retention(retention_ms=0)
    words = "retention of the queue itself is none: configure it anew"
    valkey.now_ms += 1
    with pytest.raises(UsageError, match=words):
        valkey.queues.find_due("broken", retention=retention)
    page = valkey.queues.find_due("broken", retention=retention, override=True)
    with pytest.raises(UsageError, match=words):
        valkey.queues.collect("broken", retention=retention, rows=page.rows)
    assert valkey.queues.collect("broken", retention=retention, rows=page.rows, override=True).collected == 2
    valkey.queues.configure("broken", retention=retention)
    assert valkey.queues.inspect("broken").retention == retention


def test_removed_messages_come_back_unless_there_is_a_newer_value(world: World) -> None:
    fill(world)
    lived = {client_id: world.queues.peek(client_id) for client_id in ("meter-7", "{odd}/{id}*")}
    outcome = world.collected()
    world.append("meter-7", "a")
    counted = world.take_back(outcome.maintenance_run_id, dry_run=True)
    assert (counted.restored, counted.kept, counted.files) == (4, 1, 1)
    done = world.take_back(outcome.maintenance_run_id)
    assert (done.restored, done.kept) == (4, 1)
    assert world.queues.peek("{odd}/{id}*") == lived["{odd}/{id}*"]
    assert [message for message in world.queues.peek("meter-7") if message.key != b"a"] == [
        message for message in lived["meter-7"] if message.key != b"a"
    ]
    assert world.queues.verify("meter-7").violations == ()
    again = world.take_back(outcome.maintenance_run_id)
    assert (again.restored, again.kept) == (0, 5)


def test_damaged_message_keeps_no_other_from_coming_back(valkey: World) -> None:
    client: Any = valkey.client
    for client_id in ("broken", "locked", "meter-7"):
        valkey.append(client_id, "a", "b", "c")
    client.hset(valkey.keys("broken").values, "b", "no value of ours")
    client.hdel(valkey.keys("broken").values, "c")
    valkey.now_ms += WEEK_MS + 1
    outcome = valkey.collected()
    assert outcome.counts.messages == 9
    client.set(valkey.keys("locked").times, "no sorted set")
    for dry_run in (True, False):
        back = valkey.take_back(outcome.maintenance_run_id, dry_run=dry_run)
        assert (back.restored, back.kept) == (4, 5)
    assert [valkey.live(client_id) for client_id in ("broken", "meter-7")] == [[b"a"], [b"a", b"b", b"c"]]


def test_messages_of_a_queue_that_was_dropped_stay_away(valkey: World) -> None:
    valkey.append("meter-7", "a")
    valkey.append("meter-8", "a", "b")
    valkey.now_ms += WEEK_MS + 1
    outcome = valkey.collected()
    valkey.queues.drop("meter-7")
    valkey.queues.drop("meter-8")
    valkey.append("meter-8", "c", "d", "e")
    assert valkey.take_back(outcome.maintenance_run_id).kept == 3
    assert valkey.live("meter-8") == [b"c", b"d", b"e"]


def test_message_that_was_never_removed_does_not_come_back(valkey: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id, share = overtaken(valkey, monkeypatch)
    assert valkey.collect(run_id, share).counts.kept == 1
    monkeypatch.undo()
    done = valkey.take_back(run_id)
    assert (done.restored, done.kept) == (1, 1)
    valkey.purge("meter-7")
    assert valkey.take_back(run_id).restored == 0
    assert valkey.live("meter-7") == []


def test_key_that_was_deleted_since_does_not_come_back(valkey: World) -> None:
    valkey.append("meter-7", "deleted", "other")
    valkey.now_ms += WEEK_MS + 1
    outcome = valkey.collected()
    valkey.append("meter-7", "deleted", tombstone=True)
    valkey.consume("meter-7")
    valkey.now_ms += DAY_MS + 1
    later = valkey.collected()
    assert later.counts.tombstones == 1
    counted = valkey.take_back(outcome.maintenance_run_id, dry_run=True)
    assert (counted.restored, counted.kept) == (1, 1)
    assert valkey.take_back(outcome.maintenance_run_id).restored == 1
    assert valkey.live("meter-7") == [b"other"]
    # What the later one has removed is taken back by itself.
    assert valkey.take_back(later.maintenance_run_id).restored == 1


def test_nothing_comes_back_to_a_queue_of_which_more_went_than_the_files_say(valkey: World) -> None:
    for client_id in ("purged", "collected"):
        valkey.append(client_id, "a", "b")
    valkey.now_ms += WEEK_MS + 1
    outcome = valkey.collected()
    for client_id in ("purged", "collected"):
        valkey.append(client_id, "a")
    valkey.purge("purged")
    valkey.now_ms += WEEK_MS + 1
    later = valkey.collected()
    for path in valkey.undo.glob(f"{later.maintenance_run_id}*"):
        path.unlink()
    done = valkey.take_back(outcome.maintenance_run_id)
    assert (done.restored, done.kept) == (0, 4)
    assert (valkey.live("purged"), valkey.live("collected")) == ([], [])


def test_what_a_killed_collector_removed_last_comes_back(valkey: World, monkeypatch: pytest.MonkeyPatch) -> None:
    valkey.append("meter-7", *(f"key-{number}" for number in range(150)))
    lived = valkey.queues.peek("meter-7", limit=200)
    valkey.now_ms += WEEK_MS + 1
    run_id, [share] = valkey.planned()
    collect, calls = CompactedQueues.collect, iter(range(100))

    def lost(queues: CompactedQueues, *args: Any, **wishes: Any) -> Any:
        # The first call is done, and the answer lost; the second never arrives.
        if next(calls) == 0:
            collect(queues, *args, **wishes)
        raise ServerUnavailable("the server is gone")

    monkeypatch.setattr(CompactedQueues, "collect", lost)
    for _ in range(2):
        with pytest.raises(ServerUnavailable):
            valkey.collect(run_id, share)
    monkeypatch.undo()
    assert valkey.collect(run_id, share).counts.messages == 50
    done = valkey.take_back(run_id)
    assert (done.restored, done.kept) == (150, 50)
    assert valkey.queues.peek("meter-7", limit=200) == lived


def test_report_says_what_comes_back_behind_the_cursor(valkey: World) -> None:
    valkey.append("meter-7", "acked", "unacked")
    valkey.consume("meter-7", acks=1)
    valkey.append("meter-7", "unseen")
    valkey.now_ms += WEEK_MS + 1
    outcome = valkey.collected()
    done = valkey.take_back(outcome.maintenance_run_id)
    assert (done.restored, done.only_after_rewind) == (3, 1)


def test_rate_counts_what_is_looked_at_and_an_old_queue_is_asked_once(
    valkey: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    valkey.append("meter-7", *(f"key-{number}" for number in range(250)))
    valkey.now_ms += WEEK_MS + 1
    paced: list[int] = []
    monkeypatch.setattr(engine, "run_pace", lambda *_, **__: paced.append)
    calls: list[str] = []

    def counted(name: str) -> None:
        call = getattr(CompactedQueues, name)

        def counting(*args: Any, **wishes: Any) -> Any:
            calls.append(name)
            return call(*args, **wishes)

        monkeypatch.setattr(CompactedQueues, name, counting)

    run_id, [share] = valkey.planned(policy="acked_only")
    counted("find_due")
    counted("collect")
    assert valkey.collect(run_id, share).counts.messages == 0
    assert calls.count("collect") == 1
    assert sum(paced) == 250 + calls.count("find_due") > 250


def test_large_values_go_a_few_at_a_time(valkey: World) -> None:
    valkey.queues.append("meter-7", [Append(key=b"%d" % number, value=b"x" * 100_000) for number in range(7)])
    valkey.now_ms += WEEK_MS + 1
    assert valkey.collected().counts.messages == 7
    lines = [json.loads(line) for path in valkey.undo.iterdir() for line in path.read_text("utf-8").splitlines()[1:]]
    assert [len(line["rows"]) for line in lines if "rows" in line] == [2, 2, 2, 1]


def test_file_lists_what_went_and_holds_values_only_if_wanted(valkey: World) -> None:
    valkey.append("meter-7", "a")
    valkey.now_ms += WEEK_MS + 1
    outcome = valkey.collected(keep_values=False)
    [path] = valkey.undo.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    _, line, settled = path.read_text("utf-8").splitlines()
    assert json.loads(settled)["kept"] == []
    [row] = json.loads(line)["rows"]
    assert row.pop("size_bytes") > len("a" + "value")
    assert [row] == [{"key": "YQ==", "sequence": 1, "appended_ms": START_MS, "tombstone": False, "acked": False}]
    with pytest.raises(RefusedError, match="kept no values"):
        valkey.take_back(outcome.maintenance_run_id)


def test_queue_that_no_registry_knows_is_found_by_hand(world: World) -> None:
    client: Any = world.client
    for client_id in ("meter-7", "{odd}/{id}*"):
        world.append(client_id, "a")
        client.delete(compacted_registry_key(client_id))
    world.append("known", "a")
    world.now_ms += WEEK_MS + 1
    assert world.collected().counts.messages == 1

    def rebuilt(*, dry_run: bool) -> tuple[int, int]:
        report = rebuild_registry(world.client, prefix="", now_ms=world.now_ms, dry_run=dry_run)
        return report.queues, report.registered

    assert [rebuilt(dry_run=True), rebuilt(dry_run=False), rebuilt(dry_run=False)] == [(3, 2), (3, 2), (3, 0)]
    assert world.collected().counts.messages == 2


def test_full_server_is_collected(redis_server_factory: Callable[..., Any], records: Any, tmp_path: Path) -> None:
    server = redis_server_factory(maxmemory="4mb", maxmemory_policy="noeviction")
    with connect(server.url) as client:
        world = World(client=client, connection=records, undo=tmp_path / "undo")

        def fill_up() -> None:
            for number in range(10_000):
                appends = [Append(key=b"%d %d" % (number, key), value=b"x" * 2_000) for key in range(20)]
                world.queues.append(f"meter-{number}", appends)

        with pytest.raises(StoreFull):
            fill_up()
        world.now_ms += WEEK_MS + 1
        outcome = world.collected()
        assert outcome.clean
        assert outcome.counts.messages > 100
        assert outcome.facts["finished_ms"] == world.now_ms
        world.append("meter-1", "there is room again")


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"retention_s": -1}, "retention_s is -1: it must be an integer from 0 to 4,294,967,295"),
        ({"tombstone_s": 1.5}, "tombstone_s is 1.5"),
        ({"shares": 65}, "shares is 65: it must be an integer from 1 to 64"),
        ({"max_operations_per_s": 0}, "max_operations_per_s is 0"),
        ({"key_prefix": "{a}"}, "it must be text of at most 200 characters without a brace"),
    ],
)
def test_bad_wishes_are_named(wishes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CollectionParameters(**wishes)


def test_unknown_policy_run_and_share_are_named(valkey: World) -> None:
    with pytest.raises(UsageError, match="policy is 'all': it must be one of delete, acked_only, compact"):
        CollectionParameters(policy="all")
    run_id, [share] = valkey.planned()
    with pytest.raises(UsageError, match=f"run {run_id} has no share '00-01': it has {share}"):
        valkey.collect(run_id, "00-01")
    with pytest.raises(UsageError, match="there is no run 'nothing'"):
        valkey.report("nothing")


def test_shares_cover_the_registry_once() -> None:
    for shares in (1, 3, 64):
        names = CollectionParameters(shares=shares).share_names()
        parts = [part for name in names for part in range(int(name[:2]), int(name[3:]) + 1)]
        assert (len(names), parts) == (shares, list(range(COMPACTED_REGISTRIES)))
