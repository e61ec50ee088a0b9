"""A publish reaches every member or nobody, once, and payloads are stored once."""

from __future__ import annotations

from typing import Any, cast

import pytest
from lua_fanout import IN_ORDER, NOW_MS, Queue, options, taken

from queuekeeper.errors import MembershipChanged, NoConsumer, QueueFull, UsageError
from queuekeeper.redis_client import RedisClient

pytestmark = pytest.mark.lua


def everything(queue: Queue) -> dict[str, bytes]:
    """Return all that a server holds of a queue."""
    keys = [*queue.keys]
    for name in queue.members:
        own = queue.of(name)
        keys += [own.leases, own.delayed, own.dead, own.details, own.wakes, *own.ready]
    return {key: dumped for key in keys if (dumped := queue.client.dump(key)) is not None}


def test_message_reaches_every_member_and_is_freed_by_the_last_ack(client: RedisClient) -> None:
    queue = Queue(client=client)
    queue.register("a")
    queue.register("b")

    assert queue.publish("x", "y") == taken(1, 2, consumers=2)

    assert queue.claim("a", count=5).records == [b"x", b"y"]
    assert queue.claim("b", count=1).records == [b"x"]
    assert queue.ack("a", 1, 2) == {"acked": 2, "freed": 0}
    assert client.hlen(queue.keys.messages) == 2
    assert queue.ack("b", 1) == {"acked": 1, "freed": 1}
    assert client.hkeys(queue.keys.messages) == [b"2"]
    assert client.hgetall(queue.keys.references) == {b"2": b"1"}
    assert client.zcard(queue.keys.expiries) == 1
    assert queue.claim("b").ids == [2]
    assert queue.ack("b", 2) == {"acked": 1, "freed": 1}
    assert client.hget(queue.keys.state, "bytes") == b"0"
    for key in (queue.keys.messages, queue.keys.references, queue.keys.expiries, queue.of("b").leases):
        assert client.exists(key) == 0


def test_publisher_with_an_old_membership_is_refused_and_nothing_is_stored(client: RedisClient) -> None:
    queue = Queue(client=client)
    queue.register("a")
    late = Queue(client=client)
    late.refresh()
    queue.register("b")
    before = everything(queue)

    with pytest.raises(MembershipChanged, match=f"the membership is now {queue.membership}"):
        late.publish("x")

    assert everything(queue) == before
    late.refresh()
    assert late.publish("x").messages[0].consumers == 2


def test_membership_of_a_server_that_forgot_everything_is_not_taken_for_the_new_one(client: RedisClient) -> None:
    late = Queue(client=client)
    late.register("a")
    client.flushall()
    queue = Queue(client=client)
    queue.register("b")

    with pytest.raises(MembershipChanged):
        late.publish("1")
    for chosen in (options(max_length=5), options(max_length=6)):
        before = queue.membership
        assert queue.configure("b", chosen) > before
    queue.unregister("b")
    assert queue.list_consumers().membership > queue.membership > late.membership


def test_membership_without_all_its_members_is_refused(client: RedisClient) -> None:
    queue = Queue(client=client)
    queue.register("a")
    queue.register("b")
    del queue.members["b"]

    with pytest.raises(UsageError, match="the queue has 2 members"):
        queue.publish("x", due=["+5"])


def test_message_for_one_member_reaches_it_alone(client: RedisClient) -> None:
    queue = Queue(client=client)
    queue.register("a")
    queue.register("b")

    assert queue.publish("x", to="b") == taken(1, consumers=1)

    assert queue.claim("a").ids == []
    assert queue.claim("b").ids == [1]
    assert queue.ack("b", 1) == {"acked": 1, "freed": 1}


def test_consumer_that_registers_gets_what_is_published_from_then_on(client: RedisClient) -> None:
    queue = Queue(client=client)
    queue.register("a")
    queue.publish("before")
    before = queue.membership
    registered = queue.register("b")
    assert (registered.created, registered.membership > before, registered.next_id) == (1, True, 2)
    queue.publish("after")

    assert queue.claim("a", count=5).records == [b"before", b"after"]
    assert queue.claim("b", count=5).records == [b"after"]
    again = queue.register("b", options("ordered"))
    assert (again.created, again.membership, again.next_id) == (0, registered.membership, 3)
    assert again.options == options().encode()


