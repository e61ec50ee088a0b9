"""Brokers, devices and drivers of an online migration in one simulated loop, and what must hold whatever the seed.

``python -m tests.chaos.simulated_sessions SEED`` plays a seed on the servers that the environment names.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
import psycopg.waiting
import redis

from queuekeeper import postgres, redis_async
from queuekeeper.errors import NotOwner, QueuekeeperError, ServerUnavailable, SessionFenced, StaleEpoch
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.ledger.model import MigrationPlan
from queuekeeper.migration.online.cohorts import OnlineCohorts
from queuekeeper.migration.online.mover import SessionMover, movers
from queuekeeper.migration.online.sides import RedisSide
from queuekeeper.postgres import Connection
from queuekeeper.sessions.model import Ack, NewMessage, SessionSave
from queuekeeper.sessions.reports import PendingMessage
from queuekeeper.sessions.router import AsyncSessionRouter
from queuekeeper.sessions.router.routing import RouterOperations
from tests.chaos.online_scenarios import POSTGRES_VARIABLE, REDIS_VARIABLE, VIOLATED, Violation
from tests.chaos.online_world import PLAN_ID, prepare, save_plan
from tests.chaos.simulated_loop import BEGINS_MS, CLOCK, Network, SimulatedLoop, use_simulated_waits

CLIENTS = ("meter-7", "{brace", "gate")
LEASE_MS = 300
BUSY_S = 6.0
_PATIENCE_S = 300.0
_MOVERS = 2
_PAGE = 5
_REPEATED = (ServerUnavailable, SessionFenced, NotOwner, StaleEpoch)


@dataclass
class Session:
    """The books of one client, of which each number is one message.

    :ivar offered: messages that were offered to a store, whether or not it has answered.
    :ivar saved: messages whose save was answered.
    :ivar sent: messages that were noted as delivered, and then given to the device.
    :ivar acking: messages that the device has acknowledged; the store may have forgotten them.
    """

    client_id: str
    offered: int = 0
    saved: int = 0
    offset: int = 0
    sent: set[int] = field(default_factory=set)
    acking: set[int] = field(default_factory=set)


class Simulation:
    """One seed's history.

    :param network: between the clients and the servers.
    :param plan: an armed plan of one cohort.
    """

    def __init__(
        self, network: Network, dice: random.Random, *, plan: MigrationPlan, postgres_url: str, redis_url: str
    ) -> None:
        self.sessions = [Session(client_id) for client_id in CLIENTS]
        self._network, self._dice, self._plan = network, dice, plan
        self._postgres_url, self._redis_url = postgres_url, redis_url
        self._busy = True

    async def run(self) -> None:
        """Let all work, and things go wrong, for a while; then look at what is there.

        :raises Violation: when a promise was broken.
        """
        async with asyncio.TaskGroup() as group:
            mischief = group.create_task(self._go_wrong())
            drivers = group.create_task(self._drive())
            works = []
            for session in self.sessions:
                works += [group.create_task(self._publish(session)), group.create_task(self._deliver(session))]
            await asyncio.sleep(BUSY_S)
            self._busy = False
            mischief.cancel()
            await asyncio.wait(works)
            drivers.cancel()
        await self._settle()

    # Brokers.

    @asynccontextmanager
    async def _router(self) -> AsyncIterator[AsyncSessionRouter]:
        async with AsyncExitStack() as stack:
            caller = await self._again("connect", "", lambda: _opened(redis_async.connect(self._redis_url)))
            stack.push_async_callback(caller.close)
            router = await stack.enter_async_context(AsyncSessionRouter(caller, self._postgres_url))
            router.operations = RouterOperations(clock=asyncio.get_running_loop().time)
            yield router

    async def _again(self, call: str, client_id: str, attempt: Callable[[], Awaitable[Any]]) -> Any:
        """Repeat what was not answered, as a broker would."""
        ends_s = asyncio.get_running_loop().time() + _PATIENCE_S
        while True:
            try:
                return await attempt()
            except _REPEATED as error:
                self._network.note(f"{call} {client_id}: {type(error).__name__}")
                if asyncio.get_running_loop().time() > ends_s:
                    raise Violation(f"{call} {client_id} was refused for {_PATIENCE_S:g} s: {error}") from error
            await asyncio.sleep(0.05)

    async def _publish(self, session: Session) -> None:
        async with self._router() as router:
            while self._busy:
                await asyncio.sleep(self._dice.random() * 0.4)
                await self._save(router, session, self._dice.randint(1, 4))

    async def _save(self, router: AsyncSessionRouter, session: Session, count: int) -> None:
        numbers = range(session.offered, session.offered + count)
        save = SessionSave(
            client_id=session.client_id,
            messages=tuple(
                NewMessage(topic="t", payload=b"%d" % number, qos=1, time_ms=self._network.now_ms())
                for number in numbers
            ),
            source="partition-1",
            offset=session.offset,
        )
        session.offered, session.offset = numbers.stop, session.offset + 1

        async def attempt() -> None:
            (report,) = await router.save_messages([save])
            if report.error is not None:
                raise report.error

        await self._again("save", session.client_id, attempt)
        session.saved = numbers.stop
        self._network.note(f"saved {session.client_id} {numbers.start} to {numbers.stop - 1}")

    async def _read(self, router: AsyncSessionRouter, session: Session) -> list[PendingMessage]:
        """Read all that waits, and hold it to the books."""
        saved = session.saved

        async def pages() -> list[PendingMessage]:
            found: list[PendingMessage] = []
            page = await router.fetch_pending(session.client_id, limit=_PAGE)
            found += page.messages
            while page.more:
                page = await router.fetch_pending(
                    session.client_id, limit=_PAGE, after_serial=page.after_serial, backlog_serial=page.backlog_serial
                )
                found += page.messages
            return found

        found = await self._again("fetch", session.client_id, pages)
        numbers = [int(one.payload) for one in found]
        if numbers != sorted(set(numbers)):
            raise Violation(f"{session.client_id} gets {numbers}, which is not their order")
        if missing := set(range(saved)) - session.acking - set(numbers):
            raise Violation(f"{session.client_id} lacks {sorted(missing)}")
        if forgotten := session.acking & set(numbers):
            raise Violation(f"{session.client_id} gets {sorted(forgotten)} again, which it has acknowledged")
        bare = [
            number for number, one in zip(numbers, found, strict=True) if number in session.sent and not one.redelivery
        ]
        if bare:
            raise Violation(f"{session.client_id} gets {bare} a second time without the DUP flag")
        return list(found)

    async def _deliver(self, session: Session) -> None:
        async with AsyncExitStack() as stack:
            router = await stack.enter_async_context(self._router())
            while self._busy:
                await asyncio.sleep(self._dice.random() * 0.5)
                if self._dice.random() < 0.1:
                    # Its device has come to another broker, which knows nothing.
                    await stack.aclose()
                    router = await stack.enter_async_context(self._router())
                await self._receive(router, session)

    async def _receive(self, router: AsyncSessionRouter, session: Session) -> None:
        """Give a device what waits for it, of which it acknowledges the first few."""
        found = await self._read(router, session)
        if not found:
            return
        serial = found[-1].serial
        await self._again("mark", session.client_id, lambda: router.mark_delivered(session.client_id, serial=serial))
        session.sent |= {int(one.payload) for one in found}
        done = found[: self._dice.randint(0, len(found))]
        acks = [Ack(packet_id=one.packet_id, serial=one.serial) for one in done]
        await self._again("ack", session.client_id, lambda: router.ack(session.client_id, acks))
        session.acking |= {int(one.payload) for one in done}
        self._network.note(f"sent {session.client_id} {len(found)}, of which {len(done)} are acknowledged")

    # Drivers.

    async def _drive(self) -> None:
        """Be one driver after another: one dies, and the next takes over, as the same one or as another."""
        number = await self._take()
        while True:
            crew = asyncio.create_task(self._work(number))
            try:
                await asyncio.wait([crew], timeout=0.5 + self._dice.random() * 5)
            finally:
                crew.cancel()
                await asyncio.wait([crew])
            self._network.note("the driver ends")
            if not crew.cancelled() and (error := crew.exception()) is not None and not _is_ours(error):
                raise error
            if self._dice.random() < 0.5:
                number = await self._take()

    async def _take(self) -> int:
        """Take the cohort from the driver that has it."""
        while True:
            with postgres.connect(self._postgres_url, autocommit=True) as connection:
                # Nobody in the simulation goes on while it waits.
                connection.execute("SET lock_timeout = '50ms'")
                with suppress(psycopg.errors.LockNotAvailable, ServerUnavailable):
                    number = OnlineCohorts(connection).take(PLAN_ID, [0])
                    self._network.note("another driver takes the cohort")
                    return number
            await asyncio.sleep(0.05)

    @asynccontextmanager
    async def _movers(self, number: int, count: int) -> AsyncIterator[Sequence[SessionMover]]:
        async with movers(
            postgres_url=self._postgres_url,
            redis_url=self._redis_url,
            plan=self._plan,
            driver=number,
            count=count,
            lease_ms=LEASE_MS,
            clock=self._network.now_ms,
        ) as opened:
            yield opened

    async def _work(self, number: int) -> None:
        taken: set[str] = set()
        async with self._movers(number, _MOVERS) as crew, asyncio.TaskGroup() as group:
            for mover in crew:
                group.create_task(self._move(mover, taken))

    async def _move(self, mover: SessionMover, taken: set[str]) -> None:
        """Move one client after another, no two movers the same one at once."""
        while True:
            await asyncio.sleep(self._dice.random() * 0.3)
            free = [each for each in CLIENTS if each not in taken]
            client_id = self._dice.choice(free)
            step = self._dice.choice(("sync", "compare", "cut_over", "roll_back", "mirror", "mirror"))
            taken.add(client_id)
            try:
                report = await getattr(mover, step)(client_id)
                self._network.note(f"{step} {client_id}: {getattr(report, 'outcome', '')}")
            except QueuekeeperError as error:
                self._network.note(f"{step} {client_id}: {type(error).__name__}")
                if isinstance(error, ServerUnavailable):
                    mover = await mover.another()
            finally:
                taken.discard(client_id)

    # What goes wrong.

    async def _go_wrong(self) -> None:
        while True:
            await asyncio.sleep(self._dice.expovariate(1.5))
            fault = self._dice.choice(("cut", "cut", "part", "refuse", "end", "lose", "lose", "jump"))
            if fault == "cut":
                self._network.cut()
            elif fault == "part":
                self._network.part(self._dice.choice((0.05, 0.5, 6.0)) * self._dice.random())
            elif fault == "refuse":
                self._network.refuse(self._dice.random())
            elif fault == "end":
                self._network.end_backend()
            elif fault == "lose":
                self._network.lose_answer()
            else:
                self._network.jump(self._dice.choice((-1, 1)) * self._dice.randint(1, 2_000))

    # What must hold in the end.

    async def _settle(self) -> None:
        number = await self._take()
        async with self._router() as router, self._movers(number, 1) as (mover,):
            for step in ("", "cut_over", "mirror", "roll_back"):
                for session in self.sessions:
                    if step:
                        report = await getattr(mover, step)(session.client_id)
                        self._network.note(f"in the end, {step} {session.client_id}: {getattr(report, 'outcome', '')}")
                    found = await self._read(router, session)
                    if len(found) != session.offered - len(session.acking):
                        raise Violation(f"{session.client_id} has {len(found)} messages behind {step or 'all'}")


def _is_ours(error: BaseException) -> bool:
    """Return whether an error, or each of a group, is one that our program tells its users of."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(QueuekeeperError)[1] is None
    return isinstance(error, QueuekeeperError)


