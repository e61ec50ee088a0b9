"""Routers for blocking and for asyncio callers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

from queuekeeper import lua
from queuekeeper.checks import checked, checked_but
from queuekeeper.closing import AsyncClosing, Closing
from queuekeeper.errors import QueuekeeperError
from queuekeeper.operation import Awaiting, Blocking, Both, Operation, Pause
from queuekeeper.postgres import address_of
from queuekeeper.redis_async import AsyncScriptCaller, check_caller
from queuekeeper.redis_client import RedisClient
from queuekeeper.sessions.layouts import RECENT_SESSIONS
from queuekeeper.sessions.model import StoreRules
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.router.finding import OWNER_AGE_S, OWNERS, PATIENCE_S
from queuekeeper.sessions.router.pools import CONNECTIONS, AsyncConnections, Connections
from queuekeeper.sessions.router.routing import RouterOperations
from queuekeeper.sessions.router.steps import AtPostgres, AtRedis, Step, T, Together
from queuekeeper.text_form import shows


def _itself(_: RouterOperations, operation: Operation[T]) -> Operation[T]:
    """Return the operation, for callers inside another operation."""
    return operation


_Ops = RouterOperations


@shows(
    redis="_caller.address",
    postgres=lambda router: address_of(router._connections.url),
    prefix="operations.prefix",
)
class _Methods:
    """Methods of the blocking and the asyncio class."""

    _run = Both(_itself)
    save_messages = Both(_Ops.save_messages)
    fetch_pending, mark_delivered = Both(_Ops.fetch_pending), Both(_Ops.mark_delivered)
    ack, mark_released, purge_session = Both(_Ops.ack), Both(_Ops.mark_released), Both(_Ops.purge_session)
    get_last_packet_id, set_last_packet_id = Both(_Ops.get_last_packet_id), Both(_Ops.set_last_packet_id)
    has_saved = Both(_Ops.has_saved)
    reserve_packet_ids = Both(_Ops.reserve_packet_ids)
    inspect, peek = Both(_Ops.inspect), Both(_Ops.peek)
    export_session, import_session = Both(_Ops.export_session), Both(_Ops.import_session)


class SessionRouter(_Methods, Blocking, Closing):
    """Sessions that move between PostgreSQL and layouts of Redis, for blocking callers; threads may share it.

    Close it, or use it with ``with``. It opens connections to PostgreSQL when it needs them.

    :param client: client of the Redis to which sessions move; the router does not close it.
    :param postgres_url: URL of the database of TBMQ 1.x, with schema ``queuekeeper``.
    :param prefix: put before every key in Redis.
    :param rules: limits to apply.
    :param replicas: replicas of Redis that must have a save before its report says ``replicated``; 0 waits for none.
    :param replica_timeout_ms: milliseconds to wait for the replicas.
    :param retry_for_s: seconds that a call waits for a moving slot of Redis, a failover, or a server that is loading.
    :param connections: most connections to PostgreSQL; each serves one operation at a time.
    :param patience_s: seconds that a call waits for a session that is moving.
    :param owners: sessions whose owner is cached.
    :param owner_age_s: seconds for which an owner is cached.
    :param recent_sessions: sessions in Redis whose last packet id is cached.
    :param home: layout in Redis of the sessions whose owner PostgreSQL does not record; none when PostgreSQL holds
        them. Sessions that move or have moved are found in either layout, whatever this says.
    :raises UsageError: for a number out of range.
    """

    @checked
    def __init__(
        self,
        client: RedisClient,
        postgres_url: str,
        prefix: str = "",
        rules: StoreRules | None = None,
        *,
        replicas: int = 0,
        replica_timeout_ms: int = lua.REPLICA_TIMEOUT_MS,
        retry_for_s: float = lua.RETRY_FOR_S,
        connections: int = CONNECTIONS,
        patience_s: float = PATIENCE_S,
        owners: int = OWNERS,
        owner_age_s: float = OWNER_AGE_S,
        recent_sessions: int = RECENT_SESSIONS,
        home: Layout | None = None,
    ) -> None:
        self.operations = RouterOperations(
            prefix=prefix,
            rules=rules,
            recent_sessions=recent_sessions,
            patience_s=patience_s,
            owners=owners,
            owner_age_s=owner_age_s,
            home=home,
        )
        self._caller = lua.ScriptCaller(
            client, replicas=replicas, replica_timeout_ms=replica_timeout_ms, retry_for_s=retry_for_s
        )
        self._connections = Connections(postgres_url, connections)

    def close(self) -> None:
        """Close the connections to PostgreSQL."""
        self._connections.close()

    def answer(self, step: Step) -> Any:
        """Have the step's store answer it."""
        if type(step) is AtRedis:
            return self._caller.execute(step.calls)
        if type(step) is AtPostgres:
            return self._connections.answer(step)
        if type(step) is Pause:
            return time.sleep(step.seconds)
        assert type(step) is Together
        return self._together(step.operations)

    def _together(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        outcomes: list[Any] = [None] * len(operations)

        def run(place: int) -> None:
            try:
                outcomes[place] = self._run(operations[place])
            except Exception as error:
                outcomes[place] = error

        threads = [threading.Thread(target=run, args=[place]) for place in range(1, len(operations))]
        for thread in threads:
            thread.start()
        try:
            run(0)
        finally:
            for thread in threads:
                thread.join()
        return _checked(outcomes)


class AsyncSessionRouter(_Methods, Awaiting, AsyncClosing):
    """:class:`SessionRouter` for asyncio; tasks may share it, and a cancelled task leaves nothing open.

    :param caller: sends the calls to Redis, and waits for its number of replicas; the router does not close it.
    """

    @checked_but("caller")
    def __init__(
        self,
        caller: AsyncScriptCaller,
        postgres_url: str,
        prefix: str = "",
        rules: StoreRules | None = None,
        *,
        connections: int = CONNECTIONS,
        patience_s: float = PATIENCE_S,
        owners: int = OWNERS,
        owner_age_s: float = OWNER_AGE_S,
        recent_sessions: int = RECENT_SESSIONS,
        home: Layout | None = None,
    ) -> None:
        check_caller(caller)
        self.operations = RouterOperations(
            prefix=prefix,
            rules=rules,
            recent_sessions=recent_sessions,
            patience_s=patience_s,
            owners=owners,
            owner_age_s=owner_age_s,
            home=home,
        )
        self._caller = caller
        self._connections = AsyncConnections(postgres_url, connections)

    async def close(self) -> None:
        """Close the connections to PostgreSQL."""
        await self._connections.close()

    async def answer(self, step: Step) -> Any:
        """Have the step's store answer it."""
        if type(step) is AtRedis:
            return await self._caller.execute(step.calls)
        if type(step) is AtPostgres:
            return await self._connections.answer(step)
        if type(step) is Pause:
            return await asyncio.sleep(step.seconds)
        assert type(step) is Together
        # Cancelling this task cancels them too; it continues when they have ended.
        outcomes = await asyncio.gather(*map(self._run, step.operations), return_exceptions=True)
        return _checked(outcomes)


def _checked(outcomes: list[Any]) -> list[Any]:
    """Return the outcomes of operations; raise an exception that is not an answer."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, QueuekeeperError):
            raise outcome
    return outcomes