def test_publish_that_is_repeated_with_its_deduplication_id_is_one_message(client: RedisClient) -> None:
    queue = Queue(client=client)
    queue.configure_queue(deduplication_ms=1_000)
    queue.register("a")
    assert queue.publish("x", "y", "x", deduplication_ids=["d1", "", "d1"]) == taken(
        1, 2, 1, consumers=1, is_duplicate=(0, 0, 1)
    )
    queue.claim("a", count=2)
    queue.ack("a", 1, 2)

    assert queue.publish("x", "z", deduplication_ids=["d1", "d2"]) == taken(1, 3, consumers=1, is_duplicate=(1, 0))
    before = everything(queue)
    assert queue.publish("x", deduplication_ids=["d1"]) == taken(1, consumers=1, is_duplicate=(1,))
    assert everything(queue) == before

    queue.now = NOW_MS + 1_000
    queue.publish("later")
    assert client.hlen(queue.keys.deduplications) == client.zcard(queue.keys.remembered) == 0
    assert queue.publish("x", deduplication_ids=["d1"]) == taken(5, consumers=1)


def test_deduplication_id_counts_no_more_once_its_time_is_over(client: RedisClient) -> None:
    queue = Queue(client=client)
    queue.configure_queue(deduplication_ms=1_000)
    queue.register("a")
    assert queue.publish("x", deduplication_ids=["d"]) == taken(1, consumers=1)
    queue.now = NOW_MS + 999
    assert queue.publish("x", deduplication_ids=["d"]) == taken(1, consumers=1, is_duplicate=(1,))

    # Nobody has published meanwhile, so that nobody has forgotten it.
    queue.now = NOW_MS + 1_000
    assert queue.publish("x", "x", deduplication_ids=["d", "d"]) == taken(2, 2, consumers=1, is_duplicate=(0, 1))

    queue.now = NOW_MS + 1_999
    assert queue.publish("x", deduplication_ids=["d"]) == taken(2, consumers=1, is_duplicate=(1,))
    assert queue.claim("a", count=5).records == [b"x", b"x"]


def test_message_may_ask_for_less_memory_of_its_name_than_the_queue_has(single: RedisClient) -> None:
    queue = Queue(client=single)
    queue.configure_queue(deduplication_ms=1_000)
    queue.register("a")
    queue.publish("x", deduplication_ids=["short"], remembered_ms=10)
    queue.publish("x", deduplication_ids=["long"], remembered_ms=10**9)
    queue.now = NOW_MS + 10

    queue.publish("y")

    assert single.hkeys(queue.keys.deduplications) == [b":long"]
    assert single.zscore(queue.keys.remembered, ":long") == NOW_MS + 1_000
    with pytest.raises(UsageError, match="memory of a deduplication id"):
        queue.publish("x", deduplication_ids=["d"], remembered_ms=0)


def test_publish_names_the_lists_that_its_messages_are_of_and_no_others(single: RedisClient) -> None:
    queue = Queue(client=single)
    queue.register("wide", options("ordered", lanes=64, max_length=3))
    queue.register("three", options("ordered", lanes=3))
    queue.register("all")

    assert queue.publish("a", "b", "c", "d", order_hashes=[130, 66, 5, 66]).messages == (
        (b"1", 3, 0), (b"2", 3, 0), (b"3", 3, 0), (b"4", 3, 0),
    )  # fmt: skip

    assert [queue.waiting("wide", lane=lane) for lane in (2, 5)] == [[1, 2, 4], [3]]
    assert [queue.waiting("three", lane=lane) for lane in range(3)] == [[2, 4], [1], [3]]
    assert queue.claim("all", count=9).ids == [1, 2, 3, 4]


@pytest.mark.parametrize("mode", ["fifo", "ordered"])
def test_full_consumer_is_named_and_nobody_gets_the_message(client: RedisClient, mode: str) -> None:
    queue = Queue(client=client)
    queue.register("free")
    queue.register("slow", options(mode, max_length=2))
    queue.publish("1", "2")
    before = everything(queue)

    with pytest.raises(QueueFull, match="consumer slow has no room"):
        queue.publish("3", deduplication_ids=["d"])

    assert everything(queue) == before
    assert queue.publish("3", to="free").messages == ((b"3", 1, 0),)
    queue.claim("slow")
    assert queue.publish("4").messages == ((b"4", 2, 0),)