async def _opened(opening: Any) -> Any:
    return await opening


# One seed, and how it is played.


def prepare_world(connection: Connection) -> None:
    """Make a database with an armed migration, and with a clock that is set by hand."""
    connection.execute(CLOCK)
    connection.execute("SELECT setval('simulated.clock_us', %s)", [1_000 * BEGINS_MS])
    prepare(connection)
    OnlineCohorts(connection).arm(save_plan(connection, CLIENTS, count=1), [0], actor="test")


def play(seed: int, *, postgres_url: str, redis_url: str) -> list[str]:
    """Play a seed on a database of :func:`prepare_world` and a Redis of its own, which is emptied; return its history.

    :raises Violation: when a promise was broken; its notes are the history.
    """
    dice = random.Random(seed)
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
        client.script_flush()
    with postgres.connect(postgres_url, autocommit=True) as connection:
        network = Network(random.Random(dice.random()), connection)
        plan = MigrationLedger(connection).load_plan(PLAN_ID)
        simulation = Simulation(network, dice, plan=plan, postgres_url=postgres_url, redis_url=redis_url)
        try:
            with asyncio.Runner(loop_factory=lambda: SimulatedLoop(network)) as runner:
                runner.run(simulation.run())
        except BaseException as error:
            error.add_note("\n".join(network.history))
            raise
        finally:
            network.close()
    return network.history


