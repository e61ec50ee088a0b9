"""What handlers and listeners of a group may rely on, blocking and asyncio, with a dispatcher beside them."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from queuekeeper import postgres
from queuekeeper.errors import RefusedError, Rejected, ServerUnavailable, UsageError
from queuekeeper.events import App, AsyncEventConsumer, EventBroker, EventConsumer, operations
from queuekeeper.events.handlers import Handler, Middleware, RetryRules, handler
from queuekeeper.events.model import Delivery, FellBehind, Interest, NewEvent, StatementTimeout
from queuekeeper.service.steps import Wait
from tests.conformance.event_worlds import KINDS, TRANSIENT, Kind, World, allow, both, refuse, until
from tests.conformance.watching import INSIDE, Watching
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.conformance

Work = Callable[[Delivery], Awaitable[None]]


def events(numbers: Iterable[int], *, topic: str = "orders") -> list[NewEvent]:
    return [NewEvent(topic=topic, payload=number) for number in numbers]


class Recorder:
    """A handler that writes down what it gets.

    :param failures: deliveries to fail on, from the first.
    """

    def __init__(self, *, failures: int = 0, error: type[Exception] = ValueError) -> None:
        self.deliveries: list[Delivery] = []
        self.times: list[float] = []
        self._failures = failures
        self._error = error

    async def __call__(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)
        self.times.append(time.monotonic())
        if len(self.deliveries) <= self._failures:
            raise self._error("no luck")

    @property
    def numbers(self) -> list[Any]:
        return [event.payload for delivery in self.deliveries for event in delivery.events]

    @property
    def attempts(self) -> list[int]:
        return [delivery.attempt for delivery in self.deliveries]


# Delivery.


@both
async def test_event_is_delivered_at_once_without_polling(world: World) -> None:
    recorder = Recorder()
    consumer = world.consumer(poll_interval_s=3_600, sign_of_life_s=3_600)
    await consumer.handle(recorder, name="bill")
    steps = steps_of(consumer.consumer)
    async with world.dispatching(poll_interval_s=3_600), consumer:
        for number in range(5):
            await world.broker.publish(events([number]))
            await until(lambda: len(recorder.numbers) > number, what="the event")  # noqa: B023
        latest = world.rows("SELECT max(event_ids[1]) FROM pgmb.dispatches")[0][0]
        await until(lambda: world.cursor() > latest, what="the cursor to be stored")
        # What the server has committed its client may not have heard of.
        await until(lambda: isinstance(steps[-1], Wait), what="the consumer to wait")
        begun = len(steps)
        await asyncio.sleep(0.5)
        assert steps[begun:] == [], "a consumer that has nothing to do asks nothing"
    assert recorder.numbers == list(range(5))


def steps_of(service: Any) -> list[Any]:
    """Return the steps that a service begins from now on; the last one may be under way."""
    found: list[Any] = []
    carry_out = service.answer

    def answer(step: Any) -> Any:
        found.append(step)
        return carry_out(step)

    service.answer = answer
    return found


@both
async def test_listeners_of_equal_interest_share_a_subscription_and_hear_the_same(world: World) -> None:
    async with world.dispatching(), world.consumer() as consumer:
        first, second = [await consumer.listen(Interest.topics("orders")) for _ in range(2)]
        third = await consumer.listen(Interest.topics("other"))
        assert first.subscription_id == second.subscription_id != third.subscription_id
        await world.broker.publish([*events([1]), *events([2], topic="other")])
        for listener, number in ((first, 1), (second, 1), (third, 2)):
            delivery = await listener.get(timeout_s=PATIENCE_S)
            assert delivery is not None
            assert [event.payload for event in delivery.events] == [number]
        first.close()
        await world.broker.publish(events([3]))
        delivery = await second.get(timeout_s=PATIENCE_S)
        assert delivery is not None
        assert delivery.events[0].payload == 3
        assert await first.get() is None
    assert second.ended
    assert await second.get() is None


@both
async def test_consumers_of_one_group_share_its_events_and_get_none_twice(world: World) -> None:
    dice, seen = random.Random(11), Counter[int]()

    async def work(delivery: Delivery) -> None:
        await asyncio.sleep(dice.random() * 0.05)
        seen.update(event.payload for event in delivery.events)

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(world.dispatching())
        for _ in range(3):
            consumer = world.consumer(poll_interval_s=0.1)
            await consumer.handle(work, name="bill")
            await stack.enter_async_context(consumer)
        for number in range(20):
            await world.broker.publish(events([number]))
            await asyncio.sleep(0.01)
        await until(lambda: len(seen) == 20, what="all events")
    assert set(seen.values()) == {1}
    assert world.readers() == 0


@both
async def test_writers_that_commit_late_lose_nothing_and_repeat_nothing(world: World) -> None:
    writers, each = 6, 100
    recorder = Recorder()
    consumer = world.consumer(page=70, poll_interval_s=0.1)
    await consumer.handle(recorder, name="bill")

    async def write(writer: int) -> None:
        dice = random.Random(writer)
        broker = await world.another_broker(autocommit=False)
        for number in range(each):
            await broker.publish(events([writer * each + number]))
            if dice.random() < 0.3:
                await broker.connection.commit()
        await broker.connection.commit()

    async with world.dispatching(), consumer:
        await asyncio.gather(*(write(writer) for writer in range(writers)))
        await until(lambda: len(recorder.numbers) >= writers * each, what="all events")
    assert sorted(recorder.numbers) == list(range(writers * each))
    for writer in range(writers):
        own = [number for number in recorder.numbers if number // each == writer]
        assert own == sorted(own)


@both
async def test_reader_and_poll_at_once_deliver_an_event_once(world: World) -> None:
    await world.broker.subscribe("group", Interest())
    other = await world.another_broker()
    found = 0
    for number in range(10):
        await world.broker.publish(events([number]))
        page, _ = await asyncio.gather(world.broker.read("group"), other.poll())
        later = await world.broker.read("group", cursor=page.next_cursor)
        found += len(page.items) + len(later.items)
        await world.broker.set_cursor("group", later.next_cursor or page.next_cursor, release=False)
    assert found == 10


# Failing handlers.


@both
async def test_failed_delivery_comes_again_in_order_and_to_nobody_else(world: World) -> None:
    unlucky, lucky = Recorder(failures=2), Recorder()
    consumer = world.consumer()
    await consumer.handle(unlucky, name="unlucky")
    await consumer.handle(lucky, name="lucky")
    async with world.dispatching(), consumer:
        await world.broker.publish(events([1]))
        await until(lambda: bool(unlucky.deliveries), what="the first attempt")
        await world.broker.publish(events([2]))
        await until(lambda: 2 in unlucky.numbers, what="the second event")
    assert unlucky.numbers == [1, 1, 1, 2]
    assert unlucky.attempts == [1, 2, 3, 1]
    # Each pause is twice as long as the one before; a busy machine makes any of them longer still.
    assert unlucky.times[1] - unlucky.times[0] >= 0.1
    assert unlucky.times[2] - unlucky.times[1] >= 0.2
    assert lucky.numbers == [1, 2]


@both
async def test_retry_comes_after_its_pause_and_holds_up_nothing(world: World) -> None:
    unlucky, lucky = Recorder(failures=1), Recorder()
    consumer = world.consumer()
    await consumer.handle(unlucky, name="unlucky", retries_s=(0.7,))
    await consumer.handle(lucky, name="lucky", retries_s=(0.7,))
    async with world.dispatching(poll_interval_s=0.1), consumer:
        await world.broker.publish(events([1, 2]))
        await until(lambda: bool(unlucky.deliveries), what="the first attempt")
        await world.broker.publish(events([3]))
        await until(lambda: len(unlucky.deliveries) == 3, what="the retry")
    assert unlucky.numbers == [1, 2, 3, 1, 2]
    assert unlucky.attempts == [1, 1, 2]
    assert unlucky.times[2] - unlucky.times[0] >= 0.7
    assert lucky.numbers == [1, 2, 3]
    assert world.rows("SELECT count(*) FROM pgmb.dispatches") == [(3,)]
    assert world.rows("SELECT count(*) FROM pgmb.dead_letters") == [(0,)]


@both
async def test_retry_outlives_the_stored_events(world: World) -> None:
    unlucky = Recorder(failures=1)
    consumer = world.consumer()
    await consumer.handle(unlucky, name="unlucky", retries_s=(0.5,))
    async with world.dispatching(poll_interval_s=0.1), consumer:
        await world.broker.publish(events([1]))
        await until(lambda: world.rows("SELECT count(*) FROM pgmb.scheduled_events") == [(1,)], what="the retry")
        world.sql.execute("DELETE FROM pgmb.events WHERE topic = 'orders'")
        await until(lambda: len(unlucky.deliveries) == 2, what="the retry")
    assert unlucky.numbers == [1, 1]


@both
async def test_retry_of_large_events_comes_in_parts_and_so_do_their_dead_letters(world: World) -> None:
    recorder = Recorder(failures=4)
    consumer = world.consumer()
    await consumer.handle(recorder, name="bill", retries_s=(0.1,))
    await world.broker.subscribe("group", Interest())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operations, "BYTES_PER_COPY", 250)
        await world.broker.publish([NewEvent(topic="orders", payload=f"{number}" * 100) for number in range(5)])
        await world.dispatch()
        async with world.dispatching(poll_interval_s=0.1), consumer:
            await until(lambda: world.rows("SELECT count(*) FROM pgmb.dead_letters") == [(5,)], what="dead letters")
            assert [len(one.events) for one in recorder.deliveries] == [5, 2, 2, 1]
            letters = await world.broker.dead_letters()
            assert await world.broker.replay_dead_letters([letter.dead_letter_id for letter in letters]) == 5
            await until(lambda: len(recorder.numbers) == 15, what="the replay")
    assert [len(one.events) for one in recorder.deliveries[4:]] == [2, 2, 1]
    assert recorder.numbers[10:] == [f"{number}" * 100 for number in range(5)]


class Watcher(Watching, Middleware):
    """Looks on, and names a message by its attempt."""


@both
async def test_those_who_look_on_hear_of_every_attempt_and_may_end_its_error(world: World) -> None:
    watcher, inside = Watcher(), list[int]()

    @handler(retries_s=[0.01], dead_on=(ZeroDivisionError,))
    async def bill(delivery: Delivery) -> None:
        inside.append(INSIDE.get())
        (event,) = delivery.events
        if event.payload == "late" and delivery.attempt == 2:
            return
        raise {"poison": ValueError("no"), "late": ValueError("no"), "bad": ZeroDivisionError(), "ended": KeyError()}[
            event.payload
        ]

    consumer = world.consumer(middleware=[watcher])
    await consumer.handle(bill, name="bill")
    said = "ValueError('no')"
    async with world.dispatching(poll_interval_s=0.1), consumer:
        for payload, told in (
            ("poison", [("before", 1), (said, 1, False), ("before", 2), (said, 2, True)]),
            ("late", [("before", 1), (said, 1, False), ("before", 2), ("after", 2)]),
            ("bad", [("before", 1), ("ZeroDivisionError()", 1, True)]),
            ("ended", [("before", 1), "ended", ("after", 1)]),
        ):
            await world.broker.publish([NewEvent(topic="orders", payload=payload)])
            await until(lambda: len(watcher.told) >= len(told), what=payload)  # noqa: B023
            assert watcher.told == told
            watcher.told.clear()
    assert inside == [1, 2, 1, 2, 1, 1]
    letters = await world.broker.dead_letters()
    assert sorted((letter.event.payload, letter.attempts, letter.reason) for letter in letters) == [
        ("bad", 1, "ZeroDivisionError"), ("poison", 2, "ValueError: no"),
    ]  # fmt: skip


def for_ever(_: Delivery) -> None:
    while True:
        time.sleep(0.001)


async def for_ever_async(_: Delivery) -> None:
    await asyncio.Event().wait()


def slow(kind: Kind) -> Callable[[Delivery], Any]:
    return for_ever if kind == "blocking" else for_ever_async


@both
async def test_events_whose_handler_runs_out_of_time_come_again_and_then_are_dead(world: World) -> None:
    watcher = Watcher()
    consumer = world.consumer(middleware=[watcher])
    hasty = Handler(work=slow(world.kind), rules=RetryRules(retries_s=(0.01,), time_limit_ms=50))
    await consumer.handle_as_it_is(hasty, name="bill")
    async with world.dispatching(poll_interval_s=0.1), consumer:
        await world.broker.publish(events([1]))
        await until(lambda: world.rows("SELECT count(*) FROM pgmb.dead_letters") == [(1,)], what="the dead letter")
    (letter,) = await world.broker.dead_letters()
    assert (letter.attempts, letter.reason) == (2, "TimeLimitExceeded: the handler took longer than its 0.05 s")
    said = "TimeLimitExceeded('the handler took longer than its 0.05 s')"
    assert watcher.told == [("before", 1), (said, 1, False), ("before", 2), (said, 2, True)]


@both
async def test_order_is_kept_when_a_handler_runs_out_of_time(world: World) -> None:
    done: list[tuple[Any, int]] = []

    def note(delivery: Delivery) -> bool:
        if delivery.attempt > 1 or delivery.events[0].payload != 1:
            done.extend((event.payload, delivery.attempt) for event in delivery.events)
            return True
        return False

    def bill(delivery: Delivery) -> None:
        if not note(delivery):
            for_ever(delivery)

    async def bill_async(delivery: Delivery) -> None:
        if not note(delivery):
            await for_ever_async(delivery)

    consumer = world.consumer()
    made = handler(time_limit_ms=100)(bill if world.kind == "blocking" else bill_async)
    await consumer.handle_as_it_is(made, name="bill")
    async with world.dispatching(poll_interval_s=0.1), consumer:
        for number in (1, 2):
            await world.broker.publish(events([number]))
            await world.dispatch()
        await until(lambda: {number for number, _ in done} == {1, 2}, what="both events")
    # On a busy machine also what ends at once may be out of time, and come again.
    assert list(dict.fromkeys(number for number, _ in done)) == [1, 2]
    assert done[0][1] > 1


@pytest.mark.parametrize("retries_s", [(60.0,), ()])
@both
async def test_event_that_can_neither_come_again_nor_be_kept_is_named_in_the_log(
    world: World, retries_s: Any, caplog: pytest.LogCaptureFixture
) -> None:
    numbers: list[Any] = []

    async def work(delivery: Delivery) -> None:
        numbers.extend(event.payload for event in delivery.events)
        if numbers == [1]:
            world.sql.execute("DELETE FROM pgmb.events")
            raise ValueError

    consumer = world.consumer()
    await consumer.handle(work, name="bill", retries_s=retries_s)
    async with world.dispatching(), consumer:
        (event_id,) = await world.broker.publish(events([1]))
        await until(lambda: "does not get 1 of 1 events again" in caplog.text, what="the line of the log")
        await world.broker.publish(events([2]))
        await until(lambda: numbers == [1, 2], what="the next event")
    assert f"no {'retry' if retries_s else 'dead letter'} for them" in caplog.text
    assert event_id in caplog.text


@pytest.fixture
def unlogged() -> Iterator[None]:
    """Leave no log of the test: half a character in it could not be sent from a worker of the tests to their leader."""
    log = logging.getLogger("queuekeeper.events.consumption")
    log.disabled = True
    yield
    log.disabled = False


@pytest.mark.usefixtures("unlogged")
@both
async def test_error_that_is_no_text_to_the_server_stops_nobody(world: World) -> None:
    async def fail(_: Delivery) -> None:
        raise Rejected("half a \ud83d and \0")

    consumer = world.consumer()
    await consumer.handle(fail, name="bill")
    async with world.dispatching(), consumer:
        await world.broker.publish(events([1]))
        await until(lambda: world.rows("SELECT count(*) FROM pgmb.dead_letters") == [(1,)], what="the dead letter")
    (letter,) = await world.broker.dead_letters()
    assert letter.reason == "Rejected: half a ? and  "


@both
async def test_part_that_fails_is_retried_alone(world: World) -> None:
    def by_topic(delivery: Delivery) -> list[Delivery]:
        topics = sorted({event.topic for event in delivery.events})
        return [
            replace(delivery, events=tuple(event for event in delivery.events if event.topic == topic))
            for topic in topics
        ]

    recorder = Recorder(failures=1)
    consumer = world.consumer()
    await consumer.handle(recorder, name="bill", retries_s=(0.2,), split=by_topic)
    async with world.dispatching(poll_interval_s=0.1), consumer:
        await world.broker.publish([*events([1], topic="a"), *events([2], topic="b"), *events([3], topic="a")])
        await until(lambda: len(recorder.deliveries) == 3, what="the retry")
    assert [[event.payload for event in one.events] for one in recorder.deliveries] == [[1, 3], [2], [1, 3]]
    assert recorder.attempts == [1, 1, 2]


@both
async def test_part_that_fails_in_order_keeps_the_later_parts_waiting(world: World) -> None:
    def singly(delivery: Delivery) -> list[Delivery]:
        return [replace(delivery, events=(event,)) for event in delivery.events]

    recorder = Recorder(failures=2)
    consumer = world.consumer()
    await consumer.handle(recorder, name="bill", split=singly)
    async with world.dispatching(), consumer:
        await world.broker.publish(events([1, 2, 3]))
        await until(lambda: len(recorder.deliveries) == 5, what="all parts")
    assert recorder.numbers == [1, 1, 1, 2, 3]
    assert recorder.attempts == [1, 2, 3, 1, 1]


@both
async def test_splitter_that_fails_makes_the_whole_delivery_fail(world: World) -> None:
    calls: list[int] = []

    def fails_once(delivery: Delivery) -> list[Delivery]:
        calls.append(delivery.attempt)
        if len(calls) == 1:
            raise KeyError("topic")
        return [replace(delivery, events=(event,)) for event in delivery.events]

    recorder = Recorder()
    consumer = world.consumer()
    await consumer.handle(recorder, name="bill", split=fails_once)
    async with world.dispatching(), consumer:
        await world.broker.publish(events([1, 2]))
        await until(lambda: len(recorder.deliveries) == 2, what="both parts")
    assert calls == [1, 2]
    assert recorder.numbers == [1, 2]


@both
async def test_event_that_a_splitter_leaves_out_does_not_count_as_handled(world: World) -> None:
    def leaves_out(delivery: Delivery) -> list[Delivery]:
        return [replace(delivery, events=delivery.events[:1])] if delivery.attempt == 1 else [delivery]

    recorder = Recorder()
    consumer = world.consumer()
    await consumer.handle(recorder, name="bill", retries_s=(0.05,), split=leaves_out)
    async with world.dispatching(poll_interval_s=0.1), consumer:
        await world.broker.publish(events([1, 2]))
        await until(lambda: len(recorder.deliveries) == 1, what="the retry")
    assert recorder.numbers == [1, 2]


@both
async def test_events_are_dead_letters_after_the_last_retry_and_come_again_when_replayed(world: World) -> None:
    recorder = Recorder(failures=3)
    consumer = world.consumer()
    await consumer.handle(recorder, name="bill", retries_s=(0.05, 0.1))
    async with world.dispatching(poll_interval_s=0.1), consumer:
        await world.broker.publish(events([1]))
        await until(lambda: world.rows("SELECT count(*) FROM pgmb.dead_letters") == [(1,)], what="the dead letter")
        (letter,) = await world.broker.dead_letters(group_id="group")
        assert (letter.event.payload, letter.handler, letter.reason) == (1, "bill", "ValueError: no luck")
        assert letter.attempts == 3
        assert await world.broker.replay_dead_letters([letter.dead_letter_id]) == 1
        await until(lambda: len(recorder.deliveries) == 4, what="the replay")
    assert recorder.attempts == [1, 2, 3, 1]
    assert recorder.numbers == [1] * 4
    assert await world.broker.dead_letters() == ()


@pytest.mark.parametrize("retries_s", [None, (60.0,)])
@both
async def test_rejected_events_are_dead_letters_at_once(world: World, retries_s: Any) -> None:
    recorder = Recorder(failures=1, error=Rejected)
    consumer = world.consumer()
    await consumer.handle(recorder, name="bill", retries_s=retries_s)
    async with world.dispatching(), consumer:
        await world.broker.publish(events([1]))
        await until(lambda: bool(recorder.deliveries), what="the attempt")
        await world.broker.publish(events([2]))
        await until(lambda: 2 in recorder.numbers, what="the next event")
    (letter,) = await world.broker.dead_letters()
    assert (letter.reason, letter.attempts, letter.event.payload) == ("Rejected: no luck", 1, 1)
    assert recorder.numbers == [1, 2]


@both
async def test_retry_with_forged_copies_stops_nobody(world: World) -> None:
    recorder = Recorder(failures=1)
    consumer = world.consumer()
    await consumer.handle(recorder, name="bill", retries_s=())
    subscription = await world.broker.subscribe("group", Interest())
    copies = [{"id": "pm1", "topic": "a"}, {"id": "pm2", "topic": "b", "payload": 1}, {"id": "pm2", "topic": "c"}]
    forged = {"ids": ["pm1"], "retryNumber": 1, "handlerName": "bill", "events": copies}
    await world.broker.send(subscription.subscription_id, [NewEvent(topic="pgmb-retry", payload=forged)])
    async with world.dispatching(), consumer:
        await until(lambda: world.rows("SELECT count(*) FROM pgmb.dead_letters") == [(2,)], what="the dead letters")
        await world.broker.publish(events([2]))
        await until(lambda: 2 in recorder.numbers, what="the next event")


DEEP = 3_000
"""Values within others: more than Python's own reader follows."""


