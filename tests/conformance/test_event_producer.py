"""What enqueue and flush promise: order, bounds, and that every failure reaches the caller; blocking and asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from queuekeeper import postgres
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.events.broker import AsyncEventBroker, EventBroker
from queuekeeper.events.model import NewEvent
from queuekeeper.events.producer import AsyncEventProducer, EventProducer, NotPublished
from tests.conformance.event_worlds import KINDS, Kind, Threaded, World, until

pytestmark = pytest.mark.conformance

REFUSE = "ALTER TABLE pgmb.events ADD CONSTRAINT known CHECK (topic <> 'bad')"
BLOCK = "LOCK TABLE pgmb.events IN ACCESS EXCLUSIVE MODE"


@asynccontextmanager
async def producing(world: World, **options: Any) -> AsyncIterator[Any]:
    """Yield a producer of the world's kind, whose methods are coroutines; its connection is closed at the end."""
    if world.kind == "blocking":
        with postgres.connect(world.url, autocommit=True) as connection:
            yield Threaded(EventProducer(EventBroker(connection), **options))
    else:
        async with await postgres.connect_async(world.url, autocommit=True) as opened:
            yield AsyncEventProducer(AsyncEventBroker(opened), **options)


def event(number: int, *, topic: str = "orders") -> NewEvent:
    return NewEvent(topic=topic, payload=number, metadata={"by": "test"} if number % 2 else None)


def stored(world: World) -> list[Any]:
    return [payload for (payload,) in world.rows("SELECT payload FROM pgmb.events ORDER BY id")]


def transactions(world: World) -> int:
    ((number,),) = world.rows("SELECT count(DISTINCT transaction_id) FROM pgmb.events")
    return int(number)


def waits(world: World) -> bool:
    return bool(world.rows("SELECT FROM pg_locks WHERE NOT granted AND relation = 'pgmb.events'::regclass"))


def scenario(work: Callable[[World], Awaitable[None]], kind: Kind, url: str) -> None:
    async def run() -> None:
        async with World(kind, url) as world:
            await work(world)

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_enqueued_is_stored_in_order_and_in_few_transactions(broker_url: str, kind: Kind) -> None:
    async def work(world: World) -> None:
        async with producing(world, max_batch=100) as producer:
            with world.sql.transaction():
                world.sql.execute(BLOCK)
                futures = [await producer.enqueue(event(0))]
                async with World(kind, broker_url) as other:
                    await until(lambda: waits(other), what="the first batch under way")
                futures += [await producer.enqueue(event(number)) for number in range(1, 1_001)]
            await producer.flush()

            assert stored(world) == list(range(1_001))
            assert transactions(world) == 11
            ids = [future.result() for future in futures]
            assert ids == [event_id for (event_id,) in world.rows("SELECT id FROM pgmb.events ORDER BY id")]
            await producer.close()

    scenario(work, kind, broker_url)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_lingers_until_it_is_full_or_flushed(broker_url: str, kind: Kind) -> None:
    async def work(world: World) -> None:
        async with producing(world, max_batch=5, linger_s=3_600) as producer:
            for number in range(7):
                last = await producer.enqueue(event(number))
            await until(lambda: len(stored(world)) == 5, what="a full batch")
            assert not last.done()
            await producer.flush()
            assert stored(world) == list(range(7))
            await producer.enqueue(event(7))
            await producer.close()
            assert stored(world) == list(range(8))
            assert transactions(world) == 3
            with pytest.raises(RefusedError, match="the producer is closed"):
                await producer.enqueue(event(8))
        async with producing(world, linger_s=0.01) as producer:
            await producer.enqueue(event(8))
            await until(lambda: len(stored(world)) == 9, what="a batch whose time is over")
            await producer.close()

    scenario(work, kind, broker_url)


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_that_is_refused_takes_no_other_along_and_is_named(broker_url: str, kind: Kind) -> None:
    async def work(world: World) -> None:
        world.sql.execute(REFUSE)
        async with producing(world, linger_s=3_600) as producer:
            events = [event(number, topic="bad" if number in (2, 5) else "orders") for number in range(8)]
            futures = [await producer.enqueue(one) for one in events]
            with pytest.raises(NotPublished, match=r"^2 events enqueued and not published: .*\"known\"") as error:
                await producer.flush()

            assert error.value.events == (events[2], events[5])
            assert stored(world) == [0, 1, 3, 4, 6, 7]
            with pytest.raises(RefusedError, match="known"):
                futures[2].result()
            await producer.flush()
            await producer.close()

    scenario(work, kind, broker_url)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_lost_with_a_connection_is_told_at_the_end_and_while_it_is_too_much(
    broker_url: str, kind: Kind
) -> None:
    async def work(world: World) -> None:
        async with producing(world, max_pending=3) as producer:
            await producer.enqueue(event(0))
            await producer.flush()
            world.sql.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            failed = [event(number) for number in range(1, 4)]
            for one in failed:
                future = await producer.enqueue(one)
                await until(future.done, what="a failure")
            with pytest.raises(NotPublished, match=r"3 events .* broke the connection") as error:
                await producer.enqueue(event(4))
            assert error.value.events == tuple(failed)
            await producer.enqueue(event(5))
            with pytest.raises(NotPublished) as error:
                await producer.close()
            assert error.value.events == (event(5),)
            assert stored(world) == [0]

    scenario(work, kind, broker_url)


@pytest.mark.parametrize("kind", KINDS)
def test_who_enqueues_more_than_there_is_room_for_waits(broker_url: str, kind: Kind) -> None:
    async def work(world: World) -> None:
        async with producing(world, max_pending=2) as producer, World(kind, broker_url) as other:
            with world.sql.transaction():
                world.sql.execute(BLOCK)
                await producer.enqueue(event(0))
                await producer.enqueue(event(1))
                third = asyncio.ensure_future(producer.enqueue(event(2)))
                await until(lambda: waits(other), what="a batch under way")
                await asyncio.sleep(0)
                assert not third.done()
            await third
            await producer.close()
            assert stored(world) == [0, 1, 2]

    scenario(work, kind, broker_url)


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_that_was_taken_back_is_not_stored(broker_url: str, kind: Kind) -> None:
    async def work(world: World) -> None:
        async with producing(world, linger_s=3_600) as producer:
            await producer.enqueue(event(0))
            future = await producer.enqueue(event(1))
            assert future.cancel()
            await producer.close()
            assert stored(world) == [0]

    scenario(work, kind, broker_url)


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_sent_is_refused_when_it_is_enqueued(broker_url: str, kind: Kind) -> None:
    async def work(world: World) -> None:
        async with producing(world) as producer:
            for wrong, words in (
                ("order", "events holds a str at place 1"),
                (NewEvent(topic="a", payload="\0"), "payload holds a zero character"),
                (NewEvent(topic="a", payload=1, metadata=float("nan")), "metadata is not JSON"),
            ):
                with pytest.raises(UsageError, match=words):
                    await producer.enqueue(wrong)
            await producer.close()
            assert stored(world) == []
        for options, words in (
            ({"max_batch": 10_001}, "max_batch is 10001: it must be 1 to 10000"),
            ({"max_pending": 0}, "max_pending is 0"),
            ({"linger_s": -1}, "linger_s is -1"),
        ):
            with pytest.raises(UsageError, match=words):
                async with producing(world, **options):
                    pass

    scenario(work, kind, broker_url)
