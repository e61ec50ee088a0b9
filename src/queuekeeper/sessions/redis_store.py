"""DEVICE sessions in Redis, for blocking and for asyncio callers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from queuekeeper import lua
from queuekeeper.checks import checked, checked_but
from queuekeeper.clock import Clock, system_clock
from queuekeeper.errors import ScatteredClient
from queuekeeper.operation import Awaiting, Blocking, Both, Operation
from queuekeeper.redis_async import AsyncScriptCaller, check_caller
from queuekeeper.redis_client import RedisClient
from queuekeeper.sessions.by_layout import RedisOperations, operations_of
from queuekeeper.sessions.layouts import RECENT_SESSIONS
from queuekeeper.sessions.model import EpochOf, StoreRules
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.redis_operations import RedisSessionOperations
from queuekeeper.text_form import shows

P = ParamSpec("P")
T = TypeVar("T")
_Ops = RedisSessionOperations


def _both(form: Callable[Concatenate[Any, P], Operation[T]]) -> Both[P, T]:
    """Return a method that carries out the operation of this name of the store's layout."""
    name = form.__name__

    @wraps(form)
    def chosen(operations: RedisOperations, /, *args: P.args, **kwargs: P.kwargs) -> Operation[T]:
        operation: Operation[T] = getattr(operations, name)(*args, **kwargs)
        return operation

    return Both(chosen)


@shows(server="_caller.address", prefix="operations._prefix")
class _Methods:
    """Methods of the blocking and the asyncio class."""

    save_messages = _both(_Ops.save_messages)
    fetch_pending = _both(_Ops.fetch_pending)
    mark_delivered = _both(_Ops.mark_delivered)
    ack = _both(_Ops.ack)
    mark_released = _both(_Ops.mark_released)
    get_last_packet_id = _both(_Ops.get_last_packet_id)
    set_last_packet_id = _both(_Ops.set_last_packet_id)
    has_saved = _both(_Ops.has_saved)
    reserve_packet_ids = _both(_Ops.reserve_packet_ids)
    inspect = _both(_Ops.inspect)
    peek = _both(_Ops.peek)
    purge_session = _both(_Ops.purge_session)
    export_session = _both(_Ops.export_session)
    import_session = _both(_Ops.import_session)
    set_owner = _both(_Ops.set_owner)
    read_snapshot = _both(_Ops.read_snapshot)
    read_copy = _both(_Ops.read_copy)
    apply_snapshot = _both(_Ops.apply_snapshot)
    read_outbox = _both(_Ops.read_outbox)
    read_outboxes = _both(_Ops.read_outboxes)
    trim_outbox = _both(_Ops.trim_outbox)


class RedisSessionStore(_Methods, Blocking):
    """Sessions on a single server or a cluster; threads may share a store.

    When the reply of a save is lost, repeat the save with its ``source`` and ``offset``: that stores nothing twice.

    :param prefix: put before every key.
    :param rules: limits to apply.
    :param recent_sessions: sessions whose last packet id is cached.
    :param replicas: replicas that must have a save before its report says ``replicated``; 0 waits for none.
    :param replica_timeout_ms: milliseconds to wait for the replicas; the save is stored also when they are late.
    :param retry_for_s: seconds that a call waits for a moving slot, a failover, or a server that is busy or loading.
    :param epoch_of: returns the epoch in which the caller knows a session. A session of another epoch refuses writes
        (``StaleEpoch``); a session that PostgreSQL owns, or that moves there, refuses all writes (``NotOwner``).
    :param clock: clock of this machine. The server's clock is asked only for messages that expire within an hour.
    :param layout: keys of a session. Stores of different layouts do not see each other's sessions.
    """

    @checked
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
        layout: Layout = Layout.TBMQ,
    ) -> None:
        self.operations: RedisOperations = operations_of(
            layout, prefix=prefix, rules=rules, recent_sessions=recent_sessions, epoch_of=epoch_of, clock=clock
        )
        self._caller = lua.ScriptCaller(
            client, replicas=replicas, replica_timeout_ms=replica_timeout_ms, retry_for_s=retry_for_s
        )

    def answer(self, step: Sequence[lua.Call]) -> lua.Replies:
        """Send the calls of a step, and return the replies."""
        return self._caller.execute(step)


class AsyncRedisSessionStore(_Methods, Awaiting):
    """:class:`RedisSessionStore` for asyncio.

    :param caller: sends the calls, and waits for its number of replicas; the store does not close it.
    :param epoch_of: see :class:`RedisSessionStore`.
    :param clock: clock of this machine.
    :param layout: see :class:`RedisSessionStore`.
    """

    @checked_but("caller")
    def __init__(
        self,
        caller: AsyncScriptCaller,
        prefix: str = "",
        rules: StoreRules | None = None,
        *,
        recent_sessions: int = RECENT_SESSIONS,
        epoch_of: EpochOf | None = None,
        clock: Clock = system_clock,
        layout: Layout = Layout.TBMQ,
    ) -> None:
        check_caller(caller)
        self.operations: RedisOperations = operations_of(
            layout, prefix=prefix, rules=rules, recent_sessions=recent_sessions, epoch_of=epoch_of, clock=clock
        )
        self._caller = caller

    async def answer(self, step: Sequence[lua.Call]) -> lua.Replies:
        """Send the calls of a step, and return the replies."""
        return await self._caller.execute(step)


def layout_of(client: RedisClient, client_id: str, *, prefix: str = "") -> Layout:
    """Return the layout in which Redis holds a session; of a session in both, the one that Redis delivers from.

    :param prefix: put before every key.
    """
    packed = RedisSessionStore(client, prefix, layout=Layout.PACKED).inspect(client_id, limit=1)
    if not packed.exists and packed.owner is None:
        return Layout.TBMQ
    try:
        other = RedisSessionStore(client, prefix).inspect(client_id, limit=1)
    except ScatteredClient:
        return Layout.PACKED
    is_elsewhere = not other.exists or other.owner not in {None, "redis"}
    return Layout.PACKED if is_elsewhere or not other.messages else Layout.TBMQ