@both
async def test_whatever_the_server_stores_is_delivered_and_may_fail(world: World) -> None:
    recorder = Recorder(failures=4)
    consumer = world.consumer()
    await consumer.handle(recorder, name="bill", retries_s=(0.05,))
    await world.broker.subscribe("group", Interest())
    world.sql.execute(
        "SELECT pgmb.publish(ARRAY['a', 'b', 'c'], ARRAY['1e5000', repeat('[', %s) || repeat(']', %s), '7']::jsonb[])",
        (DEEP, DEEP),
    )
    await world.dispatch()
    async with world.dispatching(poll_interval_s=0.1), consumer:
        await until(lambda: world.rows("SELECT count(*) FROM pgmb.dead_letters") == [(3,)], what="the dead letters")
    number, deep, seven = recorder.numbers[:3]
    assert (number == 10**5_000, seven) == (True, 7)
    depth = 0
    while deep:
        (deep,) = deep
        depth += 1
    assert depth == DEEP - 1


@both
async def test_retry_for_a_handler_that_is_gone_is_a_dead_letter(world: World) -> None:
    recorder = Recorder(failures=1)
    consumer = world.consumer()
    await consumer.handle(recorder, name="old name", retries_s=(0.5,))
    async with world.dispatching():
        async with consumer:
            await world.broker.publish(events([1]))
            await until(lambda: world.rows("SELECT count(*) FROM pgmb.scheduled_events") == [(1,)], what="the retry")
        renamed = world.consumer()
        await renamed.handle(recorder, name="new name")
        async with renamed:
            await until(lambda: world.rows("SELECT count(*) FROM pgmb.dead_letters") == [(1,)], what="the dead letter")
    (letter,) = await world.broker.dead_letters()
    assert letter.reason == "the consumer had no handler of this name when the retry came"
    assert (letter.handler, letter.event.payload) == ("old name", 1)