def test_full_consumer_may_lose_its_oldest_message_instead(client: RedisClient) -> None:
    queue = Queue(client=client)
    queue.register("a")
    queue.register("slow", options(max_length=2, when_full="drop_oldest"))
    queue.publish("1", "2")
    assert queue.publish("3", to="slow") == taken(3, consumers=1, dropped=1)
    assert queue.publish("4", "5", "6").dropped == 3

    assert queue.claim("slow", count=9).ids == [5, 6]
    assert client.hget(queue.of("slow").details, "dropped") == b"4"
    assert client.hexists(queue.keys.messages, "3") is False
    assert queue.claim("a", count=9).ids == [1, 2, 4, 5, 6]
    queue.ack("a", 1, 2, 4, 5, 6)
    assert client.hkeys(queue.keys.messages) == [b"5", b"6"]


@pytest.mark.parametrize("when_full", ["reject", "drop_oldest"])
def test_messages_that_wait_for_a_retry_take_room(client: RedisClient, when_full: str) -> None:
    queue = Queue(client=client)
    queue.register("a", options(max_length=3, when_full=when_full))
    queue.publish("1", "2", "3")
    queue.claim("a", count=3)
    for message_id in (1, 2, 3):
        queue.nack("a", message_id, delay_ms=1_000)

    if when_full == "reject":
        with pytest.raises(QueueFull, match="consumer a "):
            queue.publish("4")
        return
    assert queue.publish("4").dropped == 0
    assert queue.publish("5", "6").dropped == 2
    assert queue.claim("a", count=9).records == [b"6"]


def test_deduplication_id_counts_once_for_all_and_once_for_each_consumer(client: RedisClient) -> None:
    queue = Queue(client=client)
    for name in ("a", "b"):
        queue.register(name)

    published = [queue.publish("x", to=to, deduplication_ids=["d"]).messages for to in ("", "a", "b", "a", "")]

    assert [message for (message,) in published] == [
        (b"1", 2, 0), (b"2", 1, 0), (b"3", 1, 0), (b"2", 1, 1), (b"1", 2, 1)
    ]  # fmt: skip


def test_messages_for_nobody_are_held_and_adopted_ahead_of_newer_ones(client: RedisClient) -> None:
    queue = Queue(client=client)
    assert queue.publish("1", "2") == taken(1, 2, consumers=0)
    queue.publish("3", "4", "5")

    assert queue.register("a", start="held").adopting == b"held 6"
    queue.publish("6")
    assert queue.claim("a").ids == []
    assert queue.adopt("a", limit=2) == {"adopted": 2, "more": 1}
    assert queue.claim("a").ids == []
    assert queue.adopt("a", limit=3) == {"adopted": 3, "more": 0}
    assert queue.adopt("a") == {"adopted": 0, "more": 0}

    assert queue.register("a", start="held").adopting == b""
    assert queue.claim("a", count=9).ids == [1, 2, 3, 4, 5, 6]
    assert queue.ack("a", *range(1, 7)) == {"acked": 6, "freed": 6}
    assert client.exists(queue.keys.held) == 0


def test_held_message_that_has_expired_is_not_adopted(client: RedisClient) -> None:
    queue = Queue(client=client)
    queue.publish("short", ttl_ms=10)
    queue.publish("long")
    queue.now = NOW_MS + 10
    queue.register("a", start="held")

    assert queue.adopt("a") == {"adopted": 1, "more": 0}

    assert queue.claim("a", count=9).records == [b"long"]
    assert client.hlen(queue.keys.messages) == 1


def test_late_consumer_adopts_what_the_queue_retains_once_and_in_order(client: RedisClient) -> None:
    queue = Queue(client=client)
    queue.register("a")
    queue.publish("1", "2", "3", "4", "5", "6", order_hashes=[0, 1, 0, 1, 0, 1])
    queue.claim("a", count=2)
    queue.ack("a", 1)
    queue.register("late", options("ordered", lanes=2), start="retained")
    queue.publish("7", order_hashes=[1])

    listed = queue.list_ids(queue.keys.references)
    assert listed.cursor == b"0"
    ids = sorted(map(int, listed.ids), reverse=True)
    assert queue.adopt("late", *ids[:4], is_last=False) == {"adopted": 3, "more": 1}
    assert queue.adopt("late", *ids[:4], is_last=False) == {"adopted": 0, "more": 1}
    assert queue.register("late").adopting == b"retained 4"
    assert queue.adopt("late", *ids[4:]) == {"adopted": 2, "more": 0}

    assert queue.waiting("late", lane=0) == [3, 5]
    assert queue.waiting("late", lane=1) == [2, 4, 6, 7]
    assert {found.references for found in queue.verify(2, 3, 4, 5, 6, 7).values()} == {2}
    assert queue.repair(2, 3, 4, 5, 6, 7) == IN_ORDER | {"looked_at": 6}


