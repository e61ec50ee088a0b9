"""Leases: who claims has a message alone, until he is done, fails, or his time is over."""

from __future__ import annotations

import pytest
from lua_fanout import DAY_MS, NOW_MS, REAPED, Queue, options
from lua_sessions import command

from queuekeeper.errors import MembershipChanged, QueueFull, UnknownConsumer, UnknownQueue, UsageError
from queuekeeper.redis_client import RedisClient

pytestmark = pytest.mark.lua


@pytest.fixture
def queue(single: RedisClient) -> Queue:
    """A queue with one consumer and five messages."""
    found = Queue(client=single)
    found.register("a")
    found.publish("1", "2", "3", "4", "5")
    return found


def test_claim_hands_a_message_to_one_worker_and_tells_the_deadline(queue: Queue) -> None:
    claim = queue.claim("a", "w1", count=2, lease_ms=500)

    assert (claim.ids, claim.deadline_ms, claim.more) == ([1, 2], NOW_MS + 500, 1)
    assert [message.attempt for message in claim.messages] == [1, 1]
    last = queue.claim("a", "w2", count=9, lease_ms=900)
    assert (last.ids, last.more, last.wait_until_ms) == ([3, 4, 5], 0, NOW_MS + 500)
    assert queue.ack("a", 1, token="w2") == {"acked": 0, "freed": 0, "stale": (b"1",)}
    assert queue.ack("a", 1, 1, 4, 99, token="w1") == {"acked": 1, "freed": 1, "stale": (b"1", b"4", b"99")}


def test_lease_that_has_run_out_goes_back_to_the_head_and_its_token_is_worth_nothing(queue: Queue) -> None:
    queue.claim("a", "w1", count=3, lease_ms=500)
    queue.now = NOW_MS + 499
    assert queue.claim("a", "w2").ids == [4]
    queue.now = NOW_MS + 500

    claim = queue.claim("a", "w3", count=2)

    assert (claim.ids, claim.stalled, claim.dead) == ([1, 2], 3, 0)
    assert [(message.attempt, message.stalls) for message in claim.messages] == [(2, 1), (2, 1)]
    assert queue.ack("a", 1, 3, token="w1") == {"acked": 0, "freed": 0, "stale": (b"1", b"3")}
    assert queue.extend("a", 1, token="w1").stale == (b"1",)
    assert queue.nack("a", 1, token="w1").word == "stale"
    assert queue.return_claimed("a", 1, token="w1") == {"returned": 0, "stale": (b"1",)}
    assert queue.ack("a", 1, token="w3") == {"acked": 1, "freed": 1}
    assert queue.claim("a", count=9).ids == [3, 5]


def test_ack_after_the_deadline_counts_while_nobody_has_ended_the_lease(queue: Queue) -> None:
    queue.claim("a", lease_ms=1)
    queue.now = NOW_MS + 10_000

    assert queue.ack("a", 1) == {"acked": 1, "freed": 1}


def test_lease_that_is_extended_runs_on_from_now(queue: Queue) -> None:
    queue.claim("a", "w1", lease_ms=500)
    queue.now = NOW_MS + 400
    assert queue.extend("a", 1, 2, token="w1", lease_ms=500) == {
        "deadline_ms": b"%d" % (NOW_MS + 900),
        "stale": (b"2",),
    }
    queue.now = NOW_MS + 899

    assert queue.claim("a", "w2", count=9).stalled == 0
    queue.now = NOW_MS + 900
    assert queue.claim("a", "w2", count=9).stalled == 1


def test_message_that_stalls_too_often_becomes_a_dead_letter(queue: Queue) -> None:
    for stalls in range(3):
        claim = queue.claim("a", lease_ms=10, max_stalls=2)
        assert (claim.ids, claim.messages[0].stalls) == ([1], stalls)
        queue.now = int(queue.now) + 10

    claim = queue.claim("a", max_stalls=2)

    assert (claim.ids, claim.stalled, claim.dead) == ([2], 1, 1)
    letters = queue.list_dead("a")
    (letter,) = letters.letters
    assert (letters.total, letter.id, letter.died_ms) == (1, b"1", str(queue.now).encode())
    assert (letter.attempts, letter.stalls, letter.reason) == (3, 3, b"stalled")
    assert letter.message.endswith(b":1")