@both
async def test_retry_that_a_client_written_for_pgmb_has_scheduled_is_understood(world: World) -> None:
    recorder, other = Recorder(), Recorder()
    consumer = world.consumer()
    await consumer.handle(recorder, name="bill")
    await consumer.handle(other, name="other")
    subscription = await world.broker.subscribe("group", Interest())
    ids = await world.broker.publish(events([1, 2]))
    retry = NewEvent(topic="pgmb-retry", payload={"ids": ids, "retryNumber": 2, "handlerName": "bill"})
    await world.broker.send(subscription.subscription_id, [retry])
    async with world.dispatching(), consumer:
        await until(lambda: len(recorder.deliveries) == 2, what="the retry")
        await until(lambda: len(other.deliveries) == 1, what="the events")
    assert recorder.numbers == [1, 2, 1, 2]
    assert recorder.attempts == [1, 3]


# Reading ahead.


@both
async def test_slow_handler_holds_the_cursor_and_not_the_fast_ones(world: World) -> None:
    free, slow, fast = asyncio.Event(), Recorder(), Recorder()

    async def wait(delivery: Delivery) -> None:
        await slow(delivery)
        await free.wait()

    consumer = world.consumer(page=1, pages_ahead=4, poll_interval_s=0.05)
    await consumer.handle(wait, name="slow")
    await consumer.handle(fast, name="fast")
    async with world.dispatching(), consumer:
        before = world.cursor()
        await world.broker.publish(events(range(10)))
        await until(lambda: len(fast.numbers) == 4, what="the fast handler to be as far ahead as it may")
        await asyncio.sleep(0.3)
        assert fast.numbers == [0, 1, 2, 3], "pages_ahead bounds what is held in memory"
        assert slow.numbers == [0]
        assert world.cursor() == before
        free.set()
        await until(lambda: len(fast.numbers) == 10 and len(slow.numbers) == 10, what="all events")
    assert slow.numbers == fast.numbers == list(range(10))
    assert (await world.broker.read("group")).items == ()


