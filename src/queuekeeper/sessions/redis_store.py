"""DEVICE sessions in Redis, for blocking and for asyncio callers."""

from __future__ import annotations

from collections.abc import Sequence

from queuekeeper import lua
from queuekeeper.clock import Clock, system_clock
from queuekeeper.operation import awaited, blocking
from queuekeeper.redis_async import AsyncScriptCaller
from queuekeeper.redis_client import RedisClient
from queuekeeper.sessions.model import StoreRules
from queuekeeper.sessions.redis_operations import RECENT_SESSIONS, EpochOf, RedisSessionOperations
from queuekeeper.text_form import shows


@shows(server="_caller.address", prefix="operations._prefix")
class RedisSessionStore:
    """Sessions on a single server or a cluster.

    A save whose reply is lost may have happened: repeat it with its ``source`` and ``offset``, which stores nothing
    twice. Threads may share a store.

    :param prefix: put before every key.
    :param rules: bounds to keep.
    :param recent_sessions: sessions whose last packet id is kept in mind.
    :param replicas: replicas that must have a save for its report to say ``replicated``; 0 asks for none.
    :param replica_timeout_ms: how long to wait for them. A save that they do not have by then is stored all the same.
    :param retry_for_s: how long a call waits for a slot that moves, a failover, or a server that is busy or loading.
    :param epoch_of: under which epoch the caller knows a session; one that has another refuses writes (``StaleEpoch``).
        Those of PostgreSQL's, or on their way there, refuse everybody's (``NotOwner``). All can be read.
    :param clock: this machine's. Only where a life ends within an hour of it is the server asked for its own.
    """

    def __init__(
        self,
        client: RedisClient,
        prefix: str = "",
        rules: StoreRules | None = None,
        *,
        recent_sessions: int = RECENT_SESSIONS,
        replicas: int = 0,
        replica_timeout_ms: int = lua.REPLICA_TIMEOUT_MS,
        retry_for_s: float = lua.RETRY_FOR_S,
        epoch_of: EpochOf | None = None,
        clock: Clock = system_clock,
    ) -> None:
        self.operations = RedisSessionOperations(
            prefix=prefix, rules=rules, recent_sessions=recent_sessions, epoch_of=epoch_of, clock=clock
        )
        self._caller = lua.ScriptCaller(
            client, replicas=replicas, replica_timeout_ms=replica_timeout_ms, retry_for_s=retry_for_s
        )

    def answer(self, step: Sequence[lua.Call]) -> lua.Replies:
        """Send the calls of a step."""
        return self._caller.execute(step)

    save_messages = blocking(RedisSessionOperations.save_messages)
    fetch_pending = blocking(RedisSessionOperations.fetch_pending)
    mark_delivered = blocking(RedisSessionOperations.mark_delivered)
    ack = blocking(RedisSessionOperations.ack)
    mark_released = blocking(RedisSessionOperations.mark_released)
    purge_session = blocking(RedisSessionOperations.purge_session)
    get_last_packet_id = blocking(RedisSessionOperations.get_last_packet_id)
    set_last_packet_id = blocking(RedisSessionOperations.set_last_packet_id)
    reserve_packet_ids = blocking(RedisSessionOperations.reserve_packet_ids)
    inspect = blocking(RedisSessionOperations.inspect)
    peek = blocking(RedisSessionOperations.peek)
    export_session = blocking(RedisSessionOperations.export_session)
    import_session = blocking(RedisSessionOperations.import_session)
    set_owner = blocking(RedisSessionOperations.set_owner)
    read_snapshot = blocking(RedisSessionOperations.read_snapshot)
    read_copy = blocking(RedisSessionOperations.read_copy)
    apply_snapshot = blocking(RedisSessionOperations.apply_snapshot)
    read_outbox = blocking(RedisSessionOperations.read_outbox)
    read_outboxes = blocking(RedisSessionOperations.read_outboxes)
    trim_outbox = blocking(RedisSessionOperations.trim_outbox)


@shows(server="_caller.address", prefix="operations._prefix")
class AsyncRedisSessionStore:
    """:class:`RedisSessionStore` for asyncio.

    :param caller: sends the calls; who opened it closes it. It also says how many replicas are waited for.
    :param epoch_of: under which epoch the caller knows a session; one that has another refuses writes (``StaleEpoch``).
    :param clock: this machine's.
    """

    def __init__(
        self,
        caller: AsyncScriptCaller,
        prefix: str = "",
        rules: StoreRules | None = None,
        *,
        recent_sessions: int = RECENT_SESSIONS,
        epoch_of: EpochOf | None = None,
        clock: Clock = system_clock,
    ) -> None:
        self.operations = RedisSessionOperations(
            prefix=prefix, rules=rules, recent_sessions=recent_sessions, epoch_of=epoch_of, clock=clock
        )
        self._caller = caller

    async def answer(self, step: Sequence[lua.Call]) -> lua.Replies:
        """Send the calls of a step."""
        return await self._caller.execute(step)

    save_messages = awaited(RedisSessionOperations.save_messages)
    fetch_pending = awaited(RedisSessionOperations.fetch_pending)
    mark_delivered = awaited(RedisSessionOperations.mark_delivered)
    ack = awaited(RedisSessionOperations.ack)
    mark_released = awaited(RedisSessionOperations.mark_released)
    purge_session = awaited(RedisSessionOperations.purge_session)
    get_last_packet_id = awaited(RedisSessionOperations.get_last_packet_id)
    set_last_packet_id = awaited(RedisSessionOperations.set_last_packet_id)
    reserve_packet_ids = awaited(RedisSessionOperations.reserve_packet_ids)
    inspect = awaited(RedisSessionOperations.inspect)
    peek = awaited(RedisSessionOperations.peek)
    export_session = awaited(RedisSessionOperations.export_session)
    import_session = awaited(RedisSessionOperations.import_session)
    set_owner = awaited(RedisSessionOperations.set_owner)
    read_snapshot = awaited(RedisSessionOperations.read_snapshot)
    read_copy = awaited(RedisSessionOperations.read_copy)
    apply_snapshot = awaited(RedisSessionOperations.apply_snapshot)
    read_outbox = awaited(RedisSessionOperations.read_outbox)
    read_outboxes = awaited(RedisSessionOperations.read_outboxes)
    trim_outbox = awaited(RedisSessionOperations.trim_outbox)
