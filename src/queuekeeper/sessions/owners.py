"""The owner of each session while sessions move between the stores, as recorded in PostgreSQL.

Every change of a session's owner or fence raises the session's epoch. An epoch therefore names one owner, and a write
under an earlier epoch is refused. Writers hold the row of ``queuekeeper.session_owners`` until their transaction ends
(``hold_owners``); a change of the row waits for them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from psycopg import errors as postgres_errors

from queuekeeper.checks import checked
from queuekeeper.errors import RefusedError
from queuekeeper.operation import Both, Operation, errors_name
from queuekeeper.postgres import AsyncConnection, Connection, address
from queuekeeper.sessions.model import OWNER_OF, Owner
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.postgres_operations import Query, Step
from queuekeeper.sessions.postgres_store import AsyncPostgresAnswers, PostgresAnswers
from queuekeeper.text_form import shows

FENCE_PATIENCE_MS = 1_000
"""Milliseconds that a fence waits for writers in progress; other writers of the session continue meanwhile."""

OWNERS_PER_STATEMENT = 5_000
WRITERS_LIMIT_S = 60.0
LOOK_EVERY_S = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Ownership:
    """The owner of a session.

    :param epoch: grows with every change; none for a session that never moves.
    :param fenced_until_ms: instant of PostgreSQL's clock until which only the driver may write; none without a fence.
    :param mirrored: whether changes are written to the store that the session came from, too.
    """

    client_id: str
    owner: Owner
    epoch: int | None
    fenced_until_ms: int | None = None
    mirrored: bool = False

    def as_told(self, layout: Layout) -> str:
        """Return the owner in the words of a session's own keys, which know themselves and any other store."""
        return "redis" if self.owner == OWNER_OF[layout] else "postgres"


@errors_name(client_id="session of client")
class OwnerOperations:
    """Operations of drivers and routers on owners; each is a transaction, or part of the caller's transaction."""

    def look_up(self, client_ids: Sequence[str], *, home: Owner = "postgres") -> Operation[dict[str, Ownership]]:
        """Return the owners of sessions; a fence whose time is over is lifted.

        A client of an armed cohort gets a row at its first look-up. A session that is missing in the result belongs to
        PostgreSQL; the session is in no armed cohort.

        :param home: store that owns the other sessions. Unless it is PostgreSQL, they get a row too, so that every
            write names an epoch: Redis cannot hold a writer back that has asked before a cohort was armed.
        """
        found: dict[str, Ownership] = {}
        for part in _parts(dict.fromkeys(client_ids)):
            parameters = {"client_ids": part}
            at_home = Query(name="make_home_owners", parameters=parameters | {"home": home})
            *_, rows = yield Step(
                begin=True,
                end=True,
                queries=(
                    Query(name="settle_owners", parameters=parameters),
                    *(() if home == "postgres" else (at_home,)),
                    Query(name="look_up_owners", parameters=parameters),
                ),
            )
            found |= {row[0]: _ownership(row) for row in rows}
        return found

    def fence(
        self,
        client_id: str,
        *,
        driver: int,
        lease_ms: int,
        owner: Owner | None = None,
        patience_ms: int = FENCE_PATIENCE_MS,
    ) -> Operation[Ownership | None]:
        """Fence a session, so that only one driver may write to it; wait for writers in progress.

        :param driver: number of the driver; a driver that lost the cohort to another one is refused.
        :param lease_ms: milliseconds after which the fence ends by itself, counted from the end of the last writer.
        :param owner: fence the session only when this store owns it.
        :param patience_ms: milliseconds to wait for writers; in the caller's transaction, this limit holds to its end.
        :returns: the session with its new epoch; none when it has another owner or no row, another driver has fenced
            it, or a writer took too long.
        """
        try:
            rows = yield from self._drive(
                client_id,
                Query(name="limit_lock_waits", parameters={"patience_ms": patience_ms}),
                driver=driver,
                change=Query(
                    name="fence_owner",
                    parameters={"client_id": client_id, "owner": owner, "driver": driver, "lease_ms": lease_ms},
                ),
            )
        except RefusedError as error:
            if isinstance(error.__cause__, postgres_errors.LockNotAvailable):
                return None
            raise
        return _only(rows)

    def unfence(self, client_id: str, *, driver: int, epoch: int) -> Operation[Ownership | None]:
        """Lift the fence of a session; its owner stays.

        :param epoch: epoch that the fence gave the session.
        :returns: the session with its new epoch; none when the fence is already gone.
        """
        rows = yield from self._drive(
            client_id,
            driver=driver,
            change=Query(name="unfence_owner", parameters={"client_id": client_id, "driver": driver, "epoch": epoch}),
        )
        return _only(rows)

    def flip(
        self, client_id: str, *, driver: int, epoch: int, to: Owner, mirrored: bool
    ) -> Operation[Ownership | None]:
        """Make a store the owner of a fenced session, and lift the fence.

        :param epoch: epoch that the fence gave the session.
        :param mirrored: write changes to the store that the session came from, too.
        :returns: the session with its new epoch; none when the fence has ended or another driver has the cohort.
        """
        rows = yield from self._drive(
            client_id,
            driver=driver,
            change=Query(
                name="flip_owner",
                parameters={
                    "client_id": client_id,
                    "driver": driver,
                    "epoch": epoch,
                    "owner": to,
                    "mirrored": mirrored,
                },
            ),
        )
        return _only(rows)

    def hold(
        self, client_id: str, *, driver: int | None = None, epoch: int | None = None
    ) -> Operation[Ownership | None]:
        """Lock the row of a session's owner exclusively until the caller's transaction ends.

        :param driver: driver that must have fenced the session last; none for any driver.
        :param epoch: epoch that the session must have; none for any epoch.
        :returns: none when the driver or the epoch is another one, or there is no row.
        """
        parameters = {"client_id": client_id, "driver": driver, "epoch": epoch}
        (rows,) = yield Step(begin=True, end=True, queries=(Query(name="lock_owner", parameters=parameters),))
        return _only(rows)

    def end_mirror(self, client_id: str) -> Operation[Ownership | None]:
        """Record that changes of a session in Redis are no longer written elsewhere; may be repeated.

        :returns: none when PostgreSQL owns the session, or the session is fenced.
        """
        (rows,) = yield Step(
            begin=True, end=True, queries=(Query(name="end_mirror", parameters={"client_id": client_id}),)
        )
        return _only(rows)

    def make_owners(self, client_ids: Iterable[str]) -> Operation[int]:
        """Create the missing rows of clients whose cohorts are armed; skip all other clients.

        :returns: how many rows were created.
        """
        made = 0
        for part in _parts(client_ids):
            (((count,),),) = yield Step(
                begin=True, end=True, queries=(Query(name="make_owners", parameters={"client_ids": part}),)
            )
            made += count
        return made

    def wait_for_writers(self, *, limit_s: float = WRITERS_LIMIT_S) -> Operation[None]:
        """Wait for transactions that may have looked up an owner before the cohort was armed, and found no row.

        Call it outside of a transaction, after the cohort's new state is committed. It does not wait for transactions
        that look up no owner, or that do so later and see the new state.

        :param limit_s: seconds to wait at most.
        :raises RefusedError: when the wait takes longer; it names the process with the oldest transaction.
        """
        ends_s = time.monotonic() + limit_s
        look = Step(begin=True, end=True, queries=(Query(name="cohort_readers"),))
        (rows,) = yield look
        left = {transaction for transaction, *_ in rows}
        while left:
            if time.monotonic() >= ends_s:
                _, pid, application, seconds = next(row for row in rows if row[0] in left)
                who = "a prepared transaction" if pid is None else f"process {pid} ({application or 'unnamed'})"
                raise RefusedError(
                    f"{who} has been in a transaction for {seconds} s, which may write sessions without a check of "
                    f"their owner; {len(left)} such transactions are open after {limit_s:g} s: end them, then repeat "
                    "the call"
                )
            pause = Query(name="pause", parameters={"seconds": LOOK_EVERY_S})
            yield Step(begin=True, end=True, queries=(pause,))
            (rows,) = yield look
            left &= {transaction for transaction, *_ in rows}

    def _drive(self, client_id: str, *first: Query, driver: int, change: Query) -> Operation[list[tuple[Any, ...]]]:
        """Change a row for a driver after all who hold the row have ended."""
        answer = yield Step(
            begin=True,
            end=True,
            queries=(
                *first,
                Query(name="set_driver", parameters={"driver": driver}),
                Query(name="settle_owners", parameters={"client_ids": [client_id]}),
                change,
            ),
        )
        rows: list[tuple[Any, ...]] = answer[-1]
        return rows


