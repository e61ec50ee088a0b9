"""The repair of fan-out queues: what it sets right, what it leaves alone, what is written down, and what it proves."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from queuekeeper.errors import QueueFull, ServerUnavailable, UnknownQueue, UsageError
from queuekeeper.fanout.model import ConsumerOptions, Mode, Start
from queuekeeper.jobs import engine
from queuekeeper.jobs.report import verdict, write_report
from queuekeeper.jobs.store import RunState
from queuekeeper.keyspace import FANOUT_PARTS, fanout_part
from queuekeeper.maintenance.fanout.model import FanoutRepairCounts, FanoutRepairParameters
from queuekeeper.maintenance.fanout.queues import PacedFanoutQueues, find_queues
from queuekeeper.maintenance.fanout.repair import FanoutRepair
from queuekeeper.redis_client import RedisClient, connect
from tests.conformance.stale_plans import refused_as_stale
from tests.fanout_lists import line_up
from tests.fanout_repair_world import DAY_MS, HOUR_MS, LEASE_MS, MINUTE_MS, START_MS, World

pytestmark = pytest.mark.conformance

Q = "orders"
A, B = "billing", "shipping"
FAR_MS = START_MS + 100 * DAY_MS
ATTEMPTS = count()
"""A run of the same wishes and findings at the same time is the same run."""

SIZES = ("queues", "changed_queues", "consumers", "messages")


@pytest.fixture
def world(each_server: RedisClient, records: Any) -> World:
    """An empty store, and records of repairs."""
    return World(client=each_server, connection=records, now_ms=START_MS + next(ATTEMPTS))


@pytest.fixture
def valkey(valkey_url: str, records: Any) -> Iterator[World]:
    """The same on one server, where the kind of server makes no difference."""
    with connect(valkey_url) as client:
        yield World(client=client, connection=records, prefix="tenant:", now_ms=START_MS + next(ATTEMPTS))


def work(counts: FanoutRepairCounts) -> dict[str, int]:
    """Return what there was to do, by name."""
    return {name: found for name, found in asdict(counts).items() if found and name not in SIZES}


def break_everything(world: World) -> None:
    """Leave one of each fault in a queue, as others might do by writing to its keys."""
    client: Any = world.client
    world.register(Q, A, B)
    popped, missing, drifted, endless, doubled = world.publish(Q, 5)
    keys, own = world.keys(Q), world.consumer_keys(Q, A)
    line_up(client, Q, A, B, prefix=world.prefix)
    for consumer in (A, B):
        client.lrem(world.consumer_keys(Q, consumer).ready[0], 0, popped)
    client.hdel(keys.messages, missing)
    client.hset(keys.references, drifted, 5)
    client.zrem(keys.expiries, endless)
    client.rpush(own.ready[0], doubled)
    client.zadd(own.delayed, {str(doubled): FAR_MS})
    client.hset(own.details, 77, "1 0 0 -")
    [locked] = world.kill(Q, B)
    client.zadd(world.consumer_keys(Q, B).leases, {str(locked): FAR_MS})
    client.hset(world.consumer_keys(Q, B).details, locked, "1 0 0 -")


def test_every_fault_is_found_planned_repaired_and_gone(world: World) -> None:
    break_everything(world)
    before = world.contents()
    planned = work(world.plan().counts)
    assert planned == {
        "missing_payload": 1,
        "unreferenced_payload": 1,
        "wrong_count": 1,
        "wrong_expiry": 1,
        "lost_lease": 1,
        "doubled": 1,
        "left_notes": 1,
    }
    assert world.contents() == before

    outcome = world.repaired()

    assert (outcome.clean, outcome.proved, verdict(FanoutRepair, outcome)) == (
        True, True, "clean: a second look finds nothing that was to be done",
    )  # fmt: skip
    assert work(outcome.counts) == planned
    assert world.queues.verify(Q).healthy
    assert len(world.process(Q, A, 10)) == 3
    assert len(world.process(Q, B, 10)) == 3


def test_plan_that_is_too_old_or_of_another_release_repairs_nothing(
    valkey: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    valkey.register("orders", "billing")
    valkey.publish("orders", 2)
    valkey.kill("orders", "billing")
    valkey.now_ms += LEASE_MS + 1
    run_id, (share, *_) = valkey.planned()
    before = valkey.contents()
    refused_as_stale(valkey, lambda: valkey.repair(run_id, share), monkeypatch)
    assert valkey.contents() == before


def test_what_has_run_out_is_taken_back_or_removed(world: World) -> None:
    world.register(Q, A, options=ConsumerOptions(dead_retention_ms=HOUR_MS))
    world.register(Q, B, options=ConsumerOptions(mode=Mode.ORDERED, lanes=2))
    short = world.publish(Q, ttl_ms=2 * MINUTE_MS)
    dead, killed, _ = world.publish(Q, 3)
    claimed = world.claim(Q, A, 4)
    world.queues.ack(Q, consumer=A, token=claimed.token, ids=short)
    world.queues.nack(Q, consumer=A, token=claimed.token, message_id=dead, max_attempts=1, reason="no")
    world.kill(Q, B)
    assert world.plan().empty
    world.now_ms += LEASE_MS
    assert work(world.plan().counts) == {"overdue_leases": 3}
    world.now_ms += HOUR_MS

    outcome = world.repaired()

    # The message that had expired was next in line of the other one.
    assert work(outcome.plan.counts) == {
        "overdue_leases": 3, "expired_messages": 1, "expired_dead": 1, "expired_references": 1,
    }  # fmt: skip
    assert outcome.counts == outcome.plan.counts
    assert outcome.clean
    assert world.process(Q, A, 10) == [killed, killed + 1]
    assert world.process(Q, B) == [dead]
    assert world.repaired().plan.empty


def test_healthy_queues_are_left_as_they_are_and_the_run_says_so(world: World, tmp_path: Path) -> None:
    world.register("audit", A, B, options=ConsumerOptions(mode=Mode.ORDERED, lanes=3))
    world.register(Q, A, B)
    world.publish(Q, 30)
    world.publish("audit", 30)
    world.publish("held by nobody", 3)
    world.kill(Q, A, 3)
    claimed = world.claim(Q, B, 2)
    world.queues.nack(Q, consumer=B, token=claimed.token, message_id=1, delay_ms=DAY_MS)
    world.queues.nack(Q, consumer=B, token=claimed.token, message_id=2, max_attempts=1, reason="no")
    world.process("audit", B)
    before = world.contents()

    outcome = world.report(world.planned()[0])
    # Somebody who repairs all the same changes nothing either.
    forced = world.repaired()

    assert (outcome.clean, outcome.plan.empty, outcome.left) == (True, True, None)
    assert verdict(FanoutRepair, outcome) == "healthy: there was nothing to do, and nothing was changed"
    assert work(forced.counts) == {}
    assert world.contents() == before
    assert (outcome.plan.counts.queues, outcome.plan.counts.consumers) == (3, 4)
    files = write_report(FanoutRepair, outcome, tmp_path)
    assert "nothing was changed" in files.html.read_text("utf-8")
    assert json.loads(files.json.read_text("utf-8"))["clean"]


def test_dead_consumers_are_shown_and_removed_when_their_options_or_the_run_say_after_what_time(
    world: World, tmp_path: Path
) -> None:
    world.register(Q, "tells when", options=ConsumerOptions(idle_expiry_ms=2 * DAY_MS))
    world.register(Q, "does <not>", B)
    world.publish(Q, 5)
    world.kill(Q, "does <not>")
    world.now_ms += 3 * DAY_MS
    world.process(Q, B, 5)

    plan = world.plan()
    assert [(each.consumer, each.unseen_s, each.waiting) for each in plan.found.unseen] == [
        ("does <not>", 259_200, 5), ("tells when", 259_200, 5),
    ]  # fmt: skip
    assert work(world.repaired(unregister=False).counts) == {"overdue_leases": 1}
    assert world.queues.size(Q) == 5

    assert work(world.repaired().counts) == {"idle_consumers": 1}
    assert world.queues.size(Q) == 5
    assert world.plan(idle_expiry_s=4 * 86_400).empty
    outcome = world.repaired(idle_expiry_s=86_400)
    assert (work(outcome.counts), outcome.clean) == ({"idle_consumers": 1}, True)
    assert [each.consumer for each in world.queues.inspect(Q).consumers] == [B]
    assert world.queues.size(Q) == 0
    page = write_report(FanoutRepair, outcome, tmp_path).html.read_text("utf-8")
    assert "does &lt;not&gt;" in page
    assert "or for 24 h 00 min where their options name no time" in page


def test_consumer_that_is_full_of_expired_messages_has_room_again(valkey: World) -> None:
    valkey.register(Q, A, options=ConsumerOptions(max_length=3))
    valkey.publish(Q, 3, ttl_ms=MINUTE_MS)
    valkey.now_ms += HOUR_MS
    with pytest.raises(QueueFull):
        valkey.publish(Q, 1)

    outcome = valkey.repaired()

    assert work(outcome.counts) == {"expired_messages": 3, "expired_references": 3}
    valkey.publish(Q, 3)


def test_ids_of_expired_messages_behind_one_that_lives_are_found_and_taken_out(valkey: World) -> None:
    valkey.register(Q, A, options=ConsumerOptions(max_length=4))
    valkey.publish(Q)
    valkey.publish(Q, 3, ttl_ms=MINUTE_MS)
    valkey.now_ms += HOUR_MS
    valkey.queues.expire(Q)

    assert work(valkey.plan().counts) == {"expired_references": 3}
    outcome = valkey.repaired()

    assert (work(outcome.counts), outcome.clean) == ({"expired_references": 3}, True)
    valkey.publish(Q, 3)
    assert valkey.process(Q, A, 9) == [1, 5, 6, 7]


def test_registration_that_was_cut_off_is_ended(valkey: World, monkeypatch: pytest.MonkeyPatch) -> None:
    valkey.publish(Q, 2)
    answer = valkey.queues.answer

    def cut(step: Any) -> Any:
        if step[0].script.name == "fanout/adopt":
            raise ServerUnavailable("cut off")
        return answer(step)

    monkeypatch.setattr(valkey.queues, "answer", cut)
    with pytest.raises(ServerUnavailable):
        valkey.queues.register(Q, consumer=A, start=Start.HELD)
    monkeypatch.undo()
    assert valkey.process(Q, A) == []

    assert work(valkey.plan().counts) == {"half_registered": 1}
    assert work(valkey.repaired().counts) == {"half_registered": 1}
    assert valkey.process(Q, A, 9) == [1, 2]


def test_removal_that_was_cut_off_is_ended(valkey: World) -> None:
    valkey.register(Q, A, B)
    valkey.publish(Q, 600)

    class Cut(Exception):
        pass

    steps = iter([None])
    answer = valkey.queues.answer

    def cut(step: Any) -> Any:
        if next(steps, Cut) is Cut:
            raise Cut
        return answer(step)

    valkey.queues.answer = cut  # type: ignore[method-assign]
    with pytest.raises(Cut):
        valkey.queues.unregister(Q, consumer=A)
    valkey.queues.answer = answer  # type: ignore[method-assign]
    [leaving, _] = valkey.queues.inspect(Q).consumers
    assert (leaving.options, leaving.ready) == (None, 100)

    assert work(valkey.repaired().counts) == {"half_removed": 1}
    assert [each.consumer for each in valkey.queues.inspect(Q).consumers] == [B]


def test_only_named_queues_are_touched_and_unknown_ones_are_named(valkey: World) -> None:
    for queue in (Q, "}odd/{queue}*"):
        valkey.register(queue, A)
        valkey.publish(queue)
        valkey.kill(queue, A)
    World(client=valkey.client, connection=valkey.connection, prefix="other:").register(Q, A)
    valkey.now_ms += LEASE_MS
    assert find_queues(valkey.client, prefix="tenant:") == [Q, "}odd/{queue}*"]

    outcome = valkey.repaired(queues=["}odd/{queue}*"])

    assert (outcome.counts.queues, work(outcome.counts)) == (1, {"overdue_leases": 1})
    assert work(valkey.plan().counts) == {"overdue_leases": 1}
    with pytest.raises(UnknownQueue, match="there is no queue 'order'"):
        valkey.plan(queues=["order"])


def test_shares_cover_every_queue_once(valkey: World) -> None:
    names = [f"queue {number}" for number in range(40)]
    for name in names:
        valkey.register(name, A)
        valkey.publish(name)
        valkey.kill(name, A)
    valkey.now_ms += LEASE_MS
    outcome = valkey.repaired(shares=3)
    assert outcome.clean
    assert (outcome.counts.queues, outcome.counts.changed_queues, outcome.counts.overdue_leases) == (40, 40, 40)
    assert {fanout_part(name) for name in names} <= set(range(FANOUT_PARTS))


def test_run_that_is_killed_goes_on_behind_the_last_queue_that_it_was_done_with(
    valkey: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcd":
        valkey.register(name, A)
        valkey.publish(name)
        valkey.kill(name, A)
    valkey.now_ms += LEASE_MS
    run_id, [share] = valkey.planned()
    expire = PacedFanoutQueues.expire
    seen: list[str] = []

    def killed(queues: Any, queue: str, **how: Any) -> Any:
        if queues.counts_only:
            return expire(queues, queue, **how)
        seen.append(queue)
        if seen.count("c") == 1 and queue == "c":
            raise KeyboardInterrupt
        return expire(queues, queue, **how)

    monkeypatch.setattr(PacedFanoutQueues, "expire", killed)
    with pytest.raises(KeyboardInterrupt):
        valkey.repair(run_id, share)
    assert valkey.report(run_id).open_shares == (share,)

    assert valkey.repair(run_id, share).done
    assert seen == ["a", "b", "c", "c", "d"]
    assert valkey.report(run_id).clean
    assert valkey.runs.load(run_id).state is RunState.DONE
    assert valkey.repair(run_id, share).counts.queues == 4


def test_run_stops_when_its_time_is_up_and_waits_while_it_is_paused(
    valkey: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    valkey.register(Q, A)
    valkey.publish(Q)
    valkey.kill(Q, A)
    valkey.now_ms += LEASE_MS
    run_id, [share] = valkey.planned(max_run_minutes=1)
    valkey.runs.set_paused(run_id, True)
    waited: list[float] = []
    seconds = iter(range(0, 10_000, 5))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    monkeypatch.setattr(time, "sleep", waited.append)
    said: list[str] = []

    report = valkey.repair(run_id, share, said.append)

    assert (report.done, report.stopped.split(":")[0]) == (False, "its 1 minutes are over")
    assert f"{share}: run {run_id} is paused" in said
    assert waited
    assert valkey.runs.load(run_id).state is RunState.STOPPED
    monkeypatch.undo()
    valkey.runs.set_paused(run_id, False)
    assert valkey.repair(run_id, share).done


def test_only_queues_in_which_the_plan_found_something_are_repaired_and_looked_at_again(valkey: World) -> None:
    for name in ("healthy", Q):
        valkey.register(name, A)
        valkey.publish(name)
    valkey.kill(Q, A)
    valkey.now_ms += LEASE_MS
    run_id, [share] = valkey.planned()
    valkey.kill("healthy", A)
    valkey.now_ms += LEASE_MS

    assert valkey.repair(run_id, share).counts.queues == 1
    outcome = valkey.report(run_id)

    assert (outcome.plan.counts.queues, outcome.left is not None and outcome.left.queues, outcome.clean) == (2, 1, True)
    assert work(valkey.repaired().counts) == {"overdue_leases": 1}


def test_work_keeps_to_its_rate(valkey: World, monkeypatch: pytest.MonkeyPatch) -> None:
    valkey.register(Q, A, B)
    valkey.publish(Q, 200)
    valkey.kill(Q, A)
    valkey.now_ms += LEASE_MS
    passed: list[int] = []
    monkeypatch.setattr(engine, "run_pace", lambda *_, **__: passed.append)
    run_id, [share] = valkey.planned()
    valkey.repair(run_id, share)
    # Payloads, ends of lives, counts, and the lists of two consumers.
    assert 200 * 5 < sum(passed) < 200 * 8
    assert max(passed) <= 2_100


def test_search_and_second_look_keep_to_the_rate_of_the_run_and_wait_while_it_is_paused(
    valkey: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        valkey.register(f"queue {number}", A)
        valkey.publish(f"queue {number}")
    valkey.register(Q, A)
    valkey.publish(Q)
    passed: list[int] = []
    assert len(find_queues(valkey.client, prefix=valkey.prefix, pace=passed.append)) == 31
    # Each has several keys that are hashes.
    assert sum(passed) > 31
    for number in range(30):
        valkey.kill(f"queue {number}", A)
    valkey.now_ms += LEASE_MS
    run_id, [share] = valkey.planned(max_operations_per_s=50_000)
    assert valkey.repair(run_id, share).done
    passed.clear()
    asked: list[dict[str, Any]] = []

    def watched(_: Any, **given: Any) -> Any:
        asked.append(given)
        return passed.append

    monkeypatch.setattr(engine, "run_pace", watched)
    assert valkey.report(run_id).clean
    assert [given["run_id"] for given in asked] == [run_id]
    # Several calls for each queue of the plan, and none to find them.
    assert sum(passed) > 3 * 30
    assert len(passed) > 2 * 30


def test_queue_that_cannot_be_read_does_not_stop_the_others(valkey: World, tmp_path: Path) -> None:
    client: Any = valkey.client
    for queue in (Q, "wrong type", "no options", "\x00odd"):
        if queue != "\x00odd":
            valkey.register(queue, A)
            valkey.publish(queue)
            valkey.kill(queue, A)
    client.delete(valkey.keys("wrong type").expiries)
    client.set(valkey.keys("wrong type").expiries, "no sorted set")
    client.hset(valkey.keys("no options").options, A, "of another kind")
    client.hset("tenant:fanout:{\x00odd}:state", "version", 1)
    valkey.now_ms += LEASE_MS

    outcome = valkey.repaired()

    assert (outcome.counts.queues, outcome.counts.overdue_leases, outcome.broken) == (4, 1, 3)
    assert (verdict(FanoutRepair, outcome), outcome.clean) == ("3 queues cannot be repaired", False)
    assert valkey.process(Q, A) == [1]
    assert "3 queues cannot be repaired" in write_report(FanoutRepair, outcome, tmp_path).html.read_text("utf-8")


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"shares": 65}, "shares is 65: it must be an integer from 1 to 64"),
        ({"shares": None}, "shares is None"),
        ({"max_operations_per_s": 0}, "max_operations_per_s is 0"),
        ({"max_stalls": -1}, "max_stalls is -1"),
        ({"unregister": False, "idle_expiry_s": 60}, "idle_expiry_s says which consumers to remove"),
        ({"idle_expiry_s": 0}, "idle_expiry_s is 0"),
        ({"queues": ["a\nb"]}, "each must be the name of a queue: 1 to 255 characters"),
        ({"queues": ["a\tb"]}, "without control characters"),
        ({"key_prefix": "{a}"}, "it must be text of at most 200 characters without a brace"),
    ],
)
def test_bad_wishes_are_named(wishes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        FanoutRepairParameters(**wishes)


def test_unknown_run_and_share_are_named(valkey: World) -> None:
    run_id, [share] = valkey.planned()
    with pytest.raises(UsageError, match=f"run {run_id} has no share '00-01': it has {share}"):
        valkey.repair(run_id, "00-01")
    with pytest.raises(UsageError, match="there is no run 'nothing'"):
        valkey.report("nothing")
