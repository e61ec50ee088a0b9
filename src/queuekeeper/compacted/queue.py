"""Compacted queues for blocking and for asyncio callers."""

from __future__ import annotations

from collections.abc import Sequence

from queuekeeper import lua
from queuekeeper.checks import check_seconds, checked, checked_but
from queuekeeper.clock import Clock
from queuekeeper.compacted.model import QueueRules
from queuekeeper.compacted.operations import NOTED_QUEUES, CompactedOperations
from queuekeeper.operation import Awaiting, Blocking, Both
from queuekeeper.redis_async import AsyncScriptCaller, check_caller
from queuekeeper.redis_client import RedisClient, is_cluster
from queuekeeper.text_form import shows

_Ops = CompactedOperations


@shows(server="_caller.address", prefix="operations._prefix")
class _Methods:
    """Methods of both classes."""

    append = Both(_Ops.append)
    subscribe, fetch, ack, heartbeat = Both(_Ops.subscribe), Both(_Ops.fetch), Both(_Ops.ack), Both(_Ops.heartbeat)
    release, rewind, skip = Both(_Ops.release), Both(_Ops.rewind), Both(_Ops.skip)
    get, peek, inspect = Both(_Ops.get), Both(_Ops.peek), Both(_Ops.inspect)
    configure, purge, drop = Both(_Ops.configure), Both(_Ops.purge), Both(_Ops.drop)
    verify, repair = Both(_Ops.verify), Both(_Ops.repair)
    find_due, collect, restore = Both(_Ops.find_due), Both(_Ops.collect), Both(_Ops.restore)


class CompactedQueues(_Methods, Blocking):
    """All compacted queues of a single server or a cluster; threads may share an object.

    A queue belongs to one client; the first append or subscription makes the queue. Appends of several producers are
    put into one order. A subscription returns a fence, which each call of the consumer names; a call with an older
    fence raises :class:`StaleEpoch`.

    An append whose reply was lost may have been stored: repeat it with its ``producer`` and ``number``, which stores
    nothing twice.

    :param prefix: put before every key.
    :param rules: limits of each queue; none for the defaults.
    :param clock: none for the server's clock, which all producers share; another clock is for tests.
    :param noted_queues: queues remembered as known to the collector, 100,000 by default; each takes about 200 bytes.
    :param replicas: replicas that must have an append for its report to say ``replicated``; 0 does not ask.
    :param replica_timeout_ms: how long to wait for the replicas; an append that they do not have by then is stored
        all the same.
    :param retry_for_s: how long a call is repeated while a slot moves, or the server fails over, is busy or loads.
    :param counts_only: write nothing: each call returns what it would do, and later calls do not see its changes.
    """

    @checked
    def __init__(
        self,
        client: RedisClient,
        prefix: str = "",
        rules: QueueRules | None = None,
        *,
        clock: Clock | None = None,
        noted_queues: int = NOTED_QUEUES,
        replicas: int = 0,
        replica_timeout_ms: int = lua.REPLICA_TIMEOUT_MS,
        retry_for_s: float = lua.RETRY_FOR_S,
        counts_only: bool = False,
    ) -> None:
        self.operations = CompactedOperations(
            prefix=prefix, rules=rules, clock=clock, noted_queues=noted_queues, is_cluster=is_cluster(client)
        )
        self._caller = lua.ScriptCaller(
            client,
            replicas=replicas,
            replica_timeout_ms=replica_timeout_ms,
            retry_for_s=retry_for_s,
            counts_only=counts_only,
        )

    def answer(self, step: Sequence[lua.Call]) -> lua.Replies:
        """Send the calls of a step."""
        return self._caller.execute(step)

    def await_wake(self, client_id: str, *, timeout_s: float) -> bool:
        """Wait, on a connection of its own, until the queue wakes its consumer because there is something to fetch.

        :param timeout_s: longest time to wait.
        :returns: whether the queue woke the caller. Fetch even if not: a lost connection may lose the wake-up.
        """
        check_seconds("timeout_s", timeout_s, least=0)
        return self._caller.await_wake(self.operations.wake_key(client_id), timeout_s=timeout_s)


class AsyncCompactedQueues(_Methods, Awaiting):
    """:class:`CompactedQueues` for asyncio.

    :param caller: sends the calls, and has the options ``replicas`` and ``retry_for_s``; whoever opened it closes it.
    """

    @checked_but("caller")
    def __init__(
        self,
        caller: AsyncScriptCaller,
        prefix: str = "",
        rules: QueueRules | None = None,
        *,
        clock: Clock | None = None,
        noted_queues: int = NOTED_QUEUES,
    ) -> None:
        check_caller(caller)
        self.operations = CompactedOperations(
            prefix=prefix, rules=rules, clock=clock, noted_queues=noted_queues, is_cluster=caller.is_cluster
        )
        self._caller = caller

    async def answer(self, step: Sequence[lua.Call]) -> lua.Replies:
        """Send the calls of a step."""
        return await self._caller.execute(step)

    async def ping(self) -> None:
        """Return when the server, or every master of the cluster, has answered.

        :raises ServerUnavailable: when one does not answer, with the cause.
        """
        await self._caller.ping()

    async def await_wake(self, client_id: str, *, timeout_s: float) -> bool:
        """Wait as :meth:`CompactedQueues.await_wake` does."""
        check_seconds("timeout_s", timeout_s, least=0)
        return await self._caller.await_wake(self.operations.wake_key(client_id), timeout_s=timeout_s)