@pytest.mark.parametrize(("max_stalls", "deaths"), [(3, 2), (1, 1)])
def test_message_whose_lease_ran_out_again_and_again_is_handed_out_alone(
    queue: Queue, max_stalls: int, deaths: int
) -> None:
    for _ in range(deaths):
        assert queue.claim("a", count=3, lease_ms=10, max_stalls=max_stalls).ids == [1, 2, 3]
        queue.now = int(queue.now) + 10

    claims = [queue.claim("a", f"w{number}", count=9, max_stalls=max_stalls) for number in range(4)]

    assert [claim.ids for claim in claims] == [[1], [2], [3], [4, 5]]
    assert [claim.more for claim in claims] == [1, 1, 1, 0]


def test_message_that_is_handed_out_alone_does_not_join_those_ahead_of_it(single: RedisClient) -> None:
    queue = Queue(client=single)
    queue.register("o", options("ordered", lanes=3))
    queue.publish("a", "b", "c", order_hashes=[0, 1, 2])
    for _ in range(2):
        assert queue.claim("o", count=2, lease_ms=10).ids[0] in (1, 3)
        queue.now = int(queue.now) + 10
    stalled = {message.id: message.stalls for message in queue.claim("o", "w1", count=9).messages}
    rest = [queue.claim("o", f"w{number}", count=9) for number in (2, 3)]

    handed = [stalled, *({message.id: message.stalls for message in claim.messages} for claim in rest)]
    assert sorted(one for each in handed for one in each) == [1, 2, 3]
    assert all(len(each) == 1 for each in handed if max(each.values(), default=0) >= 2)


def test_attempts_are_counted_per_consumer_when_a_message_is_claimed(queue: Queue) -> None:
    queue.register("b")
    queue.publish("shared", to="b")
    queue.claim("a", "w1", lease_ms=10)
    queue.now = NOW_MS + 10
    assert queue.claim("a", "w2").messages[0].attempt == 2
    assert queue.nack("a", 1, token="w2", position="head").word == "retried"

    (message,) = queue.claim("a", "w3").messages
    assert (message.id, message.attempt, message.stalls) == (1, 3, 1)
    assert queue.claim("b").messages[0].attempt == 1


def test_failed_message_comes_again_at_the_tail_the_head_or_later(queue: Queue) -> None:
    queue.claim("a", count=3)
    assert queue.nack("a", 1) == {"word": "retried", "due_ms": b"%d" % NOW_MS}
    assert queue.nack("a", 2, position="head").word == "retried"
    assert queue.nack("a", 3, delay_ms=100) == {"word": "retried", "due_ms": b"%d" % (NOW_MS + 100)}

    claim = queue.claim("a", "w2", count=9)
    assert claim.ids == [2, 4, 5, 1]
    assert claim.wait_until_ms == NOW_MS + 100
    queue.now = NOW_MS + 99
    assert queue.claim("a").ids == []
    queue.now = NOW_MS + 100
    (message,) = queue.claim("a").messages
    assert (message.id, message.attempt) == (3, 2)


def test_message_that_has_failed_often_enough_is_kept_as_a_dead_letter_with_its_reason(queue: Queue) -> None:
    queue.register("b")
    queue.claim("a", count=2)
    assert queue.nack("a", 1, max_attempts=2).word == "retried"
    queue.nack("a", 2, max_attempts=1, reason="no such meter")
    queue.claim("a", "w2", count=9)
    assert queue.nack("a", 1, token="w2", max_attempts=2, reason="") == {"word": "dead", "attempts": 2}

    letters = queue.list_dead("a")
    assert letters.total == 2
    assert [(letter.id, letter.reason) for letter in letters.letters] == [(b"1", b""), (b"2", b"no such meter")]
    assert queue.list_dead("a", offset=1, limit=1).letters[0].id == b"2"
    assert queue.client.hget(queue.keys.state, "dead") == b"2"


def test_dead_letter_outlives_its_message_and_can_be_retried_from_zero(queue: Queue) -> None:
    queue.configure("a", options(dead_retention_ms=10 * 86_400_000))
    queue.claim("a", count=2)
    queue.nack("a", 1, max_attempts=1)
    queue.nack("a", 2, max_attempts=1)
    queue.now = NOW_MS + 2 * 86_400_000
    assert queue.expire().pick("expired", "more") == (3, 0)

    assert queue.retry_dead("a", 2, 1, 9) == {"retried": 2, "missing": (b"9",)}

    claim = queue.claim("a", count=9)
    assert (claim.ids, claim.skipped) == ([1, 2], 3)
    assert [message.attempt for message in claim.messages] == [1, 1]
    assert queue.list_dead("a") == {"total": 0}
    assert queue.ack("a", 1, 2) == {"acked": 2, "freed": 2}
    assert queue.client.hkeys(queue.of("a").details) == [
        b"registered_ms", b"claimed", b"dead", b"revived", b"expired", b"acked"
    ]  # fmt: skip


