"""``append``: the newest value of a key is all that is left of it, within limits, once, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lua_compacted import DAY_MS, NOW_MS, Entry, Queue, appended
from lua_sessions import HOSTILE_IDS, command, contents, unchanged

from queuekeeper.errors import (
    NumberReused,
    QueueFull,
    SequenceConflict,
    StaleEpoch,
    StoreFull,
    UnknownLayout,
    UsageError,
)
from queuekeeper.redis_client import RedisClient, connect

pytestmark = pytest.mark.lua


@pytest.fixture
def queue(redis_url: str) -> Iterator[Queue]:
    """An empty queue."""
    with connect(redis_url) as client:
        yield Queue(client=client)


def test_sequences_count_up_and_a_key_keeps_its_newest_value_only(queue: Queue) -> None:
    assert queue.append(Entry(b"a", b"1"), Entry(b"b", b"2")) == appended(
        first_sequence=1, live=2, is_first=1, replaced=[0, 0]
    )
    assert queue.append(Entry(b"a", b"3")) == appended(first_sequence=3, live=2, replaced=[1])
    assert queue.peek() == [(b"b", NOW_MS, b"2 0 2"), (b"a", NOW_MS, b"3 0 3")]
    assert queue.violations() == []


def test_key_that_comes_twice_in_a_batch_keeps_its_last_value(queue: Queue) -> None:
    queue.append(Entry(b"a", b"0"))
    reply = queue.append(Entry(b"a", b"1"), Entry(b"b"), Entry(b"a", b"2", 1), Entry(b"b", b"", 1), Entry(b"b"))
    assert reply == appended(first_sequence=2, live=2, replaced=[1, 0, 2, 3, 5])
    assert queue.order() == {b"a": 4, b"b": 6}
    assert queue.violations() == []


def test_old_payload_is_gone_from_memory(queue: Queue) -> None:
    client: Any = queue.client
    for number in range(50):
        queue.append(Entry(b"key", bytes([65 + number % 26]) * 200_000), now=NOW_MS + number)
    used: int = command(client, "MEMORY USAGE", queue.keys.values)
    assert used < 400_000
    assert client.hlen(queue.keys.values) == client.zcard(queue.keys.order) == client.zcard(queue.keys.times) == 1
    assert queue.state()["bytes"] == str(len(b"key") + len(b"50 0 ") + 200_000)
    assert queue.state()["compacted"] == "49"


@pytest.mark.parametrize("client_id", HOSTILE_IDS[:5])
def test_keys_and_records_are_any_bytes(client: RedisClient, client_id: str) -> None:
    queue = Queue(client=client, client_id=client_id)
    keys = [b"", b"/", b"a/b//c", b"\x00", b"a\x00b", bytes(range(256)), b"{x}", b"k" * 65_535, b"1", b"-inf", b"(1"]
    queue.append(*(Entry(key, b"\x00 1 " + key) for key in keys))
    fetched = queue.fetch(queue.fence(), window=50, limit=50).messages
    assert [(message.key, message.record) for message in fetched] == [(key, b"\x00 1 " + key) for key in keys]
    for key in keys:
        assert queue.call("get", key=key).value.endswith(b"\x00 1 " + key)
    assert queue.violations() == []


def test_instants_never_fall_though_clocks_do(queue: Queue) -> None:
    queue.append(Entry(b"a"), now=NOW_MS)
    queue.append(Entry(b"b"), now=NOW_MS - 5_000)
    queue.append(Entry(b"c"), now="")
    instants = [ms for _, ms, _ in queue.peek()]
    assert instants == sorted(instants)
    assert instants[1] == NOW_MS


@pytest.mark.parametrize("policy", ["reject", "drop_oldest"])
def test_append_that_does_not_grow_the_queue_passes_at_the_limit(queue: Queue, policy: str) -> None:
    queue.fill(b"a", b"b")
    size = int(queue.state()["bytes"])
    queue.append(Entry(b"a", b"value of a"), max_keys=2, max_bytes=size, policy=policy)
    queue.append(Entry(b"a", b"", 1), max_keys=1, max_bytes=1 if policy == "reject" else size, policy="reject")
    assert set(queue.order()) == {b"a", b"b"}
    assert queue.violations() == []


@pytest.mark.parametrize("limits", [{"max_keys": 2}, {"max_bytes": 30}])
def test_full_queue_refuses_a_whole_batch(queue: Queue, limits: dict[str, int]) -> None:
    queue.append(Entry(b"a", b"1"), Entry(b"b", b"2"))
    with unchanged(queue.client), pytest.raises(QueueFull):
        queue.append(Entry(b"a", b"new"), Entry(b"c", b"x" * 20), producer="p", number=1, **limits)  # type: ignore[arg-type]


def test_oldest_go_and_are_counted_apart_when_nobody_has_acknowledged_them(queue: Queue) -> None:
    queue.fill(b"a", b"b", b"c", b"d", b"e")
    fence = queue.fence()
    queue.fetch(fence, window=3, limit=3)
    queue.ack(fence, 1, 3)
    # a and c are acknowledged, b is in flight, d is not delivered.
    assert queue.append(Entry(b"f"), max_keys=2, policy="drop_oldest") == appended(
        first_sequence=6, live=2, evicted=4, evicted_unacked=2, is_consumed=1, replaced=[0]
    )
    assert set(queue.order()) == {b"e", b"f"}
    state = queue.state()
    assert (state["evicted"], state["evicted_unacked"], state["last_lost_sequence"]) == ("4", "2", "4")
    assert queue.violations() == []


def test_oldest_go_until_the_bytes_fit(queue: Queue) -> None:
    queue.append(*(Entry(b"%d" % number, b"x" * 95) for number in range(5)))
    queue.append(Entry(b"2", b"y" * 95), Entry(b"9", b"y" * 195), max_bytes=400, policy="drop_oldest")
    assert set(queue.order()) == {b"4", b"2", b"9"}
    assert int(queue.state()["bytes"]) <= 400
    assert queue.violations() == []


def test_batch_that_could_never_fit_is_refused(queue: Queue) -> None:
    with pytest.raises(QueueFull):
        queue.append(Entry(b"a"), Entry(b"b"), max_keys=1, policy="drop_oldest")
    with pytest.raises(QueueFull):
        queue.append(Entry(b"a", b"x" * 100), max_bytes=100, policy="drop_oldest")
    assert contents(queue.client) == {}


def test_eviction_spares_what_the_same_call_has_appended(queue: Queue) -> None:
    queue.fill(b"a", b"b")
    client: Any = queue.client
    client.hset(queue.keys.state, "bytes", 10_000)
    entries = [Entry(b"c"), Entry(b"d")]
    reply = queue.append(*entries, max_bytes=400, policy="drop_oldest", producer="p", number=1)
    assert reply.pick("first_sequence", "evicted", "evicted_unacked") == (b"3", b"2", b"2")
    assert queue.order() == {b"c": 3, b"d": 4}
    again = queue.append(*entries, max_bytes=400, policy="drop_oldest", producer="p", number=1)
    assert again == {"word": "replayed", "first_sequence": 3, "last_sequence": 4}
    assert [rule for rule, _, _ in queue.violations()] == ["bytes"]


def test_first_append_of_a_queue_is_told(queue: Queue) -> None:
    queue.subscribe()
    assert [queue.append(Entry(b"a")).is_first for _ in range(2)] == [b"1", b"0"]
    queue.call("drop", incarnation="", dry_run=0)
    assert queue.append(Entry(b"a")).is_first == b"1"


def test_evictions_of_one_call_are_bounded_and_go_on_with_the_next(queue: Queue) -> None:
    for first in range(0, 1_400, 200):
        queue.append(*(Entry(b"%d" % number, b"") for number in range(first, first + 200)))
    for key, live, evicted in ((b"x", 601, 800), (b"y", 10, 592)):
        reply = queue.append(Entry(key), max_keys=10, policy="drop_oldest")
        assert (int(reply.live), int(reply.evicted)) == (live, evicted)
    assert queue.violations() == []


def test_expected_sequence_decides(queue: Queue) -> None:
    queue.append(Entry(b"a", b"1", 0, 0))
    queue.append(Entry(b"a", b"2", 0, 1), Entry(b"b", b"", 1, 0))
    before = contents(queue.client)
    for entry in (Entry(b"a", b"3", 0, 1), Entry(b"a", b"3", 0, 0), Entry(b"b", b"3", 0, 0), Entry(b"c", b"3", 0, 7)):
        with pytest.raises(SequenceConflict):
            queue.append(Entry(b"new"), entry, producer="p", number=1)
    assert contents(queue.client) == before


def test_repeated_append_is_answered_and_changes_nothing(queue: Queue) -> None:
    entries = [Entry(b"a", b"1"), Entry(b"b", b"2", 0, 0)]
    queue.append(*entries, producer="p", number=7)
    before = contents(queue.client)
    assert queue.append(*entries, producer="p", number=7, max_keys=1) == {
        "word": "replayed",
        "first_sequence": 1,
        "last_sequence": 2,
    }
    assert queue.append(*entries, producer="p", number=6).word == "forgotten"
    assert contents(queue.client) == before
    assert queue.append(Entry(b"a"), producer="p", number=8).first_sequence == b"3"
    assert queue.append(Entry(b"a"), producer="other", number=1).first_sequence == b"4"


def test_number_that_another_append_has_is_refused(queue: Queue) -> None:
    queue.append(Entry(b"a", b"1"), producer="p", number="7:0a1b")
    before = contents(queue.client)
    with pytest.raises(NumberReused, match="number 7"):
        queue.append(Entry(b"b", b"2"), producer="p", number="7:ffff")
    assert queue.append(Entry(b"a", b"1"), producer="p", number="7:0a1b") == {
        "word": "replayed",
        "first_sequence": 1,
        "last_sequence": 1,
    }
    assert queue.append(Entry(b"a", b"1"), producer="p", number=7) == {
        "word": "replayed",
        "first_sequence": 1,
        "last_sequence": 1,
    }
    assert contents(queue.client) == before
    client: Any = queue.client
    assert client.hget(queue.keys.producers, "p") == b"7 1 1 1:0a1b %d" % NOW_MS


def test_record_of_a_producer_without_a_digest_is_believed(queue: Queue) -> None:
    queue.append(Entry(b"a"), producer="p", number=7)
    client: Any = queue.client
    assert client.hget(queue.keys.producers, "p") == b"7 1 1 1 %d" % NOW_MS, "as earlier versions write it"
    assert queue.append(Entry(b"a"), producer="p", number="7:0a1b") == {
        "word": "replayed",
        "first_sequence": 1,
        "last_sequence": 1,
    }
    assert queue.append(Entry(b"a"), producer="p", number="8:0a1b").first_sequence == b"2"


def test_largest_entry_is_noted_and_stays_so(queue: Queue) -> None:
    queue.append(Entry(b"a", b"x" * 100), Entry(b"bc", b"x" * 200))
    assert queue.state()["largest_bytes"] == str(len("bc") + len("2 0 ") + 200)
    queue.append(Entry(b"bc", b"x"))
    assert queue.state()["largest_bytes"] == "206"
    queue.append(Entry(b"bc", b"x" * 300))
    assert queue.state()["largest_bytes"] == "306"


def test_queue_of_an_earlier_version_learns_how_large_its_entries_are_when_it_is_empty(queue: Queue) -> None:
    queue.append(Entry(b"a", b"x" * 100))
    client: Any = queue.client
    client.hdel(queue.keys.state, "largest_bytes")
    queue.append(Entry(b"b", b"x"))
    assert "largest_bytes" not in queue.state()
    queue.call("purge", what="up_to", up_to_sequence=2, after_sequence=0, limit=100, dry_run=0)
    queue.append(Entry(b"b", b"x"))
    assert queue.state()["largest_bytes"] == "6"


def test_wake_up_that_nobody_takes_ends(queue: Queue) -> None:
    client: Any = queue.client
    fence = queue.fence()
    steps: list[Callable[[], object]] = [
        queue.fence,
        lambda: queue.append(Entry(b"a")),
        lambda: queue.call("heartbeat", **queue.fence()._asdict(), lease_ms=60_000, now=NOW_MS),
        lambda: queue.call("rewind", incarnation="", epoch="", to="earliest"),
        lambda: queue.call("release", incarnation=fence.incarnation, epoch=fence.epoch),
    ]
    for step in steps:
        queue.is_woken()
        step()
        assert 0 < client.ttl(queue.keys.wake) <= DAY_MS // 1_000, step


def test_consumer_is_woken_and_said_to_be_there(queue: Queue) -> None:
    assert queue.append(Entry(b"a")).is_consumed == b"0"
    assert not queue.is_woken()
    queue.subscribe(lease_ms=1_000)
    assert queue.is_woken()
    assert queue.append(Entry(b"b"), Entry(b"c")).is_consumed == b"1"
    assert queue.is_woken()
    assert not queue.is_woken()
    assert queue.append(Entry(b"d"), now=NOW_MS + 2_000).is_consumed == b"0"
    assert queue.is_woken()


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "newest"},
        {"max_keys": -1},
        {"max_bytes": "x"},
        {"now": -1},
        {"now": "1e3"},
        {"producer": "p", "number": ""},
        {"producer": "p", "number": -1},
        {"producer": "p", "number": 2**53 + 2},
    ],
)
def test_bad_options_are_named_and_nothing_is_written(queue: Queue, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        queue.append(Entry(b"a"), **options)
    assert contents(queue.client) == {}


@pytest.mark.parametrize("entry", [Entry(b"a", b"", 2), Entry(b"a", b"", 0, -1), Entry(b"a", b"", 0, "01")])
def test_bad_entries_are_named_and_nothing_is_written(queue: Queue, entry: Entry) -> None:
    with pytest.raises(UsageError, match="entry 2"):
        queue.append(Entry(b"fine"), entry)
    assert contents(queue.client) == {}


def test_number_of_entries_is_bounded(queue: Queue) -> None:
    for count in (0, 201):
        with pytest.raises(UsageError):
            queue.append(*[Entry(b"a")] * count)
    with pytest.raises(UsageError):
        queue.call(
            "append",
            max_keys=0,
            max_bytes=0,
            policy="reject",
            producer="",
            number="",
            now="",
            entries=[b"key", b"record", 0],
        )
    assert queue.append(*[Entry(b"a")] * 200).first_sequence == b"1"


def test_sequences_are_exact_up_to_2_to_the_53rd_and_end_there(queue: Queue) -> None:
    client: Any = queue.client
    queue.fill(b"a")
    client.hset(queue.keys.state, "sequence", 2**53 - 2)
    assert queue.append(Entry(b"b"), Entry(b"a")).first_sequence == b"%d" % (2**53 - 1)
    assert queue.order() == {b"b": 2**53 - 1, b"a": 2**53}
    fetched = queue.fetch(queue.fence())
    assert fetched.sequences == [2**53 - 1, 2**53]
    assert queue.state()["sent"] == str(2**53)
    with pytest.raises(UsageError, match="2\\^53"):
        queue.append(Entry(b"c"))


def test_queue_of_a_later_version_is_left_alone(queue: Queue) -> None:
    client: Any = queue.client
    client.hset(queue.keys.state, "version", 2)
    before = contents(queue.client)
    for act in (
        lambda: queue.append(Entry(b"a")),
        queue.subscribe,
        lambda: queue.call("configure", policy="delete", retention_ms=1, tombstone_ms=1),
    ):
        with pytest.raises(UnknownLayout):
            act()
    assert contents(queue.client) == before


def test_sequences_go_on_where_the_state_was_lost(queue: Queue) -> None:
    client: Any = queue.client
    queue.fill(b"a", b"b")
    client.delete(queue.keys.state)
    assert queue.append(Entry(b"c")).first_sequence == b"3"


def test_full_server_refuses_an_append_and_lets_everything_else_drain_it(own_server: Any) -> None:
    own_server.start()
    with connect(own_server.url) as client:
        queue = Queue(client=client)
        queue.fill(b"a", b"b", b"c", b"d")
        queue.append(Entry(b"e"), now=NOW_MS + 1)
        fence = queue.fence()
        queue.fetch(fence, window=2, limit=2)
        admin: Any = client
        admin.config_set("maxmemory", 1)
        before = contents(client)
        with pytest.raises(StoreFull):
            queue.append(Entry(b"f"), producer="p", number=1)
        with pytest.raises(StoreFull):
            queue.append(Entry(b"a", b""))
        assert contents(client) == before
        # A shorter retention makes room, so it can be set when there is none.
        assert queue.call("configure", policy="delete", retention_ms=0, tombstone_ms=1) == 1
        assert queue.ack(fence, 1).acked_now == 1
        assert queue.fetch(fence, 2).sequences == [3, 4, 5]
        assert queue.call(
            "heartbeat", incarnation=fence.incarnation, epoch=fence.epoch, lease_ms=60_000, now=NOW_MS
        ) == {"lag": 0, "in_flight": 3}
        assert queue.call("skip", sequence=3, now=NOW_MS).acked_now == 1
        assert queue.call("inspect", samples=5, now=NOW_MS).live == 5
        assert [key for key, _, _ in queue.peek()] == [b"a", b"b", b"c", b"d", b"e"]
        due = queue.find_due(retention_ms=0, now=NOW_MS + 1)
        rows = [(row.key, row.sequence) for row in due.rows]
        assert queue.collect(*rows, retention_ms=0, now=NOW_MS + 1).deleted == 4
        assert queue.call("rewind", **fence._asdict(), to="earliest").to_deliver == 1
        with pytest.raises(StaleEpoch):
            queue.ack(fence, 3)
        assert queue.fetch(queue.fence("other")).sequences == [5]
        purged = queue.call("purge", what="up_to", up_to_sequence=99, after_sequence=0, limit=100, dry_run=0)
        assert purged.deleted == 1
        assert queue.call("drop", incarnation="", dry_run=0).existed == 1
        assert list(contents(client)) == [queue.keys.wake]
