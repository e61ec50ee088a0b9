"""The operations of DEVICE sessions in Redis, as steps of script calls.

A step is a list of calls; its answer is the list of their replies, in order, with an exception in the place of a reply
that is an error. Calls of different sessions share steps, a session has one call that writes in flight.
"""

from __future__ import annotations

from queuekeeper.operation import errors_name
from queuekeeper.sessions.redis_operations.common import KEYS_PER_CALL, RECENT_SESSIONS
from queuekeeper.sessions.redis_operations.look import LookOperations
from queuekeeper.sessions.redis_operations.online import OnlineOperations
from queuekeeper.sessions.redis_operations.save import SaveOperations
from queuekeeper.sessions.redis_operations.transfer import TransferOperations
from queuekeeper.sessions.redis_operations.upkeep import UpkeepOperations

__all__ = ["KEYS_PER_CALL", "RECENT_SESSIONS", "RedisSessionOperations"]


@errors_name(client_id="session of client")
class RedisSessionOperations(SaveOperations, UpkeepOperations, LookOperations, TransferOperations, OnlineOperations):
    """What a store of sessions does (:class:`SessionOperations`), in Redis.

    Of what several processes save for one session at once, each save is whole and in order; they meet by optimistic
    tries. An instance may be shared by threads.

    :param prefix: put before every key.
    :param rules: bounds to keep; every process that saves to a session has to use the same.
    :param recent_sessions: sessions whose last packet id is kept in mind, so that a save needs no read before.
    :param epoch_of: under which epoch the caller knows a session; one that has another refuses writes (``StaleEpoch``).
        Those of PostgreSQL's, or on their way there, refuse everybody's (``NotOwner``). All can be read.
    :param clock: this machine's. Only where a life ends within an hour of it is the server asked for its own.
    :raises UsageError: for a prefix with a brace, or a number that is out of range.
    """
