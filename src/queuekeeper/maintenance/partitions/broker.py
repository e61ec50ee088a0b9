"""The event broker's own tables: policies from its settings, and the limits that no retirement may pass."""

from __future__ import annotations

from queuekeeper.events.schema import INSTALL
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.postgres import Connection, translated_errors
from queuekeeper.sql_statements import statement

_EVENTS, _DISPATCHES = "pgmb.events", "pgmb.dispatches"
TABLES = (_EVENTS, _DISPATCHES, "pgmb.subscription_events")
LOWEST_NEEDED = "SELECT pgmb.retention_limit(wait_for_consumers => true)"
NEVER_PASSED = "SELECT pgmb.retention_limit(wait_for_consumers => false)"
"""Lowest key that was not dispatched yet, or is to be dispatched again: not even an approval may retire it."""

_QUERIES = "maintenance/partitions/"


def let_idle_groups_go_on(connection: Connection, *, table: str, upper: str | None) -> None:
    """Move the cursors of groups that have nothing to read below the end of retired dispatches to that end.

    Otherwise the cursor of an idle group would stand before the oldest dispatch, as if the group had lost events.
    """
    if table == _DISPATCHES and upper is not None:
        connection.execute(statement(f"{_QUERIES}advance_groups"), {"upper": upper})


def holds_undispatched(connection: Connection, *, table: str, oid: int) -> bool:
    """Return whether a table that was a partition of events holds an event that no poll has taken.

    A transaction that was open when the detachment began may have committed such an event before it ended.
    """
    if table != _EVENTS:
        return False
    return bool(connection.execute(statement(f"{_QUERIES}undispatched"), {"oid": oid}).fetchall())


def broker_policies(connection: Connection) -> list[PartitionPolicy]:
    """Return the policies of the broker's tables, from its settings; none where it is not installed."""
    with translated_errors(connection, missing=INSTALL):
        row = connection.execute(statement(f"{_QUERIES}has_broker")).fetchone()
        if row is None or not row[0]:
            return []
        settings = connection.execute(statement(f"{_QUERIES}broker_settings")).fetchone()
    step_s, ahead_s, retention_s = settings or (1_800, 10_800, 3_600)
    return [
        PartitionPolicy(
            table=table,
            step=f"{step_s} seconds",
            ahead=f"{ahead_s} seconds",
            # The broker's retention may be 0: events may go as soon as all groups have read them.
            retention=f"{max(1, retention_s)} seconds",
            lowest_needed_sql=LOWEST_NEEDED,
            archive=False,
        )
        for table in TABLES
    ]