_Ops = OwnerOperations


@shows(server=lambda store: address(store._connection))
class _Methods:
    """Methods of the blocking and the asyncio class."""

    look_up = Both(_Ops.look_up)
    fence, unfence, flip, hold = Both(_Ops.fence), Both(_Ops.unfence), Both(_Ops.flip), Both(_Ops.hold)
    end_mirror, make_owners, wait_for_writers = (
        Both(_Ops.end_mirror),
        Both(_Ops.make_owners),
        Both(_Ops.wait_for_writers),
    )


class OwnerStore(_Methods, PostgresAnswers):
    """The owners of sessions, for blocking callers; threads may share it.

    Calls inside an open transaction of the connection are part of that transaction.

    :param connection: connection to the database that TBMQ 1.x used, with schema ``queuekeeper``.
    """

    @checked
    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.operations = OwnerOperations()


class AsyncOwnerStore(_Methods, AsyncPostgresAnswers):
    """:class:`OwnerStore` for asyncio; tasks may share it.

    :param connection: see :class:`OwnerStore`.
    """

    @checked
    def __init__(self, connection: AsyncConnection) -> None:
        super().__init__(connection)
        self.operations = OwnerOperations()


def _parts(client_ids: Iterable[str]) -> Iterator[list[str]]:
    """Split client ids into parts, one per statement."""
    left = iter(client_ids)
    while part := list(islice(left, OWNERS_PER_STATEMENT)):
        yield part


def _ownership(row: Sequence[Any]) -> Ownership:
    client_id, owner, epoch, fenced_until_ms, mirrored = row
    return Ownership(client_id=client_id, owner=owner, epoch=epoch, fenced_until_ms=fenced_until_ms, mirrored=mirrored)


def _only(rows: Sequence[Sequence[Any]]) -> Ownership | None:
    return _ownership(rows[0]) if rows else None
