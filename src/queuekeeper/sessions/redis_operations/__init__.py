"""The operations of DEVICE sessions in Redis, as steps of script calls.

A step is a list of calls; its answer is the list of their replies, in order, with an exception for a reply that is an
error. Calls of different sessions share steps; a session has at most one writing call in flight.
"""

from __future__ import annotations

from queuekeeper.operation import errors_name
from queuekeeper.sessions.layouts import RECENT_SESSIONS
from queuekeeper.sessions.redis_operations.look import LookOperations
from queuekeeper.sessions.redis_operations.online import KeyOnlineOperations
from queuekeeper.sessions.redis_operations.save import SaveOperations
from queuekeeper.sessions.redis_operations.transfer import TransferOperations
from queuekeeper.sessions.redis_operations.upkeep import UpkeepOperations

__all__ = ["RECENT_SESSIONS", "RedisSessionOperations"]


@errors_name(client_id="session of client")
class RedisSessionOperations(SaveOperations, UpkeepOperations, LookOperations, TransferOperations, KeyOnlineOperations):
    """The operations of a store (:class:`SessionOperations`) in Redis; threads may share an instance.

    When several processes save to one session at once, each save is stored as a whole and in order; saves retry
    optimistically.

    :param prefix: put before every key.
    :param rules: limits to apply; all processes that save to a session must use the same.
    :param recent_sessions: sessions whose last packet id is cached, so that a save needs no read before it.
    :param epoch_of: returns the epoch in which the caller knows a session. A session of another epoch refuses writes
        (``StaleEpoch``); a session that PostgreSQL owns, or that moves there, refuses all writes (``NotOwner``).
    :param clock: clock of this machine. The server's clock is asked only for messages that expire within an hour.
    :raises UsageError: for a prefix with a brace, or a number out of range.
    """
