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
    """What both forms do."""

    append = Both(_Ops.append)
    subscribe, fetch, ack, heartbeat = Both(_Ops.subscribe), Both(_Ops.fetch), Both(_Ops.ack), Both(_Ops.heartbeat)
    release, rewind, skip = Both(_Ops.release), Both(_Ops.rewind), Both(_Ops.skip)
    get, peek, inspect = Both(_Ops.get), Both(_Ops.peek), Both(_Ops.inspect)
    configure, purge, drop = Both(_Ops.configure), Both(_Ops.purge), Both(_Ops.drop)
    verify, repair = Both(_Ops.verify), Both(_Ops.repair)
    find_due, collect, restore = Both(_Ops.find_due), Both(_Ops.collect), Both(_Ops.restore)


class CompactedQueues(_Methods, Blocking):
    """All compacted queues of a single server or a cluster; threads may share an object.

    A queue belongs to one client, and is made by the first append or subscription. Of what producers append at once,
    each append has its place in one order. Whoever consumes has a fence, and one that is old is refused
    (:class:`StaleEpoch`).

    An append whose reply is lost may have happened: repeat it with its ``producer`` and ``number``, which stores
    nothing twice.

    :param prefix: put before every key.
    :param rules: bounds of each queue.
    :param clock: none for the server's, whose time all producers share; another is for tests.
    :param noted_queues: queues that are remembered to be known to the collector.
    :param replicas: replicas that must have an append for its report to say ``replicated``; 0 asks for none.
    :param replica_timeout_ms: how long to wait for them. An append that they do not have by then is stored all
        the same.
    :param retry_for_s: how long a call waits for a slot that moves, a failover, or a server that is busy or loading.
    :param counts_only: nothing is written; what one call does is answered as it would be, and no later call sees it.
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
        """Wait until something waits for a consumer that has emptied its queue, on a connection of its own.

        :returns: whether it was woken; without a wake the caller should fetch all the same, since a lost connection may
            lose a wake.
        """
        check_seconds("timeout_s", timeout_s, least=0)
        return self._caller.await_wake(self.operations.wake_key(client_id), timeout_s=timeout_s)


class AsyncCompactedQueues(_Methods, Awaiting):
    """:class:`CompactedQueues` for asyncio.

    :param caller: sends the calls; who opened it closes it. It also says how many replicas are waited for.
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
        """Return when the server, or every master of the cluster, answers.

        :raises ServerUnavailable: when one does not, with the cause.
        """
        await self._caller.ping()

    async def await_wake(self, client_id: str, *, timeout_s: float) -> bool:
        """Wait as :meth:`CompactedQueues.await_wake` does."""
        check_seconds("timeout_s", timeout_s, least=0)
        return await self._caller.await_wake(self.operations.wake_key(client_id), timeout_s=timeout_s)
