"""Interleavings of a move with its clients, drivers and mirrors, each played out step by step; no luck is involved.

Each ends with what must hold, and raises :class:`Violation` when it does not. ``python -m tests.chaos.online_scenarios
NAME`` plays one with whatever ``queuekeeper`` is found on the path, so that a changed one can be tried.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeAlias

from queuekeeper import postgres, redis_async, redis_client
from queuekeeper.clock import system_clock
from queuekeeper.errors import NotOwner, QueuekeeperError, ServerUnavailable, SessionFenced, StaleEpoch
from queuekeeper.keyspace import payload_key
from queuekeeper.migration.ledger.model import MigrationPlan
from queuekeeper.migration.online.cohorts import OnlineCohorts
from queuekeeper.migration.online.mover import SessionMover, movers
from queuekeeper.migration.online.reports import MoveReport, Outcome
from queuekeeper.sessions.model import Ack, NewMessage, SessionSave
from queuekeeper.sessions.owners import AsyncOwnerStore, Ownership
from queuekeeper.sessions.postgres_store import AsyncPostgresSessionStore
from queuekeeper.sessions.redis_store import AsyncRedisSessionStore
from queuekeeper.sessions.reports import PendingMessage, SaveReport
from queuekeeper.sessions.router import AsyncSessionRouter
from queuekeeper.sessions.snapshot import differences
from tests.chaos.online_world import PLAN_ID, save_plan
from tests.patience import PATIENCE_S

CLIENT = "meter-7"
LEASE_MS = 5_000
LIFE_S = 100
POSTGRES_VARIABLE, REDIS_VARIABLE = "SCENARIO_POSTGRES_URL", "SCENARIO_REDIS_URL"
VIOLATED = 7
"""Exit code of a scenario whose promise was broken."""


class Violation(AssertionError):
    """A promise of online migration was broken."""


def demand(kept: bool, promise: str) -> None:
    """Check a promise.

    :raises Violation: when it was not kept.
    """
    if not kept:
        raise Violation(promise)


class Hooked:
    """A store of which some methods are replaced."""

    def __init__(self, store: Any, **methods: Callable[..., Awaitable[Any]]) -> None:
        self._store = store
        self.__dict__ |= methods

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def hooked(side: Any, **hooks: Any) -> Any:
    """Return a store of a mover with other methods."""
    return replace(side, store=Hooked(side.store, **hooks))


class Stage:
    """Both stores, a router, and whoever moves sessions; one client, whose session is PostgreSQL's."""

    def __init__(self, stack: AsyncExitStack, postgres_url: str, redis_url: str) -> None:
        self._stack = stack
        self._postgres_url = postgres_url
        self._redis_url = redis_url
        self.online = OnlineCohorts(stack.enter_context(postgres.connect(postgres_url, autocommit=True)))
        self.driver = 0
        self.router: Any = None
        self.mover: SessionMover
        self.plan: MigrationPlan
        self.redis: AsyncRedisSessionStore
        self.postgres: AsyncPostgresSessionStore
        self.owners: AsyncOwnerStore

    async def open(self) -> None:
        """Arm the only cohort, and take it over."""
        with postgres.connect(self._postgres_url, autocommit=True) as connection:
            self.plan = save_plan(connection, [CLIENT], count=1)
        self.online.arm(self.plan, [0], actor="test")
        caller = await self._stack.enter_async_context(await redis_async.connect(self._redis_url))
        self.router = await self._stack.enter_async_context(
            AsyncSessionRouter(caller, self._postgres_url, patience_s=10.0)
        )
        self.redis = AsyncRedisSessionStore(caller)
        connection_of_all = await self.connection()
        self.postgres = AsyncPostgresSessionStore(connection_of_all)
        self.owners = AsyncOwnerStore(connection_of_all)
        self.mover = await self.another_mover()

    async def connection(self) -> postgres.AsyncConnection:
        """Open a connection."""
        opened = await postgres.connect_async(self._postgres_url, autocommit=True)
        self._stack.push_async_callback(opened.close)
        return opened

    async def another_mover(self, *, lease_ms: int = LEASE_MS, takes: bool = True) -> SessionMover:
        """Return a mover of a driver that takes the cohort over, or of the one that has it."""
        if takes:
            self.driver = self.online.take(PLAN_ID, [0])
        (mover,) = await self._stack.enter_async_context(
            movers(
                postgres_url=self._postgres_url,
                redis_url=self._redis_url,
                plan=self.plan,
                driver=self.driver,
                count=1,
                lease_ms=lease_ms,
            )
        )
        return mover

    # What a broker does.

    async def save(self, text: str, *, store: Any = None, **fields: Any) -> SaveReport:
        """Save a message, by the router unless another way is named; a refusal is in the report."""
        values: dict[str, Any] = {"topic": "t", "payload": text.encode(), "qos": 1, "time_ms": system_clock()}
        offset = fields.pop("offset", None)
        save = SessionSave(
            client_id=CLIENT,
            messages=(NewMessage(**(values | fields)),),
            source=None if offset is None else "partition-3",
            offset=offset,
        )
        report: SaveReport
        try:
            (report,) = await (store or self.router).save_messages([save])
        except QueuekeeperError as error:
            return SaveReport(client_id=CLIENT, error=error)
        return report

    async def saved(self, *texts: str, **fields: Any) -> None:
        """Save messages by the router; each is accepted."""
        for text in texts:
            report = await self.save(text, **fields)
            demand(report.error is None, f"a broker could not save: {report.error}")

    async def fetched(self) -> list[PendingMessage]:
        """Return what waits, by a router of its own: it knows nothing."""
        page = await self.router.fetch_pending(CLIENT)
        found: list[PendingMessage] = list(page.messages)
        return found

    async def ack(self, text: str) -> None:
        """Acknowledge a message by its content."""
        (one,) = [each for each in await self.fetched() if each.payload == text.encode()]
        report = await self.router.ack(CLIENT, [Ack(packet_id=one.packet_id, serial=one.serial)])
        demand(report.removed == 1, f"the acknowledgement of {text} met nothing")

    async def expect(self, *texts: str) -> None:
        """Check what waits for the client."""
        found = [each.payload.decode() for each in await self.fetched()]
        demand(found == list(texts), f"{found} wait for the client, and should be {list(texts)}")

    # What is said of the session.

    async def owned(self) -> Ownership:
        """Return who owns the session."""
        return (await self.owners.look_up([CLIENT]))[CLIENT]

    async def epoch(self) -> int:
        """Return the epoch of the session."""
        found = (await self.owned()).epoch
        assert found is not None
        return found

    async def moved(self, report: MoveReport) -> None:
        """Check that a move has come to its end."""
        demand(report.outcome is Outcome.MOVED, f"the client was not moved: {report}")

    async def to_redis(self) -> None:
        """Give the session to Redis."""
        await self.moved(await self.mover.cut_over(CLIENT))

    async def back(self) -> None:
        """Give it back."""
        await self.moved(await self.mover.roll_back(CLIENT))

    async def expect_equal(self) -> None:
        """Check that a session of Redis's is in PostgreSQL as it is in Redis, once the mirror has had its turn."""
        await self.mover.mirror(CLIENT)
        left = differences(await self.redis.read_snapshot(CLIENT), await self.postgres.read_snapshot(CLIENT))
        demand(left == [], f"the mirror is not equal: {[str(each) for each in left]}")