@both
async def test_what_is_finished_is_not_delivered_again_after_a_restart(world: World) -> None:
    first, second = Recorder(), Recorder()
    async with world.dispatching():
        for recorder, numbers in ((first, range(5)), (second, range(5, 8))):
            consumer = world.consumer()
            await consumer.handle(recorder, name="bill")
            async with consumer:
                await world.broker.publish(events(numbers))
                await until(lambda: len(recorder.numbers) == len(numbers), what="the events")  # noqa: B023
    assert first.numbers == [0, 1, 2, 3, 4]
    assert second.numbers == [5, 6, 7]


@both
async def test_stop_waits_until_what_was_read_is_finished(world: World) -> None:
    done: list[int] = []

    async def work(delivery: Delivery) -> None:
        await asyncio.sleep(0.05)
        done.extend(event.payload for event in delivery.events)

    consumer = world.consumer(page=1)
    await consumer.handle(work, name="bill")
    await world.broker.subscribe("group", Interest())
    await world.broker.publish(events(range(5)))
    await world.dispatch()
    async with consumer:
        await until(lambda: bool(done), what="the first event")
    page = await world.broker.read("group")
    assert done == list(range(5 - len(page.items)))
    assert len(done) > 1
    assert world.readers() == 1


@both
async def test_stop_does_not_wait_for_what_keeps_failing(world: World) -> None:
    recorder = Recorder(failures=1_000)
    consumer = world.consumer()
    await consumer.handle(recorder, name="bill")
    async with world.dispatching():
        async with consumer:
            await world.broker.publish(events([1]))
            await until(lambda: len(recorder.deliveries) == 4, what="some attempts")
        assert [item.event.payload for item in (await world.broker.read("group")).items] == [1]