def test_message_that_is_worked_on_or_waits_for_a_retry_is_kept_behind_its_life(single: RedisClient) -> None:
    queue = Queue(client=single)
    queue.register("a")
    queue.publish("short", ttl_ms=10)
    queue.claim("a", lease_ms=100)
    queue.now = NOW_MS + 90
    assert queue.expire().pick("expired", "more") == (0, 0)
    queue.extend("a", 1, lease_ms=100)
    queue.now = NOW_MS + 180
    assert queue.expire().pick("expired", "more") == (0, 0)
    queue.nack("a", 1, delay_ms=1_000)
    queue.now = NOW_MS + 1_179
    assert queue.expire().pick("expired", "more") == (0, 0)
    queue.now = NOW_MS + 1_180
    queue.claim("a")
    queue.nack("a", 1, max_attempts=2)
    assert queue.expire().pick("expired", "more") == (0, 0)
    assert queue.list_dead("a").letters[0].message.endswith(b":short")


def test_retried_dead_letter_that_is_given_back_is_handed_out_again(single: RedisClient) -> None:
    queue = Queue(client=single)
    queue.register("a")
    queue.publish("short", ttl_ms=1_000)
    queue.claim("a")
    queue.nack("a", 1, max_attempts=1)
    queue.now = NOW_MS + 5_000
    queue.retry_dead("a", 1)
    queue.claim("a", "w")
    queue.return_claimed("a", 1, token="w")

    again = queue.claim("a")
    assert [(message.record, message.attempt) for message in again.messages] == [(b"short", 1)]
    assert again.skipped == 0


def test_dead_letter_whose_message_is_gone_is_removed_by_a_retry(queue: Queue) -> None:
    queue.claim("a")
    queue.nack("a", 1, max_attempts=1)
    queue.client.hdel(queue.keys.messages, "1")

    assert queue.list_dead("a").letters[0].message == b""
    assert queue.retry_dead("a", 1) == {"retried": 0, "missing": (b"1",)}
    assert queue.list_dead("a") == {"total": 0}


def test_dead_letters_are_given_up_by_id_or_by_age_in_pages(queue: Queue) -> None:
    queue.claim("a", count=5)
    for message_id in range(1, 6):
        queue.now = NOW_MS + message_id
        queue.nack("a", message_id, max_attempts=1)

    assert queue.purge_dead("a", 2, 2, 77) == {"purged": 1, "freed": 1, "more": 0}
    assert queue.purge_dead("a", died_before_ms=NOW_MS + 4, limit=1) == {"purged": 1, "freed": 1, "more": 1}
    assert queue.purge_dead("a", died_before_ms=NOW_MS + 4, limit=2) == {"purged": 1, "freed": 1, "more": 0}
    assert [letter.id for letter in queue.list_dead("a").letters] == [b"4", b"5"]
    assert queue.purge_dead("a", 4, died_before_ms=NOW_MS + 4) == {"purged": 0, "freed": 0, "more": 0}
    assert queue.purge_dead("a") == {"purged": 2, "freed": 2, "more": 0}
    assert not [name for name in queue.client.hkeys(queue.of("a").details) if name[-1:].isdigit()]
    assert queue.client.exists(queue.keys.messages) == 0


def test_worker_that_stops_gives_messages_back_uncounted_and_next_in_line(queue: Queue) -> None:
    queue.claim("a", "w1", count=3)

    assert queue.return_claimed("a", 3, 1, 2, 2, 5, token="w1") == {"returned": 3, "stale": (b"2", b"5")}

    claim = queue.claim("a", "w2", count=9)
    assert claim.ids == [1, 2, 3, 4, 5]
    assert {message.attempt for message in claim.messages} == {1}


