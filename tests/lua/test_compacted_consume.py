"""``subscribe``, ``fetch``, ``ack``, ``rewind`` and the rest of a consumer: one at a time, in order, nothing lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lua_compacted import DAY_MS, NOW_MS, PLENTY, Entry, Fence, Queue
from lua_sessions import unchanged

from queuekeeper.errors import QueueBusy, StaleEpoch, UnknownQueue, UsageError
from queuekeeper.redis_client import connect, nodes

pytestmark = pytest.mark.lua

KEYS = tuple(b"%c" % letter for letter in b"abcdefghij")


@pytest.fixture
def queue(redis_url: str) -> Any:
    """A queue of ten messages."""
    with connect(redis_url) as client:
        filled = Queue(client=client)
        for place, key in enumerate(KEYS):
            filled.fill(key, now=NOW_MS + place * 10)
        yield filled


def test_messages_come_in_order_once_and_the_cursor_follows_their_acks(queue: Queue) -> None:
    fence = queue.fence()
    first = queue.fetch(fence, limit=3)
    assert (first.sequences, first.in_flight, first.lag) == ([1, 2, 3], 3, 7)
    assert not any(message.redelivered for message in first.messages)
    assert queue.fetch(fence).messages == []
    second = queue.fetch(fence, 1, 2, 3)
    assert (second.acked_now, second.unknown, second.acked, second.sequences) == (3, 0, 3, [4, 5, 6, 7, 8])
    assert queue.fetch(fence, 4, 5, 6, 7, 8).sequences == [9, 10]
    assert queue.ack(fence, 9, 10) == {"acked_now": 2, "unknown": 0, "acked": 10, "in_flight": 0}
    assert len(queue.order()) == 10, "messages stay for a rewind"
    assert queue.violations() == []


def test_acks_out_of_order_and_repeated_never_move_the_cursor_back(queue: Queue) -> None:
    fence = queue.fence()
    queue.fetch(fence)
    assert queue.ack(fence, 5) == {"acked_now": 1, "unknown": 0, "acked": 0, "in_flight": 4}
    assert queue.ack(fence, 4, 4, 5, 77, -3, 0) == {"acked_now": 1, "unknown": 5, "acked": 0, "in_flight": 3}
    assert queue.ack(fence, 2, 3) == {"acked_now": 2, "unknown": 0, "acked": 0, "in_flight": 1}
    assert queue.ack(fence, 1) == {"acked_now": 1, "unknown": 0, "acked": 5, "in_flight": 0}
    for late in (1, 3, 5, 2):
        assert queue.ack(fence, late) == {"acked_now": 0, "unknown": 1, "acked": 5, "in_flight": 0}
    assert queue.fetch(fence, 1).sequences == [6, 7, 8, 9, 10]
    assert queue.state()["repeated_acks"] == "10"


def test_ack_up_to_takes_what_is_in_flight_only(queue: Queue) -> None:
    fence = queue.fence()
    queue.fetch(fence)
    assert queue.ack(fence, 3, mode="up_to") == {"acked_now": 3, "unknown": 0, "acked": 3, "in_flight": 2}
    assert queue.ack(fence, 3, mode="up_to") == {"acked_now": 0, "unknown": 1, "acked": 3, "in_flight": 2}
    assert queue.ack(fence, 99, mode="up_to") == {"acked_now": 2, "unknown": 0, "acked": 5, "in_flight": 0}
    assert queue.fetch(fence).sequences[0] == 6


def test_window_slides_when_asked_to(queue: Queue) -> None:
    fence = queue.fence()
    assert queue.fetch(fence, window=4, limit=3, refill="sliding").sequences == [1, 2, 3]
    assert queue.fetch(fence, window=4, limit=3, refill="sliding").sequences == [4]
    assert queue.fetch(fence, window=4, limit=3, refill="sliding").sequences == []
    assert queue.fetch(fence, 2, 3, window=4, refill="sliding").sequences == [5, 6]
    assert queue.fetch(fence, 1, window=4, refill="on_empty").sequences == []


def test_bytes_of_a_fetch_are_bounded_but_one_message_always_comes(queue: Queue) -> None:
    queue.append(*(Entry(key, b"x" * 1_000) for key in KEYS))
    fence = queue.fence()
    assert len(queue.fetch(fence, max_bytes=1).messages) == 1
    assert len(queue.fetch(fence, max_bytes=2_100, refill="sliding").messages) == 2
    again = queue.fetch(fence, max_bytes=2_100, redeliver=1)
    assert [message.redelivered for message in again.messages] == [True, True]
    assert [message.redelivered for message in queue.fetch(fence, refill="sliding").messages] == [True, False, False]


def test_fetch_that_goes_on_brings_nothing_that_is_too_large(queue: Queue) -> None:
    queue.append(Entry(b"large", b"x" * 1_000), Entry(b"small"))
    fence = queue.fence()
    assert queue.fetch(fence, limit=4, window=50).sequences == [1, 2, 3, 4]
    assert queue.fetch(fence, limit=5, window=50, refill="going_on").sequences == [5, 6, 7, 8, 9]
    assert queue.fetch(fence, window=50, max_bytes=900, refill="going_on").sequences == [10]
    assert queue.fetch(fence, window=50, max_bytes=900, refill="going_on").sequences == []
    assert queue.fetch(fence, window=50, max_bytes=900, refill="sliding").sequences == [11]


def test_sizes_are_asked_for_only_where_the_largest_entries_might_not_fit(queue: Queue) -> None:
    client: Any = queue.client

    def sizes_asked_for(max_bytes: int) -> int:
        queue.call("rewind", incarnation="", epoch="", to="earliest")
        fence = queue.fence()
        for _, node in nodes(client):
            node.config_resetstat()
        assert len(queue.fetch(fence, limit=4, window=4, max_bytes=max_bytes).messages) == min(4, max_bytes // 30)
        return sum(
            int(node.info("commandstats").get("cmdstat_hstrlen", {"calls": 0})["calls"]) for _, node in nodes(client)
        )

    queue.append(*(Entry(b"k%d" % number, b"x" * 22) for number in range(10, 30)))
    queue.call("purge", what="up_to", up_to_sequence=10, after_sequence=0, limit=100, dry_run=0)
    assert queue.state()["largest_bytes"] == "30"
    assert [sizes_asked_for(max_bytes) for max_bytes in (PLENTY, 120, 119)] == [0, 0, 4]
    # A queue of an earlier version does not know; all together may be little enough.
    client.hdel(queue.keys.state, "largest_bytes")
    assert [sizes_asked_for(max_bytes) for max_bytes in (PLENTY, 599, 119)] == [0, 4, 4]


@pytest.mark.parametrize("refill", ["sliding", "going_on"])
def test_entry_larger_than_the_noted_largest_does_not_break_the_bound(queue: Queue, refill: str) -> None:
    """As an earlier version may append it, which notes nothing, beside a later one."""
    client: Any = queue.client
    queue.append(Entry(b"large", b"x" * 1_000), Entry(b"small"))
    client.hset(queue.keys.state, mapping={"largest_bytes": "20", "bytes": "200"})
    fence = queue.fence()
    pages = [queue.fetch(fence, max_bytes=500, limit=9, window=20, refill="sliding").sequences]
    pages += [queue.fetch(fence, max_bytes=500, limit=9, window=20, refill=refill).sequences for _ in range(2)]
    if refill == "sliding":
        assert pages == [list(range(1, 10)), [10], [11]], "one that is larger comes alone"
    else:
        assert pages == [list(range(1, 10)), [10], []]
    # It is read for nothing once, and not again.
    assert queue.state()["largest_bytes"] == str(len("large") + len("11 0 ") + 1_000)


def test_what_is_in_flight_survives_its_consumer_and_comes_again_flagged(queue: Queue) -> None:
    fence = queue.fence("first")
    queue.fetch(fence)
    queue.ack(fence, 2, 4)
    queue.append(Entry(b"c", b"newer"))
    reply = queue.subscribe("second")
    assert reply.pick("acked", "sent", "sequence", "lag", "in_flight") == (0, 5, 11, 6, 3)
    assert (reply.previous_session, reply.is_clamped) == (b"first", 0)
    fetched = queue.fetch(Fence.of(reply))
    assert [(message.sequence, message.redelivered) for message in fetched.messages] == [(1, True), (5, True)]
    assert fetched.in_flight == 2, "the overwritten one is not in flight any more"
    following = queue.fetch(Fence.of(reply), 1, 5, limit=9, window=9)
    assert following.sequences == [6, 7, 8, 9, 10, 11]
    assert following.messages[-1].record == b"newer"
    assert queue.state()["redelivered"] == "2"
    assert queue.violations() == []


def test_redelivery_goes_on_page_by_page_before_anything_new(queue: Queue) -> None:
    fence = queue.fence()
    queue.fetch(fence, limit=7, window=7)
    fence = queue.fence()
    seen = [queue.fetch(fence, limit=3, window=9, refill="sliding") for _ in range(4)]
    assert [fetched.sequences for fetched in seen] == [[1, 2, 3], [4, 5, 6], [7, 8, 9], []]
    assert [message.redelivered for message in seen[2].messages] == [True, False, False]
    assert queue.fetch(fence, limit=3, window=9, refill="sliding", redeliver=1).sequences == [1, 2, 3]


def test_overwritten_ones_do_not_hold_up_a_redelivery(queue: Queue) -> None:
    fence = queue.fence()
    queue.fetch(fence, limit=5, window=5)
    queue.fill(*KEYS[:5])
    fence = queue.fence()
    fetched = queue.fetch(fence, limit=5, window=5)
    assert fetched.sequences == [6, 7, 8, 9, 10]
    assert fetched.acked == 5


def test_value_lost_in_flight_holds_up_no_other(queue: Queue) -> None:
    fence = queue.fence()
    queue.fetch(fence)
    client: Any = queue.client
    client.hdel(queue.keys.values, b"a", b"b", b"c", b"d", b"e")
    again = queue.fence()
    first = queue.fetch(again, limit=3)
    assert (first.messages, first.in_flight, first.more_to_resend) == ([], 2, 1)
    second = queue.fetch(again, limit=3)
    assert (second.sequences, second.acked, second.more_to_resend) == ([6, 7, 8], 5, 0)


def test_message_whose_instant_is_lost_is_delivered(queue: Queue) -> None:
    client: Any = queue.client
    client.zrem(queue.keys.times, b"a")
    message = queue.fetch(queue.fence()).messages[0]
    assert (message.key, message.ms, message.sequence) == (b"a", 0, 1)
    assert queue.call("get", key=b"a").pick("ms", "sequence") == (0, 1)


def test_number_in_the_value_does_not_count_but_the_place_in_the_order(queue: Queue) -> None:
    client: Any = queue.client
    client.hset(queue.keys.values, b"a", b"9 0 value")
    fence = queue.fence()
    assert queue.fetch(fence, limit=1, window=1).sequences == [1]
    assert queue.ack(fence, 1).acked_now == 1


def test_peek_goes_on_behind_rows_without_values(queue: Queue) -> None:
    client: Any = queue.client
    client.hdel(queue.keys.values, b"a", b"b")
    assert queue.call("peek", after_sequence=0, limit=2, max_bytes=1_000) == {"next_after_sequence": 2}
    assert queue.call("peek", after_sequence=2, limit=8, max_bytes=1_000).next_after_sequence == 10
    assert queue.call("peek", after_sequence=2, limit=9, max_bytes=1_000).next_after_sequence == -1


def test_late_ack_of_an_overwritten_message_counts(queue: Queue) -> None:
    fence = queue.fence()
    queue.fetch(fence, limit=2, window=2)
    queue.append(Entry(b"a", b"newer"))
    assert queue.ack(fence, 1, 2) == {"acked_now": 2, "unknown": 0, "acked": 2, "in_flight": 0}
    assert queue.fetch(fence, limit=9, window=9).messages[-1].record == b"newer"


def test_tombstone_is_delivered_and_read_as_one(queue: Queue) -> None:
    queue.append(Entry(b"a", b"", 1))
    fence = queue.consume(9)
    assert queue.fetch(fence).messages[0].value == b"11 1 "
    assert queue.call("get", key=b"a") == {"ms": NOW_MS + 90, "sequence": 11, "value": b"11 1 "}
    queue.append(Entry(b"a", b"back"))
    assert queue.call("inspect", samples=5, now=NOW_MS).tombstones == 0
    assert queue.violations() == []


STALE_CALLS: dict[str, Callable[[Queue, Fence], Any]] = {
    "fetch": lambda queue, fence: queue.fetch(fence, 1),
    "ack": lambda queue, fence: queue.ack(fence, 1),
    "heartbeat": lambda queue, fence: queue.call(
        "heartbeat", incarnation=fence.incarnation, epoch=fence.epoch, lease_ms=1_000, now=NOW_MS
    ),
    "rewind": lambda queue, fence: queue.call(
        "rewind", incarnation=fence.incarnation, epoch=fence.epoch, to="earliest"
    ),
}


@pytest.mark.parametrize("call", STALE_CALLS)
@pytest.mark.parametrize("event", ["takeover", "rewind", "drop", "drop and remake"])
def test_consumer_is_fenced_off(queue: Queue, call: str, event: str) -> None:
    old = queue.fence()
    queue.fetch(old)
    if event == "takeover":
        queue.subscribe("other")
    elif event == "rewind":
        queue.call("rewind", incarnation="", epoch="", to="earliest")
    else:
        queue.call("drop", incarnation="", dry_run=0)
        if event == "drop and remake":
            queue.fill(b"a")
            queue.fence()
    with unchanged(queue.client), pytest.raises(StaleEpoch):
        STALE_CALLS[call](queue, old)


def test_session_that_waits_its_turn_gets_the_queue_when_the_lease_is_over(queue: Queue) -> None:
    fence = queue.fence("first", lease_ms=1_000)
    for _ in range(2):
        with pytest.raises(QueueBusy, match="first"):
            queue.subscribe("second", mode="if_free", now=NOW_MS + 999)
    queue.call("heartbeat", incarnation=fence.incarnation, epoch=fence.epoch, lease_ms=1_000, now=NOW_MS + 999)
    with pytest.raises(QueueBusy):
        queue.subscribe("second", mode="if_free", now=NOW_MS + 1_500)
    assert queue.subscribe("first", mode="if_free", lease_ms=1_000, now=NOW_MS).epoch > fence.epoch
    assert queue.subscribe("second", mode="if_free", now=NOW_MS + 1_000).previous_session == b"first"


@pytest.mark.parametrize("step", ["subscribe", "rewind"])
def test_fence_is_never_given_out_again_though_the_last_writes_were_lost(queue: Queue, step: str) -> None:
    before = queue.state()["epoch"]
    lost = queue.fence()
    client: Any = queue.client
    client.hset(queue.keys.state, "epoch", before)
    assert lost != (
        queue.fence() if step == "subscribe" else Fence.of(queue.call("rewind", incarnation="", epoch="", to="latest"))
    )
    with pytest.raises(StaleEpoch):
        queue.fetch(lost)


def test_released_queue_is_free_at_once(queue: Queue) -> None:
    fence = queue.fence("first")
    queue.fetch(fence)
    assert queue.call("release", incarnation=fence.incarnation, epoch=fence.epoch) == 1
    assert queue.subscribe("second", mode="if_free").pick("in_flight", "previous_session") == (5, b"")


def test_consumer_that_was_fenced_off_hands_on_a_wake_up_that_it_took(queue: Queue) -> None:
    old = queue.fence("old")
    queue.fence("new")
    queue.is_woken()
    assert queue.call("release", incarnation=old.incarnation, epoch=old.epoch) == 0
    assert queue.is_woken()
    assert queue.state()["session"] == "new"


def test_no_wake_up_is_left_by_a_consumer_that_has_ended(queue: Queue) -> None:
    fence = queue.fence()
    queue.append(Entry(b"new"))
    assert queue.call("release", incarnation=fence.incarnation, epoch=fence.epoch) == 1
    assert not queue.is_woken()
    queue.call("rewind", incarnation="", epoch="", to="earliest")
    assert not queue.is_woken()


def test_heartbeat_wakes_while_something_waits(queue: Queue) -> None:
    fence = queue.fence()
    queue.is_woken()
    assert queue.call("heartbeat", incarnation=fence.incarnation, epoch=fence.epoch, lease_ms=5_000, now=NOW_MS) == {
        "lag": 10,
        "in_flight": 0,
    }
    assert queue.is_woken()
    queue.fetch(fence, limit=10, window=10)
    assert queue.call("heartbeat", incarnation=fence.incarnation, epoch=fence.epoch, lease_ms=5_000, now=NOW_MS) == {
        "lag": 0,
        "in_flight": 10,
    }
    assert not queue.is_woken()
    assert queue.state()["lease_until_ms"] == str(NOW_MS + 5_000)


@pytest.mark.parametrize(
    ("to", "acked", "clamped"),
    [
        ("earliest", 3, 0),
        ("latest", 10, 0),
        ("seq:7", 6, 0),
        ("seq:11", 10, 0),
        ("seq:2", 3, 1),
        ("seq:0", 3, 1),
        ("seq:500", 10, 1),
        (f"ms:{NOW_MS + 60}", 6, 0),
        (f"ms:{NOW_MS + 61}", 7, 0),
        (f"ms:{NOW_MS + 5}", 3, 1),
        (f"ms:{NOW_MS + 1_000}", 10, 0),
    ],
)
def test_cursor_goes_where_it_is_sent_or_as_near_as_can_be(queue: Queue, to: str, acked: int, clamped: int) -> None:
    queue.call("purge", what="up_to", up_to_sequence=3, after_sequence=0, limit=100, dry_run=0)
    fence = queue.consume(5)
    reply = queue.call("rewind", incarnation=fence.incarnation, epoch=fence.epoch, to=to)
    assert (reply.old_acked, reply.new_acked, reply.to_deliver) == (8, acked, 10 - acked)
    assert (reply.is_clamped, reply.oldest_sequence) == (clamped, 4)
    assert reply.epoch > fence.epoch
    assert queue.fetch(queue.fence(), limit=9, window=9).sequences == list(range(acked + 1, 11))
    assert queue.violations() == []
    assert queue.subscribe(start=to).pick("acked", "sent") == (acked, acked)
    assert queue.in_flight() == []


def test_rewind_to_what_was_removed_from_between_others_says_so(queue: Queue) -> None:
    fence = queue.fence()
    queue.fetch(fence, limit=8, window=8)
    queue.ack(fence, 3, 4, 6, 7)
    # The others of the first eight are in flight: they stay.
    rows = [(row.key, row.sequence) for row in queue.find_due("acked_only", retention_ms=0, now=NOW_MS + DAY_MS).rows]
    assert queue.collect(*rows[:2], policy="acked_only", retention_ms=0, now=NOW_MS + DAY_MS).deleted == 2
    purged = queue.call("purge", what="acked", up_to_sequence=10, after_sequence=0, limit=100, dry_run=0)
    assert purged.deleted == 2
    keys = {sequence: key for key, sequence in queue.order().items()}
    queue.append(Entry(keys[5]), Entry(keys[9]))
    said = {to: queue.call("rewind", incarnation="", epoch="", to=f"seq:{to}") for to in range(1, 13)}
    assert [to for to, reply in said.items() if reply.is_clamped] == [3, 4, 5, 6, 7], (
        "5 was overwritten below 7, 9 was not"
    )
    assert [reply.new_acked for reply in said.values()] == list(range(12))
    assert said[3].pick("new_acked", "to_deliver", "is_clamped") == (2, 4, 1)
    assert queue.subscribe(start="seq:4").is_clamped == 1


def test_messages_in_flight_come_again_after_a_rewind_and_late_acks_do_not_count(queue: Queue) -> None:
    fence = queue.fence()
    queue.fetch(fence)
    queue.is_woken()
    queue.call("rewind", incarnation="", epoch="", to="earliest")
    assert queue.is_woken()
    with pytest.raises(StaleEpoch):
        queue.ack(fence, 1)
    assert queue.fetch(queue.fence()).sequences == [1, 2, 3, 4, 5]


def test_rewind_by_time_says_when_what_was_asked_for_is_gone(queue: Queue) -> None:
    queue.call("purge", what="up_to", up_to_sequence=10, after_sequence=0, limit=100, dry_run=0)
    for behind_ms, clamped in ((90, 1), (91, 0)):
        reply = queue.call("rewind", incarnation="", epoch="", to=f"ms:{NOW_MS + behind_ms}")
        assert reply.pick("new_acked", "to_deliver", "is_clamped") == (10, 0, clamped)
    assert queue.subscribe(start=f"ms:{NOW_MS}").is_clamped == 1
    queue.call("drop", incarnation="", dry_run=0)
    assert queue.subscribe(start="ms:0").is_clamped == 0


def test_rewind_of_an_empty_queue_and_of_none(queue: Queue) -> None:
    queue.call("purge", what="up_to", up_to_sequence=10, after_sequence=0, limit=100, dry_run=0)
    reply = queue.call("rewind", incarnation="", epoch="", to="earliest")
    assert (reply.old_acked, reply.new_acked, reply.to_deliver) == (0, 10, 0)
    assert (reply.is_clamped, reply.oldest_sequence) == (0, 0)
    queue.append(Entry(b"z"))
    assert queue.fetch(queue.fence()).sequences == [11]
    queue.call("drop", incarnation="", dry_run=0)
    for script, args in (("rewind", ("", "", "earliest")), ("skip", (1, ""))):
        with pytest.raises(UnknownQueue):
            queue.send(script, *args)


def test_operator_skips_a_message_that_blocks(queue: Queue) -> None:
    fence = queue.fence()
    queue.fetch(fence, limit=2, window=2)
    queue.is_woken()
    queue.ack(fence, 2)
    assert queue.call("skip", sequence=1, now=NOW_MS) == {"acked_now": 1, "unknown": 0, "acked": 2, "in_flight": 0}
    assert queue.is_woken()
    assert queue.call("skip", sequence=1, now=NOW_MS) == {"acked_now": 0, "unknown": 1, "acked": 2, "in_flight": 0}
    assert queue.call("skip", sequence=9, now=NOW_MS) == {"acked_now": 0, "unknown": 1, "acked": 2, "in_flight": 0}
    assert queue.fetch(fence).sequences[0] == 3


def test_subscription_makes_a_queue(redis_url: str) -> None:
    with connect(redis_url) as client:
        queue = Queue(client=client)
        reply = queue.subscribe()
        assert reply.pick("acked", "sent", "sequence", "lag", "in_flight") == (0, 0, 0, 0, 0)
        assert (reply.previous_session, reply.is_clamped) == (b"", 0)
        queue.fill(b"a")
        assert queue.fetch(Fence.of(reply)).sequences == [1]


def test_damaged_row_does_not_hold_up_the_others(queue: Queue) -> None:
    client: Any = queue.client
    client.hdel(queue.keys.values, b"b")
    fence = queue.fence()
    assert queue.fetch(fence, limit=3, window=3).sequences == [1, 3]
    assert queue.fetch(fence, 1, 3, limit=3, window=3).sequences == [4, 5, 6]


@pytest.mark.parametrize(
    ("script", "args"),
    [
        ("subscribe", ("", "takeover", 1, "", "")),
        ("subscribe", ("s", "force", 1, "", "")),
        ("subscribe", ("s", "takeover", 0, "", "")),
        ("subscribe", ("s", "takeover", 1, "", "seq:x")),
        ("subscribe", ("s", "takeover", 1, "", "seq:-1")),
        ("subscribe", ("s", "takeover", 1, "", "oldest")),
        ("subscribe", ("s", "takeover", 1, "", "earliest:3")),
        ("rewind", ("", "", "")),
        ("rewind", ("1", "", "earliest")),
        ("fetch", (1, 1, 0, 1, 1, "sliding", 0, "")),
        ("fetch", (1, 1, 5, 501, 1, "sliding", 0, "")),
        ("fetch", (1, 1, 70_000, 5, 1, "sliding", 0, "")),
        ("fetch", (1, 1, 5, 5, 0, "sliding", 0, "")),
        ("fetch", (1, 1, 5, 5, 1, "always", 0, "")),
        ("fetch", (1, 1, 5, 5, 1, "sliding", 2, "")),
        ("fetch", (1, 1, 5, 5, 1, "sliding", 0, "", "x")),
        ("fetch", (1, 1, 5, 5, 1, "sliding", 0, "", 2**53 + 2)),
        ("ack", (1, 1, "each", "")),
        ("ack", (1, 1, "all", "", 1)),
        ("ack", (1, 1, "up_to", "", 1, 2)),
        ("ack", (1, 1, "each", "", "1.0")),
        ("ack", (1, 1, "each", "", *range(1_001))),
        ("heartbeat", (1, 1, 0, "")),
        ("release", (1,)),
        ("skip", ("x", "")),
        ("peek", (-1, 1, 1)),
        ("peek", (0, 501, 1)),
        ("get", ()),
        ("inspect", (0, "")),
    ],
)
def test_bad_arguments_are_refused_and_nothing_is_written(queue: Queue, script: str, args: tuple[Any, ...]) -> None:
    with unchanged(queue.client), pytest.raises(UsageError):
        queue.send(script, *args)


def test_large_windows_are_consumed_in_bounded_calls(valkey_url: str) -> None:
    with connect(valkey_url) as client:
        queue = Queue(client=client)
        for first in range(0, 1_200, 200):
            queue.append(*(Entry(b"%d" % number) for number in range(first, first + 200)))
        fence = queue.fence()
        seen: list[int] = []
        while len(seen) < 1_200:
            seen += queue.fetch(fence, window=65_535, limit=500, refill="sliding").sequences
        assert seen == list(range(1, 1_201))
        again = queue.fetch(queue.fence(), window=65_535, limit=500, refill="sliding")
        assert again.sequences == seen[:500]
        assert [key for key, _, _ in queue.peek(after=1_198)] == [b"1198", b"1199"]
        bounded = queue.call("peek", after_sequence=0, limit=500, max_bytes=100).messages
        assert len(bounded) == 9, "bytes are bounded too"