class Stuck:
    """A handler that has begun and does not end until it is told to."""

    def __init__(self) -> None:
        self.begun, self.over = asyncio.Event(), asyncio.Event()

    async def work(self, _: Delivery) -> None:
        self.begun.set()
        await self.over.wait()


@both
async def test_stop_ends_when_its_grace_is_over_and_stores_nothing_unfinished(world: World) -> None:
    stuck = Stuck()

    consumer = world.consumer(grace_s=0.2)
    await consumer.handle(stuck.work, name="stuck")
    async with world.dispatching():
        async with consumer:
            await world.broker.publish(events([1]))
            await asyncio.wait_for(stuck.begun.wait(), PATIENCE_S)
        stuck.over.set()
        await until(lambda: world.readers() == 0, what="the group to be free")
        assert [item.event.payload for item in (await world.broker.read("group")).items] == [1]


@both
async def test_reader_of_a_listener_that_is_too_slow_is_told_so_and_holds_up_nobody(world: World) -> None:
    recorder = Recorder()
    consumer = world.consumer(page=10, listener_events=25)
    await consumer.handle(recorder, name="bill")
    async with world.dispatching(), consumer:
        listener = await consumer.listen(Interest())
        await world.broker.publish(events(range(100)))
        await until(lambda: len(recorder.numbers) == 100, what="the handler")
        heard: list[int] = []

        async def read_all() -> None:
            while (delivery := await listener.get(timeout_s=PATIENCE_S)) is not None:
                heard.extend(event.payload for event in delivery.events)

        with pytest.raises(FellBehind, match="20 events wait for it"):
            await read_all()
        assert heard == list(range(20))


