"""Producers and consumers of compacted queues, blocking and asyncio, on real servers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from queuekeeper import lua
from queuekeeper.compacted import consumer as consumer_module
from queuekeeper.compacted.consumer import AsyncCompactedConsumer, CompactedConsumer
from queuekeeper.compacted.consumption import ConsumerRules, Resubscribe, WhenUnreadable
from queuekeeper.compacted.handlers import CompactedWorker, Handler, Middleware, RetryRules, handler
from queuekeeper.compacted.model import Append, Fence, Position, Purge, QueueRules, Refill
from queuekeeper.compacted.producer import Appended, AsyncCompactedProducer, CompactedProducer
from queuekeeper.compacted.queue import AsyncCompactedQueues, CompactedQueues
from queuekeeper.compacted.reports import CompactedMessage
from queuekeeper.embedded import RedisServer
from queuekeeper.errors import (
    NumberReused,
    PayloadTooLarge,
    QueueBusy,
    QueueFull,
    RefusedError,
    SequenceConflict,
    ServerUnavailable,
    StaleEpoch,
    UnreadableRecord,
    UsageError,
)
from queuekeeper.keyspace import compacted_keys
from queuekeeper.redis_async import connect
from queuekeeper.redis_client import connect as connect_blocking
from tests.conformance.cutting_proxy import CuttingProxy
from tests.conformance.watching import INSIDE, Watching
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.conformance


def quiet(**rules: Any) -> ConsumerRules:
    """Return rules by which no heartbeat finds what a wake-up should have told."""
    return ConsumerRules(lease_ms=3_600_000, heartbeat_ms=3_000_000, **rules)


class WatchedQueues(AsyncCompactedQueues):
    """Notes which scripts are called for whom, and can hold them back."""

    def __init__(self, caller: Any, **options: Any) -> None:
        super().__init__(caller, **options)
        self.sent: list[tuple[str, bytes]] = []
        self.under_way: dict[bytes, int] = {}
        self.most_under_way = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None

    async def answer(self, step: Sequence[lua.Call]) -> lua.Replies:
        names = [call.client_id for call in step]
        self.sent += [(call.script.name.removeprefix("compacted/"), call.client_id) for call in step]
        for name in names:
            self.under_way[name] = self.under_way.get(name, 0) + 1
        self.most_under_way = max(self.most_under_way, *self.under_way.values())
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        try:
            return await super().answer(step)
        finally:
            for name in names:
                self.under_way[name] -= 1

    def count(self, script: str) -> int:
        return [name for name, _ in self.sent].count(script)


@asynccontextmanager
async def opened(url: str, *, retry_for_s: float = lua.RETRY_FOR_S, **rules: Any) -> AsyncIterator[WatchedQueues]:
    async with await connect(url, retry_for_s=retry_for_s) as caller:
        yield WatchedQueues(caller, rules=QueueRules(**rules))


@contextmanager
def opened_blocking(url: str, **rules: Any) -> Iterator[CompactedQueues]:
    with connect_blocking(url) as client:
        yield CompactedQueues(client, rules=QueueRules(**rules))


def run(url: str, test: Callable[[WatchedQueues], Awaitable[None]], **rules: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), opened(url, **rules) as queues:
            await test(queues)

    asyncio.run(main())


def entries(count: int, *, first: int = 0) -> list[Append]:
    return [Append(key=b"k%d" % number, value=b"%d" % number) for number in range(first, first + count)]


async def take(consumer: AsyncCompactedConsumer, count: int) -> list[CompactedMessage]:
    return [await anext(consumer) for _ in range(count)]


def values(messages: Sequence[CompactedMessage]) -> list[bytes]:
    return [message.value for message in messages]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():
        await asyncio.sleep(0.01)


async def until_waiting(admin: Any) -> None:
    """Return when somebody waits at the server to be woken."""

    async def waits() -> bool:
        return any("b" in each["flags"] for each in admin.client_list())

    await until(waits)


@pytest.fixture(params=["valkey", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    """A single server, and a cluster."""
    return str(request.getfixturevalue("valkey_url" if request.param == "valkey" else "redis_cluster_url"))


# Producing.


def test_many_tasks_append_to_many_queues_together_and_each_learns_its_number(url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        async with AsyncCompactedProducer(queues) as producer:

            async def publish(name: int) -> list[Appended]:
                client_id = f"client-{name % 20}"
                return [await producer.append(client_id, Append(key=b"%d/%d" % (name, turn))) for turn in range(10)]

            results = await asyncio.gather(*map(publish, range(60)))
        for name in range(20):
            found = {(message.sequence, message.key) for message in await queues.peek(f"client-{name}")}
            told = {
                (result.sequence, b"%d/%d" % (publisher, turn))
                for publisher in range(name, 60, 20)
                for turn, result in enumerate(results[publisher])
            }
            assert told == found
            assert len(found) == 30
        assert queues.most_under_way == 1, "a queue has one batch under way"
        assert queues.count("append") < 400, "600 values were sent together"

    run(url, test)


def test_values_of_one_queue_are_stored_in_the_order_of_the_calls(url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        async with AsyncCompactedProducer(queues, max_pending=50) as producer:
            calls = [asyncio.create_task(producer.append("a", append)) for append in entries(1_000)]
            results = await asyncio.gather(*calls)
            again = await producer.append("a", Append(key=b"k7", value=b"new"))
        assert [result.sequence for result in results] == list(range(1, 1_001))
        assert again == Appended(1_001, 8)

    run(url, test)


def test_call_that_fails_does_not_touch_its_neighbours(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        async with AsyncCompactedProducer(queues) as producer:
            results = await asyncio.gather(
                producer.append("a", Append(key=b"1")),
                producer.append("a", Append(key=b"2", value=b"x" * 101)),
                producer.append("a", Append(key=b"3", expected_sequence=7)),
                producer.append("a", Append(key=b"4")),
                producer.append("a", Append(key=b"5")),
                producer.append("a", Append(key=b"1", value=b"y")),
                producer.append("", Append(key=b"6")),
                producer.append("a", b"7"),  # type: ignore[arg-type]
                return_exceptions=True,
            )
        assert [result if isinstance(result, Appended) else type(result) for result in results] == [
            Appended(1, None),
            PayloadTooLarge,
            SequenceConflict,
            Appended(2, None),
            QueueFull,
            Appended(3, 1),
            UsageError,
            UsageError,
        ]

    run(valkey_url, test, max_value_bytes=100, max_keys=2)


def test_calls_beyond_the_bound_wait_until_there_is_room(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        async with AsyncCompactedProducer(queues, max_pending=3) as producer:
            await asyncio.gather(*(producer.append(f"c{n}", Append(key=b"")) for n in range(5)))
            queues.sent.clear()
            queues.gate.clear()
            calls = [asyncio.create_task(producer.append(f"c{n}", Append(key=b""))) for n in range(5)]
            for _ in range(10):
                await asyncio.sleep(0)
            assert len(queues.sent) == 3
            queues.gate.set()
            assert {result.sequence for result in await asyncio.gather(*calls)} == {2}

    run(valkey_url, test)


def test_cancelled_call_takes_its_value_back_unless_it_is_under_way(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        async with AsyncCompactedProducer(queues) as producer:
            await producer.append("a", Append(key=b"0"))
            queues.gate.clear()
            sent = queues.count("append")
            first = asyncio.create_task(producer.append("a", Append(key=b"1")))
            while queues.count("append") == sent:
                await asyncio.sleep(0)
            second = asyncio.create_task(producer.append("a", Append(key=b"2")))
            third = asyncio.create_task(producer.append("a", Append(key=b"3")))
            await asyncio.sleep(0)
            first.cancel()
            second.cancel()
            await asyncio.wait([first, second])
            queues.gate.set()
            assert (await third).sequence == 3
        assert [message.key for message in await queues.peek("a")] == [b"0", b"1", b"3"]

    run(valkey_url, test)


def test_closing_stores_all_that_was_accepted_and_takes_nothing_more(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        producer = AsyncCompactedProducer(queues, max_pending=10, max_queues=2)
        calls = [asyncio.create_task(producer.append(f"c{n % 7}", append)) for n, append in enumerate(entries(100))]
        await asyncio.sleep(0)
        await producer.close()
        assert all(call.done() for call in calls)
        assert sum([len(await queues.peek(f"c{n}")) for n in range(7)]) == 100
        with pytest.raises(RefusedError, match="the producer is closed"):
            await producer.append("a", Append(key=b""))

    run(valkey_url, test)


def test_append_whose_answer_was_lost_is_sent_again_and_stored_once(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        async with AsyncCompactedProducer(queues) as producer:
            await asyncio.gather(*(producer.append(name, Append(key=b"0")) for name in ("a", "b")))
            proxy.cuts = 2
            results = await asyncio.gather(
                *(producer.append(name, append) for append in entries(3) for name in ("a", "b"))
            )
        assert proxy.cuts == 0
        assert [result.sequence for result in results] == [2, 2, 3, 3, 4, 4]
        assert (await queues.inspect("a")).sequence == 4

    with CuttingProxy(valkey_url) as proxy:
        run(proxy.url, test)


def test_blocking_producer_stores_once_too_and_says_what_it_replaced(valkey_url: str) -> None:
    with CuttingProxy(valkey_url) as proxy, opened_blocking(proxy.url) as queues:
        producer = CompactedProducer(queues)
        assert producer.append("a", Append(key=b"k", value=b"1")) == Appended(1, None)
        proxy.cuts = 1
        assert producer.append("a", Append(key=b"k", value=b"2")) == Appended(2, None), "what it replaced was lost"
        assert producer.append("a", Append(key=b"k", value=b"3")) == Appended(3, 2)
        report = producer.append_many("a", entries(2))
        assert (report.sequences, report.live) == ((4, 5), 3)
        with pytest.raises(SequenceConflict):
            producer.append("a", Append(key=b"k", expected_sequence=1))


def test_conditions_of_calls_that_go_together_are_met_one_after_the_other(url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        async with AsyncCompactedProducer(queues) as producer:
            await producer.append("a", Append(key=b"there"))
            queues.sent.clear()
            calls = [
                Append(key=b"new", value=b"1", expected_sequence=0),
                Append(key=b"new", value=b"2", expected_sequence=0),
                Append(key=b"there", value=b"1", expected_sequence=1),
                Append(key=b"other"),
                Append(key=b"there", value=b"2", expected_sequence=1),
                Append(key=b"other", value=b"1", expected_sequence=0),
                Append(key=b"new", value=b"3"),
            ]
            results = await asyncio.gather(*(producer.append("a", one) for one in calls), return_exceptions=True)
        assert [result if isinstance(result, Appended) else type(result) for result in results] == [
            Appended(2, None),
            SequenceConflict,
            Appended(3, 1),
            Appended(4, None),
            SequenceConflict,
            SequenceConflict,
            Appended(5, 2),
        ]
        assert {message.key: message.value for message in await queues.peek("a")} == {
            b"new": b"3", b"there": b"1", b"other": b"",
        }  # fmt: skip

    run(url, test)


def test_batch_is_bounded_with_all_that_goes_with_its_values(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        async with AsyncCompactedProducer(queues) as producer:
            # Twice of them are more than the limit, and each is told about itself; nothing is stored twice.
            described = {f"name {number}": "x" * 60_000 for number in range(5)}
            results = await asyncio.gather(
                *(producer.append("a", Append(key=b"%d" % n, value=b"x", properties=described)) for n in range(6)),
                return_exceptions=True,
            )
        assert [result if isinstance(result, Appended) else type(result) for result in results] == [
            *(Appended(number, None) for number in range(1, 5)),
            QueueFull,
            QueueFull,
        ]
        assert (await queues.inspect("a")).sequence == 4

    run(valkey_url, test, max_keys=4)


def test_producer_that_counts_from_the_start_again_is_told_though_its_answer_was_lost(valkey_url: str) -> None:
    with CuttingProxy(valkey_url) as proxy, opened_blocking(proxy.url) as queues:
        CompactedProducer(queues, name="p", first_number=0).append("a", Append(key=b"k", value=b"old"))
        again = CompactedProducer(queues, name="p", first_number=0)
        # The answer is lost, so that the repetition meets the number: nobody may take it for its own.
        proxy.cuts = 1
        with pytest.raises(RefusedError, match="producer 'p' has appended to the queue of 'a' with number"):
            again.append("a", Append(key=b"k", value=b"new"))
        assert proxy.cuts == 0
        with pytest.raises(NumberReused):
            queues.append("a", [Append(key=b"k", value=b"new")], producer="p", number=0)
        assert values(queues.peek("a")) == [b"old"]


def test_lost_answer_is_an_error_when_the_time_to_repeat_is_over(valkey_url: str) -> None:
    with CuttingProxy(valkey_url) as proxy, opened_blocking(proxy.url) as queues:
        producer = CompactedProducer(queues, retry_for_s=0)
        producer.append("a", Append(key=b""))
        proxy.cuts = 1
        with pytest.raises(ServerUnavailable):
            producer.append("a", Append(key=b""))


def test_number_that_the_name_has_used_before_stores_nothing(valkey_url: str) -> None:
    with opened_blocking(valkey_url) as queues:
        CompactedProducer(queues, name="p", first_number=10).append("a", Append(key=b"", value=b"0"))
        for first_number in (9, 10):
            with pytest.raises(RefusedError, match="producer 'p' has appended to the queue of 'a' with number"):
                CompactedProducer(queues, name="p", first_number=first_number).append("a", Append(key=b""))
        CompactedProducer(queues, name="p").append("a", Append(key=b"", value=b"1"))
        assert values(queues.peek("a")) == [b"1"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": ""}, "producer is empty"),
        ({"name": "a\0"}, "holds a zero character"),
        ({"first_number": -1}, "first_number is -1"),
        ({"retry_for_s": -1}, "retry_for_s is -1"),
        ({"retry_for_s": float("nan")}, "retry_for_s is nan"),
        ({"max_pending": 0}, "max_pending is 0"),
        ({"max_queues": 0}, "max_queues is 0"),
    ],
)
def test_bad_option_of_a_producer_is_refused(valkey_url: str, options: dict[str, Any], words: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        with pytest.raises(UsageError, match=words):
            AsyncCompactedProducer(queues, **options)

    run(valkey_url, test)


# Consuming.


def test_messages_come_in_order_and_only_the_newest_of_a_key(url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", [*entries(12), Append(key=b"k3", value=b"new"), Append(key=b"k4", tombstone=True)])
        async with AsyncCompactedConsumer(queues, "a") as consumer:
            got = []
            async for message in consumer:
                got.append(message)
                assert await consumer.ack(message)
                if len(got) == 12:
                    break
        assert [message.key for message in got] == [b"k%d" % n for n in (0, 1, 2, 5, 6, 7, 8, 9, 10, 11, 3, 4)]
        assert got[-1].tombstone
        assert not any(message.redelivered for message in got)
        view = await queues.inspect("a")
        assert (view.acked, view.in_flight, view.lag, view.session) == (14, 0, 0, None)

    run(url, test)


def test_automatic_acknowledgements_travel_with_the_next_fetch(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(50))
        queues.sent.clear()
        async with AsyncCompactedConsumer(queues, "a", auto_ack=True) as consumer:
            assert values(await take(consumer, 50)) == [b"%d" % n for n in range(50)]
        view = await queues.inspect("a")
        assert (view.acked, view.in_flight) == (50, 0)
        assert queues.count("fetch") <= 11
        assert queues.count("ack") <= 1

    run(valkey_url, test)


def test_consumer_that_waits_is_woken_by_an_append(url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        async with AsyncCompactedConsumer(queues, "a", rules=quiet()) as consumer:
            for number in range(5):
                waiting = asyncio.create_task(anext(consumer))
                await asyncio.sleep(0.02)
                await queues.append("a", entries(1, first=number))
                message = await waiting
                assert message.value == b"%d" % number
                await consumer.ack(message)

    run(url, test)


def test_consumer_that_waits_asks_nothing_between_two_heartbeats(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        with connect_blocking(valkey_url) as admin:
            async with AsyncCompactedConsumer(queues, "a", rules=quiet()) as consumer:
                waiting = asyncio.create_task(anext(consumer))
                await until_waiting(admin)
                queues.sent.clear()
                await asyncio.sleep(0.3)
                assert queues.sent == []
                waiting.cancel()

    run(valkey_url, test)


def test_consumer_that_is_taken_over_ends_and_its_successor_misses_no_wake_up(url: str) -> None:
    rules = quiet()

    async def test(queues: WatchedQueues) -> None:
        async with AsyncCompactedConsumer(queues, "a", rules=rules) as old:
            waiting = asyncio.create_task(anext(old))
            await asyncio.sleep(0.1)
            async with AsyncCompactedConsumer(queues, "a", rules=rules, session="new") as new:
                next_one = asyncio.create_task(anext(new))
                with pytest.raises(StaleEpoch, match="session new consumes the queue"):
                    await waiting
                for number in range(3):
                    await queues.append("a", entries(1, first=number))
                    message = await next_one
                    await new.ack(message)
                    next_one = asyncio.create_task(anext(new))
                next_one.cancel()

    run(url, test)


def test_successor_of_a_consumer_with_a_full_window_misses_no_wake_up(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(1))
        async with AsyncCompactedConsumer(queues, "a", rules=quiet()) as old:
            held = await anext(old)
            async with AsyncCompactedConsumer(queues, "a", rules=quiet(), session="new") as new:
                await new.ack(await anext(new))
                for number in range(3):
                    waiting = asyncio.create_task(anext(new))
                    await asyncio.sleep(0.05)
                    await queues.append("a", entries(1, first=number))
                    message = await waiting
                    assert message.value == b"%d" % number
                    await new.ack(message)
                with pytest.raises(StaleEpoch):
                    await anext(old)
                assert not await old.ack(held)

    run(valkey_url, test)


def test_consumer_with_a_full_window_asks_once_when_it_is_woken(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(1))
        async with AsyncCompactedConsumer(queues, "a", rules=quiet()) as consumer:
            held = await anext(consumer)
            for number in range(1, 6):
                await queues.append("a", entries(1, first=number))
                await asyncio.sleep(0.05)
            assert queues.count("heartbeat") <= 2
            await consumer.ack(held)
            assert values(await take(consumer, 5)) == [b"%d" % number for number in range(1, 6)]

    run(valkey_url, test)


def test_window_is_refilled_when_it_is_empty_or_as_it_empties(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(20))
        for refill, comes in ((Refill.ON_EMPTY, False), (Refill.SLIDING, True)):
            rules = ConsumerRules(window=4, refill=refill, start=Position.earliest())
            async with AsyncCompactedConsumer(queues, "a", rules=rules) as consumer:
                first = await take(consumer, 4)
                fifth = asyncio.create_task(anext(consumer))
                await consumer.ack(first[2])
                await asyncio.wait([fifth], timeout=PATIENCE_S if comes else 0.2)
                assert fifth.done() is comes
                assert (await queues.inspect("a")).in_flight == (4 if comes else 3)
                for message in (first[3], first[0], first[1]):
                    await consumer.ack(message)
                assert (await fifth).value == b"4"

    run(valkey_url, test)


def test_many_tasks_acknowledge_in_any_order(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(300))
        rules = ConsumerRules(window=50, refill=Refill.SLIDING)
        async with AsyncCompactedConsumer(queues, "a", rules=rules) as consumer:
            tasks = []
            for number in range(300):
                message = await anext(consumer)

                async def work(message: CompactedMessage = message, number: int = number) -> bool:
                    await asyncio.sleep(number * 7 % 11 / 1_000)
                    return await consumer.ack(message)

                tasks.append(asyncio.create_task(work()))
            assert all(await asyncio.gather(*tasks))
            assert not await consumer.ack(message), "a second acknowledgement does not count"
        view = await queues.inspect("a")
        assert (view.acked, view.in_flight, view.counters["acks"], view.counters["redelivered"]) == (300, 0, 300, 0)

    run(valkey_url, test)


def test_consumer_that_ends_gives_the_queue_up_and_what_was_in_flight_comes_again(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(8))

        async def fail() -> None:
            async with AsyncCompactedConsumer(queues, "a") as consumer:
                first = await take(consumer, 3)
                await consumer.ack(first[1])
                raise ValueError("no luck")

        with pytest.raises(ValueError, match="no luck"):
            await fail()
        await queues.append("a", [Append(key=b"k3", value=b"new")])
        async with AsyncCompactedConsumer(queues, "a", rules=ConsumerRules(takeover=False), auto_ack=True) as consumer:
            again = await take(consumer, 7)
        assert [(message.key, message.redelivered) for message in again] == [
            *((b"k%d" % number, True) for number in (0, 2, 4)),
            *((b"k%d" % number, False) for number in (5, 6, 7, 3)),
        ]
        with pytest.raises(RefusedError, match="a consumer runs once"):
            await consumer.__aenter__()

    run(valkey_url, test)


def test_heartbeats_hold_the_queue_while_the_work_takes_long(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(1))
        # Longer than any machine stands still.
        rules = ConsumerRules(lease_ms=round(1_000 * PATIENCE_S), heartbeat_ms=100)
        async with AsyncCompactedConsumer(queues, "a", rules=rules) as consumer:
            message = await anext(consumer)
            for _ in range(5):
                # A lease runs out, and begins anew with every heartbeat.
                left_ms = (await queues.inspect("a")).lease_left_ms
                while (later_ms := (await queues.inspect("a")).lease_left_ms) <= left_ms:
                    left_ms = later_ms
                    await asyncio.sleep(0.01)
            with pytest.raises(QueueBusy):
                await queues.subscribe("a", session="other", takeover=False)
            assert await consumer.ack(message)

    run(valkey_url, test)


def test_rewind_brings_messages_again_and_late_acknowledgements_do_not_count(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(7))
        async with AsyncCompactedConsumer(queues, "a", rules=ConsumerRules(heartbeat_ms=100)) as consumer:
            first = await take(consumer, 5)
            for message in first[:4]:
                await consumer.ack(message)
            await queues.rewind("a", to=Position.earliest())
            again = await take(consumer, 5)
            assert values(again) == values(first)
            assert not await consumer.ack(first[4])
            assert (await queues.inspect("a")).in_flight == 5
            for message in again:
                assert await consumer.ack(message)
            assert values(await take(consumer, 2)) == [b"5", b"6"]

    run(valkey_url, test)


def test_message_that_an_operator_skips_holds_the_consumer_up_no_more(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(7))
        async with AsyncCompactedConsumer(queues, "a", rules=ConsumerRules(heartbeat_ms=100)) as consumer:
            first = await take(consumer, 5)
            for message in first[1:]:
                await consumer.ack(message)
            await queues.skip("a", sequence=first[0].sequence)
            assert values(await take(consumer, 2)) == [b"5", b"6"]
            assert not await consumer.ack(first[0])

    run(valkey_url, test)


def test_skip_is_noticed_though_messages_come_one_by_one(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(7))
        rules = ConsumerRules(heartbeat_ms=100, max_bytes=1, refill=Refill.SLIDING, window=4)
        async with AsyncCompactedConsumer(queues, "a", rules=rules) as consumer:
            held = await take(consumer, 4)
            await queues.skip("a", sequence=held[0].sequence)
            assert (await anext(consumer)).value == b"4"
            assert not await consumer.ack(held[0])
            assert await consumer.ack(held[1])
            assert (await anext(consumer)).value == b"5"

    run(valkey_url, test)


def test_rewind_ends_a_consumer_that_is_never_to_subscribe_again(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        rules = ConsumerRules(resubscribe=Resubscribe.NEVER, heartbeat_ms=100)
        await queues.append("a", entries(1))
        async with AsyncCompactedConsumer(queues, "a", rules=rules) as consumer:
            message = await anext(consumer)
            await queues.rewind("a", to=Position.earliest())
            with pytest.raises(StaleEpoch):
                await anext(consumer)
            assert not await consumer.ack(message)

    run(valkey_url, test)


def test_consumer_that_always_subscribes_again_takes_the_queue_back(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        rules = quiet(resubscribe=Resubscribe.ALWAYS)
        async with AsyncCompactedConsumer(queues, "a", rules=rules, session="first") as consumer:
            waiting = asyncio.create_task(anext(consumer))
            taken = await queues.subscribe("a", session="second")
            assert taken.previous_session == "first"

            async def taken_back() -> bool:
                return (await queues.inspect("a")).session == "first"

            await until(taken_back)
            await queues.append("a", entries(1))
            assert (await waiting).value == b"0"

    run(valkey_url, test)


def test_message_whose_fetch_was_cut_comes_again_flagged_and_once(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        rules = quiet(window=4, refill=Refill.SLIDING)
        async with AsyncCompactedConsumer(queues, "a", rules=rules) as consumer:
            await queues.append("a", entries(2))
            held = await take(consumer, 2)
            async with opened(valkey_url) as others:
                waiting = asyncio.create_task(anext(consumer))
                with connect_blocking(valkey_url) as admin:
                    await until_waiting(admin)
                # The reply to the wait, and the one to the fetch that follows.
                proxy.cuts = 2
                await others.append("a", entries(2, first=2))
            lost = [await waiting, await anext(consumer)]
            assert values(lost) == [b"2", b"3"]
            assert all(message.redelivered for message in lost)
            for message in (*held, *lost):
                assert await consumer.ack(message)
        assert proxy.cuts == 0
        assert (await queues.inspect("a")).acked == 4

    with CuttingProxy(valkey_url) as proxy:
        run(proxy.url, test)


def test_server_that_is_restarted_is_waited_for(redis_server_factory: Callable[..., RedisServer]) -> None:
    server = redis_server_factory(appendonly="yes", appendfsync="always")

    async def test(queues: WatchedQueues) -> None:
        async with AsyncCompactedProducer(queues) as producer, AsyncCompactedConsumer(queues, "a") as consumer:
            await asyncio.gather(*(producer.append("a", append) for append in entries(3)))
            first = await take(consumer, 3)
            await consumer.ack(first[0])
            await asyncio.to_thread(server.stop)
            calls = [asyncio.create_task(producer.append("a", append)) for append in entries(2, first=3)]
            acks = [asyncio.create_task(consumer.ack(message)) for message in first[1:]]
            await asyncio.to_thread(server.start)
            assert [result.sequence for result in await asyncio.gather(*calls)] == [4, 5]
            assert await asyncio.gather(*acks) == [True, True]
            rest = await take(consumer, 2)
            assert values(rest) == [b"3", b"4"]

    run(server.url, test)


def test_end_does_not_wait_for_a_server_that_is_gone(
    redis_server_factory: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "GRACE_S", 0.5)
    server = redis_server_factory()

    async def test(queues: WatchedQueues) -> None:
        async with AsyncCompactedConsumer(queues, "a") as consumer:
            await queues.append("a", entries(1))
            await anext(consumer)
            await asyncio.to_thread(server.stop)
            began_s = time.monotonic()
        assert time.monotonic() - began_s < PATIENCE_S

    run(server.url, test)


def test_message_at_work_can_be_acknowledged_after_a_stop(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(3))
        async with AsyncCompactedConsumer(queues, "a") as consumer:
            got = []
            async for message in consumer:
                got.append(message.value)
                consumer.stop()
                await asyncio.sleep(0.05)
                assert await consumer.ack(message)
        assert got == [b"0"]
        assert (await queues.inspect("a")).acked == 1

    run(valkey_url, test)


def test_acknowledgement_fails_with_what_has_ended_the_consumer(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(3))
        async with AsyncCompactedConsumer(queues, "a") as consumer:
            first, second = await take(consumer, 2)
            queues.error = RefusedError("no such right")
            for message in (first, second):
                with pytest.raises(RefusedError, match="no such right"):
                    await consumer.ack(message)
            queues.error = None
        assert (await queues.inspect("a")).acked == 2, "what was to be acknowledged goes with the end"

    run(valkey_url, test)


def test_acknowledgement_after_a_stop_does_not_wait_for_a_server_that_is_gone(
    redis_server_factory: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "GRACE_S", 0.5)
    server = redis_server_factory()

    async def test(queues: WatchedQueues) -> None:
        async with AsyncCompactedConsumer(queues, "a") as consumer:
            await queues.append("a", entries(1))
            message = await anext(consumer)
            await asyncio.to_thread(server.stop)
            waiting = asyncio.create_task(consumer.ack(message))
            await asyncio.sleep(0.1)
            consumer.stop()
            with pytest.raises(ServerUnavailable):
                await waiting

    run(server.url, test, retry_for_s=1.0)


def test_acknowledgement_that_the_end_overtakes_fails(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "GRACE_S", 0.1)

    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(1))
        async with AsyncCompactedConsumer(queues, "a") as consumer:
            message = await anext(consumer)
            queues.gate.clear()
            waiting = asyncio.create_task(consumer.ack(message))
            await asyncio.sleep(0.05)
        with pytest.raises(RefusedError, match="the consumer has ended"):
            await waiting

    run(valkey_url, test)


def test_acknowledgement_behind_an_end_that_was_cut_off_does_not_wait(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "GRACE_S", 0.1)

    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(1))
        rules = ConsumerRules(heartbeat_ms=10)
        async with AsyncCompactedConsumer(queues, "a", rules=rules) as consumer:
            message = await anext(consumer)
            queues.gate.clear()
            beats = queues.count("heartbeat")
            while queues.count("heartbeat") == beats:
                await asyncio.sleep(0.01)
        assert not await consumer.ack(message)

    run(valkey_url, test)


def test_server_that_is_away_at_first_is_waited_for(redis_server_factory: Callable[..., RedisServer]) -> None:
    server = redis_server_factory(appendonly="yes", appendfsync="always")

    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(1))
        await asyncio.to_thread(server.stop)

        async def consume() -> bytes:
            async with AsyncCompactedConsumer(queues, "a") as consumer:
                return (await anext(consumer)).value

        consuming = asyncio.create_task(consume())
        await asyncio.sleep(0.2)
        await asyncio.to_thread(server.start)
        assert await consuming == b"0"

    run(server.url, test)


def test_server_that_lacks_replicas_is_waited_for(redis_server_factory: Callable[..., RedisServer]) -> None:
    server = redis_server_factory()

    async def test(queues: WatchedQueues) -> None:
        with connect_blocking(server.url) as admin:
            await queues.append("a", entries(2))
            async with AsyncCompactedConsumer(queues, "a") as consumer:
                first, second = await take(consumer, 2)
                admin.config_set("min-replicas-to-write", 1)
                waiting = asyncio.create_task(consumer.ack(first))
                done, _ = await asyncio.wait([waiting], timeout=0.3)
                assert not done
                admin.config_set("min-replicas-to-write", 0)
                assert await waiting
                assert await consumer.ack(second)

    run(server.url, test)


def test_number_that_a_failover_gives_anew_is_another_message(valkey_url: str) -> None:
    with CuttingProxy(valkey_url) as proxy, opened_blocking(proxy.url) as queues, connect_blocking(valkey_url) as admin:
        others = CompactedQueues(admin)

        def kept() -> dict[bytes | str, bytes | None]:
            return {key: admin.dump(key) for key in compacted_keys("a")}

        def fail_over(kept: dict[bytes | str, bytes | None]) -> None:
            for key, found in kept.items():
                admin.delete(key)
                if found is not None:
                    admin.restore(key, 0, found)

        rules = quiet(refill=Refill.SLIDING)
        with CompactedConsumer(queues, "a", rules=rules, idle_timeout_s=PATIENCE_S) as consumer:
            others.append("a", [Append(key=b"a", value=b"1")])
            first = next(consumer)
            before = kept()
            others.append("a", [Append(key=b"b", value=b"lost")])
            lost = next(consumer)
            fail_over(before)
            time.sleep(0.002)
            others.append("a", [Append(key=b"c", value=b"new")])
            proxy.cuts = 1
            assert consumer.ack(first)
            new = next(consumer)
            assert (new.value, new.sequence) == (b"new", lost.sequence)
            assert not consumer.ack(lost)
            assert consumer.ack(new)

            before = kept()
            others.append("a", [Append(key=b"d", value=b"lost")])
            lost = next(consumer)
            fail_over(before)
            time.sleep(0.002)
            others.append("a", [Append(key=b"e", value=b"newer")])
            proxy.cuts = 1
            assert not consumer.ack(lost), "its acknowledgement is not that of the new one"
            newer = next(consumer)
            assert (newer.value, newer.sequence) == (b"newer", lost.sequence)
            assert consumer.ack(newer)
        assert others.inspect("a").acked == newer.sequence


@pytest.mark.parametrize("rule", WhenUnreadable)
def test_message_that_cannot_be_read_ends_the_consumer_or_comes_flagged(valkey_url: str, rule: WhenUnreadable) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(7))
        with connect_blocking(valkey_url) as admin:
            admin.hset(compacted_keys("a").values, "k2", b"3 0 ?damaged")
        queues.sent.clear()
        got = []
        async with AsyncCompactedConsumer(queues, "a", rules=quiet(unreadable=rule)) as consumer:
            for _ in range(2 if rule is WhenUnreadable.STOP else 7):
                message = await anext(consumer)
                got.append((message.value, message.is_readable))
                await consumer.ack(message)
            if rule is WhenUnreadable.STOP:
                for _ in range(3):
                    with pytest.raises(UnreadableRecord, match=r"message 3 of the queue of 'a', with key b'k2'"):
                        await anext(consumer)
        view = await queues.inspect("a")
        if rule is WhenUnreadable.STOP:
            assert got == [(b"0", True), (b"1", True)]
            assert (view.acked, view.in_flight) == (2, 3)
            await queues.skip("a", sequence=3)
            async with AsyncCompactedConsumer(queues, "a", auto_ack=True) as consumer:
                assert values(await take(consumer, 4)) == [b"3", b"4", b"5", b"6"]
        else:
            assert got[2] == (b"3 0 ?damaged", False)
            assert [value for value, is_readable in got if is_readable] == [b"0", b"1", b"3", b"4", b"5", b"6"]
            assert view.acked == 7
        assert len(queues.sent) < 30

    run(valkey_url, test)


def test_messages_in_flight_come_again_behind_those_that_were_removed(valkey_url: str) -> None:
    with opened_blocking(valkey_url) as queues:
        queues.append("a", entries(20))
        gone = queues.subscribe("a", session="gone")
        queues.fetch("a", fence=gone.fence, limit=20, window=20)
        queues.purge("a", what=Purge.up_to(12))
        with CompactedConsumer(queues, "a", auto_ack=True, idle_timeout_s=0, rules=quiet()) as consumer:
            again = list(consumer)
        assert [(message.sequence, message.redelivered) for message in again] == [(n, True) for n in range(13, 21)]
        view = queues.inspect("a")
        assert (view.in_flight, view.acked) == (0, 20)


def test_bad_use_of_a_consumer_is_refused_in_words(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        with pytest.raises(UsageError, match="client id is empty"):
            AsyncCompactedConsumer(queues, "")
        with pytest.raises(UsageError, match="session is empty"):
            AsyncCompactedConsumer(queues, "a", session="")
        with pytest.raises(RefusedError, match="use it in an async with block"):
            await anext(AsyncCompactedConsumer(queues, "a"))
        await queues.subscribe("a", session="other")
        with pytest.raises(QueueBusy):
            async with AsyncCompactedConsumer(queues, "a", rules=ConsumerRules(takeover=False)):
                pass

    run(valkey_url, test)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"window": 0}, "window is 0"),
        ({"window": 501}, "window is 501"),
        ({"max_bytes": 0}, "max_bytes is 0"),
        ({"lease_ms": 1}, "lease_ms is 1"),
        ({"heartbeat_ms": 60_000}, "heartbeat_ms is 60000: it must be 1 to 59999"),
        ({"refill": "sometimes"}, "refill is 'sometimes'"),
        ({"resubscribe": "maybe"}, "resubscribe is 'maybe'"),
        ({"unreadable": "guess"}, "unreadable is 'guess'"),
    ],
)
def test_bad_rule_of_a_consumer_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ConsumerRules(**options)


# Consuming in blocking code.


def test_blocking_consumer_gets_the_same(url: str) -> None:
    with opened_blocking(url) as queues:
        queues.append("a", entries(12))
        with CompactedConsumer(queues, "a", idle_timeout_s=0) as consumer:
            got = []
            for message in consumer:
                got.append(message)
                assert consumer.ack(message)
                assert not consumer.ack(message)
        assert values(got) == [b"%d" % number for number in range(12)]
        queues.rewind("a", to=Position.sequence(3))
        with CompactedConsumer(queues, "a", auto_ack=True, idle_timeout_s=0) as consumer:
            assert len(list(consumer)) == 10
        view = queues.inspect("a")
        assert (view.acked, view.in_flight, view.session) == (12, 0, None)


def test_blocking_consumer_is_woken_and_can_be_stopped(url: str) -> None:
    got: list[bytes] = []
    arrived = threading.Event()
    with opened_blocking(url) as queues:
        consumer = CompactedConsumer(queues, "a", auto_ack=True, rules=quiet())

        def consume() -> None:
            with consumer:
                for message in consumer:
                    got.append(message.value)
                    arrived.set()

        thread = threading.Thread(target=consume)
        thread.start()
        try:
            for number in range(3):
                arrived.clear()
                queues.append("a", entries(1, first=number))
                assert arrived.wait(PATIENCE_S)
        finally:
            consumer.stop()
            thread.join()
        assert got == [b"0", b"1", b"2"]
        assert queues.inspect("a").acked == 3


def test_blocking_consumer_that_never_acknowledges_is_told_why_nothing_comes(valkey_url: str) -> None:
    with opened_blocking(valkey_url) as queues:
        queues.append("a", entries(9))
        with CompactedConsumer(queues, "a") as consumer:
            held = [next(consumer) for _ in range(5)]
            with pytest.raises(RefusedError, match="wait to be acknowledged"):
                next(consumer)
            queues.rewind("a", to=Position.earliest())
            assert not consumer.ack(held[0]), "it comes again"
            assert next(consumer).value == b"0"
        with pytest.raises(RefusedError, match="use it in a with block"):
            next(consumer)
        with pytest.raises(UsageError, match="idle_timeout_s is -1"):
            CompactedConsumer(queues, "a", idle_timeout_s=-1)


def test_blocking_consumer_holds_the_queue_while_it_works_on_what_is_ready(valkey_url: str) -> None:
    # Longer than any machine stands still.
    rules = ConsumerRules(lease_ms=round(1_000 * PATIENCE_S), heartbeat_ms=1)
    with opened_blocking(valkey_url) as queues, connect_blocking(valkey_url) as client:
        admin: Any = client

        def leased_until_ms() -> int:
            return int(admin.hget(compacted_keys("a").state, "lease_until_ms"))

        queues.append("a", entries(5))
        with CompactedConsumer(queues, "a", auto_ack=True, rules=rules, idle_timeout_s=0) as consumer:
            ends_ms = []
            for _ in consumer:
                ends_ms.append(leased_until_ms())
                time.sleep(0.01)
        assert len(ends_ms) == 5
        assert ends_ms == sorted(set(ends_ms)), "a lease begins anew before every message"
        assert queues.inspect("a").acked == 5


def test_blocking_consumer_runs_once(valkey_url: str) -> None:
    with opened_blocking(valkey_url) as queues:
        consumer = CompactedConsumer(queues, "a", auto_ack=True, idle_timeout_s=0)
        with consumer:
            with pytest.raises(RefusedError, match="a consumer runs once"):
                consumer.__enter__()
            assert list(consumer) == []
        queues.append("a", entries(1))
        with pytest.raises(RefusedError, match="a consumer runs once"), consumer:
            pass
        assert queues.inspect("a").session is None


def test_blocking_consumer_survives_cut_connections(valkey_url: str) -> None:
    with CuttingProxy(valkey_url) as proxy, opened_blocking(proxy.url) as queues:
        queues.append("a", entries(30))
        seen: dict[bytes, int] = {}
        with CompactedConsumer(queues, "a", idle_timeout_s=PATIENCE_S) as consumer:
            for number, message in enumerate(consumer):
                seen[message.value] = seen.get(message.value, 0) + 1
                if number % 7 == 0:
                    proxy.cuts = 1
                consumer.ack(message)
                if len(seen) == 30:
                    break
        assert sorted(seen, key=int) == [b"%d" % number for number in range(30)]
        assert queues.inspect("a").acked == 30


# Workers.


again_soon = handler(first_delay_ms=10, max_delay_ms=10)


def test_worker_that_is_stopped_while_its_handler_fails_begins_no_later_message(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(3))
        seen: list[bytes] = []

        async def show(message: CompactedMessage) -> None:
            seen.append(message.value)
            worker.stop()
            raise ValueError("the display is away")

        worker = CompactedWorker(queues, "a", show)
        await worker.run()
        assert seen == [b"0"]
        with pytest.raises(RefusedError, match="a worker runs once: make another one"):
            await worker.run()
        view = await queues.inspect("a")
        assert (view.acked, view.in_flight, view.session) == (0, 3, None)

    run(valkey_url, test)


def test_worker_goes_on_when_the_message_that_it_fails_on_is_skipped(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(7))
        failed, done = asyncio.Event(), list[bytes]()

        @again_soon
        async def show(message: CompactedMessage) -> None:
            if message.value == b"0":
                failed.set()
                raise ValueError("the display is away")
            done.append(message.value)
            if message.value == b"6":
                worker.stop()

        worker = CompactedWorker(queues, "a", show, rules=ConsumerRules(takeover=False, heartbeat_ms=100))
        working = asyncio.create_task(worker.run())
        await failed.wait()
        await queues.skip("a", sequence=1)
        await working
        assert done == [b"%d" % number for number in range(1, 7)]
        assert (await queues.inspect("a")).acked == 7

    run(valkey_url, test)


def test_worker_does_not_go_on_with_a_message_of_a_queue_that_it_has_lost(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(2))
        failed, done = asyncio.Event(), list[bytes]()

        @again_soon
        async def show(message: CompactedMessage) -> None:
            if not message.redelivered:
                failed.set()
                raise ValueError("the display is away")
            done.append(message.value)
            if message.value == b"1":
                worker.stop()

        worker = CompactedWorker(queues, "a", show, rules=ConsumerRules(takeover=False, heartbeat_ms=100))
        working = asyncio.create_task(worker.run())
        await failed.wait()
        other = await queues.subscribe("a", session="other")

        async def has_learnt() -> bool:
            return queues.count("release") > 0

        await until(has_learnt)
        await queues.release("a", fence=other.fence)
        await working
        assert done == [b"0", b"1"]

    run(valkey_url, test)


@pytest.mark.parametrize(("options", "owners"), [({}, 1), ({"takeover": True}, 2)])
def test_workers_with_rules_of_their_own_do_not_take_the_queue_from_each_other_again_and_again(
    valkey_url: str, options: dict[str, Any], owners: int
) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(1))
        begun, sessions = asyncio.Event(), set[str | None]()

        def worker() -> CompactedWorker:
            @again_soon
            async def show(_: CompactedMessage) -> None:
                begun.set()
                raise ValueError("the display is away")

            return CompactedWorker(queues, "a", show, rules=ConsumerRules(window=20, heartbeat_ms=20, **options))

        async def has_asked_often() -> bool:
            sessions.add((await queues.inspect("a")).session)
            return queues.count("subscribe") >= 6

        first, second = worker(), worker()
        working = [asyncio.create_task(first.run())]
        await begun.wait()
        await has_asked_often()
        working.append(asyncio.create_task(second.run()))
        # The one that waits for its turn asks for the queue again and again.
        await until(has_asked_often)
        first.stop()
        second.stop()
        await asyncio.gather(*working)
        assert len(sessions) == owners

    run(valkey_url, test)


def test_worker_that_gets_its_queue_back_does_not_begin_again(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(3))
        done: list[bytes] = []

        async def show(message: CompactedMessage) -> None:
            done.append(message.value)
            if message.value == b"1" and not message.redelivered:
                fences.append((await queues.subscribe("a", session="other")).fence)
            if message.value == b"2":
                worker.stop()

        fences: list[Fence] = []
        rules = ConsumerRules(takeover=False, heartbeat_ms=100, start=Position.earliest())
        worker = CompactedWorker(queues, "a", show, rules=rules)
        working = asyncio.create_task(worker.run())

        async def has_learnt() -> bool:
            return bool(fences) and queues.count("release") > 0

        await until(has_learnt)
        await queues.release("a", fence=fences[0])
        await working
        assert done == [b"0", b"1", b"1", b"2"]

    run(valkey_url, test)


def test_handler_that_lets_a_cancellation_of_its_own_out_has_failed_and_the_worker_goes_on(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(2))
        seen: list[bytes] = []

        @again_soon
        async def show(message: CompactedMessage) -> None:
            seen.append(message.value)
            if len(seen) == 1:
                raise asyncio.CancelledError
            if message.value == b"1":
                worker.stop()

        worker = CompactedWorker(queues, "a", show)
        await worker.run()
        assert seen == [b"0", b"0", b"1"]
        assert (await queues.inspect("a")).acked == 2

    run(valkey_url, test)


def test_worker_that_is_cancelled_ends_though_its_handler_is_at_work(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(1))
        begun = asyncio.Event()

        async def show(_: CompactedMessage) -> None:
            begun.set()
            await asyncio.Event().wait()

        working = asyncio.create_task(CompactedWorker(queues, "a", show).run())
        await begun.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert (await queues.inspect("a")).in_flight == 1

    run(valkey_url, test)


def test_handlers_of_many_queues_work_at_once_each_in_a_thread_that_it_keeps(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        # An event loop's own pool has at most 32 threads.
        names = [f"a{number}" for number in range(33)]
        all_begun, threads = threading.Barrier(len(names)), defaultdict[str, set[int]](set)
        alone: list[str] = []

        def show(message: CompactedMessage) -> None:
            threads[message.client_id].add(threading.get_ident())
            try:
                all_begun.wait(PATIENCE_S)
            except threading.BrokenBarrierError:
                alone.append(message.client_id)

        for name in names:
            await queues.append(name, entries(2))
        workers = [CompactedWorker(queues, name, show) for name in names]
        working = asyncio.gather(*(worker.run() for worker in workers))

        async def all_done() -> bool:
            return all([(await queues.inspect(name)).acked == 2 for name in names])

        await until(all_done)
        for worker in workers:
            worker.stop()
        await working
        assert alone == []
        assert {len(found) for found in threads.values()} == {1}
        assert len(set().union(*threads.values())) == len(names)

    run(valkey_url, test)


@pytest.mark.parametrize(("grace_s", "acked"), [(0.05, 0), (60.0, 1)])
def test_stopped_worker_waits_for_its_handler_for_a_time_of_grace(valkey_url: str, grace_s: float, acked: int) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(2))
        begun, may_end = asyncio.Event(), asyncio.Event()

        async def show(_: CompactedMessage) -> None:
            begun.set()
            await may_end.wait()

        worker = CompactedWorker(queues, "a", show, grace_s=grace_s)
        working = asyncio.create_task(worker.run())
        await begun.wait()
        worker.stop()
        if acked:
            may_end.set()
        await working
        view = await queues.inspect("a")
        assert (view.acked, view.session) == (acked, None)

    run(valkey_url, test)


def test_message_is_not_done_when_its_handler_only_makes_a_coroutine(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(2))
        done: list[bytes] = []

        async def show(message: CompactedMessage) -> None:
            done.append(message.value)
            if message.value == b"1":
                worker.stop()

        def begin(message: CompactedMessage) -> Any:
            return show(message)

        worker = CompactedWorker(queues, "a", begin)
        await worker.run()
        assert done == [b"0", b"1"]

    run(valkey_url, test)


class Watcher(Watching, Middleware):
    """Looks on, and names a message by its value."""

    def name_of(self, message: CompactedMessage) -> bytes | None:
        return message.value


def in_form(form: str, work: Callable[[CompactedMessage], None]) -> Callable[[CompactedMessage], Any]:
    """Return a handler as a function, as a coroutine function, or as a function that makes a coroutine."""

    async def awaited(message: CompactedMessage) -> None:
        await asyncio.sleep(0)
        work(message)

    return {"function": work, "coroutine": awaited, "maker": only_making(awaited)}[form]


def only_making(work: Callable[[CompactedMessage], Any]) -> Callable[[CompactedMessage], Any]:
    def make(message: CompactedMessage) -> Any:
        return work(message)

    return make


FORMS = ["function", "coroutine", "maker"]


@pytest.mark.parametrize("form", FORMS)
def test_those_who_look_on_hear_of_every_attempt_and_wrap_it(valkey_url: str, form: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(3))
        loop, watcher, inside = asyncio.get_running_loop(), Watcher(), list[bytes | None]()

        def show(message: CompactedMessage) -> None:
            inside.append(INSIDE.get())
            if len(inside) == 1:
                raise OSError("the display is away")
            if message.value == b"1":
                raise KeyError
            if message.value == b"2":
                loop.call_soon_threadsafe(worker.stop)

        found = again_soon(in_form(form, show))
        worker = CompactedWorker(queues, "a", found, middleware=[watcher])
        await worker.run()
        assert inside == [b"0", b"0", b"1", b"2"]
        assert watcher.told == [
            ("before", b"0"), ("OSError('the display is away')", b"0", False),
            ("before", b"0"), ("after", b"0"),
            ("before", b"1"), "ended", ("after", b"1"),
            ("before", b"2"), ("after", b"2"),
        ]  # fmt: skip
        assert (await queues.inspect("a")).acked == 3

    run(valkey_url, test)


@pytest.mark.parametrize("form", FORMS)
def test_handler_whose_time_is_up_gets_its_message_again_before_any_later_one(valkey_url: str, form: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(3))
        loop, watcher, done, begun = asyncio.get_running_loop(), Watcher(), list[bytes](), list[bytes]()

        def begin(message: CompactedMessage) -> bool:
            begun.append(message.value)
            return begun == [b"0"]

        def end(message: CompactedMessage) -> None:
            done.append(message.value)
            if message.value == b"2":
                loop.call_soon_threadsafe(worker.stop)

        def show(message: CompactedMessage) -> None:
            is_first = begin(message)
            while is_first:
                time.sleep(0.001)
            end(message)

        async def show_async(message: CompactedMessage) -> None:
            if begin(message):
                await asyncio.Event().wait()
            end(message)

        works = {"function": show, "coroutine": show_async, "maker": only_making(show_async)}
        rules = RetryRules(first_delay_ms=10, time_limit_ms=1_000)
        worker = CompactedWorker(queues, "a", Handler(work=works[form], rules=rules), middleware=[watcher])
        await worker.run()
        assert done == [b"0", b"1", b"2"]
        assert begun == [b"0", b"0", b"1", b"2"]
        said = "TimeLimitExceeded('the handler took longer than its 1 s')"
        assert [one for one in watcher.told if len(one) == 3] == [(said, b"0", False)]
        assert (await queues.inspect("a")).acked == 3

    run(valkey_url, test)


def test_what_a_handler_has_made_to_be_awaited_may_use_the_threads_of_the_loop(valkey_url: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(2))
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=1))
        done: list[bytes] = []

        async def show(message: CompactedMessage) -> None:
            await asyncio.to_thread(done.append, message.value)
            if message.value == b"1":
                worker.stop()

        worker = CompactedWorker(queues, "a", only_making(show))
        await worker.run()
        assert done == [b"0", b"1"]

    run(valkey_url, test)


@pytest.mark.parametrize("form", ["coroutine", "maker"])
def test_handler_has_ended_when_a_worker_that_is_cancelled_gives_its_queue_up(valkey_url: str, form: str) -> None:
    async def test(queues: WatchedQueues) -> None:
        await queues.append("a", entries(1))
        watcher, begun, ended = Watcher(), asyncio.Event(), asyncio.Event()

        async def show(_message: CompactedMessage) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        found = {"coroutine": show, "maker": only_making(show)}[form]
        working = asyncio.create_task(CompactedWorker(queues, "a", found, middleware=[watcher]).run())
        await begun.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert ended.is_set()
        assert INSIDE.get() is None
        assert (await queues.inspect("a")).acked == 0

    run(valkey_url, test)
