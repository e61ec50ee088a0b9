"""The two stores between which a migration moves sessions, as a mover uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from queuekeeper.errors import NotOwner, RefusedError
from queuekeeper.migration.ledger.parameters import BadRows
from queuekeeper.operation import keeps
from queuekeeper.sessions.model import OWNER_OF, Owner
from queuekeeper.sessions.owners import Ownership
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.postgres_store import AsyncPostgresSessionStore
from queuekeeper.sessions.redis_store import AsyncRedisSessionStore
from queuekeeper.sessions.snapshot import ApplyReport, SessionSnapshot


def epoch_of(owned: Ownership) -> int:
    """Return the epoch of a session that moves.

    :raises RefusedError: when it has none.
    """
    if owned.epoch is None:
        raise RefusedError(f"the session of {owned.client_id!r} has no epoch: its cohort is not armed")
    return owned.epoch


class Side(Protocol):
    """One store of a migration, whichever it is."""

    @property
    def owner(self) -> Owner:
        """The store's name in ``queuekeeper.session_owners``."""

    async def read(self, client_id: str, serials: Sequence[int] | None = None) -> SessionSnapshot:
        """Read a session, whoever owns it.

        :raises UnreadableRecord: when a record is unreadable; :meth:`read_mended` sets it aside.
        """

    async def read_copy(self, client_id: str) -> tuple[SessionSnapshot, tuple[int, ...]]:
        """Read a copy, and the serials of its unreadable messages, which the next :meth:`apply` overwrites."""

    async def read_mended(self, client_id: str) -> tuple[SessionSnapshot, int]:
        """Set aside what nobody can deliver, or what the other store cannot hold, and read the rest.

        :returns: the session, and how many messages were set aside.
        """

    async def keeping(self, client_id: str) -> Mapping[int, str]:
        """Return the reason by serial of the rows that keep a client here; empty where they are put aside."""

    async def apply(
        self, owned: Ownership, snapshot: SessionSnapshot, *, driver: int, serials: Sequence[int] | None = None
    ) -> ApplyReport:
        """Make the copy of a session that the other store owns equal to a snapshot."""

    async def close(self, fenced: Ownership) -> None:
        """Take no more writes of a fenced session. PostgreSQL has its fence already."""

    async def tell(self, owned: Ownership) -> None:
        """Say who owns a session. PostgreSQL knows already."""


@dataclass(frozen=True, kw_only=True)
class PostgresSide:
    """PostgreSQL.

    :param bad_rows: what to do with rows that nobody can deliver.
    """

    store: AsyncPostgresSessionStore
    bad_rows: BadRows
    owner: Owner = "postgres"

    @keeps(Side.read)
    async def read(self, client_id: str, serials: Sequence[int] | None = None) -> SessionSnapshot:
        return await self.store.read_snapshot(client_id, serials=serials)

    @keeps(Side.read_copy)
    async def read_copy(self, client_id: str) -> tuple[SessionSnapshot, tuple[int, ...]]:
        return await self.store.read_snapshot(client_id), ()

    @keeps(Side.read_mended)
    async def read_mended(self, client_id: str) -> tuple[SessionSnapshot, int]:
        set_aside = await self.store.set_aside_unreadable(client_id, duplicates=True)
        return await self.read(client_id), set_aside

    @keeps(Side.keeping)
    async def keeping(self, client_id: str) -> Mapping[int, str]:
        return await self.store.find_unreadable(client_id) if self.bad_rows is BadRows.LEAVE else {}

    @keeps(Side.apply)
    async def apply(
        self, owned: Ownership, snapshot: SessionSnapshot, *, driver: int, serials: Sequence[int] | None = None
    ) -> ApplyReport:
        return await self.store.apply_snapshot(
            owned.client_id, snapshot, epoch=epoch_of(owned), driver=driver, serials=serials
        )

    @keeps(Side.close)
    async def close(self, fenced: Ownership) -> None:
        pass

    @keeps(Side.tell)
    async def tell(self, owned: Ownership) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class RedisSide:
    """A layout in Redis."""

    store: AsyncRedisSessionStore
    layout: Layout

    @property
    @keeps(Side.owner)
    def owner(self) -> Owner:
        return OWNER_OF[self.layout]

    @keeps(Side.read)
    async def read(self, client_id: str, serials: Sequence[int] | None = None) -> SessionSnapshot:
        return await self.store.read_snapshot(client_id, serials=serials)

    @keeps(Side.read_copy)
    async def read_copy(self, client_id: str) -> tuple[SessionSnapshot, tuple[int, ...]]:
        return await self.store.read_copy(client_id)

    @keeps(Side.read_mended)
    async def read_mended(self, client_id: str) -> tuple[SessionSnapshot, int]:
        """By a fetch."""
        found, unreadable = await self.read_copy(client_id)
        if not unreadable:
            return found, 0
        page = await self.store.fetch_pending(client_id)
        while page.more:
            page = await self.store.fetch_pending(
                client_id, after_serial=page.after_serial, backlog_serial=page.backlog_serial
            )
        return await self.read(client_id), len(unreadable)

    @keeps(Side.keeping)
    async def keeping(self, client_id: str) -> Mapping[int, str]:
        return {}

    @keeps(Side.apply)
    async def apply(
        self, owned: Ownership, snapshot: SessionSnapshot, *, driver: int, serials: Sequence[int] | None = None
    ) -> ApplyReport:
        """The store is told who owns the session where a driver has ended before it could."""
        epoch = epoch_of(owned)
        try:
            return await self.store.apply_snapshot(
                owned.client_id, snapshot, epoch=epoch, driver=driver, serials=serials
            )
        except NotOwner:
            await self.tell(owned)
            return await self.store.apply_snapshot(
                owned.client_id, snapshot, epoch=epoch, driver=driver, serials=serials
            )

    @keeps(Side.close)
    async def close(self, fenced: Ownership) -> None:
        await self.store.set_owner(fenced.client_id, epoch=epoch_of(fenced), owner="fenced", mirrored=True)

    @keeps(Side.tell)
    async def tell(self, owned: Ownership) -> None:
        await self.store.set_owner(
            owned.client_id, epoch=epoch_of(owned), owner=owned.as_told(self.layout), mirrored=owned.mirrored
        )
