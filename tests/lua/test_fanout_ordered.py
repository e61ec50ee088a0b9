"""Ordered consumers: one message at a time per lane, none before its predecessor is done or given up."""

from __future__ import annotations

import pytest
from lua_fanout import NOW_MS, Queue, options

from queuekeeper.errors import UsageError
from queuekeeper.lua.scripts import fanout as scripts
from queuekeeper.redis_client import RedisClient

pytestmark = pytest.mark.lua


@pytest.fixture
def queue(single: RedisClient) -> Queue:
    """A queue with an ordered consumer and four messages."""
    found = Queue(client=single)
    found.register("o", options("ordered"))
    found.publish("1", "2", "3", "4")
    return found


def test_lease_is_the_lock_and_its_end_lets_the_next_message_go(queue: Queue) -> None:
    claim = queue.claim("o", "w1", count=9)
    assert (claim.ids, claim.more) == ([1], 0)
    other = queue.claim("o", "w2", count=9)
    assert (other.ids, other.wait_until_ms) == ([], NOW_MS + 30_000)

    assert queue.ack("o", 1, token="w1") == {"acked": 1, "freed": 1}

    assert queue.client.xlen(queue.of("o").wakes) == 1
    assert queue.claim("o", "w2").ids == [2]


def test_late_worker_is_fenced_by_its_token(queue: Queue) -> None:
    queue.claim("o", "w1", lease_ms=10)
    queue.now = NOW_MS + 10
    claim = queue.claim("o", "w2")
    assert (claim.ids, claim.messages[0].attempt, claim.messages[0].stalls) == ([1], 2, 1)

    assert queue.ack("o", 1, token="w1") == {"acked": 0, "freed": 0, "stale": (b"1",)}
    assert queue.nack("o", 1, token="w1").word == "stale"
    assert queue.claim("o", "w3").ids == []
    assert queue.ack("o", 1, token="w2") == {"acked": 1, "freed": 1}


def test_failed_message_blocks_its_lane_until_its_retry(queue: Queue) -> None:
    queue.claim("o")
    assert queue.nack("o", 1, delay_ms=100) == {"word": "retried", "due_ms": b"%d" % (NOW_MS + 100)}
    queue.now = NOW_MS + 99
    blocked = queue.claim("o")
    assert (blocked.ids, blocked.wait_until_ms) == ([], NOW_MS + 100)
    queue.now = NOW_MS + 100

    (message,) = queue.claim("o").messages
    assert (message.id, message.attempt) == (1, 2)
    queue.ack("o", 1)
    assert queue.claim("o").ids == [2]


@pytest.mark.parametrize("how", ["purge", "drop_oldest"])
def test_lane_does_not_wait_for_a_failed_message_that_is_gone(single: RedisClient, how: str) -> None:
    queue = Queue(client=single)
    queue.register("a", options("ordered", max_length=2, when_full="drop_oldest"))
    queue.publish("1", "2")
    queue.claim("a")
    queue.nack("a", 1, delay_ms=60_000)
    assert queue.claim("a").ids == []

    if how == "purge":
        queue.purge("a")
    queue.publish("3")

    assert queue.claim("a").records == [b"3" if how == "purge" else b"2"]


def test_message_that_is_given_up_is_skipped(queue: Queue) -> None:
    queue.claim("o")
    assert queue.nack("o", 1, max_attempts=1, delay_ms=100) == {"word": "dead", "attempts": 1}

    assert queue.claim("o").ids == [2]
    queue.ack("o", 2)
    assert queue.retry_dead("o", 1) == {"retried": 1}
    assert queue.claim("o").ids == [1]


@pytest.mark.parametrize("by", ["nack", "stalls"])
def test_consumer_halts_at_a_message_that_is_given_up_until_somebody_resumes_it(single: RedisClient, by: str) -> None:
    queue = Queue(client=single)
    queue.register("o", options("ordered", when_failed="halt"))
    queue.publish("1", "2")
    queue.claim("o", lease_ms=10)
    if by == "nack":
        queue.nack("o", 1, max_attempts=1)
    else:
        queue.now = NOW_MS + 10
        halting = queue.claim("o", max_stalls=0)
        assert (halting.ids, halting.dead, halting.more) == ([], 1, 0)

    assert queue.claim("o").ids == []
    assert queue.inspect_consumer("o")["fields"][b"paused"] == b"halted"
    queue.retry_dead("o", 1)
    assert queue.claim("o").ids == []
    assert queue.resume("o") == 1
    assert queue.claim("o").ids == [1]