def test_expired_message_is_passed_over_counted_and_freed(queue: Queue) -> None:
    queue.publish("short", ttl_ms=10)
    queue.claim("a", "w1", count=5)
    queue.now = NOW_MS + 10

    claim = queue.claim("a")

    assert (claim.ids, claim.skipped) == ([], 1)
    assert queue.client.hexists(queue.keys.messages, "6") is False
    assert queue.client.hget(queue.of("a").details, "expired") == b"1"


def test_message_that_was_begun_lives_until_it_is_removed(queue: Queue) -> None:
    queue.publish("short", ttl_ms=10, to="a")
    queue.claim("a", count=6)
    queue.nack("a", 6)
    queue.now = NOW_MS + 10

    assert queue.claim("a", "w2").ids == [6]
    assert queue.expire().pick("expired", "more") == (0, 0)
    queue.now = NOW_MS + 30_010
    assert queue.expire().pick("expired", "more") == (1, 0)
    assert queue.ack("a", 6, token="w2") == {"acked": 1, "freed": 0}


def test_message_whose_payload_is_gone_is_never_handed_out(queue: Queue) -> None:
    queue.client.hdel(queue.keys.messages, "1", "3")

    claim = queue.claim("a", count=9)

    assert (claim.ids, claim.skipped) == ([2, 4, 5], 2)
    assert queue.client.hkeys(queue.keys.references) == [b"2", b"4", b"5"]


def test_expire_and_reap_clear_what_no_consumer_looks_at(queue: Queue) -> None:
    queue.register("gone")
    queue.publish("6", "7", "8", ttl_ms=10)
    queue.publish("9")
    queue.now = NOW_MS + 10

    assert queue.expire(limit=2).pick("expired", "more") == (2, 1)
    assert queue.expire(limit=2).pick("expired", "more") == (1, 0)

    assert queue.reap("gone", limit=2).pick(*REAPED) == (0, 0, 3, 0, 2, 0)
    assert queue.waiting("gone")[0] == 9
    assert queue.client.hget(queue.keys.state, "expired") == b"3"


def test_reap_takes_ids_of_expired_messages_out_of_the_middle_of_a_list_page_by_page(single: RedisClient) -> None:
    queue = Queue(client=single)
    queue.register("full", options(max_length=9))
    for number in range(9):
        queue.publish(str(number), ttl_ms=10 if number % 4 else DAY_MS)
    queue.nack("full", *queue.claim("full").ids, delay_ms=5)
    queue.now = NOW_MS + 10
    queue.expire()
    with pytest.raises(QueueFull):
        queue.publish("x")

    calls, lane, offset, more, skipped = 0, 1, 0, 1, 0
    while more:
        reaped = queue.reap("full", limit=2, lane=lane, offset=offset)
        more, lane, offset = reaped.more, reaped.lane, reaped.offset
        skipped += reaped.skipped
        calls += 1

    assert (skipped, calls) == (6, 5)
    assert queue.waiting("full") == [5, 9, 1]
    queue.publish(*"abcdef")
    assert queue.claim("full", count=9).ids == [5, 9, 1, *range(10, 16)]


def test_reap_goes_no_farther_into_a_list_than_a_call_may_take(single: RedisClient) -> None:
    queue = Queue(client=single)
    queue.register("a")
    own = queue.of("a")
    for first in range(1, 500_003, 50_000):
        single.rpush(own.ready[0], *map(str, range(first, min(first + 50_000, 500_003))))

    assert queue.reap("a", offset=250_001).pick(*REAPED[2:]) == (0, 1, 1, 251_001)
    assert single.llen(own.ready[0]) == 500_002
    assert queue.reap("a", offset=249_000).pick(*REAPED[2:]) == (1_000, 1, 1, 249_000)
    assert queue.reap("a", offset=498_102).pick(*REAPED[2:]) == (900, 0, 2, 0)
    assert single.llen(own.ready[0]) == 498_102


def test_expire_makes_room_among_held_messages_and_forgets_deduplication_ids(single: RedisClient) -> None:
    queue = Queue(client=single)
    queue.configure_queue(max_held=7, deduplication_ms=500)
    for number in range(7):
        queue.publish(str(number), ttl_ms=10 if number % 3 else 86_400_000, deduplication_ids=[f"d{number}"])
    queue.now = NOW_MS + 500

    expired = held_at = calls = 0
    more = 1
    while more:
        reply = queue.expire(limit=2, held_at=held_at)
        more, held_at = reply.more, reply.held_at
        expired += reply.expired
        calls += 1

    assert (expired, calls) == (4, 6)
    assert queue.client.lrange(queue.keys.held, 0, -1) == [b"1", b"4", b"7"]
    assert queue.client.exists(queue.keys.remembered, queue.keys.deduplications) == 0
    queue.publish("a", "b", "c", "d")


