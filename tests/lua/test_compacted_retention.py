"""``find_due`` and ``collect``: what a policy lets go and nothing else, never a newer value, in bounded steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from lua_compacted import DAY_MS, NOW_MS, Entry, Queue
from lua_sessions import command, contents, unchanged

from queuekeeper.errors import StaleEpoch, UnknownQueue, UsageError
from queuekeeper.redis_client import connect

pytestmark = pytest.mark.lua

HOUR_MS = 3_600_000
OLD_MS = NOW_MS - 8 * DAY_MS
TWO_DAYS_MS = NOW_MS - 2 * DAY_MS
NOT_RESTORED = dict.fromkeys(("restored", "present", "refused", "to_deliver"), 0)


@pytest.fixture
def empty(redis_url: str) -> Iterator[Queue]:
    """A queue that nothing was put into."""
    with connect(redis_url) as client:
        yield Queue(client=client)


@pytest.fixture
def queue(empty: Queue) -> Queue:
    """A queue of old, younger and new messages and tombstones, in every state of acknowledgement."""
    empty.append(Entry(b"1 acked"), Entry(b"2 tombstone acked", b"", 1), Entry(b"3 in flight"), now=OLD_MS)
    empty.append(Entry(b"4 tombstone in flight", b"", 1), Entry(b"5 acked"), now=OLD_MS + 1)
    empty.append(Entry(b"6 younger acked"), Entry(b"7 younger tombstone acked", b"", 1), now=TWO_DAYS_MS)
    empty.append(Entry(b"8 younger tombstone in flight", b"", 1), now=TWO_DAYS_MS + 1)
    fence = empty.fence()
    empty.fetch(fence, window=8, limit=8)
    empty.ack(fence, 1, 2, 5, 6, 7)
    empty.append(Entry(b"9 new"), Entry(b"10 new tombstone", b"", 1), now=NOW_MS - HOUR_MS)
    return empty


def pairs(page: Any) -> list[tuple[bytes, int]]:
    return [(row.key, row.sequence) for row in page.rows]


@pytest.mark.parametrize(
    ("policy", "sequences"),
    [("delete", [1, 2, 3, 4, 5, 7]), ("acked_only", [1, 2, 5, 7]), ("compact", [2, 7])],
)
@pytest.mark.parametrize("limit", [1, 3, 200])
def test_policy_says_what_goes(queue: Queue, policy: str, sequences: list[int], limit: int) -> None:
    before = contents(queue.client)
    found, after, more = [], 0, 1
    while more:
        page = queue.find_due(policy, after=after, limit=limit)
        assert (page.policy, page.retention_ms, page.tombstone_ms) == (policy.encode(), 7 * DAY_MS, DAY_MS)
        found += pairs(page)
        after, more = page.next_after_sequence, page.more
    assert [sequence for _, sequence in found] == sequences
    assert contents(queue.client) == before
    named = [*((key, sequence) for key, sequence in queue.order().items()), (b"nothing", 3)]
    assert queue.collect(*named, policy=policy).deleted == len(sequences)
    assert [sequence for sequence in range(1, 11) if sequence not in sequences] == list(queue.order().values())
    assert queue.violations() == []
    assert queue.find_due(policy).rows == []


def test_rows_tell_what_they_are(queue: Queue) -> None:
    rows = queue.find_due(with_values=1).rows
    assert rows[1] == (b"2 tombstone acked", 2, OLD_MS, 1, len(b"2 tombstone acked2 1 "), 1, b"2 1 ")
    assert rows[2] == (b"3 in flight", 3, OLD_MS, 0, len(b"3 in flight3 0 value"), 0, b"3 0 value")
    assert {row.value for row in queue.find_due().rows} == {b""}
    few = queue.find_due(with_values=1, max_bytes=30)
    assert (few.sequences, few.more, few.next_after_sequence, few.looked_at) == ([1], 1, 1, 1)
    # Rows that stay were looked at, too.
    page = queue.find_due("acked_only")
    assert page.looked_at > len(page.rows)


def test_collection_is_counted(queue: Queue) -> None:
    page = queue.find_due()
    reply = queue.collect(*pairs(page), (b"9 new", 9), (b"1 acked", 1))
    assert reply.stayed == (9,)
    size = sum(row.size for row in page.rows)
    assert reply.pick("deleted", "unacked", "tombstones", "bytes", "kept") == (6, 2, 3, size, 2)
    assert (reply.producers, reply.live) == (0, 4)
    state = queue.state()
    assert (state["expired"], state["tombstones_collected"], state["expired_unacked"]) == ("3", "3", "2")
    assert state["last_lost_sequence"] == "4"


def test_newer_value_of_a_key_is_never_touched(queue: Queue) -> None:
    page = queue.find_due()
    queue.append(*(Entry(row.key, b"newer") for row in page.rows), now=OLD_MS)
    reply = queue.collect(*pairs(page))
    assert reply.pick("deleted", "unacked", "tombstones", "bytes", "kept") == (0, 0, 0, 0, 6)
    assert reply.stayed == tuple(page.sequences)
    assert {value.split(b" ", 2)[2] for _, _, value in queue.peek(after=10)} == {b"newer"}


def test_what_is_not_due_any_more_stays(queue: Queue) -> None:
    page = queue.find_due()
    assert queue.collect(*pairs(page), now=OLD_MS + HOUR_MS).deleted == 0
    assert queue.collect(*pairs(page), retention_ms=9 * DAY_MS, tombstone_ms=9 * DAY_MS).deleted == 0
    assert queue.collect(*pairs(page), policy="compact").deleted == 2


def test_row_is_kept_for_exactly_its_time(empty: Queue) -> None:
    empty.fill(b"a")
    assert empty.find_due(now=NOW_MS + 7 * DAY_MS).rows == []
    page = empty.find_due(now=NOW_MS)
    assert page.next_due_ms == NOW_MS + 7 * DAY_MS + 1
    assert empty.find_due(now=page.next_due_ms).sequences == [1]
    assert empty.find_due(now=page.next_due_ms - 1).sequences == []


def test_next_time_is_told(queue: Queue) -> None:
    for policy, expected in (
        ("delete", NOW_MS - HOUR_MS + DAY_MS + 1),
        ("acked_only", NOW_MS + HOUR_MS),
        ("compact", NOW_MS + HOUR_MS),
    ):
        reply = queue.collect(*queue.order().items(), policy=policy)
        assert reply.next_due_ms == min(expected, NOW_MS + HOUR_MS), policy
        assert queue.find_due(policy).next_due_ms == reply.next_due_ms


def test_queue_of_which_nothing_is_ever_due_says_so(empty: Queue) -> None:
    assert empty.find_due().next_due_ms == -1
    assert empty.collect() == {
        "deleted": 0,
        "unacked": 0,
        "tombstones": 0,
        "bytes": 0,
        "kept": 0,
        "producers": 0,
        "live": 0,
        "next_due_ms": -1,
    }
    assert contents(empty.client) == {}
    empty.fill(b"a")
    assert empty.find_due("compact", now=NOW_MS * 2).next_due_ms == -1


def test_own_retention_goes_before_the_given_one_unless_overridden(queue: Queue) -> None:
    assert queue.call("configure", policy="acked_only", retention_ms=3 * DAY_MS, tombstone_ms=9 * DAY_MS) == 1
    page = queue.find_due("delete")
    assert (page.policy, page.retention_ms, page.tombstone_ms) == (b"acked_only", 3 * DAY_MS, 9 * DAY_MS)
    assert page.sequences == [1, 2, 5]
    assert queue.find_due("delete", override=1).sequences == [1, 2, 3, 4, 5, 7]
    assert queue.collect((b"3 in flight", 3)).deleted == 0
    assert queue.collect((b"3 in flight", 3), override=1).deleted == 1
    assert queue.call("configure", policy="", retention_ms="", tombstone_ms="") == 0
    assert queue.find_due("delete").policy == b"delete"


def test_retention_makes_a_queue(empty: Queue) -> None:
    empty.call("configure", policy="compact", retention_ms=1, tombstone_ms=2)
    empty.fill(b"a")
    assert empty.state()["retention_policy"] == "compact"
    assert empty.violations() == []


def test_old_producers_are_forgotten_in_bounded_steps(empty: Queue) -> None:
    client: Any = empty.client
    for number in range(300):
        empty.append(Entry(b"a"), producer=f"p{number}", number=1, now=NOW_MS + number)
    kept = {b"p%d" % number for number in range(200, 300)}
    steps: list[int] = []
    while client.hlen(empty.keys.producers) > len(kept) and len(steps) < 100:
        steps.append(empty.collect(producer_ms=HOUR_MS, now=NOW_MS + 200 + HOUR_MS).producers)
    assert set(client.hkeys(empty.keys.producers)) == kept
    assert max(steps) <= 200
    assert empty.append(Entry(b"a"), producer="p299", number=1).word == "replayed"


def test_collected_rows_come_back_where_their_keys_are_free(queue: Queue) -> None:
    before = contents(queue.client)
    rows = queue.find_due(with_values=1).rows
    queue.collect(*pairs(queue.find_due()))
    back = [value for row in rows for value in (row.key, row.sequence, row.ms, row.value)]
    incarnation = queue.state()["incarnation"]
    with pytest.raises(StaleEpoch):
        queue.call("restore", incarnation="1", rows=back)
    assert queue.call("restore", incarnation=incarnation, rows=back) == NOT_RESTORED | {"restored": 6}
    assert queue.call("restore", incarnation="", rows=back) == NOT_RESTORED | {"present": 6}
    assert queue.violations() == []
    after = contents(queue.client)
    assert {name: value for name, value in after.items() if not name.endswith("state")} == {
        name: value for name, value in before.items() if not name.endswith("state")
    }
    queue.collect(*pairs(queue.find_due()))
    queue.append(Entry(b"1 acked", b"newer"))
    assert queue.call("restore", incarnation="", rows=back).pick("restored", "present") == (5, 1)
    assert queue.call("get", key=b"1 acked").value == b"11 0 newer"
    assert queue.violations() == []


def test_rows_that_do_not_go_into_a_queue_are_refused(queue: Queue) -> None:
    order = queue.order()
    for row in (
        (b"taken", 9, NOW_MS - HOUR_MS, b"9 0 v"),
        (b"never given out", 11, NOW_MS - HOUR_MS, b"11 0 v"),
        (b"of another", 6, TWO_DAYS_MS, b"7 0 v"),
        (b"damaged", 6, TWO_DAYS_MS, b"v"),
        (b"lost", 6, TWO_DAYS_MS, b""),
    ):
        assert queue.call("restore", incarnation="", rows=row) == NOT_RESTORED | {"refused": 1}
    queue.call("purge", what="up_to", up_to_sequence=6, after_sequence=5, limit=100, dry_run=0)
    assert queue.call("restore", incarnation="", rows=[b"out of time", 6, OLD_MS - 1, b"6 0 v"]) == NOT_RESTORED | {
        "refused": 1
    }
    assert queue.call("restore", incarnation="", rows=[b"out of time", 6, NOW_MS, b"6 0 v"]) == NOT_RESTORED | {
        "refused": 1
    }
    assert queue.call(
        "restore", incarnation="", rows=[b"6 younger acked", 6, TWO_DAYS_MS, b"6 0 value"]
    ) == NOT_RESTORED | {"restored": 1}
    assert queue.order() == order
    queue.call("drop", incarnation="", dry_run=0)
    with pytest.raises(UnknownQueue):
        queue.call("restore", incarnation="", rows=[b"a", 1, 1, b"1 0 v"])


def test_what_comes_back_or_is_mended_counts_for_the_largest_entry(empty: Queue) -> None:
    client: Any = empty.client
    empty.append(Entry(b"large", b"x" * 500), Entry(b"small"))
    (row, _) = empty.find_due(retention_ms=0, with_values=1, now=NOW_MS + 1).rows
    assert empty.collect((row.key, row.sequence), retention_ms=0, now=NOW_MS + 1).deleted == 1
    client.hset(empty.keys.state, "largest_bytes", "20")
    assert empty.call("restore", incarnation="", rows=[row.key, row.sequence, row.ms, row.value]).restored == 1
    assert empty.state()["largest_bytes"] == str(row.size)
    client.hset(empty.keys.values, "small", b"2 0 " + b"x" * 900)
    client.zrem(empty.keys.order, "small")
    assert empty.call("repair", wrong_bytes="", bytes="", violations=["key", b"small"]).indexed == 1
    assert empty.state()["largest_bytes"] == str(len("small") + len("2 0 ") + 900)


def test_undelivered_rows_that_come_back_are_delivered(empty: Queue) -> None:
    empty.fill(b"a", b"b", now=OLD_MS)
    rows = empty.find_due(with_values=1).rows
    empty.collect(*pairs(empty.find_due()))
    empty.call(
        "restore",
        incarnation="",
        rows=[*(value for row in rows for value in (row.key, row.sequence, row.ms, row.value))],
    )
    assert empty.fetch(empty.fence()).sequences == [1, 2]


@pytest.mark.parametrize(
    ("what", "up_to", "counts", "left"),
    [
        ("acked", 99, (5, 0, 2), [3, 4, 8, 9, 10]),
        ("acked", 4, (2, 0, 1), [3, 4, 5, 6, 7, 8, 9, 10]),
        ("up_to", 4, (4, 2, 2), [5, 6, 7, 8, 9, 10]),
        ("up_to", 99, (10, 5, 5), []),
    ],
)
def test_purge_removes_what_was_asked_for(
    queue: Queue, what: str, up_to: int, counts: tuple[int, ...], left: list[int]
) -> None:
    before = contents(queue.client)
    tried = queue.call("purge", what=what, up_to_sequence=up_to, after_sequence=0, limit=500, dry_run=1)
    assert tried.pick("deleted", "unacked", "tombstones") == counts
    assert contents(queue.client) == before
    total, after, more = 0, 0, 1
    while more:
        purged = queue.call("purge", what=what, up_to_sequence=up_to, after_sequence=after, limit=2, dry_run=0)
        more, after = purged.more, purged.next_after_sequence
        total += purged.deleted
    assert total == counts[0]
    assert list(queue.order().values()) == left
    state = queue.state()
    assert (state["sequence"], state["sent"], state["acked"]) == ("10", "8", "2")
    assert queue.violations() == []


def test_drop_leaves_nothing_but_a_call_for_its_consumer_and_spares_another_queue_of_the_name(queue: Queue) -> None:
    incarnation = queue.state()["incarnation"]
    size = int(queue.state()["bytes"])
    assert queue.call("drop", incarnation=incarnation, dry_run=1) == {
        "existed": 1,
        "live": 10,
        "lag": 2,
        "in_flight": 3,
        "bytes": size,
        "incarnation": int(incarnation),
    }
    assert queue.call("drop", incarnation=incarnation, dry_run=0).existed == 1
    assert list(contents(queue.client)) == [queue.keys.wake]
    client: Any = queue.client
    assert 0 < client.ttl(queue.keys.wake) <= 60
    assert queue.is_woken()
    assert queue.call("drop", incarnation="", dry_run=0) == {
        "existed": 0,
        "live": 0,
        "lag": 0,
        "in_flight": 0,
        "bytes": 0,
        "incarnation": 0,
    }
    queue.fill(b"a")
    with pytest.raises(StaleEpoch):
        queue.call("drop", incarnation=incarnation, dry_run=0)
    assert len(queue.order()) == 1


def test_inspection_tells_lag_as_count_and_age(queue: Queue) -> None:
    reply = queue.call("inspect", samples=5, now=NOW_MS)
    assert reply.pick("now", "live", "tombstones", "lag", "in_flight") == (NOW_MS, 10, 5, 2, 3)
    assert (reply.oldest_sequence, reply.oldest_ms, reply.newest_ms) == (1, OLD_MS, NOW_MS - HOUR_MS)
    assert (reply.oldest_undelivered_ms, reply.oldest_unacked_ms) == (NOW_MS - HOUR_MS, OLD_MS)
    assert reply.memory_bytes > 100
    assert dict(reply.fields)[b"session"] == b"s"
    queue.append(Entry(b"3 in flight"))
    reply = queue.call("inspect", samples=5, now=NOW_MS)
    assert reply.oldest_unacked_ms == OLD_MS + 1, "an overwritten message is not waited for"
    queue.call("purge", what="up_to", up_to_sequence=99, after_sequence=0, limit=500, dry_run=0)
    reply = queue.call("inspect", samples=5, now=NOW_MS)
    assert reply.pick("live", "tombstones", "lag", "in_flight") == (0, 0, 0, 3)
    assert reply.pick("oldest_sequence", "oldest_ms", "newest_ms") == (-1, -1, -1)
    assert (reply.oldest_undelivered_ms, reply.oldest_unacked_ms) == (-1, -1)
    queue.call("drop", incarnation="", dry_run=0)
    assert queue.call("inspect", samples=5, now="") is None


DAMAGES: dict[str, tuple[list[str], str]] = {
    "ZREM {times} b": (["missing_time", "wrong_count"], "indexed"),
    "ZREM {order} b": (["bytes", "dangling_time", "dangling_value", "entries", "wrong_count"], "indexed"),
    "HDEL {values} b": (["bytes", "missing_value", "wrong_count"], "dropped"),
    "ZADD {order} 99 b": (["sequence_too_high", "time_disorder", "wrong_sequence"], "indexed"),
    "ZADD {order} 3 b": (["duplicate_sequence", "wrong_sequence"], "indexed"),
    "ZADD {times} 9 z": (["dangling_time", "wrong_count"], "dropped"),
    "ZADD {times} 1 b": (["time_disorder"], "indexed"),
    "HSET {values} z x": (["dangling_value", "wrong_count"], "dropped"),
    "HSET {values} b x": (["bytes", "wrong_sequence"], "dropped"),
    "ZADD {tombstones} 2 b": (["wrong_tombstone"], "indexed"),
    "ZADD {tombstones} 2 z": (["dangling_tombstone"], "dropped"),
    "ZREM {tombstones} c": (["wrong_tombstone"], "indexed"),
    "ZADD {in_flight} 9 9": (["stray_in_flight"], "strays"),
    "ZADD {in_flight} 2 x": (["stray_in_flight"], "strays"),
    "ZADD {in_flight} 1 x": (["stray_in_flight"], "strays"),
    "HSET {state} acked 0": (["acked_behind"], "numbers"),
    "HSET {state} acked 9": (["acked_too_high", "stray_in_flight"], "numbers"),
    "HSET {state} bytes 1": (["bytes"], "numbers"),
    "HSET {state} sequence 3": (["sequence_too_high"], "numbers"),
    "DEL {times}": (["missing_time", "wrong_count"], "indexed"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_mended(redis_url: str, damage: str) -> None:
    rules, outcome = DAMAGES[damage]
    with connect(redis_url) as client:
        queue = Queue(client=client)
        for place, entry in enumerate((Entry(b"a"), Entry(b"b"), Entry(b"c", b"", 1), Entry(b"d"))):
            queue.append(entry, now=NOW_MS + place)
        fence = queue.fence()
        queue.fetch(fence, limit=3, window=3)
        queue.ack(fence, 1)
        assert queue.violations(limit=1) == []
        command(client, *damage.format(**queue.keys._asdict()).split())
        found = queue.violations()
        assert {rule for rule, _, _ in found} == set(rules)
        assert {rule for rule, _, _ in queue.violations(limit=1)} == set(rules)
        names = [
            value
            for rule, name, _ in found
            if name
            for value in ("in_flight" if rule == "stray_in_flight" else "key", name)
        ]
        mended = queue.call("repair", wrong_bytes="", bytes="", violations=names)._asdict()
        wrong_bytes, counted = (
            queue.call("verify", part=part, cursor=0, limit=500, kinds="", headed="").bytes
            for part in ("state", "order")
        )
        mended["numbers"] += queue.call("repair", wrong_bytes=wrong_bytes, bytes=counted, violations=[]).numbers
        assert mended[outcome] > 0
        assert [violation for violation in queue.violations() if violation[0] != "entries"] == []


def test_head_of_a_record_is_answered_and_one_that_is_cut_short_is_unreadable(queue: Queue) -> None:
    client: Any = queue.client
    sequences = queue.order()
    records = {b"1 acked": b"+\0\0\1\0" + b"h" * 256 + b"v", b"5 acked": b"+\0\0\0\6short", b"9 new": b"+\0\0"}
    for key, record in records.items():
        client.hset(queue.keys.values, key, b"%d 0 " % sequences[key] + record)
    reply = queue.call("verify", part="order", cursor=0, limit=500, kinds="", headed="+")
    assert reply.violations == (
        (b"head", b"1 acked", 1, b"h" * 256),
        (b"unreadable", b"5 acked", 5, b""),
        (b"unreadable", b"9 new", 9, b""),
    )


def test_look_at_large_values_is_bounded_in_bytes(empty: Queue) -> None:
    empty.append(*(Entry(b"%d" % number, bytes(50_000)) for number in range(100)))
    client: Any = empty.client
    assert empty.call("verify", part="order", cursor=0, limit=500, kinds="", headed="").looked_at == 6
    assert empty.violations(limit=500) == []
    client.delete(empty.keys.order)
    assert 0 < len(empty.call("verify", part="values", cursor=0, limit=500, kinds="", headed="").violations) < 50


def test_repair_takes_what_is_lost_out_of_flight(queue: Queue) -> None:
    client: Any = queue.client
    client.hdel(queue.keys.values, b"3 in flight")
    assert queue.call("repair", wrong_bytes="", bytes="", violations=["key", b"3 in flight"]) == {
        "indexed": 0,
        "dropped": 1,
        "strays": 1,
        "numbers": 1,
    }
    assert 3 not in queue.in_flight()
    assert queue.state()["acked"] == "3"


def test_number_in_flight_that_is_none_stops_nobody(queue: Queue) -> None:
    client: Any = queue.client
    client.zadd(queue.keys.in_flight, {"x": 2, "4x": 4})
    assert queue.call("inspect", samples=5, now=NOW_MS).in_flight == 5
    fence = queue.fence()
    assert queue.ack(fence, 8).acked_now == 1
    fetched = queue.fetch(fence, window=9, limit=9)
    assert {"x", "4x"}.isdisjoint(client.zrange(queue.keys.in_flight, 0, -1))
    assert fetched.in_flight == len(fetched.messages)
    assert queue.violations() == []


def test_repair_of_a_sound_queue_changes_nothing(queue: Queue) -> None:
    before = contents(queue.client)
    names = [value for key in queue.order() for value in ("key", key)]
    reply = queue.call("repair", wrong_bytes="", bytes="", violations=names)
    assert (reply.dropped, reply.strays, reply.numbers) == (0, 0, 0)
    assert contents(queue.client) == before


@pytest.mark.parametrize(
    ("script", "args"),
    [
        ("find_due", ("never", 1, 1, 0, 0, 1, 0, 1, "")),
        ("find_due", ("delete", -1, 1, 0, 0, 1, 0, 1, "")),
        ("find_due", ("delete", 1, "x", 0, 0, 1, 0, 1, "")),
        ("find_due", ("delete", 1, 1, 2, 0, 1, 0, 1, "")),
        ("find_due", ("delete", 1, 1, 0, -1, 1, 0, 1, "")),
        ("find_due", ("delete", 1, 1, 0, 0, 501, 0, 1, "")),
        ("find_due", ("delete", 1, 1, 0, 0, 1, 2, 1, "")),
        ("find_due", ("delete", 1, 1, 0, 0, 1, 0, 0, "")),
        ("find_due", ("delete", 1, 1, 0, 0, 1, 0, 1, "now")),
        ("collect", ("never", 1, 1, 0, "", "")),
        ("collect", ("delete", 1, 1, 0, -1, "")),
        ("collect", ("delete", 1, 1, 0, "", "", b"key")),
        ("collect", ("delete", 1, 1, 0, "", "", b"key", "x")),
        ("collect", ("delete", 1, 1, 0, "", "", *[b"key", 1] * 201)),
        ("configure", ("never", 1, 1)),
        ("configure", ("delete", "", 1)),
        ("configure", ("delete", -1, 1)),
        ("configure", ("", 1, 1)),
        ("purge", ("all", 1, 0, 1, 0)),
        ("purge", ("up_to", -1, 0, 1, 0)),
        ("purge", ("up_to", 1, 0, 0, 0)),
        ("purge", ("up_to", 1, 0, 1, 2)),
        ("drop", ("", 2)),
        ("restore", ("", b"key", 1, 1)),
        ("restore", ("", b"key", 0, 1, b"0 0 v")),
        ("verify", ("all", 0, 1, "", "")),
        ("verify", ("order", "x", 1, "", "")),
        ("verify", ("order", 0, 501, "", "")),
        ("repair", ("1", "")),
        ("repair", ("", "", "value", b"key")),
        ("repair", ("", "", *["key", b"key"] * 201)),
    ],
)
def test_bad_arguments_are_refused_and_nothing_is_written(queue: Queue, script: str, args: tuple[Any, ...]) -> None:
    with unchanged(queue.client), pytest.raises(UsageError):
        queue.send(script, *args)


def test_work_of_a_collection_does_not_grow_with_the_queue(valkey_url: str) -> None:
    """Commands per call are counted, not time: the same in a queue of 20,000 keys as in one of 1,000."""
    with connect(valkey_url) as client:
        counted: dict[int, list[int]] = {}
        for size in (1_000, 20_000):
            queue = Queue(client=client, client_id=f"meter-{size}")
            for first in range(0, size, 200):
                queue.append(*(Entry(b"%d" % number, b"", number % 2) for number in range(first, first + 200)))
            fence = queue.consume(50)
            counts = []
            for policy in ("delete", "acked_only", "compact"):
                before = calls(client)
                page = queue.find_due(policy, retention_ms=0, tombstone_ms=0, now=NOW_MS + 1, limit=50)
                queue.collect(*pairs(page), policy=policy, retention_ms=0, tombstone_ms=0, now=NOW_MS + 1)
                counts.append(calls(client) - before)
            before = calls(client)
            assert len(queue.fetch(fence).messages) == 5
            counts.append(calls(client) - before)
            counted[size] = counts
        assert counted[1_000] == counted[20_000]
        assert max(counted[1_000]) < 300


def calls(client: Any) -> int:
    """Return how many commands scripts have run."""
    stats: dict[str, Any] = client.info("commandstats")
    others = ("cmdstat_info", "cmdstat_script", "cmdstat_evalsha")
    return sum(value["calls"] for name, value in stats.items() if not name.startswith(others))
