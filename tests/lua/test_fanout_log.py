"""The log of a fan-out queue: a message is written once for all consumers, each of which reads it by its cursor."""

from __future__ import annotations

import pytest
from lua_fanout import NOW_MS, Queue, options, taken

from queuekeeper.errors import ConsumerBehind, UsageError
from queuekeeper.redis_client import RedisClient

pytestmark = pytest.mark.lua

MOST_PULLED = 1_000
"""Largest number of messages that one call puts in line."""


@pytest.fixture
def queue(single: RedisClient) -> Queue:
    """A queue with two consumers."""
    found = Queue(client=single)
    found.register("a")
    found.register("b")
    return found


def fill(queue: Queue, count: int, *, order_hash: int = 0) -> None:
    """Publish so many messages, a hundred at a time."""
    for first in range(0, count, 100):
        records = [str(number) for number in range(first, min(count, first + 100))]
        queue.publish(*records, order_hashes=[order_hash] * len(records))


def test_publish_writes_an_entry_for_all_and_nothing_for_each(queue: Queue) -> None:
    keys, client = queue.keys, queue.client
    before = set(client.scan_iter())

    assert queue.publish("x", "y", order_hashes=[0, 7]) == taken(1, 2, consumers=2)
    assert queue.publish("z") == taken(3, consumers=2)

    new = {keys.messages, keys.references, keys.expiries, keys.log}
    assert {key.decode() for key in set(client.scan_iter()) - before} == new
    assert client.xrange(keys.log) == [(b"2-0", {b"m": b"1 2:7"}), (b"3-0", {b"m": b"3"})]


def test_each_consumer_reads_the_log_for_itself_in_order(queue: Queue) -> None:
    queue.publish("1", "2", "3")
    queue.publish("4")
    queue.publish("5", "6")

    assert queue.claim("a", count=2).ids == [1, 2]
    first = queue.claim("a", "w2", count=9)
    assert (first.ids, first.more) == ([3, 4, 5, 6], 0)
    assert queue.claim("b", count=9).ids == [1, 2, 3, 4, 5, 6]
    assert queue.claim("b", "w2").ids == []
    queue.register("late")
    assert queue.claim("late").ids == []


def test_what_is_returned_comes_before_what_is_in_the_log(queue: Queue) -> None:
    queue.publish("1", "2")
    queue.claim("a", count=2)
    queue.publish("3")
    queue.return_claimed("a", 1, 2)

    assert queue.waiting("a") == [1, 2, 3]
    assert [int(each.id) for each in queue.peek("a", offset=1).messages] == [2, 3]
    assert [int(each.id) for each in queue.peek("a", offset=2, limit=1).messages] == [3]
    assert queue.claim("a", count=9).ids == [1, 2, 3]


def test_lanes_share_the_log(queue: Queue) -> None:
    queue.register("o", options("ordered", lanes=2))
    queue.publish(*"12345", order_hashes=[0, 1, 1, 0, 1])

    found = queue.inspect_consumer("o")
    assert (found["in_log"], found["in_log_since_ms"], found["lanes"]) == (5, NOW_MS, [(0, 0, b""), (0, 0, b"")])
    assert (queue.waiting("o", lane=0), queue.waiting("o", lane=1)) == ([1, 4], [2, 3, 5])
    assert queue.claim("o", count=9).ids == [1, 2]
    queue.ack("o", 1, 2)
    assert queue.claim("o", count=9).ids == [4, 3]


def test_lane_with_nothing_in_line_finds_its_message_behind_thousands_of_another(queue: Queue) -> None:
    queue.register("o", options("ordered", lanes=2))
    fill(queue, 2 * MOST_PULLED)
    queue.publish("other", order_hashes=[1])

    assert queue.claim("o").ids == [1]
    queue.nack("o", 1, delay_ms=60_000)
    claims = [queue.claim("o", count=9)]
    while claims[-1].more:
        claims.append(queue.claim("o", count=9))

    assert [claim.ids for claim in claims][-1] == [2 * MOST_PULLED + 1]
    assert len(claims) <= 3
    assert claims[-1].wait_until_ms == NOW_MS + 30_000