async def _nothing(*_: object, **__: object) -> None:
    pass


def _open_on_the_way_back() -> None:
    RedisSide.close = _nothing  # type: ignore[method-assign]


def _without_numbers() -> None:
    save_messages = AsyncSessionRouter.save_messages

    async def saved(router: AsyncSessionRouter, saves: Sequence[SessionSave]) -> Any:
        return await save_messages(router, [replace(each, source=None, offset=None) for each in saves])

    AsyncSessionRouter.save_messages = saved  # type: ignore[assignment]


BROKEN: Mapping[str, Callable[[], None]] = {
    "a session on its way back is not closed in Redis": _open_on_the_way_back,
    "a batch is saved without its number": _without_numbers,
}
"""Promises, each with what takes it out of the program."""


def main(words: Sequence[str]) -> int:
    """Play one seed, ``SEED [BROKEN]``, on the servers that the environment names; print its history.

    It is a process of its own, started with ``PYTHONHASHSEED=0``: the order of a set is part of the history.
    """
    use_simulated_waits()
    if words[1:]:
        BROKEN[words[1]]()
    try:
        history = play(int(words[0]), postgres_url=os.environ[POSTGRES_VARIABLE], redis_url=os.environ[REDIS_VARIABLE])
    except (Violation, BaseExceptionGroup) as error:
        traceback.print_exc()
        return VIOLATED if isinstance(error, Violation) or error.subgroup(Violation) else 1
    print("\n".join(history))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
