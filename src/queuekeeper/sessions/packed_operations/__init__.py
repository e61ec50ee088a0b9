"""The operations of DEVICE sessions in the packed layout: one hash per session, one key per script.

Steps are as in ``queuekeeper.sessions.redis_operations``.
"""

from __future__ import annotations

from queuekeeper.operation import errors_name
from queuekeeper.sessions.packed_operations.online import PackedOnlineOperations
from queuekeeper.sessions.packed_operations.save import SaveOperations
from queuekeeper.sessions.packed_operations.transfer import TransferOperations

__all__ = ["PackedSessionOperations"]


@errors_name(client_id="session of client")
class PackedSessionOperations(SaveOperations, TransferOperations, PackedOnlineOperations):
    """The operations of a store (:class:`SessionOperations`) in the packed layout; threads may share an instance.

    :param prefix: put before every key.
    :param rules: limits to apply; all processes that save to a session must use the same.
    :param recent_sessions: sessions whose next packet id is cached, which makes a save cheaper.
    :param epoch_of: returns the epoch in which the caller knows a session.
    :param clock: clock of this machine. The server's clock is asked only for messages that expire within an hour.
    """
