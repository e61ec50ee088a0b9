"""A message that is published for later reaches the same consumers, at its time, and nobody before."""

from __future__ import annotations

import pytest
from lua_fanout import DAY_MS, NOW_MS, Queue, options, taken

from queuekeeper.errors import MembershipChanged, QueueFull, UsageError
from queuekeeper.redis_client import RedisClient

pytestmark = pytest.mark.lua


def at(instant: int, queue: Queue) -> Queue:
    """Return a queue at an instant behind the first one."""
    return queue.at(NOW_MS + instant)


def test_message_comes_at_its_time_to_every_member_and_lives_from_then_on(client: RedisClient) -> None:
    queue = Queue(client=client)
    queue.register("a")
    queue.register("b")

    assert queue.publish("later", "now", due=["+100", ""], ttl_ms=50) == taken(1, 2, consumers=2)

    first = queue.claim("a", count=9)
    assert (first.records, first.wait_until_ms) == ([b"now"], NOW_MS + 100)
    queue.ack("a", 2)
    assert at(99, queue).claim("a", "t2").ids == []
    assert client.hget(queue.keys.messages, "1") == b"%d:%d:0:later" % (NOW_MS + 100, NOW_MS + 150)
    assert at(100, queue).claim("a", "t3").records == [b"later"]
    assert queue.ack("a", 1, token="t3") == {"acked": 1, "freed": 0}
    late = at(150, queue).claim("b", count=9)
    assert (late.ids, late.skipped) == ([], 2)
    assert client.exists(queue.keys.messages, queue.keys.references, queue.of("b").delayed) == 0


@pytest.mark.parametrize("due", ["", "0", f"{NOW_MS}", "+0", f"{NOW_MS - DAY_MS}"])
def test_message_whose_time_has_come_is_in_line_at_once(client: RedisClient, due: str) -> None:
    queue = Queue(client=client)
    queue.register("a", options("ordered", lanes=3))
    queue.publish("1", "2", order_hashes=[1, 1], due=["", due])
    assert queue.waiting("a", lane=1) == [1, 2]
    assert client.zcard(queue.of("a").delayed) == 0


def test_messages_come_in_the_order_of_their_times_and_of_one_time_in_their_own(client: RedisClient) -> None:
    queue = Queue(client=client)
    queue.register("a")
    # Numbers with another number of digits, and more of one instant than a claim puts in line.
    client.hset(queue.keys.state, "next_id", 995)
    for _ in range(2):
        queue.publish(*map(str, range(100)), due=[f"{NOW_MS + 50}"] * 100)
    queue.publish("first", due=["+49"])

    queue.now = NOW_MS + 50
    claims = [queue.claim("a", f"t{number}", count=1_000) for number in range(3)]

    assert [each.more for each in claims] == [1, 1, 0]
    assert [one for each in claims for one in each.ids] == [1_195, *range(995, 1_195)]


def test_retry_and_message_for_later_of_one_instant_are_due_at_it(client: RedisClient) -> None:
    queue = Queue(client=client)
    queue.register("a")
    queue.publish("1", "2", due=["", "+5"])
    queue.claim("a")
    assert queue.nack("a", 1, delay_ms=5) == {"word": "retried", "due_ms": b"%d" % (NOW_MS + 5)}
    assert queue.inspect_consumer("a")["delayed"] == 2
    assert queue.inspect_consumer("a")["due_ms"] == NOW_MS + 5
    assert at(4, queue).claim("a", "t2").wait_until_ms == NOW_MS + 5
    found = at(5, queue).claim("a", "t3", count=9)
    assert [(each.id, each.attempt) for each in found.messages] == [(1, 2), (2, 1)]


def test_message_is_put_into_its_lane_by_a_claim_and_by_upkeep(client: RedisClient) -> None:
    queue = Queue(client=client)
    queue.register("a", options("ordered", lanes=3))
    queue.publish("1", "2", "3", order_hashes=[1, 2, 4], due=["+10", "+10", "+20"])
    queue.publish("4", order_hashes=[1])

    assert at(10, queue).claim("a", count=9).ids == [4, 2]
    assert at(20, queue).reap("a").requeued == 0

    assert queue.waiting("a", lane=1) == [1, 3]
    assert queue.ack("a", 4, 2) == {"acked": 2, "freed": 2}
    assert at(20, queue).claim("a", "t2", count=9).ids == [1]
    assert client.exists(queue.of("a").delayed) == 0


def test_message_to_one_is_its_alone_and_a_repetition_stores_nothing(client: RedisClient) -> None:
    queue = Queue(client=client)
    queue.register("a")
    queue.register("b")
    published = [queue.publish("x", to="b", due=["+9"], deduplication_ids=["d"]).messages for _ in range(2)]
    assert published == [((b"1", 1, 0),), ((b"1", 1, 1),)]
    assert (client.zcard(queue.of("a").delayed), client.zrange(queue.of("b").delayed, 0, -1)) == (0, [b"1"])