def test_busy_lane_takes_nothing_out_of_the_log(queue: Queue) -> None:
    queue.register("o", options("ordered"))
    queue.publish("1")
    queue.claim("o")
    fill(queue, 200)

    assert (queue.claim("o", "w2").ids, queue.claim("o", "w2").more) == ([], 0)
    assert queue.inspect_consumer("o")["in_log"] == 200


def test_message_for_one_comes_behind_what_it_has_in_the_log(queue: Queue) -> None:
    queue.publish("1", "2")
    assert queue.publish("3", to="a") == taken(3, consumers=1)
    queue.publish("4")

    assert queue.claim("a", count=9).ids == [1, 2, 3, 4]
    assert queue.claim("b", count=9).ids == [1, 2, 4]


def test_message_for_one_that_is_far_behind_is_refused_until_its_messages_are_pulled(queue: Queue) -> None:
    fill(queue, MOST_PULLED)
    queue.publish("one more")
    before = {key: queue.client.dump(key) for key in queue.client.scan_iter()}
    with pytest.raises(ConsumerBehind, match="consumer a has more than 1000 messages in the log"):
        queue.publish("x", to="a")
    assert {key: queue.client.dump(key) for key in queue.client.scan_iter()} == before

    assert (queue.pull("a", limit=MOST_PULLED), queue.pull("a"), queue.pull("a")) == (1, 0, 0)
    assert queue.publish("x", to="a").messages[0].consumers == 1
    assert queue.client.llen(queue.of("a").ready[0]) == MOST_PULLED + 2


def test_message_that_is_due_comes_behind_all_that_waits_in_the_log(queue: Queue) -> None:
    later = int(queue.publish("later", due=["+5"]).messages[0].id)
    fill(queue, 1_500)
    queue.now = NOW_MS + 5

    claimed: list[int] = []
    while page := queue.claim("a", count=400).ids:
        claimed += page

    assert claimed == [*range(later + 1, later + 1_501), later]


def test_consumer_that_gets_a_bound_has_all_its_messages_in_its_lists(queue: Queue) -> None:
    queue.publish("1", "2")
    queue.configure("a", options(max_length=3))
    assert queue.client.zrange(queue.keys.cursors, 0, -1) == [b"b"]
    queue.publish("3")
    assert queue.client.lrange(queue.of("a").ready[0], 0, -1) == [b"1", b"2", b"3"]

    queue.configure("a", options())
    queue.publish("4")

    assert queue.inspect_consumer("a")["in_log"] == 1
    assert queue.claim("a", count=9).ids == [1, 2, 3, 4]
    assert queue.claim("b", count=9).ids == [1, 2, 3, 4]


def test_bound_for_a_consumer_that_is_far_behind_is_refused_until_its_messages_are_pulled(queue: Queue) -> None:
    fill(queue, MOST_PULLED + 100)
    with pytest.raises(ConsumerBehind, match="consumer a"):
        queue.configure("a", options(max_length=3))
    while queue.pull("a"):
        pass
    assert queue.configure("a", options(max_length=3)) == queue.list_consumers().membership


def test_mode_stays_while_a_message_is_in_the_log(queue: Queue) -> None:
    queue.publish("1")
    with pytest.raises(UsageError, match="while no message waits"):
        queue.configure("a", options("ordered"))
    queue.ack("a", *queue.claim("a").ids)
    queue.configure("a", options("ordered"))


