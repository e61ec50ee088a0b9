"""Fan-out queues keep their contract on Redis, on Valkey and on a cluster, for blocking and for asyncio callers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from script_callers import eventually

from queuekeeper.clock import system_clock
from queuekeeper.errors import (
    ConsumerLeaving,
    HasLeases,
    InvalidLife,
    InvalidName,
    MembershipChanged,
    NoConsumer,
    PayloadTooLarge,
    QueueFull,
    ServerUnavailable,
    UnknownConsumer,
    UnknownQueue,
    UsageError,
)
from queuekeeper.fanout.model import (
    ConsumerOptions,
    FanoutRules,
    Mode,
    NewMessage,
    QueueOptions,
    Start,
    WhenFailed,
    WhenFull,
    WhenNobody,
)
from queuekeeper.fanout.queue import AsyncFanoutQueues
from queuekeeper.fanout.records import json_message, read_json
from queuekeeper.fanout.reports import AckReport, Outcome, Problem, ReapReport
from queuekeeper.redis_async import connect
from queuekeeper.redis_client import nodes
from tests.conformance.cutting_proxy import CuttingProxy
from tests.conformance.fanout_worlds import PREFIX, START_MS, FanoutWorld, Queues
from tests.conformance.store_worlds import AwaitedStore, lose_answer
from tests.conftest import REDIS_FLAVOURS, nightly, url_of_server
from tests.fanout_lists import line_up
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.conformance

Q = "orders"
A, B = "billing", "shipping"
ORDERED = ConsumerOptions(mode=Mode.ORDERED)
HOUR_MS = 3_600_000


# As in test_compacted_queue.py.
WORLDS = ["valkey-blocking", "cluster-asyncio", *nightly(f"{REDIS_FLAVOURS[-1]}-asyncio", "cluster-blocking")]


@pytest.fixture(scope="module", params=WORLDS)
def shared_world(request: pytest.FixtureRequest) -> Iterator[FanoutWorld]:
    where, _, how = request.param.partition("-")
    found = FanoutWorld(url_of_server(request, where), awaited=how == "asyncio")
    yield found
    found.close()


@pytest.fixture
def world(shared_world: FanoutWorld) -> Iterator[FanoutWorld]:
    shared_world.erase()
    shared_world.now_ms = START_MS
    yield shared_world
    shared_world.erase()


@pytest.fixture
def queues(world: FanoutWorld) -> Queues:
    return world.queues()


def messages(count: int, **fields: Any) -> list[NewMessage]:
    return [NewMessage(body=b"%d" % number, **fields) for number in range(1, count + 1)]


def publish(queues: Queues, count: int = 1, **fields: Any) -> list[int]:
    """Publish messages and return their ids."""
    return [report.id for report in queues.publish(Q, messages(count, **fields))]


def ids(found: Sequence[Any]) -> list[int]:
    return [message.id for message in found]


def stored(world: FanoutWorld) -> int:
    return int(world.client.hlen(world.keys(Q).messages))


# Publishing.


def test_every_consumer_gets_every_message_in_order(queues: Queues) -> None:
    queues.register(Q, consumer=A)
    queues.register(Q, consumer=B)

    reports = queues.publish(Q, messages(3))

    assert [(report.consumers, report.held, report.duplicate) for report in reports] == [(2, False, False)] * 3
    assert [report.id for report in reports] == sorted(report.id for report in reports)
    for consumer in (A, B):
        claimed = queues.claim(Q, consumer=consumer, count=10)
        assert [(message.id, message.body) for message in claimed.messages] == [
            (report.id, b"%d" % number) for number, report in enumerate(reports, start=1)
        ]


def test_more_messages_than_a_call_takes_are_published_in_order(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)

    reports = queues.publish(Q, [NewMessage(body=bytes(400_000)), *messages(260), NewMessage(body=bytes(900_000))])

    assert len(reports) == 262
    claims = [queues.claim(Q, consumer=A, count=1000) for _ in range(2)]
    assert [message.id for claimed in claims for message in claimed.messages] == [report.id for report in reports]
    # What is large comes in an answer of its own.
    assert ([len(claimed.messages) for claimed in claims], claims[0].more) == ([261, 1], True)
    assert stored(world) == 262
    assert queues.publish(Q, []) == []


def test_a_message_to_one_consumer_is_its_alone(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    queues.register(Q, consumer=B)

    [report] = queues.publish(Q, messages(1), to=B)

    assert report.consumers == 1
    assert queues.claim(Q, consumer=A).messages == ()
    assert ids(queues.claim(Q, consumer=B).messages) == [report.id]
    with pytest.raises(UnknownConsumer, match="nobody"):
        queues.publish(Q, messages(1), to="nobody")
    world.queues().register(Q, consumer="late")
    assert queues.publish(Q, messages(1), to="late")[0].consumers == 1


def test_a_consumer_registered_by_another_process_gets_what_is_published_next(
    queues: Queues, world: FanoutWorld
) -> None:
    queues.register(Q, consumer=A)
    publish(queues)
    world.queues().register(Q, consumer=B)

    [report] = queues.publish(Q, messages(1))

    assert report.consumers == 2
    assert ids(queues.claim(Q, consumer=B, count=10).messages) == [report.id]


def test_a_membership_that_never_rests_is_given_up(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    publish(queues)
    state = world.keys(Q).state
    target = queues.store if isinstance(queues, AwaitedStore) else queues
    original = target.answer

    def answer(step: Any) -> Any:
        if step[0].script.name == "fanout/publish":
            world.client.hincrby(state, "membership", 1)
        return original(step)

    target.answer = answer
    with pytest.raises(MembershipChanged):
        queues.publish(Q, messages(1))
    assert stored(world) == 1


def test_what_is_published_twice_with_one_deduplication_id_is_one_message(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    new = NewMessage(body=b"once", deduplication_id="o-1")

    first, second = queues.publish(Q, [new, new])
    [third] = queues.publish(Q, [new])
    [other] = queues.publish(Q, [NewMessage(body=b"twice", deduplication_id="o-2")])

    assert [first.duplicate, second.duplicate, third.duplicate, other.duplicate] == [False, True, True, False]
    assert first.id == second.id == third.id
    assert [first.consumers, second.consumers, third.consumers] == [1, 1, 1]
    assert stored(world) == 2


def test_a_deduplication_id_is_forgotten_after_its_time(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    queues.configure(Q, options=QueueOptions(deduplication_ms=1_000))
    new = NewMessage(body=b"x", deduplication_id="o-1")
    [first] = queues.publish(Q, [new])
    world.pass_ms(999)
    [again] = queues.publish(Q, [new])
    world.pass_ms(1)

    [later] = queues.publish(Q, [new])

    assert (again.id, again.duplicate) == (first.id, True)
    assert not later.duplicate
    assert world.client.hlen(world.keys(Q).deduplications) == 1


@pytest.mark.parametrize("awaited", [False, True])
def test_a_publish_whose_reply_is_lost_and_that_is_repeated_is_one_message(redis_url: str, awaited: bool) -> None:
    world = FanoutWorld(redis_url, awaited=awaited)
    with CuttingProxy(world.url) as proxy:
        queues = world.queues(url=proxy.url)
        queues.register(Q, consumer=A)
        publish(queues)
        new = NewMessage(body=b"once", deduplication_id="o-1")
        proxy.cuts = 1

        with pytest.raises(ServerUnavailable, match="Nobody knows"):
            queues.publish(Q, [new])
        [report] = queues.publish(Q, [new])

        assert report.duplicate
        assert [message.body for message in queues.claim(Q, consumer=A, count=10).messages] == [b"1", b"once"]
        world.close()


def test_an_error_after_some_were_published_is_said_of_the_others(queues: Queues) -> None:
    queues.register(Q, consumer=A, options=ConsumerOptions(max_length=2))

    reports = queues.publish(Q, messages(4))

    assert [report.error is None for report in reports] == [True, True, False, False]
    assert [report.id is None for report in reports] == [False, False, True, True]
    assert isinstance(reports[2].error, QueueFull)
    assert A in str(reports[2].error)
    assert [message.body for message in queues.claim(Q, consumer=A, count=10).messages] == [b"1", b"2"]


def test_a_full_consumer_that_rejects_keeps_the_message_from_everybody(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    queues.register(Q, consumer=B, options=ConsumerOptions(max_length=1))
    publish(queues)
    before = world.all_keys()

    with pytest.raises(QueueFull, match=B):
        queues.publish(Q, messages(1))

    assert world.all_keys() == before


def test_a_full_consumer_that_drops_loses_its_oldest(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A, options=ConsumerOptions(max_length=3, when_full=WhenFull.DROP_OLDEST))

    reports = queues.publish(Q, messages(5))

    assert sum(report.dropped for report in reports) == 2
    assert [message.body for message in queues.peek(Q, consumer=A)] == [b"3", b"4", b"5"]
    assert stored(world) == 3
    [view] = queues.inspect(Q).consumers
    assert view.counters["dropped"] == 2


def test_what_nobody_waits_for_is_held_for_those_who_adopt_it(queues: Queues, world: FanoutWorld) -> None:
    [report] = queues.publish(Q, messages(1))
    assert (report.held, report.consumers) == (True, 0)
    more = publish(queues, 2)

    registration = queues.register(Q, consumer=A, start=Start.HELD)

    assert registration.adopted == 3
    assert ids(queues.claim(Q, consumer=A, count=10).messages) == [report.id, *more]
    assert queues.inspect(Q).held == 0
    assert queues.register(Q, consumer=B, start=Start.HELD).adopted == 0


def test_a_queue_may_refuse_what_nobody_waits_for(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    queues.configure(Q, options=QueueOptions(when_nobody=WhenNobody.REFUSE))
    queues.unregister(Q, consumer=A)

    with pytest.raises(NoConsumer):
        queues.publish(Q, messages(1))

    assert stored(world) == 0


def test_no_more_is_held_than_the_queue_may(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    queues.configure(Q, options=QueueOptions(max_held=2))
    queues.unregister(Q, consumer=A)

    reports = queues.publish(Q, messages(3))

    assert [report.held for report in reports] == [True, True, False]
    assert isinstance(reports[2].error, QueueFull)
    assert stored(world) == 2


# Publishing for later.


def instant(delay_ms: int = 0) -> datetime:
    """Return an instant so long after the first one of a world."""
    return datetime.fromtimestamp(START_MS / 1_000, UTC) + timedelta(milliseconds=delay_ms)


def test_a_message_for_later_comes_at_its_time_and_lives_from_then_on(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    new = [
        NewMessage(body=b"third", delay_ms=2_000, ttl_ms=500),
        NewMessage(body=b"second", due_at=instant(1_500)),
        NewMessage(body=b"first"),
        NewMessage(body=b"past", due_at=instant(-HOUR_MS)),
        NewMessage(body=b"at once", delay_ms=0),
    ]

    reports = queues.publish(Q, new)

    assert [(report.id, report.consumers) for report in reports] == [(number, 1) for number in range(1, 6)]
    claimed = queues.claim(Q, consumer=A, count=9)
    assert [message.body for message in claimed.messages] == [b"first", b"past", b"at once"]
    assert claimed.wait_until_ms == START_MS + 1_500
    queues.ack(Q, consumer=A, token=claimed.token, ids=ids(claimed.messages))
    [view] = queues.inspect(Q).consumers
    assert (view.ready, view.delayed, view.next_due_ms) == (0, 2, START_MS + 1_500)
    assert queues.size(Q, consumer=A) == queues.size(Q) == 2
    assert queues.verify(Q).healthy
    world.pass_ms(1_499)
    assert queues.claim(Q, consumer=A).messages == ()
    world.pass_ms(1)
    [second] = queues.claim(Q, consumer=A, count=9).messages
    assert (second.body, second.attempt, second.published_ms) == (b"second", 1, START_MS + 1_500)
    world.pass_ms(500)
    [third] = queues.claim(Q, consumer=A, count=9).messages
    assert (third.body, third.published_ms, third.expires_at_ms) == (b"third", START_MS + 2_000, START_MS + 2_500)
    assert queues.inspect(Q).consumers[0].delayed == 0


def test_a_message_for_later_expires_when_nobody_takes_it_in_time(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    publish(queues, 1, delay_ms=HOUR_MS, ttl_ms=10)
    world.pass_ms(HOUR_MS + 9)
    assert queues.expire(Q).expired == 0
    world.pass_ms(1)
    assert (queues.claim(Q, consumer=A).skipped, stored(world)) == (1, 0)


def test_messages_for_later_keep_the_order_of_their_key_by_their_times(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A, options=ConsumerOptions(mode=Mode.ORDERED, lanes=8))
    new = [NewMessage(body=b"%d" % delay, order_key="k", delay_ms=delay) for delay in (300, 0, 100, 300, 200)]
    queues.publish(Q, new)
    got = []
    for _ in range(5):
        world.pass_ms(100)
        while messages_of := (claimed := queues.claim(Q, consumer=A, count=9)).messages:
            got += [message.body for message in messages_of]
            queues.ack(Q, consumer=A, token=claimed.token, ids=ids(messages_of))
    assert got == [b"0", b"100", b"200", b"300", b"300"]


def test_who_registers_before_it_is_due_gets_what_is_for_later_if_it_asks_for_it(
    queues: Queues, world: FanoutWorld
) -> None:
    publish(queues, 1, delay_ms=100)
    assert queues.register(Q, consumer=A, start=Start.HELD).adopted == 1
    queues.register(Q, consumer=B)
    assert queues.register(Q, consumer="archive", start=Start.RETAINED).adopted == 1
    world.pass_ms(100)
    assert [len(queues.claim(Q, consumer=name).messages) for name in (A, B, "archive")] == [1, 0, 1]
    assert queues.verify(Q).healthy


def test_what_is_for_later_goes_with_a_purge_and_with_its_consumer(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    queues.register(Q, consumer=B)
    publish(queues, 700, delay_ms=HOUR_MS)
    assert queues.purge(Q, consumer=A, dry_run=True).released == 700
    assert (queues.purge(Q, consumer=A).released, stored(world)) == (700, 700)
    assert (queues.unregister(Q, consumer=B).released, stored(world)) == (700, 0)


def test_a_message_that_is_not_due_is_taken_back(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    first, second = publish(queues, 2, delay_ms=100)
    # Others have registered since, and got it.
    world.queues().register(Q, consumer=B, start=Start.RETAINED)

    assert [queues.cancel(Q, message_id=one) for one in (first, first, 999)] == [True, False, False]

    assert stored(world) == 1
    assert queues.verify(Q).healthy
    world.pass_ms(100)
    assert queues.cancel(Q, message_id=second) is False
    assert [ids(queues.claim(Q, consumer=name, count=9).messages) for name in (A, B)] == [[second]] * 2
    assert queues.inspect(Q).counters["cancelled"] == 1
    assert queues.cancel("no such queue", message_id=1) is False


def test_a_repair_frees_nothing_of_what_is_for_later(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    publish(queues, 2, delay_ms=100)
    world.client.hset(world.keys(Q).references, "1", 7)
    assert queues.repair(Q, dry_run=False).repaired == {Problem.WRONG_COUNT: 1}
    assert queues.verify(Q).healthy
    world.pass_ms(100)
    assert len(queues.claim(Q, consumer=A, count=9).messages) == 2


# Claiming and what becomes of it.


def test_a_lease_keeps_a_message_from_others_until_its_deadline(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    first, second = publish(queues, 2)

    claimed = queues.claim(Q, consumer=A, lease_ms=1_000)

    assert ids(claimed.messages) == [first]
    assert claimed.deadline_ms == START_MS + 1_000
    assert claimed.more
    assert ids(world.queues().claim(Q, consumer=A, count=10, lease_ms=9_000).messages) == [second]
    nothing = queues.claim(Q, consumer=A)
    assert (nothing.messages, nothing.wait_until_ms, nothing.more) == ((), START_MS + 1_000, False)

    world.pass_ms(1_000)
    again = queues.claim(Q, consumer=A, count=10)

    assert [(message.id, message.attempt, message.stalls) for message in again.messages] == [(first, 2, 1)]
    assert again.stalled == 1
    assert again.token != claimed.token


def test_a_claimed_message_says_everything_that_was_published(queues: Queues) -> None:
    queues.register(Q, consumer=A)
    new = NewMessage(
        body=b"\x00\xff:\r\n",
        content_type="text/plain",
        order_key="k:1",
        ttl_ms=5_000,
        headers={"trace": "ä😀", "": ""},
    )
    queues.publish(Q, [new])

    [message] = queues.claim(Q, consumer=A).messages

    assert (message.queue, message.consumer) == (Q, A)
    assert (message.body, message.content_type, message.order_key) == (new.body, new.content_type, new.order_key)
    assert message.headers == new.headers
    assert (message.published_ms, message.expires_at_ms) == (START_MS, START_MS + 5_000)
    assert (message.attempt, message.stalls) == (1, 0)


def test_a_message_is_gone_when_its_last_consumer_is_done(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    queues.register(Q, consumer=B)
    publish(queues, 2)
    mine = queues.claim(Q, consumer=A, count=2)
    theirs = queues.claim(Q, consumer=B, count=2)

    first = queues.ack(Q, consumer=A, token=mine.token, ids=ids(mine.messages))
    assert (first.acked, first.stale, first.freed, stored(world)) == (2, 0, 0, 2)
    last = queues.ack(Q, consumer=B, token=theirs.token, ids=ids(theirs.messages))

    assert (last.acked, last.stale, last.freed, stored(world)) == (2, 0, 2, 0)
    again = queues.ack(Q, consumer=B, token=theirs.token, ids=ids(theirs.messages))
    assert (again.acked, again.stale, again.freed) == (0, 2, 0)
    keys = world.keys(Q)
    assert not world.client.exists(keys.references)
    assert not world.client.exists(keys.expiries)
    assert queues.size(Q) == 0


def test_a_late_worker_cannot_end_what_another_works_on(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    [only] = publish(queues)
    late = queues.claim(Q, consumer=A, lease_ms=1_000)
    world.pass_ms(1_000)
    now = queues.claim(Q, consumer=A, lease_ms=1_000)

    assert queues.ack(Q, consumer=A, token=late.token, ids=[only]).stale == 1
    assert queues.nack(Q, consumer=A, token=late.token, message_id=only).outcome is Outcome.STALE
    assert queues.extend(Q, consumer=A, token=late.token, ids=[only]).stale == (only,)
    assert queues.return_claimed(Q, consumer=A, token=late.token, ids=[only]).stale == 1
    assert queues.ack(Q, consumer=A, token=now.token, ids=[only]).acked == 1


def test_a_lease_that_has_run_out_and_that_nobody_took_over_still_counts(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    [only] = publish(queues)
    claimed = queues.claim(Q, consumer=A, lease_ms=1_000)
    world.pass_ms(5_000)

    assert queues.ack(Q, consumer=A, token=claimed.token, ids=[only]).acked == 1


def test_an_extended_lease_lasts_from_now_on(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    claimed_ids = publish(queues, 3)
    claimed = queues.claim(Q, consumer=A, count=3, lease_ms=1_000)
    world.pass_ms(900)

    report = queues.extend(Q, consumer=A, token=claimed.token, ids=claimed_ids[:2], lease_ms=1_000)

    assert (report.deadline_ms, report.stale) == (START_MS + 1_900, ())
    world.pass_ms(999)
    assert ids(queues.claim(Q, consumer=A, count=9).messages) == claimed_ids[2:]


def test_a_failed_message_is_retried_when_its_delay_is_over(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    first, second = publish(queues, 2)
    claimed = queues.claim(Q, consumer=A)

    report = queues.nack(Q, consumer=A, token=claimed.token, message_id=first, delay_ms=500, max_attempts=3)

    assert (report.outcome, report.due_ms) == (Outcome.RETRY, START_MS + 500)
    other = queues.claim(Q, consumer=A, count=9)
    assert ids(other.messages) == [second]
    assert other.wait_until_ms == START_MS + 500
    world.pass_ms(500)
    assert [(m.id, m.attempt, m.stalls) for m in queues.claim(Q, consumer=A).messages] == [(first, 2, 0)]


def test_a_message_that_has_failed_too_often_is_a_dead_letter(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    [only] = publish(queues)
    for attempt in (1, 2):
        claimed = queues.claim(Q, consumer=A)
        report = queues.nack(
            Q, consumer=A, token=claimed.token, message_id=only, max_attempts=2, reason=f"no. {attempt}: ä\n"
        )
    assert report.outcome is Outcome.DEAD

    page = queues.list_dead(Q, consumer=A)

    [letter] = page.letters
    assert (letter.id, letter.reason, letter.attempts, letter.stalls) == (only, "no. 2: ä\n", 2, 0)
    assert letter.died_ms == START_MS
    assert letter.message.body == b"1"
    assert (page.total, page.next_offset) == (1, None)
    assert queues.claim(Q, consumer=A).messages == ()
    assert stored(world) == 1


def test_a_message_whose_worker_dies_every_time_is_a_dead_letter(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    [only] = publish(queues)
    for _ in range(3):
        assert ids(queues.claim(Q, consumer=A, lease_ms=10, max_stalls=2).messages) == [only]
        world.pass_ms(10)

    last = queues.claim(Q, consumer=A, max_stalls=2)

    assert (last.messages, last.stalled, last.dead) == ((), 1, 1)
    [letter] = queues.list_dead(Q, consumer=A).letters
    assert (letter.reason, letter.attempts, letter.stalls) == ("stalled", 3, 3)


def test_what_is_given_back_is_next_and_has_not_been_attempted(queues: Queues) -> None:
    queues.register(Q, consumer=A)
    published = publish(queues, 4)
    claimed = queues.claim(Q, consumer=A, count=3)

    report = queues.return_claimed(Q, consumer=A, token=claimed.token, ids=ids(claimed.messages))

    assert (report.returned, report.stale) == (3, 0)
    again = queues.claim(Q, consumer=A, count=9)
    assert [(message.id, message.attempt) for message in again.messages] == [(number, 1) for number in published]


def test_leases_that_have_run_out_are_taken_back_in_order(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    published = publish(queues, 250)
    queues.claim(Q, consumer=A, count=240, lease_ms=1_000)
    assert queues.reap(Q, consumer=A).requeued == 0
    world.pass_ms(1_000)

    report = queues.reap(Q, consumer=A)

    assert (report.requeued, report.dead) == (240, 0)
    assert sorted(ids(queues.peek(Q, consumer=A, limit=1000))) == published
    world.pass_ms(1)
    assert queues.reap(Q, consumer=A) == ReapReport(requeued=0, dead=0, skipped=0)


def test_what_has_expired_is_passed_over_and_gone(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    publish(queues, 2, ttl_ms=1_000)
    [living] = publish(queues)
    world.pass_ms(1_000)

    claimed = queues.claim(Q, consumer=A, count=9)

    assert ids(claimed.messages) == [living]
    assert claimed.skipped == 2
    assert stored(world) == 1


def test_a_message_without_payload_is_never_handed_out(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    first, second = publish(queues, 2)
    world.client.hdel(world.keys(Q).messages, first)

    claimed = queues.claim(Q, consumer=A, count=9)

    assert (ids(claimed.messages), claimed.skipped) == ([second], 1)


@pytest.mark.parametrize("raw", [b"", b"1:2:3:", b"1:2:3:\x01\x00\x00\x00\x05{}", b"1:2:3:\x01\x00\x00\x00\x02[]x"])
def test_a_record_that_nobody_can_read_is_a_dead_letter(queues: Queues, world: FanoutWorld, raw: bytes) -> None:
    queues.register(Q, consumer=A)
    first, second = publish(queues, 2)
    expires_at_ms = START_MS + HOUR_MS
    world.client.hset(world.keys(Q).messages, first, raw.replace(b"1:2", b"1:%d" % expires_at_ms))

    claimed = queues.claim(Q, consumer=A, count=9)

    assert ids(claimed.messages) == [second]
    if raw:
        assert claimed.dead == 1
        [letter] = queues.list_dead(Q, consumer=A).letters
        assert (letter.id, letter.reason, letter.message) == (first, "unreadable", None)
    assert ids(queues.peek(Q, consumer=A)) == []


def test_hundreds_of_messages_are_claimed_and_ended_at_once(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    publish(queues, 1_200)
    claimed = [queues.claim(Q, consumer=A, count=1_000) for _ in range(2)]
    assert [len(claim.messages) for claim in claimed] == [1_000, 200]

    assert queues.ack(Q, consumer=A, token=claimed[0].token, ids=ids(claimed[0].messages)).freed == 1_000
    everything = ids([*claimed[0].messages, *claimed[1].messages])
    rest = queues.ack(Q, consumer=A, token=claimed[1].token, ids=everything)
    assert rest == AckReport(acked=200, stale=1_000, freed=200)


# Ordered consumers.


def test_an_ordered_consumer_hands_out_one_at_a_time(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A, options=ORDERED)
    first, second = publish(queues, 2)
    claimed = queues.claim(Q, consumer=A, count=9)
    assert ids(claimed.messages) == [first]
    assert world.queues().claim(Q, consumer=A).messages == ()

    queues.ack(Q, consumer=A, token=claimed.token, ids=[first])

    assert ids(queues.claim(Q, consumer=A).messages) == [second]


def test_an_ordered_consumer_waits_for_what_has_failed_or_stalled(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A, options=ORDERED)
    first, _ = publish(queues, 2)
    claimed = queues.claim(Q, consumer=A, lease_ms=100)
    world.pass_ms(100)
    claimed = queues.claim(Q, consumer=A)
    assert [(message.id, message.stalls) for message in claimed.messages] == [(first, 1)]

    queues.nack(Q, consumer=A, token=claimed.token, message_id=first, delay_ms=50)

    blocked = queues.claim(Q, consumer=A)
    assert (blocked.messages, blocked.wait_until_ms) == ((), START_MS + 150)
    assert queues.inspect(Q).consumers[0].blocked_until_ms == START_MS + 150
    world.pass_ms(50)
    assert ids(queues.claim(Q, consumer=A).messages) == [first]


@pytest.mark.parametrize("when_failed", WhenFailed)
def test_an_ordered_consumer_goes_on_behind_a_dead_letter_or_halts(queues: Queues, when_failed: WhenFailed) -> None:
    queues.register(Q, consumer=A, options=ConsumerOptions(mode=Mode.ORDERED, when_failed=when_failed))
    first, second = publish(queues, 2)
    claimed = queues.claim(Q, consumer=A)
    queues.nack(Q, consumer=A, token=claimed.token, message_id=first, max_attempts=1, reason="broken")

    found = queues.claim(Q, consumer=A)

    if when_failed is WhenFailed.HALT:
        assert found.messages == ()
        assert queues.inspect(Q).consumers[0].paused
        assert queues.resume(Q, consumer=A)
        found = queues.claim(Q, consumer=A)
    assert ids(found.messages) == [second]


def test_lanes_keep_the_order_per_key_and_do_not_wait_for_each_other(queues: Queues) -> None:
    queues.register(Q, consumer=A, options=ConsumerOptions(mode=Mode.ORDERED, lanes=8))
    keys = [f"key-{number}" for number in range(6)]
    queues.publish(Q, [NewMessage(body=f"{key} {turn}".encode(), order_key=key) for turn in range(4) for key in keys])
    claimed = queues.claim(Q, consumer=A, count=9)
    assert len(claimed.messages) > 1
    seen: dict[str, list[bytes]] = {key: [] for key in keys}

    while len(claimed.messages) > 0:
        assert len({message.order_key for message in claimed.messages}) == len(claimed.messages)
        for message in claimed.messages:
            seen[message.order_key].append(message.body)
        queues.ack(Q, consumer=A, token=claimed.token, ids=ids(claimed.messages))
        claimed = queues.claim(Q, consumer=A, count=9)

    assert seen == {key: [f"{key} {turn}".encode() for turn in range(4)] for key in keys}


# Consumers come and go.


def test_a_consumer_gets_only_what_is_published_after_it_registered(queues: Queues) -> None:
    queues.register(Q, consumer=A)
    publish(queues)

    created = queues.register(Q, consumer=B, options=ORDERED)
    again = queues.register(Q, consumer=B)

    assert (created.created, created.options, created.adopted) == (True, ORDERED, 0)
    assert (again.created, again.options, again.version) == (False, ORDERED, created.version)
    assert queues.claim(Q, consumer=B).messages == ()
    assert queues.size(Q, consumer=A) == 1


@pytest.mark.parametrize("mode", Mode)
def test_a_consumer_may_start_with_everything_that_is_there(queues: Queues, mode: Mode) -> None:
    published = publish(queues, 30)
    queues.register(Q, consumer=A, start=Start.HELD)
    claimed = queues.claim(Q, consumer=A, count=5)
    queues.ack(Q, consumer=A, token=claimed.token, ids=ids(claimed.messages))
    published = published[5:] + publish(queues, 700)

    registration = queues.register(Q, consumer=B, options=ConsumerOptions(mode=mode), start=Start.RETAINED)
    later = publish(queues)

    assert registration.adopted == len(published)
    assert ids(queues.peek(Q, consumer=B, limit=1_000)) == published + later
    assert queues.verify(Q).healthy
    assert queues.size(Q) == len(published) + 1


def test_what_is_published_while_a_consumer_adopts_comes_behind(queues: Queues, world: FanoutWorld) -> None:
    neighbour = world.neighbour()
    published = publish(queues, 700)

    with world.before_step(queues, 3, lambda: publish(neighbour, 2)):
        registration = queues.register(Q, consumer=A, start=Start.RETAINED)

    waiting = ids(queues.peek(Q, consumer=A, limit=1_000))
    assert registration.adopted == 700
    assert waiting[:700] == published
    assert len(waiting) == 702
    assert waiting == sorted(waiting)


@pytest.mark.parametrize("start", [Start.HELD, Start.RETAINED])
def test_a_registration_that_was_interrupted_is_finished_by_the_next(
    queues: Queues, world: FanoutWorld, start: Start
) -> None:
    published = publish(queues, 700)
    with pytest.raises(ServerUnavailable), world.before_step(queues, 3, lose_answer):
        queues.register(Q, consumer=A, start=start)
    assert queues.claim(Q, consumer=A).messages == ()

    if start is Start.HELD:
        assert not queues.register(Q, consumer=A).created
    else:
        # By those who work for it, without registering anybody.
        queues.adopt(Q, consumer=A)
        assert queues.adopt(Q, consumer=A) == 0

    assert ids(queues.claim(Q, consumer=A, count=1_000).messages) == published


def test_a_removed_consumer_owes_nothing_and_gets_nothing(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    queues.register(Q, consumer=B)
    both = publish(queues, 600)
    own = [report.id for report in queues.publish(Q, messages(600), to=A)]
    claimed = queues.claim(Q, consumer=A, count=2)
    queues.nack(Q, consumer=A, token=claimed.token, message_id=both[0], max_attempts=1)
    queues.nack(Q, consumer=A, token=claimed.token, message_id=both[1], delay_ms=1_000)

    planned = queues.unregister(Q, consumer=A, dry_run=True)
    assert (planned.released, planned.freed, planned.dry_run) == (1_200, None, True)
    report = queues.unregister(Q, consumer=A)

    assert (report.released, report.freed, report.dry_run) == (1_200, len(own), False)
    assert publish(queues)
    assert stored(world) == 601
    assert not world.client.exists(*world.consumer_keys(Q, A)[:-1], *world.consumer_keys(Q, A).ready)
    assert ids(queues.peek(Q, consumer=B, limit=1_000))[:-1] == both
    assert queues.verify(Q).healthy
    with pytest.raises(UnknownConsumer):
        queues.claim(Q, consumer=A)


def test_a_consumer_with_leases_is_removed_only_by_force(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    [only] = publish(queues)
    claimed = queues.claim(Q, consumer=A)
    with pytest.raises(HasLeases):
        queues.unregister(Q, consumer=A)
    with pytest.raises(HasLeases):
        queues.unregister(Q, consumer=A, dry_run=True)
    assert queues.extend(Q, consumer=A, token=claimed.token, ids=[only]).stale == ()

    report = queues.unregister(Q, consumer=A, force=True)

    assert (report.released, report.freed, stored(world)) == (1, 1, 0)
    assert queues.ack(Q, consumer=A, token=claimed.token, ids=[only]).stale == 1


def test_a_removal_that_was_interrupted_is_finished_by_the_next(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    queues.register(Q, consumer=B)
    publish(queues, 1_200)
    with pytest.raises(ServerUnavailable), world.before_step(queues, 3, lose_answer):
        queues.unregister(Q, consumer=A)
    assert world.queues().publish(Q, messages(1))[0].consumers == 1
    with pytest.raises(ConsumerLeaving):
        queues.register(Q, consumer=A)

    queues.unregister(Q, consumer=A)

    assert queues.register(Q, consumer=A).created
    assert queues.size(Q, consumer=A) == 0
    assert queues.verify(Q).healthy


def test_a_removal_that_others_finished_leaves_who_has_registered_anew(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    queues.register(Q, consumer=B)
    publish(queues, 1_200)

    def overtake() -> None:
        neighbour = world.neighbour()
        neighbour.unregister(Q, consumer=A)
        neighbour.register(Q, consumer=A)

    with world.before_step(queues, 3, overtake):
        assert queues.unregister(Q, consumer=A).released < 1_200
    publish(queues, 1)
    with pytest.raises(UnknownConsumer):
        queues.unregister(Q, consumer=A, begun=True)
    assert queues.size(Q, consumer=A) == 1


def test_only_consumers_unseen_for_their_time_are_removed_as_idle(queues: Queues, world: FanoutWorld) -> None:
    idle = ConsumerOptions(idle_expiry_ms=1_000)
    for name in ("gone", "claims", "touched"):
        queues.register(Q, consumer=name, options=idle)
    queues.register(Q, consumer="for ever")
    publish(queues)
    world.pass_ms(999)
    assert queues.unregister_idle(Q) == []
    queues.claim(Q, consumer="claims")
    queues.touch(Q, consumer="touched")
    world.pass_ms(1)

    [planned] = queues.unregister_idle(Q, dry_run=True)
    [report] = queues.unregister_idle(Q)

    assert (planned.consumer, planned.dry_run, report.consumer, report.released) == ("gone", True, "gone", 1)
    assert {view.consumer for view in queues.inspect(Q).consumers} == {"claims", "touched", "for ever"}
    assert queues.unregister_idle(Q, idle_expiry_ms=1_001) == []
    assert [each.consumer for each in queues.unregister_idle(Q, idle_expiry_ms=1_000)] == ["for ever"]


def test_options_change_for_what_comes_next(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    queues.configure(Q, consumer=A, options=ConsumerOptions(max_length=1))
    other = world.queues()
    publish(other)
    with pytest.raises(QueueFull):
        queues.publish(Q, messages(1))
    with pytest.raises(UsageError, match="wait"):
        queues.configure(Q, consumer=A, options=ORDERED)
    claimed = queues.claim(Q, consumer=A)
    queues.ack(Q, consumer=A, token=claimed.token, ids=ids(claimed.messages))

    queues.configure(Q, consumer=A, options=ConsumerOptions(mode=Mode.ORDERED, lanes=4))

    other.publish(Q, [NewMessage(body=b"", order_key=f"k{number}") for number in range(20)])
    assert 1 < len(other.claim(Q, consumer=A, count=9).messages) <= 4
    assert queues.inspect(Q).consumers[0].options.lanes == 4


# Dead letters.


def bury(queues: Queues, count: int, *, consumer: str = A) -> list[int]:
    """Publish messages and make them dead letters."""
    buried = publish(queues, count)
    claimed = queues.claim(Q, consumer=consumer, count=count)
    for number in buried:
        queues.nack(Q, consumer=consumer, token=claimed.token, message_id=number, max_attempts=1, reason=f"r{number}")
    return buried


def test_dead_letters_are_listed_page_by_page(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    buried = []
    for _ in range(5):
        buried += bury(queues, 1)
        world.pass_ms(1)
    found: list[int] = []
    offset: int | None = 0
    while offset is not None:
        page = queues.list_dead(Q, consumer=A, offset=offset, limit=2)
        assert page.total == 5
        assert len(page.letters) <= 2
        assert [letter.reason for letter in page.letters] == [f"r{letter.id}" for letter in page.letters]
        found += ids(page.letters)
        offset = page.next_offset
    assert found == buried


def test_a_dead_letter_that_is_retried_starts_anew(queues: Queues) -> None:
    queues.register(Q, consumer=A)
    first, second, third = bury(queues, 3)

    some = queues.retry_dead(Q, consumer=A, ids=[first, third, 999])
    assert (some.retried, some.missing) == (2, 1)
    assert queues.retry_dead(Q, consumer=A, ids=[first]).missing == 1
    rest = queues.retry_dead(Q, consumer=A)

    assert (rest.retried, rest.missing) == (1, 0)
    claimed = queues.claim(Q, consumer=A, count=9).messages
    assert [(m.id, m.attempt, m.stalls) for m in claimed] == [(first, 1, 0), (third, 1, 0), (second, 1, 0)]
    assert queues.list_dead(Q, consumer=A).total == 0


def test_dead_letters_that_are_given_up_are_gone(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    queues.register(Q, consumer=B)
    buried = publish(queues, 700)
    queues.claim(Q, consumer=A, count=700, lease_ms=1)
    world.pass_ms(1)
    assert queues.reap(Q, consumer=A, max_stalls=0).dead == 700
    claimed = queues.claim(Q, consumer=B, count=10)
    queues.ack(Q, consumer=B, token=claimed.token, ids=ids(claimed.messages))

    some = queues.purge_dead(Q, consumer=A, ids=[*buried[:2], 999_999])
    rest = queues.purge_dead(Q, consumer=A)

    assert (some.released, some.freed) == (2, 2)
    assert (rest.released, rest.freed) == (698, 8)
    assert queues.list_dead(Q, consumer=A).total == 0
    assert stored(world) == 690
    assert queues.verify(Q).healthy


def test_a_dead_letter_is_kept_for_its_retention(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A, options=ConsumerOptions(dead_retention_ms=HOUR_MS))
    queues.publish(Q, messages(1, ttl_ms=1_000))
    claimed = queues.claim(Q, consumer=A)
    queues.nack(Q, consumer=A, token=claimed.token, message_id=claimed.messages[0].id, max_attempts=1)
    world.pass_ms(HOUR_MS - 1)
    assert queues.expire(Q).expired == 0
    assert queues.list_dead(Q, consumer=A).letters[0].message.body == b"1"
    world.pass_ms(1)

    report = queues.expire(Q)

    assert (report.expired, report.dead, stored(world)) == (0, 1, 0)
    assert queues.list_dead(Q, consumer=A).total == 0
    assert queues.verify(Q).healthy


# Upkeep.


def test_what_has_expired_is_removed_while_nobody_claims(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    publish(queues, 700, ttl_ms=1_000)
    living = publish(queues)
    world.pass_ms(999)
    assert queues.expire(Q).expired == 0
    world.pass_ms(1)

    assert queues.expire(Q).expired == 700

    assert stored(world) == 1
    assert ids(queues.claim(Q, consumer=A, count=9).messages) == living
    assert queues.verify(Q).healthy


def test_a_purge_leaves_what_is_worked_on_and_dead_letters(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    queues.register(Q, consumer=B)
    [dead] = bury(queues, 1)
    leased, delayed = publish(queues, 2)
    claimed = queues.claim(Q, consumer=A, count=2)
    queues.nack(Q, consumer=A, token=claimed.token, message_id=delayed, delay_ms=1_000)
    publish(queues, 700)

    planned = queues.purge(Q, consumer=A, dry_run=True)
    report = queues.purge(Q, consumer=A)

    assert (planned.released, planned.dry_run) == (701, True)
    assert (report.released, report.freed, report.dry_run) == (701, 0, False)
    assert queues.size(Q, consumer=A) == 1
    assert ids(queues.list_dead(Q, consumer=A).letters) == [dead]
    assert queues.ack(Q, consumer=A, token=claimed.token, ids=[leased]).acked == 1
    assert queues.purge(Q).freed == 702
    assert stored(world) == 1
    assert queues.verify(Q).healthy


def test_a_purge_of_the_queue_removes_what_is_held(queues: Queues, world: FanoutWorld) -> None:
    publish(queues, 700)

    report = queues.purge(Q)

    assert (report.released, report.freed, stored(world)) == (700, 700, 0)
    assert queues.register(Q, consumer=A, start=Start.RETAINED).adopted == 0


@pytest.mark.parametrize("consumer", [None, A])
def test_nothing_is_claimed_while_it_is_paused(queues: Queues, consumer: str | None) -> None:
    queues.register(Q, consumer=A)
    published = publish(queues, 2)
    claimed = queues.claim(Q, consumer=A)

    assert queues.pause(Q, consumer=consumer)
    assert not queues.pause(Q, consumer=consumer)

    assert queues.claim(Q, consumer=A).messages == ()
    view = queues.inspect(Q)
    assert (view.paused, view.consumers[0].paused) == (consumer is None, consumer is not None)
    assert queues.ack(Q, consumer=A, token=claimed.token, ids=published[:1]).acked == 1
    publish(queues)
    assert queues.resume(Q, consumer=consumer)
    assert not queues.resume(Q, consumer=consumer)
    assert ids(queues.claim(Q, consumer=A).messages) == published[1:]


def test_looking_changes_nothing(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    queues.register(Q, consumer=B, options=ORDERED)
    published = publish(queues, 5)
    queues.claim(Q, consumer=A, lease_ms=1)
    world.pass_ms(10)
    before = world.all_keys()

    assert ids(queues.peek(Q, consumer=A, limit=2)) == published[1:3]
    assert ids(queues.peek(Q, consumer=A, offset=3, limit=2)) == published[4:]
    assert [message.attempt for message in queues.peek(Q, consumer=B)] == [0] * 5
    queues.inspect(Q)
    queues.verify(Q)
    queues.repair(Q)
    queues.size(Q, consumer=B)
    queues.list_dead(Q, consumer=A)

    assert world.all_keys() == before


def test_a_view_says_how_far_everybody_is(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    queues.register(Q, consumer=B, options=ORDERED)
    bury(queues, 1)
    publish(queues, 4)
    world.pass_ms(10)
    claimed = queues.claim(Q, consumer=A, count=3, lease_ms=100)
    queues.nack(Q, consumer=A, token=claimed.token, message_id=claimed.messages[0].id, delay_ms=500)
    queues.ack(Q, consumer=A, token=claimed.token, ids=[claimed.messages[1].id])
    world.pass_ms(100)

    view = queues.inspect(Q)

    assert (view.exists, view.paused, view.messages, view.held) == (True, False, 5, 0)
    assert view.stored_bytes > 5
    assert view.next_expiry_ms == START_MS + 86_400_000
    assert view.counters["published"] == 5
    one, other = sorted(view.consumers, key=lambda found: found.consumer)
    assert (one.consumer, one.ready, one.leased, one.overdue, one.delayed, one.dead) == (A, 1, 1, 1, 1, 1)
    assert (one.next_deadline_ms, one.last_seen_ms) == (START_MS + 110, START_MS + 10)
    assert one.counters["acked"] == 1
    assert (other.consumer, other.ready, other.leased, other.oldest_ready_ms) == (B, 5, 0, START_MS)
    assert other.options == ORDERED
    assert (queues.size(Q), queues.size(Q, consumer=A), queues.size(Q, consumer=B)) == (5, 3, 5)
    nothing = queues.inspect("no such queue")
    assert (nothing.exists, nothing.messages, nothing.consumers) == (False, 0, ())


def test_what_only_one_consumer_keeps_is_said(queues: Queues) -> None:
    queues.register(Q, consumer=A)
    queues.register(Q, consumer=B)
    publish(queues, 3)
    claimed = queues.claim(Q, consumer=A, count=2)
    queues.ack(Q, consumer=A, token=claimed.token, ids=ids(claimed.messages))

    found = {view.consumer: view.only_holder for view in queues.inspect(Q).consumers}

    assert found == {A: 0, B: 2}


def test_damage_is_found_and_set_right(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    queues.register(Q, consumer=B)
    missing, drifted, low, fine = publish(queues, 4)
    assert queues.verify(Q).healthy
    assert queues.repair(Q, dry_run=False).repaired == {}
    keys = world.keys(Q)
    world.client.hdel(keys.messages, missing)
    world.client.hset(keys.references, drifted, 5)
    world.client.hset(keys.references, low, 1)
    world.client.hset(keys.messages, 77, b"1:9999999999999:0:\x01\x00\x00\x00\x00orphan")
    world.client.zadd(keys.expiries, {"77": 9_999_999_999_999})

    report = queues.verify(Q)
    planned = queues.repair(Q)
    assert queues.verify(Q).counts == report.counts
    repaired = queues.repair(Q, dry_run=False)

    assert set(report.counts) == {Problem.MISSING_PAYLOAD, Problem.WRONG_COUNT, Problem.UNREFERENCED_PAYLOAD}
    # As of compacted queues: how many there are, and whether there is none.
    assert (report.found, report.healthy) == (len(report.findings), False)
    assert (queues.verify("no such queue").found, queues.verify("no such queue").healthy) == (0, True)
    wrong = {
        finding.id: (finding.found, finding.expected)
        for finding in report.findings
        if finding.problem is Problem.WRONG_COUNT
    }
    assert wrong == {drifted: (5, 2), low: (1, 2)}
    assert (planned.dry_run, planned.repaired) == (True, report.counts)
    assert (repaired.dry_run, repaired.repaired) == (False, report.counts)
    assert queues.verify(Q).healthy
    assert not world.client.hexists(keys.messages, 77)
    for consumer in (A, B):
        claimed = queues.claim(Q, consumer=consumer, count=9)
        assert ids(claimed.messages) == [drifted, low, fine]
        queues.ack(Q, consumer=consumer, token=claimed.token, ids=ids(claimed.messages))
    assert stored(world) == 0


def test_damage_is_found_and_set_right_where_lists_are_too_long_for_one_call(
    queues: Queues, world: FanoutWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each consumer is looked at in a call of its own.
    monkeypatch.setattr("queuekeeper.fanout.operations.repair.ENTRIES_PER_CALL", 2)
    for consumer in (A, B, "c"):
        queues.register(Q, consumer=consumer)
    missing, drifted, taken, doubled, low, fine = publish(queues, 6)
    keys, own = world.keys(Q), world.consumer_keys(Q, B)
    world.client.hdel(keys.messages, missing)
    world.client.hset(keys.references, mapping={drifted: 5, low: 2})
    line_up(world.client, Q, A, B, "c", prefix=PREFIX)
    for consumer in (A, B, "c"):
        world.client.lrem(world.consumer_keys(Q, consumer).ready[0], 0, taken)
    world.client.rpush(own.ready[0], doubled)
    world.client.hset(own.details, 77, "1 0 0 -")

    report = queues.verify(Q)
    assert report.counts == {
        Problem.MISSING_PAYLOAD: 1,
        Problem.WRONG_COUNT: 2,
        Problem.UNREFERENCED_PAYLOAD: 1,
        Problem.DOUBLED: 1,
        Problem.LEFT_NOTES: 1,
    }
    assert queues.repair(Q, dry_run=False).repaired == report.counts

    assert queues.verify(Q).healthy
    assert world.client.hmget(keys.references, missing, drifted, taken, doubled) == [None, b"3", None, b"3"]
    for consumer in (A, B, "c"):
        claimed = queues.claim(Q, consumer=consumer, count=9)
        assert sorted(ids(claimed.messages)) == [drifted, doubled, low, fine]
        queues.ack(Q, consumer=consumer, token=claimed.token, ids=ids(claimed.messages))
    assert stored(world) == 0


def test_a_large_queue_is_verified_and_repaired_in_steps(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    published = publish(queues, 1_500)
    world.client.hdel(world.keys(Q).messages, *published[::3])

    report = queues.verify(Q, findings=10)
    repaired = queues.repair(Q, dry_run=False)

    assert report.counts == {Problem.MISSING_PAYLOAD: 500} == repaired.repaired
    assert (len(report.findings), report.found, report.healthy) == (10, 500, False)
    assert queues.verify(Q).healthy
    assert len(queues.claim(Q, consumer=A, count=1_000).messages) == 1_000


def test_a_message_for_a_consumer_that_is_far_behind_comes_behind_all_that_it_has(queues: Queues) -> None:
    for consumer in (A, B):
        queues.register(Q, consumer=consumer)
    published = publish(queues, 2_500)

    [only] = queues.publish(Q, messages(1), to=A)
    assert only.consumers == 1
    late = publish(queues, 1)

    for consumer, expected in ((A, [*published, only.id, *late]), (B, [*published, *late])):
        claimed: list[int] = []
        while page := queues.claim(Q, consumer=consumer, count=1_000).messages:
            claimed += ids(page)
        assert claimed == expected


def test_a_consumer_that_is_far_behind_can_be_given_a_bound(queues: Queues) -> None:
    queues.register(Q, consumer=A)
    published = publish(queues, 2_500)

    queues.configure(Q, consumer=A, options=ConsumerOptions(max_length=2_500))

    with pytest.raises(QueueFull, match=A):
        publish(queues, 1)
    [view] = queues.inspect(Q).consumers
    assert view.ready == 2_500
    assert queues.verify(Q).healthy
    queues.configure(Q, consumer=A, options=ConsumerOptions())
    late = publish(queues, 1)
    claimed: list[int] = []
    while page := queues.claim(Q, consumer=A, count=1_000).messages:
        claimed += ids(page)
    assert claimed == [*published, *late]


def test_a_large_batch_for_later_reaches_many_consumers(queues: Queues, world: FanoutWorld) -> None:
    names = [f"c{number}" for number in range(30)]
    for name in names:
        queues.register(Q, consumer=name)

    later = publish(queues, 99, delay_ms=60_000)
    mixed = queues.publish(Q, [*messages(50), *messages(50, delay_ms=60_000)])

    assert [report.error for report in mixed] == [None] * 100
    assert {view.delayed for view in queues.inspect(Q).consumers} == {len(later) + 50}
    assert len(queues.claim(Q, consumer=names[-1], count=1_000).messages) == 50
    world.pass_ms(60_000)
    claimed: list[int] = []
    while page := queues.claim(Q, consumer=names[0], count=1_000).messages:
        claimed += ids(page)
    assert len(claimed) == len(set(claimed)) == 199


def test_consumers_of_an_earlier_version_go_on_and_are_taken_over(queues: Queues, world: FanoutWorld) -> None:
    for consumer in (A, B):
        queues.register(Q, consumer=consumer)
    # An earlier version has made no cursors.
    world.client.delete(world.keys(Q).cursors)
    publisher = world.queues()
    first = publish(publisher, 2)
    assert world.client.lrange(world.consumer_keys(Q, A).ready[0], 0, -1) == [b"%d" % one for one in first]

    assert queues.take_over(Q) == (A, B)
    assert queues.take_over(Q, dry_run=False) == (A, B)
    assert queues.take_over(Q, dry_run=False) == ()
    second = publish(publisher, 2)

    assert world.client.llen(world.consumer_keys(Q, A).ready[0]) == 2
    assert queues.verify(Q).healthy
    for consumer in (A, B):
        assert ids(queues.claim(Q, consumer=consumer, count=9).messages) == [*first, *second]


def test_every_waiting_worker_of_a_name_is_woken(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    others = [world.queues(), world.queues()]
    for each in others:
        assert each.claim(Q, consumer=A).messages == ()
    publish(queues, 1)

    assert [each.await_wake(Q, consumer=A, timeout_s=PATIENCE_S) for each in others] == [True, True]
    assert [len(each.claim(Q, consumer=A).messages) for each in others] == [1, 0]
    assert not others[1].await_wake(Q, consumer=A, timeout_s=0.01)


def test_whoever_waits_is_woken_by_what_can_be_claimed(queues: Queues, world: FanoutWorld) -> None:
    queues.register(Q, consumer=A)
    assert not queues.await_wake(Q, consumer=A, timeout_s=0.01)
    first = publish(queues)
    for _ in range(2):
        # A wake-up is for all who wait, until a claim has found nothing more.
        assert queues.await_wake(Q, consumer=A, timeout_s=PATIENCE_S)
    claimed = queues.claim(Q, consumer=A)
    assert ids(claimed.messages) == first
    assert not queues.await_wake(Q, consumer=A, timeout_s=0.01)

    queues.nack(Q, consumer=A, token=claimed.token, message_id=first[0])

    assert queues.await_wake(Q, consumer=A, timeout_s=PATIENCE_S)
    queues.pause(Q)
    queues.claim(Q, consumer=A)
    queues.resume(Q)
    assert queues.await_wake(Q, consumer=A, timeout_s=PATIENCE_S)


@pytest.mark.parametrize("server", ["valkey_url", "redis_cluster_url"])
def test_whoever_has_stopped_waiting_takes_nobodys_wake(request: pytest.FixtureRequest, server: str) -> None:
    world = FanoutWorld(request.getfixturevalue(server), awaited=False)

    async def wait_stop_and_wait() -> list[Any]:
        async with await connect(world.url) as caller:
            queues = AsyncFanoutQueues(caller, PREFIX)
            await queues.register(Q, consumer=A)
            waits = [asyncio.ensure_future(queues.await_wake(Q, consumer=A, timeout_s=PATIENCE_S)) for _ in range(2)]
            await asyncio.to_thread(eventually, lambda: blocked(world) == 2)
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            await asyncio.to_thread(eventually, lambda: blocked(world) == 0)
            await queues.publish(Q, messages(1))
            woken = await queues.await_wake(Q, consumer=A, timeout_s=PATIENCE_S)
            await queues.claim(Q, consumer=A)
            left = asyncio.ensure_future(queues.await_wake(Q, consumer=A, timeout_s=PATIENCE_S))
            await asyncio.to_thread(eventually, lambda: blocked(world) == 1)
        return [woken, *await asyncio.gather(left, return_exceptions=True)]

    woken, left = asyncio.run(wait_stop_and_wait())

    assert woken
    assert isinstance(left, ServerUnavailable)
    world.close()


def blocked(world: FanoutWorld) -> int:
    """Return how many clients wait in a blocking command."""
    return sum(node.info("clients")["blocked_clients"] for _, node in nodes(world.client))


# Hostile input.

HOSTILE_NAMES = [
    "{",
    "x}",
    "%",
    "%x",
    "%7Dx",
    "a{b}c",
    "{}",
    "*?[x]",
    ":",
    "a:consumer:b",
    " ",
    "ä😀",
    "x" * 255,
    "\u202e",
]
HOSTILE_CONSUMERS = ["*", "%s", "leaving", "-", "0", " ", "ä😀", "x" * 255, "a\\b", '"']
HOSTILE_BODIES = [b"", b"\0", bytes(range(256)), b"\r\n$-1\r\n", b"1:2:3:4", b"%d %s", "ä😀".encode()]


@pytest.mark.parametrize("queue", HOSTILE_NAMES)
def test_any_name_of_a_queue_works(queues: Queues, queue: str) -> None:
    queues.register(queue, consumer=A)
    queues.register(Q, consumer=A)
    [report] = queues.publish(queue, [NewMessage(body=b"x", deduplication_id=queue, order_key=queue)])

    claimed = queues.claim(queue, consumer=A, count=9)

    assert [(message.id, message.queue, message.order_key) for message in claimed.messages] == [
        (report.id, queue, queue)
    ]
    assert queues.size(Q) == 0
    assert queues.ack(queue, consumer=A, token=claimed.token, ids=[report.id]).freed == 1


def test_any_name_of_a_consumer_and_any_body_works(queues: Queues) -> None:
    for consumer in HOSTILE_CONSUMERS:
        queues.register(Q, consumer=consumer)
    new = [
        NewMessage(body=body, content_type=body.hex(), headers={body.hex(): "\r\n\0"}, deduplication_id=f"{body!r}")
        for body in HOSTILE_BODIES
    ]

    reports = queues.publish(Q, new)

    assert [report.consumers for report in reports] == [len(HOSTILE_CONSUMERS)] * len(new)
    for consumer in HOSTILE_CONSUMERS:
        claimed = queues.claim(Q, consumer=consumer, count=99)
        assert [(m.consumer, m.body, m.content_type, m.headers) for m in claimed.messages] == [
            (consumer, m.body, m.content_type, m.headers) for m in new
        ]
        queues.unregister(Q, consumer=consumer, force=True)
    assert queues.size(Q) == 0


def test_json_comes_back_as_it_was(queues: Queues) -> None:
    queues.register(Q, consumer=A)
    value = {"empty": [], "long": 2**63, "text": "ä😀\0", "none": None}
    queues.publish(Q, [json_message(value, order_key="k")])

    [message] = queues.claim(Q, consumer=A).messages

    assert (message.content_type, message.order_key, read_json(message)) == ("application/json", "k", value)


BAD_CALLS: dict[str, tuple[type[Exception], str, Any]] = {
    "queue empty": (InvalidName, "queue", lambda q: q.publish("", messages(1))),
    "queue with a control character": (InvalidName, "queue", lambda q: q.register("a\n", consumer=A)),
    "queue too long": (InvalidName, "256", lambda q: q.inspect("x" * 256)),
    "queue no text": (InvalidName, "text", lambda q: q.size(b"x")),
    "queue with half a character": (InvalidName, "surrogate", lambda q: q.size("\ud800")),
    "consumer with a colon": (InvalidName, "separates", lambda q: q.register(Q, consumer="a:b")),
    "consumer with a brace": (InvalidName, "separates", lambda q: q.claim(Q, consumer="a}")),
    "consumer empty": (InvalidName, "consumer", lambda q: q.publish(Q, messages(1), to="")),
    "life of nothing": (InvalidLife, "ttl_ms", lambda q: q.publish(Q, messages(1, ttl_ms=0))),
    "negative life": (InvalidLife, "-5", lambda q: q.publish(Q, messages(1, ttl_ms=-5))),
    "payload too large": (PayloadTooLarge, "1048577", lambda q: q.publish(Q, [*messages(1), large()])),
    "payload no bytes": (UsageError, "bytes", lambda q: q.publish(Q, [NewMessage(body="text")])),  # type: ignore[arg-type]
    "negative time until it is due": (UsageError, "delay_ms", lambda q: q.publish(Q, messages(1, delay_ms=-1))),
    "instant without a time zone": (
        UsageError,
        "due_at",
        lambda q: q.publish(Q, messages(1, due_at=instant().replace(tzinfo=None))),
    ),
    "delay and instant": (UsageError, "due_at", lambda q: q.publish(Q, messages(1, delay_ms=1, due_at=instant()))),
    "no message": (UsageError, "message_id", lambda q: q.cancel(Q, message_id=0)),
    "empty deduplication id": (UsageError, "deduplication_id", lambda q: messages(1, deduplication_id="")),
    "header no text": (UsageError, "header", lambda q: messages(1, headers={"a": 1})),
    "lanes without order": (UsageError, "lanes", lambda q: ConsumerOptions(lanes=2)),
    "count of nothing": (UsageError, "count", lambda q: q.claim(Q, consumer=A, count=0)),
    "count too large": (UsageError, "count", lambda q: q.claim(Q, consumer=A, count=1_001)),
    "lease of nothing": (UsageError, "lease_ms", lambda q: q.claim(Q, consumer=A, lease_ms=0)),
    "negative delay": (
        UsageError,
        "delay_ms",
        lambda q: q.nack(Q, consumer=A, token="t", message_id=1, delay_ms=-1),
    ),
    "no id": (UsageError, "id", lambda q: q.ack(Q, consumer=A, token="t", ids=[0])),
    "token with a blank": (UsageError, "token", lambda q: q.ack(Q, consumer=A, token="a b", ids=[1])),
    "token empty": (UsageError, "token", lambda q: q.extend(Q, consumer=A, token="", ids=[1])),
    "wait for nothing": (UsageError, "timeout_s", lambda q: q.await_wake(Q, consumer=A, timeout_s=0)),
    "page too long": (UsageError, "limit", lambda q: q.peek(Q, consumer=A, limit=1_001)),
    "page before the first": (UsageError, "offset", lambda q: q.list_dead(Q, consumer=A, offset=-1)),
}


def large() -> NewMessage:
    return NewMessage(body=bytes(FanoutRules().max_body_bytes + 1))


@pytest.mark.parametrize("awaited", [False, True])
def test_bad_input_is_refused_by_name_and_changes_nothing(valkey_url: str, awaited: bool) -> None:
    world = FanoutWorld(valkey_url, awaited=awaited)
    queues = world.queues()
    queues.register(Q, consumer=A)
    publish(queues)
    before = world.all_keys()
    for error, words, call in BAD_CALLS.values():
        with pytest.raises(error, match=words):
            call(queues)
    assert world.all_keys() == before
    world.close()


@pytest.mark.parametrize("queue", [Q, "no such queue"])
def test_an_unknown_consumer_or_queue_is_named(queues: Queues, queue: str) -> None:
    queues.register(Q, consumer=A)
    expected = UnknownConsumer if queue == Q else UnknownQueue
    calls: list[Callable[[], Any]] = [
        lambda: queues.claim(queue, consumer=B),
        lambda: queues.nack(queue, consumer=B, token="t", message_id=1),
        lambda: queues.unregister(queue, consumer=B),
        lambda: queues.configure(queue, consumer=B, options=ORDERED),
        lambda: queues.touch(queue, consumer=B),
        lambda: queues.pause(queue, consumer=B),
        lambda: queues.resume(queue, consumer=B),
        lambda: queues.reap(queue, consumer=B),
        lambda: queues.peek(queue, consumer=B),
        lambda: queues.size(queue, consumer=B),
        lambda: queues.list_dead(queue, consumer=B),
        lambda: queues.retry_dead(queue, consumer=B),
        lambda: queues.purge_dead(queue, consumer=B),
        lambda: queues.purge(queue, consumer=B),
    ]
    for call in calls:
        with pytest.raises(expected) as refused:
            call()
        assert f"queue {queue!r}" in str(refused.value)
        assert f"consumer {B!r}" in str(refused.value)


def test_the_clock_is_the_servers_unless_there_is_another(queues: Queues, world: FanoutWorld) -> None:
    own = world.queues(clock=None)
    own.register(Q, consumer=A)
    before_ms = system_clock()
    own.publish(Q, messages(1))

    [message] = own.claim(Q, consumer=A).messages

    assert before_ms <= message.published_ms <= system_clock()
    assert message.expires_at_ms - message.published_ms == 86_400_000
