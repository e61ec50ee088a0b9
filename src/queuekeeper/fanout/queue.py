"""Fan-out queues for blocking and asyncio callers."""

from __future__ import annotations

from queuekeeper import lua
from queuekeeper.checks import checked, checked_but
from queuekeeper.clock import Clock
from queuekeeper.fanout.model import FanoutRules
from queuekeeper.fanout.operations import FanoutOperations, Step, Wake
from queuekeeper.operation import Awaiting, Blocking, Both, blocking
from queuekeeper.redis_async import AsyncScriptCaller, check_caller
from queuekeeper.redis_client import RedisClient
from queuekeeper.text_form import shows

_Ops = FanoutOperations


@shows(server="_caller.address", prefix="operations._prefix")
class _Methods:
    """Methods of both classes."""

    register, adopt, configure, touch = Both(_Ops.register), Both(_Ops.adopt), Both(_Ops.configure), Both(_Ops.touch)
    unregister, unregister_idle = Both(_Ops.unregister), Both(_Ops.unregister_idle)
    take_over = Both(_Ops.take_over)
    publish, cancel = Both(_Ops.publish), Both(_Ops.cancel)
    claim, ack, nack, extend = Both(_Ops.claim), Both(_Ops.ack), Both(_Ops.nack), Both(_Ops.extend)
    return_claimed, reap, await_wake = Both(_Ops.return_claimed), Both(_Ops.reap), Both(_Ops.await_wake)
    list_dead, retry_dead, purge_dead = Both(_Ops.list_dead), Both(_Ops.retry_dead), Both(_Ops.purge_dead)
    expire, purge, pause, resume = Both(_Ops.expire), Both(_Ops.purge), Both(_Ops.pause), Both(_Ops.resume)
    peek, size, inspect = Both(_Ops.peek), Both(_Ops.size), Both(_Ops.inspect)
    verify, repair = Both(_Ops.verify), Both(_Ops.repair)


class FanoutQueues(_Methods, Blocking):
    """Fan-out queues on a single server or a cluster; threads may share an object.

    Every method raises ``InvalidName`` for a name that is not valid, and ``UnknownQueue`` or ``UnknownConsumer`` for a
    name that does not exist.

    :param prefix: text before every key, empty by default.
    :param rules: limits for messages; defaults when absent.
    :param clock: returns the present time in ms; the server's clock by default.
    :param replicas: number of replicas that each write waits for, 0 by default.
    :param replica_timeout_ms: longest time in ms to wait for replicas; the write is stored even if they do not answer.
    :param retry_for_s: seconds that a call waits for a slot that moves, a failover, or a busy or loading server.
    :param counts_only: write nothing: each call returns what it would do, and later calls do not see its changes.
    """

    @checked
    def __init__(
        self,
        client: RedisClient,
        prefix: str = "",
        rules: FanoutRules | None = None,
        *,
        clock: Clock | None = None,
        replicas: int = 0,
        replica_timeout_ms: int = lua.REPLICA_TIMEOUT_MS,
        retry_for_s: float = lua.RETRY_FOR_S,
        counts_only: bool = False,
    ) -> None:
        self.operations = FanoutOperations(prefix=prefix, rules=rules, clock=clock, counts_only=counts_only)
        self._caller = lua.ScriptCaller(
            client,
            replicas=replicas,
            replica_timeout_ms=replica_timeout_ms,
            retry_for_s=retry_for_s,
            counts_only=counts_only,
        )

    def answer(self, step: Step) -> lua.Replies | bool:
        """Send the calls of a step, or wait for a wake-up."""
        if isinstance(step, Wake):
            return self._caller.await_entry(step.streams, timeout_s=step.timeout_s)
        return self._caller.execute(step)

    reap_leases = blocking(FanoutOperations.reap_leases)
    reap_lists = blocking(FanoutOperations.reap_lists)


class AsyncFanoutQueues(_Methods, Awaiting):
    """:class:`FanoutQueues` for asyncio.

    :param caller: sends the calls, and has the options ``replicas`` and ``retry_for_s``; whoever opened it closes it.
    """

    @checked_but("caller")
    def __init__(
        self,
        caller: AsyncScriptCaller,
        prefix: str = "",
        rules: FanoutRules | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        check_caller(caller)
        self.operations = FanoutOperations(prefix=prefix, rules=rules, clock=clock)
        self._caller = caller

    async def answer(self, step: Step) -> lua.Replies | bool:
        """Send the calls of a step, or wait for a wake-up."""
        if isinstance(step, Wake):
            return await self._caller.await_entry(step.streams, timeout_s=step.timeout_s)
        return await self._caller.execute(step)
