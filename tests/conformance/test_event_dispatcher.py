"""What the dispatcher service promises, blocking and asyncio."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import pytest

from queuekeeper import postgres
from queuekeeper.errors import UsageError
from queuekeeper.events.dispatcher import STANDBY_PAUSE_S, DispatchRules
from queuekeeper.events.model import Interest, NewEvent, StatementTimeout
from queuekeeper.events.operations import Query
from queuekeeper.events.service import AsyncEventService, EventService, Open
from queuekeeper.service.steps import Happened, Wait
from tests.conformance.event_worlds import TRANSIENT, World, allow, either, refuse, until
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.conformance


def dispatched(world: World) -> int:
    return int(world.rows("SELECT coalesce(sum(event_count), 0) FROM pgmb.dispatches")[0][0])


@either
async def test_two_dispatchers_dispatch_every_event_once(world: World) -> None:
    await world.broker.subscribe("group", Interest())
    services = [world.dispatcher() for _ in range(2)]
    running = [asyncio.create_task(world.run(service)) for service in services]
    for number in range(30):
        await world.broker.publish([NewEvent(topic="orders", payload=number)])
    await until(lambda: dispatched(world) >= 30, what="all events")
    services[0].stop()
    await running[0]
    await world.broker.publish([NewEvent(topic="orders", payload=30)])
    await until(lambda: dispatched(world) >= 31, what="the event after one has left")
    services[1].stop()
    reports = [await one for one in running]

    assert dispatched(world) == 31
    assert sum(report.matches for report in reports) == 31
    page = await world.broker.read("group")
    assert [item.event.payload for item in page.items] == list(range(31))


@either
async def test_dispatcher_is_woken_and_does_not_poll_for_nothing(world: World) -> None:
    await world.broker.subscribe("group", Interest())
    service = world.dispatcher(poll_interval_s=3_600)
    running = asyncio.create_task(world.run(service))
    for number in range(3):
        await world.broker.publish([NewEvent(topic="orders", payload=number)])
        await until(lambda: dispatched(world) > number, what="the event")  # noqa: B023
    await asyncio.sleep(0.5)
    service.stop()
    report = await running
    assert report.matches == 3
    # One at the start, and two for each event: one that finds it, one that finds no more.
    assert report.polls <= 7


@either
async def test_dispatcher_shows_that_it_lives_though_nothing_happens(world: World) -> None:
    async with world.dispatching(poll_interval_s=0.1):

        def polled_at() -> Any:
            return world.rows("SELECT polled_at FROM pgmb.dispatch_state")[0][0]

        before = polled_at()
        await until(lambda: polled_at() > before, what="a heartbeat")


@either
async def test_more_events_than_one_chunk_are_dispatched_without_a_pause(world: World) -> None:
    world.sql.execute("UPDATE pgmb.config SET value = '100' WHERE id = 'poll_chunk_size'")
    await world.broker.subscribe("group", Interest(condition="e.payload = 'null'"))
    await world.broker.publish_many(NewEvent(topic="orders", payload=number) for number in range(1_050))
    report = await world.dispatch()
    assert dispatched(world) == 1_050
    assert (report.matches, report.quarantined) == (0, ())


@either
async def test_condition_that_is_too_slow_is_quarantined_and_the_others_get_their_events(world: World) -> None:
    plain = await world.broker.subscribe("plain", Interest())
    # Cheap on what there is when it is stored. Then come long texts: each costs every subscription time, and
    # all cost minutes, so that on a busy machine no poll ends before the condition is found either.
    condition = " OR ".join(f"md5(e.payload->>'text' || '{at}') < s.params->>'digest'" for at in range(50))
    slow = [
        await world.broker.subscribe("slow", Interest(condition=condition, params={"digest": f" {number}"}))
        for number in range(100)
    ]
    text = "x" * 300_000
    await world.broker.publish([NewEvent(topic="orders", payload={"text": text}) for _ in range(60)])
    report = await world.run(world.dispatcher(once=True, statement_timeout_s=1.0, condition_timeout_s=0.5))

    assert len(report.quarantined) == 100
    assert {one.subscription_id for one in slow} == set(report.quarantined)
    views = {one.subscription_id: one for one in await world.broker.subscriptions()}
    assert views[plain.subscription_id].quarantine_reason is None
    reason = views[slow[0].subscription_id].quarantine_reason
    assert reason is not None
    assert re.fullmatch(
        "it takes too long for the latest events, 3 times in a row: PostgreSQL at .* ended a statement: "
        "canceling statement due to statement timeout",
        reason,
    )
    assert len((await world.broker.read("plain", limit=100)).items) == 60


@either
@pytest.mark.parametrize("table", ["events", "subscriptions"])
async def test_lock_that_somebody_holds_is_no_condition_s_fault(
    world: World, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    for group, condition in (("plain", "TRUE"), ("choosy", "e.topic = 'orders'")):
        await world.broker.subscribe(group, Interest(condition=condition))
    await world.broker.publish([NewEvent(topic="orders", payload=1)])
    service = world.dispatcher(statement_timeout_s=0.5, condition_timeout_s=0.2)
    with postgres.connect(world.url) as holder:
        holder.execute(f"LOCK TABLE pgmb.{table} IN ACCESS EXCLUSIVE MODE")
        running = asyncio.create_task(world.run(service))
        await until(lambda: caplog.text.count("no condition is quarantined") >= 2, what="two searches")
    await until(lambda: dispatched(world) >= 1, what="the event, once the lock is free")
    service.stop()
    report = await running

    assert (report.matches, report.quarantined) == (2, ())
    assert [one.quarantined_at for one in await world.broker.subscriptions()] == [None, None]


@either
async def test_dispatcher_goes_on_after_what_the_server_refuses_for_now(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.broker.subscribe("group", Interest())
    async with world.dispatching(poll_interval_s=0.05):
        for number, (state, words) in enumerate(TRANSIENT.items()):
            refuse(world, "pgmb.dispatches", state)
            await world.broker.publish([NewEvent(topic="orders", payload=number)])
            await until(lambda: words in caplog.text, what=words)  # noqa: B023
            assert dispatched(world) == number
            allow(world, "pgmb.dispatches")
            await until(lambda: dispatched(world) > number, what="the event")  # noqa: B023
    assert "the next try follows in 0.2 s" in caplog.text, "the pauses grow"


@either
async def test_dispatcher_beside_one_that_works_waits_for_it(world: World) -> None:
    world.sql.execute("UPDATE pgmb.config SET value = '10' WHERE id = 'poll_chunk_size'")
    await world.broker.subscribe("group", Interest())
    await world.broker.publish_many(NewEvent(topic="orders", payload=number) for number in range(30))
    await world.broker.poll()
    service = world.dispatcher()
    began_s = time.monotonic()
    with postgres.connect(world.url) as working:
        working.execute("SELECT pgmb.poll_for_events()")
        running = asyncio.create_task(world.run(service))
        await asyncio.sleep(2.5)
    await until(lambda: dispatched(world) >= 30, what="all events")
    service.stop()
    report = await running
    # One a second while it waits, and a few once it is alone; without a pause it would be hundreds.
    assert report.polls < 15 + (time.monotonic() - began_s) / STANDBY_PAUSE_S


@either
async def test_dispatcher_whose_connection_is_ended_goes_on(world: World) -> None:
    await world.broker.subscribe("group", Interest())
    async with world.dispatching():
        for number in range(3):
            await world.broker.publish([NewEvent(topic="orders", payload=number)])
            await until(lambda: dispatched(world) > number, what="the event")  # noqa: B023
            with postgres.connect(world.url, autocommit=True) as other:
                other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid() AND pid <> ALL(%s)",
                    [[world.sql.info.backend_pid, world.broker.connection_pid]],
                )
    assert dispatched(world) == 3


@either
async def test_dispatcher_stops_at_once(world: World) -> None:
    service = world.dispatcher(poll_interval_s=3_600)
    running = asyncio.create_task(world.run(service))
    await asyncio.sleep(0.5)
    service.stop()
    # Sooner than by its own next look.
    await asyncio.wait_for(running, PATIENCE_S)


def test_wait_that_is_not_notifiable_leaves_the_notification_to_the_next(broker_url: str) -> None:
    deaf, hearing = Wait(timeout_s=0.1, notifiable=False), Wait(timeout_s=PATIENCE_S)
    listen, notify = Query(name="listen_events"), "SELECT pg_notify('pgmb_events', '')"

    def check(before: Happened, after: Happened, told: Happened, waited_s: float) -> None:
        assert (before, after) == (Happened(told=(), notified=False), Happened(told=(), notified=True))
        assert waited_s < PATIENCE_S
        assert told == Happened(told=("word",), notified=False)

    async def run_async(sender: postgres.Connection) -> None:
        service = AsyncEventService[None](broker_url, noun="service")
        try:
            await service.answer(Open())
            await service.answer(listen)
            sender.execute(notify)
            before, began_s = await service.answer(deaf), time.monotonic()
            after, waited_s = await service.answer(hearing), time.monotonic() - began_s
            service.tell("word")
            check(before, after, await service.answer(Wait(timeout_s=PATIENCE_S, notifiable=False)), waited_s)
        finally:
            await service.close()

    with postgres.connect(broker_url, autocommit=True) as sender:
        service = EventService[None](broker_url, noun="service", threads=1)
        try:
            service.answer(Open())
            service.answer(listen)
            sender.execute(notify)
            before, began_s = service.answer(deaf), time.monotonic()
            after, waited_s = service.answer(hearing), time.monotonic() - began_s
            service.tell("word")
            check(before, after, service.answer(Wait(timeout_s=PATIENCE_S, notifiable=False)), waited_s)
        finally:
            service.close(patient=True)
        asyncio.run(run_async(sender))


@either
async def test_condition_is_tried_for_as_long_as_the_rules_give_it(world: World) -> None:
    # A trial of twenty events by this condition takes more than a millisecond on any machine.
    condition = " AND ".join(f"md5(e.payload->>'text' || '{at}') <> s.params->>'digest'" for at in range(20))
    await world.broker.subscribe("group", Interest(condition=condition, params={"digest": ""}))
    text = "x" * 10_000
    await world.broker.publish([NewEvent(topic="orders", payload={"text": text}) for _ in range(20)])

    with pytest.raises(StatementTimeout, match=r"was not tried in time: \d+ events took \d+ ms, and 1 ms are the most"):
        await world.broker.check_condition(condition, max_duration_s=0.001)
    assert await world.broker.check_condition(condition, max_duration_s=PATIENCE_S) is None
    with pytest.raises(UsageError, match="max_duration_s is 0: it must be a number of seconds"):
        await world.broker.check_condition(condition, max_duration_s=0)


def test_rules_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match=r"poll_interval_s is 0: it must be a number of seconds, 0\.001 to 86400"):
        DispatchRules(poll_interval_s=0)
    with pytest.raises(UsageError, match="one condition cannot have more time than a poll, which has 2"):
        DispatchRules(statement_timeout_s=2, condition_timeout_s=3)
