"""The operations of a store of sessions, in the tables of TBMQ 1.x.

The vendor's tables are not altered. Values without a column there are stored in schema ``queuekeeper``. Each write
first holds the owner rows of its sessions, so that no session changes its owner during the write. Further locks are
taken in one order, so that our writers cannot deadlock: sessions by client id, then messages by serial, then our own
rows. Work that does not need a locked row skips it.
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
    """The operations of a store (:class:`SessionOperations`) in PostgreSQL, and its clean-ups.

    The vendor has no column for the end of a life, so a message without an expiry interval lives for the
    ``default_ttl_s`` of the rules, counted from its own time.

    :param rules: limits that the store applies.
    :param epoch_of: returns the epoch in which the caller knows a session, which then refuses writes in another epoch;
        none knows no epochs.
    """
