"""Moves one client between the stores: fence, copy the rest, compare while both are still, change the owner.

A client belongs to the store that ``queuekeeper.session_owners`` in PostgreSQL names. Redis is told afterwards; a
caller that finds it behind tells it again. So a driver may die between any two steps: the fence ends by itself, or the
next caller completes the change of owner. ``docs/adr/0015`` has the argument step by step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

from psycopg import errors as postgres_errors

from queuekeeper import redis_async
from queuekeeper.clock import Clock, system_clock
from queuekeeper.errors import NotOwner, QueuekeeperError, RefusedError, StaleEpoch, UnreadableRecord
from queuekeeper.migration.ledger.parameters import BadRows, Lease
from queuekeeper.migration.online.reports import MoveReport, Outcome, SyncReport
from queuekeeper.postgres import AsyncConnection, connect_async, statement, translated_errors
from queuekeeper.sessions.model import StoreRules
from queuekeeper.sessions.owners import AsyncOwnerStore, Owner, Ownership
from queuekeeper.sessions.postgres_store import AsyncPostgresSessionStore
from queuekeeper.sessions.redis_store import AsyncRedisSessionStore
from queuekeeper.sessions.snapshot import ApplyReport, Difference, SessionSnapshot, differences

LEASE_MS = Lease().lease_ms
"""Longest time that a client is fenced: TBMQ 1.x gives a batch up after about three seconds."""

TRIES = 3
"""Tries for a client whose queue could not be copied within the lease, or that another driver has fenced."""

_LOOKS = 20
"""Tries for a client that changes while it is read."""


class SessionMover:
    """Moves one client at a time; several movers work side by side, each on clients of its own.

    :param postgres: source of the sessions, and record of their owners.
    :param driver: number that :meth:`OnlineCohorts.take` returned.
    :param lease_ms: longest time that a client is fenced, in milliseconds.
    :param clock: clock that tells whether a message has expired when two stores are compared.
    :param bad_rows: what to do with rows that nobody can deliver.
    """

    def __init__(
        self,
        *,
        connection: AsyncConnection,
        redis: AsyncRedisSessionStore,
        driver: int,
        rules: StoreRules,
        lease_ms: int = LEASE_MS,
        clock: Clock = system_clock,
        bad_rows: BadRows = BadRows.QUARANTINE,
    ) -> None:
        self._bad_rows = bad_rows
        self._connection = connection
        self._owners = AsyncOwnerStore(connection)
        self._postgres = AsyncPostgresSessionStore(connection, rules=rules)
        self._redis = redis
        self._driver = driver
        self._lease_ms = lease_ms
        self._clock = clock

    # --- copying without a fence ---------------------------------------------------------------------------------

    async def sync(self, client_id: str) -> SyncReport:
        """Make the copy in Redis equal to what PostgreSQL holds now; writers go on meanwhile."""
        owned = await self._owner(client_id)
        if owned.owner != "postgres":
            return SyncReport(client_id=client_id, equal=True)
        if bad := await self._keeping(client_id):
            return SyncReport(client_id=client_id, equal=False, bad=bad)
        set_aside = await self._postgres.set_aside_unreadable(client_id, duplicates=True)
        source = (await self._postgres.read_snapshot(client_id)).for_redis()
        if not await self._copy_differences(source):
            return SyncReport(client_id=client_id, equal=True, set_aside=set_aside)
        done = await self._copy(owned, source)
        return SyncReport(
            client_id=client_id, equal=True, written=done.written, removed=done.removed, set_aside=set_aside
        )

    async def compare(self, client_id: str) -> SyncReport:
        """Compare both stores without a fence, while the client may be at work.

        A copy that is behind is brought up to date first. Only differences from what was just written count.
        """
        owned = await self._owner(client_id)
        if owned.owner == "redis":
            return await self._compare_mirror(client_id)
        if bad := await self._keeping(client_id):
            return SyncReport(client_id=client_id, equal=False, bad=bad)
        written = removed = 0
        left: list[Difference] = []
        for _ in range(_LOOKS):
            # While the client is at work, a snapshot may hold messages newer than its last packet id.
            held = await self._postgres.read_snapshot(client_id)
            source = held.for_redis()
            left = await self._copy_differences(source)
            if left:
                done = await self._copy(owned, source)
                written, removed = written + done.written, removed + done.removed
                left = await self._copy_differences(source)
            if not left or not self._differences(held, await self._postgres.read_snapshot(client_id)):
                break
        return SyncReport(
            client_id=client_id,
            equal=not left,
            messages=len(source.messages),
            written=written,
            removed=removed,
            differences=tuple(left),
        )

    async def _compare_mirror(self, client_id: str) -> SyncReport:
        """Compare PostgreSQL's copy with what Redis holds; a client that changes meanwhile is not judged."""
        left: list[Difference] = []
        for _ in range(_LOOKS):
            await self.mirror(client_id)
            source = await self._redis.read_snapshot(client_id)
            left = self._differences(source, await self._postgres.read_snapshot(client_id))
            if not left:
                break
            # The mirror has nothing to write, and Redis has not changed meanwhile.
            still = not self._differences(source, await self._redis.read_snapshot(client_id))
            if still and await self._redis.read_outbox(client_id) is None:
                break
        return SyncReport(client_id=client_id, equal=not left, messages=len(source.messages), differences=tuple(left))

    async def _keeping(self, client_id: str) -> Mapping[int, str]:
        """Return the reason by serial of the rows that keep a client where it is; empty where they are put aside."""
        return await self._postgres.find_unreadable(client_id) if self._bad_rows is BadRows.LEAVE else {}

    async def _copy_differences(self, source: SessionSnapshot) -> list[Difference]:
        """Compare a copy in Redis with what PostgreSQL holds; unreadable messages in the copy count as differences."""
        found, unreadable = await self._redis.read_copy(source.client_id)
        return self._differences(source, found) + [
            Difference(client_id=source.client_id, what="message", serial=serial, expected="", found="unreadable")
            for serial in unreadable
        ]

    async def _copy(self, owned: Ownership, source: SessionSnapshot) -> ApplyReport:
        """Write a snapshot from PostgreSQL to Redis."""
        try:
            return await self._redis.apply_snapshot(owned.client_id, source, epoch=_epoch(owned), driver=self._driver)
        except NotOwner:
            # A driver gave the client back to PostgreSQL and ended before it told Redis.
            await self._redis.set_owner(owned.client_id, epoch=_epoch(owned), owner="postgres", mirrored=False)
            return await self._redis.apply_snapshot(owned.client_id, source, epoch=_epoch(owned), driver=self._driver)

    # --- to Redis ------------------------------------------------------------------------------------------------

    async def cut_over(self, client_id: str) -> MoveReport:
        """Give a client to Redis: bring its copy up to date, fence it, compare both, change the owner.

        A client whose queue cannot be copied within the lease stays in PostgreSQL.

        :raises ServerUnavailable: when a server is lost; the fence ends by itself.
        """
        return await self._tried(client_id, before=self.sync, move=self._cut_over)

    async def _cut_over(self, client_id: str) -> MoveReport:
        begun = time.monotonic()
        fenced = await self._owners.fence(client_id, owner="postgres", driver=self._driver, lease_ms=self._lease_ms)
        if fenced is None:
            return await self._not_fenced(client_id, wanted="redis")
        written = removed = 0
        left: list[Difference] = []
        bad: Mapping[int, str] = {}
        moved: Ownership | None = None
        try:
            # From here on Redis refuses copies that began under an earlier epoch, also those on their way.
            await self._redis.set_owner(client_id, epoch=_epoch(fenced), owner="postgres", mirrored=False)
            bad = await self._keeping(client_id)
            held = await self._postgres.read_snapshot(client_id)
            source = held.for_redis()
            left = await self._copy_differences(source)
            if left and not bad:
                done = await self._redis.apply_snapshot(client_id, source, epoch=_epoch(fenced), driver=self._driver)
                written, removed = done.written, done.removed
                left = await self._copy_differences(source)
            if not left and not bad:
                moved = await self._hand_over(fenced, source, has_moved=source != held)
        except StaleEpoch:
            # Our fence has ended, and another driver has fenced the client since.
            moved = None
        except RefusedError as error:
            moved = None
            if not isinstance(error.__cause__, postgres_errors.QueryCanceled):
                raise
        finally:
            if moved is None:
                with suppress(QueuekeeperError):
                    await self._owners.unfence(client_id, driver=self._driver, epoch=_epoch(fenced))
        if moved is not None:
            # Redis owns the client from here on. If this call fails, the next caller repeats it.
            with suppress(StaleEpoch):
                await self._redis.set_owner(client_id, epoch=_epoch(moved), owner="redis", mirrored=True)
        outcome = Outcome.MOVED if moved is not None else Outcome.DIFFERS if left else Outcome.LATE
        if bad:
            return MoveReport(client_id=client_id, outcome=Outcome.KEPT, bad=bad)
        return MoveReport(
            client_id=client_id,
            outcome=outcome,
            fenced_ms=1_000 * (time.monotonic() - begun),
            written=written,
            removed=removed,
            differences=tuple(left),
        )

    async def _hand_over(self, fenced: Ownership, source: SessionSnapshot, *, has_moved: bool) -> Ownership | None:
        """Make Redis the owner of a fenced client, and PostgreSQL's copy equal to what Redis holds.

        :param has_moved: whether the last packet ids of Redis and PostgreSQL differ.
        """
        client_id = fenced.client_id
        async with AsyncExitStack() as both_or_none:
            if has_moved:
                await both_or_none.enter_async_context(self._transaction())
            moved = await self._owners.flip(
                client_id, driver=self._driver, epoch=_epoch(fenced), to="redis", mirrored=True
            )
            if moved is not None and has_moved:
                await self._postgres.apply_snapshot(
                    client_id, replace(source, messages=()), epoch=_epoch(moved), driver=self._driver, serials=()
                )
        return moved

    # --- back to PostgreSQL --------------------------------------------------------------------------------------

    async def roll_back(self, client_id: str) -> MoveReport:
        """Give a client back to PostgreSQL: fence it, write the last changes, compare both, change the owner.

        :raises ServerUnavailable: when a server is lost; the fence ends by itself.
        """
        return await self._tried(client_id, before=self.mirror, move=self._roll_back)

    async def _roll_back(self, client_id: str) -> MoveReport:
        begun = time.monotonic()
        fenced = await self._owners.fence(client_id, owner="redis", driver=self._driver, lease_ms=self._lease_ms)
        if fenced is None:
            return await self._not_fenced(client_id, wanted="postgres")
        written = removed = 0
        left: list[Difference] = []
        moved: Ownership | None = None
        try:
            await self._redis.set_owner(client_id, epoch=_epoch(fenced), owner="fenced", mirrored=True)
            # Nobody writes to Redis from here on.
            source = await self._redis.read_snapshot(client_id)
            # In one transaction, so that a driver that is too slow changes nothing.
            async with self._transaction():
                if not await self._owners.hold(client_id, driver=self._driver, epoch=_epoch(fenced)):
                    raise _LostFence
                done = await self._postgres.apply_snapshot(client_id, source, epoch=_epoch(fenced), driver=self._driver)
                written, removed = done.written, done.removed
                left = self._differences(source, await self._postgres.read_snapshot(client_id))
                if left:
                    raise _LostFence
                moved = await self._owners.flip(
                    client_id, driver=self._driver, epoch=_epoch(fenced), to="postgres", mirrored=False
                )
                if moved is None:
                    raise _LostFence
        except (_LostFence, StaleEpoch):
            # The fence has ended, or PostgreSQL's copy still differs.
            moved = None
        except RefusedError as error:
            moved = None
            if not isinstance(error.__cause__, postgres_errors.QueryCanceled):
                raise
        finally:
            if moved is None:
                with suppress(QueuekeeperError):
                    await self._owners.unfence(client_id, driver=self._driver, epoch=_epoch(fenced))
                    # A fence that has ended also gives the client another epoch.
                    restored = await self._owner(client_id)
                    if restored.owner == "redis" and restored.fenced_until_ms is None:
                        await self._redis.set_owner(
                            client_id, epoch=_epoch(restored), owner="redis", mirrored=restored.mirrored
                        )
        if moved is not None:
            with suppress(StaleEpoch):
                await self._redis.set_owner(client_id, epoch=_epoch(moved), owner="postgres", mirrored=False)
        outcome = Outcome.MOVED if moved is not None else Outcome.DIFFERS if left else Outcome.LATE
        return MoveReport(
            client_id=client_id,
            outcome=outcome,
            fenced_ms=1_000 * (time.monotonic() - begun),
            written=written,
            removed=removed,
            differences=tuple(left),
        )

    # --- the mirror ----------------------------------------------------------------------------------------------

    async def mirror(self, client_id: str) -> bool:
        """Write the client's changes in Redis since the last time to PostgreSQL.

        The client's row in ``session_owners`` is locked meanwhile, so that no mirror overwrites newer changes with
        older ones. Messages that nobody can read go to the quarantine.

        :returns: whether there was anything to write.
        """
        try:
            return await self._followed(client_id)
        except UnreadableRecord:
            # A fetch puts the unreadable message into the quarantine.
            page = await self._redis.fetch_pending(client_id)
            while page.more:
                page = await self._redis.fetch_pending(
                    client_id, after_serial=page.after_serial, backlog_serial=page.backlog_serial
                )
            return await self._followed(client_id)

    async def _followed(self, client_id: str) -> bool:
        """Write the changes; try again when the fence of a dead driver has ended meanwhile, which changes the epoch."""
        try:
            return await self._mirror(client_id)
        except StaleEpoch:
            # The failed transaction took its lifting of the ended fence back; reading the owner lifts it for good.
            await self._owner(client_id)
            return await self._mirror(client_id)

    async def _mirror(self, client_id: str) -> bool:
        outbox = await self._redis.read_outbox(client_id)
        if outbox is None:
            return False
        async with self._transaction():
            owned = await self._owners.hold(client_id, driver=None, epoch=None)
            if not owned or owned.owner != "redis" or not owned.mirrored:
                return False
            outbox = await self._redis.read_outbox(client_id)
            if outbox is None:
                return False
            snapshot = await self._redis.read_snapshot(client_id, serials=outbox.serials)
            await self._postgres.apply_snapshot(
                client_id, snapshot, epoch=_epoch(owned), driver=self._driver, serials=outbox.serials
            )
        with suppress(StaleEpoch):
            await self._redis.trim_outbox(client_id, epoch=outbox.epoch, version=outbox.version, read_ms=outbox.read_ms)
        return True

    # --- common parts --------------------------------------------------------------------------------------------

    async def _tried(
        self,
        client_id: str,
        *,
        before: Callable[[str], Awaitable[object]],
        move: Callable[[str], Awaitable[MoveReport]],
    ) -> MoveReport:
        """Move a client; try again when the time did not suffice.

        :param before: work that is done before the client is fenced.
        """
        report = MoveReport(client_id=client_id, outcome=Outcome.BUSY)
        for number in range(TRIES):
            if number and report.outcome is Outcome.BUSY:
                # The driver that fenced the client may have died: the last try comes when that fence has ended.
                await asyncio.sleep(LEASE_MS / 1_000 / (TRIES - 1))
            elif number:
                # Fences without a gap would keep callers out for longer than they wait, so the gap is as long as one.
                await asyncio.sleep(self._lease_ms / 1_000)
            prepared = await before(client_id)
            if isinstance(prepared, SyncReport) and prepared.bad:
                return MoveReport(client_id=client_id, outcome=Outcome.KEPT, bad=prepared.bad)
            report = await move(client_id)
            if report.outcome not in (Outcome.LATE, Outcome.BUSY):
                break
        return report

    def _differences(self, expected: SessionSnapshot, found: SessionSnapshot) -> list[Difference]:
        return differences(expected, found, as_of_ms=self._clock())

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[None]:
        """Open a transaction that the server ends when this process stands still, since others wait for its locks.

        The lease may be shorter than that: when the owner changes too late, everything is rolled back.
        """
        with translated_errors(self._connection):
            async with self._connection.transaction():
                await self._connection.execute(
                    statement("queuekeeper/queries/limit_online_transaction"), {"lease_ms": LEASE_MS}
                )
                yield

    async def _owner(self, client_id: str) -> Ownership:
        owned = (await self._owners.look_up([client_id])).get(client_id)
        if owned is None:
            raise RefusedError(f"nobody knows who owns {client_id!r}: its cohort is not armed")
        return owned

    async def _not_fenced(self, client_id: str, *, wanted: Owner) -> MoveReport:
        owned = await self._owner(client_id)
        outcome = Outcome.ALREADY if owned.owner == wanted else Outcome.BUSY
        return MoveReport(client_id=client_id, outcome=outcome)


