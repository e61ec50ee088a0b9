"""Messages whose lives are over: whoever meets one frees it, and its payload has an expiry of its own where it can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lua_fanout import DAY_MS, NOW_MS, Queue, options
from script_callers import eventually

from queuekeeper.redis_client import RedisClient

pytestmark = pytest.mark.lua

LATE_MS = 600_000


@pytest.fixture
def queue(single: RedisClient) -> Queue:
    """A queue with two consumers, and five messages for both that have expired."""
    found = Queue(client=single)
    found.register("a")
    found.register("b")
    found.publish("1", "2", "3", "4", "5", ttl_ms=10)
    found.now = NOW_MS + 10
    return found


def counted(queue: Queue) -> tuple[int, int, int]:
    """Return messages that expired, stored messages, and the bytes that they are said to take."""
    client: Any = queue.client
    expired, size = client.hmget(queue.keys.state, "expired", "bytes")
    return int(expired or 0), client.hlen(queue.keys.messages), int(size)


def stored_bytes(queue: Queue) -> int:
    return sum(map(len, queue.client.hvals(queue.keys.messages)))


def test_publish_frees_32_expired_messages_with_each_16th_that_it_stores(single: RedisClient) -> None:
    queue = Queue(client=single)
    queue.register("a")
    queue.publish(*map(str, range(40)), ttl_ms=10)
    queue.now = NOW_MS + 10

    queue.publish(*"1234567")
    assert counted(queue) == (0, 47, stored_bytes(queue))
    queue.publish("8")
    assert counted(queue) == (32, 16, stored_bytes(queue))
    queue.publish("8", *map(str, range(16)))

    assert counted(queue) == (40, 25, stored_bytes(queue))
    assert single.hlen(queue.keys.references) == single.zcard(queue.keys.expiries) == 25
    claim = queue.claim("a", count=1_000)
    assert (len(claim.ids), claim.skipped) == (25, 40)


def test_publish_of_what_was_published_before_frees_nothing(queue: Queue) -> None:
    queue.publish(*map(str, range(10)), deduplication_ids=[f"d{number}" for number in range(10)])
    queue.publish("last", ttl_ms=10, deduplication_ids=["d"])
    queue.now = NOW_MS + 20
    before = counted(queue)

    for _ in range(20):
        queue.publish("last", deduplication_ids=["d"])

    assert counted(queue) == before


def test_claim_frees_expired_messages_that_another_consumer_never_claims(queue: Queue) -> None:
    claim = queue.claim("a", count=9)

    assert (claim.ids, claim.skipped) == ([], 5)
    assert counted(queue) == (5, 0, 0)
    assert queue.client.exists(queue.keys.references, queue.keys.expiries) == 0
    assert queue.claim("b", count=9).skipped == 5
    assert queue.client.hget(queue.of("b").details, "expired") == b"5"
    assert queue.verify(1, 5) == {1: (0, -1, 0, ""), 5: (0, -1, 0, "")}


def test_claim_of_one_message_does_not_free_those_behind_it(queue: Queue) -> None:
    queue.publish("6", to="a")
    before = queue.client.hlen(queue.keys.messages)
    queue.client.lmove(queue.of("a").ready[0], queue.of("a").ready[0], "RIGHT", "LEFT")

    assert queue.claim("a").records == [b"6"]

    assert queue.client.hlen(queue.keys.messages) == before


@pytest.mark.parametrize("meet", ["publish", "claim"])
def test_message_that_is_worked_on_behind_its_end_stays_for_whoever_takes_it_up_late(
    single: RedisClient, meet: str
) -> None:
    queue = Queue(client=single)
    queue.register("a")
    queue.register("b")
    queue.publish("1", ttl_ms=10)
    queue.claim("a", lease_ms=100)

    def others_meet_it() -> None:
        if meet == "publish":
            queue.publish(*map(str, range(16)), to="b", ttl_ms=DAY_MS)
        else:
            queue.claim("b")

    queue.now = NOW_MS + 100 + LATE_MS - 1
    others_meet_it()
    assert queue.client.hexists(queue.keys.messages, "1")
    assert queue.at(NOW_MS + 200).claim("a", "w2", lease_ms=100).ids == [1]
    queue.now = NOW_MS + 300 + LATE_MS
    others_meet_it()

    if meet == "publish":
        assert not queue.client.hexists(queue.keys.messages, "1")
        assert queue.ack("a", 1, token="w2") == {"acked": 1, "freed": 0}
    else:
        # It is not in this consumer's list any more, and so it does not meet it.
        assert queue.ack("a", 1, token="w2") == {"acked": 1, "freed": 1}


def test_held_messages_that_nobody_adopted_count_as_expired(single: RedisClient) -> None:
    queue = Queue(client=single)
    queue.publish("short", ttl_ms=10)
    queue.now = NOW_MS + 10
    queue.register("a", start="held")

    queue.adopt("a")

    assert counted(queue) == (1, 0, 0)


# Payloads with an expiry of their own.


def has_field_expiry(client: RedisClient) -> bool:
    """Tell whether the server can: Redis from 8.0, Valkey from 9.0."""
    found: Any = client.info("server")
    version = found.get("valkey_version") or found["redis_version"]
    return int(version.split(".")[0]) >= (9 if "valkey_version" in found else 8)


def ends_ms(queue: Queue, message_id: int) -> int | None:
    """Return when a payload goes by itself; none when it does not."""
    if not has_field_expiry(queue.client):
        return None
    client: Any = queue.client
    found = client.execute_command("HPEXPIRETIME", queue.keys.messages, "FIELDS", 1, message_id)
    return None if found[0] < 0 else int(found[0])


def life_end_of(queue: Queue, message_id: int) -> int:
    found: Any = queue.client.zscore(queue.keys.expiries, str(message_id))
    return int(found)


def test_payload_goes_by_itself_some_time_after_its_message(single: RedisClient) -> None:
    queue = Queue(client=single, now="")
    queue.register("a")
    queue.publish("1", ttl_ms=60_000)
    queue.publish("2", "3", "4", "5", ttl_ms=[3_600_000, 3_600_000, 60_000, 7_200_000])

    for message_id in range(1, 6):
        life_end_ms = life_end_of(queue, message_id)
        expected = life_end_ms + LATE_MS if has_field_expiry(single) else None
        assert ends_ms(queue, message_id) == expected


def test_payload_has_no_expiry_where_the_caller_says_what_time_it_is(single: RedisClient) -> None:
    queue = Queue(client=single, now=1_000)
    queue.register("a")
    queue.publish("1", ttl_ms=1)

    assert ends_ms(queue, 1) is None
    assert queue.client.hexists(queue.keys.messages, "1")


KEPT: dict[str, Callable[[Queue], Any]] = {
    "claim": lambda queue: None,
    "extend": lambda queue: queue.extend("a", 1, lease_ms=7_200_000),
    "nack": lambda queue: queue.nack("a", 1, delay_ms=7_200_000),
    "dead letter": lambda queue: queue.nack("a", 1, max_attempts=1),
    "retry of a dead letter": lambda queue: (queue.nack("a", 1, max_attempts=1), queue.retry_dead("a", 1)),
}


@pytest.mark.parametrize("act", KEPT)
def test_payload_stays_at_least_as_long_as_its_message(single: RedisClient, act: str) -> None:
    queue = Queue(client=single, now="")
    queue.register("a")
    queue.publish("1", ttl_ms=60_000)
    first_end_ms = life_end_of(queue, 1)
    queue.claim("a", lease_ms=3_600_000)

    KEPT[act](queue)

    life_end_ms = life_end_of(queue, 1)
    assert life_end_ms > first_end_ms
    assert ends_ms(queue, 1) == (life_end_ms + LATE_MS if has_field_expiry(single) else None)


def test_payload_of_a_message_for_later_stays_until_its_life_from_then_on_is_over(single: RedisClient) -> None:
    queue = Queue(client=single, now="")
    queue.register("a")
    queue.publish("1", "2", ttl_ms=60_000, due=["", "+3600000"])
    assert life_end_of(queue, 2) - life_end_of(queue, 1) == 3_600_000
    assert ends_ms(queue, 2) == (life_end_of(queue, 2) + LATE_MS if has_field_expiry(single) else None)


def test_payload_of_a_message_that_stalls_too_often_is_kept_as_a_dead_letter(single: RedisClient) -> None:
    queue = Queue(client=single, now="")
    queue.register("a")
    queue.publish("1", ttl_ms=60_000)
    queue.claim("a", lease_ms=1)
    eventually(lambda: queue.reap("a", max_stalls=0).dead == 1)

    life_end_ms = life_end_of(queue, 1)
    assert ends_ms(queue, 1) == (life_end_ms + LATE_MS if has_field_expiry(single) else None)


@pytest.fixture
def vanished(queue: Queue) -> Queue:
    """The same queue after the server has removed the payloads of all but the last message."""
    if has_field_expiry(queue.client):
        client: Any = queue.client
        client.execute_command("HPEXPIREAT", queue.keys.messages, 1, "FIELDS", 4, 1, 2, 3, 4)
        eventually(lambda: queue.client.hlen(queue.keys.messages) == 1)
    else:
        queue.client.hdel(queue.keys.messages, *range(1, 5))
    return queue


FREED: dict[str, Callable[[Queue], Any]] = {
    "claim": lambda queue: queue.claim("a", count=9),
    "expire": lambda queue: queue.expire(),
    "publish": lambda queue: queue.publish(*"0123456789abcdef", to="b"),
    "purge": lambda queue: (queue.purge("a"), queue.purge("b"), queue.expire()),
    "unregister": lambda queue: (queue.unregister("a"), queue.unregister("b"), queue.expire()),
}


@pytest.mark.parametrize("act", FREED)
def test_message_whose_payload_went_by_itself_is_like_any_that_has_expired(vanished: Queue, act: str) -> None:
    assert vanished.verify(1, 5) == {1: (0, -1, 0, "1g 2g"), 5: (1, 2, 1, "1g 2g")}

    FREED[act](vanished)

    expired, messages, size = counted(vanished)
    freed = int(vanished.client.hget(vanished.keys.state, "freed") or 0)
    assert expired + freed == 5
    assert expired >= 4
    for key in (vanished.keys.references, vanished.keys.messages):
        assert vanished.client.hlen(key) == messages
    assert vanished.client.zcard(vanished.keys.expiries) == messages
    # Nobody knows what the others took; the sum is right again when nothing is left.
    assert size >= stored_bytes(vanished)
    assert messages or size == 0


def test_lanes_and_dead_letters_bear_payloads_that_went_by_themselves(single: RedisClient) -> None:
    queue = Queue(client=single)
    queue.register("a", options("ordered", lanes=2, dead_retention_ms=20))
    queue.publish("dead", "1", "2", ttl_ms=10, order_hashes=[0, 0, 1])
    queue.nack("a", queue.claim("a").ids[0], max_attempts=1)
    queue.now = NOW_MS + 30_000
    single.hdel(queue.keys.messages, 1, 2, 3)

    assert queue.peek("a").messages[0].message == b""
    assert (queue.claim("a", count=9).ids, queue.retry_dead("a", 1)) == ([], {"retried": 0, "missing": (b"1",)})
    queue.expire()

    assert counted(queue) == (3, 0, 0)