# Coming and going.


@both
async def test_handler_may_join_and_subscriptions_leave_while_the_consumer_runs(world: World) -> None:
    early, late = Recorder(), Recorder()
    consumer = world.consumer()
    await consumer.handle(early, name="early", interest=Interest.topics("a"))
    async with world.dispatching(), consumer:
        await consumer.handle(late, name="late", interest=Interest.topics("b"))
        with pytest.raises(UsageError, match="has a handler 'late' already"):
            await consumer.handle(late, name="late")
        with pytest.raises(UsageError, match='column "nonsense" does not exist'):
            await consumer.listen(Interest(condition="NONSENSE"))
        listener = await consumer.listen(Interest.topics("b"))
        await world.broker.publish([*events([1], topic="a"), *events([2], topic="b")])
        await until(lambda: bool(early.numbers and late.numbers), what="both")
        assert await listener.get(timeout_s=PATIENCE_S) is not None
        assert await consumer.unsubscribe(listener.subscription_id)
        assert not await consumer.unsubscribe("su-nobody")
        with pytest.raises(RefusedError, match="was removed"):
            await listener.get(timeout_s=PATIENCE_S)
        await world.broker.publish([*events([3], topic="a"), *events([4], topic="b")])
        await until(lambda: len(early.numbers) == 2, what="the other handler")
    assert (early.numbers, late.numbers) == ([1, 3], [2])


@both
async def test_handler_that_gives_up_after_its_subscription_has_left_stops_nobody(world: World) -> None:
    begun, failing, other = asyncio.Event(), asyncio.Event(), Recorder()

    async def fail(_: Delivery) -> None:
        begun.set()
        await failing.wait()
        raise Rejected("never")

    consumer = world.consumer()
    await consumer.handle(fail, name="fail", interest=Interest.topics("a"))
    await consumer.handle(other, name="other", interest=Interest.topics("b"))
    async with world.dispatching(), consumer:
        await world.broker.publish(events([1], topic="a"))
        await asyncio.wait_for(begun.wait(), PATIENCE_S)
        (leaving,) = [one for one in await world.broker.subscriptions() if one.params == {"topics": ["a"]}]
        assert await consumer.unsubscribe(leaving.subscription_id)
        failing.set()
        await world.broker.publish(events([2], topic="b"))
        await until(lambda: other.numbers == [2], what="the other handler")
    assert await world.broker.dead_letters() == ()