def _epoch(owned: Ownership) -> int:
    if owned.epoch is None:
        raise RefusedError(f"the session of {owned.client_id!r} has no epoch: its cohort is not armed")
    return owned.epoch


class _LostFence(Exception):
    """Rolls back a transaction that must leave nothing behind."""


@asynccontextmanager
async def movers(
    *,
    postgres_url: str,
    redis_url: str,
    driver: int,
    prefix: str,
    rules: StoreRules,
    count: int,
    lease_ms: int = LEASE_MS,
    clock: Clock = system_clock,
    bad_rows: BadRows = BadRows.QUARANTINE,
) -> AsyncIterator[Sequence[SessionMover]]:
    """Open movers that work side by side, each with its own connection to PostgreSQL.

    :param count: number of movers.
    """
    async with AsyncExitStack() as opened:
        caller = await opened.enter_async_context(await redis_async.connect(redis_url))
        store = AsyncRedisSessionStore(caller, prefix, rules)
        found: list[SessionMover] = []
        for _ in range(count):
            connection = await connect_async(postgres_url, autocommit=True)
            opened.push_async_callback(connection.close)
            found.append(
                SessionMover(
                    connection=connection,
                    redis=store,
                    driver=driver,
                    rules=rules,
                    lease_ms=lease_ms,
                    clock=clock,
                    bad_rows=bad_rows,
                )
            )
        yield found
