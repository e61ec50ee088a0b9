"""Settings and locks of a session for the maintenance of partitions: UTC, short waits, one session per table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg

from queuekeeper.errors import MaintenanceRunning, UsageError
from queuekeeper.jobs.locks import session_lock
from queuekeeper.postgres import Connection, translated_errors
from queuekeeper.sql_statements import statement

_SETTINGS = (
    "TimeZone",
    "DateStyle",
    "extra_float_digits",
    "quote_all_identifiers",
    "default_transaction_isolation",
    "lock_timeout",
    "statement_timeout",
    "row_security",
)


@contextmanager
def pinned(connection: Connection, *, lock_timeout_ms: int) -> Iterator[None]:
    """Set time zone and lock timeout for the block, so that bounds mean the same in every session and waits are short.

    :raises UsageError: when the connection has no ``autocommit``, which a concurrent detach needs.
    """
    if not connection.autocommit:
        raise UsageError(
            "partitions need a connection with autocommit=True: DETACH ... CONCURRENTLY runs outside of one"
        )
    with translated_errors(connection):
        before = {name: _setting(connection, name) for name in _SETTINGS}
        try:
            connection.execute(statement("queuekeeper/queries/pin_session"))
            set_lock_timeout(connection, lock_timeout_ms)
            set_setting(connection, "statement_timeout", "0")
            # Row security must make a statement fail: a copy or a check of the visible rows would lose the others.
            set_setting(connection, "row_security", "off")
            # Rows are compared, and batches of them bounded, by texts, and names by how the catalog writes them.
            set_setting(connection, "extra_float_digits", "1")
            set_setting(connection, "quote_all_identifiers", "off")
            yield
        finally:
            if not connection.closed:
                with suppress(psycopg.OperationalError):
                    for name, value in before.items():
                        set_setting(connection, name, value)


def set_lock_timeout(connection: Connection, milliseconds: int) -> None:
    """Set the longest wait of this session's statements for one lock."""
    set_setting(connection, "lock_timeout", f"{milliseconds}ms")


def set_setting(connection: Connection, name: str, value: str) -> None:
    """Change a setting of this session."""
    connection.execute(statement("maintenance/partitions/set_setting"), {"name": name, "value": value})


def _setting(connection: Connection, name: str) -> str:
    row = connection.execute(statement("maintenance/partitions/setting"), {"name": name}).fetchone()
    return str(row[0]) if row else ""


@contextmanager
def table_lock(connection: Connection, table: str, table_oid: int) -> Iterator[None]:
    """Hold the lock on a table's maintenance for this session.

    :raises MaintenanceRunning: when another session holds the lock.
    """
    with session_lock(connection, f"queuekeeper.partitions {table_oid}") as is_held:
        if not is_held:
            raise MaintenanceRunning(f"another process maintains the partitions of {table}: let it finish")
        yield
