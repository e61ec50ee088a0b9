"""What publishers and readers of the event broker may rely on, blocking and asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queuekeeper import postgres
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.events import operations
from queuekeeper.events.broker import AsyncEventBroker, EventBroker
from queuekeeper.events.model import Delivery, Event, Interest, NewEvent
from queuekeeper.events.operations import Query
from tests.conformance.event_worlds import KINDS, Kind, World, either

pytestmark = pytest.mark.conformance


def event(number: int, *, topic: str = "orders") -> NewEvent:
    return NewEvent(topic=topic, payload={"number": number}, metadata={"by": "test"} if number % 2 else None)


@either
async def test_published_events_are_read_in_order_and_as_they_were(world: World) -> None:
    subscription = await world.broker.subscribe("group", Interest())
    ids = await world.broker.publish([event(number) for number in range(5)])
    await world.dispatch()
    page = await world.broker.read("group", limit=3)
    rest = await world.broker.read("group", cursor=page.next_cursor)

    read = [item.event for item in page.items + rest.items]
    assert read == [
        Event(
            id=ids[number],
            topic="orders",
            payload={"number": number},
            metadata={"by": "test"} if number % 2 else None,
        )
        for number in range(5)
    ]
    assert {item.subscription_ids for item in page.items} == {(subscription.subscription_id,)}
    assert list(ids) == sorted(ids)
    assert abs(read[0].published_at - datetime.now(UTC)) < timedelta(minutes=5)


@either
async def test_event_published_in_a_transaction_that_is_undone_is_none(world: World) -> None:
    await world.broker.subscribe("group", Interest())
    broker = await world.another_broker(autocommit=False)
    await broker.publish([event(1)])
    await broker.publish_many(iter([event(2)]))
    await broker.connection.rollback()
    await broker.publish([event(3)])
    await broker.connection.commit()
    await world.dispatch()

    page = await world.broker.read("group")
    assert [item.event.payload["number"] for item in page.items] == [3]


@either
async def test_many_events_are_published_as_a_whole_or_not_at_all(world: World) -> None:
    def broken() -> Iterator[NewEvent]:
        yield event(1)
        yield NewEvent(topic="orders", payload=object())

    await world.broker.subscribe("group", Interest())
    with pytest.raises(UsageError, match="payload is not JSON"):
        await world.broker.publish_many(broken())
    assert await world.broker.publish_many(event(number) for number in range(12_000)) == 12_000
    await world.dispatch()

    first = await world.broker.read("group", limit=10_000)
    second = await world.broker.read("group", cursor=first.next_cursor, limit=10_000)
    read = [item.event.payload["number"] for item in first.items + second.items]
    assert read == list(range(12_000))


@either
async def test_several_statements_of_one_call_are_one_transaction(world: World) -> None:
    events = [event(number) for number in range(2_500)]
    ids = await world.broker.publish(events)
    assert len(set(ids)) == 2_500
    assert list(ids) == sorted(ids)
    world.sql.execute("ALTER TABLE pgmb.events ADD CONSTRAINT known CHECK (topic = 'orders')")
    with pytest.raises(RefusedError, match='violates check constraint "known"'):
        await world.broker.publish([*events, event(1, topic="unknown")])
    assert world.rows("SELECT count(*) FROM pgmb.events") == [(2_500,)]
    with pytest.raises(UsageError, match=r"10,001 events are too many for one call.*publish_many"):
        await world.broker.publish([event(1)] * 10_001)
    assert await world.broker.publish([]) == ()


@either
async def test_event_that_is_sent_reaches_one_subscription_whatever_its_condition(world: World) -> None:
    chosen = await world.broker.subscribe("group", Interest(condition="FALSE"))
    await world.broker.subscribe("group", Interest())
    await world.broker.send(chosen.subscription_id, [event(1)])
    await world.broker.publish_many([event(2)], subscription_id=chosen.subscription_id)
    past = datetime.now(UTC) - timedelta(seconds=1)
    await world.broker.schedule(event(3), due_at=past, subscription_id=chosen.subscription_id)
    await world.dispatch()

    page = await world.broker.read("group")
    # The one for later comes when a dispatch finds it due, the others in the order in which they were published.
    assert [item.event.payload["number"] for item in page.items if item.event.payload["number"] != 3] == [1, 2]
    assert sorted((item.event.payload["number"], item.subscription_ids) for item in page.items) == [
        (number, (chosen.subscription_id,)) for number in (1, 2, 3)
    ]


@either
async def test_no_event_is_published_for_a_subscription_that_there_is_not(world: World) -> None:
    calls: tuple[Callable[[], Any], ...] = (
        lambda: world.broker.send("su-nobody", [event(1)]),
        lambda: world.broker.publish_many([event(2)], subscription_id="su-nobody"),
        lambda: world.broker.schedule(event(3), due_at=datetime.now(UTC), subscription_id="su-nobody"),
    )
    for call in calls:
        with pytest.raises(RefusedError, match=r"there is no subscription su-nobody.*subscribe again"):
            await call()
    assert world.rows("SELECT id FROM pgmb.events UNION ALL SELECT id FROM pgmb.scheduled_events") == []


@either
async def test_event_is_published_once_its_delay_is_over_and_not_before(world: World) -> None:
    await world.broker.subscribe("group", Interest())
    now = datetime.now(UTC)
    await world.broker.schedule(event(1), delay_ms=86_400_000)
    await world.broker.schedule(event(2), delay_ms=0)
    for wrong in ({}, {"due_at": now, "delay_ms": 1}):
        with pytest.raises(UsageError, match="due_at and delay_ms say when the event is due: name one of them"):
            await world.broker.schedule(event(3), **wrong)
    with pytest.raises(UsageError, match="delay_ms is -1: it must be 0 to"):
        await world.broker.schedule(event(3), delay_ms=-1)
    await world.dispatch()

    page = await world.broker.read("group")
    assert [item.event.payload["number"] for item in page.items] == [2]
    [(waits,)] = world.rows("SELECT due_at - clock_timestamp() FROM pgmb.scheduled_events")
    assert timedelta(0) < waits <= timedelta(days=1)


@either
async def test_scheduled_event_arrives_when_it_is_due_and_not_before(world: World) -> None:
    await world.broker.subscribe("group", Interest())
    now = datetime.now(UTC)
    await world.broker.schedule(event(1), due_at=now + timedelta(days=400))
    await world.broker.schedule(event(2), due_at=now - timedelta(seconds=1))
    with pytest.raises(UsageError, match="say in which time zone"):
        await world.broker.schedule(event(3), due_at=now.replace(tzinfo=None))
    await world.dispatch()

    page = await world.broker.read("group")
    assert [item.event.payload["number"] for item in page.items] == [2]
    assert world.rows("SELECT payload ->> 'number' FROM pgmb.scheduled_events") == [("1",)]


@either
async def test_equal_interests_share_a_subscription_that_lives_as_long_as_any_of_them_want(world: World) -> None:
    hour, day = timedelta(hours=1), timedelta(days=1)

    async def subscribed(interest: Interest, group_id: str = "group") -> str:
        return str((await world.broker.subscribe(group_id, interest)).subscription_id)

    first = await subscribed(Interest.topics("a", "b", expires_after=day))
    assert await subscribed(Interest.topics("b", "a", expires_after=hour)) == first
    others = {
        await subscribed(Interest.topics("a")),
        await subscribed(Interest(params={"topics": ["a", "b"]})),
        await subscribed(Interest.topics("a", "b"), "another group"),
    }
    assert len(others - {first}) == 3

    (view,) = [one for one in await world.broker.subscriptions() if one.subscription_id == first]
    assert view.expires_after_s == 86_400
    assert await world.broker.mark_active([first, "su-nobody"]) == 1
    assert await world.broker.unsubscribe([first, "su-nobody"]) == 1


@either
@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("INVALID SQL", "it is not one expression"),
        ("e.topic = (SELECT 'a')", "holds a sub-select"),
        ("TRUE; DROP TABLE pgmb.events", "it is not one expression"),
        ("e.topic = a", "text stands between single quotes"),
        ("TRUE /* all", "unterminated /\\* comment"),
    ],
)
async def test_condition_that_is_no_plain_expression_is_refused_in_words(
    world: World, condition: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        await world.broker.subscribe("group", Interest(condition=condition))
    assert await world.broker.subscriptions() == ()


EVENT = NewEvent(topic="a", payload=1)


@pytest.mark.parametrize(
    ("operation", "arguments", "words"),
    [
        ("publish", ("order",), "events is 'order': it must be a list of events"),
        ("publish", (None,), "events is nothing: it must be a list of events"),
        ("publish", (EVENT,), "events is one event, of topic 'a': put it into a list"),
        ("publish", ([EVENT, {"topic": "a"}],), "events holds a dict at place 2: each must be a NewEvent"),
        ("publish", ([EVENT] * 1_001 + [1],), "events holds a int at place 1002: each must be a NewEvent"),
        ("publish", ([NewEvent(topic="a", payload={"b": "\0"})],), "payload holds a zero character"),
        ("send", ("su1", EVENT), "events is one event, of topic 'a': put it into a list"),
        ("publish_many", ("order",), "events is 'order': it must be a list of events"),
        ("publish_many", ([EVENT, "order"],), "events holds a str at place 2: each must be a NewEvent"),
        (
            "publish_many",
            ([EVENT, NewEvent(topic="a", payload="\0")],),
            r"payload holds a zero .*\(event 2 of the call\)$",
        ),
        ("subscribe", ("group", "a"), "interest is a str: it must be an Interest"),
        ("unsubscribe", ("su1",), "subscription_ids is a str: it must be a list or tuple of texts"),
        ("mark_active", ("su1",), "subscription_ids is a str: it must be a list or tuple of texts"),
        ("find", ("pm1",), "event_ids is a str: it must be a list or tuple of texts"),
        ("replay_dead_letters", (1,), "dead_letter_ids is 1: it must be a list or tuple of integers"),
    ],
)
@either
async def test_what_is_no_event_is_refused_before_anything_is_stored(
    world: World, operation: str, arguments: tuple[Any, ...], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        await getattr(world.broker, operation)(*arguments)
    with pytest.raises(UsageError, match="due_at is a str: it must be a datetime"):
        await world.broker.schedule(EVENT, due_at="tomorrow")
    assert world.rows("SELECT count(*) FROM pgmb.events") == [(0,)]


@either
async def test_half_a_character_and_what_is_no_number_are_refused_in_words(world: World) -> None:
    with pytest.raises(UsageError, match="text holds half a character"):
        await world.broker.read("group", cursor="\ud83d")
    with pytest.raises(UsageError, match="params is not JSON"):
        await world.broker.subscribe("group", Interest(params={"a": "\ud83d"}))
    with pytest.raises(UsageError, match="params is not JSON: it holds NaN or an infinity"):
        await world.broker.subscribe("group", Interest(params={"a": float("inf")}))
    with pytest.raises(UsageError, match="metadata is not JSON: it holds NaN or an infinity"):
        await world.broker.publish_many([NewEvent(topic="a", payload=1, metadata=float("nan"))])
    assert world.rows("SELECT count(*) FROM pgmb.events") == [(0,)]


@either
async def test_percent_signs_and_quotes_in_conditions_work(world: World) -> None:
    condition = "e.topic LIKE 'device.%' AND e.payload->>'name' = 'O''Hara' AND hashtext(e.id) % 1 = 0"
    await world.broker.subscribe("group", Interest(condition=condition))
    names = ("O'Hara", "Smith")
    await world.broker.publish([NewEvent(topic="device.1", payload={"name": name}) for name in names])
    await world.dispatch()
    page = await world.broker.read("group")
    assert [item.event.payload["name"] for item in page.items] == ["O'Hara"]


@either
async def test_peek_changes_nothing_and_one_release_lets_another_read(world: World) -> None:
    await world.broker.subscribe("group", Interest())
    await world.broker.publish([event(number) for number in range(3)])
    await world.dispatch()
    other = await world.another_broker()

    peeked = await other.read("group", peek=True)
    assert world.readers() == 0
    page = await world.broker.read("group", limit=1)
    assert page.items == peeked.items[:1]
    page = await world.broker.read("group", limit=1, cursor=page.next_cursor)
    assert (await other.read("group")).items == ()
    assert (await other.read("group", peek=True)).items == peeked.items
    await world.broker.set_cursor("group", page.next_cursor, release=True)
    assert (await other.read("group")).items == peeked.items[2:]
    await other.release_group("group")
    assert world.readers() == 0


@either
async def test_cursor_from_the_future_is_refused(world: World) -> None:
    await world.broker.subscribe("group", Interest())
    with pytest.raises(UsageError, match=r"lies in the future.*take an earlier cursor"):
        await world.broker.set_cursor("group", "pmfffffffffffff000000000", release=False)
    with pytest.raises(UsageError, match="not one of this broker"):
        await world.broker.read("group", cursor="42")


@either
async def test_dead_letter_keeps_its_event_and_is_replayed_once(world: World) -> None:
    subscription = await world.broker.subscribe("group", Interest())
    ids = await world.broker.publish([event(1), event(2)])
    found = await world.broker.find(ids)
    delivery = Delivery(subscription_id=subscription.subscription_id, events=found, attempt=3)
    assert await world.broker.fail(delivery, handler="bill", reason="no such account") == 2
    await world.dispatch()

    letters = await world.broker.dead_letters()
    assert [(one.event, one.handler, one.reason, one.attempts, one.group_id) for one in letters] == [
        (one, "bill", "no such account", 3, "group") for one in found
    ]
    assert await world.broker.dead_letters(group_id="another") == ()
    assert await world.broker.dead_letters(after=letters[0].dead_letter_id) == letters[1:]
    chosen = [one.dead_letter_id for one in letters]
    assert await world.broker.replay_dead_letters(chosen) == 2
    assert await world.broker.replay_dead_letters(chosen) == 0
    assert await world.broker.dead_letters() == ()


@either
async def test_replay_answers_what_follows_an_event_in_the_order_of_dispatch(world: World) -> None:
    subscription = await world.broker.subscribe("group", Interest.topics("orders"))
    late = await world.another_broker(autocommit=False)
    (late_id,) = await late.publish([event(0)])
    ids = await world.broker.publish([event(1), event(2, topic="other"), event(3)])
    await world.dispatch()
    await late.connection.commit()
    await world.dispatch()

    async def replayed(after_event_id: str, limit: int = 10) -> list[str]:
        events = await world.broker.replay(
            "group", subscription.subscription_id, after_event_id=after_event_id, limit=limit
        )
        return [one.id for one in events]

    # The late one has the smallest id and came last.
    assert await replayed(ids[0]) == [ids[2], late_id]
    assert await replayed(ids[2]) == [late_id]
    with pytest.raises(RefusedError, match="more than 1 events follow"):
        await replayed(ids[0], limit=1)


@pytest.mark.parametrize("kind", KINDS)
def test_database_without_the_broker_is_told_so(postgres_url: str, kind: Kind) -> None:
    async def run() -> None:
        async with World(kind, postgres_url) as world:
            with pytest.raises(RefusedError, match="run `queuekeeper events install`"):
                await world.broker.publish([event(1)])

    asyncio.run(run())


def test_blocking_broker_that_is_to_read_what_it_publishes_says_that_it_cannot(broker_url: str) -> None:
    with postgres.connect(broker_url, autocommit=True) as connection:
        broker = EventBroker(connection)
        with pytest.raises(UsageError, match="read them by another broker"):
            broker.publish_many(event(len(broker.find([]))) for _ in range(2))
        assert broker.publish_many([event(1)]) == 1
        assert connection.execute("SELECT count(*) FROM pgmb.events").fetchone() == (1,)


def test_threads_may_share_a_blocking_broker(broker_url: str) -> None:
    async def run() -> None:
        async with World("blocking", broker_url) as world:
            calls = (world.broker.publish([event(number)]) for number in range(20))
            copies = (world.broker.publish_many([event(number)] * 50) for number in range(20))
            await asyncio.gather(*calls, *copies)
            assert world.rows("SELECT count(*) FROM pgmb.events") == [(1_020,)]

    asyncio.run(run())


@either
async def test_condition_that_takes_for_ever_on_one_event_is_not_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = ", ".join(f"jsonb_array_elements(e.payload->'numbers') AS n{number}" for number in range(5))

    await world.broker.publish([NewEvent(topic="orders", payload={"numbers": list(range(1_000))})])
    monkeypatch.setattr(operations, "TRIAL_TIMEOUT_S", 0.5)
    with pytest.raises(RefusedError, match=r"was not tried on the latest events within 0.5 s.*make it cheaper"):
        await world.broker.subscribe("group", Interest(condition=f"(SELECT count(*) FROM {pairs}) > 0"))

    assert world.rows("SELECT id FROM pgmb.subscriptions") == []
    monkeypatch.undo()
    broker = await world.another_broker(autocommit=False)
    await broker.connection.execute("SET statement_timeout = '77s'")
    await broker.subscribe("group", Interest())
    # The caller's transaction goes on with its own limit.
    ((own, _),) = await broker.answer(Query(name="limit_trial", parameters={"timeout_ms": 5_000}))
    assert own == "77s"


@either
async def test_statement_that_the_server_ends_says_so(world: World) -> None:
    broker = await world.another_broker()
    with postgres.connect(world.url) as blocking:
        blocking.execute("LOCK TABLE pgmb.subscriptions IN ACCESS EXCLUSIVE MODE")
        await broker.connection.execute("SET statement_timeout = 50")
        with pytest.raises(RefusedError, match="ended a statement: canceling statement due to"):
            await broker.subscriptions()


@pytest.mark.parametrize("loop_is_busy", [False, True])
def test_cancelled_task_leaves_the_connection_to_the_others(
    broker_url: str, loop_is_busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if loop_is_busy:
        monkeypatch.setattr("psycopg.waiting.MAX_BUSY_TIME", -1.0)

    async def run() -> int:
        cancelled = 0
        async with postgres.connect_async(broker_url, autocommit=True) as connection:
            broker = AsyncEventBroker(connection)
            for turn in range(40):
                task = asyncio.ensure_future(broker.publish_many([event(number) for number in range(1_000)]))
                for _ in range(turn):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                cancelled += task.cancelled()
                assert await broker.publish([event(0)])
        return cancelled

    assert asyncio.run(run()) > 3
    with postgres.connect(broker_url) as connection:
        (events,) = connection.execute("SELECT count(*) FROM pgmb.events").fetchone() or (None,)
    assert events % 1_000 == 40