def test_consumer_that_leaves_owes_what_was_in_the_log_and_nothing_that_came_since(queue: Queue) -> None:
    queue.publish("1", "2", "3")
    assert queue.unregister("a", limit=1) == {"released": 1, "freed": 0, "more": 1}
    leaving = dict(queue.members)
    queue.refresh()
    queue.publish("4")
    queue.members = leaving

    assert queue.inspect_consumer("a")["in_log"] == 0
    assert queue.unregister("a", limit=9) == {"released": 2, "freed": 0, "more": 0}
    queue.refresh()
    assert queue.verify(1, 4) == {1: (1, 1, 1, "1g"), 4: (1, 1, 1, "1g")}
    assert queue.ack("b", *queue.claim("b", count=9).ids) == {"acked": 4, "freed": 4}


def test_purge_takes_what_is_in_the_log_for_this_consumer_only(queue: Queue) -> None:
    queue.publish("1", "2", "3")
    queue.publish("4")

    assert queue.purge("a", limit=3) == {"released": 3, "freed": 0, "more": 1}
    assert queue.purge("a", limit=3) == {"released": 1, "freed": 0, "more": 0}
    assert (queue.claim("a").ids, queue.claim("b", count=9).ids) == ([], [1, 2, 3, 4])


def test_log_is_trimmed_behind_the_slowest_consumer(queue: Queue) -> None:
    for number in range(500):
        queue.publish(str(number))
    for _ in range(5):
        queue.claim("a", count=100)
    assert queue.client.xlen(queue.keys.log) == 500
    for _ in range(4):
        queue.claim("b", count=100)
    # The server removes whole nodes of a hundred entries.
    assert 100 <= queue.client.xlen(queue.keys.log) <= 250

    queue.unregister("b", force=True)
    assert queue.client.xlen(queue.keys.log) <= 100
    queue.unregister("a", force=True)
    assert queue.client.xlen(queue.keys.log) == 0


def test_queue_whose_consumers_all_have_lists_has_no_log(single: RedisClient) -> None:
    queue = Queue(client=single)
    queue.register("a", options(max_length=9))
    queue.publish("1")
    assert single.exists(queue.keys.log) == 0
    queue.register("b")
    queue.publish("2")
    assert single.xlen(queue.keys.log) == 1
    assert (queue.claim("a", count=9).ids, queue.claim("b", count=9).ids) == ([1, 2], [2])


@pytest.mark.parametrize("left", [None, "1"])
def test_number_that_the_state_has_lost_is_taken_from_the_log(queue: Queue, left: str | None) -> None:
    queue.publish("1", "2")
    queue.claim("a", count=9)
    queue.client.hdel(queue.keys.state, "logged")
    if left is not None:
        queue.client.hset(queue.keys.state, "logged", left)

    queue.publish("3")

    assert queue.claim("a", "w2", count=9).ids == [3]
    assert queue.claim("b", count=9).ids == [1, 2, 3]


def test_log_that_was_removed_leaves_no_worker_asking_for_ever(queue: Queue) -> None:
    queue.publish("1", "2")
    queue.client.delete(queue.keys.log)

    assert (queue.claim("a").ids, queue.claim("a").more) == ([], 0)
    queue.publish("3")
    assert queue.claim("a").ids == [3]


def test_expired_messages_that_come_next_in_the_log_are_passed_over_by_reap(queue: Queue) -> None:
    for record in "12":
        queue.publish(record, ttl_ms=10)
    queue.publish("3", "4", ttl_ms=[10, 99])
    queue.publish("5", ttl_ms=99)
    queue.publish("6", ttl_ms=10)
    queue.now = NOW_MS + 10
    queue.expire()

    assert queue.reap("a").skipped == 3
    assert queue.inspect_consumer("a")["in_log"] == 2
    assert queue.reap("a").skipped == 0
    assert queue.claim("a", count=9).ids == [4, 5]