def test_who_registers_later_adopts_what_is_not_due_and_gets_it_at_its_time(client: RedisClient) -> None:
    queue = Queue(client=client)
    queue.publish("held", "held too", due=["+10", ""])
    queue.register("a", start="held")
    assert queue.adopt("a") == {"adopted": 2, "more": 0}
    queue.publish("3", order_hashes=[1], due=["+20"])
    queue.register("late", options("ordered", lanes=2), start="retained")
    assert queue.adopt("late", 3, 2, 1) == {"adopted": 3, "more": 0}

    assert queue.claim("a", count=9).ids == [2]
    assert queue.claim("late", count=9).ids == [2]
    found = queue.verify(1, 3)
    assert {one: (each.has_message, each.references, each.has_expiry) for one, each in found.items()} == {
        1: (1, 2, 1), 3: (1, 2, 1)
    }  # fmt: skip
    queue.ack("late", 2)
    for name in ("a", "late"):
        assert at(10, queue).claim(name, "t2", count=9).ids == [1]
        assert at(20, queue).claim(name, "t3", count=9).ids == [3]


def test_what_waits_for_its_time_takes_room_and_is_refused_and_not_dropped(client: RedisClient) -> None:
    queue = Queue(client=client)
    queue.register("drops", options(max_length=3, when_full="drop_oldest"))
    queue.publish("1", "2", "3", due=["+9", "", "+9"])
    # The oldest in line goes for what comes, be it for later or not.
    assert queue.publish("4", due=["+9"]).dropped == 0
    assert queue.publish("5").dropped == 1
    before = client.zrange(queue.of("drops").delayed, 0, -1)
    with pytest.raises(QueueFull, match="consumer drops has no room"):
        queue.publish("6", due=["+9"])
    assert before == client.zrange(queue.of("drops").delayed, 0, -1) == [b"1", b"3", b"4"]
    assert client.hlen(queue.keys.messages) == 4

    queue.unregister("drops", force=True)
    queue.refresh()
    assert client.exists(queue.keys.messages, queue.keys.references, queue.keys.expiries) == 0
    queue.register("rejects", options("ordered", lanes=2, max_length=2))
    queue.publish("1", "2", order_hashes=[0, 1], due=["+9", ""])
    for due in ("+9", ""):
        with pytest.raises(QueueFull, match="consumer rejects has no room"):
            queue.publish("3", order_hashes=[1], due=[due])
    assert queue.publish("3", order_hashes=[0]).messages[0].consumers == 1


def test_what_waits_for_its_time_goes_with_a_purge_and_nothing_is_left(client: RedisClient) -> None:
    queue = Queue(client=client)
    queue.register("a")
    queue.publish("1", "2", due=["+9", ""])
    assert queue.purge("a") == {"released": 2, "freed": 2, "more": 0}
    own = queue.of("a")
    keys = queue.keys
    assert client.exists(keys.messages, keys.references, keys.expiries, own.delayed, *own.ready) == 0
    assert client.hget(keys.state, "bytes") == b"0"


def test_message_that_is_not_due_is_taken_back_from_everybody(client: RedisClient) -> None:
    queue = Queue(client=client)
    queue.register("a")
    queue.register("b", options("ordered", lanes=2))
    published = queue.publish("1", "2", "3", due=["+9", "+9", ""]).messages
    assert [message.id for message in published] == [b"1", b"2", b"3"]

    assert [queue.cancel(one) for one in (1, 1, 3, 4)] == [1, 0, 0, 0]
    with pytest.raises(MembershipChanged, match=f"the membership is now {queue.membership}"):
        queue.cancel(2, membership=1)

    assert client.hkeys(queue.keys.messages) == client.hkeys(queue.keys.references) == [b"2", b"3"]
    assert client.zrange(queue.of("a").delayed, 0, -1) == client.zrange(queue.of("b").delayed, 0, -1) == [b"2"]
    assert client.hget(queue.keys.state, "cancelled") == b"1"
    assert at(9, queue).cancel(2) == 0
    assert [at(9, queue).claim(name, count=9).ids for name in ("a", "b")] == [[3, 2], [3]]


def test_message_that_is_held_for_later_is_taken_back(client: RedisClient) -> None:
    queue = Queue(client=client)
    queue.publish("1", "2", due=["+9", "+9"])
    assert (queue.cancel(1), client.lrange(queue.keys.held, 0, -1)) == (1, [b"2"])
    assert client.hget(queue.keys.state, "bytes") == b"%d" % client.hstrlen(queue.keys.messages, "2")


@pytest.mark.parametrize("due", ["soon", "-1", "+-1", "1.5", "+", "++1", f"{2**60}"])
def test_what_is_no_time_is_refused_and_nothing_is_stored(client: RedisClient, due: str) -> None:
    queue = Queue(client=client)
    queue.register("a")
    with pytest.raises(UsageError, match="when a message is due is neither empty, an instant, nor"):
        queue.publish("x", "y", due=["", due])
    assert client.exists(queue.keys.messages) == 0
