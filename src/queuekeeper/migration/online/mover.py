"""Moves one client between two stores: fence, copy the rest, compare while both are still, change the owner.

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
from queuekeeper.errors import NotOwner, QueuekeeperError, RefusedError, StaleEpoch, StoodStill, UnreadableRecord
from queuekeeper.migration.ledger.model import MigrationPlan
from queuekeeper.migration.ledger.parameters import Lease
from queuekeeper.migration.online.reports import MoveReport, Outcome, SyncReport
from queuekeeper.migration.online.sides import PostgresSide, RedisSide, Side, epoch_of
from queuekeeper.postgres import AsyncConnection, address, connect_async, translated_errors
from queuekeeper.redis_async import AsyncScriptCaller
from queuekeeper.sessions.model import Owner, StoreRules
from queuekeeper.sessions.owners import AsyncOwnerStore, Ownership
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.postgres_store import AsyncPostgresSessionStore
from queuekeeper.sessions.redis_store import AsyncRedisSessionStore
from queuekeeper.sessions.snapshot import Difference, SessionSnapshot, differences
from queuekeeper.sql_statements import statement

LEASE_MS = Lease().lease_ms
"""Longest time that a client is fenced: TBMQ 1.x gives a batch up after about three seconds."""

TRIES = 3
"""Tries for a client whose queue could not be copied within the lease, or that another driver has fenced."""

_LOOKS = 20
"""Tries for a client that changes while it is read."""


class SessionMover:
    """Moves one client at a time; several movers work side by side, each on clients of its own.

    :param connection: to the record of the sessions' owners, and to the source where that is PostgreSQL.
    :param source: store from which sessions move, and to which they may go back.
    :param target: layout in Redis to which they move.
    :param driver: number that :meth:`OnlineCohorts.take` returned.
    :param lease_ms: longest time that a client is fenced, in milliseconds.
    :param clock: clock that tells whether a message has expired when two stores are compared.
    :ivar another: opens a mover in place of this one, for when the connection is lost.
    """

    def __init__(
        self,
        *,
        connection: AsyncConnection,
        source: Side,
        target: RedisSide,
        driver: int,
        another: Callable[[], Awaitable[SessionMover]],
        lease_ms: int = LEASE_MS,
        clock: Clock = system_clock,
    ) -> None:
        self.another = another
        self._connection = connection
        self._owners = AsyncOwnerStore(connection)
        self._source = source
        self._target = target
        self._driver = driver
        self._lease_ms = lease_ms
        self._clock = clock
        # A mirror between layouts holds a row in PostgreSQL while it works in Redis alone; the owner's writers go on.
        self._mirror_ms = 10 * LEASE_MS if isinstance(source, RedisSide) else LEASE_MS

    # --- copying without a fence ---------------------------------------------------------------------------------

    async def sync(self, client_id: str) -> SyncReport:
        """Make the copy in the target equal to what the source holds now; writers go on meanwhile."""
        owned = await self._owner(client_id)
        if owned.owner != self._source.owner:
            return SyncReport(client_id=client_id, equal=True)
        if bad := await self._source.keeping(client_id):
            return SyncReport(client_id=client_id, equal=False, bad=bad)
        held, set_aside = await self._source.read_mended(client_id)
        wanted = _wanted(held, frm=self._source, to=self._target)
        if not await self._differences_of_copy(self._target, wanted):
            return SyncReport(client_id=client_id, equal=True, set_aside=set_aside)
        done = await self._target.apply(owned, wanted, driver=self._driver)
        return SyncReport(
            client_id=client_id, equal=True, written=done.written, removed=done.removed, set_aside=set_aside
        )

    async def compare(self, client_id: str) -> SyncReport:
        """Compare both stores without a fence, while the client may be at work.

        A copy that is behind is brought up to date first. Only differences from what was just written count.
        """
        owned = await self._owner(client_id)
        if owned.owner == self._target.owner:
            return await self._compare_mirror(owned)
        if bad := await self._source.keeping(client_id):
            return SyncReport(client_id=client_id, equal=False, bad=bad)
        written = removed = 0
        left: list[Difference] = []
        for _ in range(_LOOKS):
            # While the client is at work, a snapshot may hold messages newer than its last packet id.
            held = await self._source.read(client_id)
            wanted = _wanted(held, frm=self._source, to=self._target)
            left = await self._differences_of_copy(self._target, wanted)
            if left:
                done = await self._target.apply(owned, wanted, driver=self._driver)
                written, removed = written + done.written, removed + done.removed
                left = await self._differences_of_copy(self._target, wanted)
            if not left or not self._differences(held, await self._source.read(client_id)):
                break
        return SyncReport(
            client_id=client_id,
            equal=not left,
            messages=len(wanted.messages),
            written=written,
            removed=removed,
            differences=tuple(left),
        )

    async def _compare_mirror(self, owned: Ownership) -> SyncReport:
        """Compare the source's copy with what the target holds; a client that changes meanwhile is not judged."""
        client_id = owned.client_id
        left: list[Difference] = []
        for _ in range(_LOOKS):
            await self.mirror(client_id)
            held = await self._target.read(client_id)
            left = await self._differences_of_copy(self._source, held)
            if not left:
                break
            if isinstance(self._source, RedisSide) and [each.what for each in left] == ["last_packet_id"]:
                await self._note_last_packet_id(owned, held.last_packet_id)
                continue
            # The mirror has nothing to write, and the target has not changed meanwhile.
            still = not self._differences(held, await self._target.read(client_id))
            if still and await self._target.store.read_outbox(client_id) is None:
                break
        return SyncReport(client_id=client_id, equal=not left, messages=len(held.messages), differences=tuple(left))

    async def _note_last_packet_id(self, owned: Ownership, packet_id: int | None) -> None:
        """Have the mirror write a last packet id that the move into TBMQ's layout has changed.

        In the target it is set to what it is, so that the change is noted. If another one has been given out since,
        nothing is set, as that is noted already.
        """
        with suppress(NotOwner, StaleEpoch):
            # The driver that has changed the owner may not have told the target.
            await self._target.tell(owned)
            if packet_id is not None:
                await self._target.store.set_last_packet_id(owned.client_id, packet_id=packet_id, expected=packet_id)

    async def _differences_of_copy(self, side: Side, expected: SessionSnapshot) -> list[Difference]:
        """Compare a copy with what it should be; unreadable messages in the copy count as differences."""
        found, unreadable = await side.read_copy(expected.client_id)
        return self._differences(expected, found) + [
            Difference(client_id=expected.client_id, what="message", serial=serial, expected="", found="unreadable")
            for serial in unreadable
        ]

    # --- from one store to the other -----------------------------------------------------------------------------

    async def cut_over(self, client_id: str) -> MoveReport:
        """Give a client to the target: bring its copy up to date, fence it, compare both, change the owner.

        A client whose queue cannot be copied within the lease stays in the source.

        :raises ServerUnavailable: when a server is lost; the fence ends by itself.
        """
        return await self._tried(client_id, before=self.sync, move=self._cut_over)

    async def _cut_over(self, client_id: str) -> MoveReport:
        return await self._into_redis(client_id, frm=self._source, to=self._target)

    async def roll_back(self, client_id: str) -> MoveReport:
        """Give a client back to the source: fence it, write the last changes, compare both, change the owner.

        :raises ServerUnavailable: when a server is lost; the fence ends by itself.
        """
        return await self._tried(client_id, before=self.mirror, move=self._roll_back)

    async def _roll_back(self, client_id: str) -> MoveReport:
        if isinstance(self._source, RedisSide):
            return await self._into_redis(client_id, frm=self._target, to=self._source)
        return await self._into_postgres(client_id)

    async def _into_redis(self, client_id: str, *, frm: Side, to: RedisSide) -> MoveReport:
        """Give a client to a store in Redis."""
        begun = time.monotonic()
        fenced = await self._owners.fence(client_id, owner=frm.owner, driver=self._driver, lease_ms=self._lease_ms)
        if fenced is None:
            return await self._not_fenced(client_id, wanted=to.owner)
        written = removed = 0
        left: list[Difference] = []
        bad: Mapping[int, str] = {}
        moved: Ownership | None = None
        try:
            # From here on Redis refuses copies that began under an earlier epoch, also those on their way.
            await to.tell(fenced)
            await frm.close(fenced)
            bad = await frm.keeping(client_id)
            held = await frm.read(client_id)
            wanted = _wanted(held, frm=frm, to=to)
            left = await self._differences_of_copy(to, wanted)
            if left and not bad:
                done = await to.apply(fenced, wanted, driver=self._driver)
                written, removed = done.written, done.removed
                left = await self._differences_of_copy(to, wanted)
            if not left and not bad:
                moved = await self._hand_over(fenced, wanted, frm=frm, to=to, has_moved=wanted != held)
        except StaleEpoch:
            # Our fence has ended, and another driver has fenced the client since.
            moved = None
        except RefusedError as error:
            moved = None
            if not isinstance(error.__cause__, postgres_errors.QueryCanceled):
                raise
        finally:
            if moved is None:
                await self._give_back(fenced, frm)
        if moved is not None:
            # It owns the client from here on. If one of these calls fails, the next caller tells it.
            with suppress(StaleEpoch):
                await frm.tell(moved)
                await to.tell(moved)
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

    async def _hand_over(
        self, fenced: Ownership, snapshot: SessionSnapshot, *, frm: Side, to: RedisSide, has_moved: bool
    ) -> Ownership | None:
        """Make a store in Redis the owner of a fenced client, and PostgreSQL's copy equal to what it holds.

        :param has_moved: whether the last packet ids of both differ.
        """
        async with AsyncExitStack() as both_or_none:
            if has_moved and isinstance(frm, PostgresSide):
                await both_or_none.enter_async_context(self._transaction())
            moved = await self._owners.flip(
                fenced.client_id,
                driver=self._driver,
                epoch=epoch_of(fenced),
                to=to.owner,
                mirrored=to is self._target,
            )
            if moved is not None and has_moved and isinstance(frm, PostgresSide):
                await frm.apply(moved, replace(snapshot, messages=()), driver=self._driver, serials=())
        return moved

    async def _into_postgres(self, client_id: str) -> MoveReport:
        """Give a client back to PostgreSQL, in one transaction with its last changes."""
        begun = time.monotonic()
        fenced = await self._owners.fence(
            client_id, owner=self._target.owner, driver=self._driver, lease_ms=self._lease_ms
        )
        if fenced is None:
            return await self._not_fenced(client_id, wanted="postgres")
        written = removed = 0
        left: list[Difference] = []
        moved: Ownership | None = None
        try:
            await self._target.close(fenced)
            # Nobody writes to Redis from here on.
            held = await self._target.read(client_id)
            # In one transaction, so that a driver that is too slow changes nothing.
            async with self._transaction():
                if not await self._owners.hold(client_id, driver=self._driver, epoch=epoch_of(fenced)):
                    raise _LostFence
                done = await self._source.apply(fenced, held, driver=self._driver)
                written, removed = done.written, done.removed
                left = await self._differences_of_copy(self._source, held)
                if left:
                    raise _LostFence
                moved = await self._owners.flip(
                    client_id, driver=self._driver, epoch=epoch_of(fenced), to="postgres", mirrored=False
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
                await self._give_back(fenced, self._target)
        if moved is not None:
            with suppress(StaleEpoch):
                await self._target.tell(moved)
        outcome = Outcome.MOVED if moved is not None else Outcome.DIFFERS if left else Outcome.LATE
        return MoveReport(
            client_id=client_id,
            outcome=outcome,
            fenced_ms=1_000 * (time.monotonic() - begun),
            written=written,
            removed=removed,
            differences=tuple(left),
        )

    async def _give_back(self, fenced: Ownership, owner: Side) -> None:
        """Lift a fence whose client stays where it is, and have its store take writes again."""
        with suppress(QueuekeeperError):
            await self._owners.unfence(fenced.client_id, driver=self._driver, epoch=epoch_of(fenced))
            # A fence that has ended also gives the client another epoch.
            if isinstance(owner, RedisSide):
                restored = await self._owner(fenced.client_id)
                if restored.owner == owner.owner and restored.fenced_until_ms is None:
                    await owner.tell(restored)

    # --- the mirror ----------------------------------------------------------------------------------------------

    async def mirror(self, client_id: str) -> bool:
        """Write the client's changes in the target since the last time to the source.

        The client's row in ``session_owners`` is locked meanwhile, so that no mirror overwrites newer changes with
        older ones. Messages that nobody can read go to the quarantine.

        :returns: whether there was anything to write.
        """
        try:
            return await self._followed(client_id)
        except UnreadableRecord:
            await self._target.read_mended(client_id)
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
        store = self._target.store
        if await store.read_outbox(client_id) is None:
            return False
        async with self._transaction(limit_ms=self._mirror_ms):
            owned = await self._owners.hold(client_id, driver=None, epoch=None)
            if not owned or owned.owner != self._target.owner or not owned.mirrored:
                return False
            outbox = await store.read_outbox(client_id)
            if outbox is None:
                return False
            snapshot = await self._target.read(client_id, serials=outbox.serials)
            await self._source.apply(owned, snapshot, driver=self._driver, serials=outbox.serials)
        with suppress(StaleEpoch):
            await store.trim_outbox(client_id, epoch=outbox.epoch, version=outbox.version, read_ms=outbox.read_ms)
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
    async def _transaction(self, *, limit_ms: int | None = None) -> AsyncIterator[None]:
        """Open a transaction that the server ends when this process stands still, since others wait for its locks.

        The lease may be shorter than that: when the owner changes too late, everything is rolled back.

        :param limit_ms: milliseconds that it may stand still; none for the longest lease.
        :raises StoodStill: when the server has ended it; the connection is lost then.
        """
        lease_ms = limit_ms or LEASE_MS
        begun = time.monotonic()
        try:
            with translated_errors(self._connection):
                async with self._connection.transaction():
                    await self._connection.execute(
                        statement("queuekeeper/queries/limit_online_transaction"), {"lease_ms": lease_ms}
                    )
                    yield
        except (postgres_errors.Error, QueuekeeperError) as error:
            # The server's own words for it do not always arrive. Where it is down, a new connection says so.
            if not self._connection.closed or 1_000 * (time.monotonic() - begun) < lease_ms:
                raise
            raise StoodStill(
                f"PostgreSQL at {address(self._connection)} ended a transaction that stood still for {lease_ms:,} ms, "
                "since others wait for it: this machine is too busy, or the queue too long for it; try again"
            ) from error

    async def _owner(self, client_id: str) -> Ownership:
        owned = (await self._owners.look_up([client_id])).get(client_id)
        if owned is None:
            raise RefusedError(f"nobody knows who owns {client_id!r}: its cohort is not armed")
        return owned

    async def _not_fenced(self, client_id: str, *, wanted: Owner) -> MoveReport:
        owned = await self._owner(client_id)
        outcome = Outcome.ALREADY if owned.owner == wanted else Outcome.BUSY
        return MoveReport(client_id=client_id, outcome=outcome)


def _wanted(held: SessionSnapshot, *, frm: Side, to: RedisSide) -> SessionSnapshot:
    """Return what a copy in Redis has to be.

    In TBMQ's layout the last packet id has to pass those that wait; the packed layout passes over them by itself, and
    gets the same counter from PostgreSQL as by an offline migration.
    """
    return held if to.layout is Layout.PACKED and isinstance(frm, RedisSide) else held.for_redis()


class _LostFence(Exception):
    """Rolls back a transaction that must leave nothing behind."""


def _in_redis(caller: AsyncScriptCaller, plan: MigrationPlan, layout: Layout) -> RedisSide:
    store = AsyncRedisSessionStore(caller, plan.parameters.key_prefix, rules_of(plan), layout=layout)
    return RedisSide(store=store, layout=layout)


def source_of(connection: AsyncConnection, caller: AsyncScriptCaller, plan: MigrationPlan) -> Side:
    """Return the store from which the sessions of a plan move."""
    if plan.parameters.inside_redis:
        return _in_redis(caller, plan, Layout(plan.parameters.from_store.value))
    return PostgresSide(
        store=AsyncPostgresSessionStore(connection, rules=rules_of(plan)), bad_rows=plan.parameters.bad_rows
    )


def rules_of(plan: MigrationPlan) -> StoreRules:
    """Return the rules by which the stores keep a plan's sessions."""
    return StoreRules(limit=plan.parameters.limit, default_ttl_s=plan.parameters.default_ttl_s)


@asynccontextmanager
async def movers(
    *,
    postgres_url: str,
    redis_url: str,
    plan: MigrationPlan,
    driver: int,
    count: int,
    lease_ms: int = LEASE_MS,
    clock: Clock = system_clock,
) -> AsyncIterator[Sequence[SessionMover]]:
    """Open movers that work side by side, each with its own connection to PostgreSQL.

    :param count: number of movers.
    """
    async with AsyncExitStack() as opened:
        caller = await opened.enter_async_context(await redis_async.connect(redis_url))
        target = _in_redis(caller, plan, plan.parameters.layout)

        async def another() -> SessionMover:
            connection = await connect_async(postgres_url, autocommit=True)
            opened.push_async_callback(connection.close)
            return SessionMover(
                connection=connection,
                source=source_of(connection, caller, plan),
                target=target,
                driver=driver,
                lease_ms=lease_ms,
                clock=clock,
                another=another,
            )

        yield [await another() for _ in range(count)]
