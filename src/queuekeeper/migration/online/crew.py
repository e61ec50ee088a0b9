"""Movers that work through the clients of cohorts side by side, at the pace that people and servers allow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from queuekeeper.clock import Clock
from queuekeeper.errors import (
    NotAllowed,
    NotOwner,
    QueuekeeperError,
    ScatteredClient,
    ServerUnavailable,
    StaleDriver,
    StaleEpoch,
    StoodStill,
    StoreFull,
)
from queuekeeper.jobs.pace import RunPaused
from queuekeeper.jobs.progress import Narrator
from queuekeeper.keyspace import check_served, session_keys
from queuekeeper.migration.ledger.model import MigrationPlan
from queuekeeper.migration.ledger.parameters import BadRows
from queuekeeper.migration.online.brake import Brake, Limits, Load
from queuekeeper.migration.online.checks import check_servers, servers_clock
from queuekeeper.migration.online.cohorts import OnlineCohort, OnlineCohorts
from queuekeeper.migration.online.mover import SessionMover, movers
from queuekeeper.migration.online.reports import StepReport, Tally
from queuekeeper.postgres import Connection, connect, translated_errors
from queuekeeper.redis_client import RedisClient, facts, is_cluster, nodes, redis_errors
from queuekeeper.redis_client import connect as connect_redis
from queuekeeper.sessions.judge import Reason
from queuekeeper.sessions.model import Owner
from queuekeeper.sql_statements import statement

STAYS = {
    BadRows.QUARANTINE: "it stays in PostgreSQL until the commit, which puts its messages into "
    f"queuekeeper.session_quarantine ({Reason.CLIENT_ID_SCATTERED})",
    BadRows.LEAVE: f"it stays in PostgreSQL ({Reason.CLIENT_ID_SCATTERED})",
}
"""What becomes of a client that no cluster can hold."""

PUT_ASIDE = f"its messages were put into queuekeeper.session_quarantine ({Reason.CLIENT_ID_SCATTERED})"
"""What the commit reports of a client that no cluster can hold."""

_CHUNK_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Crew:
    """Movers of one plan, in the name of one driver.

    :param driver: the driver's number.
    :param count: movers that work side by side.
    :param lease_ms: longest time that a client is fenced, in milliseconds.
    :param clock: clock that tells whether a message has expired; none for the clock of the servers.
    :param stays: whether the movers wait while the migration is paused.
    """

    postgres_url: str
    redis_url: str
    plan: MigrationPlan
    driver: int
    count: int
    lease_ms: int
    limits: Limits
    clock: Clock | None
    tell: Callable[[str], None]
    stays: bool = True

    def each(
        self,
        step: str,
        online: OnlineCohorts,
        cohorts: Sequence[OnlineCohort],
        *,
        owner: Owner | None,
        work: Callable[[SessionMover, str], Awaitable[Any]],
        count: Callable[[Tally, Any], None],
        tally: Tally | None = None,
    ) -> StepReport:
        """Do one work with every client of cohorts that belongs to a store, side by side, and count the outcomes.

        :param owner: that store; none for source and target.
        :raises RunPaused: when the migration is paused and ``stays`` is false, once the clients at hand are done.
        """
        begun = time.monotonic()
        tally = tally or Tally()
        with (
            closing(connect_redis(self.redis_url)) as client,
            closing(connect(self.postgres_url, autocommit=True)) as look,
        ):
            asyncio.run(self._run(look, client, step, online, cohorts, owner, work, count, tally))
        numbers = [each.cohort for each in cohorts]
        return tally.report(self.plan.plan_id, step, numbers, seconds=time.monotonic() - begun)

    async def _run(
        self,
        look: Connection,
        client: RedisClient,
        step: str,
        online: OnlineCohorts,
        cohorts: Sequence[OnlineCohort],
        owner: Owner | None,
        work: Callable[[SessionMover, str], Awaitable[Any]],
        count: Callable[[Tally, Any], None],
        tally: Tally,
    ) -> None:
        numbers = [each.cohort for each in cohorts]
        chosen = self.plan.parameters
        total = sum(
            (0 if owner == chosen.target_owner else each.of(chosen.source_owner))
            + (0 if owner == chosen.source_owner else each.mirrored)
            for each in online.owner_counts(self.plan.plan_id)
            if each.cohort in set(numbers)
        )
        checked_s = time.monotonic()
        narrator = Narrator(self.tell, step, total=total, unit="clients")
        brake = Brake(
            look=lambda: (OnlineCohorts(look).control(self.plan.plan_id), _load(look, client)),
            tell=lambda reason: self._held_back(look, step, reason),
            limits=self.limits,
            stays=self.stays,
        )
        pauses: list[RunPaused] = []
        clustered = is_cluster(client)
        staying = STAYS[chosen.bad_rows]
        waiting = self._clients(online, cohorts, owner)
        last = _one_by_one(waiting)

        async def one(mover: SessionMover) -> None:
            nonlocal checked_s
            while (client_id := await last()) is not None:
                try:
                    await brake()
                except RunPaused as pause:
                    # Each mover finishes its client and stops where it would wait.
                    pauses.append(pause)
                    return
                try:
                    if clustered:
                        # Checked before anything of the client is changed.
                        check_served(session_keys(client_id))
                    count(tally, await work(mover, client_id))
                except StoodStill as error:
                    tally.refused(client_id, error)
                    mover = await mover.another()
                except (ServerUnavailable, StaleDriver, StoreFull, NotAllowed):
                    raise
                except ScatteredClient as error:
                    # No cluster can hold this client, whatever is mended, so no step waits for it.
                    tally.stays(client_id, f"{staying}: {error}")
                except QueuekeeperError as error:
                    # A refused client stays where it is and stops no other.
                    tally.refused(client_id, error)
                now = time.monotonic()
                if now - checked_s >= _CHUNK_S:
                    checked_s = now
                    # The check also tells whether another driver has taken the cohorts over.
                    await asyncio.to_thread(check_servers, look, client, self.plan.plan_id, numbers, self.driver)
                narrator.at(tally.clients)

        try:
            clock = self.clock or servers_clock(look, client)
            async with movers(**self._options(), clock=clock) as opened:
                await _side_by_side(one(mover) for mover in opened)
            check_servers(look, client, self.plan.plan_id, numbers, self.driver)
            if pauses:
                raise pauses[0]
        finally:
            # No mover is at work any more, so nothing is held back.
            with suppress(QueuekeeperError):
                OnlineCohorts(look).hold_back(self.plan.plan_id, "")

    def _options(self) -> dict[str, Any]:
        return {
            "postgres_url": self.postgres_url,
            "redis_url": self.redis_url,
            "plan": self.plan,
            "driver": self.driver,
            "count": self.count,
            "lease_ms": self.lease_ms,
        }

    def _held_back(self, connection: Connection, step: str, reason: str) -> None:
        OnlineCohorts(connection).hold_back(self.plan.plan_id, reason)
        self.tell(f"{step}: held back, {reason}" if reason else f"{step}: goes on")

    def _clients(self, online: OnlineCohorts, cohorts: Sequence[OnlineCohort], owner: Owner | None) -> Iterator[str]:
        """Yield the clients of cohorts that belong to a store, or to source and target.

        Of the target's, only mirrored ones: those that an earlier migration has committed are up to date in the target
        alone, and stay there, as somebody has decided.
        """
        chosen = self.plan.parameters
        for each in cohorts:
            if owner == "postgres":
                yield from online.quiet_clients(each)
            elif owner != chosen.target_owner:
                yield from all_clients(online, each, chosen.source_owner)
            if owner != chosen.source_owner:
                yield from all_clients(online, each, chosen.target_owner, mirrored=True)

    def mirror(self, client_ids: Sequence[str], tally: Tally) -> None:
        """Write the changes in the target to the source, client by client, and count them."""
        asyncio.run(self._mirror(client_ids, tally))

    async def _mirror(self, client_ids: Sequence[str], tally: Tally) -> None:
        waiting = iter(client_ids)
        late: list[str] = []

        async def work(mover: SessionMover, clients: Iterator[str], *, is_alone: bool = False) -> None:
            for client_id in clients:
                try:
                    was_written = await mover.mirror(client_id)
                except (NotOwner, StaleEpoch):
                    continue  # the client's owner or driver has changed since: the next pass looks again
                except StoodStill as error:
                    if is_alone:
                        tally.refused(client_id, error)
                    else:
                        late.append(client_id)
                    mover = await mover.another()
                except (ServerUnavailable, NotAllowed):
                    raise
                except QueuekeeperError as error:
                    tally.refused(client_id, error)
                else:
                    tally.written += was_written

        async with movers(**self._options()) as opened:
            await _side_by_side(work(mover, waiting) for mover in opened)
            if late:
                # Movers share a processor: what was too long beside others may not be so alone.
                await work(await opened[0].another(), iter(late), is_alone=True)


def _load(connection: Connection, client: RedisClient, *, times: int = 5) -> Load:
    """Measure several times how quickly both servers answer an ordinary client."""
    redis_ms = postgres_ms = 0.0
    for _ in range(times):
        for address, node in nodes(client):
            begun = time.monotonic()
            with redis_errors(address):
                node.ping()
            redis_ms = max(redis_ms, 1_000 * (time.monotonic() - begun))
        begun = time.monotonic()
        with translated_errors(connection):
            connection.execute(statement("queuekeeper/queries/server_clock"))
        postgres_ms = max(postgres_ms, 1_000 * (time.monotonic() - begun))
    shares = [100 * each.used_memory_bytes / each.maxmemory_bytes for each in facts(client) if each.maxmemory_bytes]
    return Load(redis_ms=redis_ms, postgres_ms=postgres_ms, memory_percent=max(shares, default=None))


def all_clients(
    online: OnlineCohorts, cohort: OnlineCohort, owner: Owner, *, mirrored: bool | None = None
) -> Iterator[str]:
    """Yield the clients of a cohort that belong to a store."""
    for page in pages(online, cohort, owner, mirrored=mirrored):
        yield from page


def pages(
    online: OnlineCohorts, cohort: OnlineCohort, owner: Owner, *, mirrored: bool | None = None
) -> Iterator[list[str]]:
    """Yield the clients of a cohort that belong to a store, page by page."""
    after = (-1, "")
    while page := online.clients(cohort, owner=owner, mirrored=mirrored, after=after):
        after = page[-1]
        yield [client_id for _, client_id in page]


async def _side_by_side(works: Iterable[Awaitable[None]]) -> None:
    """Wait for all works; when one fails, the others stop at their next step and the first failure is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(_as_task(work))
    except ExceptionGroup as failures:
        raise failures.exceptions[0]  # noqa: B904 - it has a cause of its own


async def _as_task(work: Awaitable[None]) -> None:
    await work


def _one_by_one(items: Iterator[str]) -> Callable[[], Awaitable[str | None]]:
    """Return a coroutine function that gives out the items one by one; pages are read beside the event loop."""
    lock = asyncio.Lock()

    async def take() -> str | None:
        async with lock:
            return await asyncio.to_thread(next, items, None)

    return take