def test_reap_ends_leases_of_a_consumer_that_nobody_claims_for(queue: Queue) -> None:
    queue.claim("a", count=3, lease_ms=10)
    queue.client.delete(queue.of("a").wakes)
    queue.now = NOW_MS + 10

    assert queue.reap("a", limit=2).pick(*REAPED) == (2, 0, 0, 1, 1, 2)
    assert queue.reap("a", limit=3, offset=2).pick(*REAPED) == (1, 0, 0, 1, 1, 5)
    assert queue.client.xlen(queue.of("a").wakes) == 1
    assert queue.claim("a", count=9, lease_ms=10).ids == [1, 2, 3, 4, 5]
    queue.now = NOW_MS + 20
    assert queue.reap("a", max_stalls=1).pick(*REAPED[:4]) == (2, 3, 0, 0)
    assert queue.reap("a", max_stalls=1).pick(*REAPED[:4]) == (0, 0, 0, 0)


def test_claim_moves_a_bounded_number_of_messages_and_says_that_there_are_more(single: RedisClient) -> None:
    queue = Queue(client=single)
    queue.register("a")
    for _ in range(3):
        queue.publish(*map(str, range(100)))
    queue.claim("a", "w1", count=150, lease_ms=10)
    for message_id in queue.claim("a", "w2", count=150).ids:
        queue.nack("a", message_id, token="w2", delay_ms=10)
    queue.now = NOW_MS + 10

    claim = queue.claim("a", "w3", count=1_000, lease_ms=10_000)
    assert (claim.ids, claim.stalled, claim.more) == ([], 100, 1)
    claim = queue.claim("a", "w4", count=1_000)
    assert (claim.stalled, claim.ids[:150], sorted(claim.ids)) == (50, [*range(1, 151)], [*range(1, 301)])


@pytest.mark.parametrize("mode", ["fifo", "ordered"])
def test_large_messages_come_in_answers_of_bounded_size(single: RedisClient, mode: str) -> None:
    queue = Queue(client=single)
    queue.register("a", options(mode, lanes=1 if mode == "fifo" else 8))
    queue.publish(*["x" * 400_000] * 4, "y" * 1_200_000, order_hashes=range(5))
    assert len(queue.waiting("a")) == (2 if mode == "fifo" else 1)

    claims = [queue.claim("a", f"w{number}", count=9) for number in range(3)]

    assert [claim.ids for claim in claims] == [[1, 2], [3, 4], [5]]
    assert [claim.more for claim in claims] == [1, 1, 0]
    for claim, token in zip(claims, ("w0", "w1", "w2"), strict=True):
        for message_id in claim.ids:
            queue.nack("a", message_id, token=token, max_attempts=1)
    letters = queue.list_dead("a", limit=5)
    assert (letters.total, [letter.id for letter in letters.letters]) == (5, [b"1", b"2"])


def test_members_that_are_no_ids_stop_nobody(queue: Queue) -> None:
    own = queue.of("a")
    queue.claim("a", count=2, lease_ms=10)
    for key in (own.leases, own.delayed):
        queue.client.zadd(key, {"what": NOW_MS, "": NOW_MS})
    queue.client.lpush(own.ready[0], "is this")
    queue.client.hset(queue.keys.messages, "is this", f"{NOW_MS}:{NOW_MS * 2}:0:x")
    queue.now = NOW_MS + 10

    claim = queue.claim("a", "w", count=9)

    assert (claim.ids, claim.stalled, claim.skipped) == ([1, 2, 3, 4, 5], 2, 3)
    assert queue.client.zcard(own.leases) == 5
    queue.client.zadd(own.leases, {"what": NOW_MS})
    queue.reap("a")
    assert queue.list_ids(own.leases) == {"cursor": b"0", "ids": (*(b"%d" % number for number in range(1, 6)),)}


