"""Fan-out queues for blocking and for asyncio callers."""

from __future__ import annotations

from queuekeeper import lua
from queuekeeper.clock import Clock
from queuekeeper.fanout.model import FanoutRules
from queuekeeper.fanout.operations import FanoutOperations, Step, Wake
from queuekeeper.operation import awaited, blocking
from queuekeeper.redis_async import AsyncScriptCaller
from queuekeeper.redis_client import RedisClient
from queuekeeper.text_form import shows


@shows(server="_caller.address", prefix="operations._prefix")
class FanoutQueues:
    """Fan-out queues on a single server or a cluster; threads may share an object.

    Every method raises ``InvalidName`` for a name that cannot be one, and ``UnknownQueue`` or ``UnknownConsumer`` where
    there is none of that name.

    :param prefix: put before every key.
    :param rules: bounds to keep.
    :param clock: says what time it is; the server does when there is none.
    :param replicas: how many replicas to wait for after each write; 0 waits for none.
    :param replica_timeout_ms: how long to wait for them. What they do not have by then is stored all the same.
    :param retry_for_s: how long a call waits for a slot that moves, a failover, or a server that is busy or loading.
    :param counts_only: nothing is written; what one call does is answered as it would be, and no later call sees it.
    """

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
        """Send the calls of a step, or wait."""
        if isinstance(step, Wake):
            return self._caller.await_wake(step.key, timeout_s=step.timeout_s)
        return self._caller.execute(step)

    register = blocking(FanoutOperations.register)
    adopt = blocking(FanoutOperations.adopt)
    configure = blocking(FanoutOperations.configure)
    touch = blocking(FanoutOperations.touch)
    unregister = blocking(FanoutOperations.unregister)
    unregister_idle = blocking(FanoutOperations.unregister_idle)
    publish = blocking(FanoutOperations.publish)
    claim = blocking(FanoutOperations.claim)
    ack = blocking(FanoutOperations.ack)
    nack = blocking(FanoutOperations.nack)
    extend = blocking(FanoutOperations.extend)
    return_claimed = blocking(FanoutOperations.return_claimed)
    reap = blocking(FanoutOperations.reap)
    reap_leases = blocking(FanoutOperations.reap_leases)
    reap_lists = blocking(FanoutOperations.reap_lists)
    list_dead = blocking(FanoutOperations.list_dead)
    retry_dead = blocking(FanoutOperations.retry_dead)
    purge_dead = blocking(FanoutOperations.purge_dead)
    expire = blocking(FanoutOperations.expire)
    purge = blocking(FanoutOperations.purge)
    pause = blocking(FanoutOperations.pause)
    resume = blocking(FanoutOperations.resume)
    peek = blocking(FanoutOperations.peek)
    size = blocking(FanoutOperations.size)
    inspect = blocking(FanoutOperations.inspect)
    verify = blocking(FanoutOperations.verify)
    repair = blocking(FanoutOperations.repair)
    await_wake = blocking(FanoutOperations.await_wake)


@shows(server="_caller.address", prefix="operations._prefix")
class AsyncFanoutQueues:
    """:class:`FanoutQueues` for asyncio.

    :param caller: sends the calls; who opened it closes it. It also says how many replicas are waited for.
    """

    def __init__(
        self,
        caller: AsyncScriptCaller,
        prefix: str = "",
        rules: FanoutRules | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self.operations = FanoutOperations(prefix=prefix, rules=rules, clock=clock)
        self._caller = caller

    async def answer(self, step: Step) -> lua.Replies | bool:
        """Send the calls of a step, or wait."""
        if isinstance(step, Wake):
            return await self._caller.await_wake(step.key, timeout_s=step.timeout_s)
        return await self._caller.execute(step)

    register = awaited(FanoutOperations.register)
    adopt = awaited(FanoutOperations.adopt)
    configure = awaited(FanoutOperations.configure)
    touch = awaited(FanoutOperations.touch)
    unregister = awaited(FanoutOperations.unregister)
    unregister_idle = awaited(FanoutOperations.unregister_idle)
    publish = awaited(FanoutOperations.publish)
    claim = awaited(FanoutOperations.claim)
    ack = awaited(FanoutOperations.ack)
    nack = awaited(FanoutOperations.nack)
    extend = awaited(FanoutOperations.extend)
    return_claimed = awaited(FanoutOperations.return_claimed)
    reap = awaited(FanoutOperations.reap)
    list_dead = awaited(FanoutOperations.list_dead)
    retry_dead = awaited(FanoutOperations.retry_dead)
    purge_dead = awaited(FanoutOperations.purge_dead)
    expire = awaited(FanoutOperations.expire)
    purge = awaited(FanoutOperations.purge)
    pause = awaited(FanoutOperations.pause)
    resume = awaited(FanoutOperations.resume)
    peek = awaited(FanoutOperations.peek)
    size = awaited(FanoutOperations.size)
    inspect = awaited(FanoutOperations.inspect)
    verify = awaited(FanoutOperations.verify)
    repair = awaited(FanoutOperations.repair)
    await_wake = awaited(FanoutOperations.await_wake)
