"""What a store of sessions does in the tables of TBMQ 1.x, as operations.

The vendor's tables stay as they are. What they have no column for is kept in schema ``queuekeeper``. Locks are taken
in one order, so that our own writers never wait for each other in a circle: sessions by client id, then messages by
serial, then our own rows. Whatever has no need to wait passes over what others hold. Before all of them each write
holds the rows that say who owns its sessions, so that no session changes its owner while it is written to.
"""

from __future__ import annotations

from queuekeeper.operation import errors_name
from queuekeeper.sessions.postgres_operations.common import MAX_VENDOR_TEXT, REFUSALS, Query, Step
from queuekeeper.sessions.postgres_operations.online import OnlineOperations
from queuekeeper.sessions.postgres_operations.save import SaveOperations
from queuekeeper.sessions.postgres_operations.transfer import TransferOperations
from queuekeeper.sessions.postgres_operations.upkeep import CleanupReport, UpkeepOperations

__all__ = ["MAX_VENDOR_TEXT", "REFUSALS", "CleanupReport", "PostgresSessionOperations", "Query", "Step"]


@errors_name(client_id="session of client")
class PostgresSessionOperations(SaveOperations, UpkeepOperations, TransferOperations, OnlineOperations):
    """What a store of sessions does (:class:`SessionOperations`), in PostgreSQL, and clean-ups that it needs.

    A message without an expiry interval lives as long as the rules say, counted from its own time, since the vendor has
    no column for the instant.

    :param rules: bounds that the store keeps.
    :param epoch_of: tells the epoch in which the caller knows a session; the session is not written to in another one.
        None knows none.
    """