def test_consumers_of_an_earlier_version_are_taken_over(queue: Queue) -> None:
    queue.register("bounded", options(max_length=9))
    # An earlier version has written ids into lists, and knew no cursors.
    queue.client.delete(queue.keys.cursors)
    queue.client.rpush(queue.of("a").ready[0], "1")
    queue.client.hset(queue.keys.references, "1", "1")
    queue.client.hset(queue.keys.messages, "1", f"{NOW_MS}:{NOW_MS + 99}:0:old")
    queue.client.hset(queue.keys.state, "next_id", "2")
    assert [each.cursor for each in queue.list_consumers().members] == [-1, -1, -1]

    assert sorted(queue.take_over(dry_run=True).consumers) == [b"a", b"b"]
    assert queue.list_consumers().membership == queue.membership
    assert sorted(queue.take_over().consumers) == [b"a", b"b"]
    assert queue.take_over().consumers == ()

    assert queue.list_consumers().membership > queue.membership
    queue.refresh()
    queue.publish("2")
    assert queue.claim("a", count=9).ids == [1, 2]
    assert (queue.claim("b").ids, queue.claim("bounded").ids) == ([2], [2])


@pytest.mark.parametrize("size", [1, 3, 100])
def test_id_is_found_in_the_log_wherever_it_is(queue: Queue, size: int) -> None:
    for first in range(1, 301, size):
        queue.publish(*(str(number) for number in range(first, min(first + size, 301))))
    queue.publish("for a", to="a")

    for first in range(1, 301, 60):
        found = queue.verify(*range(first, first + 60))
        assert {row.places for row in found.values()} == {"1r 2g"}
    assert queue.verify(301)[301].places == "1r"


def test_message_that_fails_again_and_again_lets_all_others_pass(queue: Queue) -> None:
    queue.publish(*"12345")
    for record in "678":
        queue.publish(record)
    queue.register("late")

    seen: list[int] = []
    for turn in range(16):
        [taken_up] = queue.claim("a", f"t{turn}").ids
        queue.nack("a", taken_up, token=f"t{turn}")
        seen.append(taken_up)

    assert seen == [*range(1, 9)] * 2


def test_dead_letters_that_are_retried_come_behind_what_is_in_the_log(queue: Queue) -> None:
    queue.publish("1")
    queue.nack("a", *queue.claim("a").ids, max_attempts=1)
    queue.publish("2", "3")

    assert queue.retry_dead("a", 1) == {"retried": 1}

    claim = queue.claim("a", count=9)
    assert (claim.ids, [message.attempt for message in claim.messages]) == ([2, 3, 1], [1, 1, 1])


def test_lane_whose_messages_have_all_expired_goes_on_in_the_log(queue: Queue) -> None:
    queue.register("o", options("ordered"))
    fill(queue, 100)
    queue.client.delete(queue.keys.messages)
    queue.publish("1", "2")
    queue.ack("o", *queue.claim("o").ids)
    queue.pull("o", limit=1)
    queue.publish("3")

    assert queue.claim("o", count=9).ids == [102]
    queue.client.hdel(queue.keys.messages, "102")
    queue.ack("o", 102)
    queue.publish("4")
    first = queue.claim("o", count=9)
    claims = [first, queue.claim("o", count=9)] if first.more else [first]
    assert [one for claim in claims for one in claim.ids] == [103]


def test_bound_that_was_given_and_taken_by_an_earlier_version_costs_no_message(queue: Queue) -> None:
    queue.publish("1", "2")
    # An earlier version changes the options alone.
    queue.client.hset(queue.keys.options, "a", options(max_length=9))
    queue.members["a"] = options(max_length=9)

    queue.configure("a", options())

    assert queue.claim("a", count=9).ids == [1, 2]


def test_take_over_removes_cursors_of_nobody(queue: Queue) -> None:
    queue.client.zadd(queue.keys.cursors, {"gone": 0})
    assert queue.take_over(dry_run=True).consumers == ()
    assert queue.client.zscore(queue.keys.cursors, "gone") == 0
    assert queue.take_over().consumers == ()
    assert queue.client.zrange(queue.keys.cursors, 0, -1) == [b"a", b"b"]


def test_whoever_waits_is_woken_when_a_bound_empties_the_log(queue: Queue) -> None:
    queue.publish("1")
    queue.configure("a", options(max_length=9))
    assert queue.client.xlen(queue.of("a").wakes) == 1