def test_paused_consumer_or_queue_hands_nothing_out_but_takes_acks(queue: Queue) -> None:
    queue.register("b")
    queue.publish("6")
    queue.claim("a")
    assert (queue.pause("a"), queue.pause("a")) == (1, 0)
    assert queue.claim("a").ids == []
    assert queue.ack("a", 1) == {"acked": 1, "freed": 1}
    assert queue.claim("b").ids == [6]
    queue.ack("b", 6)
    assert (queue.resume("a"), queue.resume("a")) == (1, 0)
    assert queue.claim("a", "w2").ids == [2]

    assert queue.pause() == 1
    queue.publish("7")
    assert queue.claim("a").ids == queue.claim("b").ids == []
    assert queue.client.exists(queue.of("b").wakes) == 0
    assert queue.resume() == 1
    assert queue.client.xlen(queue.of("b").wakes) == 1
    assert queue.claim("b").ids == [7]


def test_purge_gives_up_what_waits_and_leaves_what_is_worked_on(queue: Queue) -> None:
    queue.claim("a", count=3)
    queue.nack("a", 1, delay_ms=10)
    queue.nack("a", 2, max_attempts=1)

    assert queue.purge("a", limit=2) == {"released": 2, "freed": 2, "more": 1}
    assert queue.purge("a", limit=2) == {"released": 1, "freed": 1, "more": 0}
    assert queue.purge("a") == {"released": 0, "freed": 0, "more": 0}

    assert queue.ack("a", 3) == {"acked": 1, "freed": 1}
    assert queue.list_dead("a").total == 1


def test_waiters_are_woken_when_there_may_be_something(queue: Queue) -> None:
    wake = queue.of("a").wakes
    queue.claim("a", count=2)
    assert queue.client.xlen(wake) == 1, "more is there for another worker"
    queue.claim("a", "w2", count=9)
    assert queue.client.exists(wake) == 0, "nothing is left"
    queue.nack("a", 1, delay_ms=5)
    assert queue.client.xlen(wake) == 1, "whoever waits has to know the new instant"
    queue.claim("a")
    queue.return_claimed("a", 2)
    assert queue.client.xlen(wake) == 1
    queue.publish("6", "7")
    assert queue.client.xlen(wake) == 1, "it never grows"


def test_clock_that_jumps_ahead_costs_a_stall_and_back_costs_time_only(queue: Queue) -> None:
    queue.claim("a", "w1", lease_ms=500)
    queue.now = NOW_MS + 10**10
    claim = queue.claim("a", "w2", count=1)
    assert (claim.ids, claim.messages[0].stalls) == ([1], 1)
    queue.now = NOW_MS - 10**10
    assert queue.ack("a", 1, token="w2") == {"acked": 1, "freed": 1}
    queue.publish("6")

    claim = queue.claim("a", count=9)

    assert claim.ids == [2, 3, 4, 5, 6]
    assert queue.ack("a", *claim.ids).acked == 5


def test_without_an_instant_the_server_tells_the_time(queue: Queue) -> None:
    queue.now = ""

    def server_ms() -> int:
        seconds, micros = command(queue.client, "TIME")
        return int(seconds) * 1_000 + int(micros) // 1_000

    before = server_ms()
    queue.publish("6", ttl_ms=60_000)
    claim = queue.claim("a", lease_ms=60_000)

    assert before + 60_000 <= claim.deadline_ms <= server_ms() + 60_000
    assert before <= queue.touch("a") <= server_ms()


@pytest.mark.parametrize(
    ("argument", "value"),
    [("token", ""), ("token", "-"), ("token", "a b"), ("token", "x" * 65), ("lease_ms", 0), ("count", 0)],
)
def test_claim_with_a_bad_argument_is_refused(queue: Queue, argument: str, value: object) -> None:
    with pytest.raises(UsageError):
        queue.claim("a", **{argument: value})  # type: ignore[arg-type]


def test_unknown_queue_and_unknown_consumer_are_told_apart(queue: Queue) -> None:
    nowhere = Queue(client=queue.client, name="nowhere")
    for act in (Queue.claim, Queue.reap, Queue.pause, Queue.resume, Queue.touch, Queue.unregister, Queue.adopt):
        with pytest.raises(UnknownConsumer):
            act(queue, "nobody")
        with pytest.raises(UnknownQueue):
            act(nowhere, "nobody")
    assert queue.client.exists(nowhere.keys.state) == 0


def test_caller_that_knows_other_lanes_is_told_to_look_again(queue: Queue) -> None:
    queue.members["a"] = options("ordered", lanes=3)

    with pytest.raises(MembershipChanged, match="number of lanes: 1"):
        queue.claim("a")