@both
async def test_subscription_that_somebody_has_removed_is_made_anew(world: World) -> None:
    recorder = Recorder()
    consumer = world.consumer(sign_of_life_s=0.1)
    await consumer.handle(recorder, name="bill")
    async with world.dispatching(), consumer:
        world.sql.execute("DELETE FROM pgmb.subscriptions")
        await until(lambda: world.rows("SELECT count(*) FROM pgmb.subscriptions") == [(1,)], what="a subscription")
        await world.broker.publish(events([1]))
        await until(lambda: recorder.numbers == [1], what="the event")


@both
async def test_consumer_of_a_subscription_in_quarantine_says_so(world: World, caplog: pytest.LogCaptureFixture) -> None:
    free = await world.broker.subscribe("group", Interest())
    assert (free.quarantined_at, free.quarantine_reason) == (None, None)
    await world.broker.quarantine_condition("TRUE", reason="it took too long")
    held = await world.broker.subscribe("group", Interest())
    assert held.subscription_id == free.subscription_id
    assert held.quarantined_at is not None
    assert held.quarantine_reason == "it took too long"

    consumer = world.consumer()
    await consumer.handle(Recorder(), name="bill")
    async with consumer:
        words = f"subscription {held.subscription_id} gets nothing, since it is in quarantine"
        assert caplog.text.count(words) == 1
        await consumer.listen(Interest())
        assert caplog.text.count(words) == 2
    assert "it took too long" in caplog.text


@both
async def test_signs_of_life_keep_a_subscription_alive(world: World) -> None:
    async with world.consumer(sign_of_life_s=0.1) as consumer:
        await consumer.listen(Interest())

        def last_active() -> Any:
            return world.rows("SELECT last_active_at FROM pgmb.subscriptions")[0][0]

        before = last_active()
        await until(lambda: last_active() > before, what="a sign of life")


