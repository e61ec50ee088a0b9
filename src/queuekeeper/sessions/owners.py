"""Records in PostgreSQL which store owns a session while sessions move between the stores.

Every change of a session's owner or fence gives the session a greater epoch. So an epoch determines the owner, and a
call that began under an earlier epoch is refused. Writers lock the row of ``queuekeeper.session_owners`` until their
transaction ends (``hold_owners``); a change of the owner waits for them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypeAlias

from psycopg import errors as postgres_errors

from queuekeeper.checks import checked
from queuekeeper.errors import RefusedError
from queuekeeper.operation import Both, Operation, errors_name
from queuekeeper.postgres import AsyncConnection, Connection, address
from queuekeeper.sessions.postgres_operations import Query, Step
from queuekeeper.sessions.postgres_store import AsyncPostgresAnswers, PostgresAnswers
from queuekeeper.text_form import shows

Owner: TypeAlias = Literal["postgres", "redis"]

FENCE_PATIENCE_MS = 1_000
"""Seconds that a fence waits for a writer in progress; other writers of the session continue meanwhile."""

OWNERS_PER_STATEMENT = 5_000
WRITERS_LIMIT_S = 60.0
LOOK_EVERY_S = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Ownership:
    """Who owns a session.

    :param epoch: grows with every change; none for a session that never moves.
    :param fenced_until_ms: nobody but the driver writes before this instant of PostgreSQL's clock; none when everybody
        may.
    :param mirrored: what changes in Redis is written to PostgreSQL too.
    """

    client_id: str
    owner: Owner
    epoch: int | None
    fenced_until_ms: int | None = None
    mirrored: bool = False


@errors_name(client_id="session of client")
class OwnerOperations:
    """What drivers and routers ask PostgreSQL; each is a transaction, or a part of the caller's."""

    def look_up(self, client_ids: Sequence[str]) -> Operation[dict[str, Ownership]]:
        """Return the owners of sessions; a fence whose time is over is lifted.

        A client of an armed cohort that comes for the first time gets a row. A session that is not among the results is
        PostgreSQL's, and in no armed cohort.
        """
        found: dict[str, Ownership] = {}
        for part in _parts(dict.fromkeys(client_ids)):
            parameters = {"client_ids": part}
            _, rows = yield Step(
                begin=True,
                end=True,
                queries=(
                    Query(name="settle_owners", parameters=parameters),
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
        """Have nobody but a driver write to a session for a while; waits for writers in progress.

        :param driver: number of the driver; one that lost the cohort to another is refused.
        :param lease_ms: after which the fence ends by itself, counted from when the writers had ended.
        :param owner: fence it only when it is this store's.
        :param patience_ms: how long to wait for writers; in a transaction of the caller's this holds to its end.
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
        """Let everybody write to a session again; its owner stays.

        :param epoch: which the fence gave it.
        :returns: the session with its new epoch; none when the fence is not there any more.
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
        """Give a fenced session to a store; the fence ends.

        :param epoch: which the fence gave it.
        :param mirrored: changes in Redis are to be written to PostgreSQL too.
        :returns: the session with its new epoch; none when the time of the fence is over, or another driver has come.
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
        """Hold the row of a session's owner until the caller's transaction ends, alone.

        :param driver: the driver that must have fenced it last; ``None`` for any.
        :param epoch: which it has to have; none for any.
        :returns: none when it has another one, or no row.
        """
        parameters = {"client_id": client_id, "driver": driver, "epoch": epoch}
        (rows,) = yield Step(begin=True, end=True, queries=(Query(name="lock_owner", parameters=parameters),))
        return _only(rows)

    def end_mirror(self, client_id: str) -> Operation[Ownership | None]:
        """Note that changes of a session in Redis are no longer written to PostgreSQL; may be repeated.

        :returns: none when it is not Redis's, or fenced.
        """
        (rows,) = yield Step(
            begin=True, end=True, queries=(Query(name="end_mirror", parameters={"client_id": client_id}),)
        )
        return _only(rows)

    def make_owners(self, client_ids: Iterable[str]) -> Operation[int]:
        """Make the missing rows of clients whose cohorts are armed, and pass over all others.

        :returns: how many were made.
        """
        made = 0
        for part in _parts(client_ids):
            (((count,),),) = yield Step(
                begin=True, end=True, queries=(Query(name="make_owners", parameters={"client_ids": part}),)
            )
            made += count
        return made

    def wait_for_writers(self, *, limit_s: float = WRITERS_LIMIT_S) -> Operation[None]:
        """Wait until every transaction has ended that may have looked before a cohort was armed, and found nothing.

        It is called after the cohort's new state is committed, outside of a transaction. Transactions that have not
        looked yet are not waited for, as they see the state; nor those that never look.

        :raises RefusedError: when that takes longer, naming the process that has been at it for longest.
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
                    f"{who} has been in a transaction for {seconds} s that may write sessions without asking who owns "
                    f"them; {len(left)} such were left after {limit_s:g} s: end it, then repeat the call"
                )
            pause = Query(name="pause", parameters={"seconds": LOOK_EVERY_S})
            yield Step(begin=True, end=True, queries=(pause,))
            (rows,) = yield look
            left &= {transaction for transaction, *_ in rows}

    def _drive(self, client_id: str, *first: Query, driver: int, change: Query) -> Operation[list[tuple[Any, ...]]]:
        """Make a driver's change of a row behind all who hold it."""
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
    """What both forms do."""

    look_up = Both(_Ops.look_up)
    fence, unfence, flip, hold = Both(_Ops.fence), Both(_Ops.unfence), Both(_Ops.flip), Both(_Ops.hold)
    end_mirror, make_owners, wait_for_writers = (
        Both(_Ops.end_mirror),
        Both(_Ops.make_owners),
        Both(_Ops.wait_for_writers),
    )


class OwnerStore(_Methods, PostgresAnswers):
    """Who owns sessions, for blocking callers; threads may share it.

    Where the connection is in a transaction already, the work is part of that one.

    :param connection: of the database that TBMQ 1.x used, with schema ``queuekeeper`` in it.
    """

    @checked
    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.operations = OwnerOperations()


class AsyncOwnerStore(_Methods, AsyncPostgresAnswers):
    """The same for asyncio; tasks may share it.

    :param connection: see :class:`OwnerStore`.
    """

    @checked
    def __init__(self, connection: AsyncConnection) -> None:
        super().__init__(connection)
        self.operations = OwnerOperations()


def _parts(client_ids: Iterable[str]) -> Iterator[list[str]]:
    """Cut client ids into statements."""
    left = iter(client_ids)
    while part := list(islice(left, OWNERS_PER_STATEMENT)):
        yield part


def _ownership(row: Sequence[Any]) -> Ownership:
    client_id, owner, epoch, fenced_until_ms, mirrored = row
    return Ownership(client_id=client_id, owner=owner, epoch=epoch, fenced_until_ms=fenced_until_ms, mirrored=mirrored)


def _only(rows: Sequence[Sequence[Any]]) -> Ownership | None:
    return _ownership(rows[0]) if rows else None
