"""Compacted queues as their users see them: blocking and asyncio, on Valkey, Redis and a cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from queuekeeper.compacted.model import (
    Append,
    Fence,
    Position,
    Properties,
    Purge,
    QueueRules,
    Refill,
    Retention,
    RetentionPolicy,
    WhenFull,
)
from queuekeeper.compacted.reports import AckReport, CompactedMessage, DueRow, Subscription
from queuekeeper.embedded import RedisServer
from queuekeeper.errors import (
    QueueBusy,
    QueueFull,
    SequenceConflict,
    ServerUnavailable,
    StaleEpoch,
    StoreFull,
    UnknownQueue,
    UsageError,
)
from queuekeeper.keyspace import compacted_keys, compacted_registry_key
from tests.conformance.compacted_worlds import QueueWorld
from tests.conformance.cutting_proxy import CuttingProxy
from tests.conftest import REDIS_FLAVOURS, nightly, url_of_server
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.conformance

# Forms and servers do not depend on each other (tests/unit/test_forms.py): each has its turn, and the rest at night.
WORLDS = ["valkey-asyncio", "cluster-blocking", *nightly(f"{REDIS_FLAVOURS[-1]}-blocking", "cluster-asyncio")]
C = "meter-7"
HOSTILE_IDS = (
    "{a}b",
    "%x",
    "%7Dx",
    "{}",
    "a}b",
    "смарт-😀",
    "i" * 255,
    "glob*?[a-z]^\\",
    "a/b c",
    "line\nbreak",
    "$1",
)
HOSTILE_KEYS = (
    b"",
    b"key/1",
    b"/",
    b"\0\r\n",
    b"\xff\xfe",
    "ключ😀".encode(),
    b"a b",
    b"{x}",
    b"1",
    b"-inf",
    b"k" * 65_535,
)
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.fixture(scope="module", params=WORLDS)
def opened_world(request: pytest.FixtureRequest) -> Iterator[QueueWorld]:
    server, _, form = request.param.partition("-")
    world = QueueWorld(url_of_server(request, server), awaited=form == "asyncio")
    yield world
    world.erase()
    world.close()


@pytest.fixture
def world(opened_world: QueueWorld) -> QueueWorld:
    """A server that holds no queue."""
    opened_world.erase()
    return opened_world


@pytest.fixture(scope="module")
def opened_queues(opened_world: QueueWorld) -> Any:
    return opened_world.queues()


@pytest.fixture
def queues(world: QueueWorld, opened_queues: Any) -> Any:
    """All queues of a server that holds none."""
    del world
    return opened_queues


def entries(count: int, first: int = 1) -> list[Append]:
    """Return entries with keys of their own."""
    return [Append(key=b"k%d" % number, value=b"v%d" % number) for number in range(first, first + count)]


def numbers(messages: Sequence[CompactedMessage]) -> list[int]:
    return [message.sequence for message in messages]


def subscribe(queues: Any, session: str = "s1", **options: Any) -> Subscription:
    found: Subscription = queues.subscribe(C, session=session, **options)
    return found


def consume(queues: Any, fence: Fence, **options: Any) -> list[CompactedMessage]:
    """Fetch and acknowledge until nothing comes."""
    found: list[CompactedMessage] = []
    acks: list[int] = []
    while True:
        page = queues.fetch(C, fence=fence, limit=100, window=100, acks=acks, **options)
        if not page.messages:
            return found
        found += page.messages
        acks = numbers(page.messages)


# Appending


def test_consumer_gets_the_newest_value_of_each_key_in_order(queues: Any) -> None:
    for key, value in ((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"b", b"2")):
        queues.append(C, [Append(key=key, value=value)])
    found = consume(queues, subscribe(queues).fence)
    assert [(m.key, m.value, m.sequence) for m in found] == [(b"a", b"2", 3), (b"c", b"1", 4), (b"b", b"2", 5)]


def test_append_says_what_became_of_each_entry(queues: Any) -> None:
    first = queues.append(C, entries(3))
    assert (first.first_sequence, first.last_sequence, first.sequences) == (1, 3, (1, 2, 3))
    assert (first.replaced, first.live, first.is_replay, first.is_consumed) == ((None, None, None), 3, False, False)
    subscribe(queues)
    batch = [Append(key=b"k2"), Append(key=b"new"), Append(key=b"k2")]
    second = queues.append(C, batch)
    assert (second.sequences, second.replaced) == ((4, 5, 6), (2, None, 4))
    assert (second.live, second.is_consumed) == (4, True)


def test_value_that_was_replaced_is_not_kept(world: QueueWorld, queues: Any) -> None:
    for number in range(50):
        queues.append(C, [Append(key=b"a", value=b"%d" % number * 1_000)])
    stored = world.client.hgetall(compacted_keys(C).values)
    assert list(stored) == [b"a"]
    assert stored[b"a"].endswith(b"49" * 1_000)
    view = queues.inspect(C)
    assert (view.live, view.sequence, view.size_bytes) == (1, 50, len(b"a") + len(stored[b"a"]))


def test_everything_that_goes_with_a_value_comes_back(world: QueueWorld, queues: Any) -> None:
    properties = {"unit": "кВт", "": "empty name"}
    queues.append(C, [Append(key=b"a", value=b"\0\xff", properties=properties, content_type="x/y", published_ms=12)])
    queues.append(C, [Append(key=b"b", tombstone=True), Append(key=b"c")])
    a, b, c = queues.peek(C)
    assert a == CompactedMessage(
        client_id=C,
        key=b"a",
        value=b"\0\xff",
        sequence=1,
        appended_ms=world.clock.now_ms,
        published_ms=12,
        properties=properties,
        content_type="x/y",
    )
    assert (b.tombstone, b.value) == (True, b"")
    assert (c.tombstone, c.value, dict(c.properties), c.content_type, c.published_ms) == (False, b"", {}, None, None)


def test_property_that_comes_several_times_keeps_all_its_texts_in_order(queues: Any) -> None:
    pairs = (("hop", "b"), ("unit", "V"), ("hop", "a"), ("hop", "b"))
    given = (Properties(pairs), Properties(pairs[:2]))
    queues.append(C, [Append(key=b"%d" % place, properties=each) for place, each in enumerate(given)])
    several, once = (message.properties for message in queues.peek(C))
    assert (several.pairs, several["hop"], len(several)) == (pairs, "b", 2)
    assert several != {"hop": "b", "unit": "V"}
    assert once == {"hop": "b", "unit": "V"} == given[1]


def test_any_client_id_and_key_come_back_byte_for_byte(queues: Any) -> None:
    queues.append("other", entries(1))
    for client_id in HOSTILE_IDS:
        keep_hostile_keys(queues, client_id)
    assert queues.inspect("other").live == 1


def keep_hostile_keys(queues: Any, client_id: str) -> None:
    batch = [Append(key=key, value=key[::-1]) for key in HOSTILE_KEYS]
    queues.append(client_id, batch)
    fence = queues.subscribe(client_id, session="s\n😀").fence
    found = queues.fetch(client_id, fence=fence, limit=100, window=100).messages
    assert [(m.client_id, m.key, m.value) for m in found] == [(client_id, key, key[::-1]) for key in HOSTILE_KEYS]
    assert queues.ack(client_id, fence=fence, sequences=numbers(found)).in_flight == 0
    assert [queues.get(client_id, key=key).value for key in HOSTILE_KEYS] == [key[::-1] for key in HOSTILE_KEYS]
    assert queues.inspect(client_id).session == "s\n😀"
    assert queues.verify(client_id).violations == ()
    assert queues.purge(client_id, what=Purge.everything()).messages == len(HOSTILE_KEYS)
    assert queues.drop(client_id).existed


def test_entry_is_stored_only_if_the_key_has_the_expected_number(queues: Any) -> None:
    assert queues.append(C, [Append(key=b"a", value=b"1", expected_sequence=0)]).sequences == (1,)
    assert queues.append(C, [Append(key=b"a", value=b"2", expected_sequence=1)]).sequences == (2,)
    for expected in (0, 1, 3):
        with pytest.raises(SequenceConflict, match="2"):
            queues.append(C, [Append(key=b"b"), Append(key=b"a", value=b"3", expected_sequence=expected)])
    assert [(m.key, m.value) for m in queues.peek(C)] == [(b"a", b"2")]


@pytest.mark.parametrize("size", [0, 600_000])
def test_append_that_is_stored_in_parts_takes_no_conditions(queues: Any, size: int) -> None:
    count = 2 if size else 201
    batch = [Append(key=b"%d" % number, value=bytes(size), expected_sequence=0) for number in range(count)]
    for some in (batch, [*batch[:-1], Append(key=b"last", value=bytes(size))]):
        with pytest.raises(
            UsageError, match=rf"an append of {count} entries is stored in parts, and some of them have an expected_seq"
        ):
            queues.append(C, some)
    assert queues.peek(C) == ()
    assert queues.append(C, batch[:-1]).sequences == tuple(range(1, count))
    assert queues.append(C, [Append(key=b"%d" % number, value=bytes(size)) for number in range(count)]).live == count


def test_full_queue_refuses_a_batch_as_a_whole_and_takes_new_values_of_its_keys(world: QueueWorld) -> None:
    queues = world.queues(rules=QueueRules(max_keys=3))
    queues.append(C, entries(2))
    with pytest.raises(QueueFull, match="3"):
        queues.append(C, entries(2, first=3))
    assert queues.append(C, entries(3)).live == 3
    assert queues.append(C, [Append(key=b"k1", value=b"new")]).sequences == (6,)
    assert queues.inspect(C).live == 3


def test_full_queue_drops_the_oldest_and_counts_what_nobody_had_acknowledged(world: QueueWorld) -> None:
    queues = world.queues(rules=QueueRules(max_keys=3, when_full=WhenFull.DROP_OLDEST))
    queues.append(C, entries(3))
    fence = subscribe(queues).fence
    queues.fetch(C, fence=fence, limit=1, window=1)
    queues.ack(C, fence=fence, sequences=[1])
    report = queues.append(C, entries(2, first=4))
    assert (report.evicted, report.evicted_unacked, report.live) == (2, 1, 3)
    assert numbers(queues.peek(C)) == [3, 4, 5]
    assert queues.inspect(C).last_lost_sequence == 2


def test_newest_message_that_was_lost_stays_the_newest(world: QueueWorld) -> None:
    queues = world.queues(rules=QueueRules(max_keys=3, when_full=WhenFull.DROP_OLDEST))
    queues.append(C, [*entries(2), Append(key=b"gone", tombstone=True)])
    world.clock.now_ms += 1
    retention = Retention(policy=RetentionPolicy.DELETE, retention_ms=0)
    newest = queues.find_due(C, retention=retention).rows[-1:]
    assert queues.collect(C, retention=retention, rows=newest).unacked == 1
    assert queues.append(C, entries(2, first=4)).evicted_unacked == 1
    assert queues.inspect(C).last_lost_sequence == 3


def test_queue_is_bounded_in_bytes(world: QueueWorld) -> None:
    queues = world.queues(rules=QueueRules(max_bytes=1_000))
    queues.append(C, [Append(key=b"a", value=bytes(600))])
    with pytest.raises(QueueFull, match="1000"):
        queues.append(C, [Append(key=b"b", value=bytes(600))])
    assert queues.append(C, [Append(key=b"a", value=bytes(700))]).live == 1


def test_append_that_is_repeated_under_its_number_is_stored_once(queues: Any) -> None:
    queues.append(C, entries(1), producer="p", number=1)
    first = queues.append(C, entries(3), producer="p", number=7)
    queues.append(C, entries(1, first=9), producer="other", number=7)
    again = queues.append(C, entries(3), producer="p", number=7)
    assert (again.is_replay, again.is_forgotten, again.sequences) == (True, False, first.sequences)
    assert queues.inspect(C).sequence == 5
    late = queues.append(C, entries(1), producer="p", number=1)
    assert (late.is_replay, late.is_forgotten, late.sequences) == (True, True, ())
    assert queues.inspect(C).sequence == 5


def test_large_append_is_cut_and_a_repetition_goes_on_where_it_broke_off(world: QueueWorld) -> None:
    queues = world.queues(rules=QueueRules(max_keys=450))
    with pytest.raises(QueueFull):
        queues.append(C, entries(500), producer="p", number=1)
    assert queues.inspect(C).sequence == 400
    roomy = world.queues()
    report = roomy.append(C, entries(500), producer="p", number=1)
    assert (report.sequences, report.live, report.is_replay) == (tuple(range(1, 501)), 500, False)
    again = roomy.append(C, entries(500), producer="p", number=1)
    assert (again.sequences, again.is_replay) == (report.sequences, True)
    assert roomy.append(C, entries(250), producer="p", number=2).sequences == tuple(range(501, 751))
    assert roomy.inspect(C).live == 500


def test_nothing_is_stored_of_a_large_append_whose_number_was_passed(queues: Any) -> None:
    queues.append(C, entries(1), producer="p", number=7)
    late = queues.append(C, entries(250), producer="p", number=6)
    assert (late.is_forgotten, late.sequences, queues.inspect(C).sequence) == (True, (), 1)


def test_large_values_go_in_several_calls(queues: Any) -> None:
    report = queues.append(C, [Append(key=b"%d" % number, value=bytes(1_000_000)) for number in range(5)])
    assert report.sequences == tuple(range(1, 6))
    found = queues.fetch(C, fence=subscribe(queues).fence, limit=5, max_bytes=3_500_000).messages
    assert numbers(found) == [1, 2, 3]


def test_collector_is_told_of_a_queue_before_anything_is_appended(world: QueueWorld) -> None:
    registry = compacted_registry_key(C)
    world.queues().append(C, entries(1))
    assert world.client.zscore(registry, C) == world.clock.now_ms
    # What the collector writes there is left alone.
    world.client.zadd(registry, {C: 5_000_000_000_000})
    world.queues().append(C, entries(1))
    assert world.client.zscore(registry, C) == 5_000_000_000_000


@pytest.mark.parametrize("subscribes_first", [False, True])
def test_collector_is_told_again_of_a_queue_that_a_server_has_lost(world: QueueWorld, subscribes_first: bool) -> None:
    queues = world.queues()
    queues.append(C, entries(1))
    world.client.flushall()
    if subscribes_first:
        subscribe(queues)
    queues.append(C, entries(1))
    assert world.client.zscore(compacted_registry_key(C), C) is not None


# Consuming


def test_acknowledgements_in_any_order_and_number_replay_nothing(queues: Any) -> None:
    queues.append(C, entries(6))
    fence = subscribe(queues).fence
    assert numbers(queues.fetch(C, fence=fence, limit=5).messages) == [1, 2, 3, 4, 5]
    assert queues.ack(C, fence=fence, sequences=[5, 3]) == AckReport(acked=2, unknown=0, acked_up_to=0, in_flight=3)
    assert queues.ack(C, fence=fence, sequences=[1, 3]) == AckReport(acked=1, unknown=1, acked_up_to=1, in_flight=2)
    assert queues.ack(C, fence=fence, sequences=[4, 2, 99]).acked_up_to == 5
    # A late one, of what was acknowledged long ago, moves nothing back.
    assert queues.ack(C, fence=fence, sequences=[1]) == AckReport(acked=0, unknown=1, acked_up_to=5, in_flight=0)
    again = subscribe(queues, "s2")
    assert (again.acked, again.sent, again.in_flight, again.lag) == (5, 5, 0, 1)
    assert numbers(queues.fetch(C, fence=again.fence).messages) == [6]


def test_one_acknowledgement_can_stand_for_all_before_it(queues: Any) -> None:
    queues.append(C, entries(5))
    fence = subscribe(queues).fence
    queues.fetch(C, fence=fence)
    report = queues.ack(C, fence=fence, sequences=[2, 4], up_to=True)
    assert (report.acked, report.unknown, report.acked_up_to, report.in_flight) == (4, 0, 4, 1)


def test_acknowledgements_travel_with_the_next_fetch(queues: Any) -> None:
    queues.append(C, entries(4))
    fence = subscribe(queues).fence
    first = queues.fetch(C, fence=fence, limit=2, window=2)
    second = queues.fetch(C, fence=fence, limit=2, window=2, acks=[*numbers(first.messages), 77])
    assert numbers(second.messages) == [3, 4]
    assert (second.acks.acked, second.acks.unknown, second.acks.acked_up_to) == (2, 1, 2)
    assert (second.lag, second.in_flight) == (0, 2)


def test_window_is_filled_when_it_is_empty_or_as_it_empties(queues: Any) -> None:
    queues.append(C, entries(9))
    fence = subscribe(queues).fence
    assert numbers(queues.fetch(C, fence=fence, limit=3, window=3).messages) == [1, 2, 3]
    assert queues.fetch(C, fence=fence, limit=3, window=3).messages == ()
    assert queues.fetch(C, fence=fence, limit=3, window=3, acks=[2]).messages == ()
    sliding = queues.fetch(C, fence=fence, limit=3, window=3, refill=Refill.SLIDING)
    assert numbers(sliding.messages) == [4]
    assert numbers(queues.fetch(C, fence=fence, limit=3, window=3, acks=[1, 3, 4]).messages) == [5, 6, 7]


def test_fetch_is_bounded_in_bytes_and_never_stuck(queues: Any) -> None:
    queues.append(C, [Append(key=b"%d" % number, value=bytes(1_000)) for number in range(5)])
    fence = subscribe(queues).fence
    assert numbers(queues.fetch(C, fence=fence, limit=5, max_bytes=2_500).messages) == [1, 2]
    assert numbers(queues.fetch(C, fence=fence, limit=5, max_bytes=10, acks=[1, 2]).messages) == [3]


def test_large_fetch_comes_by_several_calls_as_one(world: QueueWorld, queues: Any) -> None:
    queues.append(C, entries(340))
    fence = subscribe(queues).fence
    assert numbers(queues.fetch(C, fence=fence, limit=20, window=20).messages) == list(range(1, 21))
    assert queues.fetch(C, fence=fence, limit=300, window=300).messages == ()
    whole = queues.fetch(C, fence=fence, limit=300, window=300, acks=range(1, 21))
    assert numbers(whole.messages) == list(range(21, 321))
    assert (whole.lag, whole.in_flight, whole.acks.acked, whole.acks.in_flight) == (20, 300, 20, 300)
    fence = subscribe(queues).fence
    again = [queues.fetch(C, fence=fence, limit=300, window=500) for _ in range(4)]
    assert [len(page.messages) for page in again] == [100, 100, 100, 0]
    assert [page.more_to_resend for page in again] == [True, True, False, False]
    assert [message.redelivered for page in again for message in page.messages] == [True] * 300


def test_what_a_crashed_consumer_had_comes_again_unless_it_was_overwritten(queues: Any) -> None:
    queues.append(C, entries(6))
    fence = subscribe(queues).fence
    queues.fetch(C, fence=fence, limit=4, window=10)
    queues.ack(C, fence=fence, sequences=[3])
    queues.append(C, [Append(key=b"k2", value=b"newer")])
    again = subscribe(queues, "s2")
    assert (again.previous_session, again.in_flight, again.acked) == ("s1", 3, 0)
    found = consume(queues, again.fence)
    assert [(m.sequence, m.redelivered) for m in found] == [
        (1, True),
        (4, True),
        (5, False),
        (6, False),
        (7, False),
    ]
    assert found[-1].value == b"newer"
    assert queues.inspect(C).acked == 7


def test_consumer_can_have_what_is_in_flight_again(queues: Any) -> None:
    queues.append(C, entries(3))
    fence = subscribe(queues).fence
    queues.fetch(C, fence=fence, limit=2, window=2)
    again = queues.fetch(C, fence=fence, limit=2, window=2, redeliver=True).messages
    assert [(m.sequence, m.redelivered) for m in again] == [(1, True), (2, True)]


def test_newer_consumer_fences_the_older_one_off(queues: Any) -> None:
    queues.append(C, entries(3))
    old = subscribe(queues).fence
    queues.fetch(C, fence=old)
    new = subscribe(queues, "s2").fence
    for name, arguments in (
        ("fetch", {}),
        ("ack", {"sequences": [1]}),
        ("heartbeat", {}),
        ("rewind", {"to": Position.earliest()}),
    ):
        with pytest.raises(StaleEpoch):
            getattr(queues, name)(C, fence=old, **arguments)
    assert queues.release(C, fence=old) is False
    assert queues.inspect(C).session == "s2"
    assert len(queues.fetch(C, fence=new).messages) == 3


def test_polite_consumer_waits_until_the_lease_ends(world: QueueWorld, queues: Any) -> None:
    fence = subscribe(queues, lease_ms=1_000).fence
    with pytest.raises(QueueBusy, match="s1"):
        subscribe(queues, "s2", takeover=False)
    world.clock.now_ms += 900
    assert queues.heartbeat(C, fence=fence, lease_ms=1_000).lag == 0
    world.clock.now_ms += 900
    assert queues.inspect(C).lease_left_ms == 100
    with pytest.raises(QueueBusy):
        subscribe(queues, "s2", takeover=False)
    # The same session may come back at any time.
    assert subscribe(queues, takeover=False).previous_session == "s1"
    world.clock.now_ms += 60_000
    subscribe(queues, "s2", takeover=False)


def test_released_queue_is_free_at_once(queues: Any) -> None:
    queues.append(C, entries(1))
    fence = subscribe(queues).fence
    queues.fetch(C, fence=fence)
    assert queues.release(C, fence=fence) is True
    assert queues.inspect(C).session is None
    again = subscribe(queues, "s2", takeover=False)
    assert (again.in_flight, again.previous_session) == (1, None)


def test_queue_is_read_again_from_any_place(world: QueueWorld, queues: Any) -> None:
    for number in range(1, 6):
        queues.append(C, entries(1, first=number))
        world.clock.now_ms += 1_000
    fence = subscribe(queues).fence
    consume(queues, fence)
    for to, first, is_clamped in (
        (Position.earliest(), 1, False),
        (Position.sequence(3), 3, False),
        (Position.time_ms(world.clock.now_ms - 1_500), 5, False),
        (Position.time_ms(world.clock.now_ms - 2_000), 4, False),
        (Position.latest(), 6, False),
        (Position.sequence(99), 6, True),
    ):
        report = queues.rewind(C, to=to, fence=fence)
        assert (report.new_acked, report.to_deliver, report.is_clamped) == (first - 1, 6 - first, is_clamped), to
        with pytest.raises(StaleEpoch):
            queues.fetch(C, fence=fence)
        fence = report.fence
        assert numbers(consume(queues, fence)) == list(range(first, 6))
    assert queues.inspect(C).counters["rewinds"] == 6


def test_rewind_to_what_was_collected_says_so(queues: Any) -> None:
    queues.append(C, entries(5))
    queues.purge(C, what=Purge.up_to(2))
    report = queues.rewind(C, to=Position.sequence(1))
    assert (report.new_acked, report.to_deliver, report.is_clamped, report.oldest_sequence) == (2, 3, True, 3)
    with pytest.raises(UnknownQueue, match="queue of client 'nobody'") as caught:
        queues.rewind("nobody", to=Position.earliest())
    assert caught.value.client_id == "nobody"


def test_late_acknowledgement_does_not_count_for_what_is_delivered_again(queues: Any) -> None:
    queues.append(C, entries(2))
    fence = subscribe(queues).fence
    queues.fetch(C, fence=fence)
    queues.rewind(C, to=Position.earliest())
    again = subscribe(queues)
    assert numbers(queues.fetch(C, fence=again.fence).messages) == [1, 2]
    with pytest.raises(StaleEpoch, match=f"queue of client '{C}'"):
        queues.ack(C, fence=fence, sequences=[1, 2])
    assert queues.inspect(C).in_flight == 2


def test_subscription_may_begin_anywhere(queues: Any) -> None:
    queues.append(C, entries(4))
    assert subscribe(queues, start=Position.latest()).lag == 0
    started = subscribe(queues, start=Position.sequence(3))
    assert (started.lag, started.acked, started.is_clamped) == (2, 2, False)
    assert numbers(queues.fetch(C, fence=started.fence).messages) == [3, 4]


def test_operator_skips_a_message_that_holds_the_consumer_up(queues: Any) -> None:
    queues.append(C, entries(2))
    fence = subscribe(queues).fence
    queues.fetch(C, fence=fence, limit=1, window=1)
    assert queues.fetch(C, fence=fence, limit=1, window=1).messages == ()
    assert queues.skip(C, sequence=1).acked == 1
    assert queues.skip(C, sequence=1).unknown == 1
    assert numbers(queues.fetch(C, fence=fence, limit=1, window=1).messages) == [2]
    with pytest.raises(UnknownQueue, match="queue of client 'nobody'"):
        queues.skip("nobody", sequence=1)


def test_tombstone_is_delivered_and_then_hides_the_key_for_good(queues: Any) -> None:
    queues.append(C, [Append(key=b"a", value=b"1"), Append(key=b"b")])
    queues.append(C, [Append(key=b"a", tombstone=True)])
    found = consume(queues, subscribe(queues).fence)
    assert [(m.key, m.tombstone) for m in found] == [(b"b", False), (b"a", True)]
    assert queues.get(C, key=b"a").tombstone
    assert queues.inspect(C).tombstones == 1
    queues.append(C, [Append(key=b"a", value=b"back")])
    assert (queues.get(C, key=b"a").value, queues.inspect(C).tombstones) == (b"back", 0)


def test_consumer_is_woken_by_an_append_and_never_misses_one(world: QueueWorld, queues: Any) -> None:
    neighbour = world.neighbour()
    fence = subscribe(queues).fence
    assert queues.await_wake(C, timeout_s=PATIENCE_S) is True  # by its own subscription
    assert queues.await_wake(C, timeout_s=0.01) is False
    queues.append(C, entries(1))
    # The append came first: the wake was kept.
    assert queues.await_wake(C, timeout_s=PATIENCE_S) is True
    assert len(queues.fetch(C, fence=fence).messages) == 1
    later = threading.Timer(0.05, neighbour.append, [C, entries(1, first=2)])
    later.start()
    assert queues.await_wake(C, timeout_s=PATIENCE_S) is True
    later.join()
    assert queues.fetch(C, fence=fence, acks=[1]).lag == 0


# Looking


def test_value_of_a_key_is_read_without_consuming(queues: Any) -> None:
    queues.append(C, [Append(key=b"a", value=b"1"), Append(key=b"b", value=b"2")])
    assert queues.get(C, key=b"a").value == b"1"
    assert queues.get(C, key=b"nothing") is None
    assert queues.get("nobody", key=b"a") is None
    assert numbers(queues.peek(C, limit=1)) == [1]
    assert numbers(queues.peek(C, after_sequence=1)) == [2]
    assert queues.peek("nobody") == ()
    assert queues.inspect(C).lag == 2


def test_view_says_where_a_queue_stands(world: QueueWorld, queues: Any) -> None:
    assert queues.inspect(C).exists is False
    queues.append(C, entries(3))
    world.clock.now_ms += 1_000
    fence = subscribe(queues, lease_ms=5_000).fence
    queues.append(C, [Append(key=b"k3"), Append(key=b"k4")])
    world.clock.now_ms += 500
    queues.fetch(C, fence=fence, limit=2, window=2)
    queues.ack(C, fence=fence, sequences=[1])
    view = queues.inspect(C)
    assert view.epoch == fence.epoch
    assert (view.exists, view.sequence, view.sent, view.acked, view.live) == (True, 5, 2, 1, 4)
    assert (view.lag, view.in_flight, view.oldest_sequence, view.acked_ms) == (2, 1, 1, world.clock.now_ms)
    assert (view.oldest_age_ms, view.newest_age_ms) == (1_500, 500)
    assert (view.oldest_undelivered_age_ms, view.oldest_unacked_age_ms) == (500, 1_500)
    assert (view.session, view.lease_left_ms, view.retention) == ("s1", 4_500, None)
    counted = {name: count for name, count in view.counters.items() if count}
    assert counted == {"appended": 5, "compacted": 1, "delivered": 2, "acks": 1}
    assert view.size_bytes < view.estimated_memory_bytes < 100_000


# Keeping house


def test_purge_removes_what_was_there_and_keeps_the_numbers(queues: Any) -> None:
    queues.append(C, [*entries(450), Append(key=b"gone", tombstone=True)])
    fence = subscribe(queues).fence
    queues.fetch(C, fence=fence, limit=100, window=100)
    queues.ack(C, fence=fence, sequences=[*range(1, 100)])
    planned = queues.purge(C, what=Purge.acked(), dry_run=True)
    assert (planned.messages, planned.unacked, planned.dry_run) == (99, 0, True)
    assert queues.inspect(C).live == 451
    done = queues.purge(C, what=Purge.acked())
    assert (done.messages, done.size_bytes) == (99, planned.size_bytes)
    assert queues.purge(C, what=Purge.up_to(150)).messages == 51
    size_bytes = queues.inspect(C).size_bytes
    everything = queues.purge(C, what=Purge.everything())
    assert (everything.messages, everything.unacked, everything.tombstones) == (301, 301, 1)
    assert everything.size_bytes == size_bytes
    view = queues.inspect(C)
    assert (view.live, view.size_bytes, view.sequence, view.last_lost_sequence) == (0, 0, 451, 451)
    assert queues.append(C, entries(1)).sequences == (452,)
    assert queues.verify(C).violations == ()
    assert queues.purge("nobody", what=Purge.everything()).messages == 0


def test_dropped_queue_is_gone_and_its_fence_does_not_fit_the_next_one(world: QueueWorld, queues: Any) -> None:
    queues.append(C, entries(3), producer="p", number=1)
    fence = subscribe(queues).fence
    queues.fetch(C, fence=fence, limit=1)
    planned = queues.drop(C, dry_run=True)
    assert (planned.existed, planned.messages, planned.lag, planned.in_flight) == (True, 3, 2, 1)
    assert queues.inspect(C).exists
    dropped = queues.drop(C, incarnation=planned.incarnation)
    assert (dropped.messages, dropped.size_bytes, dropped.dry_run) == (3, planned.size_bytes, False)
    keys = compacted_keys(C)
    assert {key.encode() for key in keys} & set(world.key_names()) == {keys.wake.encode()}
    assert 0 < world.client.ttl(keys.wake) <= 60, "the consumer is called, and nothing stays"
    assert queues.drop(C).existed is False
    assert queues.append(C, entries(1), producer="p", number=1).sequences == (1,)
    with pytest.raises(StaleEpoch):
        queues.fetch(C, fence=fence)
    with pytest.raises(StaleEpoch):
        queues.drop(C, incarnation=planned.incarnation)
    assert queues.inspect(C).live == 1


@pytest.mark.parametrize(
    ("policy", "unacked", "acked"),
    [
        (RetentionPolicy.DELETE, [2, 3], [1, 2, 3]),
        (RetentionPolicy.ACKED_ONLY, [], [1, 2, 3]),
        (RetentionPolicy.COMPACT, [], [3]),
    ],
)
def test_retention_lets_go_what_its_policy_says(
    world: QueueWorld, queues: Any, policy: RetentionPolicy, unacked: list[int], acked: list[int]
) -> None:
    """The first message is acknowledged from the beginning, except where none is; the third is a tombstone."""
    retention = Retention(policy=policy, retention_ms=DAY_MS, tombstone_ms=HOUR_MS)
    queues.append(C, [*entries(2), Append(key=b"k3", tombstone=True)])
    world.clock.now_ms += 2 * HOUR_MS

    def due() -> list[int]:
        return [row.sequence for row in queues.find_due(C, retention=retention).rows]

    assert due() == []
    world.clock.now_ms += DAY_MS
    queues.append(C, entries(1, first=4))
    assert [number for number in due() if number > 1] == unacked
    consume(queues, subscribe(queues).fence)
    assert due() == acked
    page = queues.find_due(C, retention=retention)
    assert [(row.acked, row.tombstone) for row in page.rows][-1] == (True, True)
    report = queues.collect(C, retention=retention, rows=page.rows)
    assert (report.collected, report.kept, report.unacked, report.tombstones) == (len(acked), 0, 0, 1)
    assert report.size_bytes == sum(row.size_bytes for row in page.rows)
    assert (report.live, queues.verify(C).violations) == (4 - len(acked), ())


def test_tombstone_waits_for_the_consumer(world: QueueWorld, queues: Any) -> None:
    retention = Retention(policy=RetentionPolicy.COMPACT, retention_ms=7 * DAY_MS, tombstone_ms=HOUR_MS)
    queues.append(C, [Append(key=b"a", tombstone=True)])
    world.clock.now_ms += 2 * DAY_MS
    assert queues.find_due(C, retention=retention).rows == ()
    consume(queues, subscribe(queues).fence)
    assert len(queues.find_due(C, retention=retention).rows) == 1


def test_collection_never_touches_a_newer_value(world: QueueWorld, queues: Any) -> None:
    retention = Retention(retention_ms=DAY_MS)
    queues.append(C, entries(3))
    world.clock.now_ms += 2 * DAY_MS
    page = queues.find_due(C, retention=retention)
    queues.append(C, [Append(key=b"k2", value=b"newer")])
    report = queues.collect(C, retention=retention, rows=page.rows)
    assert (report.collected, report.kept, report.unacked) == (2, 1, 2)
    assert [(m.sequence, m.value) for m in queues.peek(C)] == [(4, b"newer")]
    assert report.next_due_ms == world.clock.now_ms + DAY_MS + 1
    assert queues.inspect(C).last_lost_sequence == 3
    assert queues.collect(C, retention=retention, rows=()).collected == 0


def test_due_rows_are_read_page_by_page(world: QueueWorld, queues: Any) -> None:
    queues.append(C, entries(450))
    world.clock.now_ms += 2 * DAY_MS
    retention = Retention(retention_ms=DAY_MS)
    found: list[DueRow] = []
    after, more = 0, True
    while more:
        page = queues.find_due(C, retention=retention, after_sequence=after, limit=100)
        after, more = page.next_after_sequence, page.more
        found += page.rows
    assert [row.sequence for row in found] == list(range(1, 451))
    assert queues.collect(C, retention=retention, rows=found).collected == 450


def test_queue_may_have_a_retention_of_its_own(world: QueueWorld, queues: Any) -> None:
    own = Retention(policy=RetentionPolicy.ACKED_ONLY, retention_ms=HOUR_MS, tombstone_ms=0)
    other = Retention(retention_ms=0)
    queues.append(C, entries(1))
    world.clock.now_ms += 2 * HOUR_MS
    world.client.zadd(compacted_registry_key(C), {C: 5_000_000_000_000})
    queues.configure(C, retention=own)
    # The collector has to look again: what it knew of the queue is worth nothing now.
    assert world.client.zscore(compacted_registry_key(C), C) == world.clock.now_ms
    assert queues.inspect(C).retention == own
    page = queues.find_due(C, retention=other)
    assert (page.retention, page.rows) == (own, ())
    forced = queues.find_due(C, retention=other, override=True)
    assert (forced.retention, len(forced.rows)) == (other, 1)
    assert queues.collect(C, retention=other, rows=forced.rows).kept == 1
    queues.configure(C, retention=None)
    assert queues.inspect(C).retention is None
    assert queues.collect(C, retention=other, rows=forced.rows).collected == 1
    queues.configure("new", retention=own)
    assert queues.inspect("new").retention == own


def test_collected_rows_can_be_brought_back(world: QueueWorld, queues: Any) -> None:
    retention = Retention(retention_ms=DAY_MS)
    batch = [Append(key=b"k%d" % number, value=b"\0v", properties={"a": "b"}) for number in range(1, 4)]
    queues.append(C, [*batch, Append(key=b"k4", tombstone=True), *entries(300, first=5)])
    before = queues.peek(C, limit=500)
    incarnation = queues.inspect(C).incarnation
    world.clock.now_ms += 2 * DAY_MS
    rows = queues.find_due(C, retention=retention, limit=500, with_values=True).rows
    assert queues.collect(C, retention=retention, rows=rows).collected == 304
    queues.append(C, [Append(key=b"k2", value=b"newer")])
    report = queues.restore(C, rows=rows, incarnation=incarnation)
    assert (report.restored, report.present, report.refused, report.to_deliver) == (303, 1, 0, 303)
    after = queues.peek(C, limit=500)
    assert after[:-1] == tuple(message for message in before if message.key != b"k2")
    assert after[-1].value == b"newer"
    assert queues.verify(C).violations == ()
    assert queues.restore(C, rows=rows).present == 304
    with pytest.raises(UsageError, match="with_values"):
        queues.restore(C, rows=queues.find_due(C, retention=retention).rows)
    queues.drop(C)
    with pytest.raises(UnknownQueue):
        queues.restore(C, rows=rows, incarnation=incarnation)


def test_producer_that_is_long_silent_is_forgotten(world: QueueWorld, queues: Any) -> None:
    queues.append(C, entries(1), producer="old", number=1)
    world.clock.now_ms += HOUR_MS
    queues.append(C, entries(1), producer="young", number=1)
    report = queues.collect(C, retention=Retention(), rows=(), producer_ms=HOUR_MS - 1)
    assert report.producers == 1
    assert queues.append(C, entries(1), producer="young", number=1).is_replay
    assert not queues.append(C, entries(1), producer="old", number=1).is_replay


def test_damage_is_found_and_repaired(world: QueueWorld, queues: Any) -> None:
    queues.append(C, [*entries(300), Append(key=b"t", tombstone=True)])
    fence = subscribe(queues).fence
    queues.fetch(C, fence=fence, limit=3, window=3)
    assert queues.verify(C).violations == ()
    keys = compacted_keys(C)
    world.client.hdel(keys.values, "k10")
    world.client.zrem(keys.order, "k20")
    world.client.zrem(keys.times, "k30")
    world.client.zadd(keys.order, {"ghost": 12})
    world.client.zrem(keys.tombstones, "t")
    world.client.zadd(keys.in_flight, {"9999": 9999})
    world.client.hset(keys.state, "acked", 200)
    report = queues.verify(C)
    assert {violation.rule for violation in report.violations} >= {
        "missing_value",
        "dangling_value",
        "missing_time",
        "wrong_tombstone",
        "stray_in_flight",
        "acked_too_high",
    }
    # As of fan-out queues: how many there are, and whether there is none.
    assert (report.found, report.healthy) == (len(report.violations), False)
    assert (queues.verify("nobody").found, queues.verify("nobody").healthy) == (0, True)
    planned = queues.repair(C)
    assert (planned.found, planned.remaining, planned.dry_run) == (report.found, report.found, True)
    done = queues.repair(C, dry_run=False)
    assert (done.found, done.remaining) == (report.found, 0)
    assert done.dropped >= 2
    assert done.indexed >= 3
    view = queues.inspect(C)
    assert (view.live, view.sequence) == (300, 301)
    assert queues.repair("nobody", dry_run=False).found == 0
    assert not queues.inspect("nobody").exists


def test_value_that_nobody_can_read_holds_up_no_other(world: QueueWorld, queues: Any) -> None:
    queues.append(C, entries(2))
    world.client.hset(compacted_keys(C).values, "k1", b"1 0 ?")
    assert (queues.get(C, key=b"k1").value, queues.get(C, key=b"k1").is_readable) == (b"1 0 ?", False)
    assert [message.is_readable for message in queues.peek(C)] == [False, True]
    fence = subscribe(queues).fence
    fetched = queues.fetch(C, fence=fence)
    assert [(message.sequence, message.is_readable) for message in fetched.messages] == [(1, False), (2, True)]
    assert queues.ack(C, fence=fence, sequences=[1, 2]).acked_up_to == 2
    assert ("unreadable", b"k1", 1) in [(each.rule, each.key, each.sequence) for each in queues.verify(C).violations]
    head = b'{"content_type":"text/plain","properties":[["a","b"]]}'
    for damaged in (head[:-1], b"x" + head[1:], head.replace(b'"b"', b"7"), head.replace(b"plain", b"pl\xff\xfen")):
        stored = b"1 0 +" + len(head).to_bytes(4) + damaged
        world.client.hset(compacted_keys(C).values, "k1", stored)
        assert (queues.get(C, key=b"k1").value, queues.get(C, key=b"k1").is_readable) == (stored, False)
        found = [(each.rule, each.key, each.sequence) for each in queues.verify(C).violations if each.key]
        assert found == [("unreadable", b"k1", 1)]
    assert queues.repair(C, dry_run=False).remaining == 1
    assert queues.get(C, key=b"k1") is not None, "what cannot be read is not thrown away"
    queues.append(C, [Append(key=b"k1", value=b"good")])
    assert queues.verify(C).violations == ()
    assert queues.get(C, key=b"k1").value == b"good"


# Failures


@pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "asyncio"])
def test_append_whose_answer_was_lost_is_stored_once(valkey_url: str, awaited: bool) -> None:
    world = QueueWorld(valkey_url, awaited=awaited)
    with CuttingProxy(valkey_url) as proxy:
        queues = world.queues(url=proxy.url)
        queues.append(C, entries(1, first=100))
        proxy.cuts = 1
        with pytest.raises(ServerUnavailable, match="Nobody knows"):
            queues.append(C, entries(3), producer="p", number=1)
        assert world.neighbour().inspect(C).sequence == 4
        again = queues.append(C, entries(3), producer="p", number=1)
        assert (again.is_replay, again.sequences) == (True, (2, 3, 4))
        assert queues.inspect(C).sequence == 4
        world.close()


def test_full_server_refuses_appends_only(redis_server_factory: Callable[..., RedisServer]) -> None:
    server = redis_server_factory(maxmemory="8mb", maxmemory_policy="noeviction")
    world = QueueWorld(server.url, awaited=False)
    queues = world.queues()

    def fill() -> None:
        for number in range(100):
            queues.append(C, [Append(key=b"%d" % number, value=bytes(200_000))])

    with pytest.raises(StoreFull):
        fill()
    stored = queues.inspect(C).live
    assert stored > 1
    fence = subscribe(queues).fence
    assert len(consume(queues, fence)) == stored
    assert queues.rewind(C, to=Position.earliest()).to_deliver == stored
    assert queues.purge(C, what=Purge.everything()).messages == stored
    assert queues.append(C, entries(1)).sequences == (stored + 1,)
    world.close()


def test_prefix_stands_before_every_key(valkey_url: str) -> None:
    world = QueueWorld(valkey_url, awaited=False)
    world.queues(prefix="a:").append(C, entries(1))
    assert all(key.startswith(b"a:compacted:") for key in world.key_names())
    world.close()