Scenario: TypeAlias = Callable[[Stage], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(play: Scenario) -> Scenario:
    """Note a scenario under its name."""
    SCENARIOS[play.__name__] = play
    return play


# Calls that are late, or meant for the other store.


@scenario
async def answer_of_an_earlier_stay_in_redis_removes_nothing(stage: Stage) -> None:
    await stage.saved("old")
    await stage.to_redis()
    epoch = await stage.epoch()
    await stage.back()
    # The packet ids begin anew, and the next message gets the one of the first.
    await stage.ack("old")
    await stage.router.set_last_packet_id(CLIENT, packet_id=65_535, expected=1)
    await stage.saved("new")
    await stage.to_redis()

    caller = await stage._stack.enter_async_context(await redis_async.connect(stage._redis_url))
    late = AsyncRedisSessionStore(caller, epoch_of=lambda _: epoch)
    with suppress(NotOwner, StaleEpoch):
        await late.ack(CLIENT, [Ack(packet_id=1)])
    await stage.expect("new")


@scenario
async def answer_of_an_earlier_stay_in_postgresql_removes_nothing(stage: Stage) -> None:
    await stage.saved("old")
    epoch = await stage.epoch()
    await stage.to_redis()
    await stage.ack("old")
    await stage.router.set_last_packet_id(CLIENT, packet_id=65_535, expected=1)
    await stage.saved("new")
    await stage.back()

    late = AsyncPostgresSessionStore(await stage.connection(), epoch_of=lambda _: epoch)
    with suppress(NotOwner, StaleEpoch):
        await late.ack(CLIENT, [Ack(packet_id=1)])
    await stage.expect("new")


@scenario
async def redis_takes_nothing_for_a_session_of_postgresql(stage: Stage) -> None:
    await stage.saved("first")
    await stage.mover.sync(CLIENT)
    report = await stage.save("strange", store=stage.redis)
    await stage.to_redis()
    await stage.expect("first", *(["strange"] if report.error is None else []))


@scenario
async def postgresql_takes_nothing_for_a_session_of_redis(stage: Stage) -> None:
    await stage.saved("first")
    await stage.to_redis()
    report = await stage.save("strange", store=stage.postgres)
    await stage.expect("first", *(["strange"] if report.error is None else []))


@scenario
async def redis_takes_nothing_while_a_session_goes_back(stage: Stage) -> None:
    await stage.saved("first")
    await stage.to_redis()
    source: Any = stage.mover._source
    store = source.store
    reports: list[SaveReport] = []

    async def applied(*args: Any, **kwargs: Any) -> Any:
        # The driver has read what Redis holds.
        reports.append(await stage.save("late", store=stage.redis))
        return await store.apply_snapshot(*args, **kwargs)

    stage.mover._source = hooked(stage.mover._source, apply_snapshot=applied)
    await stage.moved(await stage.mover._roll_back(CLIENT))
    await stage.expect("first", *(["late"] if any(each.error is None for each in reports) else []))


# What a copy must say.


@scenario
async def life_stays_what_the_publisher_gave(stage: Stage) -> None:
    time_ms = system_clock() - 50_000
    await stage.saved("half-lived", time_ms=time_ms, expiry_interval_s=LIFE_S)
    await stage.to_redis()
    with redis_client.connect(stage._redis_url) as client:
        ends_ms = client.pexpiretime(payload_key(CLIENT, 1))
    demand(ends_ms == time_ms + 1_000 * LIFE_S, f"the life ends at {ends_ms}, {ends_ms - time_ms} ms after it began")
    await stage.back()
    (one,) = await stage.fetched()
    demand(one.expires_at_ms == ends_ms, f"the life ends at {one.expires_at_ms} in PostgreSQL, not at {ends_ms}")


@scenario
async def what_was_sent_is_known_to_have_been(stage: Stage) -> None:
    await stage.saved("sent", "not sent")
    await stage.router.mark_delivered(CLIENT, serial=(await stage.fetched())[0].serial)
    await stage.to_redis()
    there = [each.redelivery for each in await stage.fetched()]
    demand(there == [True, False], f"redelivery is {there} in Redis")
    await stage.back()
    back = [each.redelivery for each in await stage.fetched()]
    demand(back == [True, False], f"redelivery is {back} in PostgreSQL")


@scenario
async def batch_that_comes_again_is_stored_once(stage: Stage) -> None:
    await stage.saved("batch", offset=41)
    await stage.to_redis()
    await stage.saved("batch", offset=41)
    await stage.expect("batch")
    await stage.saved("next", offset=42)
    await stage.back()
    await stage.saved("next", offset=42)
    await stage.expect("batch", "next")


# Damage, and copies that are late.


@scenario
async def copy_that_was_damaged_is_not_served(stage: Stage) -> None:
    await stage.saved("first")
    await stage.mover.sync(CLIENT)
    await stage.saved("second")
    store = stage.mover._target.store

    async def applied(*args: Any, **kwargs: Any) -> Any:
        done = await store.apply_snapshot(*args, **kwargs)
        # Somebody removes a key.
        with redis_client.connect(stage._redis_url) as client:
            client.delete(payload_key(CLIENT, 1))
        return done

    # Only behind the fence.
    stage.mover._target = hooked(stage.mover._target, apply_snapshot=applied)
    report = await stage.mover._cut_over(CLIENT)
    demand(report.outcome is not Outcome.LATE, f"it should not take that long: {report}")
    await stage.expect("first", "second")


@scenario
async def copy_that_was_damaged_does_not_go_back(stage: Stage) -> None:
    await stage.saved("first", "second")
    await stage.to_redis()
    source: Any = stage.mover._source
    store = source.store

    async def applied(*args: Any, **kwargs: Any) -> Any:
        done = await store.apply_snapshot(*args, **kwargs)
        await stage.mover._connection.execute("DELETE FROM device_publish_msg WHERE packet_id = 1")
        return done

    stage.mover._source = hooked(stage.mover._source, apply_snapshot=applied)
    report = await stage.mover._roll_back(CLIENT)
    demand(report.outcome is not Outcome.LATE, f"it should not take that long: {report}")
    await stage.expect("first", "second")


@scenario
async def copy_that_was_begun_before_the_fence_comes_too_late(stage: Stage) -> None:
    await stage.saved("acknowledged")
    slow = await stage.another_mover(takes=False)
    store, read, go_on = slow._target.store, asyncio.Event(), asyncio.Event()

    async def applied(*args: Any, **kwargs: Any) -> Any:
        read.set()
        await go_on.wait()
        return await store.apply_snapshot(*args, **kwargs)

    slow._target = hooked(slow._target, apply_snapshot=applied)
    syncing = asyncio.create_task(slow.sync(CLIENT))
    await read.wait()
    await stage.ack("acknowledged")
    await stage.saved("new")
    # Nothing is left to be copied behind the fence, which would tell Redis of it too.
    await stage.mover.sync(CLIENT)
    owners = stage.mover._owners

    async def flipped(*args: Any, **kwargs: Any) -> Any:
        # Both are equal. The other one's calls arrive now.
        go_on.set()
        await asyncio.wait([syncing])
        return await owners.flip(*args, **kwargs)

    stage.mover._owners = Hooked(owners, flip=flipped)  # type: ignore[assignment]
    await stage.moved(await stage.mover._cut_over(CLIENT))
    demand(syncing.done(), "the copy has not been tried")
    error = syncing.exception()
    demand(error is None or isinstance(error, QueuekeeperError), f"the copy has ended with {error!r}")
    await stage.expect("new")


# The mirror.


@scenario
async def every_change_reaches_the_mirror(stage: Stage) -> None:
    await stage.saved("first")
    await stage.saved("second", "third", qos=2)
    await stage.to_redis()
    await stage.saved("fourth", offset=1)
    await stage.expect_equal()
    await stage.ack("first")
    await stage.expect_equal()
    second, *_ = await stage.fetched()
    await stage.router.mark_delivered(CLIENT, serial=second.serial)
    await stage.expect_equal()
    await stage.router.mark_released(CLIENT, packet_id=second.packet_id, serial=second.serial)
    await stage.expect_equal()
    await stage.router.reserve_packet_ids(CLIENT, count=3)
    await stage.expect_equal()
    await stage.router.purge_session(CLIENT)
    await stage.expect_equal()
    await stage.saved("anew")
    await stage.expect_equal()


@scenario
async def change_while_the_mirror_writes_is_not_forgotten(stage: Stage) -> None:
    await stage.to_redis()
    await stage.saved("first")
    store = stage.mover._target.store

    async def trimmed(*args: Any, **kwargs: Any) -> Any:
        # PostgreSQL has what was noted. More comes before the note goes.
        await stage.saved("meanwhile")
        stage.mover._target = replace(stage.mover._target, store=store)
        return await store.trim_outbox(*args, **kwargs)

    stage.mover._target = hooked(stage.mover._target, trim_outbox=trimmed)
    await stage.mover.mirror(CLIENT)
    await stage.expect_equal()


@scenario
async def older_mirror_does_not_undo_a_newer_one(stage: Stage) -> None:
    await stage.to_redis()
    await stage.saved("acknowledged")
    slow = await stage.another_mover(takes=False)
    store = slow._target.store
    other: list[asyncio.Task[bool]] = []

    async def read(*args: Any, **kwargs: Any) -> Any:
        found = await store.read_snapshot(*args, **kwargs)
        # It stands still with what it has read, and another mirror comes.
        await stage.ack("acknowledged")
        await stage.saved("new")
        other.append(asyncio.create_task(stage.mover.mirror(CLIENT)))
        await asyncio.wait(other, timeout=0.3)
        return found

    slow._target = hooked(slow._target, read_snapshot=read)
    await slow.mirror(CLIENT)
    await other[0]
    await stage.expect_equal()


# Fences and drivers.


@scenario
async def fence_waits_for_a_writer_in_progress(stage: Stage) -> None:
    await stage.saved("first")
    connection = await stage.connection()
    async with connection.transaction():
        report = await stage.save("in progress", store=AsyncPostgresSessionStore(connection))
        moving = asyncio.create_task(stage.mover._cut_over(CLIENT))
        await asyncio.wait([moving], timeout=0.3)
    await moving
    demand(report.error is None, f"the writer was there first: {report.error}")
    await stage.expect("first", "in progress")


@scenario
async def fence_ends_by_itself_and_its_driver_changes_nothing_then(stage: Stage) -> None:
    await stage.saved("first")
    slow = await stage.another_mover(lease_ms=100)
    await slow.sync(CLIENT)
    owners = slow._owners

    async def flipped(*args: Any, **kwargs: Any) -> Any:
        # Both are equal. The driver stands still, and the client goes on: it would wait for ever if the fence stayed.
        await asyncio.sleep(0.15)
        await stage.saved("behind the fence")
        return await owners.flip(*args, **kwargs)

    slow._owners = Hooked(owners, flip=flipped)  # type: ignore[assignment]
    report = await slow._cut_over(CLIENT)
    await stage.expect("first", "behind the fence")
    demand(report.outcome is Outcome.LATE, f"the fence had ended: {report}")


@scenario
async def nobody_changes_an_owner_behind_the_end_of_the_fence(stage: Stage) -> None:
    await stage.saved("first")
    slow = await stage.another_mover(lease_ms=50)
    await slow.sync(CLIENT)
    owners = slow._owners

    async def flipped(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0.1)
        return await owners.flip(*args, **kwargs)

    slow._owners = Hooked(owners, flip=flipped)  # type: ignore[assignment]
    report = await slow._cut_over(CLIENT)
    demand(report.outcome is Outcome.LATE, f"the fence had ended: {report}")
    demand((await stage.owned()).owner == "postgres", "the owner has changed")


@scenario
async def driver_that_was_replaced_moves_nobody(stage: Stage) -> None:
    await stage.saved("first")
    older = stage.mover
    owners = older._owners

    async def flipped(*args: Any, **kwargs: Any) -> Any:
        stage.online.take(PLAN_ID, [0])
        return await owners.flip(*args, **kwargs)

    older._owners = Hooked(owners, flip=flipped)  # type: ignore[assignment]
    try:
        report = await older._cut_over(CLIENT)
    except QueuekeeperError:
        pass
    else:
        demand(report.outcome is not Outcome.MOVED, f"its cohort was taken over before: {report}")
    older._owners = owners
    fenced = await older._owners.fence(CLIENT, owner="postgres", driver=older._driver, lease_ms=LEASE_MS)
    demand(fenced is None, f"it has fenced a client: {fenced}")


@scenario
async def caller_tells_redis_what_a_driver_did_not(stage: Stage) -> None:
    await stage.saved("first")
    store = stage.mover._target.store
    told: list[str] = []

    async def set_owner(*args: Any, **kwargs: Any) -> Any:
        told.append(kwargs["owner"])
        if kwargs["owner"] == "redis":
            raise ServerUnavailable("the driver was killed")
        return await store.set_owner(*args, **kwargs)

    stage.mover._target = hooked(stage.mover._target, set_owner=set_owner)
    with suppress(ServerUnavailable):
        await stage.mover._cut_over(CLIENT)
    demand(told == ["postgres", "redis"], f"Redis was told {told}")
    await stage.saved("second")
    await stage.expect("first", "second")
    await stage.expect_equal()


@scenario
async def copy_follows_a_rollback_whose_driver_was_killed(stage: Stage) -> None:
    await stage.saved("first")
    await stage.to_redis()
    store = stage.mover._target.store

    async def set_owner(*args: Any, **kwargs: Any) -> Any:
        if kwargs["owner"] == "postgres":
            raise ServerUnavailable("the driver was killed")
        return await store.set_owner(*args, **kwargs)

    stage.mover._target = hooked(stage.mover._target, set_owner=set_owner)
    with suppress(ServerUnavailable):
        await stage.mover._roll_back(CLIENT)
    demand((await stage.owned()).owner == "postgres", "it was not given back")
    await stage.saved("second")
    stage.mover._target = replace(stage.mover._target, store=store)
    try:
        await stage.to_redis()
    except (NotOwner, SessionFenced) as error:
        raise Violation(f"nobody can copy it again: {error}") from error
    await stage.expect("first", "second")


@asynccontextmanager
async def stage_of(postgres_url: str, redis_url: str) -> AsyncIterator[Stage]:
    """Open the stage on a database with all tables, and on an empty Redis."""
    async with AsyncExitStack() as stack:
        stage = Stage(stack, postgres_url, redis_url)
        await stage.open()
        yield stage


async def play(name: str, *, postgres_url: str, redis_url: str) -> None:
    """Play one scenario.

    :raises Violation: when its promise is broken.
    """
    async with asyncio.timeout(PATIENCE_S), stage_of(postgres_url, redis_url) as stage:
        await SCENARIOS[name](stage)


def main(words: Sequence[str]) -> int:
    """Play the scenario that is named, on the servers that the environment names."""
    try:
        asyncio.run(play(words[0], postgres_url=os.environ[POSTGRES_VARIABLE], redis_url=os.environ[REDIS_VARIABLE]))
    except Violation as violation:
        print(f"violated: {violation}")
        return VIOLATED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
