"""Tells for how long a table has partitions ahead, from the catalog alone."""

from __future__ import annotations

import psycopg

from queuekeeper.maintenance.partitions.broker import TABLES
from queuekeeper.maintenance.partitions.catalog import PartitionedTable, read_table
from queuekeeper.maintenance.partitions.session import pinned
from queuekeeper.postgres import Connection, translated_errors

LOOK_LOCK_TIMEOUT_MS = 1_000
"""Longest wait for the lock of a table that is only looked at."""


def head_room_s(connection: Connection, *, table: str, now_ms: int) -> float | None:
    """Return the seconds until keys that follow the clock leave the partitions made ahead, from the catalog alone.

    None for never, for keys that do not follow the clock, and while another session has the table locked.

    :raises UnknownTable: when there is no such table.
    :raises NotPartitioned: when it is not partitioned by ranges of one column.
    :raises RefusedError: when this role may not look at it.
    """
    try:
        with pinned(connection, lock_timeout_ms=LOOK_LOCK_TIMEOUT_MS), translated_errors(connection):
            found = read_table(connection, table, only_read=True)
    except psycopg.errors.LockNotAvailable:
        return None
    now = found.key.clock(now_ms)
    until = None if now is None else prepared_until(found, now)
    return None if now is None or until is None else found.key.seconds(until - now)


def prepared_until(table: PartitionedTable, position: int) -> int | None:
    """Return the end of the partitions made ahead; the broker's overflow is none of them."""
    overflow = table.overflow
    if table.name in TABLES and overflow and overflow.range:
        return overflow.range.start
    return table.covered(position)