def test_worker_that_stops_frees_the_lane(queue: Queue) -> None:
    queue.claim("o")
    assert queue.return_claimed("o", 1) == {"returned": 1}

    (message,) = queue.claim("o", "w2").messages
    assert (message.id, message.attempt) == (1, 1)


def test_expired_and_lost_messages_do_not_stop_a_lane(queue: Queue) -> None:
    queue.client.hdel(queue.keys.messages, "1", "2")

    claim = queue.claim("o")

    assert (claim.ids, claim.skipped) == ([3], 2)


def test_note_of_a_lease_that_is_gone_does_not_stop_a_lane(queue: Queue) -> None:
    queue.claim("o")
    queue.client.zrem(queue.of("o").leases, "1")

    assert queue.claim("o").ids == [2]


def test_lanes_are_worked_on_side_by_side_and_each_in_order(single: RedisClient) -> None:
    queue = Queue(client=single)
    queue.register("o", options("ordered", lanes=3))
    queue.register("all")
    queue.publish("a1", "b1", "c1", "a2", "b2", "a3", order_hashes=[0, 1, 5, 3, 4, 300])

    assert queue.claim("o", "w1", count=2).records == [b"a1", b"b1"]
    assert queue.claim("o", "w2", count=9).records == [b"c1"]
    assert queue.claim("o", "w3").ids == []
    queue.nack("o", 2, token="w1", delay_ms=100)
    queue.ack("o", 1, token="w1")
    claim = queue.claim("o", "w3", count=9)
    assert (claim.records, claim.wait_until_ms) == ([b"a2"], NOW_MS + 100)
    queue.now = NOW_MS + 100
    assert queue.claim("o", "w4", count=9).records == [b"b1"]
    assert queue.claim("all", count=9).ids == [1, 2, 3, 4, 5, 6]


def test_lanes_take_turns(single: RedisClient) -> None:
    queue = Queue(client=single)
    queue.register("o", options("ordered", lanes=64))
    queue.publish(*map(str, range(100)), order_hashes=[number % 2 * 63 for number in range(100)])
    lanes = []
    for _ in range(6):
        claim = queue.claim("o")
        lanes.append(int(claim.records[0]) % 2)
        queue.ack("o", *claim.ids)

    assert lanes == [0, 1, 0, 1, 0, 1]


def test_lease_of_a_lane_that_has_run_out_goes_back_to_its_lane(single: RedisClient) -> None:
    queue = Queue(client=single)
    queue.register("o", options("ordered", lanes=2))
    queue.publish("a1", "b1", "a2", "b2", order_hashes=[0, 1, 0, 1])
    queue.claim("o", "w1", count=2, lease_ms=10)
    queue.now = NOW_MS + 10

    assert queue.claim("o", "w2", count=2).records == [b"a1", b"b1"]
    assert queue.ack("o", 1, 2, token="w2") == {"acked": 2, "freed": 2}
    assert queue.claim("o", "w2", count=2).records == [b"a2", b"b2"]


def test_lanes_and_mode_change_only_while_nothing_waits(queue: Queue) -> None:
    with pytest.raises(UsageError, match="while no message waits"):
        queue.configure("o", options("ordered", lanes=4))
    queue.members["o"] = options("ordered")
    before = queue.membership
    changed = queue.configure("o", options("ordered", max_length=100))
    assert changed > before
    assert queue.configure("o", options("ordered", max_length=100)) == changed
    for message_id in range(1, 5):
        queue.claim("o")
        queue.ack("o", message_id)

    chosen = options("ordered", lanes=4)
    queue.run(scripts.configure(queue.keys, queue.of("o"), consumer="o", options=chosen))
    queue.refresh()
    queue.publish("5", "6", order_hashes=[1, 2])
    assert queue.claim("o", count=4).ids == [5, 6]


@pytest.mark.parametrize(
    "text",
    ["", "fifo", "random skip 1 0 reject 1 0", options(lanes=2), options("ordered", lanes=65),
     options("ordered", lanes=0), options(dead_retention_ms=0), options(when_full="drop"), options(when_failed="go"),
     options("leaving"), options() + " 1"],
)  # fmt: skip
def test_options_that_break_a_rule_are_refused(single: RedisClient, text: str) -> None:
    queue = Queue(client=single)

    with pytest.raises(UsageError, match="options do not read"):
        queue.run(scripts.register(queue.keys, queue.of("a"), consumer="a", options=text, start="new", now_ms=""))

    assert single.exists(queue.keys.state) == 0