def test_queue_may_refuse_what_nobody_would_get_and_hold_no_more_than_it_is_told(client: RedisClient) -> None:
    queue = Queue(client=client)
    queue.configure_queue("refuse")
    with pytest.raises(NoConsumer):
        queue.publish("x")
    queue.configure_queue("hold", max_held=2)
    queue.publish("x", "y")
    with pytest.raises(QueueFull, match="too many messages are held"):
        queue.publish("z")

    assert queue.purge_held(limit=1) == {"released": 1, "freed": 1, "more": 1}
    assert queue.purge_held(limit=1) == {"released": 1, "freed": 1, "more": 0}
    assert client.exists(queue.keys.messages) == 0


def test_held_messages_whose_lives_are_over_make_room(client: RedisClient) -> None:
    queue, admin = Queue(client=client), cast("Any", client)
    queue.configure_queue(max_held=3)
    queue.publish("1", "2", ttl_ms=10)
    queue.publish("3", ttl_ms=1_000)
    queue.now = NOW_MS + 10
    # Somebody has met it before: its id is what is left of it.
    for holder in (queue.keys.messages, queue.keys.references):
        admin.hdel(holder, "1")
    admin.zrem(queue.keys.expiries, "1")
    before = everything(queue)
    with pytest.raises(QueueFull, match="too many messages are held"):
        queue.publish("4", "5", "6")
    assert everything(queue) == before

    assert queue.publish("4", "5", ttl_ms=2_000) == taken(4, 5, consumers=0)

    assert admin.lrange(queue.keys.held, 0, -1) == [b"3", b"4", b"5"]
    assert sorted(admin.hkeys(queue.keys.messages)) == [b"3", b"4", b"5"]
    assert admin.hget(queue.keys.state, "expired") == b"1"
    queue.register("late", start="held")
    queue.adopt("late")
    assert queue.claim("late", count=5).records == [b"3", b"4", b"5"]


def test_500_consumers_with_lists_of_their_own_get_a_message_in_one_bounded_call(client: RedisClient) -> None:
    queue = Queue(client=client)
    names = [f"consumer-{number}" for number in range(500)]
    bounded = options(max_length=100)
    queue.members = dict.fromkeys(names, bounded)
    client.hset(queue.keys.options, mapping=dict.fromkeys(names, bounded))
    client.hset(queue.keys.state, mapping={"membership": 500, "members": 500})
    queue.membership = 500

    assert queue.publish("x").messages == ((b"1", 500, 0),)
    assert queue.publish(*"abcde").messages[0] == (b"2", 500, 0)

    assert client.hget(queue.keys.references, "1") == b"500"
    with pytest.raises(UsageError, match="1 to 100"):
        queue.publish(*map(str, range(6)))
    client.hset(queue.keys.references, "1", "2")
    for name, freed in zip(names[-2:], (0, 1), strict=True):
        assert queue.claim(name, count=20).ids == list(range(1, 7))
        assert queue.ack(name, 1) == {"acked": 1, "freed": freed}


def test_queue_has_at_most_1000_members(client: RedisClient) -> None:
    queue = Queue(client=client)
    client.hset(queue.keys.options, mapping={f"c{number}": options() for number in range(1_000)})

    with pytest.raises(QueueFull, match="1000 members"):
        queue.register("one more")


@pytest.mark.parametrize(
    ("ttl_ms", "order_hashes"), [(0, [0]), (-1, [0]), (2**53 + 2, [0]), (1, [-1])], ids=["0", "minus", "large", "hash"]
)
def test_message_without_a_life_or_with_a_bad_hash_is_refused(
    client: RedisClient, ttl_ms: int, order_hashes: list[int]
) -> None:
    queue = Queue(client=client)
    queue.register("a")

    with pytest.raises(UsageError, match="life or order hash"):
        queue.publish("x", ttl_ms=ttl_ms, order_hashes=order_hashes)

    assert client.exists(queue.keys.messages) == 0


def test_payload_of_any_bytes_comes_back_as_it_was(client: RedisClient) -> None:
    queue = Queue(client=client, name="{brace} % {x}")
    queue.register("смарт *")
    payload = bytes(range(256)) * 40

    queue.publish(payload, b"", b":1:2:")

    assert queue.claim("смарт *", count=3).records == [payload, b"", b":1:2:"]