@pytest.mark.parametrize("when", ["before it is there", "when it is there"])
def test_listener_whose_caller_gives_up_is_not_kept(
    broker_url: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    async def test() -> None:
        async with AsyncEventConsumer(broker_url, group_id="group") as consumer:
            real = consumer.operations._assert_subscription
            was_cut = asyncio.Event()

            def cut(interest: Interest) -> Any:
                found = yield from real(interest)
                # The caller is cancelled while its call is under way, or when the answer waits for it.
                if when == "before it is there":
                    asking.cancel()
                    yield Wait(timeout_s=0.05)
                else:
                    asyncio.get_running_loop().call_soon(asking.cancel)
                was_cut.set()
                return found

            monkeypatch.setattr(consumer.operations, "_assert_subscription", cut)
            asking = asyncio.create_task(consumer.listen(Interest()))
            await was_cut.wait()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await until(lambda: consumer.operations.listeners == [], what="the end of the listener")

    asyncio.run(test())


@both
@pytest.mark.parametrize("as_what", ["handler", "listener", "handler of a running consumer"])
async def test_subscription_that_expires_soon_gets_signs_of_life_in_time(world: World, as_what: str) -> None:
    soon = Interest(expires_after=timedelta(seconds=1))
    consumer = world.consumer(sign_of_life_s=3_600)
    if as_what == "handler":
        await consumer.handle(Recorder(), name="bill", interest=soon)
    async with consumer:
        if as_what == "listener":
            await consumer.listen(soon)
        elif as_what != "handler":
            await consumer.handle(Recorder(), name="bill", interest=soon)
        signs: set[Any] = set()

        def several() -> bool:
            signs.update(world.rows("SELECT last_active_at FROM pgmb.subscriptions"))
            return len(signs) >= 3

        await until(several, what="signs of life")


@both
async def test_consumer_that_waits_for_its_handlers_after_a_stop_gives_signs_of_life(world: World) -> None:
    stuck = Stuck()

    def last_active() -> Any:
        return world.rows("SELECT last_active_at FROM pgmb.subscriptions")[0][0]

    consumer = world.consumer(sign_of_life_s=0.1, grace_s=10)
    await consumer.handle(stuck.work, name="stuck")
    async with world.dispatching(), consumer:
        await world.broker.publish(events([1]))
        await asyncio.wait_for(stuck.begun.wait(), PATIENCE_S)
        served: Any = getattr(consumer, "consumer", consumer)
        served.stop()
        await until(lambda: served.operations._stop_at_s is not None, what="the stop")
        signs: set[Any] = set()

        def several() -> bool:
            signs.add(last_active())
            return len(signs) >= 3  # one may have been on its way

        try:
            await until(several, what="signs of life")
        finally:
            stuck.over.set()


@both
async def test_another_consumer_goes_on_when_the_first_is_gone(world: World) -> None:
    first, second = Recorder(), Recorder()
    async with world.dispatching(), AsyncExitStack() as stack:
        consumer = world.consumer()
        await consumer.handle(first, name="bill")
        await stack.enter_async_context(consumer)
        await world.broker.publish(events([1]))
        await until(lambda: first.numbers == [1], what="the first event")
        standby = world.consumer(poll_interval_s=0.1)
        await standby.handle(second, name="bill")
        async with standby:
            await world.broker.publish(events([2]))
            await until(lambda: first.numbers == [1, 2], what="the second event")
            await stack.aclose()
            await world.broker.publish(events([3]))
            await until(lambda: second.numbers == [3], what="the third event")
    assert first.numbers == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_consumer_that_cannot_start_says_why(postgres_url: str, broker_url: str, kind: Kind) -> None:
    async def start(url: str, interest: Interest) -> None:
        async with World(kind, url) as world:
            consumer = world.consumer()
            with pytest.raises(RefusedError, match="the consumer does not run"):
                await consumer.listen(Interest())
            await consumer.handle(Recorder(), name="bill", interest=interest)
            async with consumer:
                pass

    with pytest.raises(RefusedError, match="run `queuekeeper events install`"):
        asyncio.run(start(postgres_url, Interest()))
    with pytest.raises(UsageError, match='column "nonsense" does not exist'):
        asyncio.run(start(broker_url, Interest(condition="NONSENSE")))


@both
async def test_consumer_whose_condition_always_takes_too_long_ends_with_the_reason(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    # As check_condition does, however fast the machine is.
    world.sql.execute(
        "CREATE OR REPLACE FUNCTION pgmb.check_subscriptions() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION 'condition was not tried in time' USING ERRCODE = 'query_canceled'; END $$"
    )
    consumer = world.consumer()
    await consumer.handle(Recorder(), name="bill")
    with pytest.raises(StatementTimeout, match=r"'TRUE' was not tried .* make it cheaper, .*was not tried in time"):
        async with consumer:
            pass
    assert caplog.text.count("the next try follows") == 2
    assert world.readers() == 0


@both
async def test_consumer_of_a_server_that_is_not_there_says_so(world: World) -> None:
    world.url = "postgresql://nobody@127.0.0.1:1/nothing"
    with pytest.raises(ServerUnavailable, match="start the server, or check host and port"):
        async with world.consumer():
            pass


@both
async def test_consumer_goes_on_after_what_the_server_refuses_for_now(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder()
    consumer = world.consumer(poll_interval_s=0.05)
    await consumer.handle(recorder, name="bill")
    async with world.dispatching(), consumer:
        for number, (state, words) in enumerate(TRANSIENT.items()):
            before = world.cursor()
            refuse(world, "pgmb.subscription_groups", state)
            await world.broker.publish(events([number]))
            await until(lambda: words in caplog.text, what=words)  # noqa: B023
            allow(world, "pgmb.subscription_groups")
            await until(lambda: world.cursor() > before, what="the cursor to be stored")  # noqa: B023
    assert set(recorder.numbers) == set(range(len(TRANSIENT)))


@both
async def test_consumer_whose_connection_is_ended_goes_on(world: World) -> None:
    recorder = Recorder()
    consumer = world.consumer()
    await consumer.handle(recorder, name="bill")
    async with world.dispatching(), consumer:
        listener = await consumer.listen(Interest())
        for number in range(3):
            await world.broker.publish(events([number]))
            await until(lambda: number in recorder.numbers, what="the event")  # noqa: B023
            with postgres.connect(world.url, autocommit=True) as other:
                other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid() AND pid <> ALL(%s)",
                    [[world.sql.info.backend_pid, world.broker.connection_pid]],
                )
        await world.broker.publish(events([3]))
        await until(lambda: 3 in recorder.numbers, what="the last event")
        heard: set[int] = set()
        while heard != {0, 1, 2, 3}:
            delivery = await listener.get(timeout_s=PATIENCE_S)
            assert delivery is not None
            heard |= {event.payload for event in delivery.events}
    assert set(recorder.numbers) == {0, 1, 2, 3}
    assert world.readers() == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_handlers_of_an_app_work_at_once_in_as_many_threads_as_it_has(broker_url: str, threads: int) -> None:
    app = App(group_id="billing", threads=threads)
    meeting = threading.Barrier(threads)
    gate = threading.Lock()
    at_work = 0
    most: list[int] = []

    def work(_: Delivery) -> None:
        nonlocal at_work
        with gate:
            at_work += 1
            most.append(at_work)
        meeting.wait(PATIENCE_S)
        with gate:
            at_work -= 1

    for name in ("paid", "refunded"):
        app.handler(name=name)(work)
    [consumer] = asyncio.run(app.services(broker_url))
    assert isinstance(consumer, EventConsumer)
    with consumer, postgres.connect(broker_url, autocommit=True) as connection:
        broker = EventBroker(connection)
        broker.publish(events(range(1)))
        broker.poll()
        ends_s = time.monotonic() + PATIENCE_S
        while len(most) < 2 or at_work:
            assert time.monotonic() < ends_s
            time.sleep(0.01)

    assert max(most) == threads


@pytest.mark.parametrize("threads", [0, 1_001])
def test_number_of_threads_out_of_range_is_refused_before_anything_runs(threads: int) -> None:
    with pytest.raises(UsageError, match=rf"^threads is {threads}: it must be 1 to 1000$"):
        App(group_id="billing", threads=threads)
